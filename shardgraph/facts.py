"""What is known of a dataset's sizes and labels: from the manifest, else from ptr alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data.summary import Stats, Summary

from shardgraph.errors import FormatError
from shardgraph.format.histogram import Histogram
from shardgraph.format.layout import STORAGE
from shardgraph.format.manifest import Manifest
from shardgraph.format.schema import Schema, StoreKey
from shardgraph.format.statistics import Statistics
from shardgraph.shards.gather import Selection
from shardgraph.shards.pool import ShardPool
from shardgraph.shards.write import stored_row_shape

_CHUNK_NBYTES = 64 << 20


class Facts:
    """Facts of a dataset, or of the subset ``indices`` of it (None: all)."""

    def __init__(
        self, pool: ShardPool, manifest: Manifest, schema: Schema, indices: Sequence[int] | None
    ) -> None:
        self._pool = pool
        self._statistics = manifest.statistics
        self._schema = schema
        self._indices = indices

    def statistics(self) -> Statistics:
        """The manifest's statistics; of a subset, read from its values, about 64 MB at a time."""
        if self._indices is None:
            return self._statistics
        entries = self._pool.entries
        graph_nbytes = sum(e.raw_nbytes for e in entries) // max(1, self._pool.num_graphs)
        step = max(1, _CHUNK_NBYTES // max(1, graph_nbytes))
        found = Statistics.empty()
        for start in range(0, len(self._indices), step):
            ids = np.asarray(self._indices[start : start + step], np.int64)
            found = found.merge(self._statistics_of(Selection.of(self._pool, ids)))
        return found

    def _statistics_of(self, selection: Selection) -> Statistics:
        arrays: dict[str, NDArray[Any]] = {}
        for name, column in self._schema.columns.items():
            if name in self._statistics.columns:
                shape = (selection.column_rows(name).total, *stored_row_shape(column))
                arrays[name] = np.empty(shape, STORAGE[column.dtype])
                selection.column(name, arrays[name])
        sizes = {axis: selection.axis_rows(axis).lengths for axis in self._schema.size_axes}
        lengths = {name: selection.column_rows(name).lengths for name in self._schema.columns}
        return Statistics.of_shard(self._schema, arrays, sizes, lengths)

    @property
    def num_graphs(self) -> int:
        """Number of graphs of the dataset or subset."""
        return self._pool.num_graphs if self._indices is None else len(self._indices)

    def sizes(self, axis: str) -> NDArray[np.int64]:
        """Rows of each graph on a node or edge axis: int64 [G]. Reads ptr."""
        numbers = np.arange(len(self._pool.entries))
        shards = [self._pool.shard(number) for number in numbers.tolist()]
        self._pool.check(numbers)
        parts = [shard.lengths(axis) for shard in shards]
        sizes: NDArray[np.int64] = np.concatenate([np.empty(0, np.int64), *parts])
        indices = self._indices
        if indices is None:
            return sizes
        chosen: NDArray[np.int64] = sizes[np.asarray(indices, np.int64)]
        return chosen

    def totals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Nodes and edges of each graph, all types together."""
        axes = self._axes()
        nodes = [self.sizes(axis) for key, axis in axes if not _is_edge(key, axis)]
        edges = [self.sizes(axis) for key, axis in axes if _is_edge(key, axis)]
        none = np.zeros(self.num_graphs, np.int64)  # a dataset may have no edge types
        return np.sum([none, *nodes], axis=0), np.sum([none, *edges], axis=0)

    def _axes(self) -> list[tuple[StoreKey, str]]:
        nodes = [(store.key, str(store.node_axis)) for store in self._schema.node_stores]
        return nodes + [(store.key, str(store.edge_axis)) for store in self._schema.edge_stores]

    def num_classes(self) -> int | None:
        """PyG's number of classes where the manifest tells it; None where labels must be read."""
        store = self._schema.store(None)
        y = next((a for a in store.attributes if a.name == "y"), None) if store else None
        if y is None:
            return 0
        column = y.column
        if self._indices is not None or column is None or column.row_shape is None:
            return None
        features = int(np.prod(column.row_shape, dtype=np.int64))
        if features != 1 and y.kind == "tensor":
            return column.row_shape[-1]
        found = self._statistics.columns.get(column.name)
        if found is None or column.dtype.startswith(("float", "bfloat", "complex")):
            return None
        return int(found.max[0]) + 1

    def summary(self, name: str) -> Summary:
        """PyG's ``Summary``."""
        per_node: dict[Any, Stats] = {}
        per_edge: dict[Any, Stats] = {}
        for key, axis in self._axes() if self._schema.is_hetero else ():
            target = per_edge if isinstance(key, tuple) else per_node
            target[key] = _stats(self._histogram(axis))
        if self._indices is None:
            names = ("num_nodes", "num_edges") if self._schema.is_hetero else ("node", "edge")
            nodes, edges = (self._stated(name) for name in names)
            count = self._pool.num_graphs
        else:
            nodes, edges = (Histogram.of(total) for total in self.totals())
            count = len(self._indices)
        return Summary(
            name=name,
            num_graphs=count,
            num_nodes=_stats(nodes),
            num_edges=_stats(edges),
            num_nodes_per_type=per_node or None,
            num_edges_per_type=per_edge or None,
        )

    def _histogram(self, axis: str) -> Histogram:
        if self._indices is None:
            return self._stated(axis)
        return Histogram.of(self.sizes(axis))

    def _stated(self, axis: str) -> Histogram:
        """The sizes of an axis by the manifest, which a reader of graphs does not need."""
        found = self._statistics.sizes.get(axis)
        if found is None and axis == "num_edges" and not self._schema.edge_stores:
            return Histogram.of(np.zeros(self._pool.num_graphs, np.int64))
        if found is None:
            raise FormatError(
                f"{self._pool.root}: the manifest's statistics lack the sizes of {axis!r}; "
                "`shardgraph repair` counts them"
            )
        return found


def _is_edge(key: StoreKey, axis: str) -> bool:
    return isinstance(key, tuple) or axis == "edge"


def _stats(histogram: Histogram) -> Stats:
    """As PyG's ``Stats.from_data``: sample deviation, lower median, interpolated quartiles."""
    total = histogram.total
    lower_median = np.searchsorted(np.cumsum(histogram.counts), (total - 1) // 2, side="right")
    scale = np.sqrt(total / (total - 1)) if total > 1 else np.nan
    return Stats(
        mean=histogram.mean,
        std=float(histogram.std * scale),
        min=float(histogram.values[0]),
        quantile25=histogram.quantile(0.25),
        median=float(histogram.values[lower_median]),
        quantile75=histogram.quantile(0.75),
        max=float(histogram.values[-1]),
    )
