"""Draws by weight: who is drawn, how often, and that it stays so."""

import pickle
import re

import numpy as np
import pytest
from plan_strategies import lists

from shardgraph.sampling import BatchPlan, balanced_weights
from shardgraph.sampling.draw import WeightedDraw

NUM = 20_000


def draw(weights, num_samples, *, replacement=True, seed=0, epoch=0):
    weights = np.asarray(weights, np.float64)
    return WeightedDraw(
        weights=weights, num_samples=num_samples, replacement=replacement, seed=seed
    ).items(epoch)


# These lists hold for good: a saved run resumes in the order they pin.
def test_pinned():
    weights = [0, 1, 2, 0, 4, 1]
    assert draw(weights, 10).tolist() == [2, 2, 4, 4, 4, 4, 4, 4, 5, 5]
    assert draw(weights, 3, replacement=False).tolist() == [1, 4, 5]
    plan = BatchPlan(6, batch_size=4, shuffle="full", weights=weights)
    assert lists(plan.batches()) == [[4, 2, 4, 5], [4, 2]]


def test_with_replacement_the_shares_are_those_of_the_weights():
    weights = np.array([0, 1, 2, 5, 0, 0.5, 1.5, 0])
    counts = np.bincount(draw(weights, NUM), minlength=8)
    expected = NUM * weights / weights.sum()
    # Five standard deviations of a binomial.
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()


def test_without_replacement_the_first_is_drawn_by_weight_and_none_twice():
    weights = np.tile([1.0, 3.0, 0.0, 4.0], 250)
    items = draw(weights, 400, replacement=False)
    assert len(np.unique(items)) == 400
    by_weight = {w: (weights[items] == w).sum() for w in (0.0, 1.0, 3.0, 4.0)}
    assert by_weight[0.0] == 0
    assert by_weight[1.0] < by_weight[3.0] < by_weight[4.0]
    firsts = [draw([1, 3, 0, 4], 1, replacement=False, epoch=epoch)[0] for epoch in range(4000)]
    counts = np.bincount(firsts, minlength=4)
    assert np.abs(counts - [500, 1500, 0, 2000]).max() < 5 * np.sqrt(2000)


def test_all_may_be_drawn():
    assert draw([1, 0, 2, 3], 3, replacement=False).tolist() == [0, 2, 3]
    assert draw([0, 0, 2], 4).tolist() == [2, 2, 2, 2]
    assert draw([], 0).tolist() == draw([], 0, replacement=False).tolist() == []
    assert draw([1e-300, 1e300], 2, replacement=False).tolist() == [0, 1]


def test_seeds_and_epochs_draw_differently():
    draws = {
        tuple(draw(np.ones(100), 50, replacement=replacement, seed=seed, epoch=epoch))
        for replacement in (True, False)
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(draws) == 18


def test_balanced():
    labels = np.array([2, 0, 0, 2, 2, 7])
    weights = balanced_weights(labels)
    assert weights.tolist() == [1 / 3, 1 / 2, 1 / 2, 1 / 3, 1 / 3, 1]
    assert balanced_weights(labels.astype(np.float32)).tolist() == weights.tolist()
    assert balanced_weights(labels > 1).tolist() == [1 / 4, 1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 4]
    plan = BatchPlan(6, batch_size=64, shuffle="full", weights=weights, num_samples=9000)
    drawn = np.concatenate(list(plan.batches()))
    assert np.abs(np.bincount(labels[drawn])[[0, 2, 7]] - 3000).max() < 5 * np.sqrt(3000)


@pytest.mark.parametrize(
    "labels", [np.array([0.5, 1]), np.array([np.nan]), np.zeros((3, 2)), np.array(["a"])]
)
def test_balanced_needs_classes(labels):
    with pytest.raises(ValueError, match="need one class for each graph, as a whole number"):
        balanced_weights(labels)


@pytest.mark.parametrize("shuffle", ["full", "window"])
def test_rare_classes_are_mixed_into_all_batches(shuffle):
    """Sorted by label, the hardest case, with a class of one in a hundred drawn half the time."""
    labels = np.arange(NUM) >= NUM * 99 // 100
    plan = BatchPlan(
        NUM,
        batch_size=100,
        shuffle=shuffle,
        nbytes=NUM << 13,
        weights=balanced_weights(labels),
    )
    shares = np.array([labels[batch].mean() for batch in plan.batches()])
    assert abs(shares.mean() - 0.5) < 0.02
    assert shares.std() < 0.1


def test_windows_read_near_graphs_together():
    plan = BatchPlan(NUM, batch_size=50, shuffle="window", nbytes=NUM << 13, weights=np.ones(NUM))
    items = list(plan.read_ahead())
    assert len(items) > 2
    for item in items:
        graphs = (item.ranges[:, 1] - item.ranges[:, 0]).sum()
        # Runs of a block of draws, in which 63 % of the graphs occur.
        assert graphs / len(item.ranges) > 2


def test_skipped_graphs_are_not_drawn():
    nodes = np.arange(10)
    plan = BatchPlan(
        10,
        max_nodes=6,
        num_nodes=nodes,
        oversized="skip",
        shuffle="full",
        weights=np.ones(10),
        num_samples=500,
    )
    drawn = np.concatenate(list(plan.batches()))
    assert set(drawn.tolist()) == set(range(7))
    assert (len(drawn), plan.skipped, plan.oversized) == (500, 3, 3)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"weights": [1, 1, 1], "shuffle": False}, ValueError, "so they need a shuffle: give"),
        ({"num_samples": 3}, ValueError, "give weights too"),
        ({"replacement": False}, ValueError, "give weights too"),
        ({"weights": [1, 1]}, ValueError, "one number for each of 3 graphs, got shape (2,)"),
        ({"weights": ["a", "b", "c"]}, TypeError, "weights must be real numbers"),
        ({"weights": [1, -1, 1]}, ValueError, "not negative, got -1.0 for graph 1"),
        ({"weights": [1, 1, np.inf]}, ValueError, "must be finite and not negative, got inf"),
        ({"weights": [1e308, 1e308, 1]}, ValueError, "weights must have a finite sum"),
        ({"weights": [1, 1, 0], "replacement": False}, ValueError, "needs num_samples"),
        (
            {"weights": [1, 1, 0], "replacement": False, "num_samples": 3},
            ValueError,
            "num_samples=3 cannot be drawn: 2 graphs have a weight above 0",
        ),
        ({"weights": [0, 0, 0]}, ValueError, "num_samples=3 cannot be drawn: 0 graphs"),
        ({"weights": [1, 1, 1], "num_samples": -1}, ValueError, "num_samples must be at least 0"),
    ],
)
def test_refuses(options, error, match):
    with pytest.raises(error, match=re.escape(match)):
        BatchPlan(3, **{"batch_size": 2, "shuffle": True, **options})


def test_a_plan_does_not_change_with_the_array_of_its_weights():
    weights = np.ones(20)
    plan = BatchPlan(20, batch_size=20, shuffle="full", weights=weights)
    before = [batch.tolist() for batch in plan.batches()]
    weights[:] = 0
    plan = pickle.loads(pickle.dumps(plan))  # without the draw that it keeps
    assert [batch.tolist() for batch in plan.batches()] == before


def test_states_tell_draws_apart():
    options = {"batch_size": 2, "shuffle": True, "weights": [1, 2, 3], "num_samples": 9}
    state = BatchPlan(3, **options).state_dict(0, 2)
    assert BatchPlan(3, **options).resume(state) == (0, 2)
    for change, match in (
        ({"weights": [1, 2, 4]}, "weights_crc32 was"),
        ({"num_samples": 8}, "num_samples was 9 and is 8"),
        ({"replacement": False, "num_samples": 3}, "replacement was True and is False"),
        ({"weights": None, "num_samples": None}, "weights_crc32 was .* and is None"),
    ):
        with pytest.raises(ValueError, match=match):
            BatchPlan(3, **{**options, **change}).resume(state)


def test_repr():
    plan = BatchPlan(3, batch_size=2, shuffle=True, weights=[1, 2, 3], num_samples=9)
    assert repr(plan) == (
        "BatchPlan(3, batch_size=2, num_samples=9, order='full', rank=0, world_size=1)"
    )
