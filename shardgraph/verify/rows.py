"""Which rows are whose: ptr and shapes of one shard against its columns and the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardgraph.format import layout
from shardgraph.format.schema import Schema
from shardgraph.shards.open import Shard, shapes_fit
from shardgraph.verify.problem import RESTORE, Problem, column_of

Ints: TypeAlias = "NDArray[np.int64]"


@dataclass(slots=True)
class Looked:
    """One shard under examination, and what of it can be relied on so far."""

    shard: Shard
    schema: Schema
    first: int
    """The dataset's number of the shard's first graph."""
    bad_axes: set[str] = field(default_factory=set)
    """Axes whose ptr is missing or wrong: whose rows are whose is not known."""
    bad_columns: set[str] = field(default_factory=set)

    def problem(self, message: str, array: str | None = None, graphs: range | None = None) -> Any:
        """A problem of this shard; ``graphs`` are counted from its first."""
        if graphs is not None:
            graphs = range(self.first + graphs.start, self.first + graphs.stop)
        column = None if array is None else column_of(array)
        return Problem(shard=self.shard.path.name, column=column, graphs=graphs, message=message)

    def sound(self) -> Iterator[tuple[str, Any, Ints]]:
        """Name, values and ptr of every column whose rows are known."""
        for name, source in self.shard.columns.items():
            if name not in self.bad_columns and self.shard.axis_of[name] not in self.bad_axes:
                yield name, source, self.ptr(name)

    def ptr(self, name: str) -> Ints:
        """First row of each graph of a column, and the end: int64 [G + 1]."""
        axis = self.shard.axis_of[name]
        if axis == layout.GRAPH_AXIS:
            return np.arange(self.shard.num_graphs + 1)
        ptr: Ints = self.shard.ptrs[axis]
        return ptr


def ptr_problems(looked: Looked) -> Iterator[Problem]:
    """Every ptr rises from 0 to the end of its columns; fills in what cannot be relied on."""
    shard = looked.shard
    for axis in shard.index.ptrs:
        ptr = shard.ptrs[axis]
        array = f"{layout.PTR}/{axis}"
        falls = np.flatnonzero(ptr[1:] < ptr[:-1])
        if ptr[0] != 0:
            falls = np.insert(falls, 0, 0)
        if len(falls):
            looked.bad_axes.add(axis)
            where = range(int(falls[0]), int(falls[-1]) + 1)
            yield looked.problem(f"/{array} does not rise from 0; {RESTORE}", array, where)
            continue
        for name, source in shard.columns.items():
            if shard.axis_of[name] == axis and len(source) != ptr[-1]:
                looked.bad_columns.add(name)
                yield looked.problem(
                    f"/{array} ends at row {ptr[-1]} of column {name!r}, which has {len(source)} "
                    f"rows; {RESTORE}",
                    name,
                )
    for name, axis in shard.index.absent.items():
        if axis not in looked.bad_axes and shard.ptrs[axis][-1] != 0:
            yield looked.problem(f"/{layout.COLUMNS}/{name} is missing; {RESTORE}", name)


def shape_problems(looked: Looked) -> Iterator[Problem]:
    """The shapes of values that vary give each graph as many values as it has rows."""
    for name, _, ptr in list(looked.sound()):
        shapes = looked.shard.shapes.get(name)
        if shapes is None or shapes_fit(shapes, np.diff(ptr)):
            continue
        fits = [shapes_fit(shapes[g : g + 1], np.diff(ptr[g : g + 2])) for g in range(len(shapes))]
        wrong = np.flatnonzero(~np.array(fits))
        array = f"{layout.SHAPES}/{name}"
        where = range(int(wrong[0]), int(wrong[-1]) + 1)
        yield looked.problem(f"/{array} does not fit its values; {RESTORE}", array, where)


def counts_of(looked: Looked) -> dict[str, int]:
    """What a shard adds up to, by the names that the manifest has for it."""
    shard, schema = looked.shard, looked.schema
    nodes = [str(store.node_axis) for store in schema.node_stores]
    edges = [str(store.edge_axis) for store in schema.edge_stores]
    raw = 0
    for name, source in shard.columns.items():
        itemsize = np.dtype(layout.STORAGE[schema.columns[name].dtype]).itemsize
        raw += int(np.prod(source.shape, dtype=np.int64)) * itemsize
    return {
        "num_nodes": sum(int(shard.ptrs[axis][-1]) for axis in nodes),
        "num_edges": sum(int(shard.ptrs[axis][-1]) for axis in edges),
        "raw_nbytes": raw,
    }


def total_problems(looked: Looked) -> Iterator[Problem]:
    """What the manifest says that the shard adds up to, it does."""
    for what, value in counts_of(looked).items():
        stated = getattr(looked.shard.entry, what)
        if value != stated:
            yield looked.problem(f"its {what} is {value}, the manifest says {stated}; {RESTORE}")
