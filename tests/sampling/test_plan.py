"""The batch plan: its arguments, its batches on every rank, and its numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardgraph.sampling import BatchPlan, PlanStatistics, Spread

SIZES = np.random.default_rng(0).integers(1, 30, 400).astype(np.int32)
EDGES = (SIZES * np.random.default_rng(1).uniform(1, 4, 400)).astype(np.int64)


def lists(batches):
    return [batch.tolist() for batch in batches]


def every_rank(num_graphs, world_size, epoch=0, **options):
    """The batches of each rank."""
    return [
        lists(BatchPlan(num_graphs, rank=rank, world_size=world_size, **options).batches(epoch))
        for rank in range(world_size)
    ]


@st.composite
def plans(draw):
    """``(num_graphs, options)`` of a plan of any kind."""
    num_graphs = draw(st.integers(0, 400))
    options = {
        "shuffle": draw(st.sampled_from([False, True, "full", "window"])),
        "seed": draw(st.integers(0, 3)),
    }
    if options["shuffle"] == "window":
        # Blocks of 2 to 30 graphs, so that there are windows.
        options["nbytes"] = num_graphs * (1 << 19) // draw(st.integers(2, 30))
    kind = draw(st.sampled_from(["count", "nodes", "nodes+edges", "nodes+graphs", "graphs"]))
    if kind == "count":
        options["batch_size"] = draw(st.integers(1, 50))
    if "nodes" in kind:
        options["max_nodes"] = draw(st.sampled_from([29, 40, 100, 300]))
        options["num_nodes"] = SIZES[:num_graphs]
    if "edges" in kind:
        options["max_edges"] = draw(st.sampled_from([120, 400]))
        options["num_edges"] = EDGES[:num_graphs]
    if "graphs" in kind:
        options["max_graphs"] = draw(st.integers(1, 20))
    return num_graphs, options


@given(plan=plans(), epoch=st.integers(0, 2))
def test_every_graph_comes_once(plan, epoch):
    num_graphs, options = plan
    plan = BatchPlan(num_graphs, **options)
    batches = list(plan.batches(epoch))
    assert all(batch.dtype == np.int64 and len(batch) for batch in batches)
    assert sorted(graph for batch in batches for graph in batch) == list(range(num_graphs))
    assert len(batches) == plan.num_batches(epoch)


@given(plan=plans())
def test_no_batch_exceeds_a_budget(plan):
    num_graphs, options = plan
    for batch in BatchPlan(num_graphs, **options).batches(1):
        assert SIZES[batch].sum() <= options.get("max_nodes", np.inf)
        assert EDGES[batch].sum() <= options.get("max_edges", np.inf)
        assert len(batch) <= options.get("max_graphs", np.inf)
        assert len(batch) <= options.get("batch_size", np.inf)


@given(plan=plans(), world_size=st.integers(1, 9), epoch=st.integers(0, 1))
def test_ranks_take_equal_steps_and_share_all_graphs(plan, world_size, epoch):
    num_graphs, options = plan
    ranks = every_rank(num_graphs, world_size, epoch, **options)
    counts = {
        BatchPlan(num_graphs, rank=rank, world_size=world_size, **options).num_batches(epoch)
        for rank in range(world_size)
    }
    assert {len(batches) for batches in ranks} == counts
    graphs = [graph for batches in ranks for batch in batches for graph in batch]
    assert len(set(graphs)) == len(graphs)
    assert len(graphs) > num_graphs - world_size
    # Step by step the ranks get the batches that a single one gets, up to the last step.
    single = lists(BatchPlan(num_graphs, **options).batches(epoch))
    for step in range(len(single) // world_size):
        expected = single[step * world_size : (step + 1) * world_size]
        got = [batches[step] for batches in ranks]
        if "batch_size" in options:
            assert got == expected
        assert sorted(got) == sorted(expected)


@given(plan=plans(), world_size=st.integers(1, 9))
def test_padding_completes(plan, world_size):
    num_graphs, options = plan
    ranks = every_rank(num_graphs, world_size, pad_ranks=True, **options)
    steps = {len(batches) for batches in ranks}
    assert steps == {
        BatchPlan(num_graphs, world_size=world_size, pad_ranks=True, **options).num_batches()
    }
    graphs = [graph for batches in ranks for batch in batches for graph in batch]
    assert set(graphs) == set(range(num_graphs))
    assert len(graphs) - num_graphs < world_size
    assert all(batch for batches in ranks for batch in batches)


@given(plan=plans(), world_size=st.integers(1, 5))
def test_drop_last_leaves_full_steps(plan, world_size):
    num_graphs, options = plan
    ranks = every_rank(num_graphs, world_size, drop_last=True, **options)
    single = lists(BatchPlan(num_graphs, drop_last=True, **options).batches())
    everything = lists(BatchPlan(num_graphs, **options).batches())
    dropped = [batch for batch in everything if batch not in single]
    assert len(dropped) <= 1
    if "batch_size" in options:
        assert all(len(batch) == options["batch_size"] for batch in single)
    for batch in dropped:
        assert SIZES[batch].sum() < options.get("max_nodes", np.inf)
        assert EDGES[batch].sum() < options.get("max_edges", np.inf)
        assert len(batch) < options.get("max_graphs", options.get("batch_size", np.inf))
    assert {len(batches) for batches in ranks} == {len(single) // world_size}


@pytest.mark.parametrize(
    ("world_size", "options", "expected"),
    [
        pytest.param(
            1, {"batch_size": 4}, [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]], id="one-rank"
        ),
        pytest.param(
            2,
            {"batch_size": 2},
            [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10]]],
            id="short-last-batch",
        ),
        pytest.param(
            2,
            {"batch_size": 4},
            [[[0, 1, 2, 3], [8, 9]], [[4, 5, 6, 7], [10]]],
            id="last-step-shared",
        ),
        pytest.param(
            2,
            {"batch_size": 5},
            [[[0, 1, 2, 3, 4]], [[5, 6, 7, 8, 9]]],
            id="one-graph-dropped",
        ),
        pytest.param(
            2,
            {"batch_size": 5, "pad_ranks": True},
            [[[0, 1, 2, 3, 4], [10]], [[5, 6, 7, 8, 9], [0]]],
            id="one-graph-padded",
        ),
        pytest.param(
            2,
            {"batch_size": 4, "drop_last": True},
            [[[0, 1, 2, 3]], [[4, 5, 6, 7]]],
            id="drop-last",
        ),
        pytest.param(
            3,
            {"batch_size": 100},
            [[[0, 1, 2]], [[3, 4, 5]], [[6, 7, 8, 9, 10]]],
            id="one-batch-for-three",
        ),
        pytest.param(12, {"batch_size": 3}, [[]] * 12, id="fewer-graphs-than-ranks"),
    ],
)
def test_rank_cases(world_size, options, expected):
    assert every_rank(11, world_size, **options) == expected


def test_padding_repeats_a_dataset_smaller_than_the_ranks():
    ranks = every_rank(2, 5, batch_size=3, pad_ranks=True)
    assert ranks == [[[0]], [[1]], [[0]], [[1]], [[0]]]


def test_empty_dataset():
    for options in ({"batch_size": 4}, {"max_nodes": 4, "num_nodes": []}):
        for shuffle in (False, "full", "window"):
            plan = BatchPlan(0, shuffle=shuffle, pad_ranks=True, world_size=2, **options)
            assert len(plan) == 0
            assert list(plan.batches()) == []
            assert list(plan.read_ahead()) == []
            assert plan.statistics().num_batches == 0


# These lists hold for good: a saved run resumes in the order they pin.
@pytest.mark.parametrize(
    ("options", "epoch", "expected"),
    [
        pytest.param(
            {"batch_size": 4, "shuffle": "full"},
            0,
            [[6, 11, 3, 8], [1, 4, 5, 9], [2, 7, 10, 12], [13, 0]],
            id="full",
        ),
        pytest.param(
            {"batch_size": 4, "shuffle": "full"},
            1,
            [[11, 1, 9, 0], [3, 4, 8, 7], [6, 2, 13, 10], [5, 12]],
            id="full-next-epoch",
        ),
        pytest.param(
            {"batch_size": 4, "shuffle": "window", "nbytes": 1 << 21},
            0,
            [[7, 10, 1, 2], [5, 6, 4, 9], [12, 0, 3, 13], [8, 11]],
            id="window",
        ),
        pytest.param(
            {"max_nodes": 60},
            0,
            [[0, 1, 2], [3, 4, 5, 6, 7, 8, 9], [10, 11], [12, 13]],
            id="budget-in-order",
        ),
        pytest.param(
            {"max_nodes": 60, "shuffle": "full"},
            0,
            [[6, 11, 4, 2, 7], [1, 5, 10, 12], [3, 8, 9, 13], [0]],
            id="budget-full",
        ),
        pytest.param(
            {"max_nodes": 60, "max_edges": 130, "max_graphs": 4, "shuffle": "window", "seed": 5},
            2,
            [[1], [8, 4, 10], [9, 3, 13], [5, 12, 0, 6], [11, 2, 7]],
            id="budgets-window",
        ),
    ],
)
def test_pinned(options, epoch, expected):
    plan = BatchPlan(14, num_nodes=SIZES[:14], num_edges=EDGES[:14], **options)
    assert lists(plan.batches(epoch)) == expected


def test_order_depends_on_seed_and_epoch():
    def first(seed, epoch, shuffle):
        plan = BatchPlan(4000, batch_size=4000, shuffle=shuffle, seed=seed)
        return tuple(next(plan.batches(epoch)).tolist())

    for shuffle in ("full", "window"):
        orders = {first(seed, epoch, shuffle) for seed in range(3) for epoch in range(3)}
        assert len(orders) == 9
    # seed + epoch is not the seed
    assert first(0, 1, "full") != first(1, 0, "full")


def test_true_picks_by_bytes():
    assert BatchPlan(1000, batch_size=8, shuffle=True).order == "full"
    assert BatchPlan(10**6, batch_size=8, shuffle=True, nbytes=2 << 30).order == "window"
    assert BatchPlan(1000, batch_size=8).order == "sequential"


def test_batches_are_the_callers_own():
    plan = BatchPlan(100, batch_size=10, shuffle="full")
    first = next(plan.batches())
    kept = first.tolist()
    first[:] = -1
    assert next(plan.batches()).tolist() == kept


def test_sizes_of_any_integer_dtype_give_the_same_plan():
    options = {"max_nodes": 60, "shuffle": "full"}
    expected = lists(BatchPlan(400, num_nodes=SIZES.tolist(), **options).batches())
    for dtype in (np.uint8, np.int16, np.uint64, ">i4"):
        plan = BatchPlan(400, num_nodes=SIZES.astype(dtype), **options)
        assert lists(plan.batches()) == expected


class TestOversized:
    SIZES = (3, 50, 4, 3, 60, 3, 2)

    def test_error(self):
        match = (
            r"Graph 1 has 50 nodes, over max_nodes=10; graphs over a budget: 2\. Raise the budget, "
            r"or give oversized='alone' .* or oversized='skip'"
        )
        with pytest.raises(ValueError, match=match):
            BatchPlan(7, max_nodes=10, num_nodes=self.SIZES)

    def test_error_names_the_budget(self):
        with pytest.raises(ValueError, match="Graph 0 has 30 edges, over max_edges=20"):
            BatchPlan(1, max_nodes=10, max_edges=20, num_nodes=[1], num_edges=[30])

    def test_alone(self):
        plan = BatchPlan(7, max_nodes=10, num_nodes=self.SIZES, oversized="alone")
        assert lists(plan.batches()) == [[0], [1], [2, 3], [4], [5, 6]]
        assert plan.skipped == 0

    def test_skip(self):
        plan = BatchPlan(7, max_nodes=10, num_nodes=self.SIZES, oversized="skip")
        assert lists(plan.batches()) == [[0, 2, 3], [5, 6]]
        assert plan.skipped == 2
        assert plan.statistics().skipped == 2

    @pytest.mark.parametrize("shuffle", ["full", "window"])
    def test_shuffled(self, shuffle):
        for max_nodes in (20, 28):
            options = {"max_nodes": max_nodes, "num_nodes": SIZES, "shuffle": shuffle}
            over = set(np.flatnonzero(max_nodes < SIZES).tolist())
            plan = BatchPlan(400, oversized="alone", **options)
            batches = lists(plan.batches(1))
            assert sorted(graph for batch in batches for graph in batch) == list(range(400))
            singles = {batch[0] for batch in batches if SIZES[batch].sum() > max_nodes}
            assert singles == over
            assert all(len(batch) == 1 for batch in batches if over & set(batch))

            plan = BatchPlan(400, oversized="skip", **options)
            batches = lists(plan.batches(1))
            kept = sorted(graph for batch in batches for graph in batch)
            assert kept == sorted(set(range(400)) - over)
            assert plan.skipped == len(over) > 0
            assert len(batches) == plan.num_batches(1)

    def test_all_skipped(self):
        plan = BatchPlan(3, max_nodes=1, num_nodes=[2, 3, 4], oversized="skip", shuffle=True)
        assert lists(plan.batches()) == []
        assert plan.skipped == 3
        assert len(plan) == 0


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({}, ValueError, "Give batch_size, or any of max_nodes, .*; got neither"),
        ({"batch_size": 2, "max_graphs": 2}, ValueError, "got both"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2.0}, TypeError, r"batch_size must be an integer, got 2\.0"),
        ({"batch_size": True}, TypeError, "batch_size must be an integer, got True"),
        ({"max_nodes": 5}, ValueError, "max_nodes needs the sizes of the graphs: give num_nodes"),
        ({"max_edges": 5}, ValueError, "max_edges needs the sizes of the graphs: give num_edges"),
        ({"max_graphs": 0}, ValueError, "max_graphs must be at least 1, got 0"),
        (
            {"max_nodes": 5, "num_nodes": [1, 2]},
            ValueError,
            r"num_nodes must have one number for each of 3 graphs, got shape \(2,\)",
        ),
        ({"max_nodes": 5, "num_nodes": [1.0, 2, 3]}, TypeError, "num_nodes must be integers"),
        (
            {"max_nodes": 5, "num_nodes": [1, -2, 3]},
            ValueError,
            "num_nodes must not be negative, got -2 for graph 1",
        ),
        ({"batch_size": 2, "seed": -1}, ValueError, "seed must be from 0 to 1844674.*, got -1"),
        ({"batch_size": 2, "seed": 2**64}, ValueError, "seed must be from 0 to"),
        ({"batch_size": 2, "seed": None}, TypeError, "seed must be an integer, got None"),
        ({"batch_size": 2, "world_size": 0}, ValueError, "world_size must be at least 1, got 0"),
        (
            {"batch_size": 2, "rank": 2, "world_size": 2},
            ValueError,
            "rank must be from 0 to 1 for world_size=2, got 2",
        ),
        ({"batch_size": 2, "rank": -1}, ValueError, "rank must be from 0 to 0"),
        ({"batch_size": 2, "oversized": "single"}, ValueError, "oversized must be 'error'"),
        ({"batch_size": 2, "shuffle": "random"}, ValueError, "shuffle must be False, True"),
        ({"batch_size": 2, "pad_ranks": True, "drop_last": True}, ValueError, "give one of them"),
        ({"batch_size": 2, "nbytes": -1}, ValueError, "nbytes must be at least 0, got -1"),
    ],
)
def test_refuses(options, error, match):
    with pytest.raises(error, match=match):
        BatchPlan(3, **options)


def test_refuses_num_graphs():
    with pytest.raises(ValueError, match="num_graphs must be at least 0, got -1"):
        BatchPlan(-1, batch_size=2)


@pytest.mark.parametrize("method", ["batches", "read_ahead", "num_batches"])
def test_refuses_places_at_once(method):
    plan = BatchPlan(10, batch_size=2)
    with pytest.raises(ValueError, match="epoch must be from 0 to 4294967295, got -1"):
        getattr(plan, method)(-1)
    with pytest.raises(ValueError, match="cursor must be from 0 to 5 in epoch 3, got 6"):
        getattr(plan, method)(3, 6)
    with pytest.raises(TypeError, match=r"cursor must be an integer, got 1\.5"):
        getattr(plan, method)(0, 1.5)


def test_statistics_of_budgets():
    plan = BatchPlan(
        7,
        max_nodes=10,
        max_graphs=2,
        num_nodes=[4, 6, 5, 5, 9, 1, 2],
        num_edges=[1, 2, 3, 4, 5, 6, 7],
        world_size=2,
    )
    # [0, 1], [2, 3], [4, 5], [6]: nodes 10, 10, 10, 2
    assert plan.statistics() == PlanStatistics(
        num_batches=4,
        num_graphs=7,
        oversized=0,
        skipped=0,
        graphs=Spread(min=1, mean=1.75, max=2),
        nodes=Spread(min=2, mean=8, max=10),
        edges=Spread(min=3, mean=7, max=11),
        fill=Spread(min=0.5, mean=0.875, max=1),
        imbalance=Spread(min=1, mean=(1 + 1 / 0.75) / 2, max=1 / 0.75),
    )


def test_statistics_of_counts():
    assert BatchPlan(5, batch_size=2).statistics() == PlanStatistics(
        num_batches=3,
        num_graphs=5,
        oversized=0,
        skipped=0,
        graphs=Spread(min=1, mean=5 / 3, max=2),
        nodes=None,
        edges=None,
        fill=None,
        imbalance=None,
    )


def test_atomistic_batches_are_full_and_even_over_8_ranks():
    rng = np.random.default_rng(0)
    nodes = np.clip(rng.lognormal(np.log(60), 0.7, 40_000), 2, 400)
    edges = (nodes * rng.uniform(20, 45, 40_000)).astype(np.int32)
    nodes = nodes.astype(np.int32)
    for shuffle, nbytes in (("full", 0), ("window", 40_000 * 25_000)):
        plan = BatchPlan(
            40_000,
            max_nodes=16 * 75,
            max_edges=16 * 2500,
            num_nodes=nodes,
            num_edges=edges,
            shuffle=shuffle,
            nbytes=nbytes,
            world_size=8,
        )
        statistics = plan.statistics()
        assert statistics.num_graphs == 40_000
        assert statistics.fill.mean >= 0.98
        assert statistics.fill.max <= 1
        assert statistics.imbalance.mean <= 1.02
        assert statistics.imbalance.max <= 1.05


def test_ranks_carry_equal_cost():
    nodes = np.random.default_rng(0).integers(9, 28, 20_000)
    costs = []
    for rank in range(4):
        plan = BatchPlan(
            20_000, max_nodes=288, num_nodes=nodes, shuffle="full", rank=rank, world_size=4
        )
        costs.append(sum(int(nodes[batch].sum()) for batch in plan.batches()))
    assert max(costs) / min(costs) < 1.002


def test_epochs_are_packed_anew():
    plan = BatchPlan(400, max_nodes=100, num_nodes=SIZES, shuffle="full")
    together = [{frozenset(batch) for batch in lists(plan.batches(epoch))} for epoch in range(2)]
    assert not together[0] & together[1]


def test_repr():
    plan = BatchPlan(400, max_nodes=100, num_nodes=SIZES, shuffle=True, rank=1, world_size=2)
    assert repr(plan) == (
        "BatchPlan(400, max_nodes=100, oversized='error', order='full', rank=1, world_size=2)"
    )
