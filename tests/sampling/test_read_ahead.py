"""What is announced to the reader before the batches need it."""

import numpy as np
import pytest

from shardgraph.sampling import BatchPlan

NUM = 3000
NODES = np.random.default_rng(0).integers(1, 30, NUM)

BATCHING = {
    "count": {"batch_size": 7},
    "count-drop-last": {"batch_size": 7, "drop_last": True},
    "larger-than-window": {"batch_size": 700},
    "budget": {"max_nodes": 200, "num_nodes": NODES},
}
# Three graphs a block, so about eight windows.
WINDOW = {"shuffle": "window", "nbytes": NUM * (1 << 19) // 3}


def announced(ranges):
    return {graph for start, stop in ranges.tolist() for graph in range(start, stop)}


@pytest.mark.parametrize("order", [{}, {"shuffle": "full"}, WINDOW], ids=["none", "full", "window"])
@pytest.mark.parametrize("batching", BATCHING)
@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("cursor", [0, 2, 4])
def test_everything_is_announced_before_it_is_needed(order, batching, world_size, cursor):
    for rank in range(world_size):
        plan = BatchPlan(NUM, rank=rank, world_size=world_size, **BATCHING[batching], **order)
        batches = list(plan.batches(1, cursor))
        # A packed batch may hold a few graphs that earlier windows left over.
        known = set() if batching != "budget" else announced_before(plan, cursor)
        number = 0
        for item in plan.read_ahead(1, cursor):
            assert item.ranges.dtype == np.int64
            assert (item.ranges[:, 0] < item.ranges[:, 1]).all()
            assert (item.ranges[1:, 0] > item.ranges[:-1, 1]).all()
            known |= announced(item.ranges)
            for batch in batches[number : number + item.batches]:
                assert set(batch.tolist()) <= known
            number += item.batches
            # The next batch needs more (a short last step waits for the last window).
            if batching.startswith("count") and plan.order == "window" and number < len(batches):
                assert not set(batches[number].tolist()) <= known
        assert number == len(batches) == plan.num_batches(1, cursor)


def test_a_window_that_is_packed_with_the_last_is_announced_too():
    sizes = {"max_nodes": 40, "num_nodes": NODES[:300]}
    plan = BatchPlan(300, **sizes, shuffle="window", nbytes=300 * (1 << 19) // 2)
    assert plan.window_size == 256
    windows = list(plan.read_ahead())
    assert [item.batches for item in windows] == [0, len(plan)]
    assert announced(windows[0].ranges) | announced(windows[1].ranges) == set(range(300))
    rest = list(plan.read_ahead(0, 10))
    assert [item.batches for item in rest] == [0, len(plan) - 10]
    assert [item.ranges.tolist() for item in rest] == [item.ranges.tolist() for item in windows]
    assert list(plan.read_ahead(0, len(plan))) == []


def announced_before(plan, cursor):
    return (
        {graph for item in plan.read_ahead(1) for graph in announced(item.ranges)}
        if cursor
        else set()
    )


def test_windows_are_read_once_and_in_order():
    plan = BatchPlan(NUM, batch_size=7, **WINDOW)
    items = list(plan.read_ahead())
    assert len(items) == 8
    graphs = [graph for item in items for graph in announced(item.ranges)]
    assert sorted(graphs) == list(range(NUM))
    assert [item.batches for item in items] == [54, 55, 55, 55, 55, 55, 55, 45]
    # A window of 128 blocks of 3 graphs is read in far fewer runs than graphs.
    assert all(len(item.ranges) <= 128 for item in items)


def test_sequential_batches_are_one_range_each():
    plan = BatchPlan(10, batch_size=4)
    items = [(item.batches, item.ranges.tolist()) for item in plan.read_ahead()]
    assert items == [(1, [[0, 4]]), (1, [[4, 8]]), (1, [[8, 10]])]


def test_resuming_in_a_window_announces_it_again():
    plan = BatchPlan(NUM, batch_size=7, **WINDOW)
    whole = list(plan.read_ahead())
    rest = list(plan.read_ahead(0, 100))
    assert len(rest) == 7
    assert rest[0].ranges.tolist() == whole[1].ranges.tolist()
    assert rest[0].batches == whole[0].batches + whole[1].batches - 100
    assert list(plan.read_ahead(0, plan.num_batches())) == []
