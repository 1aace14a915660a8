"""What a manifest says, as far as it can be read: the ground that a repair stands on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardgraph.errors import FormatError
from shardgraph.format import layout
from shardgraph.format.manifest import (
    Manifest,
    ShardEntry,
    check_version,
    dataset_directory,
    is_intact,
    parse_json,
    regular_bytes,
)
from shardgraph.format.schema import Schema
from shardgraph.format.splits import is_split

ADVICE = (
    "name another dataset of the same schema, or a folder with a copy of manifest.json, as "
    "like=... (--like ...)"
)


@dataclass(slots=True, kw_only=True)
class Known:
    """What could be read of the manifest that is there."""

    schema: Schema
    entries: tuple[ShardEntry, ...] | None = None
    """None where it does not say which shards there are."""
    splits: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    generation: int = 0
    is_intact: bool = False
    remarks: list[str] = field(default_factory=list)


def known_of(directory: Path, like: str | Path | None) -> Known:
    """What the manifest says, as far as it can be read.

    Unless it is as it was written, the schema is that of ``like``, where that is given.
    """
    path = directory / layout.MANIFEST_NAME
    try:
        manifest = Manifest.read(directory)
    except FormatError as error:
        known = _parts(path)
        if known is None or like is not None:
            schema = _schema_of(like, error)
            known = Known(schema=schema) if known is None else replace(known, schema=schema)
        known.remarks.append(f"the manifest could not be read: {error}")
        return known
    known = Known(
        schema=manifest.schema,
        entries=manifest.shards,
        splits=dict(manifest.splits),
        provenance=dict(manifest.provenance),
        generation=manifest.generation,
        is_intact=is_intact(path.read_bytes()),
    )
    if not known.is_intact:
        trusted = "schema, splits" if like is None else "splits"
        known.remarks.append(
            f"the manifest was not as it was written: its {trusted} and provenance are taken "
            "on trust, for its shards bear them out"
        )
        if like is not None:
            known.schema = _schema_of(like, None)
    return known


def _parts(path: Path) -> Known | None:
    """What of a manifest makes sense though the whole does not; None without a schema."""
    try:
        data = regular_bytes(path)
        doc = parse_json(data)
        if is_intact(data):  # else the version may be what changed
            check_version(doc.get("version"))
        known = Known(schema=Schema.from_json(doc["schema"]))
        generation, provenance = doc.get("generation"), doc.get("provenance")
    except (OSError, FormatError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    known.generation = generation if type(generation) is int and generation >= 0 else 0
    known.provenance = provenance if isinstance(provenance, dict) else {}
    try:
        known.entries = tuple(ShardEntry.from_json(shard) for shard in doc["shards"])
        num_graphs = sum(entry.num_graphs for entry in known.entries)
        known.splits = {k: v for k, v in doc["splits"].items() if is_split(v, num_graphs)}
    except (FormatError, KeyError, TypeError, AttributeError):
        known.entries = None
    if known.entries is not None and len({e.name for e in known.entries}) < len(known.entries):
        known.entries = None
    return known


def _schema_of(like: str | Path | None, error: FormatError | None) -> Schema:
    if like is None:
        raise FormatError(f"{error}. Its schema is needed and cannot be had: {ADVICE}") from error
    return Manifest.read(dataset_directory(Path(like))).schema
