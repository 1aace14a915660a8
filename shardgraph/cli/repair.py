"""``shardgraph repair PATH``: makes a dataset of the shards that are whole."""

from __future__ import annotations

import argparse

HELP = "make a damaged dataset whole again, without the shards that are broken"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset, and what becomes of broken shards."""
    add = parser.add_argument
    add("path", metavar="PATH", help="directory of the dataset")
    add(
        "--broken",
        choices=("quarantine", "drop"),
        default="quarantine",
        help="move broken shards to a folder quarantine-N in the dataset's (default), or remove "
        "them for good",
    )
    add(
        "--like",
        metavar="OTHER",
        help="a dataset of the same schema, or a folder with a copy of manifest.json, if the "
        "manifest cannot be read",
    )
    add("--dry-run", action="store_true", help="only say what would be done")


def run(args: argparse.Namespace) -> int:
    """Prints what was done and lost, and returns 3 if graphs were lost."""
    from shardgraph.cli import DONE, REJECTED
    from shardgraph.repair import repair
    from shardgraph.verify.problem import printable

    report = repair(args.path, broken=args.broken, like=args.like, dry_run=args.dry_run)
    print("\n".join(map(printable, str(report).split("\n"))))
    if args.dry_run and report.changed:
        print("nothing was changed; without --dry-run it is done")
    return REJECTED if report.lost else DONE
