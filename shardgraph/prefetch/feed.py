"""The background thread: pulls batches, moves them, and stays a bounded number of them ahead.

The thread and its consumer share one ``Feed`` and nothing else. In particular the thread does not
refer to the consumer's iterator, so dropping that iterator ends the thread.
"""

import logging
import queue
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from shardgraph.prefetch.move import Moved, Mover
from shardgraph.prefetch.stats import Timing
from shardgraph.prefetch.transfer import Backend

logger = logging.getLogger(__name__)

JOIN_SECONDS = 10.0
"""How long a stop waits for a loader that is inside one read; the exit of Python included. Twice
the time in which torch's loader notices that its workers are dead (after Ctrl-C, say)."""

State = Any
StateOf = Callable[[], State]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A batch in the queue, with the loader's state right after it."""

    moved: Moved
    nbytes: int
    state: State
    timing: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The loader is exhausted; its state after that."""

    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The loader, or the move of a batch, raised."""

    error: BaseException


Item = Delivery | End | Failure


@dataclass(slots=True, kw_only=True)
class Feed:
    """What one epoch's thread and its consumer share.

    Both queues are ``SimpleQueue``: a batch that is ready costs no lock that another thread may
    hold, waiting needs no polling, and ``put`` may be called from a garbage collection.
    """

    depth: int
    max_bytes: int | None
    backend: Backend
    mover: Mover
    state_of: StateOf
    count_steps: Callable[[], None]
    """Counts the steps that the consumer has noted."""
    may_be_packed: bool
    has_workers: bool
    """Whether the loader reads in other processes, which an error's traceback must not keep."""

    items: "queue.SimpleQueue[Item]" = field(default_factory=queue.SimpleQueue, init=False)
    _credits: "queue.SimpleQueue[int]" = field(default_factory=queue.SimpleQueue, init=False)
    """The bytes of each delivered batch, from the consumer; 0 also wakes a thread told to stop."""
    stopped: bool = field(default=False, init=False)
    # Each of the next is written by one thread alone.
    num_moved: int = field(default=0, init=False)
    num_delivered: int = field(default=0, init=False)
    max_ahead: int = field(default=0, init=False)
    max_ahead_nbytes: int = field(default=0, init=False)
    _held: int = field(default=0, init=False)
    _held_nbytes: int = field(default=0, init=False)

    @property
    def num_ready(self) -> int:
        """Batches in the queue."""
        return self.num_moved - self.num_delivered

    def delivered(self, delivery: Delivery) -> None:
        """Give back the room of a batch; called by the consumer that took it."""
        self.num_delivered += 1
        self._credits.put(delivery.nbytes)

    def stop(self) -> None:
        """Tell the thread to stop as soon as it is out of the loader; may be called repeatedly."""
        self.stopped = True
        self._credits.put(0)

    def discard(self) -> None:
        """Drop the batches in the queue."""
        while True:
            try:
                self.items.get_nowait()
            except queue.Empty:
                return

    def reserve(self) -> bool:
        """Wait until one more batch may be read; False when told to stop."""
        self._collect(until=lambda: self._held < self.depth)
        self._held += 1
        return not self.stopped

    def reserve_nbytes(self, nbytes: int) -> bool:
        """Wait until a batch of this size fits, or none is ahead of it; False when told to stop."""
        limit = self.max_bytes
        if limit is not None:
            self._collect(
                until=lambda: self._held_nbytes == 0 or self._held_nbytes + nbytes <= limit
            )
        self._held_nbytes += nbytes
        self.max_ahead = max(self.max_ahead, self._held)
        self.max_ahead_nbytes = max(self.max_ahead_nbytes, self._held_nbytes)
        return not self.stopped

    def _collect(self, *, until: Callable[[], bool]) -> None:
        """Take back room, at least as much as is there, until there is enough or a stop."""
        while not self.stopped:
            enough = until()
            try:
                nbytes = self._credits.get(block=not enough)
            except queue.Empty:
                return
            if not self.stopped:
                self._held -= 1
                self._held_nbytes -= nbytes


def feed_thread(source: Iterator[Any], feed: Feed) -> threading.Thread:
    """Return the thread, not yet started, that feeds from ``source`` and alone uses it."""
    return threading.Thread(
        target=_run, args=(source, feed), name="shardgraph-prefetch", daemon=True
    )


def stop_feed(feed: Feed, thread: threading.Thread) -> None:
    """Stop the thread, wait until it has released the loader, and drop what is in the queue."""
    feed.stop()
    started = thread.ident is not None
    if started and thread is not threading.current_thread():  # where garbage may be collected
        thread.join(timeout=JOIN_SECONDS)
        if thread.is_alive():
            logger.warning(
                "the loader has not returned from one read for %.0f s after the prefetcher was "
                "closed; its thread %r ends when it does",
                JOIN_SECONDS,
                thread.name,
            )
    feed.discard()


def _run(source: Iterator[Any], feed: Feed) -> None:
    try:
        with feed.backend.thread_context():
            _pump(source, feed)
    except BaseException as error:  # noqa: BLE001  # the consumer raises it
        if feed.has_workers:
            # The frames of the traceback refer to the loader's iterator, which would keep the
            # worker processes alive as long as the error. With workers these frames are torch's:
            # the dataset's own are in the message.
            traceback.clear_frames(error.__traceback__)
        feed.items.put(Failure(error=error))
    finally:
        if isinstance(source, Generator):
            source.close()
        # The last reference: torch's iterator shuts its worker processes down when it goes.
        del source


def _pump(source: Iterator[Any], feed: Feed) -> None:
    while feed.reserve():
        read_start = perf_counter()
        try:
            batch = next(source)
        except StopIteration:
            feed.items.put(End(state=feed.state_of()))
            return
        state = feed.state_of()
        read_stop = perf_counter()
        load = feed.mover.inspect(batch, may_be_packed=feed.may_be_packed)
        if not feed.reserve_nbytes(load.nbytes):
            return
        move_start = perf_counter()
        moved = feed.mover.move(load)
        timing = Timing(
            read_start=read_start,
            read_stop=read_stop,
            move_start=move_start,
            ready=perf_counter(),
        )
        # Counted before it can be taken, so that num_ready never falls below zero.
        feed.num_moved += 1
        feed.items.put(Delivery(moved=moved, nbytes=load.nbytes, state=state, timing=timing))
        # The next read may take long: keep no batch that the consumer drops meanwhile.
        del batch, load, moved
        feed.count_steps()
