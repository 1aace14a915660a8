"""Shards of one structure read as one: the same rows, whatever the number of shards."""

import threading

import numpy as np
import pytest
import torch
from graph_equality import assert_same
from torch_geometric.data import Batch, Data, HeteroData

import shardgraph as sg
from shardgraph.shards import arena, pool


class Pair(Data):
    def __inc__(self, key, value, *args):
        return self.x_s.size(0) + 1 if key == "link" else super().__inc__(key, value, *args)


def plain(number):
    n = 1 + number % 5
    generator = torch.Generator().manual_seed(number)
    return Data(
        x=torch.randn(n, 3, generator=generator),
        edge_index=torch.randint(0, n, (2, 2 * n), generator=generator),
        label=torch.tensor([number**3]),  # narrower in the first shards than in the last
        name="n" * number,
        own=torch.arange(number % 4),
    )


def pair(number):
    return Pair(
        x_s=torch.ones(1 + number % 3, 2), x_t=torch.ones(number, 2), link=torch.tensor([0])
    )


def typed(number):
    data = HeteroData()
    data["a"].x = torch.full((1 + number % 2, 2), float(number))
    if number % 3:
        data["b"].x = torch.ones(2, 1)
        data["a", "to", "b"].edge_index = torch.tensor([[0], [number % 2]])
    return data


def write(root, graphs, **options):
    with sg.DatasetWriter(root, **options) as writer:
        for data in graphs:
            writer.write(data)
    return sg.ShardedDataset(root)


@pytest.mark.parametrize("make", [plain, pair, typed])
def test_many_shards_read_as_one(tmp_path, make):
    graphs = [make(number) for number in range(60)]
    few = write(tmp_path / "few", graphs, shard_size="1GB")
    many = write(tmp_path / "many", graphs, shard_size=400)
    assert len(few.manifest.shards) == 1 < len(many.manifest.shards)
    ids = np.random.default_rng(0).integers(0, 60, 100)
    for expected, found in zip(few.__getitems__(ids), many.__getitems__(ids), strict=True):
        assert_same(expected, found)
    for batch_size in (1, 7, 60):
        loaders = [sg.GraphLoader(d, batch_size, shuffle="full", seed=1) for d in (few, many)]
        for expected, found in zip(*loaders, strict=True):
            assert_same(expected, found)
    assert many._pool.groups


def test_shards_without_room_for_maps_are_read_one_by_one(tmp_path, monkeypatch):
    graphs = [plain(number) for number in range(40)]
    monkeypatch.setattr(pool, "MAX_MAPS", 20)
    dataset = write(tmp_path / "d", graphs, shard_size=400)
    batch = next(iter(sg.GraphLoader(dataset, 40)))
    assert_same(Batch.from_data_list(graphs), batch)
    owners = dataset._pool._owners
    assert (owners >= 0).any()
    assert (owners < 0).any()


def test_without_addresses_shards_are_read_one_by_one(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(arena, "_map", refuse)
    graphs = [plain(number) for number in range(20)]
    dataset = write(tmp_path / "d", graphs, shard_size=400)
    assert_same(Batch.from_data_list(graphs), next(iter(sg.GraphLoader(dataset, 20))))
    assert not dataset._pool.groups


def test_more_addresses_than_there_are_cannot_be_reserved():
    with pytest.raises(OSError, match="cannot map 18446744073709551616 bytes"):
        arena.Arena(np.dtype(np.uint8), (1 << 44,), 1 << 20)


def test_shards_that_claim_more_nodes_than_can_be_numbered_are_read_one_by_one(tmp_path):
    import h5py

    graphs = [Data(y=float(number), num_nodes=2) for number in range(4)]
    write(tmp_path / "d", graphs, shard_size=1)
    for number in range(4):
        with h5py.File(tmp_path / f"d/shard-0000{number}.h5", "r+") as file:
            file["ptr/node"][1] = 1 << 62
    dataset = sg.ShardedDataset(tmp_path / "d")
    for number, data in enumerate(dataset):
        assert_same(Data(y=float(number), num_nodes=1 << 62), data)


def test_a_damaged_ptr_names_its_shard(tmp_path):
    import h5py

    dataset = write(tmp_path / "d", [plain(number) for number in range(40)], shard_size=400)
    name = dataset.manifest.shards[3].name
    with h5py.File(tmp_path / "d" / name, "r+") as file:
        file["ptr/node"][1] = 10**6
    with pytest.raises(sg.CorruptShardError, match=rf"{name}: /ptr/node does not rise"):
        next(iter(sg.GraphLoader(sg.ShardedDataset(tmp_path / "d"), 40)))


def test_threads_that_open_at_once_open_each_shard_once(tmp_path):
    graphs = [plain(number) for number in range(60)]
    dataset = write(tmp_path / "d", graphs, shard_size=400)
    start = threading.Barrier(4)
    found = [None] * 4

    def read(place):
        start.wait()
        found[place] = dataset.__getitems__(range(60))

    threads = [threading.Thread(target=read, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in found:
        for expected, got in zip(graphs, each, strict=True):
            assert_same(expected, got)
    placed = [group._used["graph"] for group in dataset._pool.groups]
    shards = [int((group._end["graph"] > 0).sum()) for group in dataset._pool.groups]
    assert placed == [arena.STEP * count for count in shards]


def test_an_arena_holds_rows_of_files_side_by_side(tmp_path):
    import os

    rows = np.arange(5000 * 11, dtype=np.float32).reshape(5000, 11)
    path = tmp_path / "rows"
    path.write_bytes(b"?" * 4096 + rows.tobytes())
    both = arena.Arena(rows.dtype, (11,), 4 * arena.STEP)
    descriptor = os.open(path, os.O_RDONLY)
    both.place(0, descriptor, 4096, rows.nbytes)
    both.place(2 * arena.STEP, descriptor, 4096 + 44, rows.nbytes - 44)  # not aligned: copied
    with pytest.raises(OSError, match="the reserved range is full"):
        both.place(4 * arena.STEP, descriptor, 4096, rows.nbytes)
    os.close(descriptor)
    path.unlink()
    index = np.array([0, 4999, 2 * arena.STEP, 2 * arena.STEP + 4998])
    assert np.array_equal(both.array.take(index, axis=0), rows[[0, 4999, 1, 4999]])
    both.forget()  # mapped rows are read from the file again; copies must stay
    assert np.array_equal(both.array.take(index, axis=0), rows[[0, 4999, 1, 4999]])
    assert not both.array.flags.writeable
