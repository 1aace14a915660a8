"""``stall``: how long does a training step of a given length wait for its data?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.harness import Options, Report, chosen_stores, facts, in_child, measure, prepare
from benchmarks.peers import STORES

STEP_SECONDS = 5e-3
WARM_UP = 10
"""Steps in which files are opened and queues fill; not counted."""

MOST = 3
"""A run ends after so many times the time that it would take without a wait."""

PREFETCHED = "shardgraph, DevicePrefetcher"


def stall(options: Options) -> Report:
    """Waits of steps that sleep, as for a device, and of steps that compute on this processor."""
    workload = options.workload
    count = options.count or options.pick(workload.default_count, 600)
    batch_size = (options.batch_sizes or options.pick(workload.batch_sizes, (32,)))[-1]
    steps = options.pick(max(100, int(options.seconds / STEP_SECONDS)), 4)
    names, notes = chosen_stores(options, ("shardgraph", "sqlite", "lmdb", "list"))
    settings = [
        (work, num_workers)
        for work in ("sleep", "compute")
        for num_workers in options.pick((0, 2), (0,))
    ]
    cases = {}
    for name in names:
        directory, _ = prepare(options, workload, count, name)
        for work, num_workers in settings:
            for prefetch in (True, False) if name == "shardgraph" else (False,):
                label = PREFETCHED if prefetch else name
                case = (waits, name, directory, batch_size, num_workers, steps, work, prefetch)
                cases[label, work, num_workers] = partial(in_child, *case)
    results, failures = measure(cases, options.rounds, progress="stall")
    rows = [
        {
            "store": label,
            "step": work,
            "workers": num_workers,
            **{
                name: statistics.median(each[name] for each in found)
                for name in ("p50 us", "p99 us", "waiting %", "step ms")
            },
            "values": [each["p50 us"] for each in found],
        }
        for (label, work, num_workers), found in results.items()
    ]
    return Report(
        question="stall",
        title=(
            f"stall: wait per step of {STEP_SECONDS * 1e3:g} ms, {workload.name}, "
            f"batch {batch_size}, shuffled, page cache warm"
        ),
        columns=("store", "step", "workers", "p50 us", "p99 us", "waiting %", "step ms"),
        facts=facts(
            options,
            graphs=count,
            batch_sizes=[batch_size],
            num_workers=sorted({num_workers for _, num_workers in settings}),
            steps=steps,
            step_seconds=STEP_SECONDS,
        ),
        rows=rows,
        notes=[
            *notes,
            *failures,
            "medians of the rounds; the first steps of a run, in which queues fill, not counted",
            (
                "a step sleeps, as one that waits for a device, or computes on one core; peers go "
                "through PyG's DataLoader alone"
            ),
        ],
        bars=[
            (f"{row['store']}, {row['step']}, {row['workers']} workers", row["p50 us"])
            for row in rows
        ],
        unit="median wait per step, microseconds",
    )


def waits(
    store: str,
    directory: Path,
    batch_size: int,
    num_workers: int,
    steps: int,
    work: str,
    prefetch: bool,
) -> dict[str, float]:
    """In a child: percentiles of the time spent in ``next()``."""
    machine.read_through(directory)
    opened = STORES[store]()
    loader: Any = opened.loader(
        opened.open(directory), batch_size, num_workers=num_workers, endless=True
    )
    if prefetch:
        import shardgraph as sg

        loader = sg.DevicePrefetcher(loader, "cpu")
    step = _sleep if work == "sleep" else _computation()
    waited, worked = [], []
    iterator = iter(loader)
    begin = time.perf_counter()
    for number in range(WARM_UP + steps):
        start = time.perf_counter()
        batch = next(iterator)
        got = time.perf_counter()
        step()
        end = time.perf_counter()
        del batch
        if number >= WARM_UP:
            waited.append(got - start)
            worked.append(end - got)
        if end - begin > MOST * steps * STEP_SECONDS and len(waited) >= 20:
            break  # it waits most of the time, as these steps show
    if prefetch:
        loader.close()
    return {
        "p50 us": 1e6 * statistics.median(waited),
        "p99 us": 1e6 * sorted(waited)[int(0.99 * len(waited))],
        "waiting %": 100 * sum(waited) / (sum(waited) + sum(worked)),
        "step ms": 1e3 * statistics.median(worked),
    }


def _sleep() -> None:
    time.sleep(STEP_SECONDS)


def _computation() -> Callable[[], None]:
    """Small matrix products until the time is up, as a model on the CPU would."""
    import torch

    factor = torch.randn(192, 192)

    def compute() -> None:
        stop = time.perf_counter() + STEP_SECONDS
        while time.perf_counter() < stop:
            factor @ factor

    return compute
