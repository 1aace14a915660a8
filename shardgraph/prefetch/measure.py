"""How long a loop with steps of a given length waits for its data."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from shardgraph.prefetch.prefetcher import DevicePrefetcher
from shardgraph.prefetch.stats import PrefetchStats


def measure_waits(
    loader: Iterable[Any],
    device: torch.device | str | None = None,
    *,
    step: float | Callable[[Any], object],
    num_steps: int = 200,
    depth: int = 2,
) -> PrefetchStats:
    """Return the waits of a loop over a prefetched loader, over as many epochs as it needs.

    Args:
        loader: The loader to measure.
        device: As for ``DevicePrefetcher``.
        step: The consumer's work on a batch: a function of the batch, or seconds to sleep, which
            stand for a step that waits for the device.
        num_steps: Batches to take in all.
        depth: As for ``DevicePrefetcher``.

    Raises:
        ValueError: The loader has no batch.
    """
    work = step if callable(step) else _sleeper(step)
    prefetcher = DevicePrefetcher(loader, device, depth=depth)
    taken = 0
    while taken < num_steps:
        before = taken
        for batch in prefetcher:
            work(batch)
            taken += 1
            if taken == num_steps:
                break
        if taken == before:
            raise ValueError("the loader has no batch, so there is no wait to measure")
    return prefetcher.stats


def _sleeper(seconds: float) -> Callable[[Any], object]:
    def sleep(batch: Any) -> None:  # noqa: ARG001
        time.sleep(seconds)

    return sleep
