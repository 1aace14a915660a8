"""Shuffled order: the graphs of a finished dataset, moved to random places of a new one.

Graphs go over as the bytes they are stored as, without becoming PyG objects, so the class they were
written from need not be at hand, and nothing about them can change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.convert.source import Partition, Source, spans
from shardgraph.format import layout
from shardgraph.format.manifest import Manifest
from shardgraph.format.schema import Schema, Store
from shardgraph.format.splits import unpack_split
from shardgraph.sampling.permute import key, permutation
from shardgraph.shards.advise import Advisor
from shardgraph.shards.open import Shard
from shardgraph.shards.pool import ShardPool
from shardgraph.shards.write import (
    ENDPOINTS_INC,
    EXPLICIT_INC,
    NODES_INC,
    Cell,
    GraphRecord,
)

_STREAM = 17  # of random numbers: none of those that training or splits draw from
_AHEAD = 1024  # graphs asked of the disk at once


class EncodedSource(Source):
    """A source of graphs that are encoded already: `read` yields `GraphRecord`."""

    schema: Schema
    rules: dict[str, str | None]
    """By column, the increment rule of all graphs; None where cells say it."""


class ShuffledSource(EncodedSource):
    """The graphs of a dataset in random order. Holds an int64 a graph, and no graph.

    Args:
        directory: The dataset.
        seed: Of the order.
        shard_size: Bytes of the shards to be; a partition is as many graphs as about fill one.
    """

    name = "shuffled"

    def __init__(self, directory: Path, *, seed: int, shard_size: int) -> None:
        super().__init__(directory)
        self._seed = seed
        self._shard_size = shard_size
        self._manifest = Manifest.read(directory)
        self.schema = self._manifest.schema

    def __getstate__(self) -> dict[str, Any]:
        own = ("spec", "_seed", "_shard_size", "_manifest", "schema")
        return {name: value for name, value in self.__dict__.items() if name in own}

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """The graph at each place."""
        return permutation(self._manifest.num_graphs, key(self._seed, 0, _STREAM))

    @cached_property
    def _stored(self) -> _StoredGraphs:
        return _StoredGraphs(ShardPool(Path(self.spec), self._manifest, self.schema))

    @cached_property
    def rules(self) -> dict[str, str | None]:  # type: ignore[override]
        """See `EncodedSource`; the rules of all shards are looked at."""
        return self._stored.rules()

    def partitions(self) -> Sequence[Partition]:
        """Runs of graphs that fill a shard to 95 %, for their sizes vary."""
        num_graphs = self._manifest.num_graphs
        mean = max(1.0, self._manifest.raw_nbytes / num_graphs)
        size = max(1, int(0.95 * self._shard_size / mean))
        return [
            Partition(file=self.spec, first=first, num_records=count)
            for first, count in spans(num_graphs, size)
        ]

    def read(self, partition: Partition) -> Iterator[Any]:
        """Yields the encoded graphs of these places."""
        stop = partition.first + (partition.num_records or 0)
        graphs = self._order[partition.first : stop]
        ahead = Advisor(self._stored.pool)
        for start in range(0, len(graphs), _AHEAD):
            block = graphs[start : start + _AHEAD]
            ahead.ask(block, block + 1)
            for graph in block.tolist():
                yield self._stored.record(graph)

    def splits(self) -> dict[str, NDArray[np.int64]]:
        """The splits of the dataset, as places in the new order."""
        found = {}
        for name, value in self._manifest.splits.items():
            chosen = np.zeros(self._manifest.num_graphs, bool)
            chosen[unpack_split(value, self._manifest.num_graphs)] = True
            found[name] = np.flatnonzero(chosen[self._order])
        return found


class _StoredGraphs:
    """Reads single graphs of a dataset as they are stored, widened to their own dtypes."""

    def __init__(self, pool: ShardPool) -> None:
        self.pool = pool
        self._schema = pool.schema
        self._rules: dict[str, str | None] = {}
        self._store_of: dict[str, Store] = {
            column.name: store
            for store in self._schema.stores
            for attribute in store.attributes
            for column in attribute.columns()
        }

    def rules(self) -> dict[str, str | None]:
        """The rule of each column where all shards agree on one that needs no numbers."""
        if not self._rules:
            found: dict[str, set[str]] = {name: set() for name in self._schema.columns}
            for number in range(len(self.pool.entries)):
                for name, rule in self.pool.shard(number).inc_of.items():
                    found[name].add(rule)
            self._rules = {
                name: rules.pop() if len(rules) == 1 and EXPLICIT_INC not in rules else None
                for name, rules in found.items()
            }
        return self._rules

    def record(self, graph: int) -> GraphRecord:
        """One graph. A type without nodes or edges counts as one that the graph lacks."""
        shard, local = self.pool.locate(graph)
        rules = self.rules()
        sizes = {
            axis: int(ptr[local + 1]) - int(ptr[local])
            for axis, ptr in shard.ptrs.items()
            if axis in self._schema.size_axes
        }
        cells = {}
        for name, source in shard.columns.items():
            start, stop = _span(shard, name, local)
            store = self._store_of[name]
            if start == stop and store.key is not None and not sizes.get(_axis(store), 1):
                continue
            column = self._schema.columns[name]
            rows = np.asarray(source[start:stop]).astype(layout.STORAGE[column.dtype], copy=False)
            inc = None
            if rules[name] is None:
                inc = np.broadcast_to(_inc(shard, name, local, sizes, store), column.inc_shape)
            cells[name] = Cell(rows.tobytes(), stop - start, inc, _shape(shard, name, local))
        absent = {store.key: _axis(store) for store in self._schema.stores if store.key is not None}
        for axis in absent.values():
            if not sizes.get(axis, 1):
                del sizes[axis]
        return GraphRecord(sizes=sizes, cells=cells)


def _axis(store: Store) -> str:
    return str(store.node_axis or store.edge_axis)


def _span(shard: Shard, name: str, local: int) -> tuple[int, int]:
    axis = shard.axis_of[name]
    if axis == layout.GRAPH_AXIS:
        return local, local + 1
    ptr = shard.ptrs[axis]
    return int(ptr[local]), int(ptr[local + 1])


def _inc(shard: Shard, name: str, local: int, sizes: dict[str, int], store: Store) -> Any:
    """What ``__inc__`` gave, as the writer was given it."""
    rule = shard.inc_of[name]
    if rule == EXPLICIT_INC:
        return shard.incs[name][local]
    if rule == NODES_INC:
        return sizes["node"]
    if rule == ENDPOINTS_INC and isinstance(store.key, tuple):
        ends = [sizes.get(f"node/{layout.quote(store.key[i])}", 0) for i in (0, 2)]
        return np.array(ends, np.int64).reshape(2, 1)
    return 0


def _shape(shard: Shard, name: str, local: int) -> tuple[int, ...] | None:
    if name not in shard.shapes:
        return None
    return tuple(int(extent) for extent in shard.shapes[name][local] if extent >= 0)
