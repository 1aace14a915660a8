"""Graphs to columns, and columns to PyG objects: the only place where PyG's rules are applied."""

from shardgraph.collate.batch import Batcher, PackedBatch, batches_from_columns
from shardgraph.collate.decode import GraphDecoder, known_class
from shardgraph.collate.encode import GraphEncoder

__all__ = [
    "Batcher",
    "GraphDecoder",
    "GraphEncoder",
    "PackedBatch",
    "batches_from_columns",
    "known_class",
]
