import gzip
import json

import numpy as np
import pytest
import torch

from shardgraph.convert import find_source

nx = pytest.importorskip("networkx")


def example(directed=False):
    graph = (nx.DiGraph if directed else nx.Graph)(label=2.5)
    graph.add_node("b", size=1.5, kind="red", even=True)
    graph.add_node("a", size=2, kind="blue", even=False)
    graph.add_node("c", kind="red", even=True)
    graph.add_edge("b", "a", weight=3.0, note="x")
    graph.add_edge("c", "c", weight=4.0, note="y")
    return graph


WRITERS = {
    "a.gml": nx.write_gml,
    "a.gexf": nx.write_gexf,
    "a.graphml": nx.write_graphml,
    "a.json": lambda graph, path: path.write_text(json.dumps(nx.node_link_data(graph))),
    "a.jsonl": lambda graph, path: path.write_text(json.dumps(nx.node_link_data(graph)) + "\n\n"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_holds_the_same_graph(tmp_path, read_all, name):
    WRITERS[name](example(), tmp_path / name)
    (graph,), rejects = read_all(
        tmp_path / name,
        node_attributes=["size", "kind"],
        edge_attributes=["weight", "note"],
    )
    assert rejects == []
    np.testing.assert_array_equal(graph.x, np.array([[1.5], [2], [np.nan]], np.float32))
    assert graph.kind.tolist() == [1, 0, 1]
    assert graph.edge_index.tolist() == [[0, 1, 2], [1, 0, 2]]
    assert graph.edge_weight.tolist() == [3, 3, 4]
    assert graph.edge_note.tolist() == [0, 0, 1]
    if name.endswith(".gml"):
        assert "node_id" not in graph  # GML numbers the nodes itself
    else:
        assert graph.node_id == ["b", "a", "c"]
    WRITERS[name](example(directed=True), tmp_path / name)
    (graph,), _ = read_all(tmp_path / name)
    assert graph.edge_index.tolist() == [[0, 2], [1, 2]]


def test_default_takes_all_numbers(tmp_path, read_all):
    WRITERS["a.json"](example(), tmp_path / "a.json")
    (graph,), _ = read_all(tmp_path / "a.json", targets=["label"])
    np.testing.assert_array_equal(graph.x, np.array([[1.5, 1], [2, 0], [np.nan, 1]], np.float32))
    assert graph.y.tolist() == [[2.5]]
    assert "kind" not in graph
    with pytest.raises(ValueError, match="no node has the attribute colour; they have size, kind"):
        read_all(tmp_path / "a.json", node_attributes=["colour"])


def test_vocabulary_spans_all_files(tmp_path, read_all):
    for i, kinds in enumerate((["red", "blue"], ["green"])):
        graph = nx.empty_graph(len(kinds))
        nx.set_node_attributes(graph, dict(enumerate(kinds)), "kind")
        nx.write_graphml(graph, tmp_path / f"{i}.graphml")
    graphs, _ = read_all(tmp_path, node_attributes=["kind"])
    assert [graph.kind.tolist() for graph in graphs] == [[2, 0], [1]]
    told = find_source(tmp_path, node_attributes=["kind"]).provenance()
    assert told["vocabularies"] == {"node.kind": ["blue", "green", "red"]}


def test_many_graphs_a_file(tmp_path, read_all):
    graphs = [nx.path_graph(3), nx.complete_graph(4), nx.empty_graph(0)]
    writers = {
        "a.g6": b"".join(nx.to_graph6_bytes(graph) for graph in graphs),
        "a.s6": b"".join(nx.to_sparse6_bytes(graph, header=False) for graph in graphs),
        "a.json": json.dumps([nx.node_link_data(graph) for graph in graphs]).encode(),
    }
    for name, content in writers.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
        read, rejects = read_all(tmp_path / f"{name}.gz")
        assert rejects == []
        assert [graph.num_nodes for graph in read] == [3, 4, 0]
        assert read[0].edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
        assert [graph.num_edges for graph in read] == [4, 12, 0]
        assert "node_id" not in read[0]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.gml", "graph [ node [ id 0 ] edge [ source 0 target 1 ] ]", "NetworkXError: .*"),
        ("a.gml", "nonsense ]", "NetworkXError"),
        ("a.graphml", "<graphml><graph>", "ParseError"),
        ("a.json", "{", "is not JSON"),
        ("a.json", '{"nodes": 3}', "not node-link JSON"),
        (
            "a.jsonl",
            '{"nodes": [], "links": [{"source": 0, "target": 1}]}',
            "an edge joins 0 and 1: ",
        ),
        ("a.g6", "\x01\x02", "NetworkXError|ValueError"),
    ],
)
def test_faults_are_rejects(tmp_path, read_all, name, content, reason):
    import re

    (tmp_path / name).write_text(content)
    graphs, rejects = read_all(tmp_path / name)
    assert (graphs, len(rejects)) == ([], 1)
    assert re.search(reason, rejects[0].reason)
    assert rejects[0].file == str(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "directed"), [("karate", False), ("lesmis", False), ("celegansneural", True)]
)
def test_cases(case, read_all, name, directed):
    path = case(f"graphfiles/kiara_gml/{name}.gml")
    (graph,), rejects = read_all(path)
    assert rejects == []
    words = path.read_text().split()
    told = {
        key: [int(words[i + 1]) for i, word in enumerate(words) if word == key]
        for key in ("id", "source", "target", "value")
    }
    ends = zip(told["source"], told["target"], strict=True)
    pairs = [tuple(told["id"].index(node) for node in pair) for pair in ends]
    wanted = sorted(zip(pairs, told["value"] or [1] * len(pairs), strict=True))
    if not directed:
        wanted = sorted([*wanted, *(((v, u), value) for (u, v), value in wanted)])
    values = graph.edge_weight.tolist() if told["value"] else [1] * len(wanted)
    read = zip(map(tuple, graph.edge_index.t().tolist()), values, strict=True)
    assert sorted(read) == wanted


def test_atlas(case, read_all):
    path = case("graphfiles/networkx_atlas/atlas.dat.gz")
    graphs, rejects = read_all(path)
    expected = nx.graph_atlas_g()
    assert rejects == []
    assert [graph.num_nodes for graph in graphs] == [len(graph) for graph in expected]
    for graph, wanted in zip(graphs, expected, strict=True):
        assert set(map(tuple, graph.edge_index.t().tolist())) == set(wanted.to_directed().edges)
    assert torch.equal(graphs[0].edge_index, torch.empty(2, 0, dtype=torch.int64))


def test_faults_of_single_graphs_are_rejects(tmp_path, read_all):
    texts = [
        '{"nodes": [{"id": 0}, {"id": 0}], "links": [{"source": 0, "target": 0}]}',
        '{"nodes": [{"id": 0}], "links": [{"source": 0, "target": 5}]}',
        '{"nodes": [{"id": 0, "w": 1%s}], "links": []}' % ("0" * 400),
        "[" * 100_000,
        '{"nodes": [{"id": 0, "w": 2}], "links": []}',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(texts))
    graphs, rejects = read_all(tmp_path / "a.jsonl", format="networkx")
    assert [graph.x.tolist() for graph in graphs] == [[[2]]]
    reasons = [
        "ValueError: node 0 is there twice",
        "ValueError: an edge joins 0 and 5: one is no node",
        "OverflowError",
        "RecursionError",
    ]
    for reject, reason in zip(rejects, reasons, strict=True):
        assert reject.reason.startswith(reason)
    (tmp_path / "b.json").write_text("[" * 100_000)
    graphs, rejects = read_all(tmp_path / "b.json", format="networkx")
    assert "b.json is not JSON" in rejects[0].reason


def test_ids_beyond_64_bits_are_text(tmp_path, read_all):
    nodes = [{"id": 2**70}, {"id": 1}]
    graph = {"nodes": nodes, "links": [{"source": 1, "target": 2**70}], "directed": True}
    (tmp_path / "a.json").write_text(json.dumps(graph))
    (read,), _ = read_all(tmp_path / "a.json", format="networkx")
    assert (read.node_id, read.edge_index.tolist()) == ([str(2**70), "1"], [[1], [0]])


def test_numbers_alone_are_no_atlas(tmp_path, read_all):
    (tmp_path / "a.dat").write_text("0 1\n1 2\n")
    _, (reject,) = read_all(tmp_path / "a.dat", format="networkx")
    assert "line 1: b'0 1\\n' is neither GRAPH, NODES nor edge" in reject.reason


def test_null_is_a_missing_value(tmp_path, read_all):
    nodes = [{"id": 0, "a": 1.5, "kind": "b"}, {"id": 1, "a": None, "kind": None}]
    links = [{"source": 0, "target": 1, "w": None}, {"source": 1, "target": 0, "w": 2}]
    graph = {"nodes": nodes, "links": links, "directed": True, "graph": {"y": None}}
    (tmp_path / "a.json").write_text(json.dumps(graph))
    (read,), _ = read_all(tmp_path / "a.json", targets=["y"])
    assert read.x.nan_to_num(-1).tolist() == [[1.5], [-1]]
    assert read.edge_weight.nan_to_num(-1).tolist() == [-1, 2]
    assert read.y.isnan().tolist() == [[True]]
    (read,), _ = read_all(tmp_path / "a.json", node_attributes=["kind"])
    assert read.kind.tolist() == [0, -1]
