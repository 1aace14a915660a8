"""Scripts that a newcomer runs first: how they end, or what they say where nothing is installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"


def run(*command: str | Path, status: int = 0) -> tuple[str, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def test_convert_without_its_packages_says_what_to_do():
    # With -I and -S, nothing that is installed is found.
    out, err = run(sys.executable, "-I", "-S", TOOLS / "convert.py", "a.csv", "out", status=1)
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(
        "shardgraph: error: No module named 'numpy', which shardgraph is built on"
    )
    assert err.endswith(
        "(source .venv/bin/activate), or install it into this one (pip install .)\n"
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose environment is set up, and whose Python prints its arguments."""
    tools, programs = tmp_path / "tools", tmp_path / ".venv" / "bin"
    tools.mkdir()
    programs.mkdir(parents=True)
    shutil.copy(TOOLS / "quickstart.sh", tools)
    (tools / "setup_env.sh").write_text('echo "setup: $*"\n')
    (programs / "python").write_text('#!/bin/sh\necho "$@"\n[ "$2" != fail ]\n')
    (programs / "python").chmod(0o755)
    return tmp_path


def test_the_quickstart_ends_with_what_to_do_next(checkout):
    out, _ = run("bash", checkout / "tools" / "quickstart.sh", "--epochs", "2")
    assert out == (
        "setup: chem\n"
        "examples/quickstart.py --epochs 2\n"
        "\n"
        "To go on, activate the environment, and see what a file becomes (nothing is written):\n"
        "  source .venv/bin/activate\n"
        "  shardgraph convert examples/esol/delaney-processed.csv --dry-run\n"
    )


def test_a_quickstart_that_fails_ends_with_its_message(checkout):
    out, _ = run("bash", checkout / "tools" / "quickstart.sh", "fail", status=1)
    assert out == "setup: chem\nexamples/quickstart.py fail\n"
