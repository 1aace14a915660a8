#!/usr/bin/env bash
# Sets up .venv, converts the bundled ESOL molecules and trains a small GNN on them from disk.
# Arguments go to examples/quickstart.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tools/setup_env.sh chem
PATH="$PWD/.venv/bin:$PATH" .venv/bin/python examples/quickstart.py "$@"
printf '\n%s\n  %s\n  %s\n' "To go on, activate the environment, and see what a file becomes (nothing is written):" \
    "source .venv/bin/activate" \
    "shardgraph convert examples/esol/delaney-processed.csv --dry-run"
