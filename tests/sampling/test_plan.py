"""The batch plan: its arguments, its batches on every rank, and its numbers."""

from typing import ClassVar

import numpy as np
import pytest
from plan_strategies import lists

from shardgraph.sampling import BatchPlan, PlanStatistics, Spread

SIZES = np.random.default_rng(0).integers(1, 30, 400).astype(np.int32)
EDGES = (SIZES * np.random.default_rng(1).uniform(1, 4, 400)).astype(np.int64)


def every_rank(num_graphs, world_size, epoch=0, **options):
    """The batches of each rank."""
    return [
        lists(BatchPlan(num_graphs, rank=rank, world_size=world_size, **options).batches(epoch))
        for rank in range(world_size)
    ]


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
            [[4, 1, 10], [2, 3, 0], [11, 8, 12], [6, 7, 9, 13, 5]],
            id="budget-full",
        ),
        pytest.param(
            {"max_nodes": 60, "max_edges": 130, "max_graphs": 4, "shuffle": "window", "seed": 5},
            2,
            [[4, 9, 1], [10, 13, 7], [6, 8, 3, 11], [5, 12, 0, 2]],
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


class TestTypes:
    """Budgets of node and edge types."""

    NODES: ClassVar = {"paper": [3, 1, 4, 1, 5], "author": [9, 2, 6, 5, 3]}
    EDGES: ClassVar = {("paper", "by", "author"): [5, 8, 9, 7, 9], "author__of__paper": [3] * 5}

    def batches(self, **options):
        plan = BatchPlan(5, num_nodes=self.NODES, num_edges=self.EDGES, **options)
        return lists(plan.batches())

    def test_by_type(self):
        assert self.batches(max_nodes={"paper": 8}) == [[0, 1, 2], [3, 4]]
        assert self.batches(max_nodes={"author": 11}) == [[0, 1], [2, 3], [4]]
        assert self.batches(max_nodes={"paper": 7, "author": 11}) == [[0, 1], [2, 3], [4]]

    def test_edge_types_are_triples_or_strings(self):
        assert self.batches(max_edges={("paper", "by", "author"): 16}) == [[0, 1], [2, 3], [4]]
        assert self.batches(max_edges={"paper__by__author": 16}) == [[0, 1], [2, 3], [4]]
        assert self.batches(max_edges={("author", "of", "paper"): 6}) == [[0, 1], [2, 3], [4]]

    def test_a_number_limits_all_types_together(self):
        assert self.batches(max_nodes=15) == [[0, 1], [2], [3, 4]]
        assert self.batches(max_nodes=15, max_edges={"author__of__paper": 3}) == [
            *([0], [1], [2], [3], [4])
        ]

    def test_oversized_names_the_type(self):
        match = r"Graph 0 has 9 nodes of type 'author', over max_nodes\['author'\]=8"
        with pytest.raises(ValueError, match=match):
            self.batches(max_nodes={"author": 8})

    def test_state_names_the_type(self):
        options = {"num_nodes": self.NODES, "max_nodes": {"paper": 8}}
        state = BatchPlan(5, **options).state_dict(0, 1)
        assert BatchPlan(5, **options).resume(state) == (0, 1)
        with pytest.raises(ValueError, match=r"max_nodes\['paper'\] was 8 and is 9"):
            BatchPlan(5, **{**options, "max_nodes": {"paper": 9}}).resume(state)
        others = {**self.NODES, "paper": [3, 1, 4, 1, 4]}
        with pytest.raises(ValueError, match=r"num_nodes\['paper'\]_crc32 was"):
            BatchPlan(5, **{**options, "num_nodes": others}).resume(state)

    @pytest.mark.parametrize(
        ("limits", "match"),
        [
            ({"max_nodes": {"venue": 3}}, "type 'venue'; the graphs have 'paper', 'author'"),
            ({"max_nodes": {}}, "max_nodes must name at least one type"),
            ({"max_nodes": {"paper": 0}}, r"max_nodes\['paper'\] must be from 1 to 92.*, got 0"),
            ({"max_nodes": {"paper": 2}, "num_nodes": [1] * 5}, "one kind only: give a number"),
            (
                {"max_nodes": {"paper": 2}, "num_nodes": {"paper": [1]}},
                r"num_nodes\['paper'\] must have one number for each of 5 graphs",
            ),
        ],
    )
    def test_refuses(self, limits, match):
        with pytest.raises(ValueError, match=match):
            BatchPlan(5, **{"num_nodes": self.NODES, **limits})


@pytest.mark.parametrize("shuffle", [False, "full", "window"])
@pytest.mark.parametrize("limit", [2**62, 2**63 - 1])
def test_a_budget_that_is_no_limit(shuffle, limit):
    rng = np.random.default_rng(0)
    nodes, edges = rng.integers(1, 20, 500), rng.integers(0, 60, 500)
    options = {"max_nodes": 100, "num_nodes": nodes, "num_edges": edges, "shuffle": shuffle}
    batches = list(BatchPlan(500, **options, max_edges=limit).batches())
    assert sorted(np.concatenate(batches).tolist()) == list(range(500))
    assert all(nodes[batch].sum() <= 100 for batch in batches)
    assert len(batches) == len(BatchPlan(500, **options, max_edges=2**40))


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
        ({"max_graphs": 0}, ValueError, "max_graphs must be from 1 to 922337.*, got 0"),
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
        ({"max_graphs": 2**63}, ValueError, "max_graphs must be from 1 to 922337.*, got 92233"),
        (
            {"max_nodes": 5, "num_nodes": [2**61, 2**61, 0]},
            ValueError,
            "num_nodes must add up to less than 4,611,686,018,427,387,904 over all graphs",
        ),
        (
            {"max_nodes": 5, "num_nodes": {t: np.full(3, 2**60, np.uint64) for t in "ab"}},
            ValueError,
            "num_nodes must add up to less than",
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


def workload(name, num_graphs):
    """Nodes, edges and bytes of graphs like those that the benchmark makes."""
    rng = np.random.default_rng(0)
    if name == "molecules":
        nodes = rng.integers(9, 28, num_graphs)
        return nodes, 2 * nodes + rng.integers(-1, 3, num_graphs), 2300 * num_graphs
    nodes = np.clip(rng.lognormal(np.log(60), 0.7, num_graphs), 2, 400)
    edges = nodes * rng.uniform(20, 45, num_graphs)
    return nodes.astype(np.int32), edges.astype(np.int32), 73_000 * num_graphs


@pytest.mark.parametrize("name", ["molecules", "atomistic"])
@pytest.mark.parametrize("shuffle", ["full", "window"])
@pytest.mark.parametrize("budgets", ["nodes", "edges", "both"])
def test_batches_of_16_are_full_even_and_unbiased(name, shuffle, budgets):
    num_graphs = 40_000
    nodes, edges, nbytes = workload(name, num_graphs)
    limits = {
        "max_nodes": int(16 * nodes.mean()) if budgets != "edges" else None,
        "max_edges": int(16 * edges.mean()) if budgets != "nodes" else None,
    }
    sizes = {"num_nodes": nodes, "num_edges": edges}
    plan = BatchPlan(num_graphs, **limits, **sizes, shuffle=shuffle, nbytes=nbytes, world_size=8)
    for epoch in range(2):
        statistics = plan.statistics(epoch)
        assert statistics.num_graphs == num_graphs
        assert statistics.fill.mean >= 0.98
        assert statistics.fill.max <= 1
        assert statistics.imbalance.max <= 1.05
    # Small and large graphs come at all times, and in all batches.
    single = BatchPlan(num_graphs, **limits, **sizes, shuffle=shuffle, nbytes=nbytes)
    batches = list(single.batches())
    when = np.repeat(np.linspace(-1, 1, len(batches)), [len(batch) for batch in batches])
    size = nodes[np.concatenate(batches)]
    assert abs(np.corrcoef(when, size)[0, 1]) < 4 / np.sqrt(num_graphs)
    means = np.array([nodes[batch].mean() for batch in batches])
    drawn = nodes.std() / np.sqrt(statistics.graphs.mean)
    assert means.std() < 1.2 * drawn
    assert abs(means[:-1].mean() / nodes.mean() - 1) < 0.05


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
