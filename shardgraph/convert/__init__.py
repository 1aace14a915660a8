"""Conversion of raw graphs of any format into a dataset: sources, their registry, the engine."""

from shardgraph.convert.build import make_data
from shardgraph.convert.registry import (
    find_source,
    register_source,
    source_class,
    source_names,
)
from shardgraph.convert.source import Confidence, Option, Partition, Reject, Source

__all__ = [
    "Confidence",
    "Option",
    "Partition",
    "Reject",
    "Source",
    "find_source",
    "make_data",
    "register_source",
    "source_class",
    "source_names",
]
