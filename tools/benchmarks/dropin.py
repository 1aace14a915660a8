"""``dropin``: what does changing the dataset alone bring, under PyG's own ``DataLoader``?"""

from __future__ import annotations

from functools import partial
from pathlib import Path

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
from benchmarks.peers import STORES, pyg_loader


def dropin(options: Options) -> Report:
    """PyG's loader over each dataset, no workers."""
    workload = options.workload
    count = options.count or options.pick(workload.default_count, 600)
    batch_size = (options.batch_sizes or options.pick(workload.batch_sizes, (32,)))[-1]
    names, notes = chosen_stores(
        options, ("shardgraph", "sqlite", "lmdb", "lmdb-numpy", "inmemory", "list")
    )
    cases = {}
    for name in names:
        directory, _ = prepare(options, workload, count, name)
        cases[name] = partial(in_child, rate, name, directory, batch_size, options.seconds)
    results, failures = measure(cases, options.rounds, progress="dropin")
    rows = [
        {"store": name, "what": f"{STORES[name].description.split(' and ')[0]}", **summary(values)}
        for name, values in results.items()
    ]
    ratios(rows, same=[])
    return Report(
        question="dropin",
        title=(
            f"dropin: graphs/s through torch_geometric.loader.DataLoader, {workload.name}, "
            f"batch {batch_size}, no workers, shuffled, page cache warm"
        ),
        columns=("store", "what", "median", "min", "max", "ratio"),
        facts=facts(options, graphs=count, batch_sizes=[batch_size]),
        rows=rows,
        notes=notes + failures + ["ratio: shardgraph's median over the store's"],
        bars=[(row["store"], row["median"]) for row in rows],
    )


def rate(store: str, directory: Path, batch_size: int, seconds: float) -> float:
    """In a child: the rate of PyG's loader over a store's dataset."""
    machine.read_through(directory)
    dataset = STORES[store]().open(directory)
    loader = pyg_loader(dataset, batch_size)
    return run_loop(loader, seconds=seconds, warm_up=warm_up_batches(0))["graphs_per_second"]
