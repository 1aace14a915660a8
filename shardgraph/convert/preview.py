"""A look at what a conversion would make: its first records converted, and nothing kept."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import h5py
from torch_geometric.data.data import BaseData

from shardgraph.convert.job import Job
from shardgraph.convert.plan import tasks_of
from shardgraph.convert.records import Record, partitions_of, read_records
from shardgraph.convert.source import Reject
from shardgraph.convert.worker import edited
from shardgraph.errors import ConversionError, SchemaError
from shardgraph.format.schema import Schema
from shardgraph.writer import ShardSink

NUM_RECORDS = 100
"""Records that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The first records of an input, and what they come to."""

    format: str
    """Name of the source."""
    num_records: int | None
    """Of the whole input; None where only reading tells."""
    read: int
    graphs: int
    filtered: int
    rejects: tuple[Reject, ...]
    example: BaseData
    """The first graph."""
    schema: Schema
    raw_nbytes: int
    """Of all graphs looked at."""
    nbytes: int
    """Of the same graphs in a shard, without what a shard needs however many graphs it has."""
    seconds: float
    """For reading and writing one record, without what only the first one takes."""


def preview(job: Job) -> Preview:
    """Converts the first 100 records; those rejected are told of, whatever the job says.

    Raises:
        ConversionError: if none of them becomes a graph, or the input cannot be read.
    """
    partitions = partitions_of(job.source)
    counts = [partition.num_records for partition in partitions]
    with tempfile.TemporaryDirectory() as folder:
        sink = ShardSink(
            Path(folder),
            lambda number: f"shard-{number:05d}.h5",
            shard_size=1 << 62,
            compression=job.compression,
            varying=job.varying,
        )
        look = _Look(job, sink)
        for task in tasks_of(partitions, 1):
            for record in islice(read_records(job.source, task), NUM_RECORDS - look.read):
                look.add(record)
        sink.flush()
        if look.example is None or sink.schema is None:
            reasons = "".join(f"\n{reject}" for reject in look.rejects[:3])
            raise ConversionError(
                f"none of the first {look.read} records becomes a graph ({look.filtered} filtered, "
                f"{len(look.rejects)} rejected){reasons}"
            )
        known = None if None in counts else sum(count or 0 for count in counts)
        return Preview(
            format=job.source.name,
            num_records=look.read if look.read < NUM_RECORDS else known,
            read=look.read,
            graphs=sink.num_graphs,
            filtered=look.filtered,
            rejects=tuple(look.rejects),
            example=look.example,
            schema=sink.schema,
            raw_nbytes=sink.shards[0][0].raw_nbytes,
            nbytes=_values_nbytes(Path(folder) / sink.shards[0][0].name),
            seconds=look.seconds,
        )


class _Look:
    """The records looked at so far."""

    def __init__(self, job: Job, sink: ShardSink) -> None:
        self._job = job
        self._sink = sink
        self._first = self._last = 0.0
        self.read = 0
        self.filtered = 0
        self.rejects: list[Reject] = []
        self.example: BaseData | None = None

    def add(self, record: Record) -> None:
        """Takes the next record."""
        found = edited(self._job, record)
        if isinstance(found, BaseData):
            try:
                self._sink.write(found)
                self.example = self.example or found
            except SchemaError as error:
                found = record.reject(str(error.__cause__ or error))
        if isinstance(found, Reject):
            self.rejects.append(found)
        self.filtered += found is None
        self.read += 1
        self._last = time.monotonic()
        self._first = self._first or self._last

    @property
    def seconds(self) -> float:
        """Per record, without the first: that one imports what the source needs."""
        return (self._last - self._first) / max(1, self.read - 1)


def _values_nbytes(path: Path) -> int:
    """Bytes of the arrays in a shard, without the gaps between them."""
    sizes: list[int] = []

    def add(_: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            sizes.append(item.id.get_storage_size())

    with h5py.File(path, "r", locking=False) as file:
        file.visititems(add)
    return sum(sizes)
