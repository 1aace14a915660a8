"""Reading ahead of an epoch: a small thread tells the kernel what the plan reads next.

The pages arrive in the one page cache that all workers gather from. Nothing is copied, and a
dataset that is cached already costs a few probes a batch.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator

from shardgraph.dataset import ShardedDataset
from shardgraph.errors import ShardGraphError
from shardgraph.sampling import ReadAhead

logger = logging.getLogger(__name__)

AHEAD_NBYTES = 192 << 20
"""Bytes asked for beyond the batches handed out: two to three windows of 64 MiB."""

AHEAD_BATCHES = 32
"""Batches asked for beyond those handed out, at most, where an item is one batch."""


class ReadAheadThread:
    """Asks for the graphs of an epoch, a bounded amount ahead of the batches handed out."""

    def __init__(
        self, dataset: ShardedDataset, items: Iterator[ReadAhead], handed_out: int = 0
    ) -> None:
        self._dataset = dataset
        self._items = items
        self._turn = threading.Condition()
        self._handed_out = handed_out
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="shardgraph-readahead", daemon=True)
        self._thread.start()

    def advance(self, handed_out: int) -> None:
        """So many batches of the epoch have been handed out to be read."""
        with self._turn:
            self._handed_out = handed_out
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
        asked: deque[tuple[int, int]] = deque()  # (batches up to here, bytes), not yet handed out
        batches = outstanding = 0
        for item in self._items:
            with self._turn:
                while not self._stopped:
                    while asked and asked[0][0] <= self._handed_out:
                        outstanding -= asked.popleft()[1]
                    if outstanding < AHEAD_NBYTES and len(asked) < AHEAD_BATCHES:
                        break
                    self._turn.wait()
                if self._stopped:
                    return
            batches += item.batches
            nbytes = self._dataset.will_read(item.ranges)
            asked.append((batches, nbytes))
            outstanding += nbytes
