#!/usr/bin/env bash
# Makes .venv in the repository root, or reuses it, with shardgraph (editable) and the extras named.
#   bash tools/setup_env.sh EXTRA...        for example: bash tools/setup_env.sh chem test
# PYTHON=/path/to/python chooses the interpreter of a new .venv. Versions: tools/constraints.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
stamp=$venv/shardgraph-installed

say() { printf '[setup] %s\n' "$*"; }
die() { printf '[setup] error: %s\n' "$@" >&2; exit 1; }

works() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

# Prints the first usable interpreter; on none, says what was found and what to do.
find_python() {
    local name found=()
    for name in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.10; do
        if ! "$name" -c '' >/dev/null 2>&1; then
            [ "$name" != "${PYTHON:-}" ] || die "PYTHON=$name does not run."
        elif ! works "$name"; then
            found+=("$name is $("$name" --version 2>&1), too old.")
        elif ! "$name" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            found+=("$name has no venv module (Debian, Ubuntu: apt install python3-venv).")
        else
            echo "$name"
            return
        fi
        [ "$name" != "${PYTHON:-}" ] || break
    done
    die "needs Python 3.10 or newer with its venv module on the PATH, or PYTHON=/path/to/python." ${found[@]+"${found[@]}"}
}

# What an installation depends on: the interpreter, the place, the requirements.
fingerprint() {
    "$venv/bin/python" - <<'PY'
import hashlib, os, sys
parts = [sys.version.encode(), os.getcwd().encode()]
parts += [open(name, "rb").read() for name in ("pyproject.toml", "tools/constraints.txt")]
print(hashlib.sha256(b"\0".join(parts)).hexdigest())
PY
}

if ! works "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    say "making .venv with $("$python" --version 2>&1)"
    "$python" -m venv --clear "$venv" || die "$python -m venv failed; see the message above."
fi

current=$(fingerprint)
installed=()
if [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" = "$current" ]; then
    while read -r extra; do installed+=("$extra"); done < <(tail -n +2 "$stamp")
fi
missing=()
for extra in "$@"; do
    case " ${installed[*]-} " in *" $extra "*) ;; *) missing+=("$extra") ;; esac
done
if [ -f "$stamp" ] && [ "${#installed[@]}" -gt 0 ] && [ "${#missing[@]}" -eq 0 ]; then
    say "reusing .venv"
    exit 0
fi

extras=$(IFS=,; echo "${installed[*]+${installed[*]},}${missing[*]}")
say "installing shardgraph[$extras] (the first time takes a minute or two)"
rm -f "$stamp"
"$venv/bin/python" -m pip install --no-input --disable-pip-version-check \
    --constraint tools/constraints.txt --editable ".[$extras]" \
    || die "installation failed; pip's message is above. It needs a package index to reach (see 'pip config list')."
{ echo "$current"; tr ',' '\n' <<<"$extras"; } >"$stamp"
