import numpy as np
import pytest
import torch

from shardgraph.convert import find_source
from shardgraph.errors import FormatError

pytest.importorskip("pyarrow")
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = [
    {
        "edge_index": [[0, 1], [1, 2]],
        "edge_attr": [[0.5, 1], [1.5, 2]],
        "node_feat": [[1], [2], [3]],
        "y": [1.5],
        "num_nodes": 3,
        "note": "a",
    },
    {
        "edge_index": [[], []],
        "edge_attr": [],
        "node_feat": [[4]],
        "y": [2.5],
        "num_nodes": 1,
        "note": "b",
    },
    {
        "edge_index": [[0], [1]],
        "edge_attr": [[2.5, 3]],
        "node_feat": [[5], [6]],
        "y": [3.5],
        "num_nodes": 2,
        "note": "c",
    },
]


@pytest.fixture
def write(tmp_path):
    def write(rows, name="a.parquet", **options):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name, **options)
        return tmp_path / name

    return write


@pytest.mark.parametrize("size", [1, 2, 10])
@pytest.mark.parametrize("row_group_size", [1, 2, 10])
def test_list_columns(write, read_all, size, row_group_size):
    graphs, rejects = read_all(write(ROWS, row_group_size=row_group_size), size=size)
    assert rejects == []
    for graph, row in zip(graphs, ROWS, strict=True):
        assert graph.edge_index.tolist() == row["edge_index"]
        assert graph.edge_attr.tolist() == row["edge_attr"]
        assert graph.x.tolist() == row["node_feat"]
        assert graph.y.tolist() == [row["y"]]
        assert graph.num_nodes == row["num_nodes"]
    assert {
        key: value.dtype for key, value in graphs[0].to_dict().items() if key != "num_nodes"
    } == {
        "edge_index": torch.int64,
        "edge_attr": torch.float32,
        "x": torch.int64,
        "y": torch.float32,
    }
    assert graphs[1].edge_index.shape == (2, 0)
    assert graphs[1].edge_attr.shape == (0, 2)


def test_single_numbers_are_targets(write, read_all):
    rows = [
        {"edge_index": [[0], [1]], "id": 1, "a": 0.5, "b": 2},
        {"edge_index": [[0], [0]], "id": 2, "a": None, "b": 3},
    ]
    graphs, _ = read_all(write(rows))
    y = torch.cat([graph.y for graph in graphs])
    np.testing.assert_array_equal(y, np.array([[0.5, 2], [np.nan, 3]], np.float32))
    graphs, _ = read_all(write(rows), targets=["b"])
    assert [graph.y.tolist() for graph in graphs] == [[[2]], [[3]]]
    with pytest.raises(ValueError, match="no column of single numbers named c; it has id, a, b"):
        read_all(write(rows), targets=["c"])


def test_folder_in_order(write, tmp_path, read_all):
    (tmp_path / "data").mkdir()
    for i in (10, 9):
        write([{"edge_index": [[0], [i]]}], name=f"data/train-{i}.parquet")
    graphs, _ = read_all(tmp_path)
    assert [graph.edge_index.tolist() for graph in graphs] == [[[0], [9]], [[0], [10]]]


def test_smiles(write, read_all):
    pytest.importorskip("rdkit")
    molecules = [("CCO", 1.5), ("c1", 2.0), ("C", None), (None, 3.0)]
    rows = [{"mol_id": i, "smiles": s, "u": u} for i, (s, u) in enumerate(molecules)]
    graphs, rejects = read_all(write(rows), targets=["u"])
    assert [(graph.smiles, graph.num_nodes) for graph in graphs] == [("CCO", 3), ("C", 1)]
    assert [(reject.record, reject.reason) for reject in rejects] == [
        ("row 1", "not a SMILES that RDKit can read (syntax error)"),
        ("row 3", "no SMILES"),
    ]


def test_edge_and_node_tables(write, tmp_path, read_all):
    edges = [
        {"graph_id": 5, "src": "b", "dst": "a", "w": 0.5},
        {"graph_id": 2, "src": "a", "dst": "a", "w": 1.5},
        {"graph_id": 5, "src": "a", "dst": "b", "w": 2.5},
    ]
    nodes = [
        {"graph_id": 5, "node_id": "b", "p": 1.0, "q": 2, "label": 1},
        {"graph_id": 3, "node_id": "z", "p": 9.0, "q": 9, "label": 9},
        {"graph_id": 5, "node_id": "a", "p": 3.0, "q": 4, "label": 0},
        {"graph_id": 2, "node_id": "a", "p": 5.0, "q": 6, "label": 2},
    ]
    path = write(edges, name="edges.parquet")
    graphs, rejects = read_all(path, size=1)
    assert rejects == []
    assert [graph.graph_id for graph in graphs] == [2, 5]
    assert [graph.node_id for graph in graphs] == [["a"], ["a", "b"]]
    assert graphs[1].edge_index.tolist() == [[1, 0], [0, 1]]
    write(nodes, name="nodes.parquet")
    for spec in (path, tmp_path):
        graphs, _ = read_all(spec, size=2)
        assert [graph.graph_id for graph in graphs] == [2, 3, 5]
        assert [graph.num_edges for graph in graphs] == [1, 0, 2]
        assert graphs[2].node_id == ["b", "a"]
        assert graphs[2].x.tolist() == [[1, 2], [3, 4]]
        assert graphs[2].y.tolist() == [1, 0]
        assert graphs[2].edge_index.tolist() == [[0, 1], [1, 0]]
        assert graphs[2].edge_weight.tolist() == [0.5, 2.5]
    (graph,), _ = read_all(write([{"source": 9, "target": 7, "a": 1, "b": 2}]), undirected=True)
    assert graph.node_id.tolist() == [7, 9]
    assert graph.edge_index.tolist() == [[1, 0], [0, 1]]
    assert graph.edge_attr.tolist() == [[1, 2], [1, 2]]
    assert find_source(path).provenance()["options"]["nodes"] == "nodes.parquet"


def test_faults_of_tables(write, read_all):
    path = write([{"source": 1, "target": 2}], name="edges.parquet")
    nodes = write([{"id": 1}, {"id": 3}], name="n.parquet")
    _, rejects = read_all(path, nodes=str(nodes))
    assert [r.reason for r in rejects] == ["an edge joins node 2, which is not in the table"]
    nodes = write([{"id": 1}, {"id": 1}], name="n2.parquet")
    _, rejects = read_all(path, nodes=str(nodes))
    assert [r.reason for r in rejects] == ["the table of nodes has an id twice"]
    path = write([{"source": 1, "target": None}, {"source": 1, "target": 2}])
    with pytest.raises(FormatError, match="column 'target' has a null, where an id is needed"):
        read_all(path)


def test_faults(write, tmp_path, read_all):
    rows = [{"edge_index": e} for e in ([[0], [1]], None, [[0]], [[0, 1], [1]], [[None], [1]])]
    graphs, rejects = read_all(write(rows))
    assert len(graphs) == 1
    assert [reject.record for reject in rejects] == ["row 1", "row 2", "row 3", "row 4"]
    assert "column 'edge_index' is null" in rejects[0].reason
    assert "edge_index has the shape (1, 1), expected (2, E)" in rejects[1].reason
    with pytest.raises(ValueError, match="neither a column edge_index of lists nor one of SMILES"):
        read_all(write([{"a": 1}]))
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match=r"b.parquet cannot be read as Parquet"):
        read_all(tmp_path / "b.parquet")


def test_micro_qm9(case, read_all):
    pytest.importorskip("rdkit")
    path = case("molecules/graphium/micro_qm9.parquet")
    graphs, rejects = read_all(path, size=400)
    assert rejects == []
    table = pq.read_table(path)
    targets = find_source(path).provenance()["targets"]
    assert targets == table.column_names[2:]
    wanted = np.stack([table[name].to_numpy() for name in targets], axis=1).astype(np.float32)
    np.testing.assert_array_equal(torch.cat([graph.y for graph in graphs]).numpy(), wanted)
    assert [graph.smiles for graph in graphs] == table["smiles"].to_pylist()


def test_ids_of_two_kinds(write, read_all):
    path = write([{"source": "a", "target": 1}], name="edges.parquet")
    _, (reject,) = read_all(path)
    assert reject.reason == "the columns source and target have ids of two kinds, numbers and text"


def test_graphs_named_by_text(write, read_all):
    edges = [{"graph_id": name, "source": 1, "target": 2} for name in ("b", "a", "b")]
    graphs, _ = read_all(write(edges))
    assert [(graph.graph_id, graph.num_edges) for graph in graphs] == [("a", 1), ("b", 2)]


def test_ids_stay_exact(tmp_path, read_all):
    """Also where two columns, or files, have them in integers of two types."""
    big = 2**53
    for number, (source, target) in enumerate([("int32", "uint64"), ("uint64", "float64")]):
        columns = {"source": [1, 2], "target": [big, big + (number == 0)]}
        types = {"source": source, "target": target}
        arrays = {name: pa.array(columns[name], types[name]) for name in columns}
        pq.write_table(pa.table(arrays), tmp_path / f"{number}.parquet")
    (graph,), _ = read_all(tmp_path)
    assert graph.node_id.tolist() == [1, 2, big, big + 1]
    assert graph.edge_index.tolist() == [[0, 1, 0, 1], [2, 3, 2, 2]]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, None], "column 'graph_id' has a null, where an id is needed"),
        ([1.0, 1.5], "'graph_id' holds 1.5, which int64 cannot hold"),
    ],
)
def test_what_is_no_id_of_a_graph(tmp_path, read_all, ids, message):
    columns = {"source": [1, 2], "target": [2, 3], "graph_id": ids}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=message):
        read_all(tmp_path / "a.parquet")


def test_a_folder_that_ends_in_parquet(tmp_path, read_all):
    """As Spark writes one."""
    folder = tmp_path / "all" / "edges.parquet"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"source": [1], "target": [2]}), folder / "part-0.parquet")
    (folder / "_SUCCESS").touch()
    for spec in (folder, folder.parent):
        (graph,), _ = read_all(spec)
        assert graph.num_edges == 1
