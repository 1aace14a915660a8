"""``shardgraph formats``: what can be converted."""

from __future__ import annotations

import argparse

from shardgraph.cli.text import table

HELP = "list the formats that can be converted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Nothing."""


def run(args: argparse.Namespace) -> int:  # noqa: ARG001 (it takes none)
    """Prints name, content and needed extra of each format."""
    from shardgraph.convert import source_class, source_names

    sources = [source_class(name) for name in source_names()]
    rows = [
        [s.name, s.description, f"pip install 'shardgraph[{s.extra}]'" if s.extra else ""]
        for s in sources
    ]
    print(table([["format", "reads", "needs"], *rows]))
    return 0
