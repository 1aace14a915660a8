"""Two hundred epochs leave as much as ten do: threads, descriptors and memory stay level."""

import gc
import os
import threading
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from shardgraph.prefetch import DevicePrefetcher

linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def usage():
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd")), resident_bytes()


def run_epochs(prefetcher, count):
    for epoch in range(count):
        for step, batch in enumerate(prefetcher):
            assert batch.shape == (4, 5_000)
            if epoch % 3 == 1 and step == 2:
                break


@linux
def test_two_hundred_epochs_leave_nothing_behind():
    loader = DataLoader(torch.rand(24, 5_000), batch_size=4, shuffle=True)
    prefetcher = DevicePrefetcher(loader, "cpu", depth=3)
    run_epochs(prefetcher, 20)
    threads, files, memory = usage()
    run_epochs(prefetcher, 200)
    later = usage()
    assert later[:2] == (threads, files)
    # One batch left behind in each epoch would be 16 MB.
    assert later[2] - memory < 8e6
    assert prefetcher.stats.num_epochs == 220


@linux
def test_workers_that_persist_stay_level_too():
    loader = DataLoader(torch.rand(24, 5_000), batch_size=4, num_workers=2, persistent_workers=True)
    prefetcher = DevicePrefetcher(loader, "cpu")
    run_epochs(prefetcher, 5)
    threads, files, _ = usage()
    run_epochs(prefetcher, 20)
    gc.collect()
    later = usage()
    assert later[0] == threads
    assert later[1] <= files + 2  # shared memory of a batch or two that is still on its way
