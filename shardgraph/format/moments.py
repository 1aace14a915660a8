"""Count, mean, deviation and extremes of a column, exact and mergeable.

Moments use the corrected two-pass formula within a block and Chan, Golub and LeVeque's rule between
blocks (https://doi.org/10.1080/00031305.1983.10483115). The mean is kept to twice the precision of
a float64, so that shards of large values with little spread merge without cancellation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardgraph.errors import FormatError
from shardgraph.format.numbers import array_of, numbers_of, numbers_to_json
from shardgraph.format.schema import Column

MAX_FEATURES: Final = 256
"""Rows of up to this many values get statistics per value, longer ones over the whole column."""

BLOCK = 1 << 15  # values: a block's float64 copy (256 KiB) stays in the L2 cache
_WIDTH = 512  # values: narrow rows are folded to about this width, or NumPy reduces them one by one
_FAN_IN = 256  # blocks merged at once: bounds what is held of a column of any length


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
        if (self.observed < 0).any() or sum(self.observed.tolist()) > self.count:
            raise FormatError(
                f"column statistics of {self.count} values observe more, or fewer than 0"
            )

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
                parts.append(_block_statistics(decoded(block, column), features))
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
            **{name: numbers_to_json(getattr(self, name).tolist()) for name in numbers},
            "std": numbers_to_json(self.std.tolist()),
            "dtype": str(self.min.dtype),
        }

    @classmethod
    def from_json(cls, doc: dict[str, Any]) -> ColumnStatistics:
        """The inverse of ``to_json``; see ``Statistics.from_json`` for errors."""
        dtype = doc["dtype"]
        if dtype not in {"int64", "uint64", "float64"}:
            raise FormatError(f"statistics of dtype {dtype!r}, not int64, uint64 or float64")
        return cls(
            count=numbers_of([doc["count"]], "int64")[0],
            observed=array_of(doc["observed"], "int64"),
            mean=array_of(doc["mean"], "float64"),
            mean_rest=array_of(doc["mean_rest"], "float64"),
            m2=array_of(doc["m2"], "float64"),
            min=array_of(doc["min"], dtype),
            max=array_of(doc["max"], dtype),
        )


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
    step = wide * max(1, BLOCK // (wide * features))
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        whole = len(block) - len(block) % wide
        if whole:
            yield block[:whole].reshape(-1, wide * features)
        if whole < len(block):
            yield block[whole:]


def decoded(values: NDArray[Any], column: Column) -> NDArray[Any]:
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
