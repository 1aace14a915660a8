"""However a loop ends, it leaves no thread, no worker process and no shared memory."""

import gc
import logging
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from shardgraph.prefetch import DevicePrefetcher, feed


class Squares(Dataset):
    """Squares as tensors in shared memory; number ``bad`` cannot be read."""

    def __init__(self, count=64, bad=None):
        self.count, self.bad = count, bad

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.bad:
            raise OSError(f"square {index} is lost")
        return torch.full((100,), index**2)


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name == "shardgraph-prefetch"]


def shared_files():
    directory = Path("/dev/shm")
    return {entry.name for entry in directory.glob("torch_*")} if directory.is_dir() else set()


@pytest.fixture(autouse=True)
def nothing_left():
    before = shared_files()
    yield
    assert prefetch_threads() == []
    assert multiprocessing.active_children() == []
    assert shared_files() <= before


def make(num_workers, *, bad=None, persistent=False):
    # The forkserver's resource tracker is a child of its own, so the tests keep to fork where the
    # system has it; warnings about fork and threads would be errors here.
    loader = DataLoader(
        Squares(bad=bad), batch_size=4, num_workers=num_workers, persistent_workers=persistent
    )
    return DevicePrefetcher(loader, "cpu", depth=3)


WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


@WORKERS
def test_after_a_whole_epoch(num_workers):
    assert len(list(make(num_workers))) == 16
    assert prefetch_threads() == []
    assert multiprocessing.active_children() == []


@WORKERS
def test_after_break_and_the_next_loop_is_a_clean_epoch(num_workers):
    prefetcher = make(num_workers)
    for first in prefetcher:  # noqa: B007  # compared below
        break
    assert prefetch_threads() == []
    assert multiprocessing.active_children() == []
    again = torch.cat(list(prefetcher))[:, 0]
    assert again.tolist() == [k**2 for k in range(64)]
    assert torch.equal(first[:, 0], again[:4])


@WORKERS
def test_after_an_error_of_the_loader_even_while_it_is_kept(num_workers):
    prefetcher = make(num_workers, bad=20)
    seen = []
    with pytest.raises(OSError, match="square 20 is lost") as caught:
        seen.extend(batch[0, 0].item() for batch in prefetcher)
    assert seen == [0, 16, 64, 144, 256]
    assert prefetch_threads() == []
    assert multiprocessing.active_children() == []
    assert "__getitem__" in str(caught.value) or "__getitem__" in [e.name for e in caught.traceback]


@WORKERS
def test_after_an_error_of_the_consumer(num_workers):
    prefetcher = make(num_workers)

    def train():
        for _ in prefetcher:
            raise ZeroDivisionError("the model")

    with pytest.raises(ZeroDivisionError, match="the model"):
        train()
    assert prefetch_threads() == []
    assert multiprocessing.active_children() == []


@WORKERS
def test_after_the_iterator_is_dropped(num_workers):
    iterator = iter(make(num_workers))
    next(iterator)
    del iterator
    assert prefetch_threads() == []
    assert multiprocessing.active_children() == []


def test_after_the_iterator_is_collected_in_a_cycle():
    class Holder:
        pass

    holder = Holder()
    holder.iterator = iter(make(0))
    holder.itself = holder
    next(holder.iterator)
    del holder
    gc.collect()
    assert prefetch_threads() == []


@WORKERS
def test_close_is_twice_safe_and_ends_the_loop(num_workers):
    prefetcher = make(num_workers)
    iterator = iter(prefetcher)
    next(iterator)
    prefetcher.close()
    prefetcher.close()
    assert prefetch_threads() == []
    assert multiprocessing.active_children() == []
    assert list(iterator) == []
    assert len(list(prefetcher)) == 16


def test_the_with_statement_closes_prefetcher_and_loader():
    class Loader(list):
        closed = 0

        def close(self):
            self.closed += 1

    loader = Loader(range(9))
    with DevicePrefetcher(loader, "cpu") as prefetcher:
        iterator = iter(prefetcher)
        next(iterator)
    assert loader.closed == 1
    assert prefetch_threads() == []


def test_persistent_workers_live_on_with_their_loader_and_end_with_it():
    prefetcher = make(2, persistent=True)
    for batch in prefetcher:
        assert batch[0, 0] == 0
        break
    first = {child.pid for child in multiprocessing.active_children()}
    assert len(first) == 2
    assert len(list(prefetcher)) == 16
    assert {child.pid for child in multiprocessing.active_children()} == first
    del prefetcher
    gc.collect()
    assert multiprocessing.active_children() == []


def test_a_generator_is_closed_in_the_thread_that_ran_it():
    ended_in = []

    class Loader:
        def __iter__(self):
            try:
                yield from range(100)
            finally:
                ended_in.append(threading.current_thread().name)

    for _ in DevicePrefetcher(Loader(), "cpu"):
        break
    assert ended_in == ["shardgraph-prefetch"]


@pytest.mark.torture
def test_a_loader_stuck_in_a_read_does_not_hang_close(monkeypatch, caplog):
    monkeypatch.setattr(feed, "JOIN_SECONDS", 0.05)
    release = threading.Event()

    class Loader:
        def __iter__(self):
            yield 1
            release.wait()
            yield 2

    prefetcher = DevicePrefetcher(Loader(), "cpu")
    iterator = iter(prefetcher)
    assert next(iterator) == 1
    with caplog.at_level(logging.WARNING):
        iterator.close()
    assert "has not returned from one read" in caplog.text
    release.set()
    assert list(prefetcher) == [1, 2]  # waits for the old thread


def run(script, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


LOOP = """
    import sys, threading, time, multiprocessing
    import torch
    from torch.utils.data import DataLoader
    from shardgraph.prefetch import DevicePrefetcher

    class Slow:
        def __len__(self):
            return 10_000
        def __getitem__(self, index):
            time.sleep(0.002)
            return torch.tensor(index)

    prefetcher = DevicePrefetcher(DataLoader(Slow(), batch_size=4, num_workers=NUM), "cpu")
"""


@pytest.mark.parametrize(
    ("num_workers", "ending"),
    [
        pytest.param(0, "pass", id="end_of_script"),
        pytest.param(2, "pass", id="end_of_script_with_workers"),
        pytest.param(2, "sys.exit(0)", id="exit_with_workers"),
    ],
)
@pytest.mark.torture
def test_python_exits_while_a_loop_is_under_way(num_workers, ending):
    script = (
        LOOP.replace("NUM", str(num_workers))
        + f"""
    iterator = iter(prefetcher)
    next(iterator)
    {ending}
    """
    )
    start = time.monotonic()
    process = run(script)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert time.monotonic() - start < 20


def test_python_exits_while_the_loader_is_stuck():
    script = """
    import threading
    import shardgraph.prefetch.feed as feed
    from shardgraph.prefetch import DevicePrefetcher
    feed.JOIN_SECONDS = 0.2
    class Loader:
        def __iter__(self):
            yield 1
            threading.Event().wait()
    iterator = iter(DevicePrefetcher(Loader(), "cpu"))
    print(next(iterator))
    """
    output, errors = run(script).communicate(timeout=30)
    assert output == "1\n"
    assert "has not returned from one read" in errors
