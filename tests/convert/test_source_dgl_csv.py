import csv

import numpy as np
import pytest
import torch

from shardgraph.atomic import directory_lock
from shardgraph.convert import find_source
from shardgraph.errors import FormatError

pytest.importorskip("yaml")

FILES = {
    "meta.yaml": """
dataset_name: toy
edge_data:
- file_name: edges.csv
node_data:
- file_name: nodes.csv
graph_data:
  file_name: graphs.csv
""",
    "nodes.csv": """graph_id,node_id,feat,label,mass
7,a,"0.5, 1",0,1.5
3,a,"2, 3",1,2
7,b,"4, 5",2,2.5
""",
    "edges.csv": "graph_id,src_id,dst_id,weight\n7,a,b,1\n3,a,a,2\n7,b,b,3\n",
    "graphs.csv": 'graph_id,label,feat\n7,0.5,"1,2"\n3,1.5,"3,4"\n5,2.5,"5,6"\n',
}


@pytest.fixture
def toy(tmp_path):
    def write(**changes):
        for name, text in FILES.items():
            (tmp_path / name).write_text(changes.get(name.split(".")[0], text))
        return tmp_path

    return write


@pytest.mark.parametrize("size", [1, 10])
def test_homogeneous(toy, read_all, size):
    (first, second, empty), rejects = read_all(toy(), size=size)
    assert rejects == []
    assert first.x.tolist() == [[0.5, 1], [4, 5]]
    assert first.y.tolist() == [0, 2]
    assert first.mass.tolist() == [1.5, 2.5]
    assert first.edge_index.tolist() == [[0, 1], [1, 1]]
    assert first.weight.tolist() == [1, 3]
    assert first.graph_y.tolist() == [0.5]
    assert first.graph_feat.tolist() == [[1, 2]]
    assert (second.x.tolist(), second.edge_index.tolist()) == ([[2, 3]], [[0], [0]])
    assert (empty.x.shape, empty.edge_index.shape) == ((0, 2), (2, 0))
    assert (first.y.dtype, first.x.dtype, first.graph_y.dtype) == (
        torch.int64,
        torch.float32,
        torch.float32,
    )


def test_faults(toy, read_all):
    graphs, rejects = read_all(toy(edges=FILES["edges.csv"].replace("7,b,b", "7,b,c")))
    assert len(graphs) == 2
    assert [(reject.record, reject.reason) for reject in rejects] == [
        ("graph 7", "an edge joins a _N 'c', which is not there")
    ]
    _, rejects = read_all(toy(nodes=FILES["nodes.csv"].replace("7,b", "7,a")))
    assert rejects[0].reason == "nodes of type '_N' have an id twice"
    with pytest.raises(FormatError, match=r"edges.csv has no column src_id"):
        read_all(toy(edges="a,b\n"))
    with pytest.raises(FormatError, match=r"edges.csv, line 2: 1 fields"):
        read_all(toy(edges="graph_id,src_id,dst_id\n1\n"))
    with pytest.raises(FormatError, match=r"meta.yaml is not the description.*KeyError: 'edge_da"):
        read_all(toy(meta="node_data: []"))
    with pytest.raises(FormatError, match=r"meta.yaml is not the description.*AttributeError"):
        read_all(toy(meta="- 1"))
    again = FILES["meta.yaml"].replace("graph_data", "- file_name: nodes.csv\ngraph_data")
    with pytest.raises(FormatError, match=r"two files are of one type, '_N'"):
        read_all(toy(meta=again))
    with pytest.raises(FormatError, match=r"the file '\.\./nodes.csv' is not in it"):
        read_all(toy(meta=FILES["meta.yaml"].replace("nodes.csv", "../nodes.csv")))


def test_no_graph_of_a_table_is_lost(toy, read_all):
    """One that the table of graphs has not, or that has edges and no node."""
    graphs = FILES["graphs.csv"]
    with pytest.raises(FormatError, match=r"graphs.csv has no graph '3', of which the other"):
        read_all(toy(graphs=graphs.replace("\n3,", "\n4,")))
    with pytest.raises(FormatError, match=r"graphs.csv: graph '7' is there 2 times"):
        read_all(toy(graphs=graphs.replace("\n5,", "\n7,")))
    with pytest.raises(FormatError, match=r"graphs.csv has no column graph_id"):
        read_all(toy(graphs=graphs.replace("graph_id", "id")))
    listed = FILES["meta.yaml"].replace("  file_name: graphs", "- file_name: graphs")
    with pytest.raises(FormatError, match=r"meta.yaml is not .*: graph_data must be one file"):
        read_all(toy(meta=listed))
    alone = FILES["meta.yaml"].partition("graph_data")[0]
    found, rejects = read_all(toy(meta=alone, edges=FILES["edges.csv"] + "9,a,a,1\n"))
    assert len(found) == 2
    assert [(reject.record, reject.reason) for reject in rejects] == [
        ("graph 9", "an edge joins a _N 'a', which is not there")
    ]


def test_a_dataset_in_a_folder_of_the_input_is_no_input(toy, tmp_path):
    before = find_source(toy()).provenance()
    with directory_lock(tmp_path / "out"):
        (tmp_path / "out" / ".conversion").mkdir()
        (tmp_path / "out" / ".conversion" / "state.json").write_text("{}")
        assert find_source(tmp_path).provenance() == before


def test_no_edge_at_all(toy, read_all):
    graphs, rejects = read_all(toy(edges="graph_id,src_id,dst_id,feat\n"))
    assert rejects == []
    assert [graph.edge_index.shape for graph in graphs] == [(2, 0)] * 3
    assert [graph.edge_attr.shape for graph in graphs] == [(0, 1)] * 3


def test_separator_of_all_files_and_the_names_of_the_first_version(toy, read_all, assert_same):
    expected, _ = read_all(toy())
    meta = FILES["meta.yaml"]
    old = meta.replace("edge_data", "edges").replace("node_data", "nodes")
    graphs, _ = read_all(toy(meta=old.replace("graph_data", "graphs")))
    for graph, wanted in zip(graphs, expected, strict=True):
        assert_same(graph, wanted)
    texts = {
        name.split(".")[0]: "\n".join(";".join(row) for row in csv.reader(text.splitlines()))
        for name, text in FILES.items()
        if name.endswith(".csv")
    }
    graphs, _ = read_all(toy(meta=f'separator: ";"{meta}', **texts))
    for graph, wanted in zip(graphs, expected, strict=True):
        assert_same(graph, wanted)


def test_types_of_nodes_without_a_table(tmp_path, read_all):
    """The nodes that edges name, per graph, with their ids; here of integers and of text."""
    (tmp_path / "likes.csv").write_text("graph_id,who,what\n0,10,b\n1,9,a\n0,9,b\n0,9,a\n")
    meta = tmp_path / "elsewhere.yaml"
    meta.write_text(
        "edge_data:\n- {file_name: likes.csv, etype: [user, likes, item], src_id_field: who, "
        "dst_id_field: what}\n"
    )
    (first, second), rejects = read_all(tmp_path, format="dgl-csv", meta=str(meta))
    assert rejects == []
    assert first["user"].node_id.tolist() == [9, 10]
    assert first["item"].node_id == ["a", "b"]
    assert first["user", "likes", "item"].edge_index.tolist() == [[1, 0, 0], [1, 1, 0]]
    assert (second["user"].node_id.tolist(), second["item"].node_id) == ([9], ["a"])
    assert (second["user"].num_nodes, second["item"].num_nodes) == (1, 1)
    with pytest.raises(FormatError, match=r"has none of meta\.yaml.*\(meta, --meta\)"):
        read_all(tmp_path, format="dgl-csv")
    with pytest.raises(FileNotFoundError, match=r"no such file: nowhere\.yaml"):
        read_all(tmp_path, format="dgl-csv", meta="nowhere.yaml")


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_multiple_graphs(case, read_all):
    folder = case("dgl/csvdataset_multiple_graphs")
    graphs, rejects = read_all(folder, size=7)
    assert rejects == []
    edges, nodes = rows(folder / "edges.csv"), rows(folder / "nodes.csv")
    for graph_id in (0, 13):
        own = [row for row in edges if int(row["graph_id"]) == graph_id]
        assert graphs[graph_id].edge_index.t().tolist() == [
            [int(row["src"]), int(row["dst"])] for row in own
        ]
        wanted = np.array([[float(row[f"feat_{i}"]) for i in (0, 1)] for row in own], np.float32)
        np.testing.assert_array_equal(graphs[graph_id].edge_attr, wanted)
        own = [row for row in nodes if int(row["graph_id"]) == graph_id]
        wanted = np.array([[float(row[f"feat_{i}"]) for i in range(3)] for row in own], np.float32)
        np.testing.assert_array_equal(graphs[graph_id].x, wanted)
    told = rows(folder / "graphs.csv")
    assert [graph.y.tolist() for graph in graphs] == [[int(row["label"])] for row in told]
    splits = find_source(folder).splits()
    for i, name in enumerate(("train", "val", "test")):
        assert splits[name].tolist() == [
            number for number, row in enumerate(told) if int(row["split_type"]) == i
        ]


def test_single_hetero_graph(case, read_all):
    folder = case("dgl/csvdataset_single_graph")
    (graph,), rejects = read_all(folder)
    assert rejects == []
    assert graph.node_types == ["user", "item"]
    assert graph.edge_types == [("user", "like", "item"), ("user", "follow", "user")]
    for i, kind in enumerate(graph.edge_types):
        told = rows(folder / f"edges_{i}.csv")
        assert graph[kind].edge_index.t().tolist() == [[int(r["src"]), int(r["dst"])] for r in told]
        assert graph[kind].y.tolist() == [int(row["label"]) for row in told]
        assert graph[kind].val_mask.tolist() == [row["split_type"] == "1" for row in told]
    for i, kind in enumerate(graph.node_types):
        told = rows(folder / f"nodes_{i}.csv")
        assert graph[kind].num_nodes == len(told)
        assert graph[kind].y.tolist() == [int(row["label"]) for row in told]
        assert graph[kind].x[:, 2].tolist() == [np.float32(row["feat_2"]) for row in told]
