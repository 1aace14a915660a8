"""The table of promises names tests that there are."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_each_promise_names_its_tests():
    text = (TESTS / "README.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "::test_" in line]
    assert [row.split("|")[1].strip() for row in rows] == [*"abcdefghi", "", ""]
    for row in rows:
        file = None
        for path, name in re.findall(r"`([\w/]*(?:\.py)?)::(test_\w+)`", row):
            file = path or file
            source = (TESTS / file).read_text(encoding="utf-8")
            assert re.search(rf"^def {name}\(", source, re.MULTILINE), f"{file}::{name}"
        assert file is not None
