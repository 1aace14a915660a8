"""The example of SPEC.md is what the code does, and its tables are the code's."""

import json
import re
from pathlib import Path
from typing import Any

import h5py
import pytest

from shardgraph.format import layout, schema
from shardgraph.shards import chunks, digests, inspect, write

SPEC = (Path(layout.__file__).parent / "SPEC.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SPEC, re.DOTALL)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the example's first block was run."""
    root = tmp_path_factory.mktemp("spec")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        exec(blocks("python")[0], {})
    return root


def test_three_lines_of_h5py(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written)
    found = []
    for i in range(2):
        names: dict[str, Any] = {"i": i}
        exec(blocks("python")[1], names)
        found.append(names["x"].tolist())
    assert found == [[[0.5], [1.5], [2.5]], [[3.5], [4.5]]]


def test_listing(written: Path) -> None:
    lines = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith("digests/"):
            attributes = [f"{key}={value.decode()}" for key, value in sorted(item.attrs.items())]
            line = f"{'/' + name:21}{item.dtype!s:9}{list(item.shape)!s:8}{' '.join(attributes)}"
            lines.extend([line.rstrip(), " " * 21 + str(item[:].tolist())])

    with h5py.File(written / "data" / "shard-00000.h5") as file:
        file.visititems(visit)
        assert dict(file.attrs) == {"format": b"shardgraph", "version": b"1.0", "num_graphs": 2}
    assert "\n".join(lines) + "\n" == blocks("text")[0]


def without_versions(doc: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the versions of what wrote it."""
    doc["provenance"]["versions"] = sorted(doc["provenance"]["versions"])
    for owner in (doc, *doc["shards"]):
        assert re.fullmatch("[0-9a-f]{32}", owner.pop("digest"))
    for owner in (doc["totals"], *doc["shards"]):
        assert owner.pop("nbytes") > 0
    return doc


def test_manifest(written: Path) -> None:
    found = json.loads((written / "data" / "manifest.json").read_text())
    assert without_versions(found) == without_versions(json.loads(blocks("json")[0]))


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def table(heading: str) -> list[list[str]]:
    """The rows of the first table after some text."""
    after = SPEC[SPEC.index(heading) :]
    match = re.search(r"\n\|.*?\n\|-.*?\n((?:\|.*\n)+)", after)
    assert match is not None
    return [row.strip("|").split("|") for row in match[1].splitlines()]


def test_kinds() -> None:
    rows = table("An **attribute** is")
    assert {name for row in rows for name in names_in(row[0])} == set(schema.KINDS)
    for row in rows:
        for kind in names_in(row[0]) & schema.PARTS.keys():
            assert set(schema.PARTS[kind]) <= names_in(row[1])


def test_dtypes() -> None:
    names = set()
    for logical, stored in table("**dtypes.**"):
        for name in names_in(logical):
            names.add(name)
            if stored.strip() not in {"the same"} and not stored.strip().startswith("any"):
                assert layout.STORAGE[name] in stored
    spans = {"int16", "int32", "uint16", "uint32"}  # "int8 to int64"
    assert names | spans == set(layout.STORAGE)


def test_rules() -> None:
    assert {name for row in table("names its increments") for name in names_in(row[0])} == {
        write.NO_INC,
        write.NODES_INC,
        write.ENDPOINTS_INC,
        write.EXPLICIT_INC,
    }


def test_paths() -> None:
    paths = [re.sub(r"/<.*", "", next(iter(names_in(row[0])))) for row in table("An HDF5 file.")]
    assert paths == [
        f"/{name}"
        for name in (layout.COLUMNS, layout.PTR, layout.INC, layout.SHAPES, layout.DIGESTS)
    ]


@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("version 1.0", ".".join(map(str, layout.FORMAT_VERSION))),
        ("at most 64 MiB a chunk", chunks.MAX_CHUNK >> 20),
        ("at most 4,096 bytes", f"{inspect.MAX_ATTRIBUTE:,}"),
        ("0 to 1,023", f"{digests.RUN - 1:,}"),
        ("Arrays of 2,048 bytes or more", f"{layout.ALIGNED_FROM:,}"),
        ("a multiple of 4,096", f"{layout.ALIGNMENT:,}"),
    ],
)
def test_numbers(number: str, value: Any) -> None:
    assert number in SPEC
    assert str(value) in number
