"""Runs each measurement in a fresh process, in interleaved rounds, and reports what came out.

The children are forked from a server that has imported torch and PyG and done nothing else, so
they start alike, and no peer sees what another left behind in the allocator or in threads.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.peers import STORES, Store
from benchmarks.workloads import WORKLOADS, Workload

FORMAT = 1
"""Raised when the workloads or the peers' stores change, so that kept data is made anew."""


@dataclass(frozen=True)
class Options:
    """What the command line says, for all questions."""

    data: Path
    workload: Workload
    count: int | None
    stores: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    rounds: int
    seeds: int
    """Trainings that ``convergence`` repeats each case with."""
    seconds: float
    smoke: bool
    rebuild: bool
    shard_size: str
    """Of shardgraph's datasets."""

    def pick(self, full: Any, smoke: Any) -> Any:
        """A size that a question fixes itself: as measured, and as tried out."""
        return smoke if self.smoke else full


@dataclass
class Report:
    """The answer to one question: rows of a table, and all that a reader needs to judge it."""

    question: str
    title: str
    columns: Sequence[str]
    facts: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bars: list[tuple[str, float]] = field(default_factory=list)
    """What the plot shows: a label and a value in ``unit``."""
    unit: str = "graphs/s"

    def print(self) -> None:
        """Prints the table."""
        cells = [[_cell(row.get(name)) for name in self.columns] for row in self.rows]
        widths = [
            max(len(name), *(len(line[i]) for line in cells)) if cells else len(name)
            for i, name in enumerate(self.columns)
        ]
        print(f"\n{self.title}")
        for line in [list(self.columns), *cells]:
            print(
                "  ".join(
                    text.ljust(width) for text, width in zip(line, widths, strict=True)
                ).rstrip()
            )
        for note in self.notes:
            print(f"note: {note}")

    def to_json(self) -> str:
        """One line with everything."""
        import shardgraph as sg

        document = {
            "question": self.question,
            "shardgraph": sg.__version__,
            "commit": machine.commit(),
            "versions": machine.versions(),
            "hardware": machine.hardware(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **self.facts,
            "results": self.rows,
            "notes": self.notes,
        }
        return json.dumps(document)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


class ChildError(RuntimeError):
    """A measurement's process failed."""


def in_child(function: Callable[..., Any], *arguments: Any, group: Path | None = None) -> Any:
    """Calls a module-level function in a fresh process, and returns what it returns.

    Args:
        function: What to call there.
        *arguments: Its arguments.
        group: File that the process writes its id to first, to be limited in memory.

    Raises:
        ChildError: with the child's traceback, or the signal that killed it.
    """
    context = _context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, group, function, arguments))
    process.start()
    sender.close()
    try:
        ok, result = receiver.recv()
    except EOFError:
        process.join()
        raise ChildError(
            f"{function.__name__} was killed (exit status {process.exitcode})"
        ) from None
    finally:
        receiver.close()
        process.join()
    if not ok:
        raise ChildError(f"{function.__name__} failed:\n{result}")
    return result


def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch_geometric.data", "torch_geometric.loader"])
    return context


def _child(sender: Any, group: Path | None, function: Callable[..., Any], arguments: Any) -> None:
    try:
        if group is not None:
            group.write_text(str(os.getpid()))
        import torch

        torch.set_num_threads(1)
        # Loaders start their workers as they do in a user's process, not as this one was started.
        multiprocessing.set_start_method(None, force=True)
        sender.send((True, function(*arguments)))
    except BaseException:  # noqa: BLE001  # it goes to the parent, which raises
        sender.send((False, traceback.format_exc()))


def measure(
    cases: Mapping[Any, Callable[[], Any]], rounds: int, *, progress: str
) -> tuple[dict[Any, list[Any]], list[str]]:
    """Runs each case once a round, in turn; returns the results by case, and what failed.

    A case that fails is left out of the rounds that remain.
    """
    results: dict[Any, list[Any]] = {key: [] for key in cases}
    failures: dict[Any, str] = {}
    for number in range(rounds):
        for key, case in cases.items():
            if key in failures:
                continue
            say(f"{progress}: round {number + 1} of {rounds}, {key}")
            try:
                results[key].append(case())
            except ChildError as error:
                failures[key] = f"{key} {str(error).strip().splitlines()[-1]}"
                print(error, file=sys.stderr)
    return {key: found for key, found in results.items() if found}, list(failures.values())


def facts(options: Options, **more: Any) -> dict[str, Any]:
    """What every result line says: the data, the conditions and the rounds."""
    common = {
        "workload": options.workload.name,
        "num_workers": 0,
        "order": "full shuffle",
        "cache": "warm",
        "memory_limit": None,
        "shard_size": options.shard_size,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "smoke": options.smoke,
    }
    return {**common, **more}


def say(text: str) -> None:
    """Tells the person who waits."""
    print(f"[bench] {text}", file=sys.stderr, flush=True)


def summary(values: Sequence[float]) -> dict[str, float | list[float]]:
    """Median and spread of a result's rounds."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "values": list(values),
    }


def ratios(rows: Iterable[dict[str, Any]], *, same: Sequence[str], value: str = "median") -> None:
    """Sets each row's ``ratio``: shardgraph's value over the row's, among rows that agree.

    Args:
        rows: With a ``store`` each.
        same: Names of what must agree, such as the batch size.
        value: Which value.
    """
    rows = list(rows)
    ours = {
        tuple(row.get(name) for name in same): row[value]
        for row in rows
        if row["store"] == "shardgraph"
    }
    for row in rows:
        own = ours.get(tuple(row.get(name) for name in same))
        if own is not None and row["store"] != "shardgraph" and row[value]:
            row["ratio"] = own / row[value]


# Data --------------------------------------------------------------------------------------------


def chosen_stores(options: Options, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of ``names`` that are asked for and installed, and notes on those left out.

    A smoke run tries all stores where all are compared (``warm``), else only the first three.
    """
    if options.smoke and not options.stores and len(names) < len(STORES):
        names = names[:3]
    asked = [name for name in names if not options.stores or name in options.stores]
    missing = [name for name in asked if STORES[name].missing()]
    notes = [f"{name} left out: {STORES[name].needs} is not installed" for name in missing]
    return [name for name in asked if name not in missing], notes


def prepare(options: Options, workload: Workload, count: int, store: str) -> tuple[Path, int]:
    """The directory of ``count`` graphs in a store, made if it is not there, and their number.

    A store that takes long to write gets a subset.
    """
    limit = STORES[store].max_count
    number = count if limit is None else min(count, limit)
    kind = f"{store}-{options.shard_size}" if store.startswith("shardgraph") else store
    directory = options.data / f"v{FORMAT}-{workload.name}-{number}" / kind
    done = directory.with_name(f"{directory.name}.done")
    if options.rebuild and _remember_rebuilt(directory):
        done.unlink(missing_ok=True)
    if not done.exists():
        say(f"writing {number:,} {workload.name} as {store} to {directory}")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        start = time.perf_counter()
        in_child(write_store, store, workload.name, number, directory, options.shard_size)
        done.write_text(f"{time.perf_counter() - start:.1f} seconds\n")
    return directory, number


_REBUILT: set[Path] = set()


def _remember_rebuilt(directory: Path) -> bool:
    """Whether this is the first time in this run: what was made anew once is not made again."""
    first = directory not in _REBUILT
    _REBUILT.add(directory)
    return first


def write_store(store: str, workload: str, count: int, directory: Path, shard_size: str) -> None:
    """In a child: writes a dataset, as fast as can be."""
    new: Store = STORES[store](memoize=True, shard_size=shard_size)
    new.write(WORKLOADS[workload].graphs(count), directory)


# Loops -------------------------------------------------------------------------------------------


def run_loop(
    loader: Any, *, seconds: float, warm_up: int, one_epoch: bool = False
) -> dict[str, float]:
    """Iterates for a time and counts the graphs.

    Args:
        loader: Of PyG batches.
        seconds: Length of the window.
        warm_up: Batches before the window, not counted; with 0 the start is measured too.
        one_epoch: Whether to stop at the end of the epoch rather than begin another.

    Returns:
        ``graphs``, ``seconds`` and ``batches`` of the window, and the rate ``graphs_per_second``.
    """
    graphs = batches = 0
    start = time.perf_counter()
    now = start
    iterator = iter(loader)
    skip = warm_up
    while now - start < seconds or not batches:
        try:
            batch = next(iterator)
        except StopIteration:
            if one_epoch:
                break
            iterator = iter(loader)
            continue
        now = time.perf_counter()
        if skip:
            skip -= 1
            start = now
            continue
        graphs += batch.num_graphs
        batches += 1
    elapsed = time.perf_counter() - start if one_epoch else now - start
    return {
        "graphs": graphs,
        "batches": batches,
        "seconds": elapsed,
        "graphs_per_second": graphs / elapsed,
    }


def warm_up_batches(num_workers: int) -> int:
    """Batches that fill every worker's queue (PyTorch keeps 2 a worker), and some more."""
    return max(3, 3 * num_workers)
