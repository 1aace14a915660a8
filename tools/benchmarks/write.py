"""``write``: how many graphs a second go from memory to disk?"""

from __future__ import annotations

import os
import tempfile
import time
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
    ratios,
    summary,
)
from benchmarks.peers import STORES


def write(options: Options) -> Report:
    """One process, from ``Data`` objects in a list to data that survives a power cut."""
    workload = options.workload
    count = options.count or options.pick(min(workload.pool_size, workload.default_count), 300)
    names, notes = chosen_stores(
        options, ("shardgraph", "lmdb", "lmdb-numpy", "sqlite", "pt", "inmemory", "litdata")
    )
    options.data.mkdir(parents=True, exist_ok=True)
    cases = {name: partial(in_child, write_rate, name, count, options) for name in names}
    results, failures = measure(cases, options.rounds, progress="write")
    rows: list[dict[str, Any]] = [
        {
            "store": name,
            "what": STORES[name].description,
            **summary([each["graphs_per_second"] for each in found]),
            "bytes a graph": round(found[0]["nbytes"] / count),
        }
        for name, found in results.items()
    ]
    ratios(rows, same=[])
    return Report(
        question="write",
        title=f"write: graphs/s from Data in memory to disk, {workload.name}, {count:,} graphs",
        columns=("store", "what", "median", "min", "max", "bytes a graph", "ratio"),
        facts=facts(options, graphs=count, order="as made", cache="written and flushed to disk"),
        rows=rows,
        notes=[
            *notes,
            *failures,
            "until all bytes are flushed to the disk; ratio: shardgraph's median over the store's",
        ],
        bars=[(row["store"], row["median"]) for row in rows],
    )


def write_rate(store: str, count: int, options: Options) -> dict[str, float]:
    """In a child: graphs a second of a writer, the flush of all files included."""
    graphs = options.workload.separate_graphs(count)
    with tempfile.TemporaryDirectory(dir=options.data) as root:
        directory = Path(root) / store
        directory.mkdir()
        os.sync()  # what others have left to write would be waited for below
        start = time.perf_counter()
        STORES[store](shard_size=options.shard_size).write(graphs, directory)
        os.sync()
        elapsed = time.perf_counter() - start
        return {"graphs_per_second": count / elapsed, "nbytes": machine.nbytes_of(directory)}
