"""Compressed columns: every range of rows is right, and chunks are decoded once while they fit."""

import itertools
import pickle
import threading

import h5py
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import shardgraph as sg
from shardgraph.shards import compressed
from shardgraph.shards.compressed import ChunkedColumn, DecodedChunks

ROWS = 40_000  # of 9 float32: 22 chunks of 64 KiB


@pytest.fixture(params=["gzip", "lz4", "zstd"])
def dataset(request, tmp_path) -> sg.ShardedDataset:
    if request.param != "gzip":
        pytest.importorskip("hdf5plugin")
    x = torch.randint(0, 9, (ROWS, 9), generator=torch.Generator().manual_seed(0)).float()
    with sg.DatasetWriter(tmp_path, compression=request.param) as writer:
        for start in range(0, ROWS, 10):
            writer.write(Data(x=x[start : start + 10], y=start))
    return sg.ShardedDataset(tmp_path)


@pytest.fixture
def decoded(monkeypatch) -> list[tuple[int, int]]:
    """The chunks that are decoded, by column."""
    chunks: list[tuple[int, int]] = []
    keep = DecodedChunks.keep

    def counted(self, column, number, chunk):
        chunks.append((id(column), number))
        keep(self, column, number, chunk)

    monkeypatch.setattr(DecodedChunks, "keep", counted)
    return chunks


def column(dataset: sg.ShardedDataset) -> ChunkedColumn:
    found = dataset._pool.shard(0).columns["x"]
    assert isinstance(found, ChunkedColumn)
    return found


def test_all_ranges_of_rows(dataset):
    x = column(dataset)
    with h5py.File(next(dataset._pool.root.glob("*.h5")), locking=False) as file:
        step = file["columns/x"].chunks[0]
        whole = file["columns/x"][:]
    assert len(whole) // step > 20
    edges = [0, 1, step - 1, step, step + 1, 2 * step, 3 * step + 7, ROWS - 1, ROWS]
    for start, stop in itertools.combinations_with_replacement(edges, 2):
        found = x[start:stop]
        assert found.dtype == whole.dtype
        assert np.array_equal(found, whole[start:stop])


def test_each_chunk_is_decoded_once_in_any_order(dataset, decoded):
    expected = dataset_sums(dataset)
    for _ in range(2):
        for batch in sg.GraphLoader(dataset, 64, shuffle="full"):
            assert torch.equal(batch.x[::10].sum(1).long(), expected[batch.y // 10])
    assert len(decoded) == len(set(decoded)) > 20


def dataset_sums(dataset: sg.ShardedDataset) -> torch.Tensor:
    """The sum of the first row of each graph."""
    return torch.from_numpy(column(dataset)[0:ROWS][::10].astype(np.int64).sum(1))


def test_no_more_is_kept_than_allowed(dataset, decoded, monkeypatch):
    monkeypatch.setattr(compressed, "MOST_DECODED", 3 * 65_536)
    expected = dataset_sums(dataset)
    shard = dataset._pool.shard(0)
    for number in torch.randperm(ROWS // 10, generator=torch.Generator().manual_seed(1))[:200]:
        data = dataset[int(number)]
        assert data.x[0].sum() == expected[number]
        assert sum(chunk.nbytes for chunk in shard.decoded._chunks.values()) <= 3 * 65_536
    assert len(set(decoded)) > 20
    assert len(decoded) > 100  # most were let go and decoded again


def test_threads_read_what_one_reads(dataset, monkeypatch):
    monkeypatch.setattr(compressed, "MOST_DECODED", 5 * 65_536)
    expected = dataset_sums(dataset)
    wrong = []

    def read(seed: int) -> None:
        numbers = torch.randperm(ROWS // 10, generator=torch.Generator().manual_seed(seed))[:99]
        wrong.extend(n for n in numbers.tolist() if dataset[n].x[0].sum() != expected[n])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    kept = dataset._pool.shard(0).decoded
    assert kept._nbytes == sum(chunk.nbytes for chunk in kept._chunks.values())


def test_what_is_decoded_is_not_pickled_and_goes_on_closing(dataset):
    empty = len(pickle.dumps(dataset))
    expected = dataset_sums(dataset)
    for number in range(0, len(dataset), 50):
        assert dataset[number].x[0].sum() == expected[number]
    kept = dataset._pool._decoded
    assert kept._nbytes > 20 * 65_536
    assert len(pickle.dumps(dataset)) == empty
    dataset.close()
    assert dataset._pool._decoded is not kept
    assert dataset[7].x[0].sum() == expected[7]
