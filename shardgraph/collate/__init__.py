"""Graphs to columns, and columns to PyG objects: the only place where PyG's rules are applied."""

from shardgraph.collate.batch import Batcher, batches_from_columns
from shardgraph.collate.buffer import Memory, ordinary_memory, shared_memory
from shardgraph.collate.crossing import Crossing
from shardgraph.collate.decode import GraphDecoder, graph_class, known_class
from shardgraph.collate.encode import GraphEncoder
from shardgraph.collate.packed import PackedBatch
from shardgraph.collate.padding import PaddedBatcher, Padding, StaticShape, less_padding
from shardgraph.collate.reuse import ReusedMemory

__all__ = [
    "Batcher",
    "Crossing",
    "GraphDecoder",
    "GraphEncoder",
    "Memory",
    "PackedBatch",
    "PaddedBatcher",
    "Padding",
    "ReusedMemory",
    "StaticShape",
    "batches_from_columns",
    "graph_class",
    "known_class",
    "less_padding",
    "ordinary_memory",
    "shared_memory",
]
