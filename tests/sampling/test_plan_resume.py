"""Saving a run's place and going on from it."""

import json
import pickle

import numpy as np
import pytest

from shardgraph.sampling import BatchPlan

NUM = 150
NODES = np.random.default_rng(0).integers(1, 30, NUM).astype(np.int16)

KINDS = {
    "sequential": {"batch_size": 8},
    "full": {"batch_size": 8, "shuffle": "full", "seed": 4},
    "window": {"batch_size": 8, "shuffle": "window", "nbytes": NUM << 18, "seed": 4},
    "drop-last": {"batch_size": 8, "shuffle": "full", "drop_last": True},
    "pad": {"batch_size": 8, "shuffle": "full", "pad_ranks": True},
    "budget-in-order": {"max_nodes": 90, "num_nodes": NODES},
    "budget-full": {"max_nodes": 90, "num_nodes": NODES, "shuffle": "full"},
    "budget-window": {
        "max_nodes": 90,
        "max_graphs": 7,
        "num_nodes": NODES,
        "shuffle": "window",
        "nbytes": NUM << 18,
    },
    "budget-skip": {"max_nodes": 25, "num_nodes": NODES, "shuffle": "full", "oversized": "skip"},
    "budget-drop-last": {"max_nodes": 90, "num_nodes": NODES, "shuffle": True, "drop_last": True},
}


def make(kind, **ranks):
    return BatchPlan(NUM, **KINDS[kind], **ranks)


def lists(batches):
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_resume_law(kind, world_size):
    """Saved after any step and restored into a new plan, a run goes on as it would have."""
    for rank in range(world_size):
        plan = make(kind, rank=rank, world_size=world_size)
        everything = lists(plan.batches(2))
        for step in range(len(everything) + 1):
            state = json.loads(json.dumps(plan.state_dict(2, step)))
            restored = make(kind, rank=rank, world_size=world_size)
            epoch, cursor = restored.resume(state)
            assert epoch == 2
            assert lists(restored.batches(epoch, cursor)) == everything[step:]
            assert restored.num_batches(epoch, cursor) == len(everything) - step
            # Saved again later, counted from where it was resumed.
            if step < len(everything):
                assert restored.state_dict(epoch, 1, cursor) == plan.state_dict(2, step + 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), [(2, 1), (2, 4), (3, 2), (1, 3), (8, 3), (3, 8)])
def test_resume_with_other_ranks(kind, before, after):
    """What one number of ranks has not read another reads: none twice, fewer lost than ranks."""
    single = lists(make(kind).batches(1))
    first = [make(kind, rank=rank, world_size=before) for rank in range(before)]
    runs = [lists(plan.batches(1)) for plan in first]
    for step in range(len(runs[0]) + 1):
        states = [plan.state_dict(1, step) for plan in first]
        assert all(state == states[0] for state in states)
        second = [make(kind, rank=rank, world_size=after) for rank in range(after)]
        epoch, cursor = second[0].resume(states[0])
        rest = [lists(plan.batches(epoch, cursor)) for plan in second]
        assert {len(batches) for batches in rest} == {second[0].num_batches(epoch, cursor)}

        read = sorted(graph for run in runs for batch in run[:step] for graph in batch)
        left = sorted(graph for run in rest for batch in run for graph in batch)
        remaining = sorted(graph for batch in single[cursor:] for graph in batch)
        if step < len(runs[0]):
            # Whole steps were read, so the rest is exactly what a single rank would go on with.
            assert cursor == step * before
            assert sorted(read + remaining) == sorted(g for batch in single for g in batch)
        else:
            assert cursor == len(single) or len(single) - cursor < before
        if kind == "pad":
            assert set(left) >= set(remaining)
            assert len(left) - len(remaining) < after
        else:
            assert len(set(left)) == len(left)
            assert set(left) <= set(remaining)
            if KINDS[kind].get("drop_last"):
                assert len(rest[0]) == (len(single) - cursor) // after
            else:
                assert len(remaining) - len(left) < after
        # Whole steps after the change deal out the global sequence from the cursor on.
        for number in range((len(single) - cursor) // after):
            begin = cursor + number * after
            step_batches = sorted(run[number] for run in rest)
            assert step_batches == sorted(single[begin : begin + after])


def test_state_is_small_json():
    state = make("budget-window", rank=1, world_size=2).state_dict(3, 2)
    assert state == {
        "version": 2,
        "epoch": 3,
        "cursor": 4,
        "plan": {
            "num_graphs": 150,
            "order": "window",
            "block_size": 2,
            "seed": 0,
            "drop_last": False,
            "batch_size": None,
            "max_nodes": 90,
            "max_graphs": 7,
            "oversized": "error",
            "num_nodes_crc32": 2085408171,
        },
    }
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize(
    ("other", "match"),
    [
        ({"seed": 1}, "another plan: seed was 0 and is 1. Resume with the dataset and options"),
        ({"shuffle": "window"}, "order was 'full' and is 'window'; block_size was 0 and is 256"),
        ({"shuffle": False}, "order was 'full' and is 'sequential'; seed was 0 and is None"),
        ({"num_nodes": NODES[::-1]}, "num_nodes_crc32 was"),
        ({"max_nodes": 91}, "max_nodes was 90 and is 91"),
        ({"max_graphs": 5}, "max_graphs was None and is 5"),
        ({"oversized": "skip"}, "oversized was 'error' and is 'skip'"),
        ({"drop_last": True}, "drop_last was False and is True"),
    ],
)
def test_refuses_another_plan(other, match):
    options = KINDS["budget-full"]
    state = BatchPlan(NUM, **options).state_dict(0, 1)
    with pytest.raises(ValueError, match=match):
        BatchPlan(NUM, **{**options, **other}).resume(state)


def test_refuses_another_dataset():
    state = BatchPlan(100, batch_size=5).state_dict(0, 1)
    with pytest.raises(ValueError, match="num_graphs was 100 and is 101"):
        BatchPlan(101, batch_size=5).resume(state)
    with pytest.raises(
        ValueError, match="batch_size was 5 and is None; max_graphs was None and is"
    ):
        BatchPlan(100, max_graphs=5).resume(state)


def test_ignores_what_does_not_decide_the_sequence():
    state = BatchPlan(100, batch_size=5, seed=1).state_dict(0, 1)
    # Without shuffle the seed does nothing, nor do sizes without a budget, nor the bytes.
    other = BatchPlan(100, batch_size=5, seed=2, num_nodes=[1] * 100, nbytes=10, pad_ranks=True)
    assert other.resume(state) == (0, 1)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"version": 1}, ValueError, "version 1, this release reads 2"),
        ({"epoch": -1}, ValueError, "state's epoch must be a whole number from 0 on, got -1"),
        ({"epoch": True}, ValueError, "state's epoch must be a whole number from 0 on, got True"),
        ({"cursor": 1.0}, ValueError, r"state's cursor must be a whole number .*, got 1\.0"),
        ({"cursor": 21}, ValueError, "cursor must be from 0 to 20 in epoch 0, got 21"),
        ({"plan": None}, TypeError, "state's plan must be a dict, got NoneType"),
    ],
)
def test_refuses_damaged_states(change, error, match):
    plan = BatchPlan(100, batch_size=5)
    state = {**plan.state_dict(0, 1), **change}
    with pytest.raises(error, match=match):
        plan.resume(state)


def test_refuses_what_is_no_state():
    plan = BatchPlan(100, batch_size=5)
    with pytest.raises(TypeError, match=r"state is a dict from state_dict\(\), got list"):
        plan.resume([])
    with pytest.raises(ValueError, match="not a state of a BatchPlan: it lacks version, cursor"):
        plan.resume({"epoch": 0, "plan": {}})


def test_refuses_more_batches_than_there_are():
    plan = BatchPlan(100, batch_size=5, world_size=2)
    with pytest.raises(ValueError, match="batch must be from 0 to 10 in epoch 0, got 11"):
        plan.state_dict(0, 11)


@pytest.mark.parametrize("kind", KINDS)
def test_plan_survives_pickling(kind):
    plan = make(kind, rank=1, world_size=2)
    expected = lists(plan.batches(1))
    copy = pickle.loads(pickle.dumps(plan))
    assert lists(copy.batches(1)) == expected
    assert copy.state_dict(1, 2) == plan.state_dict(1, 2)
