"""What is to be converted and how: the job that all workers share, and its tasks."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardgraph.convert.edit import Edit
from shardgraph.convert.function import Function
from shardgraph.convert.registry import find_source
from shardgraph.convert.source import Partition, Source
from shardgraph.convert.splits import SplitRule
from shardgraph.format.layout import parse_size
from shardgraph.format.schema import Schema
from shardgraph.shards.write import compression_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Consecutive partitions that share their shards. Depends on the input and options alone."""

    number: int
    partitions: tuple[Partition, ...]
    first_partition: int
    """Number of the first of them."""

    def __str__(self) -> str:
        first, count = self.first_partition, len(self.partitions)
        which = f"partition {first}" if count == 1 else f"partitions {first} to {first + count - 1}"
        start = self.partitions[0]
        record = f", from record {start.first}" if start.first else ""
        return f"{which} ({start.file}{record})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all tasks of a conversion share; picklable if its edit's functions are."""

    source: Source
    out: Path
    """Directory of the dataset, absolute."""
    edit: Edit
    skip: bool
    """Whether a record that cannot become a graph is left out; else it ends the conversion."""
    shard_size: int
    compression: str | None
    varying: frozenset[str]
    split: SplitRule
    schema: Schema | None = None
    """Of the first graph of the whole input; None if the task has that graph itself."""
    stop: Path | None = None
    """A file that, once there, tells the workers to stop."""

    @property
    def split_by(self) -> str | None:
        """The attribute that tells the split, if one does."""
        return self.split.by

    def options(self) -> dict[str, Any]:
        """What decides the files, beside the source: JSON values."""
        found = {"shard_size": self.shard_size, "compression": self.compression}
        varying = {"varying": sorted(self.varying)} if self.varying else {}
        return {**found, **varying, **self.edit.describe(), **self.split.describe()}


def make_job(
    source: str | os.PathLike[str] | Source,
    out: str | os.PathLike[str],
    /,
    *,
    format: str | None = None,
    shard_size: str | int = "128MB",
    compression: str | None = None,
    on_error: str = "error",
    pre_filter: str | Function | None = None,
    pre_transform: str | Function | None = None,
    keys: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    cast: Mapping[str, str] | None = None,
    varying: Collection[str] = (),
    split: str | Mapping[str, float] | None = None,
    seed: int = 0,
    split_by: str | None = None,
    split_file: str | os.PathLike[str] | None = None,
    **source_options: Any,
) -> Job:
    """The job that arguments of ``convert`` describe, checked.

    Raises:
        ValueError: if an argument is none of those allowed, or no source reads the input.
    """
    if on_error not in {"error", "skip"}:
        raise ValueError(f"on_error must be 'error' or 'skip', got {on_error!r}")
    if compression is not None:
        compression_options(compression)
    size = parse_size(shard_size)
    edit = Edit(pre_filter=pre_filter, pre_transform=pre_transform, keys=keys, drop=drop, cast=cast)
    if isinstance(split, str) and "=" not in split:
        # A bare name is that of a split of the source's own.
        split, source_options["split"] = None, split
    rule = SplitRule.of(split, seed, split_by, split_file)
    if not isinstance(source, str | os.PathLike | Source):
        raise TypeError(_unfit(source))
    if not isinstance(source, Source):
        source = find_source(source, format=format, **source_options)
    elif source_options or format is not None:
        raise ValueError("a Source has its format and options already; pass none beside it")
    if split_by is not None:
        source = copy.copy(source)
        source.split_by = split_by
    return Job(
        source=source,
        out=Path(out).resolve(),
        edit=edit,
        skip=on_error == "skip",
        shard_size=size,
        compression=compression,
        varying=frozenset(varying) | source.varying(),
        split=rule,
    )


def _unfit(source: object) -> str:
    """What to do with a value that `convert` takes for no input."""
    if isinstance(source, type) and issubclass(source, Source):
        return f"convert takes a Source, got the class {source.__name__} itself: call it first"
    if inspect.isroutine(source):
        way = "name the function that yields graphs, as 'package.module:function'"
    else:
        way = (
            "graphs at hand are written by a DatasetWriter: "
            "with DatasetWriter(out) as writer: for graph in graphs: writer.write(graph)"
        )
    return (
        "convert takes a path, 'package.module:function' or a Source, got a "
        f"{type(source).__name__}; {way}"
    )
