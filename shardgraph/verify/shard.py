"""Checking one shard: all that is wrong with it at a level, and what it adds up to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shardgraph.atomic import file_digest
from shardgraph.errors import FormatError
from shardgraph.format import layout
from shardgraph.format.histogram import Histogram
from shardgraph.format.manifest import ShardEntry
from shardgraph.format.schema import Schema
from shardgraph.shards.open import Shard
from shardgraph.shards.structure import Fault, check_size, read_num_graphs, survey
from shardgraph.verify.damage import digest_problems
from shardgraph.verify.duplicates import graph_digests
from shardgraph.verify.problem import RESTORE, Problem, of_error
from shardgraph.verify.rows import Looked, ptr_problems, shape_problems, total_problems
from shardgraph.verify.values import NonFinite, non_finite, value_problems

LEVELS = ("quick", "structure", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A shard to check, and how closely."""

    directory: Path
    entry: ShardEntry
    schema: Schema
    first: int
    """The dataset's number of its first graph."""
    level: str
    duplicates: bool = False


@dataclass(slots=True, kw_only=True)
class ShardFindings:
    """What was found in one shard."""

    problems: list[Problem] = field(default_factory=list)
    is_sound: bool = False
    """Whether all was read and nothing is damaged, so that what it adds up to can be relied on."""
    sizes: dict[str, Histogram] = field(default_factory=dict)
    num_values: dict[str, int] = field(default_factory=dict)
    non_finite: dict[str, NonFinite] = field(default_factory=dict)
    digests: NDArray[np.uint64] | None = None
    """Of each graph, where duplicates are looked for and all of them can be read."""


def check_shard(task: Task) -> ShardFindings:
    """All that is wrong with a shard; nothing in the file makes this raise."""
    path, entry = task.directory / task.entry.name, task.entry
    try:
        check_size(path, entry)
        if task.level == "quick":
            return ShardFindings(problems=_header_problems(path, entry))
        return _closely(task, path)
    except (FormatError, OSError) as error:  # OSError: the disk itself does not read it
        return ShardFindings(problems=[of_error(error, path)])


def _header_problems(path: Path, entry: ShardEntry) -> list[Problem]:
    found = read_num_graphs(path, entry)
    if found == entry.num_graphs:
        return []
    message = f"has {found} graphs, the manifest says {entry.num_graphs}; {RESTORE}"
    return [Problem(shard=entry.name, message=message)]


def _closely(task: Task, path: Path) -> ShardFindings:
    found = ShardFindings()
    is_same = True
    if task.level == "full":
        # First, by reading: what a disk does not read is an error here, and SIGBUS in a map.
        is_same = file_digest(path) == task.entry.digest
    looked, found.problems = look(path, task.entry, task.schema, task.first)
    try:
        if looked is not None:
            found.is_sound = not found.problems
            if found.is_sound:
                found.problems += total_problems(looked)
                found.is_sound = not found.problems
            if found.is_sound:  # else sizes may add up to more than 64 bits hold
                _count(looked, found)
            found.problems += value_problems(looked)
        if task.level == "full":
            damage = digest_problems(task.entry, looked, is_same=is_same)
            found.is_sound &= not damage
            found.problems += damage
            if looked is not None:
                found.non_finite = non_finite(looked)
                found.digests = graph_digests(looked) if task.duplicates else None
    finally:
        if looked is not None:
            looked.shard.close()
    return found


def look(
    path: Path, entry: ShardEntry, schema: Schema, first: int
) -> tuple[Looked | None, list[Problem]]:
    """A shard opened as far as its structure is sound, and all that is wrong with that.

    Nothing is opened if the file is no shard, or not the one that the manifest means.
    """
    try:
        index, faults = survey(path, entry, schema)
        looked = Looked(Shard(path, entry, schema, index=index), schema, first)
    except FormatError as error:
        return None, [of_error(error, path)]
    looked.bad_axes |= _axes(faults)
    problems = [of_error(fault.error, path, fault.array) for fault in faults]
    problems += ptr_problems(looked)
    problems += shape_problems(looked)
    return looked, problems


def _axes(faults: list[Fault]) -> set[str]:
    """The axes whose ptr is at fault."""
    start = f"{layout.PTR}/"
    return {f.array.removeprefix(start) for f in faults if f.array and f.array.startswith(start)}


def _count(looked: Looked, found: ShardFindings) -> None:
    shard = looked.shard
    for axis in looked.schema.size_axes:
        found.sizes[axis] = Histogram.of(np.diff(shard.ptrs[axis]))
    for name, source in shard.columns.items():
        found.num_values[name] = int(np.prod(source.shape, dtype=np.int64))
