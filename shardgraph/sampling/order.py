"""The order of an epoch: sequential, full shuffle or window shuffle, and the rule that picks.

An order is a permutation of ``range(num_graphs)``. It depends on (num_graphs, nbytes, seed, epoch)
only; never on workers, ranks or the machine. Memory: sequential none, full 8 bytes a graph, window
8 bytes a block.

Window order cuts the dataset into blocks of consecutive graphs, permutes the blocks over the whole
dataset and shuffles the graphs of ``WINDOW_BLOCKS`` blocks at a time, so that a disk is read in
runs of a block. What that costs in randomness, measured with `shuffle_quality` on 1,000,000 graphs
of 256 a block in batches of 256, mean of 3 epochs (``tests/sampling/test_quality.py`` asserts a
smaller case):

==========  ======  ==================  ===================
order       spread  label mix, sorted   label mix, unsorted
==========  ======  ==================  ===================
full        0.998   0.992 (100: 0.953)  0.992 (100: 0.953)
window      0.992   0.977 (100: 0.872)  0.992 (100: 0.953)
sequential  0.000   0.001 (100: 0.003)  0.992 (100: 0.953)
==========  ======  ==================  ===================

Spread is the standard deviation of the source positions within a batch, over that of a uniform
draw. Label mix is the entropy of the 10 (or 100) labels of a batch, over that of all labels. So a
batch reaches over the whole dataset, and only a dataset that is sorted by label shows a difference:
a batch then mixes the labels of 128 blocks rather than of 256 graphs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from shardgraph.sampling.draw import WeightedDraw
from shardgraph.sampling.permute import FULL, key, permutation
from shardgraph.sampling.window import WindowOrder

OrderKind = Literal["sequential", "full", "window"]

FULL_SHUFFLE_MAX_NBYTES = 1 << 30
"""``shuffle=True`` means full below this. 1 GiB stays in the page cache of any machine that trains,
so that the disk is read once at most, and a permutation of so few graphs is small."""

BLOCK_NBYTES = 1 << 19
"""Bytes of a block. Shared by six columns it is read in runs of about 85 kB. Runs of 40, 80, 170
and 340 kB in random order, advised 64 MiB ahead, came at 1.2, 1.4, 1.6 and 1.7 GB/s from a virtual
disk that gave 0.9 GB/s to 1 MiB reads in sequence. So more and smaller blocks cost little speed,
and they mix better."""

BLOCK_MAX_GRAPHS = 4096
"""Keeps a window of tiny graphs at half a million graphs (4 MiB of indices)."""

BLOCK_DEFAULT_GRAPHS = 256
"""The block when the bytes are not known (``nbytes=0``): half a MiB of molecules."""

_SPAN = 16384
"""Graphs handed to the batch packing at a time where the order has no windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRule:
    """Which order graphs get; ``block_size`` counts graphs and is 0 unless it is window."""

    kind: OrderKind
    num_graphs: int
    block_size: int = 0


def choose_order(num_graphs: int, nbytes: int, shuffle: bool | str) -> OrderRule:
    """Return the order that ``shuffle`` asks for.

    ``True`` is full below `FULL_SHUFFLE_MAX_NBYTES` and window from there on. A window order whose
    block would be a single graph (a mean of more than half of `BLOCK_NBYTES` a graph) is a full
    shuffle, and becomes one.

    Args:
        num_graphs: Length of the dataset.
        nbytes: Stored bytes of these graphs; 0 where not known.
        shuffle: False, True, ``"full"`` or ``"window"``.

    Raises:
        ValueError: If ``shuffle`` is anything else.
    """
    if shuffle is False:
        return OrderRule(kind="sequential", num_graphs=num_graphs)
    if shuffle is not True and shuffle not in ("full", "window"):
        raise ValueError(f"shuffle must be False, True, 'full' or 'window', got {shuffle!r}.")
    block_size = BLOCK_DEFAULT_GRAPHS
    if nbytes:
        block_size = max(1, min(BLOCK_MAX_GRAPHS, BLOCK_NBYTES * num_graphs // nbytes))
    small = shuffle is True and nbytes < FULL_SHUFFLE_MAX_NBYTES
    if shuffle == "full" or small or block_size == 1:
        return OrderRule(kind="full", num_graphs=num_graphs)
    return OrderRule(kind="window", num_graphs=num_graphs, block_size=block_size)


class Order(Protocol):
    """The order of one epoch. Safe to read from several threads."""

    def take(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return items ``start`` to ``stop``: int64 [stop - start], maybe a view: read only."""

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield [start, stop) pieces that cover the order; each is packed into batches at once."""


@dataclass(frozen=True, slots=True)
class SequentialOrder:
    """Graphs as they are stored."""

    num_graphs: int

    def take(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return items ``start`` to ``stop``: int64 [stop - start]."""
        return np.arange(start, stop, dtype=np.int64)

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield pieces of a fixed size."""
        return _fixed_spans(self.num_graphs)


@dataclass(frozen=True, slots=True)
class FullOrder:
    """A random permutation of all graphs."""

    items: NDArray[np.int64]

    def take(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return items ``start`` to ``stop``: int64 [stop - start], a view."""
        return self.items[start:stop]

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield pieces of a fixed size."""
        return _fixed_spans(len(self.items))


def _fixed_spans(num: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _SPAN, num)) for start in range(0, num, _SPAN))


class Orders:
    """The orders of a run, by epoch.

    The permutation of a full shuffle, and a draw, are kept for the last epoch asked for, so that
    several readers of one epoch share them; they do not travel in a pickle.

    Args:
        rule: Which order; of the samples, if they are drawn.
        seed: Seed of the run.
        draw: Draws the graphs that each epoch orders; None orders all graphs.
    """

    def __init__(self, rule: OrderRule, seed: int, draw: WeightedDraw | None = None) -> None:
        self.rule = rule
        self.seed = seed
        self._draw = draw
        self._full: tuple[int, FullOrder] | None = None
        self._drawn: tuple[int, NDArray[np.int64]] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_full": None, "_drawn": None}

    def get(self, epoch: int) -> SequentialOrder | FullOrder | WindowOrder:
        """Return the order of ``epoch``."""
        rule = self.rule
        if rule.kind == "sequential":
            return SequentialOrder(rule.num_graphs)
        if rule.kind == "window":
            drawn = self._drawn_items(epoch)
            return WindowOrder(rule.num_graphs, rule.block_size, self.seed, epoch, drawn)
        kept = self._full
        if kept is None or kept[0] != epoch:
            self._full = kept = None  # so that two permutations never exist at once
            items = permutation(rule.num_graphs, key(self.seed, epoch, FULL))
            if self._draw is not None:
                drawn = self._draw.items(epoch)
                for start in range(0, len(items), _SPAN):  # in place: one array less
                    items[start : start + _SPAN] = drawn[items[start : start + _SPAN]]
            self._full = kept = (epoch, FullOrder(items))
        return kept[1]

    def _drawn_items(self, epoch: int) -> NDArray[np.int64] | None:
        if self._draw is None:
            return None
        kept = self._drawn
        if kept is None or kept[0] != epoch:
            self._drawn = kept = None
            self._drawn = kept = (epoch, self._draw.items(epoch))
        return kept[1]
