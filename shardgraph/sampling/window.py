"""Window order: blocks of consecutive graphs from all over the dataset, shuffled together."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shardgraph.sampling.permute import BLOCKS, WINDOW, key, permutation

WINDOW_BLOCKS = 128
"""Blocks shuffled together: 64 MiB, which with the next 64 MiB being read fits any page cache. In a
dataset sorted by label a batch mixes labels as well as so many independent draws would."""


class WindowOrder:
    """Blocks permuted over the dataset, whose graphs are shuffled `WINDOW_BLOCKS` at a time.

    Block ``b`` holds graphs ``b * block_size`` up to ``(b + 1) * block_size``; the last block of
    the dataset may be shorter, and so may the window that holds it and the last window.

    Args:
        num_graphs: Length of the dataset.
        block_size: Graphs in a block, at least 1.
        seed: Seed of the run.
        epoch: Epoch.
        drawn: The graphs that items stand for, sorted, repeats allowed: int64 [num_graphs]. Blocks
            are then runs of these, which lie as close together as weights let them.
    """

    def __init__(
        self,
        num_graphs: int,
        block_size: int,
        seed: int,
        epoch: int,
        drawn: NDArray[np.int64] | None = None,
    ) -> None:
        num_blocks = -(-num_graphs // block_size)
        self.num_graphs = num_graphs
        self.block_size = block_size
        self.num_windows = -(-num_blocks // WINDOW_BLOCKS)
        self._seed, self._epoch = seed, epoch
        self._drawn = drawn
        self._blocks = permutation(num_blocks, key(seed, epoch, BLOCKS))
        # After the window of the short block, all start earlier by what that block lacks.
        self._missing = num_blocks * block_size - num_graphs
        short = np.flatnonzero(self._blocks == num_blocks - 1)
        self._short_window = int(short[0]) // WINDOW_BLOCKS if num_blocks else 0
        self._last: tuple[int, NDArray[np.int64]] = (-1, self._blocks[:0])

    def bounds(self, window: int) -> tuple[int, int]:
        """Return the half-open piece of the order that ``window`` fills."""
        return self._start(window), self._start(window + 1)

    def window_at(self, item: int) -> int:
        """Return the window that holds item ``item`` of the order."""
        window = item // (WINDOW_BLOCKS * self.block_size)
        return window + (item >= self._start(window + 1))

    def ranges(self, window: int) -> NDArray[np.int64]:
        """Return the graphs of ``window`` as sorted, merged, half-open ranges: int64 [n, 2]."""
        blocks = np.sort(self._blocks[window * WINDOW_BLOCKS : (window + 1) * WINDOW_BLOCKS])
        ranges = np.minimum(merge_ranges(blocks) * self.block_size, self.num_graphs)
        if self._drawn is None:
            return ranges
        return merge_ranges(np.concatenate([self._drawn[start:stop] for start, stop in ranges]))

    def take(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return items ``start`` to ``stop``: int64 [stop - start]. Shuffles only their windows."""
        parts = []
        while start < stop:
            window = self.window_at(start)
            first, end = self.bounds(window)
            end = min(end, stop)
            parts.append(self._shuffled(window)[start - first : end - first])
            start = end
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else self._blocks[:0]

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield the windows."""
        return (self.bounds(window) for window in range(self.num_windows))

    def _start(self, window: int) -> int:
        full = window * WINDOW_BLOCKS * self.block_size
        return min(full - self._missing if window > self._short_window else full, self.num_graphs)

    def _shuffled(self, window: int) -> NDArray[np.int64]:
        last, items = self._last
        if last == window:
            return items
        blocks = self._blocks[window * WINDOW_BLOCKS : (window + 1) * WINDOW_BLOCKS]
        items = (blocks[:, None] * self.block_size + np.arange(self.block_size)).ravel()
        items = items[items < self.num_graphs]
        items = items[permutation(len(items), key(self._seed, self._epoch, WINDOW, window))]
        if self._drawn is not None:
            items = self._drawn[items]
        self._last = (window, items)
        return items


def merge_ranges(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the half-open ranges that sorted ids form: int64 [n, 2]; repeats are merged."""
    if not len(ids):
        return np.empty((0, 2), np.int64)
    cut = np.flatnonzero(np.diff(ids) > 1)
    starts = ids[np.concatenate(([0], cut + 1))]
    stops = ids[np.concatenate((cut, [len(ids) - 1]))] + 1
    return np.stack((starts, stops), axis=1)
