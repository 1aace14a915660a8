"""``convert``: what do two workers gain, and does memory grow with the number of graphs?"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import shardgraph as sg
from benchmarks.harness import ChildError, Options, Report, facts, measure, say, summary
from benchmarks.workloads import WORKLOADS

_TOOLS = Path(__file__).resolve().parents[1]
_MOLECULES = _TOOLS.parent / "examples" / "esol" / "delaney-processed.csv"
_SAMPLE_SECONDS = 0.25

SHARD_SIZE = "16MB"
"""Of the runs whose memory counts: small, so that the smaller of them fills shards too."""


class Generated(sg.Source):
    """Graphs of a workload, made in the workers."""

    name = "generated"

    @property
    def _wanted(self) -> tuple[str, int]:
        workload, _, count = self.spec.partition(":")
        return workload, int(count)

    def partitions(self) -> list[Any]:
        """Runs of 10,000 graphs."""
        (whole,) = super().partitions()
        _, count = self._wanted
        size = self.records_per_partition
        return [
            dataclasses.replace(whole, first=first, num_records=min(size, count - first))
            for first in range(0, count, size)
        ]

    def read(self, partition: Any) -> Iterator[Any]:
        """Yields graphs of the pool in a random order."""
        workload, _ = self._wanted
        pool = _pool(workload)
        rng = np.random.default_rng([0, partition.first])
        for number in rng.integers(0, len(pool), partition.num_records).tolist():
            yield pool[number]

    def provenance(self) -> dict[str, Any]:
        """The workload and the number of graphs."""
        return {"format": self.name, "input": self.spec}


@functools.lru_cache(maxsize=1)
def _pool(workload: str) -> list[Any]:
    return list(WORKLOADS[workload].graphs(1_000))


@dataclasses.dataclass(slots=True)
class _Watch:
    """What a process and those that it started, directly or not, have used so far."""

    pid: int
    peak: int = 0
    """Bytes: the largest sum, each shared page counted once."""
    cpu: dict[int, float] = dataclasses.field(default_factory=dict)
    """Seconds by process."""
    workers: set[int] = dataclasses.field(default_factory=set)
    """The processes of the pool, which a server of the main process starts."""

    def look(self) -> None:
        """Reads the counters of all processes there are."""
        children = _children(self.pid)
        grandchildren = {pid for child in children for pid in _children(child)}
        self.workers |= grandchildren
        total = 0
        for pid in {self.pid, *children, *grandchildren}:
            with contextlib.suppress(OSError):
                self.cpu[pid] = _cpu_seconds(pid)
                total += _nbytes(pid)
        self.peak = max(self.peak, total)

    @property
    def path_seconds(self) -> float:
        """CPU time of the main process and of the busiest worker, one after the other.

        The server imports what the workers need while the main process does the same.
        """
        workers = [seconds for pid, seconds in self.cpu.items() if pid in self.workers]
        return self.cpu.get(self.pid, 0.0) + max(workers, default=0.0)


def convert(options: Options) -> Report:
    """The command line, from start to end: SMILES by workers, generated graphs by number."""
    rows_of_smiles = options.count or options.pick(40_000, 60)
    counts = options.pick((100_000, 1_000_000), (100,))
    options.data.mkdir(parents=True, exist_ok=True)
    molecules = _smiles(options.data, rows_of_smiles)
    cases: dict[Any, Callable[[], Any]] = {
        ("smiles", workers): partial(_run, options.data, str(molecules), workers, [])
        for workers in (1, 2)
    }
    own = ["--format", "benchmarks.conversion:Generated", "--shard-size", SHARD_SIZE]
    name, processes = options.workload.name, options.pick(2, 1)
    generated: dict[Any, Callable[[], Any]] = {
        ("generated", count): partial(_run, options.data, f"{name}:{count}", processes, own)
        for count in counts
    }
    found, failures = measure(cases, options.rounds, progress="convert")
    more, failed = measure(generated, 1, progress="convert")
    smiles = [
        _row(f"SMILES, {rows_of_smiles:,} rows", workers, rows_of_smiles, found[kind, workers])
        for kind, workers in found
    ]
    if len(smiles) == 2:
        one, two = found.values()
        for ratio, value in (("ratio", "seconds"), ("cpu ratio", "path")):
            pairs = zip(one, two, strict=True)
            smiles[1][ratio] = statistics.median(a[value] / b[value] for a, b in pairs)
    memory = [
        _row(f"generated {name}", processes, count, results) for (_, count), results in more.items()
    ]
    return Report(
        question="convert",
        title="convert: seconds of `tools/convert.py`, its start included, and memory at the peak",
        columns=(
            "what", "graphs", "workers", "median", "min", "max", "graphs/s", "cpu s", "peak MB",
            "ratio", "cpu ratio",
        ),
        facts=facts(
            options,
            graphs=[rows_of_smiles, *counts],
            num_workers=[1, 2],
            order="as in the input",
            cache="written, not flushed but for each shard",
            memory_shard_size=SHARD_SIZE,
        ),
        rows=[*smiles, *memory],
        notes=[
            *failures,
            *failed,
            (
                "ratio: seconds of one worker over those of two, of the same round, median; cpu "
                "ratio: the same of the CPU time of main process and busiest worker, which others "
                "at work on the machine lengthen less"
            ),
            (
                "peak: proportional set size of all processes, looked at every "
                f"{_SAMPLE_SECONDS} s; shards of {SHARD_SIZE} for the generated graphs"
            ),
        ],
        bars=[(f"{row['what']}, {row['workers']} workers", row["median"]) for row in smiles],
        unit="seconds",
    )  # fmt: skip


def _row(what: str, workers: int, graphs: int, results: list[dict[str, float]]) -> dict[str, Any]:
    seconds = summary([each["seconds"] for each in results])
    return {
        "what": what,
        "graphs": graphs,
        "workers": workers,
        **seconds,
        "graphs/s": graphs / statistics.median(each["seconds"] for each in results),
        "cpu s": statistics.median(each["cpu"] for each in results),
        "peak MB": max(each["peak"] for each in results) / 1e6,
    }


def _smiles(folder: Path, num_rows: int) -> Path:
    """A table of the quickstart's molecules, repeated to that many rows."""
    path = folder / f"smiles-{num_rows}.csv"
    if not path.exists():
        say(f"writing {num_rows:,} SMILES to {path}")
        with _MOLECULES.open(newline="") as file:
            molecules = [row["smiles"] for row in csv.DictReader(file)]
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["smiles", "y"])
            writer.writerows((molecules[i % len(molecules)], i % 10) for i in range(num_rows))
    return path


def _run(folder: Path, source: str, workers: int, arguments: list[str]) -> dict[str, float]:
    """Seconds, CPU seconds and bytes at the peak of one conversion in a process of its own."""
    with tempfile.TemporaryDirectory(dir=folder) as root:
        command = [sys.executable, str(_TOOLS / "convert.py"), source, f"{root}/out", *arguments]
        command += ["--workers", str(workers), "--no-progress"]
        paths = os.pathsep.join([str(_TOOLS), os.environ.get("PYTHONPATH", "")])
        with tempfile.TemporaryFile("w+") as output:
            start = perf_counter()
            process = subprocess.Popen(
                command,
                env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            watch = _Watch(process.pid)
            done = threading.Event()
            looker = threading.Thread(target=_look, args=(watch, done))
            looker.start()
            status = process.wait()
            seconds = perf_counter() - start
            done.set()
            looker.join()
            output.seek(0)
            if status:
                raise ChildError(f"convert failed:\n{output.read()}")
        shutil.rmtree(f"{root}/out")
    return {
        "seconds": seconds,
        "cpu": sum(watch.cpu.values()),
        "path": watch.path_seconds,
        "peak": float(watch.peak),
    }


def _look(watch: _Watch, done: threading.Event) -> None:
    while not done.wait(_SAMPLE_SECONDS):
        watch.look()


def _children(pid: int) -> set[int]:
    """The processes that a process has started; none where the system does not tell."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, path.read_text().split()))
    return found


def _cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _nbytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    return 0
