"""The manifest: ``manifest.json``, written last; a directory without one is not a dataset."""

from __future__ import annotations

import json
import re
import stat
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardgraph.atomic import UNFINISHED, digest128, write_text
from shardgraph.errors import FormatError
from shardgraph.format.layout import FORMAT_NAME, FORMAT_VERSION, MANIFEST_NAME, SHARD_PATTERN
from shardgraph.format.schema import Schema
from shardgraph.format.splits import is_split
from shardgraph.format.statistics import Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """What the manifest says of one shard."""

    name: str
    num_graphs: int
    num_nodes: int
    num_edges: int
    nbytes: int
    """Size of the file."""
    raw_nbytes: int
    """Bytes of all values in their own dtypes, before integers were narrowed or compressed."""
    digest: str
    """xxh3_128 of the whole file, hexadecimal."""

    def __post_init__(self) -> None:
        if SHARD_PATTERN.fullmatch(self.name) is None:
            raise FormatError(f"{self.name!r} is not a shard's file name, such as shard-00000.h5")
        if re.fullmatch("[0-9a-f]{32}", self.digest) is None:
            raise FormatError(f"shard {self.name}: digest must be 32 hexadecimal digits")
        counts = (self.num_graphs, self.num_nodes, self.num_edges, self.nbytes, self.raw_nbytes)
        if not all(type(count) is int and 0 <= count < 1 << 63 for count in counts):
            raise FormatError(f"shard {self.name}: counts must be non-negative integers: {counts}")

    def check_room(self, schema: Schema) -> None:
        """Checks that a file of so many bytes can hold so many graphs.

        Raises:
            FormatError: if it cannot.
        """
        least = 8 if schema.size_axes else 1  # bytes of ptr that every graph takes
        if self.num_graphs * least > self.nbytes:
            raise FormatError(
                f"shard {self.name} cannot hold {self.num_graphs} graphs in its {self.nbytes} bytes"
            )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, as in SPEC.md."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, doc: dict[str, Any]) -> ShardEntry:
        """The inverse of ``to_json``; KeyError or TypeError where an entry is missing or odd."""
        return cls(**{name: doc[name] for name in cls.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that is known of a dataset without opening a shard.

    Example:
        >>> import shardgraph as sg
        >>> sg.Manifest.read("no/such/dataset")
        Traceback (most recent call last):
        ...
        shardgraph.errors.FormatError: no/such/dataset does not exist, so there is no dataset in it
    """

    schema: Schema
    shards: tuple[ShardEntry, ...]
    statistics: Statistics
    splits: Mapping[str, Any] = field(default_factory=dict)
    """Named subsets: name to graph ids, as ``pack_split`` gives them."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Where the data came from: source, options, versions, seed."""
    generation: int = 0
    """How often this directory's dataset has been overwritten; part of the shards' names."""

    @property
    def num_graphs(self) -> int:
        """Number of graphs."""
        return sum(shard.num_graphs for shard in self.shards)

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all graphs and types."""
        return sum(shard.num_nodes for shard in self.shards)

    @property
    def num_edges(self) -> int:
        """Number of edges of all graphs and types."""
        return sum(shard.num_edges for shard in self.shards)

    @property
    def nbytes(self) -> int:
        """Bytes of all shards on disk."""
        return sum(shard.nbytes for shard in self.shards)

    @property
    def raw_nbytes(self) -> int:
        """Bytes of all values in their own dtypes."""
        return sum(shard.raw_nbytes for shard in self.shards)

    def with_provenance(self, **more: Any) -> Manifest:
        """The same manifest with entries added to its provenance."""
        return replace(self, provenance={**self.provenance, **more})

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, as in SPEC.md."""
        return {
            "format": FORMAT_NAME,
            "version": ".".join(map(str, FORMAT_VERSION)),
            "generation": self.generation,
            "totals": {
                "num_graphs": self.num_graphs,
                "num_nodes": self.num_nodes,
                "num_edges": self.num_edges,
                "nbytes": self.nbytes,
                "raw_nbytes": self.raw_nbytes,
            },
            "schema": self.schema.to_json(),
            "shards": [shard.to_json() for shard in self.shards],
            "splits": dict(self.splits),
            "provenance": dict(self.provenance),
            "statistics": self.statistics.to_json(),
        }

    @classmethod
    def from_json(cls, doc: Any) -> Manifest:
        """The manifest that a JSON document describes.

        Raises:
            FormatError: if the document is not one, or is of an unknown major version.
        """
        if not isinstance(doc, dict) or doc.get("format") != FORMAT_NAME:
            raise FormatError('it is not a shardgraph manifest: no "format": "shardgraph"')
        check_version(doc.get("version"))
        try:
            manifest = cls(
                schema=Schema.from_json(doc["schema"]),
                shards=tuple(ShardEntry.from_json(shard) for shard in doc["shards"]),
                statistics=Statistics.from_json(doc["statistics"]),
                splits=doc["splits"],
                provenance=doc["provenance"],
                generation=doc["generation"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"it lacks or garbles an entry: {error!r}") from error
        manifest._check_parts()
        return manifest

    def _check_parts(self) -> None:
        """Checks what its parts do not themselves: names, generation, provenance and splits."""
        names = Counter(shard.name for shard in self.shards)
        for name, count in names.most_common(1):
            if count > 1:
                raise FormatError(f"it names the shard {name} {count} times")
        for shard in self.shards:
            shard.check_room(self.schema)
        sums = (self.num_nodes, self.num_edges, self.nbytes, self.raw_nbytes)
        if float(max(sums)) >= 1 << 63:  # as a histogram of them has it
            raise FormatError("its shards add up to more than 64 bits hold")
        if type(self.generation) is not int or self.generation < 0:
            raise FormatError(f"generation must be a non-negative int, got {self.generation!r}")
        for name, value in (("splits", self.splits), ("provenance", self.provenance)):
            if not isinstance(value, dict):
                raise FormatError(f"{name} must be an object, got {type(value).__name__}")
        for name, value in self.splits.items():
            if not is_split(value, self.num_graphs):
                raise FormatError(
                    f"split {name!r} must be a list of [start, stop) ranges within the "
                    f"{self.num_graphs} graphs, or a bit for each of them"
                )

    @classmethod
    def read(cls, root: str | Path) -> Manifest:
        """The manifest of the dataset in directory ``root``.

        Raises:
            FormatError: if there is none, or it cannot be read as one.
        """
        path = Path(root) / MANIFEST_NAME
        try:
            data = regular_bytes(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FormatError(_absence(Path(root))) from error
        except OSError as error:
            raise FormatError(f"cannot read {path}: {error}") from error
        try:
            return cls.from_json(parse_json(data))
        except (FormatError, ValueError, RecursionError) as error:
            raise FormatError(f"cannot read {path}: {error}") from error

    def write(self, root: str | Path) -> None:
        """Publishes the manifest in directory ``root``, atomically: the commit of a dataset."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        # Python reads a file name that is not UTF-8 as lone surrogates: they stay JSON's escapes.
        text = text.encode("utf-8", "backslashreplace").decode()
        head = text.removesuffix("\n}") + ",\n "
        write_text(Path(root) / MANIFEST_NAME, head + _digest_entry(head.encode()))


def dataset_directory(root: Path) -> Path:
    """Where the manifest is: in ``root``, or in its ``processed/`` if only that has one."""
    processed = root / "processed"
    only_there = not (root / MANIFEST_NAME).exists() and (processed / MANIFEST_NAME).exists()
    return processed if only_there else root


def _absence(root: Path) -> str:
    """Why there is no manifest at ``root``, as far as can be told, and what to do."""
    if not root.exists():
        return f"{root} does not exist, so there is no dataset in it"
    if (root / UNFINISHED).is_dir():
        why = "its conversion was interrupted: run the same command again to go on"
    elif any(next(folder.glob("*.pt"), None) for folder in (root, root / "processed")):
        why = f"it holds files of PyG, which `shardgraph convert {root} OUT` makes a dataset of"
    else:
        why = "was its conversion interrupted?"
    return f"{root} has no {MANIFEST_NAME}, so it is not a dataset; {why}"


def regular_bytes(path: Path) -> bytes:
    """What a file holds; a pipe or a device, which may never end, is not opened.

    Raises:
        OSError: if it is none, or cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path} is not a file")
    return path.read_bytes()


def parse_json(data: bytes) -> Any:
    """The document of a JSON text, read as strictly as JSON is meant.

    Raises:
        ValueError: if it is none, says a key twice, or has a number that JSON has not.
        RecursionError: if it is nested too deeply.
    """
    return json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refused)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        raise ValueError(f"an object has the key {twice[0]!r} more than once")
    return found


def _refused(constant: str) -> None:
    raise ValueError(f"JSON has no number {constant}")


def is_intact(data: bytes) -> bool:
    """Whether a manifest's bytes are those that were written: its last entry is their digest.

    A manifest edited by hand is not; it reads as any other.
    """
    head, key, _ = data.rpartition(b'"digest":')
    return bool(key) and data == head + _digest_entry(head).encode()


def _digest_entry(head: bytes) -> str:
    """The end of a manifest whose text is ``head`` up to here."""
    return f'"digest": "{digest128(head)}"\n}}\n'


def check_version(version: object) -> None:
    """Accepts a format version: warns at an unknown minor one, refuses an unknown major one.

    Raises:
        FormatError: if the major version is unknown, or the text is no version.
    """
    ours = ".".join(map(str, FORMAT_VERSION))
    try:
        major, minor = (int(part) for part in str(version).split("."))
    except ValueError:
        raise FormatError(f"{version!r} is no format version, such as {ours}") from None
    if major != FORMAT_VERSION[0]:
        raise FormatError(
            f"format version {version} is not known to this release, which reads {ours}; "
            "upgrade shardgraph"
        )
    if minor > FORMAT_VERSION[1]:
        warnings.warn(
            f"format version {version} is newer than {ours}, which this release knows; "
            "what is new in it is ignored",
            stacklevel=2,
        )
