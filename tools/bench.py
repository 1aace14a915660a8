"""Measure shardgraph against other ways to keep graphs; ``tools/README.md`` explains each question.

Run ``python tools/bench.py warm``, or another question, or ``all``.
"""

from __future__ import annotations

import argparse
import compileall
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

# A checkout measures its own code, installed or not, in this process and in its children.
_TOOLS = Path(__file__).resolve().parent
for _path in (str(_TOOLS), str(_TOOLS.parent)):
    if _path not in sys.path:
        sys.path.insert(0, _path)

from benchmarks.cold import cold  # noqa: E402
from benchmarks.convergence import convergence  # noqa: E402
from benchmarks.conversion import convert  # noqa: E402
from benchmarks.dropin import dropin  # noqa: E402
from benchmarks.gather import gather  # noqa: E402
from benchmarks.harness import Options, Report  # noqa: E402
from benchmarks.memory import open_memory  # noqa: E402
from benchmarks.peers import STORES  # noqa: E402
from benchmarks.plan import plan  # noqa: E402
from benchmarks.plot import draw  # noqa: E402
from benchmarks.stall import stall  # noqa: E402
from benchmarks.throughput import warm, workers  # noqa: E402
from benchmarks.workloads import WORKLOADS  # noqa: E402
from benchmarks.write import write  # noqa: E402

QUESTIONS: dict[str, tuple[Callable[[Options], Report], str, str]] = {
    "warm": (warm, "molecules", "graphs/s without workers, page cache warm"),
    "workers": (workers, "molecules", "graphs/s with two workers, page cache warm"),
    "cold": (cold, "molecules", "graphs/s from disk, memory limited to a third of the data"),
    "dropin": (dropin, "molecules", "graphs/s of PyG's own DataLoader on each dataset"),
    "gather": (gather, "atomistic", "GB/s of making batches, against memcpy"),
    "stall": (stall, "molecules", "wait per step of 5 ms"),
    "write": (write, "molecules", "graphs/s from memory to disk"),
    "convergence": (convergence, "molecules", "error of a trained model by order and batches"),
    "plan": (plan, "molecules", "seconds and memory of planning an epoch, by number of graphs"),
    "convert": (convert, "molecules", "seconds with 1 and 2 workers, memory by number of graphs"),
    "open": (open_memory, "tiny", "opening time and memory, 1 and 10 million graphs"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers the questions that the command line names."""
    options = _parser().parse_args(arguments)
    # As pip does for what it installs; else `write` would count the compilation of our modules.
    compileall.compile_dir(Path(__file__).parents[1] / "shardgraph", quiet=1)
    questions = list(QUESTIONS) if options.question == "all" else [options.question]
    reports = []
    for question in questions:
        function, workload, _ = QUESTIONS[question]
        report = function(_options(options, options.workload or workload))
        report.print()
        line = report.to_json()
        print(line, flush=True)
        if options.json is not None:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        reports.append(report)
    if options.plot is not None:
        draw(reports, options.plot)
    return 0


def _options(arguments: argparse.Namespace, workload: str) -> Options:
    smoke = arguments.smoke
    return Options(
        data=arguments.data,
        workload=WORKLOADS[workload],
        count=arguments.graphs,
        stores=tuple(arguments.stores or ()),
        batch_sizes=tuple(arguments.batch_size or ()),
        rounds=arguments.rounds or (1 if smoke else 3),
        seeds=arguments.seeds or (1 if smoke else 5),
        seconds=arguments.seconds or (0.05 if smoke else 3.0),
        smoke=smoke,
        rebuild=arguments.rebuild,
        shard_size=arguments.shard_size,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/bench.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="questions:\n"
        + "\n".join(f"  {name:<8} {text}" for name, (_, _, text) in QUESTIONS.items()),
    )
    parser.add_argument("question", choices=[*QUESTIONS, "all"], metavar="QUESTION")
    parser.add_argument("--workload", choices=WORKLOADS, help="kind of graphs")
    parser.add_argument("--graphs", type=int, metavar="N", help="how many graphs")
    parser.add_argument(
        "--batch-size", type=int, nargs="+", metavar="B", help="batch sizes; by default two"
    )
    parser.add_argument("--stores", nargs="+", choices=STORES, help="only these")
    parser.add_argument("--rounds", type=int, metavar="N", help="default 3; medians are shown")
    parser.add_argument("--seeds", type=int, metavar="N", help="of convergence; default 5")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="length of each measurement, default 3"
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        default=Path(tempfile.gettempdir()) / "shardgraph-bench",
        help="where the datasets are kept between runs; cold needs a disk (default %(default)s)",
    )
    parser.add_argument(
        "--shard-size",
        default="128MB",
        metavar="SIZE",
        help="of shardgraph's files (default 128MB)",
    )
    parser.add_argument("--rebuild", action="store_true", help="write the datasets anew")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does it run at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the result lines here")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a PNG of bars")
    return parser


if __name__ == "__main__":
    # PyG scripts a class as it is imported, and SQLite's tensors are read-only: known, and many.
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.exit(main())
