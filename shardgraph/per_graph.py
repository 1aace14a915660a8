"""One number for each graph, as NumPy arrays: sizes from ptr, labels from the column of ``y``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.facts import Facts
from shardgraph.format.layout import COMPLEX, RAW_BITS, STORAGE
from shardgraph.format.moments import decoded
from shardgraph.format.schema import NUMBERS, Column, Schema
from shardgraph.shards.gather import Selection
from shardgraph.shards.pool import ShardPool

_CHUNK = 1 << 17
"""Labels read at a time: a few MB of indices."""

_NO_NUMBERS = COMPLEX | RAW_BITS - {"bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSizes:
    """How large each graph is: read-only int32 arrays [G] (int64 where one needs it)."""

    num_nodes: NDArray[np.signedinteger]
    """Nodes, all types together."""
    num_edges: NDArray[np.signedinteger]
    """Edges, all types together."""
    num_nodes_dict: Mapping[str, NDArray[np.signedinteger]]
    """Nodes by type; empty where there are no types."""
    num_edges_dict: Mapping[tuple[str, str, str], NDArray[np.signedinteger]]
    """Edges by type; empty where there are no types."""

    def select(self, indices: Sequence[int] | NDArray[np.int64]) -> GraphSizes:
        """The sizes of some graphs: views if ``indices`` is a range, else copies."""
        return GraphSizes(
            num_nodes=select(self.num_nodes, indices),
            num_edges=select(self.num_edges, indices),
            num_nodes_dict={k: select(v, indices) for k, v in self.num_nodes_dict.items()},
            num_edges_dict={k: select(v, indices) for k, v in self.num_edges_dict.items()},
        )


def read_sizes(facts: Facts, schema: Schema) -> GraphSizes:
    """The sizes of the graphs that ``facts`` are of. Reads ptr only."""
    nodes: dict[Any, NDArray[Any]] = {
        store.key: _narrow(facts.sizes(str(store.node_axis))) for store in schema.node_stores
    }
    edges: dict[Any, NDArray[Any]] = {
        store.key: _narrow(facts.sizes(str(store.edge_axis))) for store in schema.edge_stores
    }
    none = np.zeros(facts.num_graphs, np.int32)  # there may be no edge types
    return GraphSizes(
        num_nodes=_sum([none, *nodes.values()]),
        num_edges=_sum([none, *edges.values()]),
        num_nodes_dict=nodes if schema.is_hetero else {},
        num_edges_dict=edges if schema.is_hetero else {},
    )


def _sum(arrays: Any) -> NDArray[np.signedinteger]:
    none, *rest = arrays
    return rest[0] if len(rest) == 1 else _narrow(sum(rest, none.astype(np.int64)))


def _narrow(sizes: NDArray[np.signedinteger]) -> NDArray[np.signedinteger]:
    fits = not len(sizes) or sizes.max() <= np.iinfo(np.int32).max
    return _read_only(sizes.astype(np.int32 if fits else np.int64, copy=False))


def read_labels(pool: ShardPool, schema: Schema) -> NDArray[Any]:
    """The value of ``y`` of each graph: [G], or [G, ...] if it has several numbers; read-only.

    Raises:
        ValueError: If the graphs do not have one ``y`` of numbers each.
    """
    column = _label_column(schema)
    shape = (pool.num_graphs, *(column.row_shape or ()))
    labels = np.empty(shape, STORAGE[column.dtype])
    for start in range(0, pool.num_graphs, _CHUNK):
        stop = min(start + _CHUNK, pool.num_graphs)
        selection = Selection.of(pool, np.arange(start, stop, dtype=np.int64))
        if not selection.one_row_each(column.name):
            raise ValueError(
                f"there is no label for each graph: y does not have exactly one row in each of "
                f"graphs {start} to {stop - 1} (labels of nodes are not labels of graphs)"
            )
        selection.column(column.name, labels[start:stop])
    if column.dtype == "bool":
        labels = labels.view(np.bool_)
    elif column.dtype == "bfloat16":
        labels = decoded(labels, column)
    return _read_only(labels.reshape(-1) if labels[:1].size == 1 else labels)


def _label_column(schema: Schema) -> Column:
    store = schema.store(None)
    y = next((a for a in store.attributes if a.name == "y"), None) if store else None
    column = None if y is None else y.column
    if y is None or column is None or column.row_shape is None or column.dtype in _NO_NUMBERS:
        found = "no y" if y is None else f"a y of kind {y.kind!r}"
        raise ValueError(
            f"labels are the numbers of each graph's attribute y; these graphs have {found}"
        )
    if y.kind != "tensor" and y.kind not in NUMBERS:
        raise ValueError(f"labels are numbers; the graphs' y is of kind {y.kind!r}")
    return column


def select(array: NDArray[Any], indices: Sequence[int] | NDArray[np.int64] | None) -> NDArray[Any]:
    """The rows at some indices, read-only: a view if they are a range; all of them for None."""
    if indices is None:
        return array
    if isinstance(indices, range):
        if not indices:
            return array[:0]
        # range(5, -1, -2) ends before the start, which a slice writes as None.
        stop = indices.stop if indices.stop >= 0 else None
        return array[indices.start : stop : indices.step]
    return _read_only(array[np.asarray(indices, np.int64)])


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
