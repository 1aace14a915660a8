"""How often each attack is tried, and a table of what came of it."""

import os
import random
from collections.abc import Iterator

import pytest
from torture_tools import Child

FACTOR = float(os.environ.get("TORTURE_ROUNDS", "1"))
"""Rounds of each attack, as a multiple of what its mark says; `tools/torture.sh` sets it."""


class Rounds:
    """The rounds of one attack: numbers from 0, counted as they are tried; ``rng`` is seeded."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.tried = 0
        self.rng = random.Random(count)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        while self.tried < self.count:
            self.tried += 1
            yield self.tried - 1


@pytest.fixture
def rounds(request, record_property) -> Rounds:
    """As many rounds as the test's mark says, ``@pytest.mark.torture(rounds=3)``, times FACTOR."""
    marks = [mark.kwargs["rounds"] for mark in request.node.iter_markers("torture") if mark.kwargs]
    count = int(marks[0] * FACTOR)
    if count == 0:
        pytest.skip("only in the long form: tools/torture.sh")
    found = Rounds(count)
    record_property("rounds", found)
    return found


@pytest.fixture(autouse=True)
def no_child_left() -> Iterator[None]:
    yield
    for child in list(Child.running.values()):
        child.kill_session()


def pytest_terminal_summary(terminalreporter) -> None:
    if "TORTURE_ROUNDS" not in os.environ:
        return
    rows, lost = [], 0
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            if "torture" not in getattr(report, "keywords", ()):
                continue
            notes = dict(report.user_properties)
            found = notes.pop("rounds", None)
            tried = 1 if found is None else found.tried
            if outcome == "skipped":
                tried, notes = 0, {"not tried": str(report.longrepr[2]).removeprefix("Skipped: ")}
            name = report.nodeid.split("::")[-1].removeprefix("test_").replace("_", " ")
            said = "nothing lost" if outcome == "passed" else "" if outcome == "skipped" else "LOST"
            said = "; ".join(filter(None, [said, *(f"{k}: {v}" for k, v in notes.items())]))
            rows.append((name, tried, said))
            lost += outcome in ("failed", "error")
    terminalreporter.section("attacks")
    width = max((len(name) for name, _, _ in rows), default=0)
    for name, tried, said in rows:
        terminalreporter.line(f"{name:{width}}  {tried:6}  {said}")
    total = sum(tried for _, tried, _ in rows)
    verdict = "nothing was lost" if rows and not lost else f"{lost} attacks found something"
    terminalreporter.line(f"{len(rows)} attacks, {total:,} rounds: {verdict}")
