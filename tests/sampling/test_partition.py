"""Dealing one sequence of batches to ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardgraph.sampling.partition import batches_below, share_out, slot, steps


def arrays(*batches):
    return [np.array(batch, np.int64) for batch in batches]


def lists(batches):
    return [batch.tolist() for batch in batches]


def test_steps():
    assert [lists(step) for step in steps(arrays([0], [1], [2], [3], [4]), 2)] == [
        [[0], [1]],
        [[2], [3]],
        [[4]],
    ]
    assert list(steps([], 3)) == []


@given(cursor=st.integers(0, 50), world_size=st.integers(1, 9), rotate=st.booleans())
def test_slots_of_a_step_are_all_taken_once(cursor, world_size, rotate):
    taken = [slot(cursor, rank, world_size, rotate=rotate) for rank in range(world_size)]
    assert sorted(taken) == list(range(world_size))


def test_ranks_take_turns():
    taken = [slot(cursor, 1, 3, rotate=True) for cursor in range(0, 12, 3)]
    assert taken == [1, 2, 0, 1]
    assert [slot(cursor, 1, 3, rotate=False) for cursor in range(0, 12, 3)] == [1, 1, 1, 1]


@given(
    start=st.integers(0, 20),
    length=st.integers(-5, 40),
    world_size=st.integers(1, 7),
    rotate=st.booleans(),
)
def test_batches_below_counts(start, length, world_size, rotate):
    stop = start + length
    for rank in range(world_size):
        own = [
            cursor + slot(cursor, rank, world_size, rotate=rotate)
            for cursor in range(start, start + 50, world_size)
        ]
        expected = sum(batch < stop for batch in own)
        assert batches_below(stop, start, rank, world_size, rotate=rotate) == expected


@pytest.mark.parametrize(
    ("step", "world_size", "expected"),
    [
        pytest.param([[1, 2, 3, 4]], 2, [[1, 2], [3, 4]], id="one-in-two"),
        pytest.param([[1, 2, 3]], 2, [[1, 2], [3]], id="odd"),
        pytest.param([[1, 2], [3, 4]], 3, [[1], [2], [3, 4]], id="first-of-the-largest"),
        pytest.param([[1], [2, 3, 4, 5]], 4, [[1], [2], [3], [4, 5]], id="halves-of-halves"),
        pytest.param([[1, 2]], 3, [], id="too-few"),
        pytest.param([], 3, [], id="nothing"),
    ],
)
def test_share_out(step, world_size, expected):
    assert lists(share_out(arrays(*step), world_size)) == expected


def test_share_out_pads():
    padding = np.array([7, 8, 9, 6])
    assert lists(share_out(arrays([1], [2]), 4, padding)) == [[1], [2], [7], [8]]
    assert lists(share_out(arrays([1, 2, 3, 4, 5]), 4, padding)) == [[1], [2], [3], [4, 5]]
    assert share_out([], 4, padding) == []


@given(counts=st.lists(st.integers(1, 20), min_size=1, max_size=6), more=st.integers(1, 6))
def test_share_out_splits_and_never_mixes(counts, more):
    world_size = len(counts) + more
    step = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
    parts = share_out(step, world_size)
    if sum(counts) < world_size:
        assert parts == []
        return
    assert len(parts) == world_size
    assert all(len(part) for part in parts)
    assert np.concatenate(parts).tolist() == list(range(sum(counts)))
    batch_of = np.repeat(np.arange(len(counts)), counts)
    assert all(len(set(batch_of[part])) == 1 for part in parts)
