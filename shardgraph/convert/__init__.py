"""Conversion of raw graphs of any format into a dataset: sources, their registry, the engine."""

import importlib
from typing import TYPE_CHECKING, Any

from shardgraph.convert.build import make_data
from shardgraph.convert.registry import (
    find_source,
    register_source,
    source_class,
    source_names,
)
from shardgraph.convert.report import ConversionReport
from shardgraph.convert.source import Confidence, Option, Partition, Reject, Source

if TYPE_CHECKING:
    from shardgraph.convert.run import convert

__all__ = [
    "Confidence",
    "ConversionReport",
    "Option",
    "Partition",
    "Reject",
    "Source",
    "convert",
    "find_source",
    "make_data",
    "register_source",
    "source_class",
    "source_names",
]


def __getattr__(name: str) -> Any:
    """Load the engine, and with it torch, when it is first asked for."""
    if name != "convert":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = importlib.import_module("shardgraph.convert.run").convert
    return value
