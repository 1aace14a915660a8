"""Indexing: which graphs of a dataset an index means, as PyG has it, but in NumPy throughout.

A subset is its indices into the whole dataset: a range, or int64 [G]. Positions count the graphs of
a subset, ids those of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from shardgraph.shards.advise import sorted_ranges

Indices: TypeAlias = "range | NDArray[np.int64]"


def as_number(idx: Any) -> int | None:
    """An index of one graph as an int, also True and False, as lists take them; else None."""
    if isinstance(idx, (int, np.integer)):
        return int(idx)
    zero_dim = isinstance(idx, (np.ndarray, Tensor)) and idx.ndim == 0
    number = idx.item() if zero_dim else None
    return number if type(number) is int else None


def choose(indices: Indices, idx: Any) -> Indices:
    """The indices of the subset at ``idx``: a slice, indices or a mask, as PyG takes them.

    Raises:
        IndexError: if an index is out of range, a mask has not as many entries as there are
            graphs, or ``idx`` is none of these.
    """
    size = len(indices)
    if not isinstance(idx, slice):
        return ids_at(indices, _positions(idx, size))
    start, stop = (
        round(end * size) if isinstance(end, float) else end for end in (idx.start, idx.stop)
    )
    return indices[start : stop : idx.step]


def ids_at(indices: Indices, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ids at some positions, negative ones counting from the end.

    Raises:
        IndexError: if a position is out of range.
    """
    size = len(indices)
    if len(positions):
        low, high = np.minimum.reduce(positions), np.maximum.reduce(positions)
        if not (-size <= low and high < size):
            raise IndexError(f"positions {low} to {high} in a dataset of {size} graphs")
        if low < 0:
            positions = np.where(positions < 0, positions + size, positions)
    if isinstance(indices, range):
        if indices.step == 1 and indices.start == 0:
            return positions
        return positions * indices.step + indices.start
    return np.asarray(indices[positions], np.int64)


def id_ranges(
    indices: Indices, ranges: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Half-open ranges of positions, int64 [n, 2], as such ranges of ids: firsts and lasts."""
    if isinstance(indices, range) and indices.step == 1:
        return ranges[:, 0] + indices.start, ranges[:, 1] + indices.start
    parts = [np.arange(start, stop) for start, stop in ranges.tolist()]
    return sorted_ranges(ids_at(indices, np.concatenate([np.empty(0, np.int64), *parts])))


def _positions(idx: Any, size: int) -> NDArray[np.int64]:
    """Indices or a mask as int64 positions, in memory of their own: a caller reuses arrays."""
    if isinstance(idx, Tensor):
        idx = idx.cpu().numpy()
    elif isinstance(idx, Sequence) and not isinstance(idx, str):
        idx = np.asarray(idx if len(idx) else np.empty(0, np.int64))
        idx = idx if idx.ndim == 1 else list(idx)
    if not isinstance(idx, np.ndarray) or idx.dtype.kind not in "biu" or idx.dtype == np.uint8:
        kind = type(idx).__name__ + (f" of {idx.dtype}" if hasattr(idx, "dtype") else "")
        raise IndexError(
            f"index a dataset by an int, a slice, or a list, tensor or array of ints or bools; "
            f"got {kind}"
        )
    idx = idx.reshape(-1)
    if idx.dtype == bool:
        if len(idx) != size:
            raise IndexError(f"a mask of length {len(idx)} for a dataset of {size} graphs")
        idx = np.flatnonzero(idx)
    return np.array(idx, np.int64)
