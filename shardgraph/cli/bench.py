"""``shardgraph bench PATH``: how fast a dataset reads here, and how long training would wait."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardgraph.bench import Measurement

HELP = "measure how fast a dataset reads, and how long training would wait"

_LINE = "{:<11} {:>7} {:>12} {:>9} {:>12} {:>12} {:>9}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset, its batches, and what is measured."""
    add = parser.add_argument
    add("path", metavar="PATH", help="directory of the dataset")
    add("--batch-size", type=int, metavar="N", help="graphs in a batch (default 256)")
    add("--max-nodes", type=int, metavar="N", help="nodes in a batch, instead")
    add("--max-edges", type=int, metavar="N", help="edges in a batch, instead")
    add("--workers", type=int, nargs="+", metavar="N", help="default 0 1 2 4 ... up to all cores")
    add(
        "--orders",
        nargs="+",
        choices=("sequential", "full", "window"),
        default=["sequential", "full", "window"],
        help="no shuffle, full shuffle, window shuffle (default all)",
    )
    add("--seconds", type=float, default=3.0, metavar="S", help="of each loop (default 3)")
    add("--step", type=float, default=5.0, metavar="MS", help="a training step (default 5 ms)")
    add("--device", metavar="NAME", help="where batches go (default the accelerator, if any)")
    add("--json", metavar="FILE", help="append a line of JSON with all figures to this file")
    add("--plot", metavar="FILE", help="draw the waits over time as a PNG")


def run(args: argparse.Namespace) -> int:
    """Measures, and prints a table."""
    from shardgraph.bench import bench

    print("through DevicePrefetcher; wait: of a loop with steps of", f"{args.step:g} ms")
    head = ("order", "workers", "graphs/s", "MB/s", "wait p50 us", "wait p99 us", "starved")
    print(_LINE.format(*head), flush=True)
    report = bench(
        args.path,
        batch_size=args.batch_size,
        max_nodes=args.max_nodes,
        max_edges=args.max_edges,
        workers=args.workers,
        orders=args.orders,
        seconds=args.seconds,
        step_seconds=args.step / 1e3,
        device=args.device,
        on_measured=_print_row,
    )
    if args.json is not None:
        with open(args.json, "a", encoding="utf-8") as file:
            file.write(report.to_json() + "\n")
    if args.plot is not None:
        report.plot(args.plot)
    return 0


def _print_row(each: Measurement) -> None:
    row = _LINE.format(
        each.order,
        each.num_workers,
        f"{each.graphs_per_second:,.0f}",
        f"{each.bytes_per_second / 1e6:,.0f}",
        f"{1e6 * each.stats.wait.p50:,.0f}",
        f"{1e6 * each.stats.wait.p99:,.0f}",
        f"{each.stats.starved_share:.1%}",
    )
    print(row, flush=True)
