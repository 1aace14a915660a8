"""Which graphs form which batch, in what order, on which rank: decided before anything is read."""

from shardgraph.sampling.draw import balanced_weights
from shardgraph.sampling.plan import BatchPlan, ReadAhead
from shardgraph.sampling.quality import ShuffleQuality, shuffle_quality
from shardgraph.sampling.statistics import PlanStatistics, Spread

__all__ = [
    "BatchPlan",
    "PlanStatistics",
    "ReadAhead",
    "ShuffleQuality",
    "Spread",
    "balanced_weights",
    "shuffle_quality",
]
