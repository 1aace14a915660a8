"""Mutated shards and manifests: our errors come out and nothing else; verify lists, never raises.

The long form is ``SHARDGRAPH_FUZZ=500 python -m pytest tests/hostile/test_fuzz.py``: so many
examples for each test, new ones each time. An example is some mutants in a process of their own, so
that a crash of the HDF5 library is seen, and shrunk by hypothesis.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forging import SHARD, forge, in_child, info, little_memory, readers, replaced, sign, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutation import Base, lookup3, manifests, shards

import shardgraph as sg

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks as Linux does")

EXAMPLES = int(os.environ.get("SHARDGRAPH_FUZZ", "0"))
fuzz = settings(
    max_examples=EXAMPLES or 4,
    derandomize=not EXAMPLES,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def chunked(root: Path) -> Path:
    """A shard whose column x is in several chunks, which have an index."""
    write(root, "gzip")
    x = np.ones((8, 2), np.float32)
    options: Any = {"data": x, "chunks": (3, 2), "compression": "gzip"}
    forge(root, replaced("columns/x", lambda file: file.create_dataset("columns/x", **options)))
    return root


@pytest.fixture(scope="module", params=["mapped", "gzip", "chunked"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a dataset, and its shard."""
    root = tmp_path_factory.mktemp(request.param)
    if request.param == "chunked":
        chunked(root)
    else:
        write(root, None if request.param == "mapped" else "gzip")
    return root, Base.of((root / SHARD).read_bytes(), root / SHARD)


def outcome(root: Path) -> list[str]:
    """Errors that are not ours, from any way of reading, and what verify misses."""
    wrong = []
    with little_memory():
        for how, read in readers(root).items():
            try:
                read()
            except sg.ShardGraphError:
                continue
            except Exception as error:  # noqa: BLE001  # whatever it is, it is to be told
                wrong.append(f"{how}: {type(error).__name__}: {error}")
        for level in ("quick", "structure", "full"):
            problems = sg.verify(root, level=level, workers=1)
        if not problems:
            wrong.append("verify finds nothing")
        info(root)
        wrong += outcome_of_repair(root)
    return wrong


def outcome_of_repair(root: Path) -> list[str]:
    try:
        sg.repair(root, dry_run=True)
    except sg.ShardGraphError:
        return []
    except Exception as error:  # noqa: BLE001
        return [f"repair: {type(error).__name__}: {error}"]
    return []


def test_the_checksum_is_hdf5s(base: Any) -> None:
    _, shard = base
    assert len(shard.blocks) > 20
    assert lookup3(shard.data[:44]) == int.from_bytes(shard.data[44:48], "little")
    if b"FAHD" in shard.data:
        starts = {shard.data[start : start + 4] for start, _ in shard.blocks}
        assert {b"OHDR", b"FAHD", b"FADB"} <= starts


def mutants(of: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    return st.lists(of, min_size=1 if EXAMPLES else 8, max_size=8)


@fuzz
@given(data=st.data())
def test_shards(data: st.DataObject, base: Any) -> None:
    root, shard = base
    drawn = [mutant for mutant in data.draw(mutants(shards(shard))) if mutant != shard.data]
    manifest = (root / "manifest.json").read_bytes()

    def work() -> list[str]:
        wrong = []
        for mutant in drawn:
            (root / SHARD).write_bytes(mutant)
            (root / "manifest.json").write_bytes(manifest)
            if len(mutant) != len(shard.data) and len(mutant) > 40:
                sign(root)
            wrong += outcome(root)
        return wrong

    try:
        assert in_child(work) == []
    finally:
        (root / SHARD).write_bytes(shard.data)
        (root / "manifest.json").write_bytes(manifest)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    root = write(tmp_path_factory.mktemp("manifest"))
    manifest = sg.Manifest.read(root)
    splits = {"train": [[0, 1], [2, 3]], "test": {"bits": "Ag=="}}
    sg.Manifest.from_json({**manifest.to_json(), "splits": splits}).write(root)
    return root, (root / "manifest.json").read_text()


def outcome_of_manifest(root: Path) -> list[str]:
    wrong = []
    with little_memory():
        try:
            dataset = sg.ShardedDataset(root)
            names = [a.name for store in dataset.schema.stores for a in store.attributes]
            keys = [name for name in names if name not in {"v", "name"}]
            plain = sg.ShardedDataset(root, keys=keys)
        except sg.ShardGraphError:
            ways: dict[str, Any] = {}
        else:
            ids = sorted({0, len(dataset) - 1} & set(range(min(len(dataset), 1 << 24))))
            ways = {
                "one": lambda: [dataset[i] for i in ids],
                "many": lambda: dataset.__getitems__(ids),
                "batch": lambda: list(sg.GraphLoader(plain[ids], batch_size=2)),
                "split": lambda: [dataset.split(name)[-1:] for name in dataset.manifest.splits],
                "facts": lambda: (dataset.num_features, dataset.num_classes, dataset.sizes),
                "summary": dataset.get_summary,
            }
        for how, read in ways.items():
            try:
                read()
            except sg.ShardGraphError:
                continue
            except Exception as error:  # noqa: BLE001  # whatever it is, it is to be told
                wrong.append(f"{how}: {type(error).__name__}: {error}")
        if not sg.verify(root, level="full", workers=1):
            wrong.append("verify finds nothing")
        try:
            info(root)
        except Exception as error:  # noqa: BLE001
            wrong.append(f"info: {type(error).__name__}: {error}")
        wrong += outcome_of_repair(root)
    return wrong


@fuzz
@given(data=st.data())
def test_manifests(data: st.DataObject, dataset: tuple[Path, str]) -> None:
    root, text = dataset
    drawn = [m for m in data.draw(mutants(manifests(text))) if m != text.encode()]

    def work() -> list[str]:
        wrong = []
        for mutant in drawn:
            (root / "manifest.json").write_bytes(mutant)
            wrong += outcome_of_manifest(root)
        return wrong

    assert in_child(work) == []
