"""Reading ahead of an epoch: a small thread tells the kernel what the plan reads next.

The pages arrive in the one page cache that all workers gather from. Nothing is copied, and a
dataset that is cached already costs a few probes a batch.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator

from shardgraph.dataset import ShardedDataset
from shardgraph.errors import ShardGraphError
from shardgraph.sampling import ReadAhead

logger = logging.getLogger(__name__)

AHEAD_NBYTES = 96 << 20
"""Bytes beyond which nothing more is asked for: the window being read and the one after it. More
would push out pages, where memory is short, before they are used."""

MAX_REST = 64
"""Items that are passed over at most after one that was found to be cached."""

_NEVER = 1 << 62

AHEAD_BATCHES = 16
"""Batches asked for beyond those handed out, at most, where an item is one batch."""


class ReadAheadThread:
    """Asks for the graphs of an epoch, a bounded amount ahead of the batches handed out.

    ``items_from(n)`` gives what is read from the epoch's batch ``n`` on. With ``lets_go``, what was
    read leaves the page cache once the item after it has been handed out, too: where memory cannot
    hold the dataset, the kernel would have to search for pages to drop, and drops some that were
    asked for and not read yet.
    """

    def __init__(
        self,
        dataset: ShardedDataset,
        items_from: Callable[[int], Iterator[ReadAhead]],
        handed_out: int = 0,
        *,
        lets_go: bool = False,
    ) -> None:
        self._dataset = dataset
        self._items_from = items_from
        self._lets_go = lets_go
        self._items = items_from(0)  # here: an order is made once, by the thread that reads too
        self._turn = threading.Condition()
        self._handed_out = handed_out
        self._wake_at = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="shardgraph-readahead", daemon=True)
        self._thread.start()

    def advance(self, handed_out: int) -> None:
        """So many batches of the epoch have been handed out to be read."""
        self._handed_out = handed_out
        if handed_out >= self._wake_at:  # to hand over to the thread for nothing would cost a lot
            with self._turn:
                self._turn.notify()

    def close(self) -> None:
        """Ends the thread and waits for it; may be called twice."""
        with self._turn:
            self._stopped = True
            self._turn.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._ask()
        except (ShardGraphError, OSError, IndexError) as error:
            # Reading meets the same fault where it can be raised; here it is advice only.
            logger.debug("stopped reading ahead: %s", error)

    def _ask(self) -> None:
        asked: deque[tuple[int, int, ReadAhead]] = deque()  # (batches up to here, bytes, item)
        read: ReadAhead | None = None
        batches = outstanding = rest = 0
        items = self._items
        while (item := next(items, None)) is not None:
            while not self._stopped:
                while asked and asked[0][0] <= self._handed_out:
                    _, nbytes, last = asked.popleft()
                    outstanding -= nbytes
                    if self._lets_go and read is not None:
                        self._dataset.was_read(read.ranges)
                    read = last  # workers may still be at it
                if outstanding < AHEAD_NBYTES and len(asked) < AHEAD_BATCHES:
                    break
                # Until half of what is asked for has been handed out, or the first window of it.
                self._wait_for(asked[(len(asked) - 1) // 2][0])
            if self._stopped:
                return
            batches += item.batches
            nbytes = self._dataset.will_read(item.ranges)
            if nbytes:
                rest = 0
                asked.append((batches, nbytes, item))
                outstanding += nbytes
            else:  # All is cached: look again after a while, which is longer each time.
                rest = min(2 * rest + 1, MAX_REST)
                batches = max(batches, self._handed_out) + rest * max(1, item.batches)
                self._wait_for(batches - AHEAD_BATCHES)
                items = self._items_from(batches)

    def _wait_for(self, handed_out: int) -> None:
        """Waits until so many batches have been handed out, or the epoch is over."""
        with self._turn:
            self._wake_at = handed_out
            while self._handed_out < handed_out and not self._stopped:
                self._turn.wait()
            self._wake_at = _NEVER
