"""A run that is killed goes on with exactly the graphs that it had left."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from numbered import SIZE, orders

import shardgraph as sg

FORK = multiprocessing.get_context("fork")

COUNTED = {"batch_size": 2, "shuffle": True, "seed": 4}
BUDGETED = {"max_nodes": 7, "shuffle": True, "seed": 4}


def make_loader(
    dataset: sg.ShardedDataset, *, num_workers: int, prefetch: bool = False, **options: Any
) -> Any:
    loader = sg.GraphLoader(dataset, num_workers=num_workers, **options)
    return sg.DevicePrefetcher(loader, "cpu", depth=3) if prefetch else loader


def train(dataset: sg.ShardedDataset, path: Path, options: dict[str, Any]) -> None:
    """Reads for ever, and after each step replaces the file of what was seen in the epoch."""
    loader = make_loader(dataset, **options)
    while True:
        seen = []
        for batch in loader:
            seen += batch.number.tolist()
            new = path.with_suffix(".new")
            new.write_text(json.dumps({"state": loader.state_dict(), "seen": seen}))
            os.replace(new, path)
            time.sleep(0.01)


def killed_run(path: Path, *arguments: Any) -> dict[str, Any]:
    """What the file of a run says that is killed in the middle of its second epoch."""
    process = FORK.Process(target=train, args=arguments)
    process.start()
    try:
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            if path.exists():
                found = json.loads(path.read_text())
                if found["state"]["epoch"] == 1 and found["state"]["cursor"] >= 3:
                    break
            time.sleep(0.002)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert process.exitcode == -signal.SIGKILL
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"num_workers": 0, **COUNTED}, [{"num_workers": 1}, {"num_workers": 2, "prefetch": True}]),
        ({"num_workers": 2, **COUNTED}, [{"num_workers": 0}]),
        ({"num_workers": 0, "prefetch": True, **BUDGETED}, [{"num_workers": 2}]),
        ({"num_workers": 2, "prefetch": True, **BUDGETED}, [{"num_workers": 0, "prefetch": True}]),
    ],
    ids=repr,
)
def test_after_a_kill_exactly_the_rest_is_read(dataset, tmp_path, before, after):
    path = tmp_path / "state.json"
    found = killed_run(path, dataset, path, before)
    state, seen = found["state"], found["seen"]
    whole = make_loader(dataset, **before)
    whole.set_epoch(state["epoch"])
    this_epoch, next_epoch = orders(whole), orders(whole)
    assert 0 < len(seen) < SIZE
    for changed in after:
        resumed = make_loader(dataset, **{**before, "prefetch": False, **changed})
        resumed.load_state_dict(state)
        rest = orders(resumed)
        assert rest == this_epoch[len(this_epoch) - len(rest) :]
        assert seen + sum(rest, []) == sum(this_epoch, [])  # noqa: RUF017  # short
        assert orders(resumed) == next_epoch


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_after_a_kill_other_ranks_share_the_rest(dataset, tmp_path, num_ranks):
    path = tmp_path / "state.json"
    options = {"num_workers": 0, **COUNTED}
    found = killed_run(path, dataset, path, options)
    rest = set(range(SIZE)) - set(found["seen"])
    steps = []
    for rank in range(num_ranks):
        loader = make_loader(dataset, rank=rank, world_size=num_ranks, **options)
        loader.load_state_dict(found["state"])
        num_left = len(loader) - found["state"]["steps"]
        steps.append(orders(loader))
        assert len(steps[-1]) == num_left
    read = [number for rank in steps for batch in rank for number in batch]
    assert len(set(map(len, steps))) == 1
    assert len(set(read)) == len(read)
    assert set(read) <= rest
    assert len(rest) - len(read) < num_ranks
