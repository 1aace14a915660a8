import collections

import numpy as np
import pytest
import torch
from torch_geometric.data.separate import separate
from torch_geometric.io import read_tu_data

from shardgraph.convert import find_source
from shardgraph.errors import FormatError

# Three graphs: a triangle with a self-loop and a repeated edge, one isolated node, an edge.
TOY = {
    "A": "1, 2\n6, 5\n2, 1\n2, 3\n1, 2\n3, 2\n3, 3\n5, 6\n",
    "graph_indicator": "1\n1\n1\n2\n3\n3\n",
    "graph_labels": "4\n-1\n4\n",
    "node_labels": "2, 0\n3, 0\n2, 1\n5, 0\n2, 0\n2, 1\n",
    "node_attributes": " 0.5,  1.0\n1.5, 2\n2.5, 3\n3.5, 4\n4.5, 5\n5.5, -6e1\n",
    "edge_labels": "1\n0\n1\n0\n2\n0\n1\n0\n",
    "edge_attributes": "0.1\n0.2\n0.3\n0.4\n0.5\n0.6\n0.7\n0.8\n",
}


@pytest.fixture
def toy(tmp_path):
    def write(**changes):
        folder = tmp_path / "TOY"
        folder.mkdir(exist_ok=True)
        for name, text in (TOY | changes).items():
            path = folder / f"TOY_{name}.txt"
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(text)
        return folder

    return write


def pyg_graphs(folder):
    data, slices, _ = read_tu_data(str(folder), folder.name)
    num_graphs = len(slices["y"]) - 1
    return [separate(type(data), data, i, slices, decrement=False) for i in range(num_graphs)]


def test_toy_values(toy, read_all):
    graphs, rejects = read_all(toy(), size=2)
    assert rejects == []
    first, single, last = graphs
    assert first.edge_index.tolist() == [[0, 0, 1, 1, 2, 2], [1, 1, 0, 2, 1, 2]]
    assert torch.equal(
        first.edge_attr,
        torch.tensor(
            [
                [0.1, 0, 1, 0],
                [0.5, 0, 0, 1],
                [0.3, 0, 1, 0],
                [0.4, 1, 0, 0],
                [0.6, 1, 0, 0],
                [0.7, 0, 1, 0],
            ]
        ),
    )
    # Attributes, then 2, 3, 4 and 5 of the first label column, then 0 and 1 of the second.
    assert single.x.tolist() == [[3.5, 4, 0, 0, 0, 1, 1, 0]]
    assert (single.edge_index.shape, single.edge_attr.shape) == ((2, 0), (0, 4))
    assert last.x.tolist() == [[4.5, 5, 1, 0, 0, 0, 1, 0], [5.5, -60, 1, 0, 0, 0, 0, 1]]
    assert last.edge_index.tolist() == [[0, 1], [1, 0]]
    assert [graph.y.tolist() for graph in graphs] == [[1], [0], [1]]
    assert first.y.dtype == torch.int64


def test_toy_coalesced_is_pyg(toy, read_all, assert_same):
    graphs, _ = read_all(toy(), coalesce=True)
    for graph, expected in zip(graphs, pyg_graphs(toy()), strict=True):
        assert_same(graph, expected)


def test_optional_parts_may_be_absent(toy, read_all):
    absent = dict.fromkeys(("node_labels", "node_attributes", "edge_labels", "edge_attributes"))
    graphs, _ = read_all(toy(**absent, graph_labels=None))
    assert [sorted(graph.keys()) for graph in graphs] == [["edge_index", "num_nodes"]] * 3
    assert [graph.num_nodes for graph in graphs] == [3, 1, 2]
    graphs, _ = read_all(toy(**absent | {"node_labels": "0\n0\n0\n0\n0\n1\n"}))
    assert graphs[2].x.tolist() == [[1, 0], [0, 1]]


def test_graph_attributes_are_targets(toy, read_all):
    graphs, _ = read_all(toy(graph_attributes="0.5\n-1\n2e3\n"))
    assert [graph.y.tolist() for graph in graphs] == [[0.5], [-1.0], [2000.0]]
    graphs, _ = read_all(toy(graph_attributes="0.5, 1\n-1, 2\n2e3, 3\n"))
    assert [graph.y.tolist() for graph in graphs] == [[[0.5, 1]], [[-1, 2]], [[2000, 3]]]
    assert graphs[0].y.dtype == torch.float32


def test_multi_column_graph_labels(toy, read_all):
    graphs, _ = read_all(toy(graph_labels="1, 0\n0, 0\n5, 1\n"))
    assert [graph.y.tolist() for graph in graphs] == [[[1, 0]], [[0, 0]], [[2, 1]]]


def test_graph_without_nodes_is_kept(toy, read_all):
    graphs, _ = read_all(toy(graph_labels="1\n1\n1\n2\n", graph_indicator="1\n1\n1\n2\n4\n4\n"))
    assert [graph.num_nodes for graph in graphs] == [3, 1, 0, 2]
    assert (graphs[2].x.shape, graphs[2].edge_index.shape) == ((0, 8), (2, 0))


def test_provenance_keeps_original_classes(toy):
    told = find_source(toy()).provenance()
    assert (told["dataset"], told["classes"]) == ("TOY", [-1, 4])
    assert [file["name"] for file in told["files"]] == sorted(f"TOY_{name}.txt" for name in TOY)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"A": "1, 2\n\n2, 7\n"}, r"TOY_A.txt, edge 2: node \[1, 6\] counted from 0, .* 6 nodes"),
        ({"A": "1, 2\n\n2, x\n"}, "TOY_A.txt, line 3: could not convert string ' x'"),
        ({"A": "1, 2\n2\n"}, "TOY_A.txt, line 2: the number of columns changed"),
        ({"A": "1, 2\n3, 4\n"}, "edge 2: nodes 3 and 4 are in different graphs"),
        ({"node_labels": "1\n1\n"}, "TOY_node_labels.txt: 2 lines for 6 nodes"),
        ({"edge_attributes": "1\n1\n"}, "TOY_edge_attributes.txt: 2 lines for 8 edges"),
        ({"graph_labels": "1\n"}, "1 targets for 3 graphs"),
        (
            {"graph_indicator": "1\n1\n2\n2\n3\n999999999999\n", "graph_labels": None},
            "TOY_graph_indicator.txt: graph 999999999999 of 6 nodes",
        ),
        (
            {"node_labels": "1\n1\n1\n1\n1\n99999999999\n"},
            "TOY_node_labels.txt: labels from 1 to 99999999999 would be one-hot vectors",
        ),
        ({"graph_labels": "1\n1.5\n1\n"}, r"graph_labels.txt, line 2: \[1.5\], not integers"),
        ({"graph_labels": "1\n\n1e20\n1\n"}, r"graph_labels.txt, line 3: \[1e\+20\], not integers"),
        (
            {"node_labels": "1\n1\n1\n1\n1\ninf\n"},
            r"node_labels.txt, line 6: \[inf\], not integers",
        ),
        ({"graph_indicator": "0\n1\n1\n2\n3\n3\n"}, "graphs are counted from 1"),
    ],
)
def test_faults_name_file_and_line(toy, read_all, changes, message):
    with pytest.raises(FormatError, match=message):
        read_all(toy(**changes))


@pytest.mark.parametrize("name", ["MUTAG", "ENZYMES"])
def test_case_equals_pyg(case, read_all, assert_same, name):
    folder = case(f"tudataset/{name}")
    graphs, rejects = read_all(folder, size=100)
    assert rejects == []
    expected = pyg_graphs(folder)
    assert len(graphs) == {"MUTAG": 188, "ENZYMES": 600}[name]
    for graph, wanted in zip(graphs, expected, strict=True):
        assert_same(graph, wanted)


def test_enzymes_figures_from_the_text(case, read_all):
    folder = case("tudataset/ENZYMES")
    graphs, _ = read_all(folder)
    indicator = (folder / "ENZYMES_graph_indicator.txt").read_text().split()
    sizes = collections.Counter(map(int, indicator))
    assert [graph.num_nodes for graph in graphs] == [sizes[i + 1] for i in range(600)]
    lines = (folder / "ENZYMES_node_attributes.txt").read_text().splitlines()
    x = torch.cat([graph.x for graph in graphs])
    for row in (0, 7, 19579):
        expected = np.array([float(v) for v in lines[row].split(",")], dtype=np.float32)
        np.testing.assert_array_equal(x[row, :18].numpy(), expected)
    labels = [int(v) for v in (folder / "ENZYMES_graph_labels.txt").read_text().split()]
    assert [int(graph.y) + 1 for graph in graphs] == labels
