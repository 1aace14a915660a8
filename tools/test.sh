#!/usr/bin/env bash
# Sets up .venv and runs the tests. Arguments go to pytest: bash tools/test.sh -m "not slow" tests/shards
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash tools/setup_env.sh chem test
PATH="$PWD/.venv/bin:$PATH"
if [ $# -gt 0 ]; then exec .venv/bin/python -m pytest "$@"; fi
# What attacks the machine or measures time comes after the rest, which takes two cores.
.venv/bin/python -m pytest -n 2 --dist worksteal -m "not alone and not torture"
.venv/bin/python -m pytest -m "alone or torture"
