import collections
import pickle
import shutil

import numpy as np
import pytest
from torch_geometric.io import read_planetoid_data
from torch_geometric.utils import coalesce

from shardgraph.errors import FormatError


@pytest.fixture
def toy(tmp_path):
    """Six nodes: two for training, 0 to 3 in allx, 5 and 4 in tx in this order."""
    sparse = pytest.importorskip("scipy.sparse")

    def write(**changes):
        x = np.arange(12.0).reshape(6, 2)
        y = np.eye(3, dtype=np.int32)[[0, 1, 2, 0, 1, 2]]
        near = {0: [1, 1, 2], 1: [0], 2: [0, 2], 3: [], 4: [5], 5: [4]}
        parts = {
            "x": sparse.csr_matrix(x[:2]),
            "y": y[:2],
            "allx": sparse.csr_matrix(x[:4]),
            "ally": y[:4],
            "tx": sparse.csr_matrix(x[[5, 4]]),
            "ty": y[[5, 4]],
            "graph": collections.defaultdict(list, near),
        } | changes
        for name, value in parts.items():
            (tmp_path / f"ind.toy.{name}").write_bytes(pickle.dumps(value, protocol=2))
        (tmp_path / "ind.toy.test.index").write_text("5\n4\n")
        return tmp_path

    return write


def test_toy_values(toy, read_all):
    (graph,), rejects = read_all(toy())
    assert rejects == []
    assert graph.x.tolist() == np.arange(12.0).reshape(6, 2).tolist()
    assert graph.y.tolist() == [0, 1, 2, 0, 1, 2]
    assert graph.edge_index.tolist() == [[0, 0, 1, 2, 4, 5], [1, 2, 0, 0, 5, 4]]
    assert graph.train_mask.tolist() == [True, True, False, False, False, False]
    assert graph.val_mask.tolist() == [False, False, True, True, True, True]
    assert graph.test_mask.tolist() == [False, False, False, False, True, True]


def test_node_without_a_word_is_zero(toy, read_all):
    folder = toy(graph={0: [7], 7: [0]})
    (folder / "ind.toy.test.index").write_text("7\n4\n")
    (graph,), _ = read_all(folder)
    assert graph.x[4:].tolist() == [[8, 9], [0, 0], [0, 0], [10, 11]]
    assert graph.y[4:].tolist() == [1, 0, 0, 2]


class Evil:
    def __reduce__(self):
        return print, ("run",)


def test_faults_are_format_errors(toy, read_all, capsys):
    with pytest.raises(FormatError, match=r"ind.toy.ally holds .*print, which is not one of"):
        read_all(toy(ally=Evil()))
    assert capsys.readouterr().out == ""
    with pytest.raises(FormatError, match="an edge joins 9, but there are 6 nodes"):
        read_all(toy(graph={0: [9]}))
    with pytest.raises(FormatError, match=r"ind.toy.\*: .*Error"):
        read_all(toy(ty=np.eye(4)))


def test_cora(case, read_all):
    folder = case("planetoid/cora")
    (graph,), rejects = read_all(folder)
    assert rejects == []
    assert (int(graph.train_mask.sum()), int(graph.test_mask.sum())) == (140, 1000)
    assert graph.is_undirected()
    assert float(graph.x.sum()) == 49216.0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_cora_equals_pyg(case, read_all, assert_same, tmp_path):
    pytest.importorskip("scipy.sparse")
    for path in case("planetoid/cora").iterdir():
        shutil.copy(path, tmp_path)
    (graph,), _ = read_all(tmp_path)
    expected = read_planetoid_data(str(tmp_path), "cora")
    # PyG sorts the same edges by their target.
    expected.edge_index = coalesce(expected.edge_index)
    assert_same(graph, expected)
