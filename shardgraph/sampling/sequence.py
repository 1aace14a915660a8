"""The global sequence of batches of an epoch, by count or by budget; it knows no ranks.

Both kinds yield every graph of the epoch's order once (less what ``drop_last`` and
``oversized="skip"`` leave out), and neither holds more than a pool of graphs at a time. Batches are
int64 arrays of positions in ``range(num_graphs)``, which may be views: copy before handing them
out.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from shardgraph.sampling.budget import (
    COST_GROUP,
    Budget,
    Oversized,
    cost_order,
    level_end,
    pack_pool,
    reorder,
)
from shardgraph.sampling.order import Orders
from shardgraph.sampling.permute import BATCHES, key
from shardgraph.sampling.window import WindowOrder

_ORDERED_PER_BATCH = 256
"""From so many graphs a batch on, next-fit fills more than 99 % by itself, and dealing them out
would be slow."""


class Window(NamedTuple):
    """Graphs to be read together, and the first batch that needs later windows, if any."""

    ranges: NDArray[np.int64]
    stop: int
    last: bool


class BatchSequence(Protocol):
    """The batches of one epoch, counted from 0 over all ranks."""

    matched: bool
    """Neighbouring batches are nearly equal in cost."""
    oversized: int
    """Number of graphs that exceed a budget on their own."""
    skipped: int
    """How many of them are left out of every epoch."""

    def count(self, epoch: int) -> int:
        """Return the number of batches."""

    def graphs_in_last(self, epoch: int, num: int) -> int:
        """Return how many graphs the last ``num`` batches hold."""

    def batches(self, epoch: int, start: int) -> Iterator[NDArray[np.int64]]:
        """Yield the batches from batch ``start`` on, none empty."""

    def windows(self, epoch: int, start: int) -> Iterator[Window]:
        """Yield the windows from that of batch ``start`` on. For window order only."""


class CountedBatches:
    """Batches of ``batch_size`` graphs, the last maybe shorter; none needs those before it.

    Args:
        orders: The order of each epoch.
        batch_size: Graphs in a batch.
        drop_last: Leave out the shorter last batch.
    """

    def __init__(self, orders: Orders, batch_size: int, *, drop_last: bool) -> None:
        num_graphs = orders.rule.num_graphs
        self.matched = False
        self.oversized = self.skipped = 0
        self._orders = orders
        self._batch_size = batch_size
        self._count = num_graphs // batch_size if drop_last else -(-num_graphs // batch_size)
        self._num_used = min(self._count * batch_size, num_graphs)

    def count(self, epoch: int) -> int:
        """Return the number of batches, equal for all epochs."""
        del epoch
        return self._count

    def graphs_in_last(self, epoch: int, num: int) -> int:
        """Return how many graphs the last ``num`` batches hold."""
        del epoch
        return self._num_used - (self._count - num) * self._batch_size if num else 0

    def batches(self, epoch: int, start: int) -> Iterator[NDArray[np.int64]]:
        """Yield the batches from batch ``start`` on."""
        order, size = self._orders.get(epoch), self._batch_size
        for first in range(start * size, self._num_used, size):
            yield order.take(first, min(first + size, self._num_used))

    def windows(self, epoch: int, start: int) -> Iterator[Window]:
        """Yield the windows from that of batch ``start`` on."""
        order = self._orders.get(epoch)
        assert isinstance(order, WindowOrder)
        if start >= self._count:
            return
        for window in range(order.window_at(start * self._batch_size), order.num_windows):
            end = order.bounds(window)[1]
            last = end >= self._num_used
            yield Window(order.ranges(window), end // self._batch_size, last)
            if last:
                return


class PackedBatches:
    """Batches within budgets, packed pool by pool from the order of the epoch.

    Skipping to batch ``start`` packs what comes before it again, at 0.2 to 0.8 microseconds a
    graph.

    Args:
        orders: The order of each epoch.
        budget: The budgets.
        oversized: What becomes of a graph over budget: ``"alone"`` makes it a batch, ``"skip"``
            leaves it out. With ``"error"`` there must be none.
        drop_last: Leave out a last batch that has room in every budget.
    """

    def __init__(
        self, orders: Orders, budget: Budget, *, oversized: Oversized, drop_last: bool
    ) -> None:
        self._orders = orders
        self._budget = budget
        self._drop_last = drop_last
        self.oversized = budget.find_oversized()[0]
        self._skip = oversized == "skip"
        self.skipped = self.oversized if self._skip else 0
        self.matched = orders.rule.kind != "sequential"
        self._ordered = not self.matched or budget.graphs_per_batch() >= _ORDERED_PER_BATCH
        # The last batches share what is left equally, unless a batch that is not full is dropped.
        self._levels_end = not (self._ordered or drop_last)
        self._counts: dict[int, NDArray[np.int32]] = {}

    def count(self, epoch: int) -> int:
        """Return the number of batches. The first call for an epoch packs it."""
        return len(self._graph_counts(epoch))

    def graphs_in_last(self, epoch: int, num: int) -> int:
        """Return how many graphs the last ``num`` batches hold."""
        counts = self._graph_counts(epoch)
        return int(counts[len(counts) - num :].sum())

    def batches(self, epoch: int, start: int) -> Iterator[NDArray[np.int64]]:
        """Yield the batches from batch ``start`` on."""
        before = 0
        for ids, ptr in self._pools(epoch):
            edges = ptr[max(start - before, 0) :].tolist()
            for first, end in pairwise(edges):
                yield ids[first:end]
            before += len(ptr) - 1

    def windows(self, epoch: int, start: int) -> Iterator[Window]:
        """Yield the windows from that of batch ``start`` on, bar a few graphs of earlier ones."""
        order = self._orders.get(epoch)
        assert isinstance(order, WindowOrder)
        stop = 0
        unused: list[int] = []  # windows whose graphs are all in batches of the next one
        for window, (_, ptr) in enumerate(self._pools(epoch)):
            last = window == order.num_windows - 1
            if len(ptr) == 1 and not last:
                unused.append(window)
                continue
            if stop + len(ptr) - 1 > start:
                for each in unused:
                    yield Window(order.ranges(each), stop, last=False)
                yield Window(order.ranges(window), stop + len(ptr) - 1, last)
            stop += len(ptr) - 1
            unused = []

    def _graph_counts(self, epoch: int) -> NDArray[np.int32]:
        """Return the number of graphs of each batch of the epoch last asked for."""
        counts = self._counts.get(epoch)
        if counts is None:
            pools = [np.diff(ptr).astype(np.int32) for _, ptr in self._pools(epoch)]
            counts = np.concatenate(pools) if pools else np.empty(0, np.int32)
            self._counts = {epoch: counts}
        return counts

    def _pools(self, epoch: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the batches ``(ids, ptr)`` of each span of the order."""
        order = self._orders.get(epoch)
        left = np.empty(0, np.int64)
        num_groups = 0
        spans = list(order.spans())
        for pool, (first, end) in enumerate(spans):
            last = pool == len(spans) - 1
            ids = np.concatenate((left, order.take(first, end)))
            if pool == len(spans) - 2 and self._joins_last(spans):
                left, ids, ptr = ids, ids[:0], np.zeros(1, np.int64)
            else:
                ids, ptr, left = self._pack(ids, last=last)
            if self.matched:
                shares = self._budget.shares(ids, ptr)
                words = key(self._orders.seed, epoch, BATCHES, pool)
                ids, ptr = reorder(ids, ptr, cost_order(shares, words, num_groups))
                num_groups += -(-len(shares) // COST_GROUP)
            if last and len(left):
                # It stays at the end, where a batch that is not full spoils at most one step.
                room = self._budget.shares(left, np.array([0, len(left)]))[0] < 1
                if not (room and self._drop_last):
                    ids, ptr = np.concatenate((ids, left)), np.append(ptr, ptr[-1] + len(left))
            yield ids, ptr

    def _joins_last(self, spans: list[tuple[int, int]]) -> bool:
        """Whether the last span is so short that it is packed together with the one before."""
        (first, middle), (_, end) = spans[-2:]
        return self._levels_end and 2 * (end - middle) < middle - first

    def _pack(
        self, ids: NDArray[np.int64], *, last: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return ``(ids, ptr, left)`` as `pack_pool` does, having dealt with oversized graphs."""
        alone = ids[:0]
        if self.oversized and (self._skip or not self._ordered):
            over = self._budget.oversized(ids)
            alone, ids = ids[over], ids[~over]
        ids, ptr, left = pack_pool(ids, self._budget, ordered=self._ordered, last=last)
        if last and self._levels_end:
            (ids, ptr), left = level_end(ids, ptr, left, self._budget), ids[:0]
        if len(alone) and not self._skip:
            ids = np.concatenate((ids, alone))
            ptr = np.concatenate((ptr, ptr[-1] + np.arange(1, len(alone) + 1)))
        return ids, ptr, left
