"""Gathering rows: one column of many graphs, from many shards, into one array.

Many short runs are gathered by one vectorised row index a shard; long runs by slice copies at
memory speed. Integers widen as they are copied; per-graph increments are added in a second pass,
over the whole batch or over each long run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardgraph.format import layout
from shardgraph.shards.compressed import ChunkedColumn
from shardgraph.shards.group import ShardGroup
from shardgraph.shards.open import Shard
from shardgraph.shards.pool import ShardPool
from shardgraph.shards.write import ENDPOINTS_INC, EXPLICIT_INC, NO_INC, NODES_INC

Array: TypeAlias = "NDArray[Any]"
Ints: TypeAlias = "NDArray[np.int64]"

LONG_RUN = 128
"""Mean rows of a run from which slice copies win over a row index (tools/bench.py gather)."""

WIDENING = 4
"""How many times as long it must be if integers are widened, which a slice takes 2 us more for."""


@dataclass(slots=True)
class _Part:
    """The graphs of a selection that lie in one shard, or in one group of shards."""

    shard: Shard | ShardGroup
    local: Ints
    """Their numbers in the shard or group, [b]."""
    places: Ints | None
    """Their places in the selection, [b]; None: all of it, in order."""
    numbers: Ints | None
    """The shard of each, [b], where they lie in a group."""


class Rows:
    """The rows of one axis for the graphs of a selection: where they are and where they go."""

    __slots__ = ("_index", "_starts", "lengths", "ptr", "total")

    def __init__(self, lengths: Ints, starts: list[Ints | None]) -> None:
        self.lengths = lengths
        self._starts = starts
        self.ptr: Ints = np.zeros(len(lengths) + 1, np.int64)
        lengths.cumsum(out=self.ptr[1:])
        self.total = int(self.ptr[-1])
        self._index: dict[int, tuple[Ints, Ints | None]] = {}

    def starts(self, number: int) -> Ints | None:
        """First row of each graph of part ``number`` in its shard; None where it has none."""
        return self._starts[number]

    def index(self, number: int, part: _Part) -> tuple[Ints, Ints | None]:
        """For each row of a part: its row in the shard, and its row in the output (None: same)."""
        if number not in self._index:
            starts, places = self._starts[number], part.places
            if starts is None:
                raise AssertionError("a part without rows has no index")
            if starts is part.local:  # one row each, in this part
                self._index[number] = starts, None if places is None else self.ptr[places]
                return self._index[number]
            lengths, ends = self.lengths, self.ptr[1:]
            if places is not None:
                lengths = lengths[places]
                ends = lengths.cumsum()
            count = np.arange(int(ends[-1]), dtype=np.int64)
            first = ends - lengths
            source = (starts - first).repeat(lengths)
            source += count
            target = None
            if places is not None:
                target = (self.ptr[places] - first).repeat(lengths)
                target += count
            self._index[number] = source, target
        return self._index[number]


class Selection:
    """Some graphs of a dataset, in a given order, repeats allowed: what a batch is made of."""

    __slots__ = ("_rows", "num_graphs", "parts")

    def __init__(self, parts: list[_Part], num_graphs: int) -> None:
        self.num_graphs = num_graphs
        self.parts = parts
        self._rows: dict[Any, Rows] = {}

    @classmethod
    def of(cls, pool: ShardPool, ids: Ints) -> Selection:
        """The graphs ``ids`` of a dataset, all of them in ``range(pool.num_graphs)``."""
        return cls(_split(pool, ids), len(ids))

    @classmethod
    def of_one(cls, shard: Shard, local: int) -> Selection:
        """Graph ``local`` of one shard."""
        return cls([_Part(shard, np.array([local]), None, None)], 1)

    def axis_rows(self, axis: str) -> Rows:
        """The rows of an axis that every shard has, such as "node"."""
        return self._axis_rows((axis,) * len(self.parts))

    def column_rows(self, name: str) -> Rows:
        """The rows of a column; columns that count the same thing share them."""
        return self._axis_rows(tuple([part.shard.axis_of.get(name) for part in self.parts]))

    def _axis_rows(self, axes: tuple[str | None, ...]) -> Rows:
        rows = self._rows.get(axes)
        if rows is None:
            rows = self._rows[axes] = self._read_rows(axes)
        return rows

    def _read_rows(self, axes: tuple[str | None, ...]) -> Rows:
        starts: list[Ints | None] = []
        lengths = np.empty(self.num_graphs, np.int64)
        for part, axis in zip(self.parts, axes, strict=False):
            begin, length = _run(part, axis)
            starts.append(begin)
            if part.places is None:
                lengths = length
            else:
                lengths[part.places] = length
        return Rows(lengths, starts)

    def one_row_each(self, name: str) -> bool:
        """Whether a column has exactly one row for every graph of the selection."""
        return all(part.shard.axis_of.get(name) == layout.GRAPH_AXIS for part in self.parts)

    def column(self, name: str, out: Array, add: Array | None = None) -> None:
        """Copies a column's rows to ``out`` [R, *row_shape], widened to its dtype.

        ``add`` [B, ...], broadcastable to rows, is added to each row of graph b.
        """
        rows = self.column_rows(name)
        if rows.total == 0:
            return
        sources = [part.shard.columns.get(name) for part in self.parts]
        widens = any(source is not None and source.dtype != out.dtype for source in sources)
        long_run = LONG_RUN * WIDENING if widens else LONG_RUN
        long_runs = rows.total >= long_run * self.num_graphs
        if add is not None:
            add = add.astype(out.dtype, copy=False)
        for number, (part, source) in enumerate(zip(self.parts, sources, strict=True)):
            if source is None:
                continue
            if long_runs or isinstance(source, ChunkedColumn):
                _copy_runs(part, rows, number, source, out, add if long_runs else None)
            else:
                _copy_index(part, rows, number, source, out)
        if add is not None and not long_runs:
            # A pass of its own: several times faster than widening and adding at once.
            np.add(out, _each_row(rows, add), out=out)

    def has_increments(self, name: str) -> bool:
        """Whether ``__inc__`` gave anything but 0 for any graph of the shards at hand."""
        return any(part.shard.inc_of.get(name, NO_INC) != NO_INC for part in self.parts)

    def increments(
        self, name: str, shape: tuple[int, ...], endpoints: tuple[str, str] | None
    ) -> Ints:
        """What ``__inc__`` gave for each graph: int64 [B, *shape]."""
        out = np.zeros((self.num_graphs, *shape), np.int64)
        rules = [part.shard.inc_of.get(name) for part in self.parts]
        # A shard whose graphs all lack the type has no rule, but its graphs' nodes count.
        usual = ENDPOINTS_INC if np.prod(shape) == 2 and endpoints is not None else NO_INC
        rule_of_absent = next(filter(None, rules), usual)
        for part, rule in zip(self.parts, rules, strict=False):
            rule = rule or rule_of_absent
            if rule == NO_INC or (rule == EXPLICIT_INC and name not in part.shard.incs):
                continue
            if rule == NODES_INC:
                values = self._sizes(part, "node")
            elif rule == ENDPOINTS_INC and endpoints is not None:
                pair = [self._sizes(part, axis) for axis in endpoints]
                values = np.stack(pair, axis=1).reshape(-1, *shape)
            else:
                values = part.shard.incs[name][part.local]
            if part.places is None:
                return values.reshape(out.shape)
            out[part.places] = values.reshape(-1, *shape)
        return out

    def _sizes(self, part: _Part, axis: str) -> Ints:
        lengths = self.axis_rows(axis).lengths
        return lengths if part.places is None else lengths[part.places]

    def shapes(self, name: str) -> Ints:
        """Shape of each graph's value of a column whose row shape varies: int64 [B, D].

        Shapes of fewer than D dimensions end in -1.
        """
        out = np.zeros((self.num_graphs, 1), np.int64)
        for part in self.parts:
            stored = part.shard.shapes.get(name)
            if stored is None:
                continue
            width = stored.shape[1]
            if width > out.shape[1]:
                more = np.full((self.num_graphs, width - out.shape[1]), -1, np.int64)
                out = np.concatenate([out, more], axis=1)
            out[slice(None) if part.places is None else part.places, :width] = stored[part.local]
        return out


def _split(pool: ShardPool, ids: Ints) -> list[_Part]:
    """The selection's graphs by shard, or by group of shards that read as one."""
    if len(ids) == 0:
        return []
    if len(pool.starts) == 2:
        shard = pool.shard(0)
        pool.check(np.zeros(1, np.int64))
        return [_Part(shard, ids, None, None)]
    numbers = np.searchsorted(pool.starts, ids, side="right") - 1
    local = ids - pool.starts[numbers]
    owners = pool.owners(numbers)
    pool.check(numbers)
    first = int(owners[0])
    if (owners == first).all():
        return [_part(pool, first, numbers, local, None)]
    order = np.argsort(owners, kind="stable")
    cuts = np.flatnonzero(np.diff(owners[order])) + 1
    return [
        _part(pool, int(owners[places[0]]), numbers[places], local[places], places)
        for places in np.split(order, cuts)
    ]


def _part(pool: ShardPool, owner: int, numbers: Ints, local: Ints, places: Ints | None) -> _Part:
    if owner < 0:
        return _Part(pool.shard(-1 - owner), local, places, None)
    group = pool.groups[owner]
    return _Part(group, group.graphs(numbers, local), places, numbers)


def _run(part: _Part, axis: str | None) -> tuple[Ints | None, Ints]:
    """First row and number of rows of each graph of a part."""
    if axis is None:
        return None, np.zeros(len(part.local), np.int64)
    if axis == layout.GRAPH_AXIS:
        return part.local, np.ones(len(part.local), np.int64)
    return part.shard.runs(axis, part.local, part.numbers)


def _copy_runs(
    part: _Part, rows: Rows, number: int, source: Any, out: Array, add: Array | None
) -> None:
    """One slice copy a graph, and what to add while its rows are in the processor's cache."""
    starts = rows.starts(number)
    if starts is None:
        return
    places = range(rows.lengths.size) if part.places is None else part.places.tolist()
    lengths = rows.lengths if part.places is None else rows.lengths[part.places]
    ptr = rows.ptr.tolist()
    for place, start, length in zip(places, starts.tolist(), lengths.tolist(), strict=False):
        run = out[ptr[place] : ptr[place + 1]]
        run[...] = source[start : start + length]
        if add is not None:
            np.add(run, add[place], out=run)


def _copy_index(part: _Part, rows: Rows, number: int, source: Array, out: Array) -> None:
    """One row index for all graphs."""
    index, target = rows.index(number, part)
    if target is not None:
        out[target] = source.take(index, axis=0, mode="clip")
    elif source.dtype == out.dtype and out.flags.c_contiguous:
        source.take(index, axis=0, out=out, mode="clip")
    else:
        out[...] = source.take(index, axis=0, mode="clip")


def _each_row(rows: Rows, add: Array) -> Array:
    """What to add to each row, [R, ...], from what to add for each graph."""
    if add.size == len(add):  # one number a graph: repeating a vector is several times faster
        return add.reshape(-1).repeat(rows.lengths).reshape(-1, *add.shape[1:])
    return add.repeat(rows.lengths, axis=0)
