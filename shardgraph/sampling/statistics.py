"""What the batches of an epoch are like, from stored sizes alone."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from shardgraph.sampling.budget import Budget
from shardgraph.sampling.sizes import Sizes

_CHUNK = 1024
"""Batches measured by one NumPy call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Smallest, mean and largest of some numbers; all 0 where there are none."""

    min: float
    mean: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStatistics:
    """The batches of one epoch, over all ranks, before a short last step is shared out."""

    num_batches: int
    """Batches of the whole epoch."""
    num_graphs: int
    """Graphs in them."""
    oversized: int
    """Graphs of the dataset that exceed a budget on their own."""
    skipped: int
    """How many of them are left out; the others are a batch each."""
    graphs: Spread
    """Graphs in a batch."""
    nodes: Spread | None
    """Nodes in a batch; None where the plan was not given ``num_nodes``."""
    edges: Spread | None
    """Edges in a batch; None where the plan was not given ``num_edges``."""
    fill: Spread | None
    """The largest fraction of a budget that a batch uses; None without budgets."""
    imbalance: Spread | None
    """Over full steps: the fill of the fullest rank over the mean of the ranks; None without
    budgets."""


def measure(
    batches: Iterable[NDArray[np.int64]],
    *,
    num_nodes: Sizes | None,
    num_edges: Sizes | None,
    budget: Budget | None,
    world_size: int,
    oversized: int,
    skipped: int,
) -> PlanStatistics:
    """Return the statistics of the batches of an epoch, none of them empty."""
    counts, nodes, edges, fills = [np.empty(0)], [np.empty(0)], [np.empty(0)], [np.empty(0)]
    for ids, ptr in _chunks(batches):
        counts.append(np.diff(ptr))
        if num_nodes is not None:
            nodes.append(np.add.reduceat(num_nodes.of(ids), ptr[:-1]))
        if num_edges is not None:
            edges.append(np.add.reduceat(num_edges.of(ids), ptr[:-1]))
        if budget is not None:
            fills.append(budget.shares(ids, ptr))
    graphs, fill = np.concatenate(counts), np.concatenate(fills)
    steps = fill[: len(fill) // world_size * world_size].reshape(-1, world_size)
    means = np.maximum(steps.mean(axis=1), np.finfo(np.float64).tiny)
    return PlanStatistics(
        num_batches=len(graphs),
        num_graphs=int(graphs.sum()),
        oversized=oversized,
        skipped=skipped,
        graphs=_spread(graphs),
        nodes=None if num_nodes is None else _spread(np.concatenate(nodes)),
        edges=None if num_edges is None else _spread(np.concatenate(edges)),
        fill=None if budget is None else _spread(fill),
        imbalance=None if budget is None else _spread(steps.max(axis=1, initial=0) / means),
    )


def _chunks(
    batches: Iterable[NDArray[np.int64]],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    batches = iter(batches)
    while chunk := list(islice(batches, _CHUNK)):
        yield np.concatenate(chunk), np.cumsum([0, *map(len, chunk)])


def _spread(values: NDArray[np.float64]) -> Spread:
    if not len(values):
        return Spread(min=0.0, mean=0.0, max=0.0)
    return Spread(min=float(values.min()), mean=float(values.mean()), max=float(values.max()))
