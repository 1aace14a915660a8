"""Fixtures and rules shared by all tests."""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

# Here and in every program that a test starts: two threads of torch on two busy cores, each
# waiting for the other at every small operation, cost many times what they give.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]

# The same examples on every run, and no deadline: a shared machine stalls now and then.
hypothesis.settings.register_profile("shardgraph", derandomize=True, deadline=None)
hypothesis.settings.load_profile("shardgraph")

# Daemon threads that a library starts once and keeps for the life of the process: tqdm's monitor,
# and the server through which multiprocessing hands over file descriptors.
LIBRARY_THREADS = ("TMonitor", "_serve")


@pytest.fixture(scope="session")
def cases() -> Path:
    """The folder of real raw files: $SHARDGRAPH_CASES, or shared/cases beside the checkout."""
    path = Path(os.environ.get("SHARDGRAPH_CASES", ROOT.parent / "shared" / "cases"))
    if not path.is_dir():
        pytest.skip(f"no folder of raw cases at {path}; SHARDGRAPH_CASES names another")
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items:
        import torch

        if not torch.cuda.is_available():
            for item in gpu_items:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _is_library_thread(thread: threading.Thread) -> bool:
    return type(thread).__name__ in LIBRARY_THREADS or any(
        f"({name})" in thread.name for name in LIBRARY_THREADS
    )


def _running() -> set[threading.Thread | multiprocessing.process.BaseProcess]:
    threads = {thread for thread in threading.enumerate() if not _is_library_thread(thread)}
    return threads | set(multiprocessing.active_children())


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """A test that leaves a thread or a child process behind fails."""
    before = _running()
    yield
    give_up = time.monotonic() + 2.0
    while (left := _running() - before) and time.monotonic() < give_up:
        time.sleep(0.01)
    if left:
        pytest.fail(f"left running: {sorted(map(repr, left))}")
