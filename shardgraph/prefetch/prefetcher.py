"""DevicePrefetcher: batches of any loader, ready on the device before they are asked for."""

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from types import TracebackType
from typing import Any

import torch
from torch.utils.data import DataLoader

from shardgraph.prefetch.feed import Feed
from shardgraph.prefetch.iterator import PrefetchIterator
from shardgraph.prefetch.move import Mover
from shardgraph.prefetch.replay import Headspace
from shardgraph.prefetch.report import report
from shardgraph.prefetch.stats import PrefetchStats, Recorder
from shardgraph.prefetch.transfer import Backend, backend_for, resolve_device
from shardgraph.processes import starting_workers


class DevicePrefetcher:
    """Iterates over a loader's batches on the device, in the loader's order.

    A background thread keeps up to ``depth`` batches ahead of the loop. On CUDA and XPU they are
    copied on a stream of their own, which each batch leaves by an event, so a batch may be used on
    the stream current at ``next()`` as if it had been made there. Elsewhere the thread only reads
    ahead. A batch may be a PyG object, a tensor, or dicts, lists and tuples of these; other values
    in it stay as they are. The loader must not write into a batch it has yielded.

    One loop at a time runs over a prefetcher. Leaving it in any way (its end, ``break``, an error,
    Ctrl-C) stops the thread and drops the loader's iterator, which ends worker processes unless
    the loader keeps them (``persistent_workers=True``); the next loop is a new epoch. It also ends
    a loop that was left but whose iterator is kept, as Lightning keeps it; to go on with that one
    is an error. An error of the loader is raised after the batches before it.

    Args:
        loader: A ``GraphLoader``, a PyG or torch ``DataLoader``, or any iterable of batches.
        device: Where the batches go; None is the accelerator if there is one, else the CPU.
        depth: Most batches ahead of the one in use, the one being read included.
        max_bytes: Most bytes of batches ready ahead of the one in use; a larger batch passes alone.

    Raises:
        ValueError: The device is not there, or a limit is below 1.
        TypeError: The loader is not iterable.

    Example:
        >>> import torch
        >>> from shardgraph import DevicePrefetcher
        >>> for batch in DevicePrefetcher([torch.arange(2), torch.arange(3)], device="cpu"):
        ...     print(batch)
        tensor([0, 1])
        tensor([0, 1, 2])
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: torch.device | str | None = None,
        *,
        depth: int = 2,
        max_bytes: int | None = None,
    ) -> None:
        if not (hasattr(type(loader), "__iter__") or hasattr(type(loader), "__getitem__")):
            raise TypeError(
                f"a loader must be an iterable of batches, got {type(loader).__name__!r}"
            )
        _check_limit("depth", depth)
        if max_bytes is not None:
            _check_limit("max_bytes", max_bytes)
        self.loader: Any = loader
        self.depth = depth
        self.max_bytes = max_bytes
        self._backend = backend_for(resolve_device(device))
        self._recorder = Recorder(depth)
        self._mover = Mover(self._backend, depth)
        self._active: weakref.ref[PrefetchIterator] | None = None
        self._last_thread: threading.Thread | None = None
        self._length: int | None = None  # of the loop under way
        self._state: Any = None
        self._has_state = False

    @classmethod
    def with_backend(
        cls, loader: Any, backend: Backend, *, depth: int = 2, max_bytes: int | None = None
    ) -> "DevicePrefetcher":
        """Return a prefetcher whose device calls go to ``backend``: for tests and device checks."""
        prefetcher = cls(loader, "cpu", depth=depth, max_bytes=max_bytes)
        prefetcher._backend = backend
        prefetcher._mover = Mover(backend, depth)
        return prefetcher

    @property
    def backend(self) -> Backend:
        """The device calls, for a check that looks into them or alters them."""
        return self._backend

    @property
    def device(self) -> torch.device:
        """Where the batches go."""
        return self._backend.device

    @property
    def dataset(self) -> Any:
        """The loader's dataset."""
        return self.loader.dataset

    @property
    def batch_size(self) -> Any:
        """The loader's batch size."""
        return self.loader.batch_size

    def __len__(self) -> int:
        """Return the loader's number of batches: of the loop under way, or else of the next."""
        # Reading ahead, the loader may have come to the end, and count the batches of its next.
        if self._running() is not None and self._length is not None:
            return self._length
        return len(self.loader)

    def __iter__(self) -> "PrefetchIterator":
        """Start an epoch: the thread begins to read at once. Ends a loop under way."""
        running = self._running()
        if running is not None:
            running.supersede()
        if self._last_thread is not None:
            self._last_thread.join()  # at once, unless a stop gave up waiting for a read
        self._backend.begin_epoch()
        self._length = _length(self.loader)
        # In this thread: torch starts workers here, and watches them by a signal handler that only
        # the main thread can install; with fork, better before there is a second thread.
        source = self._open_epoch()
        feed = self._make_feed()
        self._remember(feed.state_of())
        iterator = PrefetchIterator(source, feed, self._recorder, self._remember)
        self._last_thread = iterator.thread
        self._active = weakref.ref(iterator)
        return iterator

    def state_dict(self) -> Any:
        """Return the loader's state after the last batch that the loop has received.

        Before the first batch it is the loader's state at the start of the epoch; after the last
        one the loader's state at its end. Batches read ahead do not count.

        Raises:
            AttributeError: The loader has no ``state_dict``.
        """
        state_dict = self._loader_method("state_dict")
        return self._state if self._has_state else state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Set the loader's state, from which the next loop goes on; ends a loop under way.

        Raises:
            AttributeError: The loader has no ``load_state_dict``.
        """
        load_state_dict = self._loader_method("load_state_dict")
        self._stop()
        load_state_dict(state)
        self._state, self._has_state = None, False

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader which epoch the next loop is.

        Raises:
            AttributeError: The loader has no ``set_epoch``.
        """
        self._loader_method("set_epoch")(epoch)
        if self._running() is None:
            self._state, self._has_state = None, False

    @property
    def stats(self) -> PrefetchStats:
        """What has been measured so far, over all epochs."""
        self._recorder.settle(self._backend.stalled_seconds)
        running = self._running()
        if running is not None:
            running.note_ahead()
        return self._recorder.snapshot()

    def report(self) -> str:
        """Return the measurements as a table, and a sentence on what to try next."""
        return report(self.stats, self.loader)

    def headspace(self, *, batches: int = 8, steps: int | None = None) -> Headspace:
        """Return an iterable that shows how fast the loop would be if data came for free.

        It reads a few batches once and then yields them over and over, so that the consumer's own
        work is all that takes time; its ``report()`` compares that with the loops before it.

        Args:
            batches: How many batches to read and keep on the device.
            steps: How many to yield; None is one epoch, or 100 for a loader without length.

        Example:
            >>> import torch
            >>> from shardgraph import DevicePrefetcher
            >>> prefetcher = DevicePrefetcher([torch.arange(2)] * 5, device="cpu")
            >>> free = prefetcher.headspace(batches=2)
            >>> sum(int(batch.sum()) for batch in free)
            5
            >>> free.num_steps
            5
        """
        _check_limit("batches", batches)
        if steps is not None:
            _check_limit("steps", steps)
        return Headspace(
            self,
            num_batches=batches,
            num_steps=steps,
            synchronize=self._backend.synchronize,
        )

    def close(self) -> None:
        """End a loop under way, with its thread and workers, and close the loader if it can be.

        May be called repeatedly.
        """
        self._stop()
        close = getattr(self.loader, "close", None)
        if callable(close):
            close()

    def __enter__(self) -> "DevicePrefetcher":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.loader).__name__}, device='{self.device}', "
            f"depth={self.depth}, max_bytes={self.max_bytes})"
        )

    def _open_epoch(self) -> Iterator[Any]:
        loader = self.loader
        packed_batches = getattr(loader, "packed_batches", None)
        if callable(packed_batches):
            return iter(packed_batches())
        has_workers = isinstance(loader, DataLoader) and loader.num_workers > 0
        with starting_workers(loader) if has_workers else nullcontext():
            return iter(loader)

    def _make_feed(self) -> Feed:
        state_dict = getattr(self.loader, "state_dict", None)
        return Feed(
            depth=self.depth,
            max_bytes=self.max_bytes,
            backend=self._backend,
            mover=self._mover,
            state_of=state_dict if callable(state_dict) else _no_state,
            count_steps=self._recorder.count,
            may_be_packed=callable(getattr(self.loader, "packed_batches", None)),
            has_workers=bool(getattr(self.loader, "num_workers", 0)),
        )

    def _remember(self, state: Any) -> None:
        self._state, self._has_state = state, True

    def _running(self) -> "PrefetchIterator | None":
        iterator = self._active() if self._active is not None else None
        return None if iterator is None or iterator.finished else iterator

    def _stop(self) -> None:
        running = self._running()
        if running is not None:
            running.close()

    def _loader_method(self, name: str) -> Any:
        method = getattr(self.loader, name, None)
        if not callable(method):
            raise AttributeError(  # noqa: TRY004  # as for any object without that method
                f"the wrapped {type(self.loader).__name__} has no {name}(): "
                "wrap a shardgraph GraphLoader, or another loader that has one"
            )
        return method


def _length(loader: Any) -> int | None:
    """Return the loader's number of batches, None if it does not say."""
    try:
        return len(loader)
    except TypeError:
        return None


def _no_state() -> None:
    """Return no state, for a loader without any."""


def _check_limit(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
