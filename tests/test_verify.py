"""Verification: a whole dataset has no problem, and every fault is named with its place."""

import json
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
from torch_geometric.data import Data, HeteroData

import shardgraph as sg
from shardgraph.verify import RESTORE, Problem

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


def sign(root: Path) -> None:
    manifest = sg.Manifest.read(root)
    shards = [replace(e, nbytes=(root / e.name).stat().st_size) for e in manifest.shards]
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


def graphs_of(path: Path, name: str, row: int) -> range:
    """The run of graphs that a row belongs to, worked out one graph at a time."""
    with h5py.File(path, "r") as file:
        num_graphs = int(file.attrs["num_graphs"])
        if name.startswith("ptr/"):
            run = range(row // 1024 * 1024, row // 1024 * 1024 + 1024)
            return range(max(0, run.start - 1), min(num_graphs, run.stop))
        graph = row
        if name.startswith("columns/") and (axis := file[name].attrs["axis"].decode()) != "graph":
            ptr = file[f"ptr/{axis}"][:].tolist()
            graph = next(g for g in range(num_graphs) if ptr[g] <= row < ptr[g + 1])
    return range(graph // 1024 * 1024, min(num_graphs, graph // 1024 * 1024 + 1024))


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
