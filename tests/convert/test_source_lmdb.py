import json
import os
import pickle
import re
import zlib

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from shardgraph.convert import find_source
from shardgraph.errors import FormatError

lmdb = pytest.importorskip("lmdb")


def write(path, records, *, subdir=False):
    with (
        lmdb.open(str(path), subdir=subdir, map_size=1 << 24) as database,
        database.begin(write=True) as transaction,
    ):
        for key, value in records.items():
            transaction.put(str(key).encode(), value)
    return path


def graph(i):
    return Data(x=torch.full((i, 2), i / 2), edge_index=torch.tensor([[0], [i - 1]]), name=f"g{i}")


@pytest.mark.parametrize("protocol", [2, 4, pickle.HIGHEST_PROTOCOL])
def test_pickled_graphs_in_order_of_numbers(tmp_path, read_all, assert_same, protocol):
    records = {i: pickle.dumps(graph(i), protocol) for i in range(1, 12)}
    records |= {"length": pickle.dumps(11), "nextid": b"12"}
    path = write(tmp_path / "a.lmdb", records)
    graphs, rejects = read_all(path, size=4)
    assert rejects == []
    for read, i in zip(graphs, range(1, 12), strict=True):
        assert_same(read, graph(i))
    assert sorted(os.listdir(tmp_path)) == ["a.lmdb", "a.lmdb-lock"]  # the lock is the writer's


def test_hetero_and_tensors_in_dicts(tmp_path, read_all, assert_same):
    hetero = HeteroData(y=torch.ones(1))
    hetero["a"].x = torch.ones(2, 1)
    hetero["a", "to", "a"].edge_index = torch.tensor([[0], [1]])
    write(tmp_path / "a.lmdb", {0: pickle.dumps(hetero)})
    (read,), _ = read_all(tmp_path / "a.lmdb")
    assert_same(read, hetero)
    write(tmp_path / "b.lmdb", {0: pickle.dumps({"pos": torch.ones(2, 3), "y": torch.ones(1, 4)})})
    (read,), _ = read_all(tmp_path / "b.lmdb")
    assert_same(read, Data(pos=torch.ones(2, 3), y=torch.ones(1, 4)))


def test_dicts_of_arrays_lists_and_text(tmp_path, read_all):
    record = {
        "atomic_numbers": [8, 1, 1],
        "cart_coords": np.zeros((3, 3)),
        "energy": "'-76.25'",
        "edges": [[0, 1], [0, 2], [1, 2]],
        "note": "water",
    }
    records = {
        0: pickle.dumps(record),
        1: json.dumps(record | {"cart_coords": [[0.5] * 3] * 3}).encode(),
        2: zlib.compress(pickle.dumps(record)),
    }
    path = write(tmp_path / "a", records, subdir=True)
    graphs, rejects = read_all(path)
    assert rejects == []
    for read in graphs:
        assert read.z.tolist() == [8, 1, 1]
        assert read.energy.tolist() == [-76.25]
        assert (read.pos.dtype, read.energy.dtype) == (torch.float32, torch.float64)
        assert "edge_index" not in read
    assert graphs[1].pos.tolist() == [[0.5] * 3] * 3
    graphs, _ = read_all(path, attributes=["edge_index=edges", "y=energy", "kind=atomic_numbers"])
    assert graphs[0].edge_index.tolist() == [[0, 0, 1], [1, 2, 2]]
    assert graphs[0].y.tolist() == [[-76.25]]
    assert graphs[0].kind.tolist() == [8, 1, 1]
    assert sorted(graphs[0].keys()) == ["edge_index", "kind", "y"]


class Evil:
    def __reduce__(self):
        return os.mkdir, ("made",)


def test_pickles_run_no_code_unless_trusted(tmp_path, read_all, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = pickle.dumps({"pos": np.ones((1, 3)), "x": Evil()})
    inner = pickle.dumps(Evil())
    hidden = pickle.dumps({"pos": Load(inner)})
    write(tmp_path / "a.lmdb", {0: record, 1: hidden, 2: pickle.dumps({"pos": np.ones((1, 3))})})
    graphs, rejects = read_all(tmp_path / "a.lmdb")
    assert len(graphs) == 1
    assert [reject.record for reject in rejects] == ["key '0'", "key '1'"]
    assert "mkdir, which is not one of" in rejects[0].reason
    assert not (tmp_path / "made").exists()
    _, rejects = read_all(tmp_path / "a.lmdb", trust_pickle=True)
    assert (tmp_path / "made").exists()


class Load:
    def __init__(self, data):
        self.data = data

    def __reduce__(self):
        return torch.storage._load_from_bytes, (self.data,)


def test_faults_are_rejects(tmp_path, read_all):
    records = {
        0: b"\x80\x04nonsense",
        1: pickle.dumps([1, 2]),
        2: pickle.dumps({"unknown": 1}),
        3: b"{broken",
        4: pickle.dumps({"pos": "text"}),
        5: b"",
        6: zlib.compress(b"x" * 100)[:9],
        7: b"x not compressed",
        8: b"[" * 100_000,
    }
    _, rejects = read_all(write(tmp_path / "a.lmdb", records))
    for reject, reason in zip(
        rejects,
        ["is damaged", "a list, expected a graph", "none of the usual names among unknown",
         "JSONDecodeError", "could not convert string", "EOFError|is damaged", "is damaged|Error",
         "key '7' begins like zlib, but: Error", "RecursionError"],
        strict=True,
    ):  # fmt: skip
        assert re.search(reason, reject.reason), reject
    (tmp_path / "b.lmdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(FormatError, match=r"b.lmdb cannot be read as LMDB"):
        read_all(tmp_path / "b.lmdb")
    with pytest.raises(ValueError, match="attributes are given as ATTRIBUTE=KEY, got pos"):
        find_source(tmp_path / "a.lmdb", attributes=["pos"])


def test_keys_of_one_number_keep_an_order(tmp_path, read_all):
    names = ["1", "001", "0001", "01"]
    path = write(tmp_path / "a.lmdb", {n: pickle.dumps({"smiles": n, "x": [[1]]}) for n in names})
    assert [read.smiles for read in read_all(path)[0]] == sorted(names)


def test_folder_of_databases(tmp_path, read_all):
    for i in (10, 9):
        write(tmp_path / f"data.{i}.lmdb", {0: pickle.dumps(graph(i))})
    graphs, _ = read_all(tmp_path)
    assert [read.num_nodes for read in graphs] == [9, 10]


def test_carolina(case, read_all):
    path = case("lmdb/matsciml_carolina_db/data.lmdb")
    graphs, rejects = read_all(path)
    assert rejects == []
    energies = [read.energy.item() for read in graphs]
    assert (min(energies), max(energies)) == pytest.approx((-3.279, 1.632), abs=1e-3)
    assert graphs[0].z.tolist() == [43] + [77] * 8 + [16] * 6
    assert energies[0] == 1.026
