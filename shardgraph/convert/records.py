"""The records of a source, in order, each with its place; and what a source may do wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch_geometric.data.data import BaseData

from shardgraph.convert.files import FilesPartition
from shardgraph.convert.job import Task
from shardgraph.convert.source import Partition, Reject, Source
from shardgraph.errors import ConversionError, FormatError, ShardGraphError
from shardgraph.shards.write import GraphRecord

_MAX_RAW = 1000  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record of the input, as the source gave it."""

    item: BaseData | Reject | GraphRecord
    file: str
    name: str
    """Where in the file, for messages."""

    def reject(self, reason: str) -> Reject:
        """The record as one that cannot become a graph of the dataset; told as PyG prints it."""
        raw = repr(self.item)[:_MAX_RAW] if isinstance(self.item, BaseData) else None
        return Reject(file=self.file, record=self.name, reason=reason, raw=raw)


def partitions_of(source: Source) -> Sequence[Partition]:
    """The partitions of a source.

    Raises:
        ConversionError: if the source fails in a way of its own, naming the input.
    """
    try:
        return list(source.partitions())
    except (ShardGraphError, ValueError, OSError, ImportError):
        raise  # these name the file themselves, or an option
    except Exception as error:
        raise ConversionError(
            f"the {source.name} source failed at {source.spec}: {type(error).__name__}: {error}"
        ) from error


def read_records(source: Source, task: Task, *, skip: int = 0) -> Iterator[Record]:
    """The records of a task, in order, without the first ``skip``.

    Raises:
        ConversionError: if the source fails, naming partition and record, or a partition has not as
            many records as it says.
    """
    for number, partition in enumerate(task.partitions, task.first_partition):
        if partition.num_records is not None and skip >= partition.num_records:
            skip -= partition.num_records
            continue
        total = 0
        for piece, file in _pieces(partition):
            where = f"partition {number} ({file})"
            for count, item in enumerate(_items(source, piece, where)):
                if not isinstance(item, BaseData | Reject | GraphRecord):
                    raise ConversionError(
                        f"the {source.name} source yielded a {type(item).__name__} as record "
                        f"{count} of {where}, not a graph of torch_geometric.data"
                    )
                total += 1
                if partition.num_records is not None and total > partition.num_records:
                    raise _changed(partition, number, f"{total} or more")
                if skip:
                    skip -= 1
                    continue
                # `first` counts from the start of a file, or is unknown and 0.
                own = piece.first or number == 0 or isinstance(piece, FilesPartition)
                name = f"graph {piece.first + count}"
                name = name if own else f"{name} of partition {number}"
                yield Record(item=item, file=file, name=name)
        if partition.num_records not in (None, total):
            raise _changed(partition, number, str(total))


def _changed(partition: Partition, number: int, found: str) -> ConversionError:
    return ConversionError(
        f"partition {number} ({partition.file}) had {partition.num_records} records when the "
        f"conversion began, and has {found}: was the input changed meanwhile?"
    )


def _pieces(partition: Partition) -> Iterator[tuple[Partition, str]]:
    """What of a partition is of one file, with the path of that."""
    if not isinstance(partition, FilesPartition):
        yield partition, partition.file
        return
    for name, path in zip(partition.names, partition.paths(), strict=True):
        yield replace(partition, names=(name,)), str(path)


def _items(source: Source, partition: Partition, where: str) -> Iterator[object]:
    count = 0
    try:
        for item in source.read(partition):
            yield item
            count += 1
    except (FormatError, ConversionError, OSError, ImportError):
        raise  # these name the file themselves
    except Exception as error:
        raise ConversionError(
            f"the {source.name} source failed at record {count} of {where}: "
            f"{type(error).__name__}: {error}"
        ) from error
