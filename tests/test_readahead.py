"""What a loader asks the kernel for ahead of reading, and what it lets go of behind."""

import os
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from graph_equality import assert_same
from torch_geometric.data import Batch, Data

import shardgraph as sg
from shardgraph.readahead import AHEAD_NBYTES, ReadAheadThread
from shardgraph.sampling import ReadAhead


@dataclass
class Recorder:
    """Stands for a dataset: each range has as many megabytes as its first number says."""

    calls: list[tuple[str, int]] = field(default_factory=list)

    def will_read(self, ranges) -> int:
        self.calls.append(("ask", int(ranges[0, 1])))
        return int(ranges[0, 0]) << 20

    def was_read(self, ranges) -> None:
        self.calls.append(("let go", int(ranges[0, 1])))


def windows(megabytes: int, count: int, batches: int = 10):
    return lambda first: iter(
        ReadAhead(batches=batches, ranges=np.array([[megabytes, number]]))
        for number in range(first // batches, count)
    )


def settled(recorder: Recorder, length: int) -> list[tuple[str, int]]:
    """The calls, once there are so many, and no more come."""
    deadline = time.monotonic() + 5
    while len(recorder.calls) < length and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.03)
    return list(recorder.calls)


def test_a_window_is_let_go_when_the_one_after_it_was_handed_out():
    recorder = Recorder()
    thread = ReadAheadThread(recorder, windows(64, 6), lets_go=True)
    try:
        calls = [("ask", 0), ("ask", 1)]  # the window being read, and the next
        assert settled(recorder, 2) == calls
        thread.advance(9)
        assert settled(recorder, 2) == calls
        thread.advance(10)  # the first was handed out: workers may still be at it
        calls.append(("ask", 2))
        assert settled(recorder, 3) == calls
        thread.advance(20)
        calls += [("let go", 0), ("ask", 3)]
        assert settled(recorder, 5) == calls
        thread.advance(30)
        calls += [("let go", 1), ("ask", 4)]
        assert settled(recorder, 7) == calls
    finally:
        thread.close()


def test_nothing_is_let_go_where_memory_has_room():
    recorder = Recorder()
    thread = ReadAheadThread(recorder, windows(64, 4))
    try:
        for handed_out in (10, 20, 30, 40):
            thread.advance(handed_out)
            settled(recorder, min(4, 2 + handed_out // 10))
        assert recorder.calls == [("ask", number) for number in range(4)]
    finally:
        thread.close()


def test_what_is_asked_for_ahead_is_bounded():
    recorder = Recorder()
    thread = ReadAheadThread(recorder, windows(10, 100, batches=1))
    try:
        asked = len(settled(recorder, 10))
        assert (AHEAD_NBYTES >> 20) <= asked * 10 <= (AHEAD_NBYTES >> 20) + 10
    finally:
        thread.close()


def large(root, shards: int = 3) -> list[Data]:
    """Shards whose columns lie at whole pages, and a last small one whose columns are copied."""
    generator = torch.Generator().manual_seed(0)
    graphs = [
        Data(x=torch.rand(4, 64, generator=generator), y=torch.tensor([float(number)]))
        for number in range(shards * 2000 + 3)
    ]
    with sg.DatasetWriter(root, shard_size=2000 * 4 * 64 * 4) as writer:
        for data in graphs:
            writer.write(data)
    return graphs


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_are_the_same_where_memory_cannot_hold_the_dataset(
    tmp_path, monkeypatch, num_workers
):
    graphs = large(tmp_path)
    dataset = sg.ShardedDataset(tmp_path)
    assert len(dataset.manifest.shards) > 2
    monkeypatch.setattr("shardgraph.loader.page_cache_room", lambda: 1 << 20)
    monkeypatch.setattr("shardgraph.sampling.order.BLOCK_NBYTES", 1 << 16)
    monkeypatch.setattr("shardgraph.sampling.window.WINDOW_BLOCKS", 8)
    monkeypatch.setattr("shardgraph.sampling.plan.WINDOW_BLOCKS", 8)
    monkeypatch.setattr("shardgraph.loader.SMALL", 0)
    loader = sg.GraphLoader(dataset, 50, shuffle="window", num_workers=num_workers)
    assert loader.plan.window_size is not None
    assert loader.plan.window_size < len(dataset) // 5
    for epoch in range(2):
        batches = list(loader)
        for positions, batch in zip(loader.plan.batches(epoch), batches, strict=True):
            assert_same(Batch.from_data_list([graphs[place] for place in positions]), batch)
    loader_of_small = sg.GraphLoader(dataset, 50, shuffle="full", num_workers=num_workers)
    assert loader_of_small.plan.window_size is None


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system cannot tell what is cached")
def test_what_was_read_leaves_the_page_cache_once_it_is_unmapped(tmp_path):
    large(tmp_path)
    for entry in sg.ShardedDataset(tmp_path).manifest.shards:
        descriptor = os.open(tmp_path / entry.name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    dataset = sg.ShardedDataset(tmp_path)
    everything, most = np.array([[0, len(dataset)]]), np.array([[100, len(dataset) - 100]])
    before = dataset.selection(np.arange(len(dataset)))
    x = np.empty((4 * len(dataset), 64), np.float32)
    before.column("x", x)
    assert dataset.will_read(everything) == 0  # cached
    dataset.unmap_pages()
    dataset.was_read(most)
    if dataset.will_read(most) == 0:
        pytest.skip("this file system keeps its pages")
    again = np.empty_like(x)
    dataset.selection(np.arange(len(dataset))).column("x", again)
    assert np.array_equal(x, again)


def test_graphs_without_a_byte_are_cached(tmp_path):
    with sg.DatasetWriter(tmp_path) as writer:
        for _ in range(3):
            writer.write(Data(x=torch.ones(0, 2)))
    assert sg.ShardedDataset(tmp_path).will_read(np.array([[0, 3]])) == 0
