"""Packing graphs into batches that exceed no budget."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardgraph.sampling.budget import (
    COST_GROUP,
    Budget,
    Limit,
    cost_order,
    deal,
    level_end,
    next_fit,
    pack_pool,
    reorder,
)
from shardgraph.sampling.permute import BATCHES, key
from shardgraph.sampling.sizes import Sizes


@st.composite
def pools(draw):
    """Sizes within limits: int64 [num, budgets] and int64 [budgets]."""
    limits = draw(st.lists(st.integers(1, 60), min_size=1, max_size=3))
    num = draw(st.integers(1, 120))
    small = draw(st.booleans())
    sizes = [
        draw(
            st.lists(
                st.integers(0, max(limit // 4, 1) if small else limit), min_size=num, max_size=num
            )
        )
        for limit in limits
    ]
    return np.array(sizes, np.int64).T.reshape(num, len(limits)), np.array(limits, np.int64)


def make_budget(sizes, limits):
    return Budget(
        tuple(
            Limit(name=f"max_{column}", maximum=int(limit), sizes=Sizes((sizes[:, column],)))
            for column, limit in enumerate(limits)
        )
    )


def next_fit_oracle(sizes, limits):
    ptr, load = [0], np.zeros(len(limits), np.int64)
    for graph, size in enumerate(sizes):
        if graph > ptr[-1] and (load + size > limits).any():
            ptr.append(graph)
            load[:] = 0
        load += size
    return [*ptr, len(sizes)]


@given(pool=pools())
def test_next_fit_takes_what_fits(pool):
    sizes, limits = pool
    assert next_fit(sizes, limits).tolist() == next_fit_oracle(sizes, limits)


@pytest.mark.parametrize(
    ("sizes", "limit", "expected"),
    [
        pytest.param([], 10, [0], id="empty"),
        pytest.param([10], 10, [0, 1], id="exactly-full"),
        pytest.param([5, 5, 5], 10, [0, 2, 3], id="exactly-two"),
        pytest.param([3, 99, 3, 3], 10, [0, 1, 2, 4], id="oversized-alone"),
        pytest.param([0, 0, 99, 0], 10, [0, 2, 3, 4], id="zeros-around-oversized"),
        pytest.param([0, 0, 0], 10, [0, 3], id="all-zero"),
    ],
)
def test_next_fit_cases(sizes, limit, expected):
    ptr = next_fit(np.array(sizes, np.int64).reshape(-1, 1), np.array([limit]))
    assert ptr.tolist() == expected
    assert ptr.dtype == np.int64


@given(pool=pools(), data=st.data())
def test_deal_exceeds_nothing_and_leaves_no_batch_empty(pool, data):
    sizes, limits = pool
    num_batches = data.draw(st.integers(1, len(sizes)))
    batch_of = deal(sizes, limits, num_batches)
    loads = np.zeros((num_batches, len(limits)), np.int64)
    np.add.at(loads, batch_of[batch_of >= 0], sizes[batch_of >= 0])
    assert (loads <= limits).all()
    assert sorted(set(batch_of.tolist()) - {-1}) == list(range(num_batches))
    refused = sizes[batch_of < 0]
    if len(refused):
        assert ((loads + refused[0]) > limits).any(axis=1).any()


@given(pool=pools(), ordered=st.booleans(), last=st.booleans())
def test_pool_keeps_every_graph_once_within_budget(pool, ordered, last):
    sizes, limits = pool
    budget = make_budget(sizes, limits)
    given_ids = np.arange(len(sizes), dtype=np.int64)[::-1]
    ids, ptr, left = pack_pool(given_ids, budget, ordered=ordered, last=last)
    assert sorted([*ids.tolist(), *left.tolist()]) == list(range(len(sizes)))
    assert ptr[0] == 0
    assert ptr[-1] == len(ids)
    assert (np.diff(ptr) > 0).all()
    for first, end in pairwise(ptr):
        assert (sizes[ids[first:end]].sum(axis=0) <= limits).all()
        # Within a batch graphs keep the order they came in.
        assert (np.diff(ids[first:end]) < 0).all()
    if ordered:
        assert [*ids.tolist(), *left.tolist()] == given_ids.tolist()
    if last:
        assert (sizes[left].sum(axis=0) <= limits).all()


@given(pool=pools())
def test_the_end_is_levelled(pool):
    sizes, limits = pool
    budget = make_budget(sizes, limits)
    packed, before, left = pack_pool(np.arange(len(sizes)), budget, ordered=False, last=True)
    ids, ptr = level_end(packed, before, left, budget)
    assert sorted(ids.tolist()) == list(range(len(sizes)))
    assert (ptr[0], ptr[-1]) == (0, len(ids))
    assert (np.diff(ptr) > 0).all()
    for first, end in pairwise(ptr):
        assert (sizes[ids[first:end]].sum(axis=0) <= limits).all()
    assert len(ptr) <= len(before) + (len(left) > 0) + 1


def test_what_is_left_is_shared_by_the_last_batches():
    rng = np.random.default_rng(0)
    sizes, limits = rng.integers(9, 28, (16 * 100 + 3, 1)), np.array([288])
    budget = make_budget(sizes, limits)
    packed, before, left = pack_pool(np.arange(len(sizes)), budget, ordered=False, last=True)
    ids, ptr = level_end(packed, before, left, budget)
    assert budget.shares(left, np.array([0, len(left)]))[0] < 0.7
    assert budget.shares(ids, ptr).min() > 0.94
    assert len(ptr) <= len(before) + 1
    kept = before[len(before) - 1 - 32]
    assert ids[:kept].tolist() == packed[:kept].tolist()


@pytest.mark.parametrize(
    ("name", "least"),
    [("molecules", 0.98), ("atomistic", 0.98), ("heavy-tailed", 0.98), ("equal", 1.0)],
)
def test_dealing_fills_batches_of_16(name, least):
    rng = np.random.default_rng(0)
    num = 16384
    if name == "molecules":
        sizes = rng.integers(9, 28, (num, 1))
    elif name == "atomistic":
        nodes = np.clip(rng.lognormal(np.log(60), 0.7, num), 2, 400)
        sizes = np.stack((nodes, nodes * rng.uniform(20, 45, num)), axis=1)
    elif name == "heavy-tailed":
        sizes = np.clip(rng.pareto(1.5, (num, 1)) * 10 + 1, 1, 250)
    else:
        sizes = np.full((num, 1), 18)
    sizes = sizes.astype(np.int64)
    limits = np.ceil(16 * sizes.mean(axis=0)).astype(np.int64)
    budget = make_budget(sizes, limits)
    ids, ptr, _ = pack_pool(np.arange(num), budget, ordered=False, last=False)
    shares = budget.shares(ids, ptr)
    assert shares.mean() >= least
    assert shares.max() <= 1
    in_order = next_fit(sizes, limits)
    assert shares.mean() >= budget.shares(np.arange(num), in_order).mean()
    # Neither the batches nor what is left over may favour small or large graphs.
    means = np.add.reduceat(sizes[ids, 0], ptr[:-1]) / np.diff(ptr)
    means_in_order = np.add.reduceat(sizes[:, 0], in_order[:-1]) / np.diff(in_order)
    assert means.std() <= means_in_order.std()
    assert abs(sizes[ids, 0].mean() / sizes[:, 0].mean() - 1) < 0.01


@given(
    shares=st.lists(st.floats(0, 1), max_size=300), seed=st.integers(0, 3), first=st.integers(0, 3)
)
def test_cost_order_is_a_permutation_sorted_in_groups(shares, seed, first):
    costs = np.array(shares)
    order = cost_order(costs, key(seed, 0, BATCHES), first)
    assert sorted(order.tolist()) == list(range(len(shares)))
    for number, start in enumerate(range(0, len(shares), COST_GROUP), start=first):
        group = costs[order[start : start + COST_GROUP]]
        assert (np.diff(-group if number % 2 else group) >= 0).all()


def test_cost_order_makes_even_steps():
    rng = np.random.default_rng(0)
    costs = rng.uniform(0.5, 1.0, 64 * 64)
    for world_size in (2, 3, 8):
        steps = costs[cost_order(costs, key(0, 0, BATCHES), 0)]
        steps = steps[: len(steps) // world_size * world_size].reshape(-1, world_size)
        # 1.3 on average for 8 ranks without it.
        assert (steps.max(axis=1) / steps.mean(axis=1)).mean() < 1.05


def test_reorder():
    ids, ptr = reorder(
        np.array([10, 11, 12, 13, 14, 15]), np.array([0, 1, 4, 6]), np.array([2, 0, 1])
    )
    assert ids.tolist() == [14, 15, 10, 11, 12, 13]
    assert ptr.tolist() == [0, 2, 3, 6]


def test_budget_sizes_and_oversized():
    nodes = np.array([3, 300, 5, 0], np.uint16)
    budget = Budget(
        (
            Limit(name="max_nodes", maximum=10, sizes=Sizes((nodes,))),
            Limit(name="max_graphs", maximum=2),
        )
    )
    assert budget.sizes(np.array([2, 1])).tolist() == [[5, 1], [300, 1]]
    assert budget.sizes(np.array([2, 1])).dtype == np.int64
    assert budget.oversized(np.arange(4)).tolist() == [False, True, False, False]
    assert budget.find_oversized() == (1, 1)
    assert budget.shares(np.array([0, 2, 3]), np.array([0, 2, 3])).tolist() == [1.0, 0.5]
    assert budget.graphs_per_batch() == pytest.approx(10 * 4 / 308)


def test_find_oversized_scans_all():
    nodes = np.ones(600_000, np.int32)
    nodes[[300_001, 599_999]] = 50
    assert Budget(
        (Limit(name="max_nodes", maximum=49, sizes=Sizes((nodes,))),)
    ).find_oversized() == (
        2,
        300_001,
    )
