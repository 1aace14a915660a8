"""Whether a shard is whole, and what a manifest is to say of it."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.atomic import file_digest
from shardgraph.errors import FormatError
from shardgraph.format import layout
from shardgraph.format.manifest import ShardEntry
from shardgraph.format.schema import Schema
from shardgraph.format.statistics import Statistics
from shardgraph.shards.open import Shard
from shardgraph.shards.structure import check_size, file_size, read_num_graphs
from shardgraph.shards.write import stored_row_shape
from shardgraph.verify.damage import array_problems
from shardgraph.verify.problem import of_error
from shardgraph.verify.rows import counts_of, total_problems
from shardgraph.verify.shard import look

_NOT_THE_FILE = frozenset({errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say nothing against a file, which therefore is not lost."""


def whole_shard(
    path: Path, schema: Schema, trusted: ShardEntry | None
) -> tuple[ShardEntry, Statistics] | str:
    """The entry and the statistics of a shard that is whole, or why it is not.

    ``trusted`` says what it must add up to; without it, it may be any that fits the schema.

    Raises:
        OSError: if it may not be looked at, so that nothing is known of it.
    """
    try:
        entry = _entry_of(path, trusted)
        entry.check_room(schema)
        looked, problems = look(path, entry, schema, 0)
        if looked is not None and not problems:
            problems += total_problems(looked) if trusted is not None else ()
            problems += array_problems(looked)
        if looked is None or problems:
            return _size_fault(path, trusted) or problems[0].message
        found = _counted(entry, counts_of(looked)), _statistics_of(looked.shard, schema)
        looked.shard.close()
    except (FormatError, OSError) as error:
        if isinstance(error, OSError) and error.errno in _NOT_THE_FILE:
            raise
        return _size_fault(path, trusted) or of_error(error, path).message
    return found


def _size_fault(path: Path, trusted: ShardEntry | None) -> str | None:
    """That a file is missing or of another length says more than what follows from it."""
    if trusted is not None:
        try:
            check_size(path, trusted)
        except (FormatError, OSError) as error:
            return of_error(error, path).message
    return None


def _entry_of(path: Path, stated: ShardEntry | None) -> ShardEntry:
    """The entry of a file as it is now; its counts as stated, or none yet."""
    nbytes, digest = file_size(path), file_digest(path)
    if stated is not None:
        return replace(stated, nbytes=nbytes, digest=digest)
    return ShardEntry(
        name=path.name,
        num_graphs=read_num_graphs(path),
        num_nodes=0,
        num_edges=0,
        nbytes=nbytes,
        raw_nbytes=0,
        digest=digest,
    )


def _counted(entry: ShardEntry, counts: dict[str, int]) -> ShardEntry:
    return replace(
        entry,
        num_nodes=counts["num_nodes"],
        num_edges=counts["num_edges"],
        raw_nbytes=counts["raw_nbytes"],
    )


def _statistics_of(shard: Shard, schema: Schema) -> Statistics:
    """The statistics of a shard's graphs, as when it was written."""
    none = np.zeros(shard.num_graphs + 1, np.int64)
    each = np.arange(shard.num_graphs + 1)
    arrays: dict[str, NDArray[Any]] = {}
    lengths: dict[str, NDArray[np.int64]] = {}
    for name, column in schema.columns.items():
        dtype = layout.STORAGE[column.dtype]
        source = shard.columns.get(name)
        if source is None:
            arrays[name], ptr = np.empty((0, *stored_row_shape(column)), dtype), none
        else:
            arrays[name] = np.ascontiguousarray(source[0 : len(source)], dtype)
            ptr = shard.ptrs.get(shard.axis_of[name], each)
        lengths[name] = np.diff(ptr)
    sizes = {axis: np.diff(shard.ptrs[axis]) for axis in schema.size_axes}
    return Statistics.of_shard(schema, arrays, sizes, lengths)
