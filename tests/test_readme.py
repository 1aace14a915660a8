"""The README: short, a result early on, and every block of it runs.

A ``python`` block runs in a fresh interpreter; one that follows the line ``<!-- continues -->``
sees the names of the block before it. All blocks run in order in one temporary directory that shows
``tools`` and ``examples``, as a checkout does. A ``text`` block is output or a picture.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
CONTINUES = "<!-- continues -->"

# Commands that do not run here, and why.
COVERED_ELSEWHERE = {
    "bash tools/quickstart.sh": "sets up .venv; the example that it runs is tested as an example",
    "bash tools/test.sh": "is what runs this test",
    "tools/check": ".ci/run runs it; it would run this suite's layer test once more",
}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, first line in the README, text, and the marker before it."""

    language: str
    line: int
    text: str
    continues: bool


def blocks_of(markdown: str) -> list[Block]:
    lines = markdown.splitlines()
    fences = [number for number, line in enumerate(lines) if line.startswith("```")]
    assert len(fences) % 2 == 0, "a fence is not closed"
    return [
        Block(
            language=lines[start].removeprefix("```").strip(),
            line=start + 1,
            text="\n".join(lines[start + 1 : stop]),
            continues=lines[max(start - 1, 0)].strip() == CONTINUES,
        )
        for start, stop in zip(fences[::2], fences[1::2], strict=True)
    ]


def commands_of(block: Block) -> list[str]:
    """The lines of a bash block without their comments."""
    lines = (re.sub(r"(^|\s+)#.*", "", line).rstrip() for line in block.text.splitlines())
    return [line for line in lines if line]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory in which the README's relative paths and commands work."""
    for name in ("tools", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, command in {"python": "", "shardgraph": " -m shardgraph"}.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{command} "$@"\n')
        program.chmod(0o755)
    return tmp_path


def run(command: list[str], directory: Path, what: str) -> None:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PATH": f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{what} failed:\n{done.stdout}{done.stderr}"


def run_block(block: Block, names_of_block_before: str, directory: Path) -> str:
    """Run a block; what the next one would continue from."""
    what = f"README.md line {block.line}"
    if block.language == "bash":
        lines = [line for line in commands_of(block) if line not in COVERED_ELSEWHERE]
        run(["bash", "-euo", "pipefail", "-c", "\n".join(lines)], directory, what)
        return names_of_block_before
    program = f"{names_of_block_before}\n{block.text}" if block.continues else block.text
    script = directory / f"readme_line_{block.line}.py"
    script.write_text(program)
    run([sys.executable, script.name], directory, what)
    return program


def test_every_block_runs(checkout: Path) -> None:
    before = ""
    for block in blocks_of(README.read_text(encoding="utf-8")):
        if block.language != "text":
            before = run_block(block, before, checkout)


def test_no_block_is_of_an_unknown_kind() -> None:
    blocks = blocks_of(README.read_text(encoding="utf-8"))
    assert {block.language for block in blocks} <= {"python", "bash", "text"}
    markers = README.read_text(encoding="utf-8").count(CONTINUES)
    assert markers == sum(block.continues and block.language == "python" for block in blocks)


def test_the_readme_is_short_and_starts_with_something_to_run() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 160
    first = next(block for block in blocks_of(text) if block.language in {"python", "bash"})
    assert first.line < 30


def test_the_two_commands_are_named_and_can_be_executed() -> None:
    blocks = blocks_of(README.read_text(encoding="utf-8"))
    commands = {c for block in blocks if block.language == "bash" for c in commands_of(block)}
    assert {"bash tools/quickstart.sh", "bash tools/test.sh"} <= commands
    for command in COVERED_ELSEWHERE:
        assert os.access(ROOT / command.split()[-1], os.X_OK), command


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)", README.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (ROOT / target).exists()] == []


MARKDOWN = """
```python
x = 1
```

<!-- continues -->
```python
open("x", "w").write(str(x + 1))
```
```bash
test "$(cat x)" = \\
  2  # joined
```
```bash
tools/check  # left out
python -c 'import sys; sys.exit("on purpose")'
```
"""


def test_the_runner_continues_and_reports_failures(checkout: Path) -> None:
    define, write, check, fail = blocks_of(MARKDOWN)
    assert [b.line for b in (define, write, check, fail)] == [2, 7, 10, 14]
    before = run_block(define, "", checkout)
    before = run_block(write, before, checkout)
    run_block(check, before, checkout)
    with pytest.raises(AssertionError, match=r"README.md line 14 failed:\s+on purpose"):
        run_block(fail, before, checkout)
