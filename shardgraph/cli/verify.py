"""``shardgraph verify PATH``: whether a dataset is what its manifest says."""

from __future__ import annotations

import argparse

HELP = "check a dataset for damage"

_LOOKED_AT = {
    "quick": "files and sizes only; --level full looks at every byte",
    "structure": "sizes and structure; --level full looks at every byte",
    "full": "every byte",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset, and how closely to look."""
    parser.add_argument("path", metavar="PATH", help="directory of the dataset")
    parser.add_argument(
        "--level",
        choices=("quick", "structure", "full"),
        default="quick",
        help="sizes; also the structure of each shard; also every byte (default quick)",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the problems, a line each, and returns 1 if there are any."""
    from shardgraph.verify import verify

    problems = verify(args.path, level=args.level)
    for problem in problems:
        print(problem)
    if not problems:
        print(f"{args.path}: no problem found ({args.level}: {_LOOKED_AT[args.level]})")
    return 1 if problems else 0
