"""``shardgraph verify PATH``: whether a dataset is what its manifest says."""

from __future__ import annotations

import argparse

HELP = "check a dataset for damage"

_LOOKED_AT = {
    "quick": "files, sizes and headers only; --level full looks at every byte",
    "structure": "sizes and structure; --level full looks at every byte",
    "full": "every byte",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset, and how closely to look."""
    add = parser.add_argument
    add("path", metavar="PATH", help="directory of the dataset")
    add(
        "--level",
        choices=("quick", "structure", "full"),
        default="quick",
        help="sizes and headers; also the structure of each shard; also every byte (default quick)",
    )
    add("--duplicates", action="store_true", help="also look for equal graphs (with --level full)")
    add("--workers", type=int, metavar="N", help="number of threads (default: one a core, up to 8)")
    add("--no-progress", action="store_true", help="show no progress bar")


def run(args: argparse.Namespace) -> int:
    """Prints the problems and notes, a line each, and returns 1 if there are any problems."""
    from shardgraph.verify import verify
    from shardgraph.verify.problem import printable

    found = verify(
        args.path,
        level=args.level,
        duplicates=args.duplicates,
        workers=args.workers,
        progress=not args.no_progress,
    )
    for problem in found:
        print(problem)
    if not found:
        text = f"{args.path}: no problem found ({args.level}: {_LOOKED_AT[args.level]})"
        print(printable(text))
    for note in found.notes:
        print(f"note: {note}")
    return 1 if found else 0
