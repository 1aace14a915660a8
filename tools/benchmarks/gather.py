"""``gather``: how near is making a batch to copying its bytes?

Also the sweep that chooses from which run length on slice copies win over a row index.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.harness import (
    Options,
    Report,
    facts,
    in_child,
    measure,
    prepare,
    summary,
)
from benchmarks.workloads import synthetic_runs

RUN_LENGTHS = (8, 16, 32, 64, 96, 128, 192, 256, 512, 1024)


def gather(options: Options) -> Report:
    """Bytes a second of packed batches against memcpy of as many bytes, and the sweep."""
    workload = options.workload
    count = options.count or options.pick(workload.default_count, 200)
    batch_sizes = options.batch_sizes or options.pick(workload.batch_sizes, (32,))
    directory, _ = prepare(options, workload, count, "shardgraph")
    case = partial(in_child, copy_rates, directory, batch_sizes, options.seconds)
    results, failures = measure({"rates": case}, options.rounds, progress="gather")
    rows = []
    found = results.get("rates", [])
    for batch_size, what in itertools.product(
        batch_sizes, found[0][batch_sizes[0]] if found else ()
    ):
        values = [each[batch_size][what] for each in found]
        rows.append({"what": what, "batch size": batch_size, **summary(values)})
    _set_ratios(rows)
    lengths = options.pick(RUN_LENGTHS, (8, 128))
    sweep = measure(
        {
            (kind, length): partial(in_child, run_times, kind, length, options.pick(256, 16))
            for kind in ("floats", "edges")
            for length in lengths
        },
        options.rounds,
        progress="gather",
    )
    rows += [_sweep_row(kind, length, each) for (kind, length), each in sweep[0].items()]
    return Report(
        question="gather",
        title=(
            f"gather: GB/s of packed batches, {workload.name} ({workload.description}), shuffled, "
            "page cache warm; and microseconds a graph by run length"
        ),
        columns=(
            "what",
            "batch size",
            "median",
            "min",
            "max",
            "ratio",
            "rows a graph",
            "slices us",
            "index us",
            "faster",
        ),
        facts=facts(options, graphs=count, batch_sizes=list(batch_sizes)),
        rows=rows,
        notes=[
            *failures,
            *sweep[1],
            "ratio: the packed batch's GB/s over memcpy into memory that is as new as its own",
            (
                "slices, index: the two ways to gather, at batch 256, per graph; 'floats' copies "
                "float32 [n, 3], 'edges' widens bytes to int64, adds offsets and transposes"
            ),
        ],
        bars=[
            (f"{row['what']} ({row['batch size']})", row["median"])
            for row in rows
            if "median" in row
        ],
        unit="GB/s",
    )


def _set_ratios(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["what"] == "packed batch":
            same = (other for other in rows if other["batch size"] == row["batch size"])
            copy = next(other for other in same if other["what"] == "memcpy, new memory")
            row["ratio"] = row["median"] / copy["median"]


def copy_rates(
    directory: Path, batch_sizes: tuple[int, ...], seconds: float
) -> dict[int, dict[str, float]]:
    """In a child: GB of output a second, of packed batches, of batches, and of memcpy."""
    import shardgraph as sg

    machine.read_through(directory)
    dataset = sg.ShardedDataset(directory)
    source = np.ones(max(dataset.manifest.raw_nbytes, 1 << 20), np.uint8)
    found = {}
    for batch_size in batch_sizes:
        loader = sg.GraphLoader(dataset, batch_size, shuffle="full")
        nbytes = next(loader.packed_batches()).nbytes
        found[batch_size] = {
            "packed batch": _rate(_packed(loader), seconds),
            "PyG batch": _rate(_unpacked(loader), seconds),
            "memcpy, new memory": _rate(_copies(source, nbytes, renew=True), seconds),
            "memcpy, same memory": _rate(_copies(source, nbytes, renew=False), seconds),
        }
    return found


def _packed(loader: Any) -> Iterator[int]:
    while True:
        for packed in loader.packed_batches():
            yield packed.nbytes


def _unpacked(loader: Any) -> Iterator[int]:
    while True:
        for packed in loader.packed_batches():
            packed.unpack()
            yield packed.nbytes


def _copies(source: Any, nbytes: int, *, renew: bool) -> Iterator[int]:
    import torch

    nbytes = min(nbytes, len(source))
    target = torch.empty(nbytes, dtype=torch.uint8)
    for start in itertools.cycle(range(0, len(source) - nbytes + 1, nbytes)):
        if renew:
            target = torch.empty(nbytes, dtype=torch.uint8)
        np.copyto(target.numpy(), source[start : start + nbytes])
        yield nbytes


def _rate(steps: Iterator[int], seconds: float) -> float:
    """GB a second of steps that yield how many bytes they made; the first is not counted."""
    next(steps)
    total = 0
    start = now = time.perf_counter()
    while now - start < seconds or total == 0:
        total += next(steps)
        now = time.perf_counter()
    return total / (now - start) / 1e9


def run_times(kind: str, length: int, batch_size: int) -> dict[str, float]:
    """In a child: microseconds a graph of both ways to gather runs of ``length`` rows."""
    import shardgraph as sg

    rng = np.random.default_rng([length, 0])
    make = synthetic_runs(length, kind)
    pool = [make(rng) for _ in range(2 * batch_size)]
    repeats = min(40, 2_500_000 // (length * len(pool)) + 1)
    with tempfile.TemporaryDirectory() as root:
        with sg.DatasetWriter(Path(root) / "runs") as writer:
            for data in itertools.chain.from_iterable(itertools.repeat(pool, repeats)):
                writer.write(data)
        dataset = sg.ShardedDataset(Path(root) / "runs")
        loader = sg.GraphLoader(dataset, batch_size, shuffle="full", drop_last=True)
        # The switch is a constant beside the class of what is gathered.
        module: Any = sys.modules[type(dataset.selection(np.zeros(1, np.int64))).__module__]
        chosen = module.LONG_RUN
        try:
            found = {}
            for name, long_run in (("slices us", 0), ("index us", sys.maxsize)):
                module.LONG_RUN = long_run
                found[name] = 1e6 / batch_size * _median_step(_packed(loader))
        finally:
            module.LONG_RUN = chosen
    return found


def _median_step(steps: Iterator[int], times: int = 60) -> float:
    """Median seconds of a step; the first ones, which fault pages in, are not counted."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        next(steps)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[times // 6 :])


def _sweep_row(kind: str, length: int, found: list[dict[str, float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"what": kind, "rows a graph": length}
    for name in ("slices us", "index us"):
        row[name] = statistics.median(each[name] for each in found)
    row["faster"] = "slices" if row["slices us"] < row["index us"] else "index"
    return row
