"""Statistics of a dataset that are exact, small, and merged from those of its shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardgraph.errors import FormatError
from shardgraph.format.histogram import Histogram, tally
from shardgraph.format.layout import COMPLEX, INTEGERS, RAW_BITS, quote
from shardgraph.format.moments import BLOCK, ColumnStatistics, decoded
from shardgraph.format.numbers import numbers_of
from shardgraph.format.schema import Attribute, Column, Schema

MAX_CLASSES: Final = 1000
"""Labels with more distinct values than this are not counted by value."""

_WITHOUT: Final = COMPLEX | RAW_BITS - {"bfloat16"}
_RUN = 1 << 18  # edges: about as many are looked at at once, in whole graphs

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What the manifest knows of a dataset's values. A type that a shard lacks counts as empty."""

    num_graphs: int = 0
    columns: dict[str, ColumnStatistics] = field(default_factory=dict)
    """By column name: the columns of numbers that are not complex and not float8."""
    sizes: dict[str, Histogram] = field(default_factory=dict)
    """Nodes or edges per graph, by axis; ``num_nodes``, ``num_edges`` over all types if hetero."""
    labels: dict[str, dict[float, int] | None] = field(default_factory=dict)
    """By column name of a ``y``: finite value to count; None above ``MAX_CLASSES`` values."""
    in_degree: dict[str, Histogram] = field(default_factory=dict)
    """By edge axis: the number of incoming edges of each node of the target type."""
    targets: dict[str, str] = field(default_factory=dict)
    """By edge axis of ``in_degree``: the axis of its target nodes."""

    @classmethod
    def empty(cls) -> Statistics:
        """The statistics of no graph."""
        return cls()

    @classmethod
    def of_shard(
        cls,
        schema: Schema,
        arrays: Mapping[str, NDArray[Any]],
        lengths: Mapping[str, NDArray[np.int64]],
        column_lengths: Mapping[str, NDArray[np.int64]],
    ) -> Statistics:
        """The statistics of one shard.

        Args:
            schema: Its schema.
            arrays: By column name, the rows [n, *row_shape] in the storage dtype of the logical
                dtype (not narrowed), C-contiguous.
            lengths: By axis of ``schema.size_axes``, nodes or edges of each graph [G].
            column_lengths: By column name, rows of each graph [G].
        """
        numeric = [column for store in schema.stores for column in _numeric(store.attributes)]
        edges = list(_edge_columns(schema))
        return cls(
            num_graphs=next(map(len, [*lengths.values(), *column_lengths.values()]), 0),
            columns={c.name: ColumnStatistics.of(arrays[c.name], c) for c in numeric},
            sizes={axis: Histogram.of(length) for axis, length in _sizes(schema, lengths)},
            labels={c.name: _classes(arrays[c.name], c) for c in _labels(schema)},
            in_degree={
                axis: _in_degree(arrays[name][:, 1], column_lengths[name], lengths[target])
                for axis, target, name in edges
            },
            targets={axis: target for axis, target, _ in edges},
        )

    def merge(self, other: Statistics) -> Statistics:
        """The statistics of the graphs of both."""
        return Statistics(
            num_graphs=self.num_graphs + other.num_graphs,
            columns=_union(self.columns, other.columns, ColumnStatistics.merge),
            sizes=_union(
                _filled(self.sizes, dict.fromkeys(other.sizes, self.num_graphs)),
                _filled(other.sizes, dict.fromkeys(self.sizes, other.num_graphs)),
                Histogram.merge,
            ),
            labels=_union(self.labels, other.labels, _merge_classes),
            in_degree=_union(
                _filled(self.in_degree, self._num_targets(other)),
                _filled(other.in_degree, other._num_targets(self)),
                Histogram.merge,
            ),
            targets=self.targets | other.targets,
        )

    def _num_targets(self, other: Statistics) -> dict[str, int]:
        """By edge axis of ``other``, the number of its target nodes here."""
        sizes = self.sizes
        return {e: sizes[n].sum if n in sizes else 0 for e, n in other.targets.items()}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON from which ``from_json`` gives an equal object."""
        return {
            "num_graphs": self.num_graphs,
            "columns": {name: column.to_json() for name, column in self.columns.items()},
            "sizes": {axis: histogram.to_json() for axis, histogram in self.sizes.items()},
            "labels": {
                name: None if found is None else [list(pair) for pair in found.items()]
                for name, found in self.labels.items()
            },
            "in_degree": {
                axis: {"target": self.targets[axis], **histogram.to_json()}
                for axis, histogram in self.in_degree.items()
            },
        }

    @classmethod
    def from_json(cls, doc: dict[str, Any]) -> Statistics:
        """The statistics that a JSON document describes.

        Raises:
            FormatError: if its numbers do not fit together.
            KeyError, TypeError, AttributeError: if it has other entries than ``to_json`` writes.
        """
        degrees = doc["in_degree"]
        return cls(
            num_graphs=numbers_of([doc["num_graphs"]], "int64")[0],
            columns={k: ColumnStatistics.from_json(v) for k, v in doc["columns"].items()},
            sizes={axis: Histogram.from_json(v) for axis, v in doc["sizes"].items()},
            labels={
                name: None if pairs is None else dict(map(_label, pairs))
                for name, pairs in doc["labels"].items()
            },
            in_degree={axis: Histogram.from_json(v) for axis, v in degrees.items()},
            targets={axis: _text(v["target"]) for axis, v in degrees.items()},
        )


# Moments of one block


def _sizes(
    schema: Schema, lengths: Mapping[str, NDArray[np.int64]]
) -> Iterator[tuple[str, NDArray[np.int64]]]:
    for axis in schema.size_axes:
        yield axis, lengths[axis]
    if schema.is_hetero:
        for name, prefix in (("num_nodes", "node/"), ("num_edges", "edge/")):
            parts = [lengths[axis] for axis in schema.size_axes if axis.startswith(prefix)]
            if parts:
                yield name, np.sum(parts, axis=0)


def _numeric(attributes: tuple[Attribute, ...]) -> Iterator[Column]:
    for attribute in attributes:
        column = attribute.column
        if column is None:
            yield from _numeric(attribute.items)
        elif attribute.kind not in {"str", "json"} and column.dtype not in _WITHOUT:
            yield column


def _labels(schema: Schema) -> Iterator[Column]:
    for store in schema.stores:
        if not isinstance(store.key, tuple):
            yield from _numeric(tuple(a for a in store.attributes if a.name == "y" and a.column))


def _classes(rows: NDArray[Any], column: Column) -> dict[float, int] | None:
    values = rows.reshape(-1)
    found: Counter[float] = Counter()
    for start in range(0, len(values), BLOCK):
        block = decoded(values[start : start + BLOCK], column)
        distinct, counts = np.unique(block[np.isfinite(block)], return_counts=True)
        found.update(dict(zip(distinct.tolist(), counts.tolist(), strict=True)))
        if len(found) > MAX_CLASSES:
            return None
    return dict(sorted(found.items()))


def _merge_classes(
    a: dict[float, int] | None, b: dict[float, int] | None
) -> dict[float, int] | None:
    if a is None or b is None or len(a.keys() | b.keys()) > MAX_CLASSES:
        return None
    return dict(sorted((Counter(a) + Counter(b)).items()))


def _edge_columns(schema: Schema) -> Iterator[tuple[str, str, str]]:
    """Of every ``edge_index`` [2, E] whose target type has nodes: edge axis, node axis, column."""
    for store in schema.edge_stores:
        target = f"node/{quote(store.key[2])}" if isinstance(store.key, tuple) else "node"
        for attribute in store.attributes:
            if attribute.name != "edge_index" or attribute.kind not in {"tensor", "edge_index"}:
                continue
            column = next(attribute.columns())
            along_edges = column.row_shape == (2,) and column.cat_dim in {1, -1}
            if along_edges and column.dtype in INTEGERS and target in schema.size_axes:
                yield str(store.edge_axis), target, column.name


def _in_degree(
    targets: NDArray[Any], num_edges: NDArray[np.int64], num_nodes: NDArray[np.int64]
) -> Histogram:
    """In-degrees of all nodes of graphs [G], from the local target of every edge [E]."""
    ptr = np.concatenate([[0], np.cumsum(num_edges)])
    cuts = np.searchsorted(ptr, np.arange(_RUN, ptr[-1], _RUN))
    result = Histogram.of(np.zeros(0, np.int64))
    for local, edges, nodes in zip(
        np.split(targets, ptr[cuts]),
        np.split(num_edges, cuts),
        np.split(num_nodes, cuts),
        strict=True,
    ):
        local = local.astype(np.int64)
        valid = (local >= 0) & (local < np.repeat(nodes, edges))
        local += np.repeat(np.cumsum(nodes) - nodes, edges)
        _, degrees = tally(local[valid])
        run = Histogram.of(degrees).plus(0, int(nodes.sum()) - len(degrees))
        result = result.merge(run)
    return result


def _label(pair: Any) -> list[Any]:
    """A value and its count, from JSON."""
    return [*numbers_of(pair[:1], "float64"), *numbers_of(pair[1:], "int64")]


def _text(value: Any) -> str:
    if type(value) is not str:
        raise FormatError(f"the axis of target nodes must be text, got {value!r}")
    return value


def _union(a: dict[str, T], b: dict[str, T], both: Callable[[T, T], T]) -> dict[str, T]:
    """The entries of either, those of both put together."""
    return {**a, **b, **{key: both(a[key], b[key]) for key in a if key in b}}


def _filled(histograms: dict[str, Histogram], zeros: Mapping[str, int]) -> dict[str, Histogram]:
    """The histograms, and one of nothing but zeros for each axis they lack."""
    none = Histogram.of(np.zeros(0, np.int64))
    return {**{axis: none.plus(0, n) for axis, n in zeros.items()}, **histograms}
