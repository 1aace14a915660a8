"""Hostile shards: an error that names file and fault, in every way of reading, and nothing else."""

import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from forging import (
    SHARD,
    Change,
    Watch,
    forge,
    graphs,
    in_child,
    info,
    little_memory,
    readers,
    replaced,
    write,
)
from shard_cases import CASES, CHUNKS
from torch_geometric.data import Batch, Data

import shardgraph as sg

FORK = pytest.mark.skipif(sys.platform != "linux", reason="forks as Linux does")
LEVELS = ("structure", "full")


def met(root: Path) -> list[tuple[str, str]]:
    """The class and the text of what each way of reading raises, "none" if nothing."""
    found = []
    for read in readers(root).values():
        try:
            read()
        except sg.ShardGraphError as error:
            found.append((type(error).__name__, str(error)))
        else:
            found.append(("none", ""))
    return found


@pytest.mark.parametrize("compression", [None, "gzip"], ids=["mapped", "gzip"])
@pytest.mark.parametrize("case", CASES)
def test_refused(case: str, compression: str | None, tmp_path: Path) -> None:
    change, kind, message = CASES[case]
    root = write(tmp_path, compression)
    forge(root, change)
    begin = time.monotonic()
    with little_memory():
        found = met(root)
        looked = {level: sg.verify(root, level=level, workers=1) for level in LEVELS}
        status, said = info(root)
    # Only what reads shapes of its own meets a fault in them.
    meets_shapes = {"one", "many"}
    for how, (raised, text) in zip(readers(root), found, strict=True):
        if how in meets_shapes or "/shapes/" not in message:
            if how in {"sizes", "statistics"} and raised == "none":
                continue  # the graphs that these read are not concerned
            assert (how, raised) == (how, kind.__name__)
            assert message in text
            assert str(root / SHARD) in text
    for problems in looked.values():
        assert {problem.shard for problem in problems} == {SHARD}
        assert message in str(problems[0])
        assert str(root) not in str(problems[0])
    assert (status == 1) == (f"{SHARD}" in said)
    assert time.monotonic() - begin < 20


def test_the_forge_changes_nothing_else(tmp_path: Path) -> None:
    root = write(tmp_path)
    forge(root, lambda _: None)
    assert met(root) == [("none", "")] * len(readers(root))
    found = readers(root)
    assert [data.name for data in found["one"]()] == ["nnn", "n", "nnnn"]
    expected = Batch.from_data_list(graphs(), exclude_keys=["v", "name"])
    (batch,) = found["batch"]()
    for key in ("x", "edge_index", "y", "batch"):
        assert torch.equal(batch[key], expected[key])
    assert info(root)[0] == 0


# Chunks ------------------------------------------------------------------------------------------


@FORK
@pytest.mark.parametrize("case", CHUNKS)
def test_chunks(case: str, tmp_path: Path) -> None:
    compression, change, what = CHUNKS[case]
    if compression != "gzip" and importlib.util.find_spec("hdf5plugin") is None:
        pytest.skip("needs hdf5plugin")
    root = write(tmp_path, compression)
    forge(root, change)

    def work() -> Any:
        with little_memory():
            return met(root), sg.verify(root, level="full", workers=1), info(root)[0]

    found, problems, status = in_child(work)
    wanted = f"{root / SHARD}: column x, rows 0 to "
    for how, (raised, text) in zip(readers(root), found, strict=True):
        if how != "sizes":
            assert (how, raised) == (how, "CorruptShardError")
            assert text.startswith(wanted)
            assert text.endswith(f"cannot be decompressed: chunk [0, 0] {what}")
    assert [(p.shard, p.column, p.graphs) for p in problems] == [(SHARD, "x", range(3))]
    assert status == 0  # it reads no values


@pytest.mark.parametrize("compression", ["gzip", "lz4", "zstd"])
def test_chunks_of_every_compression_are_read(compression: str, tmp_path: Path) -> None:
    if compression != "gzip":
        pytest.importorskip("hdf5plugin")
    root = write(tmp_path, compression)
    assert [torch.equal(a.x, b.x) for a, b in zip(readers(root)["one"](), graphs(), strict=True)]
    with h5py.File(root / SHARD, locking=False) as file:
        assert file["columns/x"].chunks == (8, 2)


@pytest.mark.parametrize("chunks", [(3, 2), (8, 1), (5, 1), (1, 2)])
@pytest.mark.parametrize("options", [{}, {"fletcher32": True}, {"compression": "gzip"},
    {"compression": "gzip", "shuffle": True, "fletcher32": True}])  # fmt: skip
def test_chunks_of_other_writers(chunks: Any, options: Any, tmp_path: Path) -> None:
    root = write(tmp_path)
    x = np.concatenate([data.x.numpy() for data in graphs()])
    make = {"data": x, "chunks": chunks, **options}
    forge(root, replaced("columns/x", lambda file: file.create_dataset("columns/x", **make)))
    for read in ("one", "many"):
        assert np.array_equal(np.concatenate([d.x.numpy() for d in readers(root)[read]()]), x)


# What lies outside -------------------------------------------------------------------------------


def links_to(secret: Path) -> dict[str, Change]:
    """Ways to lead a reader to another file."""
    raw = [(str(secret / "raw"), 0, 64)]
    h5 = str(secret / "other.h5")

    def virtual(file: h5py.File) -> h5py.Dataset:
        layout = h5py.VirtualLayout((8, 2), "f4")
        layout[:] = h5py.VirtualSource(h5, "x", (8, 2))
        return file.create_virtual_dataset("columns/x", layout)

    def link(path: str, target: str) -> Change:
        def change(file: h5py.File) -> None:
            if path in file:
                del file[path]
            file[path] = h5py.ExternalLink(h5, target)

        return change

    def soft_to_external(file: h5py.File) -> None:
        del file["columns/x"]
        file["outside"] = h5py.ExternalLink(h5, "/")
        file["columns/x"] = h5py.SoftLink("/outside/x")

    return {
        "external link": link("columns/x", "/x"),
        "external link to ptr": link("ptr/node", "/x"),
        "external group": link("columns", "/"),
        "external digests": link("digests", "/"),
        "external digest": link("digests/columns/x", "/x"),
        "soft to external": soft_to_external,
        "external storage": replaced(
            "columns/x", lambda f: f.create_dataset("columns/x", (8, 2), "f4", external=raw)
        ),
        "virtual": replaced("columns/x", virtual),
    }


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    """A folder beside the dataset, with what a hostile file would like to read."""
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "raw").write_bytes(b"s" * 64)
    with h5py.File(folder / "other.h5", "w") as file:
        file["x"] = np.ones((8, 2), np.float32)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="watches files as Linux does")
@pytest.mark.parametrize("compression", [None, "gzip"], ids=["mapped", "gzip"])
@pytest.mark.parametrize("case", links_to(Path()))
def test_nothing_outside_is_read(
    case: str, compression: str | None, secret: Path, tmp_path: Path
) -> None:
    root = write(tmp_path / "data", compression)
    forge(root, links_to(secret)[case])
    trap = {"external link to ptr": "ptr/node", "external digest": "digests/columns/x"}
    with Watch(secret) as watch, h5py.File(root / SHARD, "r") as file:
        path = trap.get(case, "digests/x" if case == "external digests" else "columns/x")
        assert np.asarray(file[path]).nbytes == 64  # plain HDF5 walks into it
        assert watch.touched()
    with Watch(secret) as watch:
        found = met(root)
        problems = sg.verify(root, level="full", workers=1)
        info(root)
        assert not watch.touched()
    assert [problem.shard for problem in problems].count(SHARD) == len(problems) > 0
    assert "external link" in str(problems) or "storage layout" in str(problems)
    if "digest" not in case:  # which reading does not look at
        assert {raised for raised, _ in found} <= {"FormatError", "none"}
        assert found[0][0] == "FormatError"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("name", ["manifest.json", SHARD])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    root = write(tmp_path)
    (root / name).unlink()
    os.mkfifo(root / name)
    with pytest.raises(sg.FormatError, match=f"{name}.*is not a file"):
        readers(root)["one"]()
    (problem,) = sg.verify(root)
    assert "is not a file" in str(problem)
    for rest in ("", " ") if name == SHARD else ():  # a manifest as it was written, and not
        path = root / "manifest.json"
        path.write_text(path.read_text() + rest)
        with pytest.raises(sg.FormatError, match=f"no shard .* is whole.*{name}: .* not a file"):
            sg.repair(root)
    if name == "manifest.json":
        with pytest.raises(sg.FormatError, match=r"manifest\.json is not a file"):
            sg.repair(root)


def test_rows_that_nothing_can_hold(tmp_path: Path) -> None:
    """They take no bytes, for there are none of them, but NumPy has no such array."""
    shape = (0, 1 << 40, 1 << 40)

    def make(file: h5py.File) -> h5py.Dataset:
        space = h5py.h5s.create_simple(shape)
        file["columns/x"] = h5py.Dataset(
            h5py.h5d.create(file.id, b"made", h5py.h5t.IEEE_F32LE, space)
        )
        file["columns/x"].attrs["row_shape"] = np.bytes_(str(list(shape[1:])))
        return file["columns/x"]

    with sg.DatasetWriter(tmp_path) as writer:
        writer.write(Data(x=torch.ones(0, 3, 0), y=1.0, num_nodes=2))
    forge(tmp_path, replaced("columns/x", make))
    path = tmp_path / "manifest.json"
    doc = json.loads(path.read_text())
    doc["schema"]["stores"][0]["attributes"][0]["column"]["row_shape"] = shape[1:]
    path.write_text(json.dumps(doc))
    message = f"/columns/x has shape {list(shape)}, which nothing can hold"
    for read in (
        lambda: sg.ShardedDataset(tmp_path)[0],
        lambda: list(sg.GraphLoader(sg.ShardedDataset(tmp_path), batch_size=2)),
        lambda: sg.repair(tmp_path),
    ):
        with pytest.raises(sg.FormatError, match=re.escape(message)):
            read()
    assert any(message in str(found) for found in sg.verify(tmp_path, level="structure"))


def test_sizes_that_add_up_to_more_than_64_bits(tmp_path: Path) -> None:
    with sg.DatasetWriter(tmp_path, shard_size=1) as writer:
        for _ in range(2):
            writer.write(Data(y=1.0, num_nodes=2))
    for number in range(2):
        with h5py.File(tmp_path / f"shard-0000{number}.h5", "r+") as file:
            file["ptr/node"][1] = 1 << 62
    found = sg.verify(tmp_path, level="structure")
    assert [str(problem).split(";")[0] for problem in found] == [
        f"shard-0000{number}.h5: its num_nodes is {1 << 62}, the manifest says 2"
        for number in range(2)
    ]


def test_classes_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema names the graphs' class; that module is not run, though it could be imported."""
    root = write(tmp_path / "data")
    (tmp_path / "evil_module.py").write_text("raise SystemExit('code was run')")
    monkeypatch.syspath_prepend(tmp_path)
    text = (root / "manifest.json").read_text()
    for name in ("evil_module:Data", "os:system", "torch_geometric.data.data:Data.__init__"):
        changed = text.replace("torch_geometric.data.data:Data", name)
        assert changed != text
        (root / "manifest.json").write_text(changed)
        assert met(root) == [("none", "")] * len(readers(root))
        assert "evil_module" not in sys.modules
