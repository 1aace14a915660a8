"""Proves the device prefetcher's promises on a CUDA device, in under three minutes.

    python tools/gpu_check.py                  # all checks; exit status 1 if a promise is broken
    python tools/gpu_check.py --no-handover    # the hand-over taken out: must end in status 1
    python tools/gpu_check.py --self-test      # its own code on the CPU, in small; proves nothing

Prints a table, a timeline and one JSON line. Exit status 2: there is no CUDA device. Peers in the
same run are PyG's ``PrefetchLoader`` and the plain loop.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader, PrefetchLoader

import shardgraph as sg

MB = 10**6
MIB = 2**20


@dataclass(frozen=True)
class Size:
    """How much work the checks do."""

    batches: int = 2000
    slow_copies: int = 300
    elements: int = 50_000
    epochs: int = 30
    overlap_steps: int = 40
    overlap_bytes: int = 64 * MB
    copies: int = 20
    copy_bytes: tuple[int, ...] = (MB, 4 * MB, 16 * MB, 64 * MB)
    graphs: int = 20_000
    steps: tuple[tuple[float, int], ...] = ((0.001, 300), (0.005, 200), (0.020, 80))
    workers: tuple[int, ...] = (0, 2)


SMALL = Size(
    batches=20,
    slow_copies=10,
    elements=500,
    epochs=8,
    overlap_steps=12,
    overlap_bytes=MB,
    copies=3,
    copy_bytes=(MB,),
    graphs=600,
    steps=((0.001, 5),),
    workers=(0,),
)


@dataclass(frozen=True)
class Row:
    """One figure, and whether it keeps a promise; ``kept`` is None where nothing is promised."""

    check: str
    figure: str
    promise: str = ""
    kept: bool | None = None


@dataclass
class Findings:
    """All figures of a run.

    Without a device nothing is copied, so speeds and memory are not judged; contents are.
    """

    on_device: bool
    rows: list[Row] = field(default_factory=list)
    timeline: str = ""

    def add(self, check: str, figure: str, promise: str = "", kept: bool | None = None) -> None:
        """Note and print one figure."""
        mark = {True: "ok", False: "FAILED", None: ""}[kept]
        if kept is not None and not self.on_device and not check.startswith("contents"):
            kept, mark = None, "not judged"
        self.rows.append(Row(check, figure, promise, kept))
        print(f"{check:<44} {figure:>24}  {promise:<28} {mark}", flush=True)


class Cuda:
    """The clock, the idle kernel and the memory of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        torch.cuda.set_device(device)
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._cycles_per_second = self._calibrate()

    def spin(self, seconds: float) -> None:
        """Queue a kernel that keeps the current stream busy."""
        torch.cuda._sleep(int(seconds * self._cycles_per_second))

    def mark(self) -> torch.cuda.Event:
        """Return a timed event recorded on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def synchronize(self) -> None:
        """Wait for the whole device."""
        torch.cuda.synchronize(self.device)

    def synchronize_stream(self) -> None:
        """Wait for the current stream."""
        torch.cuda.current_stream(self.device).synchronize()

    def reserved(self) -> int:
        """Return the bytes that torch's allocator holds."""
        return torch.cuda.memory_reserved(self.device)

    def pinned(self, tensor: Tensor) -> Tensor:
        """Return the tensor in page-locked memory."""
        return tensor.pin_memory()

    def name(self) -> str:
        """Return the device's name."""
        return torch.cuda.get_device_name(self.device)

    def _calibrate(self) -> float:
        cycles = 20_000_000
        torch.cuda._sleep(cycles)  # wakes the clocks up
        start = self.mark()
        torch.cuda._sleep(cycles)
        stop = self.mark()
        stop.synchronize()
        seconds: float = start.elapsed_time(stop) / 1e3
        return cycles / seconds


class Moment:
    """A host time that answers like an event."""

    def __init__(self) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, later: Moment) -> float:
        """Return milliseconds until ``later``."""
        return (later.seconds - self.seconds) * 1e3

    def synchronize(self) -> None:
        """Return at once."""


class Cpu:
    """Stands in for the device in the self-test."""

    device = torch.device("cpu")

    def spin(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def mark(self) -> Moment:
        """Return the host's time."""
        return Moment()

    def synchronize(self) -> None:
        """Return at once."""

    synchronize_stream = synchronize

    def reserved(self) -> int:
        """Return nothing held."""
        return 0

    def pinned(self, tensor: Tensor) -> Tensor:
        """Return the tensor."""
        return tensor

    def name(self) -> str:
        """Return what this is."""
        return "self-test on the CPU"


Device = Cuda | Cpu


class Checked:
    """A prefetcher's backend, with its copies delayed and timed and its hand-over taken out.

    All other calls go through unchanged.
    """

    def __init__(
        self,
        backend: Any,
        runtime: Device,
        *,
        missing: Iterable[str] = (),
        delay: float = 0.0,
        timed: bool = False,
    ) -> None:
        self.backend = backend
        self.runtime = runtime
        self.missing = frozenset(missing)
        self.delay = delay
        self.timed = timed
        self.copies: list[tuple[Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def holds(self, tensor: Tensor) -> bool:
        """Return whether the tensor is there; the self-test makes believe that none ever is."""
        return self.runtime.device.type != "cpu" and bool(self.backend.holds(tensor))

    def to_device(self, tensor: Tensor, *, non_blocking: bool) -> Any:
        """Copy as the backend does, behind a busy copy stream and between two events."""
        if self.delay:
            self.runtime.spin(self.delay)
        start = self.runtime.mark() if self.timed else None
        moved = self.backend.to_device(tensor, non_blocking=non_blocking)
        if self.timed:
            self.copies.append((start, self.runtime.mark()))
        return moved

    def wait(self, event: Any) -> Any:
        """Make the consumer wait, unless that is what is missing."""
        return None if "wait" in self.missing else self.backend.wait(event)

    def keep(self, parts: Any) -> None:
        """Keep the memory, unless that is what is missing."""
        if "keep" not in self.missing:
            self.backend.keep(parts)


def checked(runtime: Device, **options: Any) -> Checked:
    """Return the backend that a prefetcher for this device has, instrumented."""
    return Checked(sg.DevicePrefetcher([], runtime.device).backend, runtime, **options)


def prefetch(loader: Iterable[Any], backend: Any) -> sg.DevicePrefetcher:
    """Return a prefetcher over an instrumented backend."""
    return sg.DevicePrefetcher.with_backend(loader, backend)


class Fresh:
    """A loader that makes its batches anew for every epoch, as PyG's ``to`` works in place."""

    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        self.count, self.make = count, make

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return (self.make(k) for k in range(self.count))


# -- contents ---------------------------------------------------------------------------------


def batch_of(base: Tensor, k: int) -> Data:
    """Return batch ``k``: three tensors that hold a range shifted by k, of a length that varies."""
    length = base.numel() - (k % 7) * (base.numel() // 20)
    return Data(
        x=base[:length] + k,
        edge_index=torch.stack([base[:length] + k + 1, base[:length] + k + 2]),
        y=base[: 1 + length // 100] + k + 3,
    )


def count_faults(batch: Data, base: Tensor, k: int) -> Tensor:
    """Return how many elements of batch ``k`` differ from what was put in; queued, not awaited."""
    length = batch.x.numel()
    faults: Tensor = (batch.x != base[:length] + k).sum()
    faults += (batch.edge_index[0] != base[:length] + k + 1).sum()
    faults += (batch.edge_index[1] != base[:length] + k + 2).sum()
    faults += (batch.y != base[: batch.y.numel()] + k + 3).sum()
    return faults


def wrong_elements(
    runtime: Device, loader: Fresh, backend: Checked, base: Tensor, *, spin: float
) -> int:
    """Return the wrong elements seen by a loop whose reads are queued behind a busy kernel."""
    there = base.to(runtime.device)
    wrong = torch.zeros((), dtype=torch.int64, device=runtime.device)
    k = 0
    for batch in prefetch(loader, backend):
        if spin:
            runtime.spin(spin)
        wrong += count_faults(batch, there, k)
        del batch
        k += 1  # noqa: SIM113  # enumerate() would keep each batch until the next one is there
        if k % 16 == 0:
            runtime.synchronize_stream()  # bounds the memory of batches that are still read
    return int(wrong)


def check_contents(runtime: Device, size: Size, findings: Findings, missing: list[str]) -> None:
    """Compare every element of thousands of batches, under a slow consumer and slow copies."""
    base = torch.arange(size.elements)
    for kind, count, spin, delay in (
        ("slow consumer", size.batches, 200e-6, 0.0),
        ("slow copies", size.slow_copies, 0.0, 500e-6),
    ):
        loader = Fresh(count, lambda k: batch_of(base, k))
        backend = checked(runtime, missing=missing, delay=delay)
        wrong = wrong_elements(runtime, loader, backend, base, spin=spin)
        findings.add(
            f"contents, {kind}, {count} batches", f"{wrong} wrong elements", "0", wrong == 0
        )


def check_loader(
    runtime: Device,
    findings: Findings,
    name: str,
    loader: Any,
    *,
    num_batches: int,
    missing: list[str],
) -> None:
    """Compare a loader's batches with those of a plain loop over it, under a slow consumer."""
    expected = [batch.to(runtime.device) for batch in loader]
    wrong = torch.zeros((), dtype=torch.int64, device=runtime.device)
    prefetcher = prefetch(loader, checked(runtime, missing=missing))
    count = 0
    while count < num_batches:
        for batch in prefetcher:
            runtime.spin(200e-6)
            other = expected[count % len(expected)]
            for key, value in other.to_dict().items():
                if isinstance(value, Tensor):
                    wrong += (batch[key] != value).sum()
            del batch
            count += 1
            if count % 16 == 0:
                runtime.synchronize_stream()
    faults = int(wrong)
    check = f"contents, {name}, {count} batches"
    findings.add(check, f"{faults} wrong elements", "0", faults == 0)


def check_loaders(
    runtime: Device, size: Size, findings: Findings, dataset: Any, missing: list[str]
) -> None:
    """Compare contents of the loaders that people use: one-buffer batches, and pinned ones."""
    loaders = {
        "GraphLoader": sg.GraphLoader(dataset, batch_size=256),
        "PyG DataLoader": DataLoader(
            dataset,
            batch_size=256,
            num_workers=2,
            pin_memory=runtime.device.type == "cuda",
            persistent_workers=True,
            prefetch_factor=2,
        ),
    }
    for name, loader in loaders.items():
        check_loader(
            runtime, findings, name, loader, num_batches=size.batches // 4, missing=missing
        )


def check_other_device(runtime: Device, size: Size, findings: Findings) -> None:
    """Compare contents while another device is the current one."""
    check = "contents, another device current"
    if runtime.device.type != "cuda" or torch.cuda.device_count() < 2:
        findings.add(check, "one device: not checked")
        return
    base = torch.arange(size.elements)
    other = torch.device("cuda", (runtime.device.index + 1) % torch.cuda.device_count())
    with torch.cuda.device(other):
        loader = Fresh(size.slow_copies, lambda k: batch_of(base, k))
        wrong = wrong_elements(runtime, loader, checked(runtime), base, spin=0.0)
    findings.add(check, f"{wrong} wrong elements", "0", wrong == 0)


# -- memory -----------------------------------------------------------------------------------


def growth(runtime: Device, size: Size, loader: Iterable[Any]) -> int:
    """Return the growth of reserved memory from the fifth epoch to the last, in bytes."""
    settled = 0
    for epoch in range(size.epochs):
        for batch in loader:
            runtime.spin(100e-6)
            batch.x.sum()
            del batch
        runtime.synchronize()
        if epoch == 4:
            settled = runtime.reserved()
    return runtime.reserved() - settled


def check_memory(runtime: Device, size: Size, findings: Findings) -> None:
    """Compare reserved memory over epochs."""
    base = torch.arange(10 * size.elements)
    loader = Fresh(20, lambda k: batch_of(base, k))
    ours = growth(runtime, size, sg.DevicePrefetcher(loader, runtime.device))
    # Batches are some 12 MB, so one left behind per epoch would be hundreds.
    findings.add(
        f"growth of reserved memory, {size.epochs} epochs",
        f"{ours / MIB:.0f} MiB",
        "at most 20 MiB (one segment)",
        ours <= 20 * MIB,
    )
    peers = growth(runtime, size, PrefetchLoader(loader, runtime.device))
    findings.add("  PyG PrefetchLoader", f"{peers / MIB:.0f} MiB")


# -- overlap ----------------------------------------------------------------------------------

Spans = list[tuple[float, float]]


def spans_of(origin: Any, pairs: list[tuple[Any, Any]]) -> Spans:
    """Return (start, stop) in seconds after ``origin`` for pairs of events that are reached."""
    return [
        (origin.elapsed_time(start) / 1e3, origin.elapsed_time(stop) / 1e3) for start, stop in pairs
    ]


def shared_seconds(spans: Spans, others: Spans) -> float:
    """Return for how long a span of one list and one of the other run at the same time."""
    return sum(
        max(0.0, min(stop, other_stop) - max(start, other_start))
        for start, stop in spans
        for other_start, other_stop in others
    )


def draw(rows: dict[str, Spans], *, width: int = 76) -> str:
    """Return a text figure of spans over time, one line a row, each span by its number's digit."""
    edges = [edge for spans in rows.values() for span in spans for edge in span]
    first, last = min(edges), max(edges)
    scale = (width - 1) / (last - first) if last > first else 0.0
    lines = []
    for name, spans in rows.items():
        cells = [" "] * width
        for number, (start, stop) in enumerate(spans):
            for cell in range(int((start - first) * scale), int((stop - first) * scale) + 1):
                cells[cell] = str(number % 10)
        lines.append(f"{name:<8}|{''.join(cells)}|")
    return "\n".join([*lines, f"{'':<8} {(last - first) * 1e3:.1f} ms"])


def check_overlap(runtime: Device, size: Size, findings: Findings) -> None:
    """Measure on the device's clock how much of the copies runs beside the consumer's kernels."""
    sources = [runtime.pinned(torch.zeros(size.overlap_bytes, dtype=torch.uint8)) for _ in range(4)]
    loader = [sources[k % 4] for k in range(size.overlap_steps)]
    copy_seconds = statistics.median(timed_copies(runtime, loader[:8], delay=1e-3))
    backend = checked(runtime, timed=True)
    steps: list[tuple[Any, Any]] = []
    runtime.synchronize()
    origin = runtime.mark()
    for _ in prefetch(loader, backend):
        start = runtime.mark()
        runtime.spin(1.5 * copy_seconds)
        steps.append((start, runtime.mark()))
        if len(steps) > 2:
            steps[-3][1].synchronize()  # as a loop that reads its loss now and then
    runtime.synchronize()
    # The middle of the run: the pipeline fills at its start and drains at its end.
    middle = slice(size.overlap_steps // 4, -(size.overlap_steps // 4))
    computes, copies = spans_of(origin, steps), spans_of(origin, backend.copies)[middle]
    share = shared_seconds(copies, computes) / sum(stop - start for start, stop in copies)
    window = slice(size.overlap_steps // 2, size.overlap_steps // 2 + 6)
    findings.timeline = draw(
        {"copy": spans_of(origin, backend.copies)[window], "compute": computes[window]}
    )
    findings.add("copies beside compute", f"{share:.0%} of the time", "at least 80%", share >= 0.8)


# -- speed of copies --------------------------------------------------------------------------


def timed_copies(
    runtime: Device, sources: list[Tensor], *, delay: float, backend: Checked | None = None
) -> list[float]:
    """Return the seconds of each copy on the device's clock, bare or through a prefetcher.

    The stream is kept busy while copy and events are queued, so that the time between the events
    holds the copy alone, not the host's calls.
    """
    if backend is not None:
        for batch in prefetch(sources, backend):
            runtime.synchronize()
            del batch
        pairs = backend.copies
    else:
        target = torch.empty_like(sources[0], device=runtime.device)
        pairs = []
        for source in sources:
            runtime.spin(delay)
            start = runtime.mark()
            target.copy_(source, non_blocking=True)
            pairs.append((start, runtime.mark()))
            runtime.synchronize()
    runtime.synchronize()
    return [start.elapsed_time(stop) / 1e3 for start, stop in pairs]


def check_copies(runtime: Device, size: Size, findings: Findings) -> None:
    """Compare the speed of the prefetcher's copies with a bare copy from pinned memory."""
    delay = 2e-3
    for nbytes in size.copy_bytes:
        # Few sources in turn: more pinned memory than a machine may have free is not needed.
        pageable = [torch.ones(nbytes, dtype=torch.uint8) for _ in range(4)]
        pinned = [runtime.pinned(source) for source in pageable]
        bare = statistics.median(
            timed_copies(runtime, [pinned[k % 4] for k in range(size.copies)], delay=delay)
        )
        for kind, sources in (("pinned", pinned), ("pageable", pageable)):
            backend = checked(runtime, delay=delay, timed=True)
            repeated = [sources[k % 4] for k in range(size.copies)]
            taken = statistics.median(timed_copies(runtime, repeated, delay=delay, backend=backend))
            share = bare / taken
            findings.add(
                f"copy of {nbytes / MB:.0f} MB, {kind} batch",
                f"{nbytes / taken / 1e9:.1f} GB/s = {share:.0%} of bare",
                "at least 90%",
                share >= 0.9,
            )


# -- waits ------------------------------------------------------------------------------------


def loop_waits(
    runtime: Device, batches: Iterable[Any], step: float, num_steps: int, *, move: bool
) -> list[float]:
    """Return per step the seconds from asking for a batch until the device has it.

    The device is idle when a batch is asked for, so this is how long it starves. The first batch
    of an epoch is left out.
    """
    waits: list[float] = []
    while len(waits) < num_steps:
        iterator = iter(batches)
        is_first = True
        while len(waits) < num_steps:
            asked = time.perf_counter()
            batch = next(iterator, None)
            if batch is None:
                break
            if move:
                batch = batch.to(runtime.device)
            runtime.synchronize_stream()
            if not is_first:
                waits.append(time.perf_counter() - asked)
            is_first = False
            runtime.spin(step)
            runtime.synchronize_stream()
            del batch
        del iterator
    return waits


def percentiles(values: Iterable[float]) -> str:
    """Return median and 99th percentile in microseconds."""
    ordered = sorted(values)
    return (
        f"{statistics.median(ordered) * 1e6:.0f} / {ordered[int(0.99 * len(ordered))] * 1e6:.0f} us"
    )


def check_waits(runtime: Device, size: Size, findings: Findings, dataset: Any) -> None:
    """Compare the wait per step of the prefetcher, PyG's and the plain loop."""
    for num_workers in size.workers:
        loader = sg.GraphLoader(
            dataset,
            batch_size=256,
            shuffle=True,
            seed=0,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
        )
        for step, num_steps in size.steps:
            name = f"{step * 1e3:.0f} ms, {num_workers} workers"
            prefetcher = sg.DevicePrefetcher(loader, runtime.device)
            usable = loop_waits(runtime, prefetcher, step, num_steps, move=False)
            wait = prefetcher.stats.wait
            promised = step >= 0.005
            findings.add(
                f"next(), p50 / p99, step {name}",
                f"{wait.p50 * 1e6:.0f} / {wait.p99 * 1e6:.0f} us",
                "50 us / 1 ms" if promised else "",
                (wait.p50 <= 50e-6 and wait.p99 <= 1e-3) if promised else None,
            )
            findings.add("  until usable", percentiles(usable))
            peer = PrefetchLoader(loader, runtime.device)
            waits = loop_waits(runtime, peer, step, num_steps, move=False)
            findings.add("  until usable, PyG PrefetchLoader", percentiles(waits))
            waits = loop_waits(runtime, loader, step, num_steps, move=True)
            findings.add("  until usable, plain loop", percentiles(waits))


def write_dataset(path: Path, count: int) -> Any:
    """Write molecule-sized graphs and return the dataset."""
    generator = torch.Generator().manual_seed(0)
    with sg.DatasetWriter(path) as writer:
        for k in range(count):
            nodes = 12 + k % 13
            edges = 2 * nodes
            writer.write(
                Data(
                    x=torch.rand(nodes, 11, generator=generator),
                    edge_index=torch.randint(nodes, (2, edges), generator=generator),
                    edge_attr=torch.rand(edges, 4, generator=generator),
                    pos=torch.rand(nodes, 3, generator=generator),
                    y=torch.rand(1, 19, generator=generator),
                )
            )
    return sg.ShardedDataset(path)


def run(runtime: Device, size: Size, missing: list[str]) -> Findings:
    """Run all checks, or with a hand-over taken out those that must then fail."""
    findings = Findings(on_device=runtime.device.type != "cpu")
    check_contents(runtime, size, findings, missing)
    with tempfile.TemporaryDirectory() as directory:
        dataset = write_dataset(Path(directory) / "molecules", size.graphs)
        check_loaders(runtime, size, findings, dataset, missing)
        if not missing:
            check_other_device(runtime, size, findings)
            check_memory(runtime, size, findings)
            check_overlap(runtime, size, findings)
            check_copies(runtime, size, findings)
            check_waits(runtime, size, findings, dataset)
    return findings


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", default="cuda", help="the CUDA device to check")
    parser.add_argument(
        "--no-handover",
        choices=["both", "wait", "keep"],
        nargs="?",
        const="both",
        help="take out the consumer's wait, the keeping of memory, or both; must fail",
    )
    parser.add_argument("--self-test", action="store_true", help="run in small on the CPU")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the checks and return the exit status."""
    options = parse(arguments)
    if not options.self_test and not torch.cuda.is_available():
        print("gpu_check needs a CUDA device, and torch sees none", file=sys.stderr)
        return 2
    start = time.perf_counter()
    runtime = Cpu() if options.self_test else Cuda(torch.device(options.device))
    missing = {None: [], "both": ["wait", "keep"]}.get(options.no_handover, [options.no_handover])
    print(f"{runtime.name()}; torch {torch.__version__}, PyG {torch_geometric.__version__}")
    findings = run(runtime, SMALL if options.self_test else Size(), missing)
    broken = [row.check for row in findings.rows if row.kept is False]
    if findings.timeline:
        print(f"timeline of six batches\n{findings.timeline}")
    judged = "contents alone judged" if options.self_test else "all judged"
    print(f"broken promises: {', '.join(broken) or 'none'} ({judged})")
    record = {
        "device": runtime.name(),
        "no_handover": missing,
        "self_test": options.self_test,
        "shardgraph": sg.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "torch_geometric": torch_geometric.__version__,
        "python": platform.python_version(),
        "seconds": round(time.perf_counter() - start, 1),
        "kept": None if options.self_test else not broken,
        "rows": [asdict(row) for row in findings.rows],
    }
    print(json.dumps(record))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
