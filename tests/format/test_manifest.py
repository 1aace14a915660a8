"""The manifest: what is written is what is read, and what is read is not trusted."""

import copy
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardgraph.errors import FormatError
from shardgraph.format import Manifest, Schema, ShardEntry
from shardgraph.format.manifest import check_version, is_intact
from shardgraph.format.schema import Attribute, Column, Store
from shardgraph.format.statistics import Statistics

COLUMN = Column(name="x", dtype="float32", row_shape=(2,))
STORE = Store(
    key=None,
    attributes=(Attribute(name="x", kind="tensor", column=COLUMN),),
    counts_nodes=True,
)
SCHEMA = Schema(data_class="torch_geometric.data.data:Data", is_hetero=False, stores=(STORE,))


def entry(number: int, num_graphs: int) -> ShardEntry:
    return ShardEntry(
        name=f"shard-{number:05d}.h5",
        num_graphs=num_graphs,
        num_nodes=3 * num_graphs,
        num_edges=0,
        nbytes=1000,
        raw_nbytes=24 * num_graphs,
        digest=f"{number:032x}",
    )


def manifest() -> Manifest:
    nodes = np.full(5, 3)
    statistics = Statistics.of_shard(
        SCHEMA,
        {"x": np.ones((15, 2), np.float32)},
        {"node": nodes, "edge": 0 * nodes},
        {"x": nodes},
    )
    return Manifest(
        schema=SCHEMA,
        shards=(entry(0, 4), entry(1, 1)),
        statistics=statistics,
        splits={"train": [[0, 2], [3, 5]], "test": [[2, 3]], "none": []},
        provenance={"source": "a folder", "versions": {"numpy": "2"}},
        generation=2,
    )


def test_round_trip(tmp_path: Path) -> None:
    wanted = manifest()
    wanted.write(tmp_path)
    assert os.listdir(tmp_path) == ["manifest.json"]
    assert Manifest.read(tmp_path) == wanted
    assert Manifest.read(str(tmp_path)) == wanted


def test_json(tmp_path: Path) -> None:
    manifest().write(tmp_path)
    data = (tmp_path / "manifest.json").read_bytes()
    doc = json.loads(data)
    digest = doc.pop("digest")
    assert data.endswith(f'"digest": "{digest}"\n}}\n'.encode())
    assert doc == manifest().to_json()
    statistics = doc.pop("statistics")
    assert Statistics.from_json(statistics) == manifest().statistics
    assert doc == {
        "format": "shardgraph",
        "version": "1.0",
        "generation": 2,
        "totals": {
            "num_graphs": 5,
            "num_nodes": 15,
            "num_edges": 0,
            "nbytes": 2000,
            "raw_nbytes": 120,
        },
        "schema": {
            "class": "torch_geometric.data.data:Data",
            "hetero": False,
            "stores": [
                {
                    "key": None,
                    "attributes": [
                        {
                            "name": "x",
                            "kind": "tensor",
                            "column": {
                                "name": "x",
                                "dtype": "float32",
                                "row_shape": [2],
                                "cat_dim": 0,
                                "inc_shape": [],
                                "per_graph": False,
                            },
                        }
                    ],
                    "counts_nodes": True,
                }
            ],
        },
        "shards": [
            {
                "name": f"shard-0000{number}.h5",
                "num_graphs": graphs,
                "num_nodes": 3 * graphs,
                "num_edges": 0,
                "nbytes": 1000,
                "raw_nbytes": 24 * graphs,
                "digest": f"{number:032x}",
            }
            for number, graphs in ((0, 4), (1, 1))
        ],
        "splits": {"train": [[0, 2], [3, 5]], "test": [[2, 3]], "none": []},
        "provenance": {"source": "a folder", "versions": {"numpy": "2"}},
    }


def test_its_digest_finds_every_flipped_bit(tmp_path: Path) -> None:
    manifest().write(tmp_path)
    data = (tmp_path / "manifest.json").read_bytes()
    assert is_intact(data)
    assert not is_intact(b"")
    assert not is_intact(data[:-1])
    assert not is_intact(data + b"\n")
    for place in range(len(data)):
        bad = bytearray(data)
        bad[place] ^= 1 << place % 8
        assert not is_intact(bytes(bad))


def test_an_edited_manifest_reads(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    manifest().write(tmp_path)
    doc = json.loads(path.read_text())
    doc["splits"]["more"] = [[0, 5]]
    del doc["digest"]
    path.write_text(json.dumps(doc))
    found = Manifest.read(tmp_path)
    assert found == replace(manifest(), splits={**manifest().splits, "more": [[0, 5]]})
    assert not is_intact(path.read_bytes())
    found.write(tmp_path)
    assert is_intact(path.read_bytes())


def test_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest().write(tmp_path)
    before = (tmp_path / "manifest.json").read_bytes()

    def fail(*_: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        replace(manifest(), generation=3).write(tmp_path)
    assert os.listdir(tmp_path) == ["manifest.json"]
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_with_provenance() -> None:
    found = manifest().with_provenance(seed=7, source="another")
    expected = {"source": "another", "versions": {"numpy": "2"}, "seed": 7}
    assert found == replace(manifest(), provenance=expected)


# Foreign manifests -------------------------------------------------------------------------------


def at(*path: Any, value: Any) -> Callable[[Any], Any]:
    """A change of one entry of a manifest's document; ``...`` removes it."""

    def change(doc: Any) -> Any:
        doc = copy.deepcopy(doc)
        owner = doc
        for key in path[:-1]:
            owner = owner[key]
        if value is ...:
            del owner[path[-1]]
        else:
            owner[path[-1]] = value
        return doc

    return change


COLUMN_AT = ("schema", "stores", 0, "attributes", 0, "column")
ATTRIBUTE_AT = COLUMN_AT[:-1]
X = {"name": "x", "kind": "tensor", "column": COLUMN.to_json()}
FOREIGN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "not an object": (lambda _: [1], "it is not a shardgraph manifest"),
    "other format": (at("format", value="zarr"), "it is not a shardgraph manifest"),
    "no version": (at("version", value=...), "None is no format version, such as 1.0"),
    "odd version": (at("version", value="one"), "'one' is no format version"),
    "major version": (
        at("version", value="2.0"),
        "format version 2.0 is not known to this release",
    ),
    "old major version": (at("version", value="0.9"), "format version 0.9 is not known"),
    "no schema": (at("schema", value=...), "it lacks or garbles an entry: KeyError('schema')"),
    "no statistics": (at("statistics", value=...), "KeyError('statistics')"),
    "no splits": (at("splits", value=...), "KeyError('splits')"),
    "shards a number": (at("shards", value=3), "it lacks or garbles an entry: TypeError"),
    "absolute name": (
        at("shards", 0, "name", value="/etc/passwd"),
        "'/etc/passwd' is not a shard's",
    ),
    "name above": (
        at("shards", 0, "name", value="../shard-00000.h5"),
        "'../shard-00000.h5' is not a shard's file name, such as shard-00000.h5",
    ),
    "name below": (at("shards", 0, "name", value="a/shard-00000.h5"), "is not a shard's file name"),
    "name with a line": (
        at("shards", 0, "name", value="shard-00000.h5\n"),
        "is not a shard's file",
    ),
    "name not text": (at("shards", 0, "name", value=7), "it lacks or garbles an entry: TypeError"),
    "twice": (
        at("shards", 1, "name", value="shard-00000.h5"),
        "it names the shard shard-00000.h5 2 times",
    ),
    "negative graphs": (at("shards", 0, "num_graphs", value=-4), "counts must be non-negative"),
    "graphs not whole": (at("shards", 0, "num_graphs", value=4.0), "counts must be non-negative"),
    "graphs true": (at("shards", 0, "num_graphs", value=True), "counts must be non-negative"),
    "too many graphs": (
        at("shards", 0, "num_graphs", value=1 << 63),
        "counts must be non-negative",
    ),
    "nodes beyond 64 bits": (
        lambda doc: at("shards", 0, "num_nodes", value=1 << 62)(
            at("shards", 1, "num_nodes", value=1 << 62)(doc)
        ),
        "its shards add up to more than 64 bits hold",
    ),
    "digest": (at("shards", 0, "digest", value="xyz"), "digest must be 32 hexadecimal digits"),
    "generation": (at("generation", value="1"), "generation must be a non-negative int, got '1'"),
    "provenance": (at("provenance", value=[]), "provenance must be an object, got list"),
    "splits a list": (at("splits", value=[]), "splits must be an object, got list"),
    "split of ids": (at("splits", "train", value=[0, 1]), "split 'train' must be a list of [start"),
    "split backwards": (at("splits", "train", value=[[3, 2]]), "split 'train' must be a list of"),
    "split below": (at("splits", "train", value=[[-1, 2]]), "within the 5 graphs"),
    "split beyond": (at("splits", "train", value=[[0, 6]]), "within the 5 graphs"),
    "split huge": (at("splits", "train", value=[[0, 1 << 60]]), "within the 5 graphs"),
    "split of floats": (at("splits", "train", value=[[0, 2.0]]), "within the 5 graphs"),
    "dtype": (at(*COLUMN_AT, "dtype", value="object"), "column 'x' has unknown dtype 'object'"),
    "row shape": (at(*COLUMN_AT, "row_shape", value=[-1]), "extents must not be negative: (-1,)"),
    "row shape of text": (at(*COLUMN_AT, "row_shape", value=["2"]), "extents must not be negative"),
    "inc shape": (at(*COLUMN_AT, "inc_shape", value=[-2]), "extents must not be negative: (2, -2)"),
    "cat_dim": (at(*COLUMN_AT, "cat_dim", value="0"), "cat_dim must be an int, got '0'"),
    "per_graph": (at(*COLUMN_AT, "per_graph", value=1), "name must be text and per_graph a bool"),
    "kind": (at(*ATTRIBUTE_AT, "kind", value="pickle"), "attribute 'x' has unknown kind 'pickle'"),
    "leaf without column": (at(*ATTRIBUTE_AT, "column", value=...), "leaf without column"),
    "number of a tensor": (
        at(*ATTRIBUTE_AT, "kind", value="int"),
        "attribute 'x' of kind 'int' is stored as Column",
    ),
    "text of floats": (at(*ATTRIBUTE_AT, "kind", value="str"), "of kind 'str' is stored as Column"),
    "parts of a leaf": (
        at(*ATTRIBUTE_AT, "items", value=[{"name": "a", "kind": "dict", "items": []}]),
        "attribute 'x' of kind 'tensor' has parts ('a',)",
    ),
    "parts of a sparse tensor": (
        at("schema", "stores", 0, "attributes", 0, value={"name": "a", "kind": "sparse_coo"}),
        "attribute 'a' of kind 'sparse_coo' has parts ()",
    ),
    "name of an attribute": (at(*ATTRIBUTE_AT, "name", value=3), "name must be text, got 3"),
    "key": (at("schema", "stores", 0, "key", value=["a", "b"]), "a store's key must be None"),
    "typed key": (at("schema", "stores", 0, "key", value="a"), "cannot have stores ['a']"),
    "two stores": (
        lambda doc: at("schema", "stores", value=doc["schema"]["stores"] * 2)(doc),
        "a dataset of class torch_geometric.data.data:Data cannot have stores [None, None]",
    ),
    "no store": (at("schema", "stores", value=[]), "has a store of key null, which this one lacks"),
    "no global store": (
        lambda doc: at("schema", "stores", 0, "key", value="a")(
            at("schema", "hetero", value=True)(doc)
        ),
        "has a store of key null, which this one lacks",
    ),
    "column twice": (
        at("schema", "stores", 0, "attributes", value=[X, X]),
        "two attributes would share the column 'x'",
    ),
    "class": (at("schema", "class", value=None), "the schema's class must be text"),
    "hetero": (at("schema", "hetero", value="no"), "hetero a bool"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_foreign(case: str, tmp_path: Path) -> None:
    change, message = FOREIGN[case]
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(change(manifest().to_json())))
    with pytest.raises(FormatError) as caught:
        Manifest.read(tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"cannot read {path}: ")
    assert type(caught.value) is FormatError


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "Expecting value", id="empty"),
        pytest.param(b"\0" * 100, "Expecting value", id="zeros"),
        pytest.param(b'{"format": "shardgraph", ', "Expecting property name", id="truncated"),
        pytest.param(b"\xff\xfe", "'utf-8' codec can't decode", id="not UTF-8"),
        pytest.param(b"[" * 200_000, "recursion", id="deep"),
        pytest.param(b'{"a":' * 200_000, "recursion", id="deep objects"),
        pytest.param(b'{"generation": ' + b"9" * 5000 + b"}", "integer string", id="long number"),
    ],
)
def test_not_a_manifest(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=f"cannot read {path}: .*{message}"):
        Manifest.read(tmp_path)


def test_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "shard-00000.h5").touch()
    message = "has no manifest.json, so it is not a dataset; was its conversion interrupted"
    for path in (tmp_path, tmp_path / "shard-00000.h5"):
        with pytest.raises(FormatError, match=f"{path} {message}"):
            Manifest.read(path)
    message = "absent does not exist, so there is no dataset in it"
    with pytest.raises(FormatError, match=message):
        Manifest.read(tmp_path / "absent")


@pytest.mark.parametrize("file", ["processed/data.pt", "data_0.pt"])
def test_no_manifest_but_files_of_pyg(tmp_path: Path, file: str) -> None:
    (tmp_path / "processed").mkdir()
    (tmp_path / file).touch()
    message = (
        f"has no manifest.json, .* PyG, which `shardgraph convert {tmp_path} OUT` makes a data"
    )
    with pytest.raises(FormatError, match=message):
        Manifest.read(tmp_path)


def test_a_newer_minor_version_is_read_with_a_warning(tmp_path: Path) -> None:
    doc = {**manifest().to_json(), "version": "1.7", "new": {"key": 1}}
    (tmp_path / "manifest.json").write_text(json.dumps(doc))
    with pytest.warns(UserWarning, match=r"format version 1\.7 is newer than 1\.0, .* is ignored"):
        assert Manifest.read(tmp_path) == manifest()


@pytest.mark.parametrize("version", ["1.0"])
def test_versions_that_are_known(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["", "1", "1.0.0", "1.x", None, 1, 1.5j, "v1.0"])
def test_what_is_no_version(version: object) -> None:
    with pytest.raises(FormatError, match=r"is no format version, such as 1\.0"):
        check_version(version)
