"""What the measurements mean: a short table, and one sentence with the next thing to try."""

import os
from typing import Any

from shardgraph.prefetch.stats import PrefetchStats, WaitSummary

NO_WAIT_SECONDS = 50e-6
"""A median wait up to this is none: tf.data's definition of an input pipeline that keeps up
(https://www.tensorflow.org/guide/data_performance_analysis)."""

_STARVED_SHARE = 0.02  # below this, more speed of the data could not be told from noise
_BUSY_SHARE = 0.1  # below this, a processor that is busy with the steps themselves explains it
_ENOUGH_SECONDS = 1.0  # of measurements, before advice is given


def report(stats: PrefetchStats, loader: Any) -> str:
    """Return the measurements as a table and a verdict.

    Args:
        stats: A prefetcher's snapshot.
        loader: Its loader, whose options decide what to advise.
    """
    rows = [
        "wait per step        total       p50       p95       p99       max",
        _row("all", stats.wait),
        _row("  read", stats.read),
        _row("  copy", stats.copy),
        _row("  hand-over", stats.hand_over),
        _summary(stats),
        _rates(stats),
        f"verdict: {verdict(stats, loader)}",
    ]
    return "\n".join(rows)


def verdict(stats: PrefetchStats, loader: Any) -> str:
    """Return one sentence: what holds training up, if anything, and the next thing to try."""
    if not stats.num_batches:
        return "nothing measured yet; run a loop over the prefetcher first"
    starved = f"{stats.starved_share:.0%} of the time starved"
    later_waits = stats.wait.total - stats.first_wait_seconds
    mean_wait = (later_waits + stats.device_wait_seconds) / stats.num_batches
    first_wait = stats.first_wait_seconds / stats.num_epochs
    if stats.starved_share < _STARVED_SHARE or max(mean_wait, first_wait) <= NO_WAIT_SECONDS:
        return (
            f"the data keeps up: median wait {duration(stats.wait.p50)}, "
            f"{duration(stats.wait.total)} in all; there is nothing to gain here"
        )
    if stats.wall_seconds < _ENOUGH_SECONDS:
        return (
            f"{starved}, but {duration(stats.wall_seconds)} is too short to tell why; "
            "run a second or more"
        )
    if stats.first_wait_seconds > later_waits + stats.device_wait_seconds:
        return f"the start of each epoch is the bottleneck: {starved}; {_start_advice(loader)}"
    parts = {
        "read": stats.read.total,
        "copy": stats.copy.total,
        "hand-over": stats.hand_over.total,
        "device": stats.device_wait_seconds,
    }
    worst = max(parts, key=lambda name: parts[name])
    if worst == "read":
        return f"the loader is the bottleneck: {starved}; {_read_advice(stats, loader)}"
    if worst == "hand-over" and stats.starved_share < _BUSY_SHARE:
        return (
            f"the data keeps up: batches are ready in time, and {starved} is the processor's, "
            "which computes the steps meanwhile"
        )
    if worst == "hand-over":
        return (
            f"handing batches over is the bottleneck: {starved}; the processor is busy elsewhere, "
            "so try fewer workers or threads"
        )
    return f"the copy to the device is the bottleneck: {starved}; {_copy_advice(loader)}"


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it: '12 us', '3.4 ms', '1.23 s'."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s"


def _row(name: str, wait: WaitSummary) -> str:
    cells = (wait.total, wait.p50, wait.p95, wait.p99, wait.max)
    return f"{name:<16}" + "".join(f"{duration(cell):>10}" for cell in cells)


def _summary(stats: PrefetchStats) -> str:
    return (
        f"{stats.num_batches} batches in {stats.num_epochs} epochs, "
        f"{duration(stats.wall_seconds)}; starved {stats.starved_share:.1%} of the time, "
        f"{duration(stats.first_wait_seconds)} of it at the start of epochs, "
        f"{duration(stats.device_wait_seconds)} on the device"
    )


def _rates(stats: PrefetchStats) -> str:
    return (
        f"per batch: loader {duration(stats.loader_seconds_per_batch)}, "
        f"step {duration(stats.step_seconds)}; {stats.nbytes / 1e6:.1f} MB at "
        f"{stats.bytes_per_second / 1e6:.1f} MB/s; "
        f"{stats.mean_ready:.1f} of {stats.depth} batches ready"
    )


def _start_advice(loader: Any) -> str:
    if getattr(loader, "num_workers", 0) and not getattr(loader, "persistent_workers", False):
        return "try persistent_workers=True"
    return "try longer epochs, or keep the iterator's first batch small"


def _read_advice(stats: PrefetchStats, loader: Any) -> str:
    if stats.loader_seconds_per_batch < 0.8 * stats.step_seconds:
        return f"it is fast enough on average but uneven, so try depth={2 * stats.depth}"
    if getattr(getattr(loader, "dataset", None), "transform", None) is not None:
        return (
            "the dataset's transform runs graph by graph: give it as "
            "GraphLoader(batch_transform=...) if it may see whole batches, or store what it makes "
            "(shardgraph convert --transform) if it is not random"
        )
    num_workers = getattr(loader, "num_workers", None)
    num_cores = _num_cores()
    if num_workers is not None and num_workers < num_cores:
        more = min(num_cores, max(2, 2 * num_workers))
        return f"try num_workers={more} instead of {num_workers}"
    if getattr(getattr(loader, "plan", None), "order", None) == "full":
        return "try shuffle='window', which reads nearby graphs together"
    return "try reading fewer attributes (keys=)"


def _copy_advice(loader: Any) -> str:
    if getattr(loader, "num_workers", 0) and not getattr(loader, "pin_memory", True):
        return "try pin_memory=True"
    return "try reading fewer attributes (keys=) or narrower dtypes"


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
