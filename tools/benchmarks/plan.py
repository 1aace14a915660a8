"""``plan``: does planning an epoch of any number of graphs take seconds and little memory?"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections import deque
from functools import partial
from typing import Any

import numpy as np

from benchmarks.harness import Options, Report, facts, in_child, measure
from benchmarks.workloads import WORKLOADS

GRAPHS_PER_BATCH = 64
"""In the mean; budgets leave room for as many graphs of mean size."""

POOL = 500
"""Graphs whose sizes are drawn from."""

BATCHINGS = ("count", "budgets", "weights")
ORDERS = ("full", "window")


def plan(options: Options) -> Report:
    """Time until the first batch and for all of an epoch, and peak memory, by number of graphs."""
    largest = options.count or options.pick(10_000_000, 4_000)
    counts = (max(largest // 100, 1), max(largest // 10, 1), largest)
    keys = [(b, order, count) for b in BATCHINGS for order in ORDERS for count in counts]
    cases = {key: partial(in_child, planned, options.workload.name, *key) for key in keys}
    results, failures = measure(cases, options.rounds, progress="plan")
    rows = []
    for (batching, order, count), found in results.items():
        rows.append(
            {
                "batches by": batching,
                "order": order,
                "graphs": count,
                "first, s": statistics.median(each["first"] for each in found),
                "epoch, s": statistics.median(each["epoch"] for each in found),
                "peak, MB": found[0]["peak"] / 1e6,
                "bytes a graph": found[0]["peak"] / count,
                "rounds": found,
            }
        )
    return Report(
        question="plan",
        title=(
            f"plan: batches of {GRAPHS_PER_BATCH} graphs in the mean, sizes of "
            f"{options.workload.description}"
        ),
        columns=(
            *("batches by", "order", "graphs", "first, s", "epoch, s", "peak, MB"),
            "bytes a graph",
        ),
        facts=facts(
            options,
            graphs=list(counts),
            batch_sizes=[GRAPHS_PER_BATCH],
            order="as each row says",
            cache="nothing is read",
        ),
        rows=rows,
        notes=[
            *failures,
            "first: making the plan, its exact length and its first batch; epoch: all batches",
            (
                "peak: what NumPy and Python allocated beyond the arrays given (sizes, weights), "
                "in a run of its own"
            ),
            "budgets: max_nodes and max_edges; weights: drawn with replacement, as many as graphs",
        ],
        bars=[
            (f"{row['batches by']}, {row['order']}, {row['graphs']:,}", row["epoch, s"])
            for row in rows
        ],
        unit="seconds an epoch",
    )


def planned(workload: str, batching: str, order: str, count: int) -> dict[str, float]:
    """In a child: seconds to the first batch and for an epoch, and peak bytes."""
    options = _options(workload, batching, order, count)
    times = _run(count, options)
    tracemalloc.start()
    _run(count, options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {**times, "peak": peak}


def _run(count: int, options: dict[str, Any]) -> dict[str, float]:
    import shardgraph as sg

    make = sg.BatchPlan  # imports what it needs, which is not planning
    start = time.perf_counter()
    made = make(count, **options)
    length = len(made)
    batches = made.batches()
    next(batches)
    first = time.perf_counter() - start
    start = time.perf_counter()
    deque(made.batches(), maxlen=0)
    if not length:
        raise RuntimeError("a plan without batches")
    return {"first": first, "epoch": time.perf_counter() - start}


def _options(workload: str, batching: str, order: str, count: int) -> dict[str, Any]:
    pool = list(WORKLOADS[workload].graphs(min(POOL, count)))
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(pool), count)
    nodes, edges = (
        np.array(sizes, np.int32)[drawn]
        for sizes in zip(*((data.num_nodes, data.num_edges) for data in pool), strict=True)
    )
    nbytes = sum(value.nbytes for data in pool for _, value in data) * count // len(pool)
    options: dict[str, Any] = {"shuffle": order, "nbytes": nbytes}
    if batching == "budgets":
        return options | {
            "max_nodes": max(int(GRAPHS_PER_BATCH * nodes.mean()), int(nodes.max())),
            "max_edges": max(int(GRAPHS_PER_BATCH * edges.mean()), int(edges.max())),
            "num_nodes": nodes,
            "num_edges": edges,
        }
    if batching == "weights":
        options["weights"] = rng.random(count)
    return options | {"batch_size": GRAPHS_PER_BATCH}
