import gzip

import numpy as np
import pytest
import torch

from shardgraph.convert import find_source


@pytest.fixture
def read(tmp_path, read_all):
    def read(text, name="a.edges", **options):
        data = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return read_all(tmp_path / name, format="edgelist", **options)

    return read


@pytest.mark.parametrize("separator", [" ", "\t", ",", ";", "   "])
def test_integers_are_numbered_in_ascending_order(read, separator):
    rows = [("30", "7"), ("7", "-2"), ("7", "7"), ("30", "7")]
    text = "# SNAP style\n% and another\n\n" + "".join(f"{separator.join(row)}\r\n" for row in rows)
    (graph,), rejects = read(text, name="a.edges.gz")
    assert rejects == []
    assert graph.node_id.tolist() == [-2, 7, 30]
    assert graph.edge_index.tolist() == [[2, 1, 1, 2], [1, 0, 1, 1]]
    assert sorted(graph.keys()) == ["edge_index", "node_id", "num_nodes"]
    assert graph.num_nodes == 3


def test_ids_beyond_float_precision_stay_exact(read):
    (graph,), _ = read("16827485386298040,16827485386298041\n")
    assert graph.node_id.tolist() == [16827485386298040, 16827485386298041]


def test_text_ids_are_numbered_as_they_come(read):
    (graph,), _ = read('1 2\n2 "b"\n007 1\n')
    assert graph.node_id == ["1", "2", '"b"', "007"]
    assert graph.edge_index.tolist() == [[0, 1, 3], [1, 2, 0]]
    (graph,), _ = read('source,target\n"a, b",c\nc,"a, b"\n')
    assert graph.node_id == ["a, b", "c"]


def test_header_weights_and_attributes(read):
    (graph,), _ = read("weight,To,from\n0.5,1,0\n,2,0\n")
    assert graph.edge_index.tolist() == [[0, 0], [1, 2]]
    np.testing.assert_array_equal(graph.edge_weight, np.array([0.5, np.nan], np.float32))
    assert graph.edge_weight.dtype == torch.float32
    (graph,), _ = read("source target a b note\n0 1 1 2 x\n1 0 3 4 y\n")
    assert graph.edge_attr.tolist() == [[1, 2], [3, 4]]
    (graph,), _ = read("source target a b note\n0 1 1 2 x\n", values=["b"])
    assert graph.edge_weight.tolist() == [2]
    (graph,), _ = read("0 1 1e300\n")
    assert (graph.edge_weight.dtype, graph.edge_weight.tolist()) == (torch.float64, [1e300])
    (graph,), _ = read("0 1 9\n", values=[])
    assert "edge_weight" not in graph


def test_undirected_adds_inverse_edges(read):
    (graph,), _ = read("0 1 5\n2 2 6\n", undirected=True)
    assert graph.edge_index.tolist() == [[0, 2, 1, 2], [1, 2, 0, 2]]
    assert graph.edge_weight.tolist() == [5, 6, 5, 6]


def test_many_graphs_in_any_order_of_lines(read):
    text = "graph_id,src,dst,w\n10,5,6,1\n9,0,1,2\n10,6,8,3\n9,1,0,4\n"
    graphs, _ = read(text)
    assert [graph.graph_id for graph in graphs] == [9, 10]
    assert [graph.node_id.tolist() for graph in graphs] == [[0, 1], [5, 6, 8]]
    assert [graph.edge_index.tolist() for graph in graphs] == [[[0, 1], [1, 0]], [[0, 1], [1, 2]]]
    assert [graph.edge_weight.tolist() for graph in graphs] == [[2, 4], [1, 3]]
    graphs, _ = read("g,a,b\ny,0,1\nx,0,1\n", graph="g", source="a", target="b", name="b.csv")
    assert [graph.graph_id for graph in graphs] == ["x", "y"]


def test_blanks_around_fields_are_no_part_of_them(read):
    graphs, _ = read(
        "source, target, graph_id, kind\n0,1, 2,knows\n1,0,2 , knows\n", relation="kind"
    )
    (graph,) = graphs
    assert (graph.graph_id, graph.node_id.tolist()) == (2, [0, 1])
    assert graph.edge_type.tolist() == [0, 0]


def test_lines_that_end_in_cr_alone(read):
    _, (reject,) = read("0 1\r1 2\r")
    assert reject.reason.endswith("line 1: lines must end in LF or CR LF, not in CR alone")


def test_relations_are_numbered_over_all_files(tmp_path, read_all):
    (tmp_path / "1.edges").write_text("a\tlikes\tb\nb\tknows\tc\n")
    (tmp_path / "2.edges").write_text("a\tknows\tb\n")
    options = {"source": "0", "target": "2", "relation": "1"}
    graphs, _ = read_all(tmp_path, **options)
    assert [graph.edge_type.tolist() for graph in graphs] == [[1, 0], [0]]
    assert find_source(tmp_path, **options).provenance()["relations"] == ["knows", "likes"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0 1\n2\n", "a.edges, line 2: 1 field, where the first line has 2"),
        ("0 1\n2 3 4 5\n", "a.edges, line 2: 4 fields, where the first line has 2"),
        ("source target w\n0 1\n", "a.edges, line 2: 2 fields, where the first line has 3"),
        ("0,1\n2,\n", "a.edges, line 2: an end of the edge is not named"),
        ('"0,1\n2,3\n', "a.edges, line 1: unexpected end of data"),
        ("a,b\n0,1\n1,2\n", "line 1 names columns, as it seems: name those of source and target"),
        ("0,1\n# c\n2,3,4\n", "a.edges, line 3: 3 fields, where the header has 2"),
        ("0 1 x\n", None),
        ("# nothing\n", "a.edges has no edge"),
        ("0\n1\n", "an edge needs two"),
    ],
)
def test_faults_are_rejects_with_their_line(read, text, reason):
    graphs, rejects = read(text)
    if reason is None:
        assert (len(graphs), rejects) == (1, [])
    else:
        assert graphs == []
        assert reason in rejects[0].reason


def test_value_that_is_not_a_number_names_its_line(read):
    _, rejects = read("0 1 2\n0 1 x\n", values=["2"])
    assert "line 2: column '2' holds 'x', which is not a number" in rejects[0].reason


def test_recognition(tmp_path):
    for name, text, found in [
        ("a.csv", "source,target\n0,1\n", "edgelist"),
        ("b.txt", "0 1\n", "edgelist"),
        ("c.el", "0 1\n", "edgelist"),
    ]:
        (tmp_path / name).write_text(text)
        assert find_source(tmp_path / name).name == found


@pytest.mark.parametrize(
    "text",
    [
        "Dear reader,\n",
        "".join(" ".join(map(str, range(n))) + "\n" for n in range(2, 1002)),
        "0 1\n1 2\n2 3 4\n",
        "0 1\n1 b\n",
        "1 2 3 4 5\n6 7 8 9 10\n",
        "7\n8\n",
        "0.5 1\n",
        "",
    ],
    ids=["text", "paths", "ragged", "word", "matrix", "one column", "floats", "empty"],
)
def test_what_is_no_edge_list_is_not_taken_for_one(tmp_path, text):
    (tmp_path / "d.txt").write_text(text)
    with pytest.raises(ValueError, match="cannot tell the format"):
        find_source(tmp_path / "d.txt")


def test_integers_that_float32_would_change_stay(read):
    (graph,), _ = read("0 1 1398394851\n1 2 1398394852\n2 0 0.1\n")
    assert graph.edge_weight.tolist() == [1398394851, 1398394852, 0.1]
    assert graph.edge_weight.dtype == torch.float64
    (graph,), _ = read("0 1 16777216\n1 2 inf\n1 2 nan\n")
    assert graph.edge_weight.dtype == torch.float32


def test_ids_beyond_64_bits_are_text(read):
    (graph,), _ = read("18446744073709551617 1\n1 18446744073709551618\n")
    assert graph.node_id == ["18446744073709551617", "1", "18446744073709551618"]


def test_nations(case, read_all):
    path = case("kg/nations/train.txt")
    (graph,), _ = read_all(path, format="edgelist", source="0", target="2", relation="1")
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    source = find_source(path, format="edgelist", source="0", target="2", relation="1")
    relations = source.provenance()["relations"]
    assert (graph.num_nodes, graph.num_edges, len(relations)) == (14, len(rows), 55)
    read = [
        [graph.node_id[s], relations[r], graph.node_id[t]]
        for s, t, r in zip(*graph.edge_index.tolist(), graph.edge_type.tolist(), strict=True)
    ]
    assert read == rows


def test_credit_cards(case, read_all):
    path = case("hetero/tfgnn_creditcard/owns_card.csv")
    (graph,), _ = read_all(path)
    rows = [tuple(map(int, line.split(","))) for line in path.read_text().splitlines()[1:]]
    assert graph.num_edges == len(rows) == 24  # the last one ends without a line break
    source, target = graph.node_id[graph.edge_index]
    assert list(zip(source.tolist(), target.tolist(), strict=True)) == rows


def test_payments(case, read_all):
    path = case("hetero/tfgnn_creditcard/paid_with.csv")
    (graph,), _ = read_all(path)
    rows = [tuple(map(int, line.split(","))) for line in path.read_text().splitlines()[1:]]
    assert graph.num_edges == len(rows) == 48  # the last one ends without a line break
    ends = graph.node_id[graph.edge_index].t().tolist()
    found = zip(ends, graph.edge_weight.int().tolist(), strict=True)
    assert [(target, source, retries) for (source, target), retries in found] == rows
