"""``cold``: how fast does data come from disk that memory cannot hold?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    run_loop,
    say,
    summary,
)
from benchmarks.peers import STORES, ShardGraph

MIN_LIMIT = 256 << 20
"""Least limit, in bytes: Python, torch and a few batches need so much beside the cache."""

BEYOND_MEMORY = 20
"""How many times as many graphs as in a dataset that fits."""


@dataclass(frozen=True)
class _Run:
    """What is read, and in which order."""

    store: str
    order: str
    directory: Path
    graphs: int

    @property
    def nbytes(self) -> int:
        return machine.nbytes_of(self.directory)


def cold(options: Options) -> Report:
    """One epoch from its first byte, in full random order and in window order."""
    workload = options.workload
    count = options.count or options.pick(BEYOND_MEMORY * workload.default_count, 600)
    batch_size = (options.batch_sizes or options.pick(workload.batch_sizes, (32,)))[-1]
    names, notes = chosen_stores(options, ("sqlite", "lmdb", "lmdb-numpy", "pt", "litdata"))
    ours, _ = prepare(options, workload, count, "shardgraph")
    runs = [_Run(name, "full", *prepare(options, workload, count, name)) for name in names]
    runs[:0] = [_Run("shardgraph", order, ours, count) for order in ("full", "window")]
    runs.append(_Run("disk", "sequential", ours, count))
    limit = max(machine.nbytes_of(ours) // 3, MIN_LIMIT)
    how_dropped: set[str] = set()
    with machine.memory_limit(limit) as (group, how_limited):
        say(how_limited)

        def case(run: _Run) -> float:
            how_dropped.add(machine.drop_cache(run.directory, everything=not options.smoke))
            function: Callable[..., float] = disk_rate if run.store == "disk" else epoch_rate
            return float(in_child(function, run, batch_size, options.seconds, group=group))

        cases = {f"{run.store} {run.order}": partial(case, run) for run in runs}
        results, failures = measure(cases, options.rounds, progress="cold")
    rows = [_row(run, results[key]) for run, key in zip(runs, cases, strict=True) if key in results]
    _set_ratios(rows)
    cache = ", ".join(sorted(how_dropped))
    return Report(
        question="cold",
        title=(
            f"cold: graphs/s from disk, {workload.name}, {count:,} graphs, batch {batch_size}, "
            f"no workers; page cache {cache}; {how_limited}"
        ),
        columns=(
            *("store", "order", "graphs", "GB", "median", "min", "max", "MB/s"),
            *("window", "full", "of disk"),
        ),
        facts=facts(
            options,
            graphs=count,
            batch_sizes=[batch_size],
            order="as each row says",
            cache=cache,
            memory_limit=None if group is None else limit,
            memory_limit_set=how_limited,
        ),
        rows=rows,
        notes=[
            *notes,
            *failures,
            (
                "the limit is a third of shardgraph's own files, the same for all; a run starts "
                "with its first batch, opening included"
            ),
            (
                "window, full: shardgraph in that order over the store; shuffle=True picks window "
                "from 1 GiB on; of disk: MB/s over the disk's sequential read of the same files"
            ),
        ],
        bars=[(f"{row['store']} {row['order']}", row["median"]) for row in rows],
    )


def _row(run: _Run, values: list[float]) -> dict[str, Any]:
    nbytes = run.nbytes
    row: dict[str, Any] = {
        "store": run.store,
        "order": run.order,
        "graphs": run.graphs,
        "GB": nbytes / 1e9,
        **summary(values),
    }
    row["MB/s"] = row["median"] * nbytes / run.graphs / 1e6
    return row


def _set_ratios(rows: list[dict[str, Any]]) -> None:
    by_key = {(row["store"], row["order"]): row for row in rows}
    full = by_key.get(("shardgraph", "full"))
    window = by_key.get(("shardgraph", "window"))
    disk = by_key.get(("disk", "sequential"))
    for row in rows:
        if row["store"] in ("shardgraph", "disk"):
            continue
        if window is not None:
            row["window"] = window["median"] / row["median"]
        if full is not None:
            row["full"] = full["median"] / row["median"]
    if window is not None and disk is not None:
        window["of disk"] = window["MB/s"] / disk["MB/s"]


def epoch_rate(run: _Run, batch_size: int, seconds: float) -> float:
    """In a child: graphs a second of an epoch that starts cold, up to ``seconds`` of it."""
    store = STORES[run.store]()
    dataset = store.open(run.directory)
    if isinstance(store, ShardGraph):
        loader = store.loader(dataset, batch_size, shuffle=run.order)
    else:
        loader = store.loader(dataset, batch_size)
    return run_loop(loader, seconds=seconds, warm_up=0, one_epoch=True)["graphs_per_second"]


def disk_rate(run: _Run, batch_size: int, seconds: float) -> float:
    """In a child: the rate at which the disk gives the files' bytes in sequence, as graphs."""
    del batch_size
    nbytes, elapsed = machine.read_through(run.directory, seconds=seconds)
    return nbytes / elapsed * run.graphs / run.nbytes
