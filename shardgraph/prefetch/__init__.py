"""Batches on the device before they are asked for, and measurements of every wait.

``DevicePrefetcher`` is the way in, ``PrefetchStats`` what it measures. ``measure_waits`` runs a
loop of a given pace, and ``PackedBatch`` is what a loader of one-buffer batches yields.
"""

from shardgraph.prefetch.measure import measure_waits
from shardgraph.prefetch.move import PackedBatch, PackedLoader
from shardgraph.prefetch.prefetcher import DevicePrefetcher
from shardgraph.prefetch.stats import PrefetchStats

__all__ = ["DevicePrefetcher", "PackedBatch", "PackedLoader", "PrefetchStats", "measure_waits"]
