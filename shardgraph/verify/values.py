"""What the values of one shard mean: whether its dtype can hold them, where edges lead, NaN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardgraph.errors import CorruptShardError
from shardgraph.format import layout
from shardgraph.format.moments import decoded
from shardgraph.format.schema import Column, Schema, Store
from shardgraph.shards.write import ENDPOINTS_INC, NO_INC, NODES_INC
from shardgraph.verify.problem import RESTORE, Problem
from shardgraph.verify.rows import Looked

Ints: TypeAlias = "NDArray[np.int64]"

_BLOCK = 1 << 23
"""Bytes of a column that are looked at at once, decompressed if need be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """How many values of a column are NaN, and how many infinite, and the first graph with one."""

    values: int = 0
    nan: int = 0
    infinite: int = 0
    first: int | None = None

    def plus(self, other: NonFinite) -> NonFinite:
        """The counts of both, ``other`` being of later graphs."""
        return NonFinite(
            values=self.values + other.values,
            nan=self.nan + other.nan,
            infinite=self.infinite + other.infinite,
            first=other.first if self.first is None else self.first,
        )


def blocks(source: Any) -> Iterator[tuple[int, Any]]:
    """A column's rows in blocks of bounded size, each with the number of its first row."""
    row = max(1, int(np.prod(source.shape[1:], dtype=np.int64)) * source.dtype.itemsize)
    step = max(1, _BLOCK // row)
    for start in range(0, len(source), step):
        yield start, source[start : start + step]


def graph_of(ptr: Ints, row: int) -> int:
    """The graph that a row belongs to."""
    return int(np.searchsorted(ptr, row, side="right")) - 1


def value_problems(looked: Looked) -> Iterator[Problem]:
    """Values that the logical dtype cannot hold, and edges that leave their graph."""
    edges = {column.name: store for store, column in _edge_columns(looked.schema)}
    for name, source, ptr in list(looked.sound()):
        column = looked.schema.columns[name]
        try:
            yield from _range_problems(looked, column, source, ptr)
            if name in edges:
                yield from _edge_problems(looked, column, edges[name], source, ptr)
        except CorruptShardError as error:  # a compressed chunk that cannot be read
            looked.bad_columns.add(name)
            yield looked.problem(f"{_without_path(error, looked)}; {RESTORE}", name)


def _without_path(error: CorruptShardError, looked: Looked) -> str:
    return str(error).removeprefix(f"{looked.shard.path}: ")


def _edge_columns(schema: Schema) -> Iterator[tuple[Store, Column]]:
    for store in schema.stores:
        for attribute in store.attributes:
            if attribute.name == "edge_index" and attribute.kind in {"tensor", "edge_index"}:
                column = next(attribute.columns())
                if column.row_shape == (2,) and column.dtype in layout.INTEGERS:
                    yield store, column


def _range_problems(looked: Looked, column: Column, source: Any, ptr: Ints) -> Iterator[Problem]:
    if column.dtype == "bool":
        low, high = 0, 1
    elif column.dtype in layout.INTEGERS and not np.can_cast(source.dtype, column.dtype):
        info = np.iinfo(column.dtype)
        low, high = int(info.min), int(info.max)
    else:
        return
    rows = []
    for start, block in blocks(source):
        if block.size and not low <= int(block.min()) <= int(block.max()) <= high:
            wrong = ((block < low) | (block > high)).reshape(len(block), -1).any(axis=1)
            rows += [start + int(row) for row in np.flatnonzero(wrong)[[0, -1]]]
    if rows:
        where = range(graph_of(ptr, rows[0]), graph_of(ptr, rows[-1]) + 1)
        message = f"has values that {column.dtype} cannot hold; {RESTORE}"
        yield looked.problem(message, column.name, where)


def _edge_problems(
    looked: Looked, column: Column, store: Store, source: Any, ptr: Ints
) -> Iterator[Problem]:
    limits = _node_counts(looked, column, store)
    if limits is None:
        return
    count, where, example = 0, -1, 0
    for start, block in blocks(source):
        stop = start + len(block)
        begin = graph_of(ptr, start)
        end = int(np.searchsorted(ptr, stop, side="left"))
        lengths = np.diff(ptr[begin : end + 1].clip(start, stop))
        most = np.repeat(limits[begin:end], lengths, axis=0)
        wrong = (block < 0) | (block >= most)
        if count == 0 and wrong.any():
            row, end_of_edge = np.argwhere(wrong)[0]
            where = begin + int(np.searchsorted(np.cumsum(lengths), row, side="right"))
            example = int(block[row, end_of_edge])
        count += int(wrong.any(axis=1).sum())
    if count:
        yield looked.problem(
            f"an edge joins node {example}, the graph has {limits[where].max()} nodes "
            f"({count} such edges in this shard); correct the raw graphs and convert again",
            column.name,
            range(where, where + 1),
        )


def _node_counts(looked: Looked, column: Column, store: Store) -> Ints | None:
    """Number of nodes that each graph's edges may lead from and to: int64 [G, 1 or 2].

    That is what PyG adds to the next graph's edges. None if nothing is added, or is not known.
    """
    shard = looked.shard
    rule = shard.inc_of[column.name]
    axes = {NODES_INC: ("node",), ENDPOINTS_INC: store.endpoint_axes}.get(rule, ())
    if rule == NO_INC or looked.bad_axes & set(axes):
        return None
    if axes:
        return np.stack([np.diff(shard.ptrs[axis]) for axis in axes], axis=1)
    limits = shard.incs[column.name].reshape(shard.num_graphs, -1)
    return limits if limits.shape[1] in {1, 2} else None


def non_finite(looked: Looked) -> dict[str, NonFinite]:
    """By column of floats (but float8) or complex numbers whose values can be read, its counts."""
    found: dict[str, NonFinite] = {}
    for name, source, ptr in list(looked.sound()):
        column = looked.schema.columns[name]
        if source.dtype.kind != "f" and column.dtype != "bfloat16":
            continue
        total = NonFinite()
        try:
            for start, block in blocks(source):
                total = total.plus(_count(decoded(block, column), start, ptr, looked.first))
        except CorruptShardError:  # which the digests report
            continue
        found[name] = total
    return found


def _count(block: NDArray[Any], start: int, ptr: Ints, first: int) -> NonFinite:
    counts = NonFinite(values=block.size)
    if np.isfinite(block).all():
        return counts
    nan = int(np.isnan(block).sum())
    odd = np.argwhere(~np.isfinite(block))
    graph = first + graph_of(ptr, start + int(odd[0][0]))
    return replace(counts, nan=nan, infinite=len(odd) - nan, first=graph)
