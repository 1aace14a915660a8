"""How worker processes begin: they leave Ctrl-C to their parent."""

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
from shardgraph.processes import begin_worker

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")

GRAPHS = [Data(x=torch.full((2, 3), float(k)), y=k) for k in range(40)]


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
