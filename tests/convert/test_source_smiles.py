import csv
import gzip
import math
import re

import numpy as np
import pytest
import torch

from shardgraph.convert import Reject, find_source
from shardgraph.errors import ConversionError, FormatError

pytest.importorskip("rdkit")
from rdkit import Chem
from torch_geometric.utils import from_smiles


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_sample_with_bad_rows(data, read_all, assert_same):
    graphs, rejects = read_all(data / "bbbp_sample.csv")
    assert [reject.record for reject in rejects] == [8, 10]
    assert rejects[0].reason == "Explicit valence for atom # 1 N, 4, is greater than permitted"
    assert rejects[0].file == str(data / "bbbp_sample.csv")
    with (data / "bbbp_sample.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rejects[0].raw == f"{rows[6]['BBBP']},{rows[6]['smiles']}"
    rows = [row for i, row in enumerate(rows) if i + 2 not in (8, 10)]
    assert len(graphs) == 10
    for graph, row in zip(graphs, rows, strict=True):
        expected = from_smiles(row["smiles"])
        expected.y = torch.tensor([[float(row["BBBP"])]])
        assert_same(graph, expected)


def test_compressed_sample_with_commas_in_names(data, read_all):
    graphs, rejects = read_all(data / "sider_sample.csv.gz")
    assert rejects == []
    with gzip.open(data / "sider_sample.csv.gz", "rt", newline="") as file:
        header, *rows = csv.reader(file)
    targets = find_source(data / "sider_sample.csv.gz").provenance()["targets"]
    assert targets == header[1:]
    assert sum("," in target for target in targets) == 5
    assert torch.cat([graph.y for graph in graphs]).tolist() == [
        [float(value) for value in row[1:]] for row in rows
    ]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_partitions_do_not_change_the_items(data, read_all, assert_same, size):
    for name in ("bbbp_sample.csv", "sider_sample.csv.gz", "gdb13_sample.smi"):
        whole, whole_rejects = read_all(data / name)
        graphs, rejects = read_all(data / name, size=size)
        assert rejects == whole_rejects
        for graph, expected in zip(graphs, whole, strict=True):
            assert_same(graph, expected)


def test_smi_file_with_header(data, read_all):
    graphs, rejects = read_all(data / "gdb13_sample.smi")
    lines = (data / "gdb13_sample.smi").read_text().splitlines()[1:]
    assert rejects == []
    assert [graph.smiles for graph in graphs] == [line.split()[0] for line in lines]
    assert all("y" not in graph for graph in graphs)


def test_smi_file_without_header_and_final_newline(tmp_path, read_all):
    path = write(tmp_path / "a.smi", "CCO ethanol absolute\n\nC\tmethane\n[Na+]")
    graphs, rejects = read_all(path)
    assert [graph.smiles for graph in graphs] == ["CCO", "C", "[Na+]"]
    assert [graph.num_nodes for graph in graphs] == [3, 1, 1]
    assert [tuple(graph.edge_index.shape) for graph in graphs] == [(2, 4), (2, 0), (2, 0)]
    assert [tuple(graph.edge_attr.shape) for graph in graphs] == [(4, 3), (0, 3), (0, 3)]
    assert rejects == []


def test_missing_values_quotes_and_line_breaks(tmp_path, read_all):
    text = 'name,smiles,a,b\n"two\nlines, quoted",CCO,1.5,\nx,C,NaN,-2e3\n"q""q",N, n/a ,7\n'
    graphs, rejects = read_all(write(tmp_path / "a.csv", "\ufeff" + text), size=1)
    assert rejects == []
    assert [graph.smiles for graph in graphs] == ["CCO", "C", "N"]
    y = torch.cat([graph.y for graph in graphs]).numpy()
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, [[1.5, math.nan], [math.nan, -2000], [math.nan, 7]])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("XXX,1", r"not a SMILES that RDKit can read \(syntax error\)"),
        ("c1cccc1,1", "Can't kekulize mol"),
        (",1", "no SMILES"),
        ("CCO>>CC,1", "syntax error"),
        ("CCO,high", "column 'y' holds 'high', which is not a number"),
        ("CCO,1,2", "3 fields, where the header has 2"),
        ("CCO", "1 fields, where the header has 2"),
        ('"CCO"x,1', "',' expected after '\"'"),
        (b"C\xff,1", "bytes that are not text"),
    ],
    ids=["syntax", "aromatic", "empty", "reaction", "number", "long", "short", "quote", "utf8"],
)
def test_bad_row_is_rejected_alone(tmp_path, read_all, row, reason):
    row = row if isinstance(row, bytes) else row.encode()
    path = write(tmp_path / "a.csv", b"smiles,y\nC,1\n" + row + b"\nN,2\n")
    graphs, rejects = read_all(path, targets=["y"])
    assert [graph.smiles for graph in graphs] == ["C", "N"]
    assert [reject.record for reject in rejects] == [3]
    assert re.search(reason, rejects[0].reason)


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_unclosed_quote_swallows_no_other_row(tmp_path, read_all, name, size):
    text = '\ufeffsmiles,y\r\nC,1\r\n"N,2\r\nO,3\r\n"C\nC",4\r\n"F,6'.encode()
    path = write(tmp_path / name, gzip.compress(text) if name.endswith("gz") else text)
    graphs, rejects = read_all(path, size=size)
    assert [(graph.smiles, graph.y.item()) for graph in graphs] == [("C", 1), ("O", 3)]
    assert [(r.record, r.reason, r.raw) for r in rejects] == [
        (3, "',' expected after '\"'", '"N,2'),
        (5, "the SMILES holds bytes that are not text (UTF-8)", '"C\nC",4'),
        (7, "unexpected end of data", '"F,6'),
    ]


def test_columns_by_name_and_position(tmp_path, read_all):
    path = write(tmp_path / "a.tsv", "structure a\tmol_x\tt\nignored\tCCO\t1\n")
    with pytest.raises(ValueError, match=r"no column named like SMILES.*'structure a', 'mol_x'"):
        read_all(path, format="smiles")
    with pytest.raises(ValueError, match="no column named 'smiles'; its columns are 'structure a'"):
        read_all(path, format="smiles", smiles="smiles")
    (graph,), _ = read_all(path, format="smiles", smiles="mol_x", targets=[])
    assert graph.smiles == "CCO"
    assert "y" not in graph
    path = write(tmp_path / "b.csv", "CCO;5\nC;6\n")
    graphs, _ = read_all(path, format="smiles", smiles="0", no_header=True)
    assert [(graph.smiles, graph.y.tolist()) for graph in graphs] == [
        ("CCO", [[5.0]]),
        ("C", [[6.0]]),
    ]


def test_identifiers_are_not_targets(tmp_path, read_all):
    path = write(tmp_path / "a.csv", "id,smiles,key,y\n1,C,48866084_50429806,0.5\n2,N,1_2,1\n")
    graphs, _ = read_all(path)
    assert [graph.y.tolist() for graph in graphs] == [[[0.5]], [[1.0]]]


def test_hydrogens_and_kekulize(tmp_path, read_all, assert_same):
    path = write(tmp_path / "a.smi", "c1ccccc1O\n")
    (graph,), _ = read_all(path, with_hydrogen=True, kekulize=True)
    assert_same(graph, from_smiles("c1ccccc1O", with_hydrogen=True, kekulize=True))
    assert graph.num_nodes == 13


def test_rdkit_is_silent(tmp_path, read_all, capfd):
    read_all(write(tmp_path / "a.smi", "c1ccc\nN(C)(C)(C)C\n"))
    assert capfd.readouterr().err == ""


def test_empty_and_damaged_files(tmp_path, data, read_all):
    for name in ("a.csv", "a.smi"):
        with pytest.raises(FormatError, match=f"{name} is empty"):
            read_all(write(tmp_path / name, ""), format="smiles")
    assert read_all(write(tmp_path / "b.csv", "smiles,y\n"), targets=[]) == ([], [])
    cut = (data / "sider_sample.csv.gz").read_bytes()[:-200]
    with pytest.raises(ConversionError, match=r"cut.csv.gz is damaged: "):
        read_all(write(tmp_path / "cut.csv.gz", cut), format="smiles")


@pytest.mark.parametrize(
    ("name", "rows", "graphs"),
    [("deepchem/no_labels.csv", 25, 22), ("graphium/single_atom_dataset.csv", 7, 6)],
)
def test_cases(case, read_all, name, rows, graphs):
    found, rejects = read_all(case(f"molecules/{name}"))
    assert (len(found), len(rejects)) == (graphs, rows - graphs)
    if name.startswith("graphium"):
        assert [(graph.num_nodes, graph.num_edges) for graph in found] == [(1, 0)] * graphs


def test_bbbp_bad_rows(case, read_all):
    path = case("molecules/attentivefp/BBBP.csv")
    _, rejects = read_all(path)
    lines = path.read_text().splitlines()
    bad = [i for i, line in enumerate(lines[1:], 2) if Chem.MolFromSmiles(line[2:]) is None]
    assert [reject.record for reject in rejects] == bad
    assert len(bad) == 11


def test_esol_target(case, read_all):
    path = case("molecules/deepchem/delaney-processed.csv")
    target = "measured log solubility in mols per litre"
    graphs, _ = read_all(path, targets=[target])
    with path.open(newline="") as file:
        values = [float(row[target]) for row in csv.DictReader(file)]
    y = torch.cat([graph.y for graph in graphs]).squeeze(1).tolist()
    assert y == [np.float32(value) for value in values]
    assert np.mean(values) == pytest.approx(-3.05010, abs=1e-5)


def test_reject_reads_as_a_sentence():
    reject = Reject(file="a.csv", record=3, reason="no SMILES")
    assert str(reject) == "a.csv, line 3: no SMILES"
    assert str(Reject(file="a.pt", record="graph 3", reason="x")) == "a.pt, graph 3: x"
