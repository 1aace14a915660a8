"""The benchmark runs, at sizes too small to mean anything: its tables, result lines and plot."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lmdb")
pytest.importorskip("matplotlib")
pytest.importorskip("rdkit")

BENCH = Path(__file__).resolve().parents[2] / "tools" / "bench.py"
QUESTIONS = (
    *("warm", "workers", "cold", "dropin", "gather", "stall", "write", "convergence", "plan"),
    *("convert", "open"),
)


def run_bench(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCH), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """One run of all questions: what it printed, its result lines by question, its plot."""
    root = tmp_path_factory.mktemp("bench")
    arguments = ("--data", root / "data", "--json", root / "lines", "--plot", root / "bars.png")
    printed = run_bench("all", "--smoke", *arguments)
    lines = (root / "lines").read_text(encoding="utf-8").splitlines()
    return printed, {(line := json.loads(text))["question"]: line for text in lines}, root


def test_all_questions_are_answered(smoke):
    printed, lines, _ = smoke
    assert tuple(lines) == QUESTIONS
    for question, line in lines.items():
        assert f"\n{question}: " in printed
        assert json.dumps(line) in printed.splitlines()


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_result_line_says_how_it_came_about(smoke, question):
    line = smoke[1][question]
    assert line["smoke"] is True
    assert line["rounds"] == 1
    assert {"python", "torch", "torch_geometric", "h5py", "numpy"} <= set(line["versions"])
    assert line["commit"]
    assert line["hardware"]["cores"] >= 1
    assert line["cache"]
    assert line["results"]


@pytest.mark.parametrize(
    ("question", "stores"),
    [
        (
            "warm",
            [
                "shardgraph",
                "sqlite",
                "lmdb",
                "lmdb-numpy",
                "pt",
                "inmemory",
                "list",
                "shardgraph-gzip",
            ],
        ),
        ("workers", ["shardgraph", "sqlite", "lmdb"]),
        ("dropin", ["shardgraph", "sqlite", "lmdb"]),
        ("write", ["shardgraph", "lmdb", "lmdb-numpy"]),
    ],
)
def test_stores_are_compared(smoke, question, stores):
    rows = {row["store"]: row for row in smoke[1][question]["results"]}
    rows.pop("litdata", None)  # where it is installed
    assert list(rows) == stores
    ours = rows["shardgraph"]["median"]
    assert all(row["min"] <= row["median"] <= row["max"] for row in rows.values())
    ratios = {name: row.get("ratio") for name, row in rows.items()}
    assert ratios == {
        name: None if name == "shardgraph" else ours / row["median"] for name, row in rows.items()
    }


def test_cold_runs_say_what_was_dropped_and_limited(smoke):
    line = smoke[1]["cold"]
    assert "dropped" in line["cache"]
    assert ("NOT limited" in line["memory_limit_set"]) == (line["memory_limit"] is None)
    orders = [(row["store"], row["order"]) for row in line["results"]]
    assert orders[:2] == [("shardgraph", "full"), ("shardgraph", "window")]
    assert orders[-1] == ("disk", "sequential")


def test_gather_compares_with_memcpy_and_sweeps_run_lengths(smoke):
    rows = smoke[1]["gather"]["results"]
    rates = {row["what"]: row["median"] for row in rows if "median" in row}
    assert list(rates) == ["packed batch", "PyG batch", "memcpy, new memory", "memcpy, same memory"]
    assert rows[0]["ratio"] == rates["packed batch"] / rates["memcpy, new memory"]
    sweep = [(row["what"], row["rows a graph"]) for row in rows if "rows a graph" in row]
    assert sweep == [("floats", 8), ("floats", 128), ("edges", 8), ("edges", 128)]


def test_stall_separates_the_prefetcher(smoke):
    stores = {row["store"] for row in smoke[1]["stall"]["results"]}
    assert {"shardgraph, DevicePrefetcher", "shardgraph", "sqlite"} <= stores


def test_convergence_is_told_for_each_order_and_kind_of_batches(smoke):
    line = smoke[1]["convergence"]
    rows = [(row["data"], row["order"], row["limits"]) for row in line["results"]]
    assert rows == [
        ("as published", "full", "32 graphs"),
        ("as published", "window", "budget of nodes"),
        ("sorted", "none", "32 graphs"),
    ]
    first, window, _ = line["results"]
    assert (line["seeds"], len(first["values"])) == (1, 1)
    assert window["difference"] == window["RMSE"] - first["RMSE"] != 0
    assert 0 < first["RMSE"] < 4


def test_plan_measures_each_kind_of_plan_at_three_sizes(smoke):
    rows = smoke[1]["plan"]["results"]
    assert [(row["batches by"], row["order"], row["graphs"]) for row in rows] == [
        (batches, order, count)
        for batches in ("count", "budgets", "weights")
        for order in ("full", "window")
        for count in (40, 400, 4000)
    ]
    for row in rows:
        assert row["first, s"] > 0
        assert row["epoch, s"] > 0
        # A full order is a permutation: at least 8 bytes a graph.
        assert row["bytes a graph"] >= (8 if row["order"] == "full" else 0)


def test_convert_times_one_and_two_workers_and_watches_memory(smoke):
    one, two, generated = smoke[1]["convert"]["results"]
    assert [(row["graphs"], row["workers"]) for row in (one, two, generated)] == [
        (60, 1),
        (60, 2),
        (100, 1),
    ]
    assert two["ratio"] == one["median"] / two["median"]
    assert two["cpu ratio"] > 0
    for row in (one, two, generated):
        assert row["cpu s"] > 0
        assert row["graphs/s"] == row["graphs"] / row["median"]
        assert sys.platform != "linux" or row["peak MB"] > 50


def test_the_plot_is_a_png(smoke):
    assert (smoke[2] / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_data_are_kept_and_used_again(smoke):
    data = smoke[2] / "data"
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*.done")}
    run_bench("dropin", "--smoke", "--data", data, "--stores", "shardgraph", "sqlite")
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*.done")} == before


def test_an_unknown_question_is_refused():
    done = subprocess.run(
        [sys.executable, str(BENCH), "speed"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "invalid choice: 'speed'" in done.stderr
