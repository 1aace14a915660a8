"""Gathering gives the rows of the chosen graphs in the chosen order, on every path the same."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import shardgraph as sg
from shardgraph.shards import gather
from shardgraph.shards.gather import Selection


def graphs_of(rng: np.random.Generator, num: int, rows: int) -> list[Data]:
    """Graphs with a wide column, a narrow one, one that is a row a graph, and an own axis."""
    out = []
    for number in range(num):
        n, e, own = rng.integers(0, rows, 3).tolist()
        data = Data(
            x=torch.from_numpy(rng.random((n, 3), np.float32)),
            edge_index=torch.from_numpy(rng.integers(0, max(n, 1), (2, e if n else 0))),
            y=torch.tensor([number]),
            own=torch.from_numpy(rng.integers(-300, 300, (own, 2))),
        )
        out.append(data)
    return out


def opened(path: Path, graphs: list, shard_size: int, **options) -> sg.ShardedDataset:
    with sg.DatasetWriter(path, shard_size=shard_size, **options) as writer:
        for data in graphs:
            writer.write(data)
    return sg.ShardedDataset(path)


def check(dataset: sg.ShardedDataset, graphs: list[Data], ids: list[int]) -> None:
    """Compares lengths, ptr, columns (rows first) and increments with the graphs themselves."""
    selection = dataset.selection(np.array(ids, np.int64))
    chosen = [graphs[place] for place in ids]
    nodes = np.array([data.num_nodes for data in chosen])
    for name, dim in {"x": 0, "edge_index": 1, "y": 0, "own": 0}.items():
        values = [data[name].movedim(dim, 0) for data in chosen]
        rows = selection.column_rows(name)
        assert rows.lengths.tolist() == [len(value) for value in values]
        assert rows.ptr.tolist() == np.cumsum([0, *map(len, values)]).tolist()
        expected = torch.cat(values).numpy()
        out = np.full_like(expected, 99)
        selection.column(name, out)
        assert (out == expected).all()
        if name != "x":
            add = np.arange(len(ids)).reshape(-1, *[1] * (expected.ndim - 1)) * 1000
            out = np.full_like(expected, 99)
            selection.column(name, out, add)
            assert (out == expected + np.repeat(add, rows.lengths, axis=0)).all()
    assert selection.increments("edge_index", (), None).tolist() == nodes.tolist()
    assert selection.increments("y", (), None).tolist() == [0] * len(ids)
    assert selection.axis_rows("node").lengths.tolist() == nodes.tolist()


IDS = {
    "in order": list(range(12)),
    "backwards": list(range(11, -1, -1)),
    "repeats": [5, 5, 0, 11, 5, 0],
    "one": [7],
    "one shard": [1, 0, 1],
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
@pytest.mark.parametrize("shard_size", [1, 400, 10**6])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_rows_of_chosen_graphs(tmp_path, ids, shard_size, compression):
    graphs = graphs_of(np.random.default_rng(1), 12, 6)
    check(opened(tmp_path, graphs, shard_size, compression=compression), graphs, ids)


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
@pytest.mark.parametrize("long_run", [0, 10**9])
def test_slice_copies_and_row_indices_agree(tmp_path, monkeypatch, ids, long_run):
    monkeypatch.setattr(gather, "LONG_RUN", long_run)
    graphs = graphs_of(np.random.default_rng(2), 12, 40)
    for shard_size in (3_000, 10**6):
        check(opened(tmp_path / str(shard_size), graphs, shard_size), graphs, ids)


def test_no_graphs(tmp_path):
    dataset = opened(tmp_path, graphs_of(np.random.default_rng(0), 3, 4), 1)
    selection = dataset.selection(np.empty(0, np.int64))
    assert selection.num_graphs == 0
    assert selection.column_rows("x").ptr.tolist() == [0]
    assert selection.increments("edge_index", (), None).tolist() == []
    selection.column("x", np.empty((0, 3), np.float32))


def test_graphs_without_any_row(tmp_path):
    graphs = [Data(x=torch.zeros(0, 2), edge_index=torch.zeros(2, 0).long()) for _ in range(3)]
    selection = opened(tmp_path, graphs, 10**6).selection()
    selection.column("x", np.empty((0, 2), np.float32))
    assert selection.column_rows("edge_index").lengths.tolist() == [0, 0, 0]


def test_columns_that_count_the_same_share_their_rows(tmp_path):
    selection = opened(tmp_path, graphs_of(np.random.default_rng(1), 9, 5), 10**6).selection()
    assert selection.column_rows("x") is selection.axis_rows("node")
    assert selection.column_rows("edge_index") is selection.axis_rows("edge")
    assert selection.column_rows("own") is not selection.axis_rows("node")


def test_one_graph_of_one_shard(tmp_path):
    graphs = graphs_of(np.random.default_rng(3), 5, 4)
    dataset = opened(tmp_path, graphs, 10**6)
    shard, local = dataset._pool.locate(3)
    selection = Selection.of_one(shard, local)
    out = np.empty((graphs[3].num_nodes, 3), np.float32)
    selection.column("x", out)
    assert (out == graphs[3].x.numpy()).all()


def typed(a: int, b: int | None, e: int) -> HeteroData:
    data = HeteroData()
    data["a"].x = torch.zeros(a, 1)
    if b is not None:
        data["b"].x = torch.ones(b, 1)
        data["a", "to", "b"].edge_index = torch.zeros(2, e, dtype=torch.int64)
    return data


@pytest.mark.parametrize("shard_size", [1, 10**6])
def test_increments_count_the_nodes_of_graphs_that_lack_the_edges(tmp_path, shard_size):
    graphs = [typed(2, None, 0), typed(3, 4, 2), typed(5, None, 0), typed(1, 1, 1)]
    dataset = opened(tmp_path, graphs, shard_size)
    name, ends = "edge/a__to__b/edge_index", ("node/a", "node/b")
    found = dataset.selection().increments(name, (2, 1), ends)
    assert found.reshape(-1, 2).tolist() == [[2, 0], [3, 4], [5, 0], [1, 1]]
    found = dataset[[2, 0]].selection().increments(name, (2, 1), ends)
    assert found.reshape(-1, 2).tolist() == [[5, 0], [2, 0]]
    assert dataset.selection().column_rows(name).lengths.tolist() == [0, 2, 0, 1]


def test_shapes_that_vary_are_filled_up(tmp_path):
    graphs = [Data(v=torch.zeros(shape), num_nodes=1) for shape in ((2, 3), (), (4,), (1, 0, 2))]
    for size, ids in ((1, [0, 1, 2, 3]), (10**6, [0, 1, 2, 3]), (1, [3, 1, 1])):
        path = tmp_path / f"{size}-{len(ids)}"
        dataset = opened(path, graphs, size, varying=["v"])
        found = dataset[ids].selection().shapes("v").tolist()
        kept = [tuple(extent for extent in row if extent >= 0) for row in found]
        assert kept == [tuple(graphs[place].v.shape) for place in ids]
