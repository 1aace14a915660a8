"""Random permutations: what they are, and that they never change."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardgraph.sampling.permute import FULL, WINDOW, key, permutation


@given(num=st.integers(0, 300), seed=st.integers(0, 2**64 - 1))
def test_is_a_permutation(num, seed):
    items = permutation(num, key(seed, 0, FULL))
    assert items.dtype == np.int64
    assert sorted(items.tolist()) == list(range(num))


@pytest.mark.parametrize("num", [1, 2, 3, 4, 5, 16, 17, 1000, 16384, 16385, 40000])
def test_follows_its_definition(num):
    words = key(3, 1, FULL)
    bits = max(num - 1, 1).bit_length()
    raw = np.random.PCG64(words).random_raw(num).tolist()
    ranked = sorted(((number >> bits), item) for item, number in enumerate(raw))
    assert permutation(num, words).tolist() == [item for _, item in ranked]


# These lists hold for good: a saved run resumes in the order they pin.
PINNED = [
    ((0, 0, FULL, 0), [6, 11, 3, 8, 1, 4, 5, 9, 2, 7, 10, 0]),
    ((0, 1, FULL, 0), [11, 1, 9, 0, 3, 4, 8, 7, 6, 2, 10, 5]),
    ((1, 0, FULL, 0), [4, 11, 6, 1, 3, 10, 9, 8, 2, 0, 5, 7]),
    ((2**64 - 1, 2**32 - 1, WINDOW, 7), [7, 4, 2, 11, 8, 10, 5, 9, 0, 3, 1, 6]),
]


@pytest.mark.parametrize(("arguments", "expected"), PINNED)
def test_pinned(arguments, expected):
    assert permutation(12, key(*arguments)).tolist() == expected


def test_keys_differ():
    keys = {tuple(key(*words)) for words in np.ndindex(3, 3, 3, 3)}
    assert len(keys) == 81
    assert key(2**32 + 5, 7, 1, 2) == [5, 1, 7, 1, 2]


def test_every_place_gets_every_item():
    counts = np.zeros((6, 6), int)
    for seed in range(3000):
        counts[np.arange(6), permutation(6, key(seed, 0, FULL))] += 1
    # 500 each; the standard deviation is 20.
    assert counts.min() > 400
    assert counts.max() < 600
