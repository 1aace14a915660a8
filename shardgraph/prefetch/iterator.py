"""The consumer's side of one epoch: takes batches from the feed and takes charge of its end."""

import weakref
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from shardgraph.prefetch.feed import Delivery, End, Feed, feed_thread, stop_feed
from shardgraph.prefetch.stats import Recorder


class PrefetchIterator(Iterator[Any]):
    """Yields the batches of one epoch; its end, in any way, ends the thread that feeds it.

    Args:
        source: The loader's iterator; only the thread uses it from now on.
        feed: What thread and consumer share.
        recorder: Where the steps are counted.
        remember: Called with the loader's state as of each batch delivered.
    """

    def __init__(
        self,
        source: Iterator[Any],
        feed: Feed,
        recorder: Recorder,
        remember: Callable[[Any], None],
    ) -> None:
        self.finished = False
        self._superseded = False
        self.thread = feed_thread(source, feed)
        self._feed = feed
        self._recorder = recorder
        self._remember = remember
        recorder.start_epoch()
        # Before the start, so that an interrupt in between leaves no thread behind. It runs on
        # close(), when this object is collected, or at the exit of Python, whichever comes first.
        self._stop = weakref.finalize(self, stop_feed, feed, self.thread)
        self.thread.start()

    def __next__(self) -> Any:
        if self._superseded:
            raise RuntimeError(
                "another loop over this prefetcher has ended this one, since one loader serves one "
                "loop: finish this one first, or wrap a second loader in its own prefetcher"
            )
        if self.finished:
            raise StopIteration
        try:
            return self._take()
        except BaseException:
            # The traceback refers to this object, so its collection may come late.
            self.close()
            raise

    def close(self) -> None:
        """Stop the thread, wait for it and drop the batches read ahead; twice-safe."""
        self.finished = True
        self.note_ahead()
        self._stop()

    def supersede(self) -> None:
        """Stop for another loop; to go on with this one is an error, not a short epoch."""
        self.close()
        self._superseded = True

    def note_ahead(self) -> None:
        """Give the recorder the high-water marks reached so far."""
        self._recorder.note_ahead(self._feed.max_ahead, self._feed.max_ahead_nbytes)

    def _take(self) -> Any:
        num_ready = self._feed.num_ready
        asked = perf_counter()
        item = self._feed.items.get()
        got = perf_counter()
        if isinstance(item, Delivery):
            return self._hand_over(item, asked=asked, got=got, num_ready=num_ready)
        if isinstance(item, End):
            self._remember(item.state)
            raise StopIteration
        try:
            raise item.error
        finally:
            del item  # this frame is in the error's traceback: no cycle that keeps batches alive

    def _hand_over(self, item: Delivery, *, asked: float, got: float, num_ready: int) -> Any:
        feed, moved = self._feed, item.moved
        probe = None
        if feed.backend.asynchronous:
            probe = feed.backend.wait(moved.event)
            feed.backend.keep(moved.parts)
        feed.delivered(item)
        self._remember(item.state)
        self._recorder.add_step(asked, got, perf_counter(), item.timing, item.nbytes, num_ready)
        if probe is not None:
            self._recorder.add_probe(probe, feed.backend.stalled_seconds)
        return moved.batch
