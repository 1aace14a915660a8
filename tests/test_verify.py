"""Verification: a whole dataset has no problem, and every fault is named with its place."""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from forging import in_child
from torch_geometric.data import Data, HeteroData

import shardgraph as sg
from shardgraph.cli import main
from shardgraph.verify import RESTORE, Problem, shard

LEVELS = ("quick", "structure", "full")
DAMAGED = f"bytes are not those that were written; {RESTORE}"


def graphs(count: int) -> Iterator[Data]:
    generator = torch.Generator().manual_seed(1)
    for number in range(count):
        n = number % 4 + 1
        yield Data(
            x=torch.rand(n, 2, generator=generator),
            edge_index=torch.randint(n, (2, n), generator=generator),
            flag=torch.tensor([True, False]),
            y=float(number),
            name=f"g{number}",
            v=torch.rand(n, 1 + number % 3, generator=generator),
        )


def write(root: Path, count: int, **options: Any) -> Path:
    with sg.DatasetWriter(root, varying=["v"], **options) as writer:
        for data in graphs(count):
            writer.write(data)
    return root


@pytest.fixture(scope="module")
def two_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 graphs: 2,500 in the first shard, 500 in the second."""
    root = write(tmp_path_factory.mktemp("two"), 3000, shard_size=2500 * 95)
    counts = [entry.num_graphs for entry in sg.Manifest.read(root).shards]
    assert len(counts) == 2
    assert 2048 < counts[0] < 2600
    return root


def sign(root: Path, keep: str = "") -> None:
    """Makes the manifest know the sizes that files have now, but of the one to keep."""
    manifest = sg.Manifest.read(root)
    shards = [
        e if e.name == keep else replace(e, nbytes=(root / e.name).stat().st_size)
        for e in manifest.shards
    ]
    replace(manifest, shards=tuple(shards)).write(root)


def forge(root: Path, change: Callable[[h5py.File], Any]) -> None:
    with h5py.File(root / "shard-00000.h5", "r+", libver=("v110", "v110")) as file:
        change(file)
    sign(root)


class Flipped:
    """A file with one bit flipped, as long as the block runs."""

    def __init__(self, path: Path, place: int) -> None:
        self.path, self.place = path, place

    def flip(self) -> None:
        with self.path.open("r+b") as file:
            file.seek(self.place)
            (value,) = file.read(1)
            file.seek(self.place)
            file.write(bytes([value ^ 1 << self.place % 8]))

    def __enter__(self) -> None:
        self.flip()

    def __exit__(self, *_: object) -> None:
        self.flip()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_whole_dataset(level: str, compression: str | None, tmp_path: Path) -> None:
    write(tmp_path / "root" / "processed", 5, compression=compression)
    assert sg.verify(tmp_path / "root" / "processed", level=level) == []
    assert sg.verify(str(tmp_path / "root"), level=level) == []


@pytest.mark.parametrize("level", LEVELS)
def test_types_that_a_shard_lacks(level: str, tmp_path: Path) -> None:
    key = ("user", "buys", "item")
    with sg.DatasetWriter(tmp_path, shard_size=40) as writer:
        for number in range(4):
            data = HeteroData()
            data["user"].x = torch.rand(3, 4)
            if number == 3:
                data["item"].x = torch.rand(2, 2)
                data[key].edge_index = torch.tensor([[0, 2], [1, 0]])
            writer.write(data)
    assert len(sg.Manifest.read(tmp_path).shards) == 4
    assert sg.verify(tmp_path, level=level) == []


def test_levels(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be one of quick, structure, full; got 'deep'"):
        sg.verify(tmp_path, level="deep")


def test_needs_neither_torch_nor_pyg(tmp_path: Path) -> None:
    write(tmp_path, 2)
    code = (
        "import sys, shardgraph; print(shardgraph.verify(sys.argv[1], level='full'),"
        "{'torch', 'torch_geometric'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[] set()\n"


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem(message="m"), "m"),
        (Problem(message="m", shard="s"), "s: m"),
        (Problem(message="m", shard="s", column="x"), "s, column 'x': m"),
        (
            Problem(message="m", shard="s", column="x", graphs=range(3, 4)),
            "s, column 'x', graph 3: m",
        ),
        (Problem(message="m", shard="s", graphs=range(3, 9)), "s, graphs 3 to 8: m"),
    ],
)
def test_text(problem: Problem, text: str) -> None:
    assert str(problem) == text


# Quick -------------------------------------------------------------------------------------------


def test_no_dataset(tmp_path: Path) -> None:
    (problem,) = sg.verify(tmp_path)
    assert problem == Problem(
        message=f"{tmp_path} has no manifest.json, so it is not a dataset; "
        "was its conversion interrupted?"
    )


def test_a_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (tmp_path / "manifest.json").write_text('{"generation": NaN}')
    (problem,) = sg.verify(tmp_path)
    assert str(problem) == (
        f"cannot read {tmp_path}/manifest.json: JSON has no number NaN; "
        "restore it, or see `shardgraph repair`"
    )


def test_a_shard_is_not_to_be_removed_for_a_flipped_bit_in_the_manifest(tmp_path: Path) -> None:
    write(tmp_path, 40, shard_size=600)
    path = tmp_path / "manifest.json"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"shard-00001.h5", b"shard-00041.h5"))
    found = [str(problem) for problem in sg.verify(tmp_path)]
    assert found[0].startswith("manifest.json is not as it was written")
    stray, missing = found[1:]
    assert stray.endswith("does not name this shard; keep it until the manifest is restored")
    assert missing.startswith("shard-00041.h5: is missing though the manifest names it; restore it")


def test_a_problem_is_one_line(tmp_path: Path) -> None:
    """Whatever the names are, they neither end it nor steer a terminal."""
    name = "a\nb\x1b[2J"
    with sg.DatasetWriter(tmp_path) as writer:
        writer.write(Data(x=torch.ones(2, 1), **{name: torch.ones(5, 3)}))
    forge(tmp_path, lambda file: file.__delitem__(f"columns/{name}"))
    (problem,) = sg.verify(tmp_path, level="structure")
    assert str(problem) == (
        r"shard-00000.h5, column 'a\nb\x1b[2J': /columns/a\nb\x1b[2J is missing; " + RESTORE
    )
    assert repr(problem.column) == repr(name)


def test_files(tmp_path: Path) -> None:
    write(tmp_path, 40, shard_size=600)
    names = [entry.name for entry in sg.Manifest.read(tmp_path).shards]
    assert len(names) > 2
    size = (tmp_path / names[1]).stat().st_size
    (tmp_path / names[0]).unlink()
    (tmp_path / names[1]).write_bytes((tmp_path / names[1]).read_bytes()[:-7])
    for stray in ("shard-99999.h5", "shard-00000-3.h5", ".shard-00000.h5.tmp-12-ab", "notes.txt"):
        (tmp_path / stray).touch()
    (tmp_path / ".conversion").mkdir()
    left = "was left by a writer that did not end; unless one is at work, remove it"
    assert sg.verify(tmp_path) == [
        Problem(message=f".conversion {left}"),
        Problem(message=f".shard-00000.h5.tmp-12-ab {left}"),
        Problem(
            shard="shard-00000-3.h5", message="the manifest does not name this shard; remove it"
        ),
        Problem(shard="shard-99999.h5", message="the manifest does not name this shard; remove it"),
        Problem(
            shard=names[0],
            message="is missing though the manifest names it; "
            "restore it, or convert the dataset again",
        ),
        Problem(
            shard=names[1],
            message=f"has {size - 7} bytes, the manifest says {size}: it was truncated or "
            "replaced; restore it, or convert the dataset again",
        ),
    ]


def test_an_edited_manifest(tmp_path: Path) -> None:
    write(tmp_path, 2)
    path = tmp_path / "manifest.json"
    doc = json.loads(path.read_text())
    doc["totals"]["num_nodes"] += 1
    path.write_text(json.dumps(doc))
    first, second = sg.verify(tmp_path)
    assert "is not as it was written; if it was edited on purpose" in str(first)
    assert "'num_nodes': 4," in second.message
    assert "'num_nodes': 3," in second.message
    sg.Manifest.read(tmp_path).write(tmp_path)
    assert sg.verify(tmp_path, level="full") == []


# Structure ---------------------------------------------------------------------------------------


def structure(root: Path) -> list[Problem]:
    assert sg.verify(root) == []
    return sg.verify(root, level="structure")


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the writer take edges that join no nodes, as another writer might."""
    encoder = "shardgraph.collate.encode._StoreEncoder.check_edges"
    monkeypatch.setattr(encoder, lambda *_: None)


@pytest.mark.usefixtures("unchecked")
def test_edges_that_leave_their_graph(tmp_path: Path) -> None:
    with sg.DatasetWriter(tmp_path) as writer:
        for number in range(9):
            edges = torch.tensor([[0, 1, 0], [1, 0, 0]])
            edges[1, 2] = 3 if number in {5, 7} else 1
            writer.write(Data(x=torch.rand(2, 1), edge_index=edges))
    assert structure(tmp_path) == [
        Problem(
            shard="shard-00000.h5",
            column="edge_index",
            graphs=range(5, 6),
            message="an edge joins node 3, the graph has 2 nodes (2 such edges in this shard); "
            "correct the raw graphs and convert again",
        )
    ]


@pytest.mark.parametrize("dtype", ["float32", "complex64", "bfloat16", "float8_e4m3fn"])
def test_what_is_called_edge_index_but_holds_no_nodes(dtype: str, tmp_path: Path) -> None:
    values = torch.tensor([[torch.inf, 1.0, 1.0], [torch.nan, 0.0, 7.0]])
    with sg.DatasetWriter(tmp_path) as writer:
        for _ in range(2):
            edges = values.to(getattr(torch, dtype))
            writer.write(Data(x=torch.ones(2, 1), edge_index=edges))
    assert sg.verify(tmp_path, level="full") == []


@pytest.mark.usefixtures("unchecked")
def test_negative_edges(tmp_path: Path) -> None:
    with sg.DatasetWriter(tmp_path, shard_size=20) as writer:
        for low in (0, 0, -1):
            edges = torch.tensor([[0, low], [1, 0]])
            writer.write(Data(x=torch.rand(2, 1), edge_index=edges))
    (problem,) = structure(tmp_path)
    assert (problem.shard, problem.graphs) == ("shard-00002.h5", range(2, 3))
    assert problem.message.startswith("an edge joins node -1, the graph has 2 nodes (1 such")


@pytest.mark.usefixtures("unchecked")
def test_edges_between_types(tmp_path: Path) -> None:
    key = ("user", "buys", "item")
    with sg.DatasetWriter(tmp_path) as writer:
        for item in (1, 4, 5):
            data = HeteroData()
            data["user"].x = torch.rand(2, 1)
            data["item"].x = torch.rand(5, 1)
            data[key].edge_index = torch.tensor([[1], [item]])
            writer.write(data)
    (problem,) = structure(tmp_path)
    assert problem.column == "edge/user__buys__item/edge_index"
    assert problem.graphs == range(2, 3)


class Bipartite(Data):
    """Edges between two sets of nodes, as in PyG's documentation of batching."""

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        if key == "edge_index":
            return torch.tensor([[self.x_s.size(0)], [self.x_t.size(0)]])
        return super().__inc__(key, value, *args, **kwargs)


def test_edges_of_a_class_with_rules_of_its_own(tmp_path: Path) -> None:
    for target, count in ((3, 0), (4, 1)):
        root = tmp_path / str(target)
        with sg.DatasetWriter(root) as writer:
            for n in (4, 5):
                edges = torch.tensor([[1], [target if n == 4 else 0]])
                data = Bipartite(x_s=torch.rand(2, 1), x_t=torch.rand(n, 1), edge_index=edges)
                data.num_nodes = n
                writer.write(data)
        assert [problem.graphs for problem in structure(root)] == [range(1)] * count


def put(path: str, where: Any, value: Any) -> Callable[[h5py.File], None]:
    return lambda file: file[path].__setitem__(where, value)


def narrow(file: h5py.File) -> None:
    attributes = dict(file["columns/small"].attrs)
    del file["columns/small"]
    file["columns/small"] = np.array([1, 200, 3], np.uint8)
    file["columns/small"].attrs.update(attributes)


def test_values_that_the_dtype_cannot_hold(tmp_path: Path) -> None:
    with sg.DatasetWriter(tmp_path) as writer:
        for _ in range(3):
            flag, small = torch.tensor([True]), torch.tensor([5], dtype=torch.int8)
            writer.write(Data(flag=flag, small=small, num_nodes=2))
    forge(tmp_path, put("columns/flag", 1, 2))
    forge(tmp_path, narrow)
    assert [(p.shard, p.column, p.message) for p in structure(tmp_path)] == [
        ("shard-00000.h5", "flag", f"has values that bool cannot hold; {RESTORE}"),
        ("shard-00000.h5", "small", f"has values that int8 cannot hold; {RESTORE}"),
    ]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("num_nodes", "its num_nodes is 6, the manifest says 7"),
        ("num_edges", "its num_edges is 6, the manifest says 7"),
        ("raw_nbytes", "its raw_nbytes is "),
    ],
)
def test_totals_of_a_shard(key: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, 3)
    manifest = sg.Manifest.read(tmp_path)
    (entry,) = manifest.shards
    wrong = replace(entry, **{key: getattr(entry, key) + 1})
    replace(manifest, shards=(wrong,)).write(tmp_path)
    (problem,) = structure(tmp_path)
    assert problem.shard == "shard-00000.h5"
    assert problem.message.startswith(message)


@pytest.mark.parametrize(("key", "value"), [("dtype", "x"), ("row_shape", "[3]"), ("cat_dim", "1")])
def test_what_a_shard_says_of_its_columns(key: str, value: str, tmp_path: Path) -> None:
    write(tmp_path, 3)
    forge(tmp_path, lambda file: file["columns/x"].attrs.__setitem__(key, np.bytes_(value)))
    (problem,) = structure(tmp_path)
    assert problem.message.startswith(f"/columns/x has {key} {value!r}, the schema says")


def test_statistics_of_other_shards(tmp_path: Path) -> None:
    write(tmp_path / "a", 3)
    write(tmp_path / "b", 4)
    other = sg.Manifest.read(tmp_path / "b").statistics
    replace(sg.Manifest.read(tmp_path / "a"), statistics=other).write(tmp_path / "a")
    (problem,) = structure(tmp_path / "a")
    assert problem == Problem(
        message="the manifest's statistics do not fit its shards (number of graphs, sizes of "
        "'node', sizes of 'edge', number of values of 'x', number of values of 'edge_index', "
        "number of values of 'y', number of values of 'flag', number of values of 'v'); "
        "`shardgraph repair` counts anew"
    )


def test_all_that_is_wrong_is_listed(tmp_path: Path) -> None:
    write(tmp_path, 40, shard_size=600)
    manifest = sg.Manifest.read(tmp_path)
    names = [entry.name for entry in manifest.shards]
    starts = np.cumsum([0, *(entry.num_graphs for entry in manifest.shards)]).tolist()

    def harm(file: h5py.File) -> None:
        del file["columns/x"]
        file["columns/x"] = h5py.SoftLink("/columns/y")
        file["ptr/edge"][1] = 1000
        file["columns/flag"][2] = 7
        file["columns/y"].attrs["cat_dim"] = np.bytes_("3")
        file["columns/name"].attrs["axis"] = np.bytes_("nowhere")
        del file["shapes/v"]

    with h5py.File(tmp_path / names[1], "r+", libver=("v110", "v110")) as file:
        harm(file)
    (tmp_path / names[2]).write_bytes(b"")
    (tmp_path / "shard-00099.h5").touch()
    sign(tmp_path, keep=names[2])
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"source"', '"origin"') + " ")
    found = sg.verify(tmp_path, level="structure", workers=3)
    edges = range(starts[1] + 1, starts[1] + 2)
    assert [(p.shard, p.column, p.graphs, p.message.partition(";")[0]) for p in found] == [
        (None, None, None, "manifest.json is not as it was written"),
        ("shard-00099.h5", None, None, "the manifest does not name this shard"),
        (names[1], "x", None, "/columns/x is a soft or external link, which is refused"),
        (names[1], "y", None, "/columns/y has cat_dim '3', the schema says 'None'"),
        (names[1], "ptr/nowhere", None, "/ptr/nowhere is missing"),
        (names[1], "shapes/v", None, "/shapes/v is missing"),
        (names[1], "ptr/edge", edges, "/ptr/edge does not rise from 0"),
        (names[1], "flag", range(starts[1] + 1, starts[1] + 2), "has values that bool cannot hold"),
        (names[2], None, None, found[-1].message.partition(";")[0]),
    ]
    assert found[-1].message.startswith("has 0 bytes, the manifest says ")
    assert all(word in str(p) for p in found for word in [";"])


@pytest.mark.parametrize(
    ("value", "place"),
    [
        pytest.param(-1, 2, id="negative"),
        pytest.param(7, 2, id="falls"),
        pytest.param(3, 0, id="0"),
    ],
)
def test_graphs_of_a_ptr_that_falls(value: int, place: int, tmp_path: Path) -> None:
    with sg.DatasetWriter(tmp_path) as writer:
        for _ in range(5):
            writer.write(Data(x=torch.ones(1, 1)))
    forge(tmp_path, put("ptr/node", place, value))
    (problem,) = structure(tmp_path)
    graphs = {(-1, 2): range(1, 2), (7, 2): range(2, 3), (3, 0): range(1)}[value, place]
    assert (problem.column, problem.graphs) == ("ptr/node", graphs)


def test_graphs_of_shapes_that_lie(tmp_path: Path) -> None:
    write(tmp_path, 6)
    forge(tmp_path, put("shapes/v", (slice(2, 4), 0), 9))
    (problem,) = structure(tmp_path)
    assert (problem.column, problem.graphs) == ("shapes/v", range(2, 4))


# Headers -----------------------------------------------------------------------------------------


def test_quick_reads_headers(tmp_path: Path) -> None:
    write(tmp_path, 40, shard_size=600)
    names = [entry.name for entry in sg.Manifest.read(tmp_path).shards]
    with h5py.File(tmp_path / names[0], "r+", libver=("v110", "v110")) as file:
        file.attrs["num_graphs"] = file.attrs["num_graphs"] + 1
    with h5py.File(tmp_path / names[2], "r+", libver=("v110", "v110")) as file:
        file.attrs["version"] = np.bytes_("2.0")
    sign(tmp_path)
    with Flipped(tmp_path / names[1], 30):
        found = sg.verify(tmp_path)
    assert [problem.shard for problem in found] == names[:3]
    assert "graphs, the manifest says" in found[0].message
    assert "cannot be read as a shard" in found[1].message
    assert "format version 2.0 is not known" in found[2].message


# Ways of looking ---------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_any_number_of_workers_finds_the_same(compression: str | None, tmp_path: Path) -> None:
    write(tmp_path, 60, shard_size=500, compression=compression)
    names = [entry.name for entry in sg.Manifest.read(tmp_path).shards]
    for name in names[::2]:
        data = bytearray((tmp_path / name).read_bytes())
        data[len(data) // 2] ^= 8
        (tmp_path / name).write_bytes(data)
    found = [sg.verify(tmp_path, level="full", duplicates=True, workers=n) for n in (1, 2, 7, None)]
    assert {problem.shard for problem in found[0]} == set(names[::2])
    for other in found[1:]:
        assert (list(other), other.notes) == (list(found[0]), found[0].notes)


def test_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        sg.verify(tmp_path, workers=0)
    with pytest.raises(ValueError, match="duplicates are found at level 'full', got level 'quick'"):
        sg.verify(tmp_path, duplicates=True)


class Bar:
    """Stands for tqdm's bar."""

    def __init__(self, **options: Any) -> None:
        self.options, self.done, self.is_closed = options, 0, False
        BARS.append(self)

    def update(self, count: int) -> None:
        self.done += count

    def close(self) -> None:
        self.is_closed = True


BARS: list[Bar] = []


def test_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    write(tmp_path, 40, shard_size=600)
    sg.verify(tmp_path, level="full", progress=True)
    assert capfd.readouterr() == ("", "")  # not a terminal
    monkeypatch.setattr("tqdm.tqdm", Bar)
    sg.verify(tmp_path, level="full")
    assert BARS == []
    sg.verify(tmp_path, level="full", progress=True)
    (bar,) = BARS
    assert bar.done == bar.options["total"] == sg.Manifest.read(tmp_path).nbytes
    assert bar.options["disable"] is None  # which is tqdm's word for: unless stderr is a terminal
    assert bar.is_closed


def test_a_disk_that_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 40, shard_size=600)

    def fail(path: Path) -> str:
        if path.name == "shard-00001.h5":
            raise OSError(5, "Input/output error", str(path))
        return good(path)

    def look_at(path: Path, *rest: Any) -> Any:
        assert path.name != "shard-00001.h5", "in a map, it would end the process by SIGBUS"
        return look(path, *rest)

    good, look = shard.file_digest, shard.look
    monkeypatch.setattr(shard, "file_digest", fail)
    monkeypatch.setattr(shard, "look", look_at)
    (problem,) = sg.verify(tmp_path, level="full", workers=1)
    assert problem.shard == "shard-00001.h5"
    assert "Input/output error" in problem.message


# Notes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_nan_and_infinite_values_are_noted(compression: str | None, tmp_path: Path) -> None:
    nan, inf = torch.nan, torch.inf
    with sg.DatasetWriter(tmp_path, shard_size=60, compression=compression) as writer:
        for g in range(9):
            writer.write(
                Data(
                    x=torch.tensor([[1.0, nan if g == 4 else 0.0], [-inf if g > 6 else 2.0, 0.0]]),
                    b=torch.tensor([nan if g == 8 else 1.0], dtype=torch.bfloat16),
                    c=torch.tensor([complex(inf, nan) if g == 5 else 0j]),
                    h=torch.tensor([inf if g == 2 else 0.0], dtype=torch.float16),
                    z=torch.tensor([g]),
                    y=float("nan") if g % 3 == 0 else 1.0,
                )
            )
    assert len(sg.Manifest.read(tmp_path).shards) > 3
    for level in ("quick", "structure"):
        assert sg.verify(tmp_path, level=level).notes == []
    found = sg.verify(tmp_path, level="full")
    assert found == []
    assert [str(note) for note in found.notes] == [
        "column 'x': 1 NaN and 2 infinite of 36 values, the first in graph 4",
        "column 'y': 3 NaN and 0 infinite of 9 values, the first in graph 0",
        "column 'b': 1 NaN and 0 infinite of 9 values, the first in graph 8",
        "column 'c': 1 NaN and 1 infinite of 18 values, the first in graph 5",
        "column 'h': 0 NaN and 1 infinite of 9 values, the first in graph 2",
    ]


def test_nan_that_the_statistics_do_not_know(tmp_path: Path) -> None:
    with sg.DatasetWriter(tmp_path) as writer:
        writer.write(Data(x=torch.tensor([[1.0], [torch.nan]])))
    manifest = sg.Manifest.read(tmp_path)
    (x,) = manifest.statistics.columns.values()
    wrong = replace(manifest.statistics, columns={"x": replace(x, observed=np.array([2]))})
    replace(manifest, statistics=wrong).write(tmp_path)
    assert sg.verify(tmp_path, level="structure") == []
    (problem,) = sg.verify(tmp_path, level="full")
    assert "do not fit its shards (number of NaN of 'x')" in problem.message


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_duplicates(compression: str | None, tmp_path: Path) -> None:
    made = list(graphs(12))
    other = made[3].clone()
    other.name = "another"
    wide = made[5].clone()
    wide.big = torch.tensor([1 << 40])
    for data in (*made, other):
        data.big = torch.tensor([3])
    again = [made[2], made[7], other, made[2]]
    with sg.DatasetWriter(
        tmp_path, shard_size=300, varying=["v"], compression=compression
    ) as writer:
        for data in [*made, wide, *again]:
            writer.write(data)
    assert len(sg.Manifest.read(tmp_path).shards) > 3
    assert sg.verify(tmp_path, level="full").notes == []
    found = sg.verify(tmp_path, level="full", duplicates=True)
    assert found == []
    assert [str(note) for note in found.notes] == [
        "graph 13: equals graph 2, by a digest of all its values",
        "graph 14: equals graph 7, by a digest of all its values",
        "graph 16: equals graph 2, by a digest of all its values",
        "3 of 17 graphs equal another",
    ]


def test_duplicates_where_types_are_absent(tmp_path: Path) -> None:
    key = ("user", "buys", "item")
    with sg.DatasetWriter(tmp_path, shard_size=40) as writer:
        for number in (0, 3, 0, 3, 1):
            data = HeteroData()
            data["user"].x = torch.full((3, 4), float(number))
            if number:
                data["item"].x = torch.ones(2, 2)
                data[key].edge_index = torch.tensor([[0, 2], [1, 0]])
            writer.write(data)
    found = sg.verify(tmp_path, level="full", duplicates=True)
    assert [note.graphs for note in found.notes] == [range(2, 3), range(3, 4), None]


def test_many_duplicates_are_counted(tmp_path: Path) -> None:
    with sg.DatasetWriter(tmp_path) as writer:
        for _ in range(3000):
            writer.write(Data(x=torch.ones(1, 1)))
    notes = sg.verify(tmp_path, level="full", duplicates=True).notes
    assert [note.graphs for note in notes[:2]] == [range(1, 2), range(2, 3)]
    assert len(notes) == 21
    assert str(notes[-1]) == "2,999 of 3,000 graphs equal another"


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sg.DatasetWriter(tmp_path) as writer:
        for _ in range(2):
            writer.write(Data(x=torch.tensor([[torch.nan]])))
    assert main(["verify", str(tmp_path), "--level", "full", "--duplicates", "--workers", "2"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines() == [
        f"{tmp_path}: no problem found (full: every byte)",
        "note: column 'x': 2 NaN and 0 infinite of 2 values, the first in graph 0",
        "note: graph 1: equals graph 0, by a digest of all its values",
        "note: 1 of 2 graphs equal another",
    ]
    assert main(["verify", str(tmp_path), "--duplicates"]) == 2
    (tmp_path / "shard-00000.h5").write_bytes(b"")
    assert main(["verify", str(tmp_path), "--no-progress"]) == 1


# Every byte --------------------------------------------------------------------------------------


def arrays(path: Path) -> dict[str, tuple[int, int, int]]:
    """Offset, bytes and rows of every array of a shard."""
    found = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item.id.get_offset(), item.nbytes, len(item)

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return found


def graph_of(path: Path, name: str, row: int) -> int:
    """The graph that a row belongs to, worked out one graph at a time."""
    with h5py.File(path, "r", locking=False) as file:
        if name.startswith("columns/") and (axis := file[name].attrs["axis"].decode()) != "graph":
            ptr = file[f"ptr/{axis}"][:].tolist()
            return next(g for g in range(len(ptr) - 1) if ptr[g] <= row < ptr[g + 1])
        return min(row, int(file.attrs["num_graphs"]) - 1)


def graphs_of(path: Path, name: str, row: int) -> range:
    """The run of graphs that a row belongs to."""
    with h5py.File(path, "r", locking=False) as file:
        num_graphs = int(file.attrs["num_graphs"])
    if name.startswith("ptr/"):
        run = range(row // 1024 * 1024, row // 1024 * 1024 + 1024)
        return range(max(0, run.start - 1), min(num_graphs, run.stop))
    first = graph_of(path, name, row) // 1024 * 1024
    return range(first, min(num_graphs, first + 1024))


@pytest.mark.parametrize("number", [0, 1])
def test_a_flipped_bit_in_any_array(number: int, two_shards: Path) -> None:
    entries = sg.Manifest.read(two_shards).shards
    name, first = entries[number].name, number * entries[0].num_graphs
    path = two_shards / name
    columns = {"x", "edge_index", "flag", "y", "name", "v"}
    found = arrays(path)
    stored = {k.removeprefix("columns/") for k in found if not k.startswith("digests/")}
    assert stored > columns
    assert {f"digests/{k}" for k in found if not k.startswith("digests/")} < found.keys()
    for array, (offset, nbytes, rows) in found.items():
        for place in (0, nbytes // 2, nbytes - 1):
            with Flipped(path, offset + place):
                problems = sg.verify(two_shards, level="full")
            assert {problem.shard for problem in problems} == {name}
            if array.startswith("digests/"):
                column = array.removeprefix("digests/").removeprefix("columns/")
                message = f"its digests are damaged, so it cannot be checked; {RESTORE}"
                assert problems == [Problem(shard=name, column=column, message=message)]
                continue
            local = graphs_of(path, array, place * rows // nbytes)
            wanted = Problem(
                shard=name,
                column=array.removeprefix("columns/"),
                graphs=range(first + local.start, first + local.stop),
                message=DAMAGED,
            )
            # Structure may have seen the fault, too, and found another in what ptr points to.
            assert [problem for problem in problems if problem.message == DAMAGED] == [wanted]
    assert sg.verify(two_shards, level="full") == []


def test_flips_in_several_runs(two_shards: Path) -> None:
    path = two_shards / "shard-00000.h5"
    offset, nbytes, rows = arrays(path)["columns/y"]
    step = nbytes // rows
    with (
        Flipped(path, offset),
        Flipped(path, offset + 1024 * step),
        Flipped(path, offset + 2 * step),
    ):
        problems = sg.verify(two_shards, level="full")
    wanted = Problem(shard=path.name, column="y", graphs=range(2048), message=DAMAGED)
    assert problems == [wanted]
    with Flipped(path, offset), Flipped(path, offset + nbytes - 1):
        problems = sg.verify(two_shards, level="full")
    assert [problem.graphs for problem in problems] == [range(1024), range(2048, rows)]


def test_a_flipped_bit_between_arrays(two_shards: Path) -> None:
    path = two_shards / "shard-00001.h5"
    data = path.read_bytes()
    used = sorted((offset, offset + nbytes) for offset, nbytes, _ in arrays(path).values())
    gap = next(
        stop + 100
        for (_, stop), (start, _) in pairwise(used)
        if start - stop > 200 and not any(data[stop:start])
    )
    with Flipped(path, gap):
        assert sg.verify(two_shards, level="full") == [
            Problem(
                shard=path.name,
                message=f"its bytes are not those that were written, outside its arrays; {RESTORE}",
            )
        ]


def test_a_flipped_bit_in_what_hdf5_keeps(two_shards: Path) -> None:
    path = two_shards / "shard-00001.h5"
    with Flipped(path, 50):  # the superblock's checksum
        first, second = sg.verify(two_shards, level="full")
    assert first.message.startswith("cannot be read as a shard: ")
    assert second == Problem(
        shard=path.name,
        message=f"its bytes are not those that were written, somewhere; {RESTORE}",
    )


def test_a_flipped_bit_in_a_compressed_chunk(tmp_path: Path) -> None:
    write(tmp_path, 2500, compression="gzip")
    path = tmp_path / "shard-00000.h5"
    with h5py.File(path, "r") as file:
        chunks = [file["columns/x"].id.get_chunk_info(i) for i in range(1)]
    for chunk in chunks:
        with Flipped(path, chunk.byte_offset + chunk.size // 2):
            problems = sg.verify(tmp_path, level="full")
        named = [problem for problem in problems if problem.message == DAMAGED]
        assert [(problem.shard, problem.column) for problem in named] == [(path.name, "x")]
        assert named[0].graphs is not None
        assert named[0].graphs.start % 1024 == 0
    assert sg.verify(tmp_path, level="full") == []


# One flipped bit ---------------------------------------------------------------------------------


def stored(path: Path) -> list[tuple[int, int, str, int]]:
    """First byte, end, path and number of first row of every contiguous array or chunk."""
    found = []

    def visit(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset) or not item.size:
            return
        if item.chunks is None:
            found.append((item.id.get_offset(), item.id.get_offset() + item.nbytes, name, -1))
            return
        for number in range(item.id.get_num_chunks()):
            chunk = item.id.get_chunk_info(number)
            place = chunk.byte_offset, chunk.byte_offset + chunk.size
            found.append((*place, name, chunk.chunk_offset[0]))

    with h5py.File(path, "r", locking=False) as file:
        file.visititems(visit)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="forks as Linux does")
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_one_flipped_bit_anywhere_is_found_and_located(
    compression: str | None, tmp_path: Path
) -> None:
    """Bits drawn from all bytes of every file, and one of every array and chunk."""
    write(tmp_path, 2600, shard_size=2500 * 95, compression=compression)
    first = sg.Manifest.read(tmp_path).shards[0].num_graphs
    files = sorted(tmp_path.glob("*.h5"))
    assert len(files) == 2
    draw = random.Random(17)
    places: list[tuple[Path, int]] = []
    for path in [*files, tmp_path / "manifest.json"]:
        size = path.stat().st_size
        places += [(path, draw.randrange(size)) for _ in range(15)]
    for path in files:
        for start, end, _, _ in stored(path):
            places.append((path, draw.randrange(start, end)))
    known = {path: stored(path) for path in files}

    def work() -> list[str]:
        wrong = []
        for path, place in places:
            with Flipped(path, place):
                problems = sg.verify(tmp_path, level="full")
            hit = next((a for a in known.get(path, ()) if a[0] <= place < a[1]), None)
            if (fault := misplaced(path, place, hit, problems, first)) is not None:
                wrong.append(f"{path.name}, byte {place} ({hit}): {fault}: {problems}")
        return wrong

    assert in_child(work) == []
    assert sg.verify(tmp_path, level="full") == []


def misplaced(path: Path, place: int, hit: Any, problems: list[Problem], first: int) -> str | None:
    """What is wrong with where a flipped bit was reported."""
    if path.suffix == ".json":
        named = any("manifest.json" in str(p) for p in problems)
        return None if named else "the manifest is not named"
    if {p.shard for p in problems} != {path.name}:
        return "not of this shard alone"
    if hit is None:  # a header, or between arrays
        return None
    _, _, name, first_row = hit
    column = name.removeprefix("digests/").removeprefix("columns/")
    located = [p for p in problems if p.column == column]
    if first_row >= 0 and not located:  # some bits of a packed chunk mean nothing
        unpacked = [p for p in problems if "outside its arrays" in p.message]
        return None if unpacked else "the column is not named"
    if not located:
        return "the column is not named"
    if name.startswith("digests/"):
        return None
    row = first_row
    if row < 0:
        start, end, _, _ = hit
        with h5py.File(path, "r", locking=False) as file:
            row = (place - start) * len(file[name]) // (end - start)
    graph = graph_of(path, name, row) + (0 if path.name == "shard-00000.h5" else first)
    inside = any(graph in p.graphs for p in located if p.graphs is not None)
    return None if inside else f"graph {graph} is not among them"
