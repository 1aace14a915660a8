"""Opening shards that were damaged, or made to deceive: a clear error, never a crash or a leak."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data

import shardgraph as sg

SHARD = "shard-00000.h5"


def graphs() -> list[Data]:
    generator = torch.Generator().manual_seed(5)
    made = []
    for n in (3, 1, 4):
        edges = torch.randint(n, (2, 2 * n), generator=generator)
        x = torch.randn(n, 2, generator=generator)
        made.append(Data(x=x, edge_index=edges, y=float(n), name="n" * n, v=torch.ones(n, n + 1)))
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "data")


def write(path: Path, compression: str | None = None) -> Path:
    with sg.DatasetWriter(path, varying=["v"], compression=compression) as writer:
        for data in graphs():
            writer.write(data)
    return path


def sign(root: Path) -> None:
    """Makes the manifest name the file as it is now: what somebody who means harm would do."""
    manifest = sg.Manifest.read(root)
    (entry,) = manifest.shards
    entry = replace(entry, nbytes=(root / SHARD).stat().st_size)
    replace(manifest, shards=(entry,)).write(root)


def forge(root: Path, change: Callable[[h5py.File], None]) -> None:
    with h5py.File(root / SHARD, "r+", libver=("v110", "v110")) as file:
        change(file)
    sign(root)


def replaced(path: str, make: Callable[[h5py.File], Any]) -> Callable[[h5py.File], None]:
    """A change that puts another object in the place of one, its attributes kept."""

    def change(file: h5py.File) -> None:
        attributes = {
            k: v for k, v in file[path].attrs.items() if isinstance(v, (bytes, np.bytes_))
        }
        del file[path]
        made = make(file)
        if made is not None:
            for key, value in attributes.items():
                made.attrs[key] = np.bytes_(value)

    return change


def virtual(file: h5py.File) -> h5py.Dataset:
    layout = h5py.VirtualLayout((8, 2), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "secret", (8, 2))
    return file.create_virtual_dataset("columns/x", layout)


def unallocated(file: h5py.File) -> h5py.Dataset:
    space = h5py.h5s.create_simple((1 << 50, 2))
    made = h5py.h5d.create(file.id, b"columns/x", h5py.h5t.IEEE_F32LE, space)
    return h5py.Dataset(made)


def scalar(file: h5py.File) -> h5py.Dataset:
    return file.create_dataset("columns/x", data=np.float32(1))


def null(file: h5py.File) -> h5py.Dataset:
    return file.create_dataset("columns/x", data=h5py.Empty("f4"))


def compact(file: h5py.File) -> h5py.Dataset:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((8, 2))
    made = h5py.h5d.create(file.id, b"columns/x", h5py.h5t.IEEE_F32LE, space, dcpl=plist)
    return h5py.Dataset(made)


def chunked(shape: tuple[int, ...], chunks: tuple[int, ...], **options: Any) -> Any:
    return lambda file: file.create_dataset("columns/x", shape, "f4", chunks=chunks, **options)


def half_written(file: h5py.File) -> h5py.Dataset:
    made = file.create_dataset("columns/x", (8, 2), "f4", chunks=(4, 2))
    made[:4] = 1.0
    return made


def array(path: str, data: Any, **options: Any) -> Callable[[h5py.File], h5py.Dataset]:
    return lambda file: file.create_dataset(path, data=data, **options)


def attribute(path: str, name: str, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        owner = file[path]
        del owner.attrs[name]
        if value is not None:
            owner.attrs[name] = value

    return change


def external_link(file: h5py.File) -> None:
    file["columns/x"] = h5py.ExternalLink("other.h5", "/secret")


def soft_link(file: h5py.File) -> None:
    file["columns/x"] = h5py.SoftLink("/columns/y")


def linked_group(file: h5py.File) -> None:
    file.move("columns", "hidden")
    file["columns"] = h5py.SoftLink("/hidden")


def external_group(file: h5py.File) -> None:
    del file["columns"]
    file["columns"] = h5py.ExternalLink("other.h5", "/")


def group(file: h5py.File) -> None:
    file.create_group("columns/x")


def dataset_for_group(file: h5py.File) -> None:
    del file["columns"]
    file["columns"] = np.zeros(3)


def foreign_filter(file: h5py.File) -> h5py.Dataset:
    return file.create_dataset("columns/x", data=np.zeros((8, 2), "f4"), compression="lzf")


def delete(path: str) -> Callable[[h5py.File], None]:
    return lambda file: file.__delitem__(path)


def put(path: str, where: Any, value: int) -> Callable[[h5py.File], None]:
    return lambda file: file[path].__setitem__(where, value)


ROW = ("ptr/node", [0, 3, 4, 8])
VLEN = h5py.vlen_dtype(np.float32)
RECORD = np.zeros(8, [("a", "f4"), ("b", "f4")])
OBJECTS = np.array([b"text"] * 8, object)

CASES: dict[str, tuple[Callable[[h5py.File], None], type[Exception], str]] = {
    "external link": (
        replaced("columns/x", external_link),
        sg.FormatError,
        "/columns/x is a soft or external link, which is refused",
    ),
    "soft link": (
        replaced("columns/x", soft_link),
        sg.FormatError,
        "/columns/x is a soft or external link, which is refused",
    ),
    "linked group": (linked_group, sg.FormatError, "/columns is a soft or external link"),
    "external group": (external_group, sg.FormatError, "/columns is a soft or external link"),
    "external storage": (
        replaced(
            "columns/x",
            lambda file: file.create_dataset(
                "columns/x", (8, 2), "f4", external=[("x.raw", 0, 64)]
            ),
        ),
        sg.FormatError,
        "/columns/x has a storage layout that is refused",
    ),
    "virtual": (
        replaced("columns/x", virtual),
        sg.FormatError,
        "/columns/x has a storage layout that is refused",
    ),
    "compact": (
        replaced("columns/x", compact),
        sg.FormatError,
        "/columns/x has a storage layout that is refused",
    ),
    "huge, unallocated": (
        replaced("columns/x", unallocated),
        sg.CorruptShardError,
        "/columns/x has no storage for its 9007199254740992 bytes",
    ),
    "scalar": (replaced("columns/x", scalar), sg.FormatError, "/columns/x is not an array"),
    "null": (replaced("columns/x", null), sg.FormatError, "/columns/x is not an array"),
    "bomb": (
        replaced("columns/x", chunked((1 << 40, 2), (1 << 20, 2), compression="gzip")),
        sg.FormatError,
        "/columns/x claims 8796093022208 bytes, more than its chunks can hold",
    ),
    "huge chunks": (
        replaced("columns/x", chunked((1 << 25, 2), (1 << 25, 2), compression="gzip")),
        sg.FormatError,
        "/columns/x has chunks of 268435456 bytes; 67108864 is the most",
    ),
    "chunks missing": (
        replaced("columns/x", half_written),
        sg.CorruptShardError,
        "/columns/x lacks some of its chunks",
    ),
    "foreign filter": (
        replaced("columns/x", foreign_filter),
        sg.FormatError,
        "/columns/x needs HDF5 filter 32000, which is refused",
    ),
    "vlen": (
        replaced("columns/x", lambda file: file.create_dataset("columns/x", (8,), VLEN)),
        sg.FormatError,
        "/columns/x does not hold plain numbers",
    ),
    "vlen text": (
        replaced("columns/x", array("columns/x", OBJECTS, dtype=h5py.string_dtype())),
        sg.FormatError,
        "/columns/x does not hold plain numbers",
    ),
    "references": (
        replaced("columns/x", lambda file: file.create_dataset("columns/x", (8,), h5py.ref_dtype)),
        sg.FormatError,
        "/columns/x does not hold plain numbers",
    ),
    "compound": (
        replaced("columns/x", array("columns/x", RECORD)),
        sg.FormatError,
        "/columns/x does not hold plain numbers",
    ),
    "enum": (
        replaced("columns/x", array("columns/x", np.zeros((8, 2), bool))),
        sg.FormatError,
        "/columns/x does not hold plain numbers",
    ),
    "big-endian": (
        replaced("columns/x", array("columns/x", np.zeros((8, 2), ">f4"))),
        sg.FormatError,
        "/columns/x is big-endian; shards are little-endian",
    ),
    "wide dtype": (
        replaced("columns/x", array("columns/x", np.zeros((8, 2), "f8"))),
        sg.FormatError,
        "/columns/x has dtype float64, the schema says float32",
    ),
    "integers for floats": (
        replaced("columns/x", array("columns/x", np.zeros((8, 2), "i4"))),
        sg.FormatError,
        "/columns/x has dtype int32, the schema says float32",
    ),
    "floats for integers": (
        replaced("columns/edge_index", array("columns/edge_index", np.zeros((16, 2), "f4"))),
        sg.FormatError,
        "/columns/edge_index has dtype float32, the schema says int64",
    ),
    "wrong row shape": (
        replaced("columns/x", array("columns/x", np.zeros((8, 3), "f4"))),
        sg.FormatError,
        "/columns/x has shape [8, 3], must have [*, 2]",
    ),
    "too few rows": (
        replaced("columns/x", array("columns/x", np.zeros((7, 2), "f4"))),
        sg.CorruptShardError,
        "/ptr/node ends at row 8 of column 'x', which has 7 rows",
    ),
    "too few graphs": (
        replaced("columns/y", array("columns/y", np.zeros(2))),
        sg.CorruptShardError,
        "/columns/y has 2 rows for 3 graphs",
    ),
    "group for dataset": (
        replaced("columns/x", group),
        sg.FormatError,
        "/columns/x is not a dataset",
    ),
    "dataset for group": (dataset_for_group, sg.FormatError, "/columns is not a group"),
    "missing column": (delete("columns/x"), sg.CorruptShardError, "/columns/x is missing"),
    "missing columns": (delete("columns"), sg.CorruptShardError, "is missing"),
    "missing ptr": (delete("ptr/node"), sg.CorruptShardError, "/ptr/node is missing"),
    "missing shapes": (delete("shapes/v"), sg.CorruptShardError, "/shapes/v is missing"),
    "missing format": (
        attribute("/", "format", None),
        sg.CorruptShardError,
        "attribute 'format' is missing",
    ),
    "missing axis": (
        attribute("columns/x", "axis", None),
        sg.CorruptShardError,
        "attribute 'axis' is missing",
    ),
    "other format": (
        attribute("/", "format", np.bytes_("other")),
        sg.FormatError,
        "attribute 'format' is not 'shardgraph'",
    ),
    "vlen attribute": (
        attribute("columns/x", "inc", "none"),
        sg.FormatError,
        "attribute 'inc' is not a short text",
    ),
    "number for text": (
        attribute("columns/x", "inc", 1),
        sg.FormatError,
        "attribute 'inc' is not a short text",
    ),
    "texts for text": (
        attribute("columns/x", "inc", np.array([b"none", b"none"])),
        sg.FormatError,
        "attribute 'inc' is not a short text",
    ),
    "overlong attribute": (
        attribute("columns/x", "inc", np.bytes_(b"n" * 5000)),
        sg.FormatError,
        "attribute 'inc' is not a short text",
    ),
    "not UTF-8": (
        attribute("columns/x", "axis", np.bytes_(b"\xff\xfe")),
        sg.CorruptShardError,
        "cannot be read as a shard: 'utf-8' codec",
    ),
    "unknown rule": (
        attribute("columns/x", "inc", np.bytes_("twice")),
        sg.FormatError,
        "/columns/x has increment rule 'twice'",
    ),
    "endpoints without types": (
        attribute("columns/x", "inc", np.bytes_("endpoints")),
        sg.FormatError,
        "/columns/x has increment rule 'endpoints'",
    ),
    "increments missing": (
        attribute("columns/x", "inc", np.bytes_("explicit")),
        sg.CorruptShardError,
        "/inc/x is missing",
    ),
    "unknown axis": (
        attribute("columns/x", "axis", np.bytes_("../../secret")),
        sg.CorruptShardError,
        "/ptr/../../secret is missing",
    ),
    "number of another axis": (
        attribute("columns/y", "axis", np.bytes_("node")),
        sg.FormatError,
        "/columns/y counts axis 'node', must be 'graph'",
    ),
    "number of graphs": (
        attribute("/", "num_graphs", 4),
        sg.CorruptShardError,
        "has 4 graphs, the manifest says 3",
    ),
    "graphs as text": (
        attribute("/", "num_graphs", np.bytes_("3")),
        sg.FormatError,
        "attribute 'num_graphs' is not an integer",
    ),
    "major version": (
        attribute("/", "version", np.bytes_("2.0")),
        sg.FormatError,
        "format version 2.0 is not known to this release",
    ),
    "short ptr": (
        replaced("ptr/node", array("ptr/node", np.array([0, 3, 8]))),
        sg.FormatError,
        "/ptr/node must be contiguous int64 [4], is int64 [3]",
    ),
    "narrow ptr": (
        replaced("ptr/node", array("ptr/node", np.array(ROW[1], np.int32))),
        sg.FormatError,
        "/ptr/node must be contiguous int64 [4], is int32 [4]",
    ),
    "chunked ptr": (
        replaced("ptr/node", array("ptr/node", np.array(ROW[1]), chunks=(4,))),
        sg.FormatError,
        "/ptr/node must be contiguous int64 [4]",
    ),
    "ptr starts late": (put("ptr/node", 0, 1), sg.CorruptShardError, "/ptr/node does not rise"),
    "ptr falls": (put("ptr/node", 2, 2), sg.CorruptShardError, "/ptr/node "),
    "ptr is negative": (put("ptr/node", 1, -3), sg.CorruptShardError, "/ptr/node "),
    "ptr is huge": (put("ptr/node", 1, 1 << 60), sg.CorruptShardError, "/ptr/node "),
    "ptr ends late": (
        put("ptr/node", 3, 1 << 60),
        sg.CorruptShardError,
        "/ptr/node ends at row 1152921504606846976 of column 'x', which has 8 rows",
    ),
    "shape lies": (put("shapes/v", (0, 0), 4), sg.CorruptShardError, "/shapes/v does not fit"),
    "shape is negative": (
        put("shapes/v", slice(0, 1), -3),
        sg.CorruptShardError,
        "/shapes/v does not fit",
    ),
    "shape wraps around": (
        put("shapes/v", slice(0, 1), 1 << 32),
        sg.CorruptShardError,
        "/shapes/v does not fit",
    ),
}


def readers(root: Path) -> dict[str, Callable[[], Any]]:
    dataset = sg.ShardedDataset(root)
    plain = sg.ShardedDataset(root, keys=["x", "edge_index", "y"])
    every = list(range(3))
    return {
        "one": lambda: [dataset[i] for i in every],
        "many": lambda: dataset.__getitems__(every),
        "batch": lambda: next(iter(sg.GraphLoader(plain, batch_size=3))),
    }


# The batch leaves out the attribute of varying shape.
WAYS = [
    (case, how)
    for case, (_, _, message) in CASES.items()
    for how in ("one", "many", "batch")
    if how != "batch" or "shapes" not in message
]


@pytest.mark.parametrize(("case", "how"), WAYS)
def test_refused(case: str, how: str, root: Path) -> None:
    change, kind, message = CASES[case]
    forge(root, change)
    with pytest.raises(kind) as caught:
        readers(root)[how]()
    text = str(caught.value)
    assert message in text
    assert str(root / SHARD) in text
    assert type(caught.value) is kind


@pytest.mark.parametrize("case", CASES)
def test_verify_names_the_shard(case: str, root: Path) -> None:
    change, _, message = CASES[case]
    forge(root, change)
    for level in ("structure", "full"):
        problems = sg.verify(root, level=level)
        assert {problem.shard for problem in problems} == {SHARD}
        assert message in str(problems[0])


def test_the_forge_changes_nothing_else(root: Path) -> None:
    forge(root, lambda _: None)
    found = readers(root)
    assert [data.name for data in found["one"]()] == ["nnn", "n", "nnnn"]
    expected = Batch.from_data_list(graphs(), exclude_keys=["v", "name"])
    batch = found["batch"]()
    for key in ("x", "edge_index", "y", "batch"):
        assert torch.equal(batch[key], expected[key])


def test_external_storage_is_not_read(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"s" * 64)
    os.utime(secret, (1, 1))
    forge(
        root,
        replaced(
            "columns/x",
            lambda file: file.create_dataset(
                "columns/x", (8, 2), "f4", external=[(str(secret), 0, 64)]
            ),
        ),
    )
    with pytest.raises(sg.FormatError, match="storage layout that is refused"):
        sg.ShardedDataset(root)[0]
    assert os.stat(secret).st_atime == 1


def test_a_newer_minor_version_is_read_with_a_warning(root: Path) -> None:
    forge(root, attribute("/", "version", np.bytes_("1.4")))
    with pytest.warns(UserWarning, match=r"format version 1\.4 is newer than 1\.0"):
        assert sg.ShardedDataset(root)[1].name == "n"


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("locking", [True, False, None])
def test_beside_h5py_in_the_same_process(
    compression: str | None, locking: bool | None, tmp_path: Path
) -> None:
    root = write(tmp_path / "data", compression)
    with h5py.File(root / SHARD, "r", locking=locking) as file:
        dataset = sg.ShardedDataset(root)
        assert dataset[2].x.tolist() == file["columns/x"][4:].tolist()
        dataset.close()


# Damage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0, 1, 0.5, -1])
@pytest.mark.parametrize("signed", [False, True])
def test_truncated(share: float, signed: bool, root: Path) -> None:
    path = root / SHARD
    data = path.read_bytes()
    length = {0: 0, 1: 1, 0.5: len(data) // 2, -1: len(data) - 1}[share]
    path.write_bytes(data[:length])
    message = f"{SHARD} has {length} bytes, the manifest says {len(data)}"
    if signed:
        manifest = sg.Manifest.read(root)
        (entry,) = manifest.shards
        replace(manifest, shards=(replace(entry, nbytes=length),)).write(root)
        message = f"{SHARD} cannot be read as a shard: .*(truncated file|signature not found)"
    if signed and length < 2:
        message = f"shard {SHARD} cannot hold 3 graphs in its {length} bytes"
    with pytest.raises(sg.FormatError, match=message):
        sg.ShardedDataset(root)[0]


def test_longer(root: Path) -> None:
    path = root / SHARD
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(sg.CorruptShardError, match="it was truncated or replaced"):
        sg.ShardedDataset(root)[0]


def test_missing(root: Path) -> None:
    (root / SHARD).unlink()
    with pytest.raises(sg.CorruptShardError, match=f"{SHARD} is missing though the manifest names"):
        sg.ShardedDataset(root)[0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_no_shard(root: Path) -> None:
    path = root / SHARD
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(sg.CorruptShardError, match=f"{SHARD} is not a file"):
        sg.ShardedDataset(root)[0]


def test_zeros_for_a_tail_are_found(root: Path) -> None:
    path = root / SHARD
    data = bytearray(path.read_bytes())
    half = len(data) // 2
    data[half:] = bytes(len(data) - half)
    path.write_bytes(data)
    with pytest.raises(sg.CorruptShardError, match=f"{SHARD} cannot be read as a shard"):
        sg.ShardedDataset(root)[0]


def test_size_changed_while_open(root: Path) -> None:
    dataset = sg.ShardedDataset(root)
    assert dataset[0].name == "nnn"
    (root / SHARD).write_bytes((root / SHARD).read_bytes()[:100])
    dataset._pool._next_check = 0.0  # the sizes were looked at a moment ago
    with pytest.raises(sg.CorruptShardError, match=f"{SHARD} has 100 bytes, the manifest says"):
        dataset.__getitems__([0])


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_no_huge_allocation(root: Path) -> None:
    """Claims of 2^60 rows are refused before memory is asked for: here 1 GiB is all there is."""
    script = f"""
import resource, sys, torch, shardgraph as sg
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_open as t
from pathlib import Path
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30),) * 2)
import warnings
for number, case in enumerate(["ptr is huge", "ptr ends late", "huge, unallocated", "bomb"]):
    root = t.write(Path({str(root.parent)!r}) / str(number))
    t.forge(root, t.CASES[case][0])
    for read in t.readers(root).values():
        try:
            read()
        except sg.FormatError:
            continue
        raise SystemExit(case)
"""
    run(script)


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


FLIPS = """
import json, random, sys, warnings
from pathlib import Path
import numpy as np
import shardgraph as sg
warnings.simplefilter("ignore")
root, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
path = root / "shard-00000.h5"
good = path.read_bytes()
draw = random.Random(seed)
allowed = (sg.ShardGraphError, IndexError, ValueError, RuntimeError)
read = missed = refused = 0
for _ in range(count):
    place = draw.randrange(len(good))
    bad = bytearray(good)
    bad[place] ^= 1 << draw.randrange(8)
    path.write_bytes(bad)
    dataset = sg.ShardedDataset(root)
    plain = sg.ShardedDataset(root, keys=["x", "edge_index", "y", "name"])
    for work in (
        lambda: [dataset[i] for i in range(len(dataset))],
        lambda: dataset.__getitems__(range(len(dataset))),
        lambda: list(sg.GraphLoader(plain, batch_size=2)),
        lambda: dataset.sizes,
    ):
        try:
            work()
            read += 1
        except allowed as error:
            refused += 1
    problems = sg.verify(root, level="full")
    missed += not problems
    assert all(problem.shard == path.name for problem in problems), problems
print(json.dumps([read, refused, missed]))
"""


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_single_bits_flipped_anywhere(compression: str | None, tmp_path: Path) -> None:
    """Reading works or raises, the process lives, and a full verification finds every flip."""
    root = write(tmp_path / "data", compression)
    done = subprocess.run(
        [sys.executable, "-c", FLIPS, str(root), "11", "150"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read, refused, missed = json.loads(done.stdout.splitlines()[-1])
    assert missed == 0
    assert read > 0
    assert refused > 0
