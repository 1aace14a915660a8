"""Which partitions share a task, and what the first graph looks like: decided before the work.

Both depend on the input and the options alone, so that any number of workers makes the same shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from torch_geometric.data.data import BaseData

from shardgraph.collate import GraphEncoder
from shardgraph.convert.job import Job, Task
from shardgraph.convert.records import read_records
from shardgraph.convert.source import Partition, Reject
from shardgraph.convert.worker import edited, reject_error
from shardgraph.errors import SchemaError
from shardgraph.format.schema import Schema

MIN_TASKS = 32
"""Partitions are put together into whole shards only where at least this many tasks are left."""

_SAMPLE = 20  # graphs that tell how many fill a shard


def plan_tasks(job: Job, partitions: Sequence[Partition]) -> tuple[Schema | None, int]:
    """The schema of the first graph, and how many partitions make a task.

    A single task has no schema given: it meets the first graph itself. Where nothing becomes a
    graph there is no schema either.

    Raises:
        ConversionError: at a record before the first graph that cannot become one, unless the job
            skips those.
    """
    if len(partitions) < 2:
        return None, 1
    most = max(1, len(partitions) // MIN_TASKS)
    sample = list(islice(_encoded(job, tasks_of(partitions, 1)), 1 if most == 1 else _SAMPLE))
    if not sample:
        return None, 1
    schema, _ = sample[0]
    mean = sum(nbytes for _, nbytes in sample) / len(sample)
    records = max(partition.num_records or job.shard_size for partition in partitions)
    fitting = int(0.9 * job.shard_size / max(1.0, mean * records))
    return schema, max(1, min(most, fitting))


def tasks_of(partitions: Sequence[Partition], size: int) -> list[Task]:
    """The tasks of ``size`` partitions each, in order; the last may have fewer."""
    return [
        Task(
            number=number, partitions=tuple(partitions[first : first + size]), first_partition=first
        )
        for number, first in enumerate(range(0, len(partitions), size))
    ]


def _encoded(job: Job, tasks: Sequence[Task]) -> Iterator[tuple[Schema, int]]:
    """The schema of the first graph, again and again, with the bytes of each graph that fits it."""
    schema: Schema | None = None
    for record in (record for task in tasks for record in read_records(job.source, task)):
        found = edited(job, record)
        if isinstance(found, BaseData):
            encoder = GraphEncoder(schema, varying=job.varying)
            try:
                cells = encoder.encode(found, 0).cells
            except SchemaError as error:
                found = record.reject(str(error.__cause__ or error))
            else:
                schema = schema or encoder.schema
                if schema is not None:
                    yield schema, sum(len(cell.payload) for cell in cells.values())
        if isinstance(found, Reject) and not job.skip:
            raise reject_error(found)
