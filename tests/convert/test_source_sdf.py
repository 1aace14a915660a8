import shutil

import numpy as np
import pytest
import torch

from shardgraph.convert import find_source
from shardgraph.errors import FormatError

pytest.importorskip("rdkit")
from rdkit import Chem
from torch_geometric.utils.smiles import from_rdmol

WATER = """water
  by hand

  3  2  0  0  0  0  0  0  0  0999 V2000
    0.0000    0.0000    0.1173 O   0  0
    0.0000    0.7572   -0.4692 H   0  0
    0.0000   -0.7572   -0.4692 H   0  0
  1  2  1  0
  1  3  1  0
M  END
"""


def raw_atoms(path):
    """Symbols and positions of each V2000 record, by columns of the text."""
    found = []
    for record in path.read_text().split("$$$$\n"):
        lines = record.split("\n")
        if len(lines) < 4:
            continue
        rows = [line.split()[:4] for line in lines[4 : 4 + int(lines[3][:3])]]
        found.append(([row[3] for row in rows], [[float(v) for v in row[:3]] for row in rows]))
    return found


def test_sample_with_rows_of_valid_molecules(data, read_all):
    graphs, rejects = read_all(data / "gdb_sample.sdf")
    starts = [1]
    for record in (data / "gdb_sample.sdf").read_text().split("$$$$\n"):
        starts.append(starts[-1] + record.count("\n") + 1)
    assert [reject.record for reject in rejects] == [starts[3], starts[7]]
    assert all("is greater than permitted" in reject.reason for reject in rejects)
    atoms = [a for i, a in enumerate(raw_atoms(data / "gdb_sample.sdf")) if i not in (3, 7)]
    energies = (data / "gdb_sample.sdf.csv").read_text().split()[1:]
    table = Chem.GetPeriodicTable()
    for graph, (symbols, positions), energy in zip(graphs, atoms, energies, strict=True):
        assert graph.z.tolist() == [table.GetAtomicNumber(symbol) for symbol in symbols]
        assert torch.equal(graph.pos, torch.tensor(positions))
        assert torch.equal(graph.y, torch.tensor([[float(energy)]]))
    supplier = Chem.SDMolSupplier(str(data / "gdb_sample.sdf"), removeHs=False)
    expected = from_rdmol(supplier[0])
    assert torch.equal(graphs[0].x, expected.x)
    assert torch.equal(graphs[0].edge_index, expected.edge_index)
    assert torch.equal(graphs[0].edge_attr, expected.edge_attr)


@pytest.mark.parametrize("size", [1, 3, 4])
def test_partitions_keep_rows_aligned(data, read_all, assert_same, size):
    whole, whole_rejects = read_all(data / "gdb_sample.sdf")
    graphs, rejects = read_all(data / "gdb_sample.sdf", size=size)
    assert rejects == whole_rejects
    for graph, expected in zip(graphs, whole, strict=True):
        assert_same(graph, expected)


def test_rows_of_records_skip_none(data, tmp_path, read_all):
    shutil.copy(data / "gdb_sample.sdf", tmp_path / "a.sdf")
    (tmp_path / "a.csv").write_text("id,y,note\n" + "".join(f"{i},{i / 2},n\n" for i in range(10)))
    graphs, rejects = read_all(tmp_path / "a.sdf", size=3)
    assert [graph.y.tolist() for graph in graphs] == [
        [[i / 2]] for i in range(10) if i not in (3, 7)
    ]
    assert len(rejects) == 2
    (tmp_path / "a.csv").write_text("y\n1\n2\n3\n")
    with pytest.raises(FormatError, match=r"3 rows, but .* has 10 records, 8 of which RDKit can"):
        read_all(tmp_path / "a.sdf")


def test_own_properties_are_targets(data, tmp_path, read_all):
    (graph,), _ = read_all(data / "singleton.sdf")
    assert graph.y.tolist() == [[pytest.approx(-5.08)]]
    text = WATER + "> <a>\n1.5\n\n> <id>\n7\n\n> <kind>\nliquid\n\n$$$$\n"
    text += WATER + "> <b>  (2)\n-1\n\n> <a>\nnan\n\n$$$$\n" + WATER
    path = tmp_path / "water.sdf"
    path.write_text(text, newline="\r\n")
    graphs, rejects = read_all(path)
    assert rejects == []
    assert find_source(path).provenance()["targets"] == ["a", "b"]
    np.testing.assert_array_equal(
        torch.cat([graph.y for graph in graphs]),
        np.array([[1.5, np.nan], [np.nan, -1], [np.nan, np.nan]], dtype=np.float32),
    )
    assert [graph.z.tolist() for graph in graphs] == [[8, 1, 1]] * 3
    graphs, rejects = read_all(path, targets=["kind"])
    assert rejects[0].reason == "property 'kind' is 'liquid', which is not a number"
    assert [reject.record for reject in rejects] == [1]
    assert "y" not in read_all(path, targets=[])[0][0]


def test_hydrogens_removed_on_request(tmp_path, read_all):
    path = tmp_path / "water.sdf"
    path.write_text(WATER + "$$$$\n\n")
    (graph,), rejects = read_all(path, remove_hydrogens=True)
    assert (graph.z.tolist(), graph.num_edges) == ([8], 0)
    assert graph.pos.tolist() == [[0.0, 0.0, pytest.approx(0.1173)]]
    assert rejects == []


def test_bad_record_is_rejected_alone(tmp_path, read_all, capfd):
    path = tmp_path / "a.sdf"
    path.write_text(WATER + "$$$$\nnonsense\n$$$$\n" + WATER + "$$$$\n")
    graphs, rejects = read_all(path)
    assert len(graphs) == 2
    assert [(r.record, r.reason) for r in rejects] == [(12, "not a mol block that RDKit can read")]
    assert capfd.readouterr().err == ""


def test_gdb1k(case, read_all):
    path = case("molecules/deepchem/gdb1k.sdf")
    graphs, rejects = read_all(path, size=300)
    assert len(rejects) == 9
    energies = [float(line) for line in (path.parent / "gdb1k.sdf.csv").read_text().split()[1:]]
    assert torch.equal(torch.cat([g.y for g in graphs]).squeeze(1), torch.tensor(energies))
    bad = [i for i, mol in enumerate(Chem.SDMolSupplier(str(path), removeHs=False)) if mol is None]
    atoms = [a for i, a in enumerate(raw_atoms(path)) if i not in bad]
    for graph, (_, positions) in zip(graphs, atoms, strict=True):
        assert torch.equal(graph.pos, torch.tensor(positions))
