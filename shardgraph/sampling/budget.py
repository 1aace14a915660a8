"""Packing: graphs of known size into batches that exceed no budget.

Two ways, both linear passes of NumPy over a pool of graphs:

* `next_fit` keeps the order and closes a batch when the next graph does not fit. Batches are 1 -
  1/(2 g) full, where g is the number of graphs in one: 97 % at 16.
* `deal` gives up the order inside a pool. The graphs, largest first, go one each to all batches of
  the pool, the largest to the emptiest. That fills batches to 98 or 99 % at 16 graphs, makes them
  equal in cost, and gives each the pool's own mix of large and small graphs. What does not fit
  returns to the next pool, and at the end of the epoch `level_end` shares it out.

Sizes are int64 [num, budgets] and limits int64 [budgets] throughout. A batch's *share* is the
largest fraction of a budget that it uses: 1.0 is full.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shardgraph.sampling.permute import permutation
from shardgraph.sampling.sizes import Sizes

Oversized = Literal["error", "alone", "skip"]

COST_GROUP = 64
"""Batches sorted by cost together: enough for steps of 64 equal ranks, few enough that the order
stays random."""

_FEW = 64
"""One graph in so many may be refused by `deal` before it is done again with fewer graphs."""

_LEVELLED = 32
"""Batches at the end of an epoch that share the rest: one batch's room less costs each 3 %."""

_SCAN = 1 << 18
"""Graphs looked at together, so that a scan of all sizes takes little memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One budget, by its argument's name, with the sizes it limits (None: every graph is 1)."""

    name: str
    maximum: int
    sizes: Sizes | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """The budgets that hold for every batch."""

    limits: tuple[Limit, ...]

    @property
    def maxima(self) -> NDArray[np.int64]:
        """The limits: int64 [budgets]."""
        return np.array([limit.maximum for limit in self.limits], np.int64)

    def sizes(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sizes of graphs: int64 [len(ids), budgets]."""
        sizes = np.ones((len(ids), len(self.limits)), np.int64)
        for column, limit in enumerate(self.limits):
            if limit.sizes is not None:
                sizes[:, column] = limit.sizes.of(ids)
        return sizes

    def shares(self, ids: NDArray[np.int64], ptr: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the share of each batch: float64 [len(ptr) - 1]. No batch may be empty."""
        if len(ptr) == 1:
            return np.empty(0)
        totals = np.add.reduceat(self.sizes(ids), ptr[:-1], axis=0)
        return np.asarray((totals / self.maxima).max(axis=1))

    def oversized(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which graphs exceed a budget on their own: bool [len(ids)]."""
        return np.asarray((self.sizes(ids) > self.maxima).any(axis=1))

    def find_oversized(self) -> tuple[int, int]:
        """Return the number of graphs over a budget on their own, and the first one (-1: none)."""
        sized = [(limit.sizes, limit.maximum) for limit in self.limits if limit.sizes is not None]
        count, first = 0, -1
        if all(sizes.bound() <= maximum for sizes, maximum in sized):
            return count, first
        num_graphs = len(sized[0][0])
        for start in range(0, num_graphs, _SCAN):
            found = self.oversized(np.arange(start, min(start + _SCAN, num_graphs), dtype=np.int64))
            if first < 0 and found.any():
                first = start + int(found.argmax())
            count += int(np.count_nonzero(found))
        return count, first

    def without_oversized(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the weights with those of graphs over a budget on their own set to 0."""
        kept: NDArray[np.float64] = weights.copy()
        for start in range(0, len(kept), _SCAN):
            ids = np.arange(start, min(start + _SCAN, len(kept)), dtype=np.int64)
            kept[ids[self.oversized(ids)]] = 0
        return kept

    def digests(self) -> dict[str, int]:
        """Return what tells the sizes that are limited from others."""
        return {
            f"num_{limit.name.removeprefix('max_')}_crc32": limit.sizes.digest()
            for limit in self.limits
            if limit.sizes is not None
        }

    def graphs_per_batch(self) -> float:
        """Return how many graphs of mean size fit into a batch."""
        fits = []
        for limit in self.limits:
            total = 0 if limit.sizes is None else limit.sizes.total()
            if limit.sizes is None:
                fits.append(float(limit.maximum))
            elif total:
                fits.append(limit.maximum * len(limit.sizes) / total)
        return min(fits, default=float("inf"))


def next_fit(sizes: NDArray[np.int64], limits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ptr of batches of consecutive graphs: int64 [batches + 1].

    The ptr runs from 0 to ``len(sizes)``. Each batch takes as many graphs as fit. A graph
    over a limit is a batch of its own.
    """
    num = len(sizes)
    sums = np.zeros((num + 1, len(limits)), np.int64)
    np.cumsum(sizes, axis=0, out=sums[1:])
    stops = np.full(num, num, np.int64)
    for column, limit in enumerate(limits):
        limit = min(limit, sums[-1, column])  # what all graphs together meet; the sum below fits
        fit = np.searchsorted(sums[:, column], sums[:-1, column] + limit, side="right") - 1
        np.minimum(stops, fit, out=stops)
    jump = np.maximum(stops, np.arange(1, num + 1)).tolist()
    ptr = [0]
    while ptr[-1] < num:
        ptr.append(jump[ptr[-1]])
    return np.array(ptr, np.int64)


def deal(
    sizes: NDArray[np.int64], limits: NDArray[np.int64], num_batches: int
) -> NDArray[np.int64]:
    """Return the batch of each graph: int64 [num], -1 where it found no room. No batch is empty.

    Args:
        sizes: At least ``num_batches`` graphs, none over a limit.
        limits: The budgets.
        num_batches: Number of batches to fill, at least 1.
    """
    batch_of = np.full(len(sizes), -1, np.int64)
    # [budgets, num]: NumPy reduces along the first axis several times faster.
    columns, maxima = np.ascontiguousarray(sizes.T), limits[:, None]
    loads = np.zeros((len(limits), num_batches), np.int64)
    shares = columns / maxima
    # Stable sorts: ties must not fall as the machine's fastest sorting algorithm has it.
    todo = np.argsort(-shares.max(axis=0), kind="stable")
    levelled = -(-len(todo) // num_batches) - 2
    while len(todo):
        refused = []
        for turn, start in enumerate(range(0, len(todo), num_batches)):
            graphs = todo[start : start + num_batches]
            filled = loads / maxima
            if turn < levelled and turn % 2 and len(limits) > 1:
                # Of graphs nearly equal in size, those rich in one thing go where it is short, so
                # that no budget is used up before the others are.
                thing = turn // 2 % len(limits)
                graphs = graphs[np.argsort(-_excess(shares[:, graphs], thing), kind="stable")]
                batches = np.argsort(_excess(filled, thing), kind="stable")
            else:
                batches = np.argsort(filled.max(axis=0), kind="stable")[: len(graphs)]
            sums = loads[:, batches] + columns[:, graphs]
            fits = (sums <= maxima).all(axis=0)
            loads[:, batches[fits]] = sums[:, fits]
            batch_of[graphs[fits]] = batches[fits]
            refused.append(graphs[~fits])
        left = np.concatenate(refused)
        if len(left) == len(todo):
            break
        todo, levelled = left, 0
    return batch_of


def _excess(shares: NDArray[np.float64], thing: int) -> NDArray[np.float64]:
    """Return how far the share of one budget is above the mean of all: float64 [num]."""
    return np.asarray(shares[thing] - np.add.reduce(shares) / len(shares))


def pack_pool(
    ids: NDArray[np.int64], budget: Budget, *, ordered: bool, last: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the full batches that a pool of graphs makes, and the graphs left for the next pool.

    Args:
        ids: int64 [num], graphs in the order of the epoch, none over a budget unless ``ordered``.
        budget: The budgets.
        ordered: Keep the order (`next_fit`), or give it up for fuller batches (`deal`).
        last: There is no next pool: go on until the graphs left fit into one batch.

    Returns:
        ``(ids, ptr, left)``: batch ``i`` is ``ids[ptr[i]:ptr[i + 1]]``, never empty.
    """
    sizes, limits = budget.sizes(ids), budget.maxima
    if ordered:
        ptr = next_fit(sizes, limits)
        ptr = ptr[: max(len(ptr) - 1, 1)]
        return ids[: ptr[-1]], ptr, ids[ptr[-1] :]
    packed, counts = [ids[:0]], [ids[:0]]
    while len(ids):
        sums = np.cumsum(sizes, axis=0)
        num_batches = int((sums[-1] // limits).max())
        if not num_batches:
            break
        # As many graphs of the order as fill the batches. The last ones refused are the small ones;
        # where they are many, fewer graphs are dealt, so that what is left has all sizes.
        room = limits * float(num_batches)  # a limit may be as large as an integer can be
        for _ in range(2):
            cut = max(int((sums <= room).all(axis=1).sum()), num_batches)
            batch_of = deal(sizes[:cut], limits, num_batches)
            refused = np.flatnonzero(batch_of < 0)
            if len(refused) * _FEW <= cut:
                break
            room = room - sizes[refused].sum(axis=0)
        by_batch = np.argsort(batch_of, kind="stable")[len(refused) :]
        packed.append(ids[by_batch])
        counts.append(np.bincount(batch_of[by_batch], minlength=num_batches))
        left = np.concatenate((refused, np.arange(cut, len(ids))))
        ids, sizes = ids[left], sizes[left]
        if not last:
            break
    ptr = np.concatenate(([0], np.cumsum(np.concatenate(counts)))).astype(np.int64)
    return np.concatenate(packed), ptr, ids


def level_end(
    ids: NDArray[np.int64], ptr: NDArray[np.int64], left: NDArray[np.int64], budget: Budget
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return batches ``(ids, ptr)`` with the last few, and what is left, shared out equally.

    So an epoch does not end in batches that are nearly empty, which would spoil the steps that they
    fall into.

    Args:
        ids: Graphs of the batches, as `pack_pool` returns them when it is not ``ordered``.
        ptr: Their ptr.
        left: Graphs left, which fit into one batch.
        budget: The budgets.
    """
    keep = max(len(ptr) - 1 - _LEVELLED, 0)
    tail = np.concatenate((ids[ptr[keep] :], left))
    sizes, limits = budget.sizes(tail), budget.maxima
    as_it_is = len(ptr) - 1 - keep + (len(left) > 0)
    fewest = max(int((-(-sizes.sum(axis=0) // limits)).max()), 1)
    # One more than now makes room where graphs are large against what the others leave free.
    tries = (_level(sizes, limits, number) for number in range(fewest, as_it_is + 2))
    batch_of = next((found for found in tries if found is not None), None)
    if batch_of is None:
        if not len(left):
            return ids, ptr
        return np.concatenate((ids, left)), np.append(ptr, ptr[-1] + len(left))
    counts = np.bincount(batch_of)
    return (
        np.concatenate((ids[: ptr[keep]], tail[np.argsort(batch_of, kind="stable")])),
        np.concatenate((ptr[: keep + 1], ptr[keep] + np.cumsum(counts))).astype(np.int64),
    )


def _level(
    sizes: NDArray[np.int64], limits: NDArray[np.int64], num_batches: int
) -> NDArray[np.int64] | None:
    """Return the batch of each graph, or None if they find no room: int64 [num].

    The graphs, largest first, go each to the batch that is emptiest with it.
    """
    batch_of = np.empty(len(sizes), np.int64)
    loads = np.zeros((num_batches, len(limits)), np.int64)
    for graph in np.argsort(-(sizes / limits).max(axis=1), kind="stable").tolist():
        shares = ((loads + sizes[graph]) / limits).max(axis=1)
        batch = int(shares.argmin())
        if shares[batch] > 1:
            return None
        loads[batch] += sizes[graph]
        batch_of[graph] = batch
    return batch_of


def cost_order(
    shares: NDArray[np.float64], words: list[int], first_group: int
) -> NDArray[np.int64]:
    """Return a random order of batches with nearly equal costs side by side: int64 [num].

    The batches are shuffled and then sorted by share within groups of `COST_GROUP`: up in even
    groups, down in odd ones, so that costs do not jump between groups either. Any run of
    consecutive batches is then a fair step.

    Args:
        shares: The batches' costs.
        words: Key of the shuffle.
        first_group: Number of groups before this pool.
    """
    order = permutation(len(shares), words)
    for number, start in enumerate(range(0, len(order), COST_GROUP), start=first_group):
        group = order[start : start + COST_GROUP]
        sign = -1 if number % 2 else 1
        order[start : start + COST_GROUP] = group[np.argsort(sign * shares[group], kind="stable")]
    return order


def reorder(
    ids: NDArray[np.int64], ptr: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the batches ``(ids, ptr)`` in another order."""
    counts = np.diff(ptr)[order]
    new_ptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    rows = np.arange(new_ptr[-1]) + np.repeat(ptr[:-1][order] - new_ptr[:-1], counts)
    return ids[rows], new_ptr
