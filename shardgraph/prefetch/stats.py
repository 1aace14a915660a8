"""What the prefetcher measures: one short record a step, always on, in bounded memory."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NUM_RECENT = 4096
"""Steps of which single waits are kept: p99 then rests on some 40 steps, in about 0.5 MB."""

_NUM_PROBES = 1024  # about as many steps as a device's launch queue lets the host run ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSummary:
    """How long the consumer waited, in seconds.

    The percentiles are of the recent steps, the first of each epoch left out; total and maximum
    are of all steps, the first ones left out of the maximum alone.
    """

    total: float
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchStats:
    """A snapshot of what one prefetcher has measured over all its epochs; times in seconds.

    A step is one delivered batch. Its wait is the time the consumer spent in ``next()``. The first
    wait of an epoch, in which workers start and the queue fills, is counted in every total and
    share, and kept apart from percentiles and maxima.
    """

    num_batches: int
    num_epochs: int
    """Epochs that delivered a batch."""
    nbytes: int
    """Bytes of all tensors delivered."""
    wall_seconds: float
    """From each epoch's first ``next()`` to its last delivery: waits and the loop's own work."""
    first_wait_seconds: float
    """Sum of the first waits of all epochs; part of ``wait.total``."""
    wait: WaitSummary
    """The whole wait; the next three are its parts."""
    read: WaitSummary
    """While the loader was producing the batch."""
    copy: WaitSummary
    """While the background thread was queueing its copy (doing it, on a device without streams)."""
    hand_over: WaitSummary
    """The rest: waking up, and giving the batch to the consumer's stream."""
    device_wait_seconds: float
    """How long the consumer's stream stood waiting for copies, after the waits above; CUDA only."""
    loader_seconds: float
    """Time the background thread spent in the loader."""
    move_seconds: float
    """Time the background thread spent moving batches."""
    depth: int
    mean_ready: float
    """Batches ready in the queue when the next one was asked for; the mean over all steps."""
    max_ahead: int
    """Most batches held ahead of the consumer at once, the one in work included."""
    max_ahead_nbytes: int
    """Most bytes held ready on the device ahead of the consumer at once."""
    waits: tuple[float, ...]
    """The wait of each of the most recent steps, first steps of epochs included, oldest first."""

    @property
    def starved_share(self) -> float:
        """Share of the wall time in which the consumer or its stream waited, 0 to 1."""
        if self.wall_seconds <= 0:
            return 0.0
        return min(1.0, (self.wait.total + self.device_wait_seconds) / self.wall_seconds)

    @property
    def bytes_per_second(self) -> float:
        """Bytes delivered per second of wall time."""
        return self.nbytes / self.wall_seconds if self.wall_seconds > 0 else 0.0

    @property
    def loader_seconds_per_batch(self) -> float:
        """Mean time the loader took for a batch."""
        return self.loader_seconds / self.num_batches if self.num_batches else 0.0

    @property
    def step_seconds(self) -> float:
        """Mean time of the consumer's own work between two batches."""
        steps = self.num_batches - self.num_epochs
        return (self.wall_seconds - self.wait.total) / steps if steps > 0 else 0.0

    @property
    def seconds_per_batch(self) -> float:
        """Mean time from one delivery to the next, the start of each epoch left out."""
        steps = self.num_batches - self.num_epochs
        return (self.wall_seconds - self.first_wait_seconds) / steps if steps > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When one batch was worked on in the background: seconds on the clock of ``perf_counter``."""

    read_start: float
    read_stop: float
    move_start: float
    """Later than ``read_stop`` only where the batch had to wait for room in ``max_bytes``."""
    ready: float


@dataclass(frozen=True, slots=True)
class _Wait:
    total: float
    read: float
    copy: float
    is_first: bool

    @property
    def hand_over(self) -> float:
        return self.total - self.read - self.copy


def split_wait(asked: float, got: float, timing: Timing) -> tuple[float, float]:
    """Return the parts of the wait from ``asked`` to ``got`` spent on reading and on copying."""
    return (
        _overlap(asked, got, timing.read_start, timing.read_stop),
        _overlap(asked, got, timing.move_start, timing.ready),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of the sorted values do not exceed."""
    if not ordered:
        return 0.0
    rank = -(-len(ordered) * share // 1)  # the ceiling
    return ordered[max(0, int(rank) - 1)]


class Recorder:
    """Collects the steps of one prefetcher.

    The consumer only notes a step, since the accelerator waits meanwhile; another thread counts it.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.max_ahead = 0
        self.max_ahead_nbytes = 0
        self._recent: deque[_Wait] = deque(maxlen=NUM_RECENT)
        self._probes: deque[Any] = deque(maxlen=_NUM_PROBES)
        self._totals = [0.0, 0.0, 0.0]
        self._maxima = [0.0, 0.0, 0.0, 0.0]
        self._num_batches = self._num_epochs = self._nbytes = self._num_ready = 0
        self._wall = self._first_waits = self._device_wait = 0.0
        self._loader = self._move = 0.0
        self._last_delivery = 0.0
        self._is_first = True
        self._noted: deque[tuple[bool, float, float, float, Timing, int, int]] = deque()
        self._counting = threading.Lock()

    def start_epoch(self) -> None:
        """Count the time from the next step's request on, not from the last epoch's end."""
        self._is_first = True

    def add_step(
        self, asked: float, got: float, done: float, timing: Timing, nbytes: int, num_ready: int
    ) -> None:
        """Note one delivered batch: asked for, out of the queue and handed over at these times."""
        self._noted.append((self._is_first, asked, got, done, timing, nbytes, num_ready))
        self._is_first = False

    def count(self) -> None:
        """Count the steps noted so far; for any thread."""
        with self._counting:
            while self._noted:
                self._count(*self._noted.popleft())

    def _count(
        self,
        is_first: bool,
        asked: float,
        got: float,
        done: float,
        timing: Timing,
        nbytes: int,
        num_ready: int,
    ) -> None:
        read, copy = split_wait(asked, got, timing)
        wait = _Wait(done - asked, read, copy, is_first)
        self._recent.append(wait)
        parts = (wait.total, read, copy)
        self._totals = [total + part for total, part in zip(self._totals, parts, strict=True)]
        if is_first:
            self._num_epochs += 1
            self._first_waits += wait.total
        else:
            seen = (*parts, wait.hand_over)
            self._maxima = [max(a, b) for a, b in zip(self._maxima, seen, strict=True)]
        self._wall += done - (asked if is_first else self._last_delivery)
        self._last_delivery = done
        self._num_batches += 1
        self._nbytes += nbytes
        self._num_ready += num_ready
        self._loader += timing.read_stop - timing.read_start
        self._move += timing.ready - timing.move_start

    def add_probe(self, probe: Any, seconds_of: Callable[[Any], float | None]) -> None:
        """Keep a wait of the device until its length is known, and count those that now are."""
        self._probes.append(probe)
        self.settle(seconds_of)

    def settle(self, seconds_of: Callable[[Any], float | None]) -> None:
        """Count the waits of the device whose length is known by now."""
        while self._probes:
            seconds = seconds_of(self._probes[0])
            if seconds is None:
                return
            self._probes.popleft()
            self._device_wait += seconds

    def note_ahead(self, num_batches: int, nbytes: int) -> None:
        """Take over the high-water marks of an epoch."""
        self.max_ahead = max(self.max_ahead, num_batches)
        self.max_ahead_nbytes = max(self.max_ahead_nbytes, nbytes)

    def snapshot(self) -> PrefetchStats:
        """Return what has been measured so far."""
        self.count()
        total, read, copy = self._totals
        totals = {"total": total, "read": read, "copy": copy, "hand_over": total - read - copy}
        summaries = {
            name: self._summary(name, totals[name], maximum)
            for name, maximum in zip(totals, self._maxima, strict=True)
        }
        return PrefetchStats(
            num_batches=self._num_batches,
            num_epochs=self._num_epochs,
            nbytes=self._nbytes,
            wall_seconds=self._wall,
            first_wait_seconds=self._first_waits,
            wait=summaries["total"],
            read=summaries["read"],
            copy=summaries["copy"],
            hand_over=summaries["hand_over"],
            device_wait_seconds=self._device_wait,
            loader_seconds=self._loader,
            move_seconds=self._move,
            depth=self.depth,
            mean_ready=self._num_ready / self._num_batches if self._num_batches else 0.0,
            max_ahead=self.max_ahead,
            max_ahead_nbytes=self.max_ahead_nbytes,
            waits=tuple(wait.total for wait in self._recent),
        )

    def _summary(self, name: str, total: float, maximum: float) -> WaitSummary:
        ordered = sorted(getattr(wait, name) for wait in self._recent if not wait.is_first)
        return WaitSummary(
            total=total,
            p50=percentile(ordered, 0.50),
            p95=percentile(ordered, 0.95),
            p99=percentile(ordered, 0.99),
            max=maximum,
        )


def _overlap(start: float, stop: float, other_start: float, other_stop: float) -> float:
    return max(0.0, min(stop, other_stop) - max(start, other_start))
