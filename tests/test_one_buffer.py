"""A batch crosses as one block: one descriptor from a worker, one transfer to a device."""

import gc
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from graph_equality import assert_same
from torch_geometric.data import Batch, Data

import shardgraph as sg
from shardgraph.collate import Crossing, PackedBatch, ordinary_memory

sys.path.insert(0, str(Path(__file__).parent / "prefetch"))
from prefetch_simulation import SimulatedBackend

NUM_GRAPHS = 64


def molecules():
    generator = torch.Generator().manual_seed(0)
    for number in range(NUM_GRAPHS):
        n = 3 + number % 7
        yield Data(
            x=torch.randn(n, 11, generator=generator),
            z=torch.randint(0, 9, (n,), generator=generator),
            pos=torch.randn(n, 3, generator=generator),
            edge_index=torch.randint(0, n, (2, 2 * n), generator=generator),
            edge_attr=torch.randn(2 * n, 4, generator=generator),
            y=torch.randn(1, 19, generator=generator),
            name=f"m{number}",
            mass=float(number),
        )


@pytest.fixture
def dataset(tmp_path):
    with sg.DatasetWriter(tmp_path / "molecules", shard_size="20kB") as writer:
        for data in molecules():
            writer.write(data)
    return sg.ShardedDataset(tmp_path / "molecules")


def same(data):
    return data


def open_descriptors():
    gc.collect()  # what an earlier test left may close its own
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
@pytest.mark.parametrize("transform", [None, same], ids=["from_columns", "graph_by_graph"])
@pytest.mark.parametrize("shared_by", ["shardgraph", "torch"])
def test_a_worker_batch_costs_at_most_one_descriptor(dataset, transform, shared_by, monkeypatch):
    if shared_by == "torch":
        monkeypatch.setattr("shardgraph.collate.buffer.can_share", lambda: False)
    dataset.transform = transform
    batches = iter(sg.GraphLoader(dataset, 4, num_workers=1))
    first = next(batches)
    before = open_descriptors()
    kept = [next(batches) for _ in range(10)]
    assert open_descriptors() - before <= (10 if shared_by == "torch" else 0)
    assert_same(Batch.from_data_list(list(molecules())[4:8]), kept[0])
    assert first.num_graphs == 4
    batches.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_keeping_the_labels_does_not_keep_the_batches(dataset):
    batches = iter(sg.GraphLoader(dataset, 4, num_workers=1))
    next(batches)
    before = open_descriptors()
    labels = [next(batches).y for _ in range(10)]
    assert open_descriptors() <= before
    assert torch.equal(torch.cat(labels), torch.cat([data.y for data in molecules()])[4:44])
    batches.close()


def test_a_packed_batch_moves_as_one_transfer(dataset):
    backend = SimulatedBackend()
    loader = sg.GraphLoader(dataset, 8)
    prefetcher = sg.DevicePrefetcher.with_backend(loader, backend)
    batches = list(prefetcher)
    transfers = [name for name in backend.names() if name == "copy"]
    assert len(transfers) == len(batches) == NUM_GRAPHS // 8
    prefetcher.close()


def test_pinning_pins_one_block(dataset, monkeypatch):
    pinned = []

    def pin_memory(tensor):
        pinned.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    packed = next(sg.GraphLoader(dataset, 8).packed_batches())
    assert isinstance(packed, PackedBatch)
    batch = packed.pin_memory().unpack()
    assert [tensor.dtype for tensor in pinned] == [torch.uint8]
    assert_same(batch, Batch.from_data_list(list(molecules())[:8]))


def test_a_packed_batch_moved_to_a_device_equals_the_original(dataset):
    packed = next(sg.GraphLoader(dataset, 8).packed_batches())
    assert 0 < packed.device_nbytes < packed.nbytes
    moved = packed.to("cpu")
    assert_same(moved.unpack(), Batch.from_data_list(list(molecules())[:8]))


def test_a_pickled_batch_must_be_attached_before_it_is_unpacked(dataset):
    loader = sg.GraphLoader(dataset, 8)
    packed = next(loader.packed_batches())
    again = pickle.loads(pickle.dumps(packed))
    with pytest.raises(RuntimeError, match=r"came from another process; call attach\(\) first"):
        again.unpack()


def test_tensors_of_a_batch_are_independent_for_autograd(dataset):
    batch = next(iter(sg.GraphLoader(dataset, 8)))
    weight = torch.ones(4, requires_grad=True)
    loss = (batch.edge_attr * weight).sum()
    batch.x += 1  # a version counter shared with edge_attr would make backward() fail
    batch.pos.zero_()
    loss.backward()
    assert weight.grad is not None


def test_crossing_keeps_structure_and_shares_repeated_tensors():
    x = torch.arange(6.0).reshape(2, 3)
    value = {"a": x, "b": [x, torch.tensor(3), torch.zeros(0, 4)], "c": ("text", 7, None)}
    crossing = pickle.loads(pickle.dumps(Crossing.of(value, ordinary_memory)))
    back = crossing.unpack()
    assert back["c"] == ("text", 7, None)
    assert back["a"] is back["b"][0]
    for got, expected in zip([back["a"], *back["b"]], [x, *value["b"]], strict=True):
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)


def test_crossing_leaves_unusual_tensors_to_pickle():
    sparse = torch.eye(3).to_sparse()
    weight = torch.nn.Parameter(torch.ones(2))
    back = Crossing.of([sparse, weight], ordinary_memory).unpack()
    assert torch.equal(back[0].to_dense(), torch.eye(3))
    assert back[1].requires_grad


def test_only_the_bytes_of_the_keys_are_asked_for(tmp_path):
    with sg.DatasetWriter(tmp_path / "wide") as writer:
        for _ in range(50):
            writer.write(Data(x=torch.ones(10, 2), big=torch.ones(10, 1000), y=torch.ones(1)))
    whole = sg.ShardedDataset(tmp_path / "wide")
    narrow = sg.ShardedDataset(tmp_path / "wide", keys=["x", "y"])
    everything = np.array([[0, 50]])
    column_bytes = {"x": 50 * 10 * 2 * 4, "big": 50 * 10 * 1000 * 4, "y": 50 * 4}
    ask = sg.ShardedDataset.will_read
    whole._advisor._is_cached = narrow._advisor._is_cached = lambda *_: False
    assert ask(whole, everything) == sum(column_bytes.values())
    assert ask(narrow, everything) == column_bytes["x"] + column_bytes["y"]
    batch = next(iter(sg.GraphLoader(narrow, 50)))
    assert set(batch.keys()) == {"x", "y", "batch", "ptr"}
