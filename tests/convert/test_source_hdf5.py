import h5py
import numpy as np
import pytest
import torch

from shardgraph.convert import find_source
from shardgraph.errors import FormatError


@pytest.fixture
def groups(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in (1, 2, 3):
            group = file.create_group(f"g{i}")
            group["edge_index"] = np.array([[0, j] for j in range(i)], dtype=np.int16)
            group["node_data/charge"] = np.arange(i + 1.0)
            group["node_data/kind"] = np.full((i + 1, 2), i)
            group["node_data/pos"] = np.full((i + 1, 3), i / 2)
            group["node_data/label"] = np.array([b"ALA"] * (i + 1))
            group["edge_data/dist"] = np.arange(i) / 4
            group["score/a"], group["score/b"] = i * 1.5, i > 1
            group["chain"] = np.arange(i + 1, dtype=np.uint8)
    return tmp_path / "a.h5"


@pytest.mark.parametrize("size", [1, 10])
def test_group_per_graph(groups, read_all, size):
    graphs, rejects = read_all(groups, size=size, y=["score/"], keep=["chain=chain"])
    assert rejects == []
    assert [graph.edge_index.tolist() for graph in graphs] == [
        [[0], [0]],
        [[0, 0], [0, 1]],
        [[0, 0, 0], [0, 1, 2]],
    ]
    last = graphs[2]
    assert last.x.tolist() == [[0, 3, 3], [1, 3, 3], [2, 3, 3], [3, 3, 3]]
    assert last.pos.tolist() == [[1.5] * 3] * 4
    assert last.edge_attr.tolist() == [[0], [0.25], [0.5]]
    assert last.y.tolist() == [[4.5, 1]]
    assert last.chain.tolist() == [0, 1, 2, 3]
    assert {key: value.dtype for key, value in last.to_dict().items()} == {
        "edge_index": torch.int64,
        "x": torch.float32,
        "pos": torch.float32,
        "edge_attr": torch.float32,
        "y": torch.float32,
        "chain": torch.uint8,
    }
    told = find_source(groups, format="hdf5").provenance()["options"]
    assert told["x"] == ["node_data/charge", "node_data/kind"]


def test_undirected_and_chosen_features(groups, read_all):
    graphs, _ = read_all(groups, x=["node_data/kind"], undirected=True)
    assert graphs[1].x.tolist() == [[2, 2]] * 3
    assert graphs[1].edge_index.tolist() == [[0, 0, 0, 1], [0, 1, 0, 0]]
    assert graphs[1].edge_attr.tolist() == [[0], [0.25], [0], [0.25]]


def test_edge_index_by_column(tmp_path, read_all):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, edges in (("a", [[0, 1], [1, 0]]), ("b", [[0, 1, 2], [5, 6, 7]])):
            file[f"{name}/edge_index"], file[f"{name}/num_nodes"] = edges, 9
    graphs, _ = read_all(tmp_path / "a.h5")
    assert [graph.edge_index.tolist() for graph in graphs] == [
        [[0, 1], [1, 0]],
        [[0, 1, 2], [5, 6, 7]],
    ]
    assert graphs[0].num_nodes == 9


def test_padded_arrays(tmp_path, read_all):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["pos"] = np.arange(18.0).reshape(2, 3, 3)
        file["z"] = [[6, 1, 0], [8, 1, 1]]
        file["n"] = [2, 3]
        file["e"] = [[0.5], [1.5]]
        file["adj"] = [[[0, 2, 9], [1, 0, 9], [9, 9, 9]], [[0, 0, 3], [0, 0, 0], [0, 4, 0]]]
    options = {"y": ["e"], "keep": ["z=z"], "adjacency": "adj"}
    for nodes in ({"num_nodes": "n"}, {"mask": "z"}):
        (first, second), rejects = read_all(tmp_path / "a.h5", size=1, **options, **nodes)
        assert rejects == []
        assert first.pos.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert (first.z.tolist(), second.z.tolist()) == ([6, 1], [8, 1, 1])
        assert (first.y.tolist(), second.y.tolist()) == ([[0.5]], [[1.5]])
        assert (first.edge_index.tolist(), first.edge_weight.tolist()) == ([[0, 1], [1, 0]], [2, 1])
        assert second.edge_index.tolist() == [[0, 2], [2, 1]]
        assert second.edge_weight.tolist() == [3, 4]
    _, rejects = read_all(tmp_path / "a.h5", **options)
    assert [reject.record for reject in rejects] == ["row 0", "row 1"]
    assert "need num_nodes or mask" in rejects[0].reason


def test_faults(groups, tmp_path, read_all):
    with h5py.File(groups, "a") as file:
        del file["g2/node_data/kind"]
    graphs, rejects = read_all(groups)
    assert len(graphs) == 2
    assert [reject.record for reject in rejects] == ["g2"]
    assert "KeyError" in rejects[0].reason
    (tmp_path / "b.h5").write_bytes(b"no")
    with pytest.raises(FormatError, match=r"b.h5 cannot be read as HDF5"):
        read_all(tmp_path / "b.h5")
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["something"] = [1, 2]
    with pytest.raises(FormatError, match="none of the usual names is in '/', which holds someth"):
        read_all(tmp_path / "c.h5")
    with pytest.raises(ValueError, match="keep takes NAME=PATH with a new name, got 'x=a'"):
        find_source(groups, keep=["x=a"])


@pytest.mark.parametrize(("name", "width"), [("1ATN_residue.hdf5", 31), ("graph_residue.hdf5", 22)])
def test_cases(case, read_all, name, width):
    path = case(f"hdf5/deeprank_gnn/{name}")
    graphs, rejects = read_all(path)
    assert rejects == []
    with h5py.File(path) as file:
        for graph, group in zip(graphs, file.values(), strict=True):
            assert graph.edge_index.t().tolist() == group["edge_index"][()].tolist()
            assert graph.num_node_features == width
            pos = group["node_data/pos" if "node_data" in group else "pos"][()]
            np.testing.assert_array_equal(graph.pos.numpy(), pos.astype(np.float32))
            x = group["node"][()] if "node" in group else group["node_data/bsa"][()]
            np.testing.assert_array_equal(graph.x.numpy()[:, : x.shape[1]], x.astype(np.float32))


def test_arrays_that_are_not_there_and_nodes_that_do_not_fit(tmp_path, read_all):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.ones((2, 3, 4))
        file["adj"] = np.ones((2, 3, 3))
        file["n"] = np.array([2, 7])
        file["nowhere"] = h5py.SoftLink("/absent")
    options = {"adjacency": "adj", "num_nodes": "n"}
    graphs, rejects = read_all(tmp_path / "a.h5", x=["x"], **options)
    assert [graph.x.shape for graph in graphs] == [(2, 4)]
    assert [(r.record, r.reason) for r in rejects] == [
        ("row 1", "ValueError: 7 nodes in arrays of 3 rows")
    ]
    with pytest.raises(FormatError, match=r"a.h5 has no array absent"):
        read_all(tmp_path / "a.h5", x=["absent"], **options)


def test_groups_that_lead_nowhere(groups, read_all):
    with h5py.File(groups, "a") as file:
        file["a0"] = h5py.SoftLink("/absent")
    graphs, rejects = read_all(groups)
    assert (len(graphs), [reject.record for reject in rejects]) == (3, ["a0"])
