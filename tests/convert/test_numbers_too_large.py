"""A number that its dtype cannot hold is an error of its record, never an infinite value."""

import gzip
import json

import h5py
import numpy as np
import pytest
import torch
from numbers_source import Numbers

from shardgraph import ConversionError, SchemaError, ShardedDataset
from shardgraph.convert import convert, make_data
from shardgraph.convert.build import as_dtype
from shardgraph.convert.edit import cast_tensor

VALUES = ("0.5", "1e300", "-inf", "nan")
"""Of the four records of each input; the second is the one to be rejected."""


def smiles(folder):
    rows = "".join(f"CCO,{value}\n" for value in VALUES)
    (folder / "mol.csv").write_text("smiles,y\n" + rows)
    return folder / "mol.csv", "y"


def sdf(folder):
    from rdkit import Chem

    block = Chem.MolToMolBlock(Chem.MolFromSmiles("CO"))
    text = "".join(f"{block}>  <gap>\n{value}\n\n$$$$\n" for value in VALUES)
    (folder / "mol.sdf").write_text(text)
    return folder / "mol.sdf", "y"


def tudataset(folder):
    texts = {
        "A": "1, 1\n2, 2\n3, 3\n4, 4\n",
        "graph_indicator": "1\n2\n3\n4\n",
        "node_attributes": "\n".join(VALUES),
    }
    for name, text in texts.items():
        (folder / f"TOY_{name}.txt").write_text(text)
    return folder, "x"


def ogb(folder):
    (folder / "raw").mkdir()
    texts = {
        "num-node-list": "1\n" * 4,
        "num-edge-list": "1\n" * 4,
        "edge": "0,0\n" * 4,
        "node-feat": "\n".join(VALUES),
    }
    for name, text in texts.items():
        (folder / "raw" / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    return folder, "node-feat"


def networkx(folder):
    graphs = [
        {"nodes": [{"id": 0, "h": float(value)}], "links": [{"source": 0, "target": 0}]}
        for value in VALUES
    ]
    (folder / "graphs.jsonl").write_text("".join(json.dumps(graph) + "\n" for graph in graphs))
    return folder / "graphs.jsonl", "h"


def mtx(folder):
    for number, value in enumerate(VALUES):
        text = f"%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 {value}\n"
        (folder / f"{number}.mtx").write_text(text)
    return folder, "edge_weight"


def hdf5(folder):
    with h5py.File(folder / "graphs.h5", "w") as file:
        for number, value in enumerate(VALUES):
            group = file.create_group(str(number))
            group["x"] = np.array([[float(value)]])
            group["edge_index"] = np.zeros((1, 2), np.int64)
    return folder / "graphs.h5", "x"


def lmdb(folder):
    database = pytest.importorskip("lmdb").open(str(folder / "data.lmdb"), subdir=False)
    with database, database.begin(write=True) as transaction:
        for number, value in enumerate(VALUES):
            graph = {"y": [float(value)], "edge_index": [[0], [0]], "num_nodes": 1}
            transaction.put(str(number).encode(), json.dumps(graph).encode())
    return folder / "data.lmdb", "y"


def parquet(folder):
    arrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "edge_index": [[[0], [0]]] * 4,
        "node_feat": [[[float(value)]] for value in VALUES],
        "num_nodes": [1] * 4,
    }
    files.write_table(arrow.table(columns), folder / "graphs.parquet")
    return folder / "graphs.parquet", "x"


def parquet_edges(folder):
    arrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "source": [0] * 4,
        "target": [0] * 4,
        "graph_id": range(4),
        "weight": [float(value) for value in VALUES],
    }
    files.write_table(arrow.table(columns), folder / "links.parquet")
    return folder / "links.parquet", "weight"


def dgl_csv(folder):
    pytest.importorskip("yaml")
    (folder / "meta.yaml").write_text(
        "dataset_name: toy\n"
        "node_data: [{file_name: nodes.csv}]\n"
        "edge_data: [{file_name: edges.csv}]\n"
    )
    nodes = "".join(f"{i},0,{value}\n" for i, value in enumerate(VALUES))
    (folder / "nodes.csv").write_text("graph_id,node_id,feat\n" + nodes)
    edges = "".join(f"{i},0,0\n" for i in range(4))
    (folder / "edges.csv").write_text("graph_id,src_id,dst_id\n" + edges)
    return folder, "x"


def atoms(folder):
    pytest.importorskip("ase")
    text = "".join(
        f'1\nProperties=species:S:1:pos:R:3:forces:R:3 pbc="F F F"\nH 0 0 0 0 0 {value}\n'
        for value in VALUES
    )
    (folder / "frames.extxyz").write_text(text)
    return folder / "frames.extxyz", "forces"


@pytest.mark.parametrize(
    "make",
    [
        smiles,
        sdf,
        tudataset,
        ogb,
        networkx,
        mtx,
        hdf5,
        lmdb,
        parquet,
        parquet_edges,
        dgl_csv,
        atoms,
    ],
    ids=lambda make: make.__name__,
)
def test_of_a_source(tmp_path, make):
    (tmp_path / "raw").mkdir()
    spec, name = make(tmp_path / "raw")
    report = convert(spec, tmp_path / "out", on_error="skip", progress=False)
    assert (report.read, report.graphs, report.rejected) == (4, 3, 1)
    (line,) = (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()
    reject = json.loads(line)
    assert f"attribute {name!r} holds 1e+300, which float32 cannot hold" in reject["reason"]
    assert reject["record"] == 1
    graphs = [dict(data.to_dict()) for data in ShardedDataset(tmp_path / "out")]
    floats = [
        [v for v in graph.values() if torch.is_tensor(v) and v.is_floating_point()]
        for graph in graphs
    ]
    assert [any((value == 0.5).any() for value in found) for found in floats] == [
        True,
        False,
        False,
    ]
    assert [any((value == -torch.inf).any() for value in f) for f in floats] == [False, True, False]
    with pytest.raises(ConversionError, match=r"holds 1e\+300, which float32 cannot hold"):
        convert(spec, tmp_path / "strict", progress=False)


def test_text_beyond_float64_is_no_number(tmp_path):
    (tmp_path / "mol.csv").write_text("smiles,y\nCO,1\nCC,1e400\n")
    report = convert(tmp_path / "mol.csv", tmp_path / "out", on_error="skip", progress=False)
    assert report.rejected == 1
    assert "'1e400', which float64 cannot hold" in (tmp_path / "out" / "rejects.jsonl").read_text()


def test_of_matrices_of_text(tmp_path):
    folder, _ = ogb(tmp_path)
    text = gzip.compress(b"0.5\n1e400\ninf\n1\n")
    (folder / "raw" / "node-feat.csv.gz").write_bytes(text)
    report = convert(folder, tmp_path / "out", on_error="skip", progress=False)
    assert report.rejected == 1
    assert "1e400, which float64 cannot hold" in (tmp_path / "out" / "rejects.jsonl").read_text()


def test_cast(tmp_path):
    """Values up to 65,519 round to the largest of float16; 65,600 is the first beyond."""
    source = Numbers(count=657)
    source.graph = lambda i: Numbers.graph(source, 100 * i)
    report = convert(
        source, tmp_path / "out", cast={"x": "float16"}, on_error="skip", progress=False
    )
    reasons = [
        json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()
    ]
    assert [reject["record"] for reject in reasons] == [656]
    assert report.graphs == 656
    assert "attribute 'x' holds 65600.0, which torch.float16 cannot hold" in reasons[0]["reason"]


@pytest.mark.parametrize(
    ("value", "dtype", "first"),
    [
        ([1.0, 1e300], np.float32, "1e+300"),
        ([[1.0], [-1e39]], np.float32, "-1e+39"),
        ([70000, 1], np.float16, "70000"),
        ([2**63], np.int64, str(2**63)),
        ([1, -(2**80)], np.int64, str(-(2**80))),
        ([10**400, None], np.float32, str(10**400)),
        (np.array([5, 2**63], np.uint64), np.int64, str(2**63)),
        ([1.0, 2.5], np.int64, "2.5"),
        ([float(2**63)], np.int64, "9.223372036854775808e+18"),
        ([np.nan], np.int64, "nan"),
        ([np.inf], np.int64, "inf"),
        (np.array([300]), np.int8, "300"),
        (np.array([-1]), np.uint8, "-1"),
    ],
)
def test_of_one_array(value, dtype, first):
    shown = f"{float(first)!r}" if dtype is np.int64 and "." in first else first
    message = f"attribute 'y' holds {shown}, which {np.dtype(dtype)} cannot hold"
    with pytest.raises(SchemaError, match="attribute 'y' holds") as caught:
        as_dtype(value, dtype, "y")
    assert str(caught.value) == message


def test_what_fits_stays():
    floats = np.array([np.inf, -np.inf, 3e38, 0.1])
    assert as_dtype(floats, np.float32, "y").tolist() == floats.astype(np.float32).tolist()
    assert np.isnan(as_dtype([1.0, None], np.float32, "y")).tolist() == [False, True]
    assert as_dtype([2.0, -(2.0**63)], np.int64, "y").tolist() == [2, -(2**63)]
    assert as_dtype([True, False], np.int64, "y").tolist() == [1, 0]
    same = np.arange(3)
    assert as_dtype(same, np.int64, "y") is same


def test_lists_of_a_source_of_ones_own():
    assert make_data(y=[float("inf"), 2.0]).y.tolist() == [float("inf"), 2.0]
    with pytest.raises(SchemaError, match=r"'y' holds 1e\+300, which float32 cannot hold"):
        make_data(y=[[1.0, 1e300]])
    with pytest.raises(SchemaError, match="'z' holds 9223372036854775808, which int64"):
        make_data(z=[2**63])
    with pytest.raises(SchemaError, match=r"'edge_index' holds 1\.5, which int64"):
        make_data(edge_index=[[0, 1.5]])


def test_a_source_of_ones_own_is_told_with_its_record(tmp_path):
    source = Numbers()
    source.graph = lambda i: make_data(x=[[1.0]], y=[1e300 if i == 22 else 1.0])
    with pytest.raises(ConversionError, match=r"failed at record 2 of partition 1 .*'y' holds 1e"):
        convert(source, tmp_path / "out", progress=False)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (torch.tensor([1e300], dtype=torch.float64), torch.float32),
        (torch.tensor([70000.0]), torch.float16),
        (torch.tensor([70000]), torch.float16),
        (torch.tensor([300]), torch.int8),
        (torch.tensor([2.0**63]), torch.int64),
        (torch.tensor([float("nan")]), torch.int64),
        (torch.tensor([1e9]), torch.float8_e4m3fn),
        (torch.tensor([300.0]).to(torch.float8_e4m3fn), torch.int8),
    ],
)
def test_of_a_cast(value, dtype):
    with pytest.raises(SchemaError, match=r"attribute 'x' holds .*, which torch\.\w+ cannot hold"):
        cast_tensor("x", value, dtype)


def test_a_cast_that_loses_nothing_but_digits():
    found = cast_tensor("x", torch.tensor([1.51, float("nan"), 448.0]), torch.float8_e4m3fn)
    assert found.dtype == torch.float8_e4m3fn
    again = cast_tensor("x", found, torch.float32)
    assert again.nan_to_num(-1.0).tolist() == [1.5, -1.0, 448.0]
