#!/usr/bin/env bash
# Attacks all that is promised, and prints what was tried, how often, and what came of it.
# By default five times as often as the tests do; `bash tools/torture.sh 50` is fifty times. Further
# arguments go to pytest: `bash tools/torture.sh 5 -k killed`. As root it also fills up and mounts
# small file systems, which it alone sees.
set -euo pipefail
export TORTURE_ROUNDS="${1:-5}"
shift || true
exec bash "$(dirname "${BASH_SOURCE[0]}")/test.sh" -m torture tests "$@"
