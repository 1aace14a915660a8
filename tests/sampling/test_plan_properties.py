"""What every plan promises, for any combination of its options."""

import json
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_strategies import EDGES, MAX_GRAPHS, NODES, WEIGHTS, lists, plans

from shardgraph.sampling import BatchPlan

RANKS = (1, 2, 3, 8)
TYPES = {
    "a": NODES // 2,
    "b": NODES - NODES // 2,
    "a__to__b": EDGES // 3,
    "b__to__b": EDGES - EDGES // 3,
}


def every_rank(num_graphs, world_size, options):
    return [
        BatchPlan(num_graphs, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def loads(options):
    """``(limit, size of each graph)`` of each budget."""
    total = {"max_nodes": NODES, "max_edges": EDGES, "max_graphs": np.ones(MAX_GRAPHS, int)}
    for name, sizes in total.items():
        limit = options.get(name)
        if isinstance(limit, dict):
            for key, value in limit.items():
                yield value, TYPES[key if isinstance(key, str) else "__".join(key)]
        elif limit is not None:
            yield limit, sizes


def once(num_graphs, options):
    """How often each graph comes before the end of an epoch is cut or filled up; None: drawn."""
    if "weights" in options:
        return None
    over = np.zeros(num_graphs, bool)
    if options.get("oversized") == "skip":
        for limit, sizes in loads(options):
            over |= sizes[:num_graphs] > limit
    return set(np.flatnonzero(~over).tolist())


@given(plan=plans(), world_size=st.sampled_from(RANKS), epoch=st.integers(0, 2))
def test_partition_and_coverage(plan, world_size, epoch):
    """The ranks' batches are one sequence dealt out: disjoint, complete, equally many for each."""
    num_graphs, options = plan
    single = BatchPlan(num_graphs, **{**options, "drop_last": False, "pad_ranks": False})
    counts = Counter(graph for batch in single.batches(epoch) for graph in batch.tolist())
    if (expected := once(num_graphs, options)) is not None:
        assert counts == Counter(expected)
    ranks = every_rank(num_graphs, world_size, options)
    batches = [lists(each.batches(epoch)) for each in ranks]
    assert {len(each) for each in batches} == {each.num_batches(epoch) for each in ranks}
    assert all(batch for each in batches for batch in each)
    found = Counter(graph for each in batches for batch in each for graph in batch)
    if options.get("pad_ranks"):
        assert found >= counts
        assert (found - counts).total() < world_size
    else:
        assert found <= counts
        if not options.get("drop_last"):
            assert (counts - found).total() < world_size


@given(plan=plans(), world_size=st.sampled_from(RANKS))
def test_budgets_and_alone(plan, world_size):
    num_graphs, options = plan
    (rank,) = every_rank(num_graphs, world_size, options)[-1:]
    for batch in rank.batches(1):
        assert len(batch) <= options.get("batch_size", MAX_GRAPHS)
        for limit, sizes in loads(options):
            alone = len(batch) == 1 and options["oversized"] == "alone"
            assert sizes[batch].sum() <= limit or alone


@given(plan=plans(), world_size=st.sampled_from(RANKS))
def test_drop_last_leaves_out_what_is_not_full(plan, world_size):
    num_graphs, options = plan
    options = {**options, "drop_last": False, "pad_ranks": False}
    everything = lists(BatchPlan(num_graphs, **options).batches())
    options["drop_last"] = True
    kept = lists(BatchPlan(num_graphs, **options).batches())
    dropped = Counter(graph for batch in everything for graph in batch)
    dropped.subtract(graph for batch in kept for graph in batch)
    assert min(dropped.values(), default=0) >= 0
    left = list(dropped.elements())
    assert len(left) < options.get("batch_size", MAX_GRAPHS + 1)
    assert not left or all(sizes[left].sum() < limit for limit, sizes in loads(options))
    for rank in every_rank(num_graphs, world_size, options):
        assert len(list(rank.batches())) == len(kept) // world_size


@given(plan=plans())
def test_statistics_are_those_of_the_batches(plan):
    num_graphs, options = plan
    plan = BatchPlan(num_graphs, **options)
    statistics = plan.statistics(1)
    batches = list(plan.batches(1))
    assert statistics.num_batches == len(batches) == plan.num_batches(1)
    assert statistics.num_graphs == sum(map(len, batches))
    over = np.zeros(num_graphs, bool)
    for limit, sizes in loads(options):
        over |= sizes[:num_graphs] > limit
    assert statistics.oversized == over.sum()
    assert statistics.skipped == (over.sum() if options.get("oversized") == "skip" else 0)
    for sizes, spread in ((NODES, statistics.nodes), (EDGES, statistics.edges)):
        if spread is not None and batches:
            totals = [sizes[batch].sum() for batch in batches]
            assert (spread.min, spread.max) == (min(totals), max(totals))
            np.testing.assert_allclose(spread.mean, np.mean(totals))


@given(plan=plans(), epoch=st.integers(0, 2))
def test_determinism(plan, epoch):
    """A plan made again gives the same; asking for other epochs in between changes nothing."""
    num_graphs, options = plan
    first, second = BatchPlan(num_graphs, **options), BatchPlan(num_graphs, **options)
    expected = lists(first.batches(epoch))
    for other in (epoch + 1, 0):
        second.num_batches(other)
    assert lists(second.batches(epoch)) == expected
    running = second.batches(epoch)
    found = []
    for batch in running:
        found.append(batch.tolist())
        lists(second.batches(epoch + 1))
    assert found == expected


@settings(max_examples=60)
@given(plan=plans(), world_size=st.sampled_from(RANKS), data=st.data())
def test_resume_law(plan, world_size, data):
    """Saved after every step and restored, each rank goes on exactly as it would have."""
    num_graphs, options = plan
    rank = data.draw(st.integers(0, world_size - 1))
    options = {**options, "rank": rank, "world_size": world_size}
    plan = BatchPlan(num_graphs, **options)
    everything = lists(plan.batches(1))
    restored = BatchPlan(num_graphs, **options)
    for step in range(len(everything) + 1):
        state = json.loads(json.dumps(plan.state_dict(1, step)))
        epoch, cursor = restored.resume(state)
        assert lists(restored.batches(epoch, cursor)) == everything[step:]
        assert restored.num_batches(epoch, cursor) == len(everything) - step


@settings(max_examples=60)
@given(plan=plans(), order=st.permutations(RANKS), data=st.data())
def test_rank_changes(plan, order, data):
    """Going on with other numbers of ranks, time and again, reads what one rank would read."""
    num_graphs, options = plan
    single = lists(BatchPlan(num_graphs, **options).batches(1))
    cursor, found = 0, []
    for world_size in order:
        ranks = every_rank(num_graphs, world_size, options)
        whole_steps = (len(single) - cursor) // world_size
        steps = data.draw(st.integers(0, whole_steps))
        batches = [lists(each.batches(1, cursor)) for each in ranks]
        for step in range(steps):
            found += sorted(each[step] for each in batches)
        expected = single[cursor : cursor + steps * world_size]
        got = found[len(found) - steps * world_size :]
        for start in range(0, len(expected), world_size):
            step = slice(start, start + world_size)
            assert got[step] == sorted(expected[step])
        states = [each.state_dict(1, steps, cursor) for each in ranks]
        assert all(state == states[0] for state in states)
        _, cursor = ranks[0].resume(states[0])
        assert cursor == len(found)
    rest = lists(BatchPlan(num_graphs, **options).batches(1, cursor))
    # One rank again: the rest is exact, but for graphs that padding of its last step repeats.
    assert rest == single[cursor:]


@given(plan=plans().filter(lambda plan: "weights" in plan[1]), epoch=st.integers(0, 1))
def test_draws(plan, epoch):
    num_graphs, options = plan
    options = {**options, "drop_last": False, "pad_ranks": False}
    graphs = [g for batch in BatchPlan(num_graphs, **options).batches(epoch) for g in batch]
    assert len(graphs) == options.get("num_samples", num_graphs)
    assert all(WEIGHTS[graph] > 0 for graph in graphs)
    if not options["replacement"]:
        assert len(set(graphs)) == len(graphs)


@given(plan=plans(), world_size=st.sampled_from(RANKS), epoch=st.integers(0, 1))
def test_read_ahead_announces_what_is_read(plan, world_size, epoch):
    num_graphs, options = plan
    rank = every_rank(num_graphs, world_size, {**options, "pad_ranks": False})[0]
    batches, known, number = lists(rank.batches(epoch)), set(), 0
    for item in rank.read_ahead(epoch):
        known |= {graph for start, stop in item.ranges.tolist() for graph in range(start, stop)}
        for batch in batches[number : number + item.batches]:
            assert set(batch) <= known
        number += item.batches
    assert number == len(batches)
