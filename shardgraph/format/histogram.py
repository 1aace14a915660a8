"""A histogram of whole numbers: how many graphs, nodes, ... have each value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.errors import FormatError
from shardgraph.format.numbers import array_of


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
        is_ascending = (self.values >= 0).all() and (self.values[1:] > self.values[:-1]).all()
        if not is_ascending or (self.counts <= 0).any():
            raise FormatError("a histogram's values must ascend from 0 and its counts be positive")
        counts = self.counts.astype(np.float64)
        if max(counts.sum(), counts @ self.values.astype(np.float64)) >= 1 << 63:
            raise FormatError("a histogram's counts and sum must fit into 64 bits")

    @classmethod
    def of(cls, data: NDArray[np.int64]) -> Histogram:
        """The histogram of non-negative integers [n]."""
        values, counts = tally(data)
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
        return cls(values=array_of(doc["values"], "int64"), counts=array_of(doc["counts"], "int64"))


def tally(data: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct non-negative integers of [n], ascending, and how often each occurs."""
    if data.size and data.max() < 4 * data.size + 1024:
        counts = np.bincount(data)
        values = np.flatnonzero(counts)
        return values, counts[values]
    return np.unique(data, return_counts=True)
