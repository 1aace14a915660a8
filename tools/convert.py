"""Convert raw graphs into a dataset: the same command as ``shardgraph convert``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # A checkout converts with its own code, installed or not.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from shardgraph.cli import main

    sys.exit(main(["convert", *sys.argv[1:]]))
