"""An epoch under way: which one, how far it is, and its batches as they are delivered."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from shardgraph.readahead import ReadAheadThread
from shardgraph.sampling import BatchPlan


class Progress:
    """Which epoch is under way, from which cursor, and how many batches were delivered of it."""

    def __init__(self) -> None:
        self.epoch = self.cursor = self.delivered = self.handed_out = 0
        self.ahead: ReadAheadThread | None = None
        self._before = 0  # steps taken in the epoch before it was resumed, by however many ranks
        self._next = (0, 0, 0)
        self._under_way = False
        self._items: weakref.ref[Iterator[Any]] | None = None

    def choose(self, epoch: int, cursor: int, before: int = 0) -> None:
        """Settles where the next epoch begins; ``before`` steps of it were taken already."""
        self._next = (epoch, cursor, before)
        self.epoch, self.cursor, self._before = self._next
        self.delivered = 0
        self._under_way = False
        self._items = None

    def set_epoch(self, epoch: int) -> None:
        """Settles which epoch is the next; a resumed one still goes on from where it was."""
        if epoch == self._next[0]:
            self.choose(*self._next)
        elif self._under_way and epoch == self.epoch:
            # Lightning tells it once the epoch has begun, whose count must go on.
            self._next = (epoch, self.cursor, self._before)
        else:
            self.choose(epoch, 0)

    def begin(self) -> None:
        """Begins the next epoch."""
        self.epoch, self.cursor, self._before = self._next
        self.delivered = self.handed_out = 0
        self.ahead = None
        self._next = (self.epoch + 1, 0, 0)
        self._under_way = True

    @property
    def next_epoch(self) -> int:
        """The epoch that begins next."""
        return self._next[0]

    def steps(self) -> int:
        """Batches of the epoch that this rank was given, those before a resume included."""
        return self._before + self.delivered

    def read_from(self, items: Iterator[Any]) -> None:
        """Settles which iterator the epoch's batches come from: an older one may be read on."""
        self._items = weakref.ref(items)

    def deliver(self, items: Iterator[Any] | None) -> None:
        """Counts a batch that came from an iterator, if that is the epoch's."""
        self.delivered += self._is_read_from(items)

    def hand_out(self) -> None:
        """Counts a batch that is about to be read."""
        self.handed_out += 1
        if self.ahead is not None:
            self.ahead.advance(self.handed_out)

    def end(self, items: Iterator[Any] | None) -> None:
        """Ends the epoch, if the iterator is the epoch's."""
        if self._is_read_from(items):
            self._under_way = False

    def _is_read_from(self, items: Iterator[Any] | None) -> bool:
        return items is not None and self._items is not None and self._items() is items

    def num_batches(self, plan: BatchPlan) -> int:
        """Batches of the epoch under way, or else of the next; those before a resume included."""
        running = (self.epoch, self.cursor, self._before)
        epoch, cursor, before = running if self._under_way else self._next
        return before + plan.num_batches(epoch, cursor)


class PlanSampler(Sampler[Any]):
    """Gives torch's DataLoader the plan's batches, each as an array of positions."""

    def __init__(self, plan: BatchPlan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        # The epoch is settled now, not when the first batch is asked for: another may begin before.
        return self._counted(self._plan.batches(self._progress.epoch, self._progress.cursor))

    def set_epoch(self, epoch: int) -> None:
        """Settles the loader's next epoch: trainers tell it to the sampler."""
        self._progress.set_epoch(epoch)

    def _counted(self, batches: Iterator[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
        for batch in batches:
            self._progress.hand_out()
            yield batch

    def __len__(self) -> int:
        return self._progress.num_batches(self._plan)


class Epoch:
    """One epoch's batches; counts those delivered, and ends the reading ahead with them."""

    def __init__(
        self,
        items: Iterator[Any],
        progress: Progress,
        convert: Callable[[Any], Any],
        ahead: ReadAheadThread | None,
        *,
        check_files: Callable[[], None] | None,
    ) -> None:
        self._items: Iterator[Any] | None = items
        self._check_files = check_files  # None: there are no workers
        self._progress = progress
        progress.read_from(items)
        self._convert = convert
        self._stop_ahead = None if ahead is None else weakref.finalize(self, ahead.close)

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        if self._items is None:
            raise StopIteration
        try:
            item = next(self._items)
        except StopIteration:
            self._progress.end(self._items)
            self.close()
            raise
        except BaseException as error:
            self.close()
            if self._check_files is None:
                raise
            # Torch's frames, in a cycle with the error, would keep the workers; the worker's own
            # traceback is in the error's text.
            error = error.with_traceback(None)
            if isinstance(error, RuntimeError):  # a worker that died, of a truncated shard perhaps
                self._check_files()
            raise error  # noqa: TRY201  # a bare one would bring the frames back
        item = self._convert(item)
        self._progress.deliver(self._items)
        return item

    def close(self) -> None:
        """Stops early: the workers of this epoch end (persistent ones go on)."""
        self._items = None
        if self._stop_ahead is not None:
            self._stop_ahead()
