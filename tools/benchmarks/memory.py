"""``open``: do opening and memory depend on the number of graphs?"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import pickle
import shutil
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import FORMAT, Options, Report, facts, in_child, measure, say
from benchmarks.workloads import WORKLOADS

PIECE = 250_000
"""Graphs that are written; larger datasets name copies of their shards."""

ORDERS = ("sequential", "full", "window")


def open_memory(options: Options) -> Report:
    """Opening time, and memory of main process and worker after as many batches of each size."""
    counts = options.pick((1_000_000, 10_000_000), (2_000, 20_000))
    if options.count:
        counts = (options.count // 10, options.count)
    piece = min(PIECE, counts[0])
    directories = {count: _dataset(options, count, piece) for count in counts}
    cases: dict[Any, Any] = {
        ("open", count): partial(in_child, opening, directory)
        for count, directory in directories.items()
    }
    for order in ORDERS:
        for count, directory in directories.items():
            cases[order, count] = partial(
                in_child, resident, directory, order, options.pick(400, 5)
            )
    results, failures = measure(cases, options.rounds, progress="open")
    rows = [
        _row(order, counts, results)
        for order in ORDERS
        if all((order, count) in results for count in counts)
    ]
    opened = {
        count: {
            name: statistics.median(each[name] for each in results["open", count])
            for name in results["open", count][0]
        }
        for count in counts
    }
    small, large = counts
    return Report(
        question="open",
        title=(
            f"open: opening, and private memory in MB after as many batches, "
            f"{small:,} and {large:,} graphs of {WORKLOADS['tiny'].description}"
        ),
        columns=(
            "order",
            "main, small",
            "main, large",
            "bytes a graph, main",
            "worker, small",
            "worker, large",
            "bytes a graph, worker",
        ),
        facts=facts(
            options,
            workload="tiny",
            graphs=list(counts),
            batch_sizes=[256],
            num_workers=1,
            order="as each row says",
            open_ms=opened,
        ),
        rows=rows,
        notes=[
            *failures,
            *(
                f"{count:,} graphs: ShardedDataset() {found['construct']:.1f} ms; in a worker, "
                f"unpickling it {found['unpickle']:.1f} ms and the first graph "
                f"{found['first']:.1f} ms ({found['pickled']:,.0f} bytes pickled)"
                for count, found in opened.items()
            ),
            (
                "memory: pages that are the process's own (anonymous or written), by "
                "/proc/PID/smaps_rollup; growth over the process before the dataset was opened, of "
                "the worker all; mapped files are shared by all through the page cache"
            ),
            f"the large dataset names copies of the shards of {piece:,} graphs",
        ],
        bars=[
            (f"{row['order']}, {name}", row[f"bytes a graph, {name}"])
            for row in rows
            for name in ("main", "worker")
        ],
        unit="bytes per further graph",
    )


def _row(order: str, counts: tuple[int, int], results: dict[Any, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"order": order}
    for process in ("main", "worker"):
        small, large = (
            statistics.median(each[process] for each in results[order, count]) for count in counts
        )
        row[f"{process}, small"], row[f"{process}, large"] = small / 1e6, large / 1e6
        row[f"bytes a graph, {process}"] = (large - small) / (counts[1] - counts[0])
    return row


def _dataset(options: Options, count: int, piece: int) -> Path:
    """A dataset of ``count`` tiny graphs: links to the shards of one of ``piece`` graphs."""
    base = options.data / f"v{FORMAT}-tiny-{piece}" / "pieces"
    directory = options.data / f"v{FORMAT}-tiny-{count}" / "linked"
    done = directory.with_suffix(".done")
    if options.rebuild or not done.exists():
        say(f"writing {count:,} tiny graphs to {directory}")
        for old in (base, directory):
            shutil.rmtree(old, ignore_errors=True)
        base.parent.mkdir(parents=True, exist_ok=True)
        in_child(make_linked, base, directory, piece, count // piece)
        done.write_text("")
    return directory


def make_linked(base: Path, directory: Path, piece: int, copies: int) -> None:
    """In a child: writes ``piece`` graphs, and a manifest that names their shards again."""
    import shardgraph as sg

    with sg.DatasetWriter(base, shard_size="8MB") as writer:
        for data in WORKLOADS["tiny"].graphs(piece):
            writer.write(data)
    manifest = sg.Manifest.read(base)
    directory.mkdir(parents=True)
    shards: list[Any] = []
    statistics_of_all = manifest.statistics
    for copy in range(copies):
        for entry in manifest.shards:
            name = f"shard-{len(shards):05d}.h5"
            os.link(base / entry.name, directory / name)
            shards.append(dataclasses.replace(entry, name=name))
        if copy:
            statistics_of_all = type(statistics_of_all).merge(
                statistics_of_all, manifest.statistics
            )
    dataclasses.replace(manifest, shards=tuple(shards), statistics=statistics_of_all).write(
        directory
    )


def opening(directory: Path) -> dict[str, float]:
    """In a child: milliseconds of opening a dataset here, and as a spawned worker does."""
    import shardgraph as sg

    sg.GraphLoader  # noqa: B018  # imports are not what is measured
    start = time.perf_counter()
    dataset = sg.ShardedDataset(directory)
    constructed = time.perf_counter()
    pickled = pickle.dumps(dataset)
    dumped = time.perf_counter()
    there = pickle.loads(pickled)
    unpickled = time.perf_counter()
    there[len(there) // 2]
    first = time.perf_counter()
    return {
        "construct": 1e3 * (constructed - start),
        "unpickle": 1e3 * (unpickled - dumped),
        "first": 1e3 * (first - unpickled),
        "pickled": len(pickled),
    }


def resident(directory: Path, order: str, batches: int) -> dict[str, float]:
    """In a child: bytes that the main process has gained, and its worker has, after reading."""
    import shardgraph as sg

    sg.GraphLoader  # noqa: B018
    before = _private_nbytes(os.getpid())
    dataset = sg.ShardedDataset(directory)
    loader = sg.GraphLoader(
        dataset,
        256,
        shuffle=False if order == "sequential" else order,
        num_workers=1,
        persistent_workers=True,
    )
    iterator = iter(loader)
    for _ in itertools.islice(iterator, batches):
        pass
    (worker,) = multiprocessing.active_children()
    return {
        "main": _private_nbytes(os.getpid()) - before,
        "worker": _private_nbytes(worker.pid or 0),
    }


def _private_nbytes(pid: int) -> int:
    """Bytes of memory that a process alone has written: not shared with a parent or a file."""
    total = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "Private_Dirty":
                total += 1024 * int(value.split()[0])
    return total
