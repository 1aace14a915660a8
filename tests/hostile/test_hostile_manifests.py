"""Hostile manifests: refused by name and fault, in every way of meeting one, quickly."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from forging import SHARD, Watch, info, little_memory, write

import shardgraph as sg
from shardgraph.format.manifest import is_intact


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "data")


def edited(change: Callable[[Any], Any]) -> Callable[[str], bytes]:
    def edit(text: str) -> bytes:
        doc = json.loads(text)
        change(doc)
        return json.dumps(doc).encode()

    return edit


def shard(**changes: Any) -> Callable[[str], bytes]:
    """A manifest whose one shard has other entries."""
    return edited(lambda doc: doc["shards"][0].update(changes))


CASES: dict[str, tuple[Callable[[str], bytes], str]] = {
    "path above": (shard(name="../secret/shard-00000.h5"), "is not a shard's file name"),
    "absolute path": (shard(name="/secret/shard-00000.h5"), "is not a shard's file name"),
    "path below": (shard(name="x/../shard-00000.h5"), "is not a shard's file name"),
    "backslashes": (shard(name="..\\shard-00000.h5"), "is not a shard's file name"),
    "zero byte": (shard(name="shard-00000.h5\0"), "is not a shard's file name"),
    "digits of other scripts": (
        shard(name="shard-\uff10\uff10\uff10\uff10\uff10.h5"),
        "is not a shard's file name",
    ),
    "duplicate shard": (
        edited(lambda doc: doc["shards"].append(doc["shards"][0])),
        "it names the shard shard-00000.h5 2 times",
    ),
    "missing shard": (shard(name="shard-00001.h5"), "is missing though the manifest names it"),
    "more graphs than bytes": (shard(num_graphs=1 << 40), "cannot hold 1099511627776 graphs"),
    "more graphs and bytes": (
        edited(
            lambda doc: (
                doc["shards"][0].update(num_graphs=1 << 40, nbytes=1 << 60),
                doc["splits"].update(train=[[0, 1 << 40]]),
            )
        ),
        f"bytes, the manifest says {1 << 60}: it was truncated",
    ),
    "deep lists": (lambda _: b"[" * 1_000_000, "recursion"),
    "deep objects": (lambda _: b'{"a":' * 300_000, "recursion"),
    "deep provenance": (
        lambda text: text.replace(
            '"provenance": {', '"provenance": {"a": ' + "[" * 100_000 + "]" * 100_000 + ","
        ).encode(),
        "recursion",
    ),
    "long number": (
        lambda text: text.replace('"generation": 0', '"generation": ' + "9" * 50_000).encode(),
        "integer string conversion",
    ),
    "huge exponent": (
        lambda text: text.replace('"generation": 0', '"generation": 1e999999').encode(),
        "generation must be a non-negative int, got inf",
    ),
    "NaN": (
        lambda text: text.replace('"generation": 0', '"generation": NaN').encode(),
        "JSON has no number NaN",
    ),
    "key twice": (
        lambda text: text.replace('"generation": 0', '"generation": 0, "generation": 0').encode(),
        "an object has the key 'generation' more than once",
    ),
    "name of a shard twice": (
        lambda text: text.replace('"name": "shard', '"name": "x", "name": "shard').encode(),
        "an object has the key 'name' more than once",
    ),
    "wrong type": (edited(lambda doc: doc.update(shards={"0": 1})), "it lacks or garbles an entry"),
    "no text": (lambda _: b"\xff\xfe{}", "'utf-8' codec can't decode"),
    "zeros": (lambda _: bytes(100_000), "Expecting value"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str, root: Path) -> None:
    make, message = CASES[case]
    path = root / "manifest.json"
    path.write_bytes(make(path.read_text()))
    begin = time.monotonic()
    with little_memory():
        with pytest.raises(sg.FormatError) as caught:
            sg.ShardedDataset(root)[0]
        problems = sg.verify(root, level="full", workers=1)
        status, said = info(root)
    assert message in str(caught.value)
    assert str(root) in str(caught.value)
    assert any(message in str(problem) for problem in problems)
    assert (status, message in said) == (1, True)
    assert time.monotonic() - begin < 10


@pytest.mark.skipif(sys.platform != "linux", reason="watches files as Linux does")
@pytest.mark.parametrize("name", ["../secret/shard-00000.h5", "/secret/shard-00000.h5"])
def test_no_path_leads_outside(name: str, root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    os.link(root / SHARD, secret / SHARD)
    path = root / "manifest.json"
    name = name.replace("/secret", f"{tmp_path}/secret") if name.startswith("/") else name
    path.write_bytes(shard(name=name)(path.read_text()))
    with Watch(secret) as watch:
        h5py.File(root / name, locking=False).close()
        assert watch.touched()  # the trap works
        with pytest.raises(sg.FormatError, match="is not a shard's file name"):
            sg.ShardedDataset(root)
        sg.verify(root, level="full")
        info(root)
        assert not watch.touched()


def test_a_directory_for_a_manifest(root: Path) -> None:
    (root / "manifest.json").unlink()
    (root / "manifest.json").mkdir()
    with pytest.raises(sg.FormatError, match=r"cannot read .*manifest\.json.* is not a file"):
        sg.ShardedDataset(root)
    assert "is not a file" in str(sg.verify(root)[0])


def test_its_digest_says_that_it_was_edited(root: Path) -> None:
    """An edited manifest is read, as the format has it, and verify tells."""
    path = root / "manifest.json"
    path.write_bytes(edited(lambda doc: doc["provenance"].update(by="me"))(path.read_text()))
    assert not is_intact(path.read_bytes())
    assert sg.ShardedDataset(root)[0].name == "nnn"
    (problem,) = sg.verify(root, level="full")
    assert problem.message.startswith("manifest.json is not as it was written")
