"""The rule that picks an order, and the orders themselves."""

import pickle
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardgraph.sampling.order import (
    BLOCK_MAX_GRAPHS,
    BLOCK_NBYTES,
    FULL_SHUFFLE_MAX_NBYTES,
    OrderRule,
    Orders,
    choose_order,
)
from shardgraph.sampling.permute import BLOCKS, WINDOW, key, permutation
from shardgraph.sampling.window import WINDOW_BLOCKS, WindowOrder, merge_ranges

GIB = 1 << 30


@pytest.mark.parametrize(
    ("num_graphs", "nbytes", "shuffle", "kind", "block_size"),
    [
        pytest.param(10**6, 50 * GIB, False, "sequential", 0, id="none"),
        pytest.param(10**6, 0, True, "full", 0, id="unknown-bytes"),
        pytest.param(10**6, FULL_SHUFFLE_MAX_NBYTES - 1, True, "full", 0, id="small"),
        pytest.param(10**6, FULL_SHUFFLE_MAX_NBYTES, True, "window", 488, id="large"),
        pytest.param(10**6, 50 * GIB, "full", "full", 0, id="asked-full"),
        pytest.param(10**6, 0, "window", "window", 256, id="asked-window-unknown-bytes"),
        pytest.param(10**6, 2_300_000_000, "window", "window", 227, id="molecules"),
        pytest.param(10**9, 10**10, "window", "window", BLOCK_MAX_GRAPHS, id="tiny-graphs"),
        pytest.param(10**5, 2 * 10**5 * BLOCK_NBYTES, True, "full", 0, id="graphs-over-a-block"),
        pytest.param(0, 0, "window", "window", 256, id="empty"),
    ],
)
def test_rule(num_graphs, nbytes, shuffle, kind, block_size):
    rule = choose_order(num_graphs, nbytes, shuffle)
    assert rule == OrderRule(kind=kind, num_graphs=num_graphs, block_size=block_size)


@pytest.mark.parametrize("shuffle", ["windows", "", None, 1, 0])
def test_rule_refuses(shuffle):
    with pytest.raises(ValueError, match="shuffle must be False, True, 'full' or 'window', got"):
        choose_order(10, 0, shuffle)


def window_oracle(num_graphs, block_size, seed, epoch):
    """The definition of window order, graph by graph."""
    num_blocks = -(-num_graphs // block_size)
    blocks = permutation(num_blocks, key(seed, epoch, BLOCKS)).tolist()
    windows = []
    for start in range(0, num_blocks, WINDOW_BLOCKS):
        graphs = [
            block * block_size + row
            for block in blocks[start : start + WINDOW_BLOCKS]
            for row in range(block_size)
            if block * block_size + row < num_graphs
        ]
        mixed = permutation(len(graphs), key(seed, epoch, WINDOW, start // WINDOW_BLOCKS))
        windows.append([graphs[i] for i in mixed])
    return windows


@given(
    num_graphs=st.integers(0, 1500),
    block_size=st.integers(1, 9),
    seed=st.integers(0, 5),
    data=st.data(),
)
def test_window_order_follows_its_definition(num_graphs, block_size, seed, data):
    windows = window_oracle(num_graphs, block_size, seed, 2)
    items = [graph for window in windows for graph in window]
    order = WindowOrder(num_graphs, block_size, seed, 2)
    assert sorted(items) == list(range(num_graphs))
    assert order.take(0, num_graphs).tolist() == items
    start = data.draw(st.integers(0, num_graphs))
    stop = data.draw(st.integers(start, num_graphs))
    assert order.take(start, stop).tolist() == items[start:stop]

    assert order.num_windows == len(windows)
    stops = np.cumsum([0, *map(len, windows)]).tolist()
    assert list(order.spans()) == list(pairwise(stops))
    for number, window in enumerate(windows):
        ranges = order.ranges(number)
        assert [i for a, b in ranges.tolist() for i in range(a, b)] == sorted(window)
        assert (ranges[1:, 0] > ranges[:-1, 1]).all()
        assert order.window_at(stops[number]) == number
        assert order.window_at(stops[number + 1] - 1) == number


def test_windows_draw_from_all_over_the_dataset():
    order = WindowOrder(256 * 4096, 256, 0, 0)
    for window in range(order.num_windows):
        blocks = np.concatenate([np.arange(a, b, 256) for a, b in order.ranges(window)]) // 256
        assert len(blocks) == WINDOW_BLOCKS
        # 128 of 4096 blocks at random: every eighth of the dataset is hit (16 expected, sd 3.7).
        assert np.bincount(blocks // 512, minlength=8).min() >= 3


# These lists hold for good: a saved run resumes in the order they pin.
@pytest.mark.parametrize(
    ("kind", "epoch", "expected"),
    [
        ("sequential", 0, list(range(12))),
        ("full", 0, [6, 11, 3, 8, 1, 4, 5, 9, 2, 7, 10, 0]),
        ("full", 1, [11, 1, 9, 0, 3, 4, 8, 7, 6, 2, 10, 5]),
        ("window", 0, [9, 2, 7, 8, 6, 1, 11, 4, 5, 0, 10, 3]),
        ("window", 1, [10, 0, 9, 8, 11, 5, 6, 4, 3, 1, 2, 7]),
    ],
)
def test_pinned(kind, epoch, expected):
    rule = OrderRule(kind=kind, num_graphs=12, block_size=5 if kind == "window" else 0)
    assert Orders(rule, 0).get(epoch).take(0, 12).tolist() == expected


def test_pinned_across_windows():
    order = WindowOrder(1000, 3, 0, 0)
    assert order.take(380, 390).tolist() == [753, 508, 676, 328, 633, 988, 838, 473, 607, 689]
    assert order.ranges(2)[:4].tolist() == [[15, 18], [39, 42], [51, 54], [57, 60]]


def test_full_permutation_is_shared_within_an_epoch_and_stays_at_home():
    orders = Orders(OrderRule(kind="full", num_graphs=100_000), 0)
    order = orders.get(3)
    assert orders.get(3) is order
    pickled = pickle.dumps(orders)
    assert len(pickled) < 1000
    copy = pickle.loads(pickled)
    assert np.array_equal(copy.get(3).take(0, 100_000), order.take(0, 100_000))
    assert not np.array_equal(orders.get(4).take(0, 100), order.take(0, 100))


def test_two_permutations_never_exist_at_once():
    num = 1_000_000
    tracemalloc.start()
    try:
        orders = Orders(OrderRule(kind="full", num_graphs=num), 0)
        for epoch in range(3):
            orders.get(epoch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 8 * num <= peak < 9 * num


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([], []),
        ([4], [[4, 5]]),
        ([0, 1, 2, 5, 5, 6, 9], [[0, 3], [5, 7], [9, 10]]),
    ],
)
def test_merge_ranges(ids, expected):
    ranges = merge_ranges(np.array(ids, np.int64))
    assert ranges.shape == (len(expected), 2)
    assert ranges.dtype == np.int64
    assert ranges.tolist() == expected
