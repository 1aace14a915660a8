"""Shards of one structure as one: a batch from many of them is gathered as if from one."""

from __future__ import annotations

import errno
import os
from collections.abc import Hashable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardgraph.errors import CorruptShardError
from shardgraph.format.layout import GRAPH_AXIS
from shardgraph.format.manifest import ShardEntry
from shardgraph.shards.arena import STEP, Arena
from shardgraph.shards.inspect import Located
from shardgraph.shards.open import Shard

Ints: TypeAlias = "NDArray[np.int64]"

MAX_MAPS = 40_000
"""Mapped arrays that all groups of a process may have; Linux allows 65,530 of all kinds."""


def structure(shard: Shard) -> Hashable | None:
    """What shards must share to be read as one; None for shards that are read through HDF5."""
    if shard.index_chunked:
        return None
    columns = tuple(
        (name, column.axis, column.inc, column.located.dtype.str, column.located.shape[1:])
        for name, column in shard.index.columns.items()
    )
    shapes = tuple((name, located.shape[1:]) for name, located in shard.index.shapes.items())
    return columns, tuple(shard.index.ptrs), shapes


class ShardGroup:
    """Shards of one structure, their arrays side by side in arenas.

    It reads like a shard: rows of an axis are numbered through all its shards, and so are graphs.
    """

    def __init__(self, shard: Shard, entries: tuple[ShardEntry, ...]) -> None:
        self.path = shard.path.parent
        self.axis_of = shard.axis_of
        self.inc_of = shard.inc_of
        self._nbytes = sum(entry.nbytes for entry in entries)
        self._num_shards = len(entries)
        self._arenas: dict[tuple[str, str], tuple[Arena, str]] = {}
        self._used: dict[str, int] = {}
        self._first: dict[str, Ints] = {}
        self._end: dict[str, Ints] = {}
        self._shards: list[Shard | None] = [None] * self._num_shards
        self.columns = {
            name: self._reserve("columns", name, column.located, column.axis)
            for name, column in shard.index.columns.items()
        }
        self.ptrs = {
            axis: self._reserve("ptr", axis, located, GRAPH_AXIS)
            for axis, located in shard.index.ptrs.items()
        }
        self.incs = self._reserve_all("inc", shard.index.incs)
        self.shapes = self._reserve_all("shapes", shard.index.shapes)
        for axis in (GRAPH_AXIS, *self.ptrs):
            self._used[axis] = 0
            self._first[axis] = np.zeros(self._num_shards, np.int64)
            self._end[axis] = np.zeros(self._num_shards, np.int64)

    @property
    def num_maps(self) -> int:
        """Mapped arrays of one shard."""
        return len(self._arenas)

    def _reserve_all(self, kind: str, arrays: dict[str, Located]) -> dict[str, Any]:
        return {n: self._reserve(kind, n, located, GRAPH_AXIS) for n, located in arrays.items()}

    def _reserve(self, kind: str, name: str, located: Located, axis: str) -> NDArray[Any]:
        row_shape = located.shape[1:]
        row = max(1, int(np.prod(row_shape, dtype=np.int64)) * located.dtype.itemsize)
        capacity = self._nbytes // row + (self._num_shards + 1) * STEP
        arena = Arena(located.dtype, row_shape, capacity)
        self._arenas[kind, name] = arena, axis
        return arena.array

    def add(self, number: int, shard: Shard) -> None:
        """Places a shard's arrays beside those of the others.

        Raises:
            OSError: if the system maps no more, or a ptr says more rows than can be numbered.
        """
        if any(used + shard.ends[axis] >= 1 << 62 for axis, used in self._used.items()):
            raise OSError(errno.EOVERFLOW, f"too many rows in {shard.path}")
        index = shard.index
        located: dict[tuple[str, str], Located] = {
            **{("columns", name): column.located for name, column in index.columns.items()},
            **{("ptr", axis): ptr for axis, ptr in index.ptrs.items()},
            **{("inc", name): inc for name, inc in index.incs.items()},
            **{("shapes", name): shapes for name, shapes in index.shapes.items()},
        }
        descriptor = os.open(shard.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            for key, (arena, axis) in self._arenas.items():
                where = located[key]
                nbytes = where.shape[0] * arena.row_nbytes
                arena.place(self._used[axis], descriptor, where.offset or 0, nbytes)
        finally:
            os.close(descriptor)
        for axis, used in self._used.items():
            rows = shard.ends[axis]
            self._first[axis][number], self._end[axis][number] = used, rows
            # One row more than there are: a ptr has an entry more than there are graphs.
            self._used[axis] = used + (rows + 1 + STEP - 1) // STEP * STEP
        self._shards[number] = shard

    def forget(self) -> None:
        """Lets this process's page table go; pages are mapped again when they are read."""
        for arena, _ in self._arenas.values():
            arena.forget()

    def graphs(self, numbers: Ints, local: Ints) -> Ints:
        """Graphs of shards as graphs of the group."""
        return self._first[GRAPH_AXIS][numbers] + local

    def runs(self, axis: str, graphs: Ints, numbers: Ints | None) -> tuple[Ints, Ints]:
        """First row and number of rows of each graph; ``numbers`` are their shards.

        Raises:
            CorruptShardError: if a ptr falls, or gives more rows than there are.
        """
        if numbers is None:
            raise AssertionError("graphs of a group come with their shards")
        if axis not in self.ptrs:  # a type that all graphs of these shards lack
            return np.zeros_like(graphs), np.zeros_like(graphs)
        ptr, end = self.ptrs[axis], self._end[axis][numbers]
        starts, stops = ptr[graphs], ptr[graphs + 1]
        lengths = stops - starts
        bad = (starts < 0) | (stops < starts) | (stops > end)
        if bad.any():
            raise self._falls(axis, int(numbers[np.flatnonzero(bad)[0]]))
        if np.add.reduce(lengths) > np.minimum.reduce(end):
            self._check_overlap(axis, graphs, numbers)
        return starts + self._first[axis][numbers], lengths

    def _check_overlap(self, axis: str, graphs: Ints, numbers: Ints) -> None:
        """Checks that the runs of different graphs of a shard can all fit into it."""
        each, places = np.unique(graphs, return_index=True)
        lengths = self.ptrs[axis][each + 1] - self.ptrs[axis][each]
        sums = np.bincount(numbers[places], weights=lengths, minlength=self._num_shards)
        over = sums > self._end[axis]
        if over.any():
            raise self._falls(axis, int(np.flatnonzero(over)[0]))

    def _falls(self, axis: str, number: int) -> CorruptShardError:
        shard = self._shards[number]
        if shard is None:
            raise AssertionError("a graph's shard has been added")
        return shard.falls(axis)
