"""Formats whose unit is a file: one file, or a folder of them in the order of their numbers."""

from __future__ import annotations

import contextlib
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

from shardgraph.convert.source import Confidence, Partition, Reject, Source, spans
from shardgraph.errors import ConversionError, FormatError, SchemaError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

_FILES_PER_PARTITION = 1000

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesPartition(Partition):
    """Some files of a folder, or the one file itself."""

    names: tuple[str, ...]

    def paths(self) -> list[Path]:
        """The files to read, in order."""
        path = Path(self.file)
        return [path / name for name in self.names] if path.is_dir() else [path]


class FileSource(Source):
    """A source of one file or of a folder of files, each of which `read_file` reads.

    A file that cannot be read at all is one record, and gives one `Reject`.
    """

    suffixes: ClassVar[frozenset[str]]

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of a file with one of the suffixes, and of a folder that holds such files."""
        path = Path(spec)
        found = cls.has_files(path) if path.is_dir() else suffix_of(path) in cls.suffixes
        return Confidence.CERTAIN if found else None

    @classmethod
    def has_files(cls, folder: Path) -> bool:
        """Whether a folder holds a file with one of the suffixes; quick also among millions."""
        with os.scandir(folder) as entries:
            return any(suffix_of(Path(entry.name)) in cls.suffixes for entry in entries)

    @classmethod
    def names(cls, folder: Path) -> list[str]:
        """The files of a folder that are read."""
        names = [p.name for p in folder.iterdir() if suffix_of(p) in cls.suffixes and p.is_file()]
        return sorted(names, key=natural_key)

    def partitions(self) -> Sequence[Partition]:
        """The file, or runs of 1,000 files."""
        path = Path(self.spec)
        if not path.is_dir():
            return [FilesPartition(file=self.spec, names=(path.name,))]
        names = self.names(path)
        if not names:
            raise FormatError(f"{path} has no file that ends in {', '.join(sorted(self.suffixes))}")
        return [
            FilesPartition(file=self.spec, names=tuple(names[first : first + count]))
            for first, count in spans(len(names), _FILES_PER_PARTITION)
        ]

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:
        """Yields the graphs of each file in turn."""
        if not isinstance(partition, FilesPartition):
            raise TypeError(f"expected a partition of this source, got {partition!r}")
        for path in partition.paths():
            try:
                yield from self.read_file(path)
            except (FormatError, SchemaError) as error:
                yield Reject(file=str(path), record="the file", reason=str(error))
            except ConversionError as error:  # compressed, and damaged from some place on
                if not Path(self.spec).is_dir():
                    raise
                yield Reject(file=str(path), record="the file", reason=str(error))

    @abstractmethod
    def read_file(self, path: Path) -> Iterator[BaseData | Reject]:
        """Yields the graphs of one file; FormatError or SchemaError where it cannot be read."""

    def files(self) -> list[Path]:
        """The file, or the files of the folder that are read."""
        path = Path(self.spec)
        return [path / name for name in self.names(path)] if path.is_dir() else [path]

    def of_first(self, look: Callable[[Path], Found]) -> Found:
        """What `look` finds in the first file that can be read; the others are rejected in time.

        Raises:
            FormatError: none can be read; ConversionError likewise.
        """
        *others, last = self.files() or [Path(self.spec)]
        for path in others:
            with contextlib.suppress(FormatError, ConversionError):
                return look(path)
        return look(last)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts data_2.pt before data_10.pt, and no two names alike."""
    parts = [
        (1, int(part), "") if part.isdecimal() else (0, 0, part)
        for part in re.split(r"(\d+)", name)
    ]
    return [*parts, (0, 0, name)]


def suffix_of(path: Path) -> str:
    """The lower-case extension of a file, without .gz: ".gml" of a.GML.gz."""
    return os.path.splitext(path.name.lower().removesuffix(".gz"))[1]
