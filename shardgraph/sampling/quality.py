"""How well an order mixes a dataset, measured on its batches."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleQuality:
    """Mixing within batches; 1.0 is a batch drawn from the dataset without limit."""

    spread: float
    """Mean over batches of the standard deviation of source positions, over that of a uniform
    draw."""
    label_mix: float | None
    """Mean over batches of the entropy of their labels, over that of all labels; None without
    labels."""


def shuffle_quality(
    batches: Iterable[NDArray[np.int64]], num_graphs: int, labels: NDArray[np.integer] | None = None
) -> ShuffleQuality:
    """Return how well batches mix the dataset.

    Args:
        batches: Positions in ``range(num_graphs)``, as `BatchPlan.batches` yields them; at least
            one.
        num_graphs: Length of the dataset.
        labels: Non-negative class of each graph: int [num_graphs]. Sorted labels are the hardest
            case.

    Raises:
        ValueError: If there is no batch.
    """
    spreads, entropies = [], []
    for ids in batches:
        spreads.append(float(ids.std()))
        if labels is not None:
            entropies.append(_entropy(labels[ids]))
    if not spreads:
        raise ValueError("shuffle_quality needs at least one batch, got none.")
    uniform = num_graphs / np.sqrt(12)
    label_mix = None
    if labels is not None:
        label_mix = float(np.mean(entropies)) / max(_entropy(labels), np.finfo(np.float64).tiny)
    return ShuffleQuality(spread=float(np.mean(spreads) / uniform), label_mix=label_mix)


def _entropy(labels: NDArray[np.integer]) -> float:
    counts = np.bincount(labels)
    shares = counts[counts > 0] / len(labels)
    return float(-(shares * np.log(shares)).sum())
