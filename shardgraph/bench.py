"""How fast a dataset reads on this machine, and how long training would wait for it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeAlias

from shardgraph.dataset import ShardedDataset
from shardgraph.loader import GraphLoader
from shardgraph.prefetch import DevicePrefetcher, PrefetchStats, measure_waits
from shardgraph.writer import versions

ORDERS = ("sequential", "full", "window")
"""Orders of an epoch; the last two are ``GraphLoader``'s ``shuffle``."""

Shape: TypeAlias = "dict[str, int]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one order and number of workers gave."""

    order: str
    num_workers: int
    graphs_per_second: float
    """Of a loop that does nothing else."""
    bytes_per_second: float
    """Of all tensors of its batches."""
    stats: PrefetchStats
    """Of a loop whose steps take a given time."""

    def to_json(self) -> dict[str, Any]:
        """Its figures; seconds and bytes."""
        return {
            "order": self.order,
            "num_workers": self.num_workers,
            "graphs_per_second": self.graphs_per_second,
            "bytes_per_second": self.bytes_per_second,
            "wait_p50": self.stats.wait.p50,
            "wait_p99": self.stats.wait.p99,
            "starved_share": self.stats.starved_share,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """All measurements of a dataset, and the conditions they were made in."""

    path: str
    num_graphs: int
    nbytes: int
    batches: Shape
    step_seconds: float
    device: str
    measurements: tuple[Measurement, ...]

    def to_json(self) -> str:
        """One line with everything but the single waits."""
        return json.dumps(
            {
                "dataset": self.path,
                "num_graphs": self.num_graphs,
                "nbytes": self.nbytes,
                "batches": self.batches,
                "step_seconds": self.step_seconds,
                "device": self.device,
                "cache": "as found",
                "num_cores": _num_cores(),
                "versions": versions(),
                "measurements": [each.to_json() for each in self.measurements],
            }
        )

    def plot(self, path: str | Path) -> None:
        """Draws the wait of every step over time, a panel an order and a line a number of workers.

        Raises:
            ImportError: if matplotlib is not installed.
        """
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("a plot needs matplotlib: pip install 'shardgraph[plot]'") from error
        orders = list(dict.fromkeys(each.order for each in self.measurements))
        figure = Figure(figsize=(8, 1 + 2.2 * len(orders)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(orders), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for order, axes in zip(orders, panels, strict=True):
            for each in self.measurements:
                if each.order == order:
                    waits = [1e6 * wait for wait in each.stats.waits]
                    axes.plot(waits, linewidth=0.8, label=f"workers: {each.num_workers}")
            axes.set_yscale("log")
            axes.set_ylabel("wait, microseconds")
            axes.set_title(order, loc="left", fontsize=9)
            axes.legend(fontsize=7, ncols=4, loc="upper right")
        panels[-1].set_xlabel(f"step of {1e3 * self.step_seconds:g} ms")
        figure.savefig(path, dpi=150)


def bench(
    path: str | Path,
    *,
    batch_size: int | None = None,
    max_nodes: int | None = None,
    max_edges: int | None = None,
    workers: Sequence[int] | None = None,
    orders: Sequence[str] = ORDERS,
    seconds: float = 3.0,
    step_seconds: float = 5e-3,
    device: str | None = None,
    on_measured: Callable[[Measurement], None] | None = None,
) -> BenchReport:
    """Measures a dataset, in each order and with each number of workers.

    Nothing is done about the page cache: the first measurement of a dataset that was not read
    lately shows the disk, later ones what stayed in memory.

    Args:
        path: A dataset's directory.
        batch_size: Graphs in a batch; 256 if no budget is given.
        max_nodes: Budget: nodes in a batch.
        max_edges: Budget: edges in a batch.
        workers: Numbers of workers; by default 0, 1, 2, 4, ... up to the number of cores.
        orders: Of `ORDERS`.
        seconds: Length of each of the two loops of a measurement.
        step_seconds: Length of a training step in the loop that measures waits.
        device: Where batches go; as for ``DevicePrefetcher``.
        on_measured: Called with each measurement when it is made.

    Raises:
        ValueError: if an argument is out of its range.
        FormatError: if there is no dataset at ``path``, or it cannot be read.
    """
    if seconds <= 0 or step_seconds <= 0:
        raise ValueError(f"times must be positive, got {seconds=} and {step_seconds=}")
    if unknown := [order for order in orders if order not in ORDERS]:
        raise ValueError(f"an order is one of {', '.join(ORDERS)}; got {', '.join(unknown)}")
    if batch_size is None and max_nodes is None and max_edges is None:
        batch_size = 256
    given = {"batch_size": batch_size, "max_nodes": max_nodes, "max_edges": max_edges}
    batches = {name: value for name, value in given.items() if value is not None}
    dataset = ShardedDataset(path)
    measurements = []
    for order in orders:
        for num_workers in worker_counts() if workers is None else workers:
            loader = GraphLoader(
                dataset,
                **batches,  # type: ignore[arg-type]  # three of its integers, by name
                oversized="alone",
                shuffle=False if order == "sequential" else order,
                num_workers=num_workers,
                persistent_workers=num_workers > 0,
            )
            measurements.append(_measure(loader, order, device, seconds, step_seconds))
            del loader  # ends its workers before the next ones start
            if on_measured is not None:
                on_measured(measurements[-1])
    return BenchReport(
        path=os.fspath(path),
        num_graphs=len(dataset),
        nbytes=dataset.manifest.nbytes,
        batches=batches,
        step_seconds=step_seconds,
        device=str(DevicePrefetcher([], device).device),
        measurements=tuple(measurements),
    )


def worker_counts() -> list[int]:
    """0, 1, 2, 4, ... up to the number of cores of this process."""
    num_cores = _num_cores()
    return [0, *(1 << power for power in range(num_cores.bit_length()))]


def _measure(
    loader: GraphLoader, order: str, device: str | None, seconds: float, step_seconds: float
) -> Measurement:
    graphs_rate, bytes_rate = _rates(loader, device, seconds)
    num_steps = max(2, round(seconds / step_seconds))
    return Measurement(
        order=order,
        num_workers=loader.num_workers,
        graphs_per_second=graphs_rate,
        bytes_per_second=bytes_rate,
        stats=measure_waits(loader, device, step=step_seconds, num_steps=num_steps),
    )


def _rates(loader: GraphLoader, device: str | None, seconds: float) -> tuple[float, float]:
    """Graphs and bytes a second of a loop without work, its first batches not counted."""
    prefetcher = DevicePrefetcher(loader, device)
    num_graphs = counted = 0
    # Workers start with two batches each in their queues.
    warm_up = 1 + 2 * loader.num_workers
    start = time.perf_counter()
    with prefetcher:
        for number, batch in enumerate(chain.from_iterable(repeat(prefetcher))):
            num_graphs += batch.num_graphs
            now = time.perf_counter()
            if number < warm_up:
                start = now
                continue
            counted += batch.num_graphs
            if now - start > seconds:
                break
    rate = counted / (now - start)
    return rate, rate * prefetcher.stats.nbytes / num_graphs


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
