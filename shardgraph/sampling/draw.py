"""Weighted draws: which graphs an epoch uses, and how often, from one weight a graph."""

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardgraph.sampling.arguments import integer
from shardgraph.sampling.permute import DRAW, key

_CHUNK = 1 << 16
"""Numbers that are replaced in place at a time, so that a draw takes 16 bytes a graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedDraw:
    """Draws ``num_samples`` graphs for each epoch: a pure function of (weights, seed, epoch)."""

    weights: NDArray[np.float64]
    num_samples: int
    replacement: bool
    seed: int

    def __post_init__(self) -> None:
        available = int(np.count_nonzero(self.weights))
        if self.num_samples > available and not (self.replacement and available):
            raise ValueError(
                f"num_samples={self.num_samples} cannot be drawn: {available} graphs have a weight "
                f"above 0 and may be drawn, with replacement={self.replacement}."
            )

    def items(self, epoch: int) -> NDArray[np.int64]:
        """Return the graphs drawn for ``epoch``, sorted: int64 [num_samples].

        With replacement each draw takes graph ``i`` with probability ``w[i] / sum(w)``. Without,
        the graphs are drawn one after the other, each among those that are left (`Efraimidis and
        Spirakis <https://doi.org/10.1016/j.ipl.2005.11.003>`_).
        """
        words = key(self.seed, epoch, DRAW)
        return (self._with if self.replacement else self._without)(words)

    def identity(self) -> dict[str, int | bool]:
        """Return what tells this draw from another, beside the seed."""
        return {
            "weights_crc32": zlib.crc32(self.weights.astype("<f8").tobytes()),
            "num_samples": self.num_samples,
            "replacement": self.replacement,
        }

    def _with(self, words: list[int]) -> NDArray[np.int64]:
        if not self.num_samples:
            return np.empty(0, np.int64)
        places = _uniform(self.num_samples, words)
        # Sorted, so that looking them up walks through the sums once.
        places.sort()
        sums = np.cumsum(self.weights)
        # Rounding can put a place at the very end of the sums, where no graph is.
        last = int(np.searchsorted(sums, sums[-1]))
        items = places.view(np.int64)
        for start in range(0, len(items), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            found = np.searchsorted(sums, places[chunk] * sums[-1], side="right")
            items[chunk] = np.minimum(found, last)
        return items

    def _without(self, words: list[int]) -> NDArray[np.int64]:
        candidates = np.flatnonzero(self.weights)
        # As in an exponential race: the graph whose clock, of rate w, rings first is drawn first.
        # Logarithms may differ by a bit between machines; that moves the last graph drawn about
        # once in 10**9 epochs.
        rings = -np.log1p(-_uniform(len(candidates), words))
        with np.errstate(over="ignore"):
            rings /= self.weights[candidates]
        if self.num_samples < len(candidates):
            candidates = candidates[np.argpartition(rings, self.num_samples)[: self.num_samples]]
        return np.sort(candidates)


def read_draw(
    weights: ArrayLike | None,
    num_samples: int | None,
    *,
    replacement: bool,
    num_graphs: int,
    seed: int,
) -> WeightedDraw | None:
    """Return the draw that a plan's arguments ask for; None without weights.

    Raises:
        TypeError: If the weights are no real numbers.
        ValueError: If they are not one finite number from 0 on for each graph, their sum is not
            finite, or they do not allow ``num_samples``.
    """
    if weights is None:
        if num_samples is not None or not replacement:
            raise ValueError(
                "num_samples and replacement say how to draw by weights: give weights too "
                "(ones draw all graphs alike)."
            )
        return None
    array = _weight_array(weights, num_graphs)
    if num_samples is None and not replacement:
        raise ValueError(
            "replacement=False needs num_samples: without it every graph would come once, whatever "
            "its weight."
        )
    return WeightedDraw(
        weights=array,
        num_samples=num_graphs if num_samples is None else integer("num_samples", num_samples, 0),
        replacement=bool(replacement),
        seed=seed,
    )


def _weight_array(weights: ArrayLike, num_graphs: int) -> NDArray[np.float64]:
    array = np.asarray(weights)
    if array.size and array.dtype.kind not in "iuf":
        raise TypeError(f"weights must be real numbers, got dtype {array.dtype}.")
    if array.shape != (num_graphs,):
        raise ValueError(
            f"weights must have one number for each of {num_graphs} graphs, got shape "
            f"{array.shape}."
        )
    array = array.astype(np.float64)  # a copy: the plan must not change with the caller's array
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(wrong):
        raise ValueError(
            f"weights must be finite and not negative, got {array[wrong[0]]} for graph {wrong[0]}."
        )
    with np.errstate(over="ignore"):
        if not np.isfinite(array.sum()):
            raise ValueError(
                "weights must have a finite sum, and add up to more than a float64 holds; only "
                "their proportions count: divide them by the largest."
            )
    return array


def balanced_weights(labels: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return weights that draw every class equally often: 1 over its number of graphs.

    Args:
        labels: Class of each graph: [G], integers, bools, or floats that are whole numbers.

    Returns:
        float64 [G].

    Raises:
        ValueError: If the labels are not one class for each graph.
    """
    whole = labels.dtype.kind in "iub" or (
        labels.dtype.kind == "f" and bool((np.floor(labels) == labels).all())
    )
    if labels.ndim != 1 or not whole:
        raise ValueError(
            "balanced weights need one class for each graph, as a whole number; got labels of "
            f"shape {list(labels.shape)} and dtype {labels.dtype}. Give an array of weights."
        )
    _, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return np.asarray(1 / counts[places])


def _uniform(num: int, words: list[int]) -> NDArray[np.float64]:
    """Return numbers from 0 up to 1, the same for good (see `permutation`): float64 [num]."""
    raw = np.random.PCG64(words).random_raw(num)
    raw >>= np.uint64(11)
    uniform = raw.view(np.float64)
    for start in range(0, num, _CHUNK):
        uniform[start : start + _CHUNK] = raw[start : start + _CHUNK] * 2.0**-53
    return uniform
