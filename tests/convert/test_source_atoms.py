import gzip
import re

import numpy as np
import pytest
import torch

from shardgraph.convert import find_source
from shardgraph.errors import FormatError

pytest.importorskip("ase")
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write
from ase.neighborlist import neighbor_list

PROPERTIES = "Properties=species:S:1:pos:R:3:force:R:3:tags:I:1"
XYZ = f"""2
Lattice="4 0 0 0 5 0 0.5 0 6" pbc="T T F" {PROPERTIES} energy=-97079.92222178938 gap=1.5 name=a
H 0 0 0 1 2 3 7
O 0.125 0.25 1 -1 -2 -3 8

1
{PROPERTIES} energy=2 gap=2.5 name=b
X 1 1 1 0 0 0 9
1
Properties=species:S:1:pos:R:3 name=c
C 1 1 1
"""


@pytest.fixture
def xyz(tmp_path):
    path = tmp_path / "a.xyz"
    path.write_text(XYZ)
    return path


@pytest.mark.parametrize("size", [1, 2, 10])
def test_toy_values(xyz, read_all, size):
    (first, second, third), rejects = read_all(xyz, size=size)
    assert rejects == []
    assert {key: value.dtype for key, value in first.to_dict().items()} == {
        "z": torch.int64,
        "pos": torch.float32,
        "cell": torch.float32,
        "pbc": torch.bool,
        "energy": torch.float64,
        "forces": torch.float32,
        "y": torch.float64,
        "edge_index": torch.int64,
    }
    assert first.z.tolist() == [1, 8]
    assert first.pos.tolist() == [[0, 0, 0], [0.125, 0.25, 1]]
    assert first.cell.tolist() == [[[4, 0, 0], [0, 5, 0], [0.5, 0, 6]]]
    assert first.pbc.tolist() == [[True, True, False]]
    assert first.energy.tolist() == [-97079.92222178938]
    assert first.forces.tolist() == [[1, 2, 3], [-1, -2, -3]]
    assert first.y.tolist() == [[1.5]]
    assert first.edge_index.shape == (2, 0)
    assert (second.z.tolist(), second.y.tolist()) == ([0], [[2.5]])
    assert third.energy.isnan().all()
    assert third.y.isnan().all()
    assert third.forces.shape == (1, 3)
    assert third.forces.isnan().all()
    assert third.pbc.tolist() == [[False] * 3]
    assert find_source(xyz).provenance()["targets"] == ["gap"]


def test_arrays_are_kept_on_request(xyz, read_all):
    graphs, rejects = read_all(xyz, arrays=["tags"], targets=[])
    assert [graph.tags.tolist() for graph in graphs] == [[7, 8], [9]]
    assert [(r.record, r.reason) for r in rejects] == [(9, "KeyError: 'tags'")]
    assert "y" not in graphs[0]


def test_bad_frames_are_rejected_alone(tmp_path, read_all):
    path = tmp_path / "a.extxyz.gz"
    text = "1\n\nH 0 0 x\n" + "1\n\nC 0 0 0\n" + "2\n\nH 0 0 0\n"
    path.write_bytes(gzip.compress(text.encode()))
    graphs, rejects = read_all(path, size=1)
    assert [graph.z.tolist() for graph in graphs] == [[6]]
    assert [reject.record for reject in rejects] == [1, 7]
    assert all("ASE cannot read it" in reject.reason for reject in rejects)


def test_targets_by_name(tmp_path, read_all):
    path = tmp_path / "a.xyz"
    path.write_text('1\nalpha="1 2 3 4 5 6 7 8 9" e=1\nH 0 0 0\n1\ne=2\nH 0 0 0\n')
    graphs, _ = read_all(path, targets=["e", "alpha"])
    assert graphs[0].y.tolist()[0][0] == 1
    assert sorted(graphs[0].y.tolist()[0]) == [1, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    np.testing.assert_array_equal(graphs[1].y, [[2] + [np.nan] * 9])
    with pytest.raises(ValueError, match=r"no numbers are named beta; the properties are alpha, e"):
        read_all(path, targets=["beta"])


def test_database_trajectory_and_stress(tmp_path, read_all):
    structures = []
    for i in range(3):
        atoms = Atoms("H2", [[0, 0, 0], [0, 0, i + 1.0]], cell=[9, 9, 9], pbc=True)
        atoms.calc = SinglePointCalculator(
            atoms, energy=i - 0.5, forces=np.full((2, 3), i), stress=[1, 2, 3, 4, 5, i]
        )
        structures.append(atoms)
    for name in ("a.traj", "a.db", "a.extxyz"):
        write(tmp_path / name, structures)
        graphs, rejects = read_all(tmp_path / name, size=2)
        assert rejects == []
        assert [graph.energy.tolist() for graph in graphs] == [[-0.5], [0.5], [1.5]]
        assert [graph.pos[1, 2].item() for graph in graphs] == [1, 2, 3]
        assert graphs[2].forces.tolist() == [[2, 2, 2]] * 2
        assert graphs[2].stress.tolist() == [[[1, 2, 5], [2, 2, 4], [5, 4, 3]]]


@pytest.mark.parametrize("pbc", [True, False, [True, False, True]])
def test_neighbours_equal_ase(tmp_path, read_all, pbc):
    pytest.importorskip("vesin")
    rng = np.random.default_rng(0)
    atoms = Atoms("C8", rng.random((8, 3)) * 4, cell=[[4, 0, 0], [1, 4, 0], [0, 0.5, 4]], pbc=pbc)
    write(tmp_path / "a.extxyz", [atoms])
    (graph,), _ = read_all(tmp_path / "a.extxyz", cutoff=4.5)
    i, j, shift = neighbor_list("ijS", atoms, 4.5)
    wanted = sorted(zip(i, j, map(tuple, shift), strict=True))
    read = zip(*graph.edge_index.tolist(), map(tuple, graph.edge_shift.tolist()), strict=True)
    assert list(read) == [(int(a), int(b), tuple(map(int, s))) for a, b, s in wanted]
    source, target = graph.edge_index
    vector = graph.pos[target] - graph.pos[source] + graph.edge_shift.float() @ graph.cell[0]
    assert vector.norm(dim=1).max() < 4.5
    assert graph.edge_shift.dtype == torch.int64


def test_folder_of_cif_with_table(tmp_path, read_all):
    for i, name in enumerate(["b", "a10", "a9"]):
        write(tmp_path / f"{name}.cif", Atoms("NaCl", [[0, 0, 0], [2.0, 0, 0]], cell=[5, 5, 5 + i]))
    (tmp_path / "id_prop.csv").write_text("\ufeffb,1.5\r\na9,-2\r\n", "utf-8", newline="")
    (tmp_path / "c.cif").write_text("nonsense")
    graphs, rejects = read_all(tmp_path)
    assert [graph.cell[0, 2, 2].item() for graph in graphs] == [7, 6, 5]
    np.testing.assert_array_equal(torch.cat([graph.y for graph in graphs]), [[-2], [np.nan], [1.5]])
    assert [re.sub(".*/", "", reject.file) for reject in rejects] == ["c.cif"]


def test_wrong_cutoff(tmp_path):
    pytest.importorskip("vesin")
    (tmp_path / "a.xyz").write_text("0\n\n")
    for cutoff in (-1.0, 0.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"cutoff must be a positive length, got {cutoff}"):
            find_source(tmp_path / "a.xyz", cutoff=cutoff)


@pytest.mark.parametrize("count", [2, 10**12, 2**70])
def test_more_atoms_than_the_file_has(tmp_path, read_all, count):
    (tmp_path / "a.xyz").write_text(f"{count}\n\nH 0 0 0\n")
    graphs, (reject,) = read_all(tmp_path / "a.xyz")
    assert graphs == []
    assert f"{count} atoms are told, the file ends after 1" in reject.reason


@pytest.mark.parametrize("content", ["", "junk", "SQLite format 3\0"])
def test_what_is_no_database_of_ase(tmp_path, read_all, content):
    (tmp_path / "a.db").write_text(content)
    with pytest.raises(FormatError, match=r"a.db is not a database of ASE"):
        read_all(tmp_path / "a.db", format="atoms")


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("metatrain_xyz/ethanol_reduced_100.xyz", {"energy", "forces"}),
        ("fairchem_traj/toy_c3h8_relax.extxyz", {"energy", "forces"}),
        ("schnetpack_asedb/test_qm9.db", {"y"}),
        ("schnetpack_asedb/test_iso.db", {"energy", "forces"}),
    ],
)
def test_cases(case, read_all, name, keys):
    found, rejects = read_all(case(f"atomistic/{name}"), size=30)
    assert rejects == []
    assert set(found[0].keys()) - {"z", "pos", "cell", "pbc", "edge_index"} == keys


def test_values_of_cases_from_the_text(case, read_all):
    path = case("atomistic/fairchem_traj/toy_c3h8_relax.extxyz")
    graphs, _ = read_all(path)
    energies = [float(word) for word in re.findall(r"\benergy=(\S+)", path.read_text())]
    assert [graph.energy.item() for graph in graphs] == energies
    assert (min(energies), max(energies)) == pytest.approx((8.35892, 15.80470), abs=1e-5)
    row = path.read_text().splitlines()[2].split()
    assert graphs[0].pos[0].tolist() == pytest.approx([float(v) for v in row[1:4]])
    assert graphs[0].forces[0].tolist() == pytest.approx([float(v) for v in row[6:9]])
    source = find_source(case("atomistic/schnetpack_asedb/test_qm9.db"))
    assert len(source.provenance()["targets"]) == 15


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_cgcnn(case, read_all):
    graphs, rejects = read_all(case("atomistic/cgcnn_cif_regression"), cutoff=4.0)
    assert rejects == []
    assert sorted(graph.y.item() for graph in graphs) == [float(i) for i in range(1, 11)]
    assert all(graph.num_edges > 0 for graph in graphs)
