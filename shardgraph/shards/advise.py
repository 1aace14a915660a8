"""Telling the kernel what will be read next: the bytes of some graphs, in coalesced ranges."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import ModuleType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardgraph.format import layout
from shardgraph.shards.filemap import PAGE
from shardgraph.shards.inspect import Located
from shardgraph.shards.open import Shard
from shardgraph.shards.pool import ShardPool

try:
    import resource
except ImportError:  # Windows
    _RUSAGE: ModuleType | None = None
else:
    _RUSAGE = resource if hasattr(resource, "RUSAGE_THREAD") else None

Ints: TypeAlias = "NDArray[np.int64]"


PROBES = 32
"""Places looked at to tell whether some graphs are cached: at 10 % missing, 97 % are noticed."""


class Advisor:
    """Asks for graphs to be read in the background, unless they are cached anyway."""

    def __init__(self, pool: ShardPool) -> None:
        self._pool = pool

    def ask(self, first: Ints, last: Ints) -> int:
        """Asks for the graphs of half-open id ranges, unless they are found to be cached.

        Returns the number of bytes asked for.
        """
        wanted = list(_ranges(self._pool, first, last))
        if all(self._is_cached(*each) for each in wanted):
            return 0
        for shard, starts, stops in wanted:
            shard.map.will_need(starts, stops)
        return sum(int((stops - starts).sum()) for _, starts, stops in wanted)

    def let_go(self, first: Ints, last: Ints) -> None:
        """Says that the graphs of half-open id ranges are not needed in the page cache.

        Pages that a process has mapped stay: see `ShardPool.forget`.
        """
        for shard, starts, stops in _ranges(self._pool, first, last):
            shard.map.let_go(starts, stops)

    @staticmethod
    def _is_cached(shard: Shard, starts: Ints, stops: Ints) -> bool:
        """Whether a sample of the pages is in memory."""
        lengths = stops - starts
        ends = lengths.cumsum()
        total = int(ends[-1]) if len(ends) else 0
        if total == 0:
            return True
        count = min(PROBES, max(len(starts), total // PAGE))
        # Evenly over the bytes: the pages at both ends of a range may be there for its neighbours.
        points = (total * np.arange(1, 2 * count, 2) / (2 * count)).astype(np.int64)
        places = np.searchsorted(ends, points, side="right")
        return shard.map.is_cached(starts[places] + points - (ends - lengths)[places])


def _ranges(pool: ShardPool, first: Ints, last: Ints) -> Iterator[tuple[Shard, Ints, Ints]]:
    """The byte ranges of graphs, by shard."""
    while len(first):
        numbers = np.searchsorted(pool.starts, first, side="right") - 1
        each = np.unique(numbers)
        pool.open(each)
        for number in each.tolist():
            here = numbers == number
            begin, end = pool.starts[number], pool.starts[number + 1]
            shard = pool.shard(number)
            local = first[here] - begin, np.minimum(last[here], end) - begin
            yield shard, *byte_ranges(shard, *local)
        ends = pool.starts[numbers + 1]
        over = last > ends  # ranges that go on in the next shard
        first, last = ends[over], last[over]


def sorted_ranges(ids: Ints) -> tuple[Ints, Ints]:
    """Graph ids in any order as sorted half-open ranges: firsts and lasts."""
    ids = np.unique(ids)
    if not len(ids):
        return ids, ids
    breaks = np.flatnonzero(np.diff(ids) != 1) + 1
    firsts = ids[np.concatenate([[0], breaks])]
    lasts = ids[np.concatenate([breaks - 1, [len(ids) - 1]])] + 1
    return firsts, lasts


class FaultWatch:
    """Notices when this thread's reads wait for the disk, so that the next ones are asked for.

    For reads that no plan announces: single graphs, and PyG's own loader.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    def is_cold(self) -> bool:
        """Whether one of this thread's last reads had to wait for the disk."""
        return getattr(self._local, "left", 0) > 0

    def after_read(self) -> None:
        """Takes note of what a read cost."""
        faults = _major_faults()
        left: int = getattr(self._local, "left", 0)
        if faults > getattr(self._local, "faults", faults):
            left = 65
        self._local.faults = faults
        self._local.left = max(0, left - 1)


def _major_faults() -> int:
    """Page faults of this thread that went to disk; always 0 where the system does not count."""
    if _RUSAGE is None:
        return 0
    return int(_RUSAGE.getrusage(_RUSAGE.RUSAGE_THREAD).ru_majflt)


def byte_ranges(shard: Shard, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Where the columns of local graph ranges lie in the file: starts and stops in bytes.

    All within the file and none negative, whatever a ptr says that no reader has checked.
    """
    starts, stops = [], []
    rows = {axis: (ptr[first], ptr[last]) for axis, ptr in shard.ptrs.items()}
    rows[layout.GRAPH_AXIS] = first, last
    for axis, located in shard.mapped:
        begin, end = rows[axis]
        offset, nbytes = _row(located)
        starts.append(offset + begin * nbytes)
        stops.append(offset + end * nbytes)
    if not starts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    begin, end = (np.concatenate(each).clip(0, shard.map.nbytes) for each in (starts, stops))
    return begin, np.maximum(begin, end)


def _row(located: Located) -> tuple[int, int]:
    """Offset of an array and bytes of one of its rows."""
    nbytes = located.dtype.itemsize
    for extent in located.shape[1:]:
        nbytes *= extent
    return located.offset or 0, nbytes
