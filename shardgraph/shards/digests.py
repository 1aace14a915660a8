"""Digests of runs of graphs, kept beside a shard's arrays so that damage can be named.

Of an array, one xxh3_64 for each run of `RUN` graphs' rows (of `RUN` rows where rows are not
graphs'), over the bytes as stored, before compression; then one over those numbers themselves.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardgraph.atomic import digest64

RUN: Final = 1024
"""Graphs a digest covers."""


def run_cuts(num_rows: int, ptr: NDArray[np.int64] | None = None) -> list[int]:
    """First row of every run, and the end of the last: `RUN` graphs by ``ptr``, or `RUN` rows."""
    if ptr is None:
        return [*range(0, num_rows, RUN), num_rows]
    return [*ptr[:-1:RUN].tolist(), int(ptr[-1])]


def run_digests(array: Any, cuts: list[int]) -> NDArray[np.uint64]:
    """Digests of an array's runs, and their own: uint64 [len(cuts)].

    ``array`` needs only slices of rows, little-endian and C-contiguous.
    """
    found = [digest64(array[start:stop]) for start, stop in itertools.pairwise(cuts)]
    runs = np.array(found, np.uint64)
    return np.append(runs, np.uint64(digest64(runs)))


def is_intact(digests: NDArray[np.uint64]) -> bool:
    """Whether digests as read are as they were written."""
    return len(digests) > 0 and digest64(digests[:-1]) == int(digests[-1])
