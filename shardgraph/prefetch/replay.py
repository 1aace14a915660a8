"""Headspace: the same loop over batches that are already on the device, to see what data costs."""

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice
from time import perf_counter
from typing import Any, Protocol

from shardgraph.prefetch.report import duration
from shardgraph.prefetch.stats import PrefetchStats

_DEFAULT_STEPS = 100  # of a loader that has no length


class Measured(Iterable[Any], Protocol):
    """A prefetcher, as far as a replay needs it."""

    def __len__(self) -> int:
        """Return the number of batches of an epoch; TypeError where that is not known."""

    @property
    def stats(self) -> PrefetchStats:
        """What it has measured so far."""


class Headspace:
    """Yields the first batches of a prefetcher over and over, as if data came for free.

    Every step gets a shallow copy, so that attributes which the loop sets are gone the next time;
    a loop that writes into a tensor itself meets its own values again.

    Args:
        prefetcher: Where the batches come from; its loops so far are what is compared with.
        num_batches: How many to read and keep.
        num_steps: How many to yield; None is one epoch.
        synchronize: Blocks until the device has done what the loop gave it.
    """

    def __init__(
        self,
        prefetcher: Measured,
        *,
        num_batches: int,
        num_steps: int | None,
        synchronize: Callable[[], None],
    ) -> None:
        self._prefetcher = prefetcher
        self._num_batches = num_batches
        self._wanted = num_steps
        self._synchronize = synchronize
        self._with_data = 0.0
        self.num_steps = 0
        """Steps taken by the last loop."""
        self.seconds_per_batch = 0.0
        """Mean time of a step of the last loop, in seconds."""

    def __len__(self) -> int:
        """Return how many batches a loop gets."""
        return len(self._prefetcher) if self._wanted is None else self._wanted

    def __iter__(self) -> Iterator[Any]:
        """Read the batches, then yield them in turn and time the loop."""
        self._with_data = self._prefetcher.stats.seconds_per_batch
        self.num_steps, self.seconds_per_batch = 0, 0.0
        cached = list(islice(self._prefetcher, self._num_batches))
        if not cached:
            return
        self._synchronize()
        start = perf_counter()
        try:
            for batch in islice(cycle(cached), self._steps()):
                yield copy.copy(batch)
                self.num_steps += 1
        finally:
            self._synchronize()
            if self.num_steps:
                self.seconds_per_batch = (perf_counter() - start) / self.num_steps

    def report(self) -> str:
        """Return in a sentence how fast the loop is with free data, and with its own so far."""
        if not self.num_steps:
            return "nothing replayed yet; run a loop over the headspace first"
        free = f"with free data a step takes {duration(self.seconds_per_batch)}"
        if not self._with_data:
            return f"{free}; run a loop over the prefetcher before it to compare"
        gain = self._with_data / self.seconds_per_batch
        return (
            f"{free}, with the loader's {duration(self._with_data)}: "
            f"faster data could speed training up {max(1.0, gain):.2f} times at most"
        )

    def _steps(self) -> int:
        try:
            return len(self)
        except TypeError:
            return _DEFAULT_STEPS
