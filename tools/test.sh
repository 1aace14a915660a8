#!/usr/bin/env bash
# Sets up .venv and runs the tests. Arguments go to pytest: bash tools/test.sh -m "not slow" tests/shards
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tools/setup_env.sh chem test
PATH="$PWD/.venv/bin:$PATH" exec .venv/bin/python -m pytest "$@"
