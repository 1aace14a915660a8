#!/usr/bin/env bash
# Sets up .venv, converts the bundled ESOL molecules and trains a small GNN on them from disk.
# Arguments go to examples/quickstart.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tools/setup_env.sh chem
PATH="$PWD/.venv/bin:$PATH" exec .venv/bin/python examples/quickstart.py "$@"
