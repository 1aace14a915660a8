"""Statistics of a dataset that are exact, small, and merged from those of its shards.

Moments use the corrected two-pass formula within a block and Chan, Golub and LeVeque's rule between
blocks (https://doi.org/10.1080/00031305.1983.10483115). The mean is kept to twice the precision of
a float64, so that shards of large values with little spread merge without cancellation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from shardgraph.errors import FormatError
from shardgraph.format.layout import COMPLEX, INTEGERS, RAW_BITS, quote
from shardgraph.format.schema import Attribute, Column, Schema

MAX_FEATURES: Final = 256
"""Rows of up to this many values get statistics per value, longer ones over the whole column."""

MAX_CLASSES: Final = 1000
"""Labels with more distinct values than this are not counted by value."""

_WITHOUT: Final = COMPLEX | RAW_BITS - {"bfloat16"}
_BLOCK = 1 << 15  # values: a block's float64 copy (256 KiB) stays in the L2 cache
_WIDTH = 512  # values: narrow rows are folded to about this width, or NumPy reduces them one by one
_RUN = 1 << 18  # edges: about as many are looked at at once, in whole graphs
_FAN_IN = 256  # blocks merged at once: bounds what is held of a column of any length

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnStatistics:
    """Moments and extremes of one column; arrays [F], one entry per value of a row, or F = 1.

    NaN are counted, and left out of everything else. Where no value is left, ``mean``, ``std``,
    ``min`` and ``max`` are NaN. Infinite values give what NumPy gives: a mean of inf, a std of NaN.
    """

    count: int
    """Number of values of the whole column, NaN included."""
    observed: NDArray[np.int64]
    """Values per feature that are not NaN."""
    mean: NDArray[np.float64]
    mean_rest: NDArray[np.float64]
    """What the mean is beyond the precision of ``mean``; makes merging exact."""
    m2: NDArray[np.float64]
    """Sum of the squared distances to the mean."""
    min: NDArray[Any]
    """float64; int64 or uint64 for a column of integers or booleans, so exact."""
    max: NDArray[Any]

    def __post_init__(self) -> None:
        arrays = (self.observed, self.mean, self.mean_rest, self.m2, self.min, self.max)
        if len({array.shape for array in arrays}) > 1:
            raise FormatError(f"column statistics of unequal lengths: {[len(a) for a in arrays]}")

    @property
    def nan(self) -> int:
        """Number of NaN in the whole column."""
        return self.count - int(self.observed.sum())

    @property
    def var(self) -> NDArray[np.float64]:
        """Population variance (divided by n, as NumPy does)."""
        with np.errstate(all="ignore"):
            return self.m2 / self.observed

    @property
    def std(self) -> NDArray[np.float64]:
        """Population standard deviation; ``sqrt(m2 / (observed - 1))`` is the sample's."""
        return np.sqrt(self.var)

    @property
    def total(self) -> NDArray[np.float64]:
        """Sum of the values per feature."""
        with np.errstate(all="ignore"):
            return np.where(self.observed > 0, self.mean * self.observed, 0.0)

    @classmethod
    def of(cls, rows: NDArray[Any], column: Column) -> ColumnStatistics:
        """The statistics of a column's rows [n, *row_shape], in the storage dtype of its dtype."""
        features = _num_features(column)
        parts: list[ColumnStatistics] = []
        with np.errstate(all="ignore"):
            for block in _blocks(rows.reshape(-1, features) if rows.size else rows, features):
                parts.append(_block_statistics(_decoded(block, column), features))
                if len(parts) == _FAN_IN:
                    parts = [cls.merge(*parts)]
        return cls.merge(*parts) if parts else cls._nothing(features)

    @classmethod
    def _nothing(cls, features: int) -> ColumnStatistics:
        zero, nan = np.zeros(features), np.full(features, np.nan)
        observed = np.zeros(features, np.int64)
        return cls(count=0, observed=observed, mean=nan, mean_rest=zero, m2=zero, min=nan, max=nan)

    @classmethod
    def merge(cls, first: ColumnStatistics, *others: ColumnStatistics) -> ColumnStatistics:
        """The statistics of the parts put together."""
        parts = [part for part in (first, *others) if part.count]
        if len(parts) < 2:
            return parts[0] if parts else first
        count = np.stack([part.observed for part in parts])
        means = np.stack([part.mean for part in parts])
        with np.errstate(all="ignore"):
            pivot = np.take_along_axis(means, count.argmax(axis=0)[None], axis=0)[0]
            delta = (means - pivot) + np.stack([part.mean_rest for part in parts])
            delta[count == 0] = 0.0
            observed = count.sum(axis=0)
            shift = (count * delta).sum(axis=0) / np.maximum(observed, 1)
            between = delta - shift
            slack = (count * between).sum(axis=0)
            m2 = np.sum([part.m2 for part in parts], axis=0) + (count * between**2).sum(axis=0)
            mean, rest = _two_sum(pivot, shift)
            infinite = (~np.isfinite(means) & (count > 0)).any(axis=0)
            return cls(
                count=sum(part.count for part in parts),
                observed=observed,
                mean=np.where(infinite, np.where(count > 0, means, 0.0).sum(axis=0), mean),
                mean_rest=np.where(np.isfinite(mean), rest, 0.0),
                m2=np.where(
                    infinite, np.nan, np.maximum(m2 - slack**2 / np.maximum(observed, 1), 0.0)
                ),
                min=np.fmin.reduce([part.min for part in parts]),
                max=np.fmax.reduce([part.max for part in parts]),
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ColumnStatistics) and self.to_json() == other.to_json()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON from which ``from_json`` gives an equal object."""
        numbers = ("mean", "mean_rest", "m2", "min", "max")
        return {
            "count": self.count,
            "nan": self.nan,
            "observed": self.observed.tolist(),
            **{name: _to_json(getattr(self, name).tolist()) for name in numbers},
            "std": _to_json(self.std.tolist()),
            "dtype": str(self.min.dtype),
        }

    @classmethod
    def from_json(cls, doc: dict[str, Any]) -> ColumnStatistics:
        """The inverse of ``to_json``; see ``Statistics.from_json`` for errors."""
        dtype = doc["dtype"]
        if dtype not in {"int64", "uint64", "float64"}:
            raise FormatError(f"statistics of dtype {dtype!r}, not int64, uint64 or float64")
        return cls(
            count=_numbers([doc["count"]], "int64")[0],
            observed=_array(doc["observed"], "int64"),
            mean=_array(doc["mean"], "float64"),
            mean_rest=_array(doc["mean_rest"], "float64"),
            m2=_array(doc["m2"], "float64"),
            min=_array(doc["min"], dtype),
            max=_array(doc["max"], dtype),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Histogram:
    """How often each non-negative integer occurs.

    Example:
        >>> sizes = Histogram.of(np.array([3, 5, 3, 9]))
        >>> sizes.mean, sizes.quantile(0.5), sizes.values.tolist(), sizes.counts.tolist()
        (5.0, 4.0, [3, 5, 9], [2, 1, 1])
    """

    values: NDArray[np.int64]
    """The values that occur, ascending."""
    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.values.shape != self.counts.shape:
            raise FormatError(f"{len(self.values)} values with {len(self.counts)} counts")
        if (np.diff(self.values, prepend=-1) <= 0).any() or (self.counts <= 0).any():
            raise FormatError("a histogram's values must ascend from 0 and its counts be positive")

    @classmethod
    def of(cls, data: NDArray[np.int64]) -> Histogram:
        """The histogram of non-negative integers [n]."""
        values, counts = _tally(data)
        return cls(values=values, counts=counts)

    @property
    def total(self) -> int:
        """Number of integers counted."""
        return int(self.counts.sum())

    @property
    def sum(self) -> int:
        """Sum of the integers counted."""
        return int(self.values @ self.counts)

    @property
    def mean(self) -> float:
        """Their mean; NaN if there are none."""
        return self.sum / self.total if self.total else math.nan

    @property
    def std(self) -> float:
        """Their population standard deviation; NaN if there are none."""
        if not self.total:
            return math.nan
        return math.sqrt(float((self.counts * (self.values - self.mean) ** 2).sum()) / self.total)

    def quantile(self, q: float) -> float:
        """The q-quantile with linear interpolation, as ``torch.quantile``; NaN if there are none.

        Raises:
            ValueError: if ``q`` is not in [0, 1].
        """
        if not 0 <= q <= 1:
            raise ValueError(f"q must be in [0, 1], got {q}")
        if not self.total:
            return math.nan
        rank = q * (self.total - 1)
        ends = np.cumsum(self.counts)
        around = np.array([math.floor(rank), math.ceil(rank)])
        low, high = self.values[np.searchsorted(ends, around, side="right")].tolist()
        weight = rank - math.floor(rank)
        span = high - low
        return float(low + span * weight if weight < 0.5 else high - span * (1 - weight))

    def dense(self) -> NDArray[np.int64]:
        """Counts of 0, 1, ..., the largest value: the ``deg`` of PyG's ``PNAConv``."""
        result = np.zeros(int(self.values[-1]) + 1 if len(self.values) else 0, np.int64)
        result[self.values] = self.counts
        return result

    def plus(self, value: int, count: int) -> Histogram:
        """The histogram with ``value`` counted ``count`` more times."""
        if not count:
            return self
        return self.merge(Histogram(values=np.array([value]), counts=np.array([count])))

    def merge(self, other: Histogram) -> Histogram:
        """The histogram of both together."""
        values, index = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
        counts = np.zeros(len(values), np.int64)
        np.add.at(counts, index, np.concatenate([self.counts, other.counts]))
        return Histogram(values=values, counts=counts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self.to_json() == other.to_json()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON from which ``from_json`` gives an equal object."""
        return {"values": self.values.tolist(), "counts": self.counts.tolist()}

    @classmethod
    def from_json(cls, doc: dict[str, Any]) -> Histogram:
        """The inverse of ``to_json``; see ``Statistics.from_json`` for errors."""
        return cls(values=_array(doc["values"], "int64"), counts=_array(doc["counts"], "int64"))


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
            num_graphs=_numbers([doc["num_graphs"]], "int64")[0],
            columns={k: ColumnStatistics.from_json(v) for k, v in doc["columns"].items()},
            sizes={axis: Histogram.from_json(v) for axis, v in doc["sizes"].items()},
            labels={
                name: None if pairs is None else dict(_numbers(p, "float64") for p in pairs)
                for name, pairs in doc["labels"].items()
            },
            in_degree={axis: Histogram.from_json(v) for axis, v in degrees.items()},
            targets={axis: v["target"] for axis, v in degrees.items()},
        )


# Moments of one block


def _num_features(column: Column) -> int:
    if column.row_shape is None:
        return 1
    size = math.prod(column.row_shape)
    return size if size <= MAX_FEATURES else 1


def _blocks(rows: NDArray[Any], features: int) -> Iterator[NDArray[Any]]:
    """Rows [n, F] in blocks [h, k * F], k rows side by side."""
    if not rows.size:
        return
    wide = max(1, _WIDTH // features)
    step = wide * max(1, _BLOCK // (wide * features))
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        whole = len(block) - len(block) % wide
        if whole:
            yield block[:whole].reshape(-1, wide * features)
        if whole < len(block):
            yield block[whole:]


def _decoded(values: NDArray[Any], column: Column) -> NDArray[Any]:
    """Values in a dtype that NumPy calculates in at full speed, none of them changed."""
    if column.dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    if values.dtype == np.float16:
        return values.astype(np.float32)
    return values.view(np.uint8) if values.dtype == np.bool_ else values


def _block_statistics(block: NDArray[Any], features: int) -> ColumnStatistics:
    """The statistics of a block [h, k * features]."""

    def fold(ufunc: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
        folded: NDArray[Any] = ufunc.reduce(values, axis=0).reshape(-1, features)
        return np.asarray(ufunc.reduce(folded, axis=0))

    data = block.astype(np.float64)
    count = np.full(features, block.size // features)
    total = fold(np.add, data)
    low, high = fold(np.minimum, block), fold(np.maximum, block)
    missing = np.isnan(block) if np.isnan(total).any() else None
    if missing is not None:
        count -= fold(np.add, missing.astype(np.int64))
        data[missing] = 0.0
        total = fold(np.add, data)
        low, high = fold(np.fmin, block), fold(np.fmax, block)
    mean = np.where(low == high, low, total / count)
    data -= np.tile(mean, data.shape[1] // features)
    if missing is not None:
        data[missing] = 0.0
    slack = fold(np.add, data)
    rest = np.where(count > 0, slack / count, 0.0)
    m2 = np.maximum(fold(np.add, np.square(data, out=data)) - slack * rest, 0.0)
    wide = low.dtype if low.dtype == np.uint64 else np.int64
    dtype = np.float64 if low.dtype.kind == "f" else wide
    return ColumnStatistics(
        count=block.size,
        observed=count,
        mean=mean,
        mean_rest=np.where(np.isfinite(mean), rest, 0.0),
        m2=m2,
        min=low.astype(dtype),
        max=high.astype(dtype),
    )


def _two_sum(
    a: NDArray[np.float64], b: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The rounded sum and its rounding error, exactly (Knuth)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


# Counts


def _tally(data: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct non-negative integers of [n], ascending, and how often each occurs."""
    if data.size and data.max() < 4 * data.size + 1024:
        counts = np.bincount(data)
        values = np.flatnonzero(counts)
        return values, counts[values]
    return np.unique(data, return_counts=True)


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
    for start in range(0, len(values), _BLOCK):
        block = _decoded(values[start : start + _BLOCK], column)
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
        _, degrees = _tally(local[valid])
        run = Histogram.of(degrees).plus(0, int(nodes.sum()) - len(degrees))
        result = result.merge(run)
    return result


def _union(a: dict[str, T], b: dict[str, T], both: Callable[[T, T], T]) -> dict[str, T]:
    """The entries of either, those of both put together."""
    return {**a, **b, **{key: both(a[key], b[key]) for key in a if key in b}}


def _filled(histograms: dict[str, Histogram], zeros: Mapping[str, int]) -> dict[str, Histogram]:
    """The histograms, and one of nothing but zeros for each axis they lack."""
    none = Histogram.of(np.zeros(0, np.int64))
    return {**{axis: none.plus(0, n) for axis, n in zeros.items()}, **histograms}


# JSON has neither NaN nor infinity

_SPECIAL = {None: math.nan, "inf": math.inf, "-inf": -math.inf}


def _to_json(numbers: list[Any]) -> list[float | str | None]:
    return [
        value if math.isfinite(value) else None if math.isnan(value) else str(value)
        for value in numbers
    ]


def _numbers(values: list[Any], dtype: str) -> list[Any]:
    kinds = {int, float} if dtype == "float64" else {int}
    return [value if type(value) in kinds else _SPECIAL[value] for value in values]


def _array(values: list[Any], dtype: str) -> NDArray[Any]:
    try:
        return np.array(_numbers(values, dtype), dtype)
    except OverflowError as error:
        raise FormatError(f"a number is too large for {dtype}: {error}") from error
