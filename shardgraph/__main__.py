"""The command line as a module: ``python -m shardgraph`` is ``shardgraph``."""

import sys

from shardgraph.cli import main

if __name__ == "__main__":
    sys.exit(main())
