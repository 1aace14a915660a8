"""How worker processes begin: what Ctrl-C does to them, and to the process that starts them."""

import multiprocessing
import os
import signal
import sys
import threading
import time

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

import shardgraph as sg
from shardgraph.processes import begin_worker, interrupt_waits

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")

GRAPHS = [Data(x=torch.full((2, 3), float(k)), y=k) for k in range(40)]


@pytest.fixture(autouse=True)
def handler():
    """Python's own handler, there before and after."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def press_ctrl_c(times: int, done: list[str], error: OSError | None = None) -> None:
    with interrupt_waits():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        if error is not None:
            raise error
        done.append("block")


def test_ctrl_c_comes_after_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c(1, done)
    assert done == ["block"]


def test_ctrl_c_comes_after_an_error_and_tells_of_it():
    error = OSError("no process left")
    with pytest.raises(KeyboardInterrupt) as caught:
        press_ctrl_c(1, [], error)
    assert caught.value.__context__ is error


def test_pressed_twice_it_comes_at_once():
    done = []
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c(2, done)
    assert done == []


def test_a_handler_of_the_users_own_is_called():
    calls = []
    signal.signal(signal.SIGINT, lambda *args: calls.append(args[0]))
    with interrupt_waits():
        signal.raise_signal(signal.SIGINT)
        assert calls == []
    assert calls == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_who_ignores_ctrl_c_ignores_it_here_too():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupt_waits():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_leave_the_handler_alone():
    seen = []

    def look() -> None:
        with interrupt_waits():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


@pytest.mark.parametrize("kind", ["GraphLoader", "GraphLoader prefetched", "PyG's prefetched"])
def test_workers_leave_ctrl_c_to_their_parent(tmp_path, kind):
    begun = multiprocessing.SimpleQueue()
    options = {"num_workers": 2, "worker_init_fn": begun.put, "prefetch_factor": 1}
    if kind == "PyG's prefetched":
        loader = DataLoader(GRAPHS, 4, **options)
    else:
        with sg.DatasetWriter(tmp_path) as writer:
            for graph in GRAPHS:
                writer.write(graph)
        loader = sg.GraphLoader(sg.ShardedDataset(tmp_path), 4, **options)
    given = loader.worker_init_fn
    batches = iter(loader if kind == "GraphLoader" else sg.DevicePrefetcher(loader, "cpu"))
    assert loader.worker_init_fn is given
    assert {begun.get(), begun.get()} == {0, 1}  # the user's own was called, in each
    seen = next(batches).y.tolist()
    for _ in range(3):  # pressed once, the handler that they were forked with only counts
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGINT)
        time.sleep(0.05)
    for batch in batches:
        seen += batch.y.tolist()
    assert seen == [*range(40)]


def say_what_it_is(connection, word: str) -> None:
    names = [thread.name for thread in threading.enumerate()]
    connection.send((word, signal.getsignal(signal.SIGINT) is signal.SIG_IGN, names))
    connection.recv()


def test_a_worker_does_what_it_is_given_after_it_has_begun():
    ours, its = multiprocessing.Pipe()
    worker = multiprocessing.Process(target=begin_worker, args=(say_what_it_is, its, "hello"))
    worker.start()
    its.close()
    assert ours.recv() == ("hello", True, ["MainThread", "shardgraph-orphan"])
    ours.send("end")
    worker.join(10)
    assert worker.exitcode == 0
