"""How well window order mixes, against a full shuffle; the module of orders quotes the numbers."""

import numpy as np
import pytest

from shardgraph.sampling import BatchPlan, ShuffleQuality, shuffle_quality

NUM = 200_000


def quality(shuffle, labels, **batching):
    plan = BatchPlan(NUM, shuffle=shuffle, **(batching or {"batch_size": 256}))
    return shuffle_quality(plan.batches(), NUM, labels)


def test_window_reaches_over_the_whole_dataset():
    full, window = quality("full", None), quality("window", None)
    assert full.label_mix is None
    assert full.spread == pytest.approx(0.998, abs=0.002)
    assert window.spread == pytest.approx(0.993, abs=0.005)
    assert quality(False, None).spread < 0.002


@pytest.mark.parametrize(
    ("num_labels", "full_mix", "window_mix"), [(10, 0.992, 0.977), (100, 0.953, 0.872)]
)
def test_window_mixes_sorted_labels(num_labels, full_mix, window_mix):
    labels = np.arange(NUM) * num_labels // NUM
    assert quality("full", labels).label_mix == pytest.approx(full_mix, abs=0.002)
    assert quality("window", labels).label_mix == pytest.approx(window_mix, abs=0.008)
    assert quality(False, labels).label_mix < 0.02


def test_window_mixes_unsorted_labels_as_a_full_shuffle_does():
    labels = np.random.default_rng(0).integers(0, 10, NUM)
    full, window = quality("full", labels), quality("window", labels)
    assert window.label_mix == pytest.approx(full.label_mix, abs=0.001)


def test_packing_keeps_the_mix():
    labels = np.arange(NUM) * 10 // NUM
    nodes = np.random.default_rng(1).integers(9, 28, NUM)
    budget = {"max_nodes": 250 * 18, "num_nodes": nodes}
    assert quality("full", labels, **budget).label_mix == pytest.approx(0.992, abs=0.002)
    assert quality("window", labels, **budget).label_mix == pytest.approx(0.977, abs=0.008)


def test_measures_by_definition():
    batches = [np.array([0, 3]), np.array([1, 2])]
    result = shuffle_quality(batches, 4, np.array([0, 0, 1, 1]))
    assert result == ShuffleQuality(
        spread=pytest.approx((1.5 + 0.5) / 2 / (4 / 12**0.5)), label_mix=1.0
    )
    sorted_result = shuffle_quality([np.array([0, 1]), np.array([2, 3])], 4, np.array([0, 0, 1, 1]))
    assert sorted_result.label_mix == 0.0


def test_needs_a_batch():
    with pytest.raises(ValueError, match="needs at least one batch, got none"):
        shuffle_quality([], 4)
