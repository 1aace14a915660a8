"""Conversions and trainings that are killed: started again, they end as if nothing had happened."""

import itertools
import json
import os
import signal
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from numbers_source import Numbers, contents
from torture_tools import Child, are_right, linux, outcome, write

import shardgraph as sg
from shardgraph.atomic import write_text
from shardgraph.convert import convert

pytestmark = [pytest.mark.torture, linux]

# Conversions -------------------------------------------------------------------------------------

_STEPS = ("replace", "fsync", "unlink", "rmdir", "mkdir")


def convert_numbers(out: Path, shuffle: int | None, workers: int, delay: float, _: Any) -> None:
    if workers > 1:
        forkserver._forkserver.__init__()  # the parent's, if it has one, is not for its children
    source = Numbers(count=90, size=30, bad={4, 40}, delay=delay)
    options = {"on_error": "skip", "shard_size": 2000, "progress": False, "shuffle": shuffle}
    convert(source, out, workers=workers, **options)


def die_before(step: int | None, out: Path, shuffle: int | None, say: Any) -> None:
    """Converts, and is killed before the given step on disk; says how many steps there were."""
    steps = itertools.count()

    def counted(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for name in _STEPS:
        setattr(os, name, counted(getattr(os, name)))
    convert_numbers(out, shuffle, 1, 0.0, say)
    say(next(steps))


@pytest.fixture(scope="module", params=[None, 7], ids=["in_order", "shuffled"])
def shuffle(request) -> int | None:
    return request.param


@pytest.fixture(scope="module")
def uninterrupted(shuffle, tmp_path_factory) -> tuple[dict[str, bytes], int]:
    """The files of a conversion that was left alone, and the steps on disk that it took."""
    out = tmp_path_factory.mktemp("uninterrupted") / "out"
    steps = int(outcome(die_before, None, out, shuffle))
    return contents(out), steps


def finish(out: Path, shuffle: int | None, expected: dict[str, bytes]) -> None:
    """Resumes a conversion, unless all that is left is to tidy up, and checks its files."""
    if not (out / "manifest.json").exists() or (out / ".conversion/state.json").exists():
        outcome(convert_numbers, out, shuffle, 1, 0.0)
        assert contents(out) == expected


@pytest.mark.torture(rounds=4)
def test_converter_killed_before_steps_on_disk(tmp_path, shuffle, uninterrupted, rounds):
    expected, steps = uninterrupted
    for number in rounds:
        step = (2 * number + 1) * steps // (2 * len(rounds))
        out = tmp_path / f"{number}"
        status, said = Child(die_before, step, out, shuffle).end()
        assert status == -signal.SIGKILL, said
        finish(out, shuffle, expected)


@pytest.mark.torture(rounds=2)
def test_converter_killed_at_random_moments(tmp_path, shuffle, uninterrupted, rounds):
    for number in rounds:
        out = tmp_path / f"{number}"
        child = Child(convert_numbers, out, shuffle, 1, 0.004)
        time.sleep(rounds.rng.uniform(0.0, 0.7))
        child.kill()
        finish(out, shuffle, uninterrupted[0])


@pytest.mark.torture(rounds=0.5)
def test_converter_with_workers_killed_at_random_moments(tmp_path, uninterrupted, shuffle, rounds):
    children = []
    for number in rounds:
        out = tmp_path / f"{number}"
        children.append(Child(convert_numbers, out, shuffle, 2, 0.02))
        # From about when the pool's processes work, to when the work is done.
        time.sleep(rounds.rng.uniform(1.0, 5.0))
        children[-1].kill()
        finish(out, shuffle, uninterrupted[0])
    assert [child.left(10) for child in children] == [[]] * len(children)


# Trainings ---------------------------------------------------------------------------------------

EPOCHS, COUNT = 2, 90


def make_loader(root: Path, num_workers: int) -> sg.GraphLoader:
    return sg.GraphLoader(sg.ShardedDataset(root), 4, shuffle=True, seed=3, num_workers=num_workers)


def train(root: Path, state: Path, num_workers: int, steps: int, say: Any) -> None:
    """Goes on from its state file, which it replaces after each step, with all that it has seen."""
    loader = make_loader(root, num_workers)
    seen: list[list[int]] = []
    with sg.DevicePrefetcher(loader, "cpu", depth=3) as prefetcher:
        if state.exists():
            saved = json.loads(state.read_text())
            prefetcher.load_state_dict(saved["loader"])
            seen = saved["seen"]
        while len(seen) < steps:
            for batch in prefetcher:
                seen.append(batch.number.tolist())
                assert are_right(batch, seen[-1])
                saved = {"loader": prefetcher.state_dict(), "seen": seen}
                write_text(state, json.dumps(saved))
                say("step")
                time.sleep(0.003)


@pytest.mark.torture(rounds=1)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_trainer_killed_at_random_moments(tmp_path, num_workers, rounds, record_property):
    root = write(tmp_path / "data", COUNT, shard_size=9_000)
    loader = make_loader(root, 0)
    expected = [batch.number.tolist() for _ in range(EPOCHS) for batch in loader]
    children = []
    for number in rounds:
        state, status = tmp_path / f"state-{number}.json", -signal.SIGKILL
        while status != 0:
            child = Child(train, root, state, num_workers, len(expected))
            children.append(child)
            seen = json.loads(state.read_text())["seen"] if state.exists() else []
            if seen != expected:  # else all is done, and it only has to find that out
                steps = min(len(expected) - len(seen), rounds.rng.choice([0, 1, 2, 5, 10]))
                for _ in range(steps):
                    assert child.line() == "step"
                time.sleep(rounds.rng.uniform(0.0, 0.02))
                os.kill(child.pid, signal.SIGKILL)
            status, said = child.end()
            assert status in (0, -signal.SIGKILL), said
        assert json.loads(state.read_text())["seen"] == expected
    assert [child.left(10) for child in children] == [[]] * len(children)
    record_property("kills", len(children) - len(rounds))
