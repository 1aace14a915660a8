"""The examples: each runs as a user runs it, in a directory of its own, and prints its result."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import torch

import shardgraph

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"

# Runs a script without the package, and without what it is built on.
ALONE = """
import runpy, sys
sys.modules.update(dict.fromkeys(["shardgraph", "torch", "torch_geometric"]))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(directory: Path, *command: str | Path) -> str:
    """What Python prints for a command; run in ``directory``, with this checkout's package."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # One thread: several on busy cores wait for each other at every small operation.
    settings = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env={**os.environ, **settings, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_guide_names_every_example() -> None:
    guide = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\[(\w+\.py)\]\(\1\)", guide)) == {p.name for p in EXAMPLES.glob("*.py")}


def test_quickstart_learns_and_reuses_its_dataset(tmp_path: Path) -> None:
    script = EXAMPLES / "quickstart.py"
    first = run(tmp_path, script, "--data", "esol", "--epochs", "4")
    assert "1,128 graphs" in first
    epochs = re.findall(
        r"^epoch +(\d+): loss \d+\.\d{3}, validation RMSE \d\.\d{3}, waited for data \d+\.\d%",
        first,
        re.M,
    )
    assert epochs == ["1", "2", "3", "4"]
    pattern = r"test RMSE (\d\.\d{3}) log mol/L; of predicting the mean (\d\.\d{3})\n\Z"
    results = re.search(pattern, first)
    assert results is not None, first
    rmse, baseline = map(float, results.groups())
    assert 1.8 < baseline < 2.4  # 2.1 over all molecules
    assert rmse < 0.7 * baseline

    before = sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "esol").iterdir())
    second = run(tmp_path, script, "--data", "esol", "--epochs", "1")
    assert second.startswith(
        "esol: reusing the dataset, converted from delaney-processed.csv before\ntraining on 903 of"
    )
    after = sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "esol").iterdir())
    assert after == before


def test_subclass_generates_once(tmp_path: Path) -> None:
    first = run(tmp_path, EXAMPLES / "subclass.py", "root")
    generated, opened = first.split("\n", 1)
    assert generated == "generating from graphs.jsonl"
    assert re.match(r"\d+ graphs, 5 features, 2 classes\n", opened)
    assert opened.count("Data(") == 1
    assert opened.count("DataBatch(") == 1
    assert run(tmp_path, EXAMPLES / "subclass.py", "root") == opened


def test_plain_h5py_needs_nothing_else(tmp_path: Path) -> None:
    script = EXAMPLES / "plain_h5py.py"
    assert run(tmp_path, script, "paths") == (
        "graph 2 is graph 2 of shard-00000.h5\n"
        "x, float32 (4, 1):\n  [0.0]\n  [0.5]\n  [1.0]\n  [1.5]\n"
        "edge_index, int64 (2, 3):\n  [0, 1, 2]\n  [1, 2, 3]\n"
    )
    last = run(tmp_path, "-c", ALONE, script, "paths", "--graph", "98").splitlines()
    assert re.fullmatch(r"graph 98 is graph \d+ of shard-0000[1-9]\.h5", last[0])
    x = [f"  [{node / 2}]" for node in range(100)]
    edge_index = [f"  {[*range(99)]}", f"  {[*range(1, 100)]}"]
    assert last[1:] == ["x, float32 (100, 1):", *x, "edge_index, int64 (2, 99):", *edge_index]


def test_own_source_is_converted(tmp_path: Path) -> None:
    printed = run(tmp_path, EXAMPLES / "own_source.py", "own")
    assert "1,000 graphs" in printed
    assert printed.splitlines()[-1] == (
        "1000 graphs; graph 3 is Data(x=[5, 1], edge_index=[2, 4]) with x [0.0, 1.0, 2.0, 3.0, 4.0]"
    )


def test_a_dask_cluster_converts(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    output = run(tmp_path, EXAMPLES / "dask_cluster.py", "--data", tmp_path / "d")
    assert output == "1,128 graphs by 2 Dask workers\n"
    assert json.loads((tmp_path / "d/manifest.json").read_text())["totals"]["num_nodes"] == 14_991


@pytest.mark.slow
def test_two_ranks_train_together(tmp_path: Path) -> None:
    printed = run(tmp_path, EXAMPLES / "data_parallel.py", "--data", "random", "--epochs", "2")
    pattern = r"^epoch \d: loss (\d\.\d{4}), 2,000 graphs by 2 ranks in (\d+) steps each$"
    (first, _), (second, num_steps) = re.findall(pattern, printed, re.M)
    assert float(second) < float(first) / 2
    assert 15 < int(num_steps) < 20


def test_a_stopped_training_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    """An epoch has 29 steps, so the checkpoint of step 20 is what the first epoch leaves."""
    script = EXAMPLES / "resume.py"
    whole = run(tmp_path, script, "--epochs", "3", "--checkpoint", "whole.pt")
    assert re.findall(r"^epoch (\d): validation loss \d\.\d{6}$", whole, re.M) == ["0", "1", "2"]
    first = run(tmp_path, script, "--epochs", "1", "--checkpoint", "cut.pt")
    assert first == whole[: len(first)]
    second = run(tmp_path, script, "--epochs", "3", "--checkpoint", "cut.pt")
    assert second == "going on after 20 steps, in epoch 0\n" + whole


def test_the_training_loop_learns_with_workers(tmp_path: Path) -> None:
    options = ["--data", "random", "--workers", "2", "--epochs", "3"]
    printed = run(tmp_path, EXAMPLES / "training_loop.py", *options)
    losses = [float(loss) for loss in re.findall(r"^epoch \d: loss (\d\.\d{4})$", printed, re.M)]
    assert len(losses) == 3
    assert losses[2] < losses[0] / 2
    assert "96 batches in 3 epochs" in printed
    assert re.search(r"^verdict: ", printed, re.M)


def test_the_training_loop_may_take_our_loader_for_pygs() -> None:
    script = EXAMPLES / "training_loop.py"
    (call,) = (
        node
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "DataLoader"
    )
    ours = set(inspect.signature(shardgraph.GraphLoader).parameters)
    assert {keyword.arg for keyword in call.keywords} - ours == set()
    of_torch = set(inspect.signature(torch.utils.data.DataLoader).parameters)
    told = {"sampler", "batch_sampler", "generator", "collate_fn"}
    assert of_torch - ours - {"in_order", "pin_memory_device"} == told


def test_the_readme_shows_what_its_first_block_prints(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", readme, re.DOTALL)
    assert found is not None
    code, output = found.groups()
    assert run(tmp_path, "-c", code) == output


def test_no_example_hides_a_package():
    # A script's directory comes first on its path, and so before what is installed.
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names & (set(packages_distributions()) | sys.stdlib_module_names) == set()
