"""``warm`` and ``workers``: how many graphs a second, with all data in the page cache?"""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.harness import (
    Options,
    Report,
    chosen_stores,
    facts,
    in_child,
    measure,
    prepare,
    ratios,
    run_loop,
    summary,
    warm_up_batches,
)
from benchmarks.peers import STORES


def warm(options: Options) -> Report:
    """Without worker processes."""
    return _throughput(options, "warm", 0, tuple(STORES))


def workers(options: Options) -> Report:
    """With two worker processes."""
    stores = tuple(name for name in STORES if not (options.smoke and STORES[name].in_memory))
    return _throughput(options, "workers", 2, stores)


def _throughput(
    options: Options, question: str, num_workers: int, stores: tuple[str, ...]
) -> Report:
    workload = options.workload
    count = options.count or options.pick(workload.default_count, 600)
    batch_sizes = options.batch_sizes or options.pick(workload.batch_sizes, (32,))
    names, notes = chosen_stores(options, stores)
    cases = {}
    counts = {}
    for name in names:
        directory, counts[name] = prepare(options, workload, count, name)
        case = (rates, name, directory, batch_sizes, num_workers, options.seconds)
        cases[name] = partial(in_child, *case)
    results, failures = measure(cases, options.rounds, progress=question)
    rows: list[dict[str, Any]] = []
    for position, batch_size in enumerate(batch_sizes):
        for name, found in results.items():
            values = [each[position]["graphs_per_second"] for each in found]
            row = {
                "store": name,
                "what": STORES[name].description,
                "batch size": batch_size,
                "graphs": counts[name],
                **summary(values),
            }
            rows.append(row)
    ratios(rows, same=["batch size"])
    return Report(
        question=question,
        title=(
            f"{question}: graphs/s, {workload.name} ({workload.description}), "
            f"{num_workers} workers, shuffled, page cache warm"
        ),
        columns=("store", "what", "batch size", "median", "min", "max", "ratio"),
        facts=facts(options, graphs=count, num_workers=num_workers, batch_sizes=list(batch_sizes)),
        rows=rows,
        notes=notes + failures + ["ratio: shardgraph's median over the store's"],
        bars=[(f"{row['store']} ({row['batch size']})", row["median"]) for row in rows],
    )


def rates(
    store: str, directory: Path, batch_sizes: tuple[int, ...], num_workers: int, seconds: float
) -> list[dict[str, float]]:
    """In a child: the rate at each batch size, one after the other."""
    opened = STORES[store]()
    machine.read_through(directory)
    dataset = opened.open(directory)
    found = []
    for batch_size in batch_sizes:
        loader = opened.loader(dataset, batch_size, num_workers=num_workers, endless=True)
        warm_up = warm_up_batches(num_workers)
        found.append(run_loop(loader, seconds=seconds, warm_up=warm_up))
        del loader
        gc.collect()  # ends its workers before the next ones start, whatever cycle holds them
    return found
