import numpy as np
import pytest

from shardgraph.errors import FormatError
from shardgraph.format.splits import MAX_RANGES, is_split, pack_split, renumbered, unpack_split


@pytest.mark.parametrize(
    ("ids", "packed"),
    [
        ([], []),
        ([3], [[3, 4]]),
        ([0, 1, 2, 7, 8], [[0, 3], [7, 9]]),
        ([8, 2, 1, 2, 0, 7], [[0, 3], [7, 9]]),
        (range(10), [[0, 10]]),
    ],
)
def test_few_runs_are_ranges(ids, packed):
    assert pack_split(np.array(ids, np.int64), 10) == packed
    assert np.array_equal(unpack_split(packed, 10), sorted(set(ids)))


@pytest.mark.parametrize("num_graphs", [4 * MAX_RANGES, 4 * MAX_RANGES + 3, 5 * MAX_RANGES])
def test_many_runs_are_bits(num_graphs):
    ids = np.arange(0, num_graphs, 2)
    packed = pack_split(ids, num_graphs)
    assert list(packed) == ["bits"]
    assert len(packed["bits"]) < num_graphs / 5
    found = unpack_split(packed, num_graphs)
    assert found.dtype == np.int64
    assert np.array_equal(found, ids)


def test_the_bits_are_those_of_the_specification():
    ids = np.arange(0, 4 * MAX_RANGES, 2)
    text = pack_split(ids, 4 * MAX_RANGES)["bits"]
    assert text.startswith("VVVV")  # 0x55 0x55 0x55: graphs 0, 2, 4 and 6 of each eight


@pytest.mark.parametrize("ids", [[-1], [10], [3, 12]])
def test_graphs_that_are_not_there_cannot_be_packed(ids):
    with pytest.raises(IndexError, match="but there are 10"):
        pack_split(np.array(ids), 10)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "all",
        [[0, 11]],
        [[-1, 2]],
        [[3, 2]],
        [[0]],
        [0, 3],
        [[0.0, 3]],
        [[True, 3]],
        [[0, 10], [0, 1]],  # more graphs than there are
        {},
        {"bits": ""},
        {"bits": 3},
        {"bits": "!!!!"},
        {"bits": "AAA="},  # 2 bytes, but with garbage
        {"bits": "AAAA"},
        {"bits": "AAQ="},
    ],
)
def test_what_is_no_split_is_refused(value):
    num_graphs = 10 if value != {"bits": "AAA="} else 20
    assert not is_split(value, num_graphs)
    with pytest.raises(FormatError, match=f"a bit for each of {num_graphs} graphs"):
        unpack_split(value, num_graphs)


def test_spare_bits_are_zero():
    assert is_split({"bits": "/wM="}, 10)  # ten ones
    assert np.array_equal(unpack_split({"bits": "/wM="}, 10), np.arange(10))
    assert not is_split({"bits": "/wc="}, 10)  # eleven
    assert is_split({"bits": "//8="}, 16)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_what_is_left_of_a_split_is_renumbered(step):
    """Both forms alike: few ranges, and bits from 1,000 ranges on."""
    counts, kept = [900, 0, 2500, 1, 600], [True, False, False, True, True]
    ids = np.arange(5, 4001, step)
    is_kept = np.repeat(kept, counts)
    new = np.cumsum(is_kept) - 1
    left = new[ids[is_kept[ids]]]
    value, size, size_left = renumbered(pack_split(ids, 4001), counts, kept)
    assert (size, size_left) == (len(ids), len(left))
    assert np.array_equal(unpack_split(value, 1501), left)


def test_ranges_that_meet_where_others_are_lost_become_one():
    counts, kept = [4, 1 << 50, 4], [True, False, True]
    split = [[2, 3], [1, 6], [6, 6], [(1 << 50) + 3, (1 << 50) + 6]]
    assert renumbered(split, counts, kept) == ([[1, 6]], 8, 5)
    assert renumbered([], counts, kept) == ([], 0, 0)
