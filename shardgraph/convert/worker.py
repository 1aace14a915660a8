"""Converting one task: records in, whole shards and their steps out; what a worker runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch_geometric.data.data import BaseData

from shardgraph.convert.job import Job, Task
from shardgraph.convert.journal import Journal, Step
from shardgraph.convert.records import Record, read_records
from shardgraph.convert.shuffle import EncodedSource
from shardgraph.convert.source import Reject
from shardgraph.errors import ConversionError, SchemaError
from shardgraph.format.schema import Schema
from shardgraph.shards.write import GraphRecord
from shardgraph.writer import ShardSink

_MOST_REJECTS = 50_000  # of a step: some 50 MB, less than a shard
_STOP_SECONDS = 0.5  # between looks for the file that tells a worker to stop


class StoppedError(Exception):
    """The conversion was stopped from outside while a task ran."""


def run_task(
    job: Job,
    task: Task,
    *,
    start: Schema | None = None,
    advance: Callable[[int], None] | None = None,
) -> int:
    """Writes the shards of a task that are not there yet, and returns its number of records.

    Steps finished by an earlier run are kept if their shards are as they were written; the source
    is read past their records without making them anew.

    Args:
        job: What to do.
        task: What to do it on.
        start: Schema to begin with in place of the job's.
        advance: Called with a number of records that are done with.

    Raises:
        ConversionError: at a record that cannot become a graph, unless the job skips them.
    """
    steps = _Steps(job, task, start or job.schema)
    tell = advance or _ignore
    tell(steps.read)
    if steps.ended:
        return steps.read
    look_again = 0.0
    for record in read_records(job.source, task, skip=steps.read):
        if job.stop is not None and time.monotonic() >= look_again:
            look_again = time.monotonic() + _STOP_SECONDS
            if job.stop.exists():
                raise StoppedError
        steps.add(record)
        tell(1)
    steps.end()
    return steps.read


def _ignore(_: int) -> None:
    pass


def edited(job: Job, record: Record) -> BaseData | Reject | GraphRecord | None:
    """The graph to write, a reject, or None where the filter drops the graph.

    A graph that is encoded already is not to be edited.
    """
    if isinstance(record.item, Reject | GraphRecord):
        return record.item
    try:
        data = job.edit(record.item)
        if data is not None and job.split_by is not None:
            label_of(data, job.split_by)
    except SchemaError as error:
        return record.reject(str(error))
    except MemoryError as error:
        raise ConversionError(
            f"{record.file}, {record.name}: out of memory. {error}".rstrip(". ")
        ) from error
    except Exception as error:  # noqa: BLE001 (a user's function may raise anything)
        return record.reject(f"pre_filter or pre_transform failed: {type(error).__name__}: {error}")
    return data


def label_of(data: Any, name: str) -> str:
    """The subset that an attribute puts a graph in.

    Raises:
        SchemaError: if the graph lacks it, or it is neither text nor a number.
    """
    value = getattr(data, name, None)
    value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    if not isinstance(value, str | int | float):
        raise SchemaError(
            f"attribute {name!r} tells the split, and must be text or a number; got a "
            f"{type(value).__name__}"
        )
    return str(value)


def reject_error(reject: Reject) -> ConversionError:
    """The error that ends a conversion at a record."""
    return ConversionError(
        f"{reject}. Mend it, or leave such records out with on_error='skip' (--on-error skip)"
    )


class _Steps:
    """The steps of one task: those found finished, and those being made."""

    def __init__(self, job: Job, task: Task, schema: Schema | None) -> None:
        self._job = job
        self._task = task
        self._journal = Journal(job.out)
        self.read = 0
        self.ended = False
        self._number = 0
        for step in self._journal.intact_steps(task.number):
            if step.rejects and not job.skip:
                raise reject_error(step.rejects[0][1])
            self.read += step.read
            self.ended = step.last
            self._number += 1
            schema = step.schema
        self._begin()
        self._sink = ShardSink(
            self._journal.directory,
            lambda _: self._journal.shard_name(task.number, self._number),
            shard_size=job.shard_size,
            compression=job.compression,
            varying=job.varying,
            schema=schema,
        )

    def _begin(self) -> None:
        self._count = 0
        self._rejects: list[tuple[int, Reject]] = []
        self._dropped: list[tuple[int, int]] = []
        self._labels: list[tuple[str, int]] = []

    def add(self, record: Record) -> None:
        """Takes the next record; ends the step if it fills the shard, or the list of rejects."""
        found = edited(self._job, record)
        if isinstance(found, GraphRecord) and isinstance(self._job.source, EncodedSource):
            self._sink.write_encoded(found, self._job.source.rules)
        elif isinstance(found, BaseData):
            try:
                self._sink.write(found)
                if self._job.split_by is not None:
                    self._count_label(label_of(found, self._job.split_by))
            except SchemaError as error:
                # The cause says it without a number; the number in the shards is not the record's.
                found = record.reject(str(error.__cause__ or error))
        if isinstance(found, Reject) and not self._job.skip:
            raise reject_error(found)
        if isinstance(found, Reject):
            self._rejects.append((self._count, found))
        if found is None or isinstance(found, Reject):
            self._drop()
        self._count += 1
        self.read += 1
        is_long = len(self._rejects) >= _MOST_REJECTS
        if is_long:
            self._sink.flush()
        if self._sink.shards or is_long:
            self._finish(last=False)

    def _drop(self) -> None:
        start, stop = self._dropped[-1] if self._dropped else (0, -1)
        if stop == self._count:
            self._dropped[-1] = (start, stop + 1)
        else:
            self._dropped.append((self._count, self._count + 1))

    def _count_label(self, label: str) -> None:
        last, count = self._labels[-1] if self._labels else (None, 0)
        if last == label:
            self._labels[-1] = (label, count + 1)
        else:
            self._labels.append((label, 1))

    def end(self) -> None:
        """Ends the task with the graphs that are left."""
        self._sink.flush()
        self._finish(last=True)

    def _finish(self, *, last: bool) -> None:
        shard, statistics = self._sink.shards.pop() if self._sink.shards else (None, None)
        step = Step(
            last=last,
            read=self._count,
            dropped=tuple(self._dropped),
            rejects=tuple(self._rejects),
            labels=tuple(self._labels),
            schema=self._sink.schema,
            shard=shard,
            statistics=statistics,
        )
        self._journal.add(self._task.number, self._number, step)
        self._number += 1
        self._begin()
