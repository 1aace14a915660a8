"""The contract between raw formats and the converter: a source, its partitions, its rejects.

A source of one's own needs a name, a ``read`` method and the decorator::

    from shardgraph.convert import Partition, Source, make_data, register_source

    @register_source
    class Lines(Source):
        name = "lines"
        description = "one graph a line: blank-separated numbers, joined to a path"

        def read(self, partition):
            with open(partition.file) as file:
                for line in file:
                    x = [[float(word)] for word in line.split()]
                    edges = [[i, i + 1] for i in range(len(x) - 1)]
                    yield make_data(x=x, edge_index=edges)
"""

from __future__ import annotations

import enum
import importlib.util
import itertools
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import xxhash

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch_geometric.data.data import BaseData

# Beyond this many files their contents are not digested one by one: see `describe_files`.
_MAX_LISTED_FILES = 100


class Confidence(enum.IntEnum):
    """How sure a source is that an input is in its format."""

    POSSIBLE = 1
    CERTAIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One keyword-only parameter of a source, described for the command line."""

    name: str
    type: type[str] | type[int] | type[float] | type[bool]
    help: str
    default: str | int | float | bool | None = None
    many: bool = False
    """Takes a list of values; the default None then means "recognise them" or "none"."""
    repeated: bool = False
    """The command line takes one value of the list at a time, as paths may hold commas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A run of consecutive records of one file: what one worker reads at a time.

    Picklable, and of builtin values only. A source may add fields in a subclass of its own.
    """

    file: str
    """Path of the file, or of the folder that is read as a whole."""
    first: int = 0
    """Number of its first record, counted from 0 within the file."""
    num_records: int | None = None
    """Records in it; None where only reading tells."""
    offset: int = 0
    """Byte of the (uncompressed) file at which the first record starts."""
    line: int = 1
    """Line of the file at which the first record starts, counted from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """Stands in the place of a graph whose record could not be read."""

    file: str
    record: int | str
    """Line on which the record starts, counted from 1; or its key where a file has no lines."""
    reason: str
    raw: str | None = None
    """The record itself, where it is text; cut to 1,000 characters."""

    def __post_init__(self) -> None:
        # Of paths and of the integers of NumPy too, what is kept as JSON.
        object.__setattr__(self, "file", os.fspath(self.file))
        if not isinstance(self.record, str):
            object.__setattr__(self, "record", operator.index(self.record))

    def __str__(self) -> str:
        where = f"line {self.record}" if isinstance(self.record, int) else self.record
        return f"{self.file}, {where}: {self.reason}"


class Source(ABC):
    """A reader of one raw format: splits its input into partitions and yields the graphs of each.

    Instances are picklable: they are sent to the workers once and hold options, not open files.
    One instance is used by one thread at a time; several may read the same input at once.
    Partitions depend on input and options alone, never on the number of workers, and reading
    a partition twice yields the same items.
    """

    name: ClassVar[str]
    description: ClassVar[str] = ""
    extra: ClassVar[str | None] = None
    """The extra of shardgraph that its third-party packages come with."""
    options: ClassVar[tuple[Option, ...]] = ()
    """What ``__init__`` takes after the input, keyword-only and under the same names."""
    records_per_partition: ClassVar[int] = 10_000
    """A partition is the least work a killed conversion repeats: seconds of parsing."""
    split_by: str | None = None
    """The attribute that is to tell the split, where one is: a source of tables, which does not
    keep every column, keeps the one of that name as text."""

    def __init__(self, spec: str | os.PathLike[str]) -> None:
        self.spec = os.fspath(spec)

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:  # noqa: ARG003 (part of the contract)
        """How sure the source is that it reads `spec`; None: it does not.

        Looks at names and at the first few kB of a file only, and raises nothing.
        """
        return None

    def partitions(self) -> Sequence[Partition]:
        """The whole input, each record in exactly one partition, in the order of the output."""
        return [Partition(file=self.spec)]

    @abstractmethod
    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:
        """Yields one item per record of the partition, in order, lazily.

        A record that cannot be read gives a `Reject` in its place; an input that cannot be
        read at all raises `FormatError` or `ConversionError`, naming the file.
        """

    def splits(self) -> dict[str, NDArray[np.int64]]:
        """The splits that the input itself gives: numbers of records, by name of the split.

        Records are counted from 0 over all partitions, rejected ones included.
        """
        return {}

    def varying(self) -> frozenset[str]:
        """Names of tensors whose trailing shape differs from graph to graph, where it is known."""
        return frozenset()

    def provenance(self) -> dict[str, Any]:
        """What the manifest tells of the origin of the graphs: JSON values, no absolute path.

        Under ``"targets"``: the names in the input of what became ``y``, if they were chosen.
        """
        return {"format": self.name, "files": describe_files(self.files())}

    def files(self) -> list[Path]:
        """The input files, for `provenance`; of a folder, all that are not hidden.

        So they are the same while a dataset is being made in a folder of the input.
        """
        path = Path(self.spec)
        if not path.is_dir():
            return [path]
        return sorted(
            found
            for found in path.rglob("*")
            if found.is_file() and not any(map(_is_hidden, found.relative_to(path).parts))
        )


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def spans(num_records: int, size: int) -> Iterator[tuple[int, int]]:
    """Splits `num_records` into runs of `size`: yields (first, count), the last one shorter."""
    for first in range(0, num_records, size):
        yield first, min(size, num_records - first)


class Placed(Protocol):
    """A record of a file that knows where it starts."""

    @property
    def line(self) -> int:
        """Counted from 1."""
        ...

    @property
    def offset(self) -> int:
        """Byte of the (uncompressed) file."""
        ...


def runs_of_records(file: str, records: Iterator[Placed], size: int) -> list[Partition]:
    """Partitions of `size` records of one file, found in one pass over them."""
    found: list[Partition] = []
    while (first := next(records, None)) is not None:
        count = 1 + sum(1 for _ in itertools.islice(records, size - 1))
        found.append(
            Partition(
                file=file,
                first=len(found) * size,
                num_records=count,
                offset=first.offset,
                line=first.line,
            )
        )
    return found


def require(module: str, extra: str, what: str) -> None:
    """Raises ImportError, naming the extra to install, when `module` is not installed.

    The module is looked for, not imported.
    """
    if importlib.util.find_spec(module) is None:
        raise ImportError(
            f"{what} needs the package {module!r}, which is not installed; "
            f"install it with: pip install 'shardgraph[{extra}]'"
        )


def file_stamps(paths: Iterable[Path]) -> tuple[tuple[int, int], ...]:
    """Size and time of change of each file: the part of a cache's key that notices a new file."""
    return tuple((stat.st_size, stat.st_mtime_ns) for stat in (path.stat() for path in paths))


def describe_files(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Name, bytes and xxh3-128 digest of each file; of the list of names and sizes beyond 100."""
    found = [path for path in paths if path.is_file()]
    if len(found) <= _MAX_LISTED_FILES:
        return [{"name": p.name, "bytes": p.stat().st_size, "xxh3_128": _digest(p)} for p in found]
    sizes = [path.stat().st_size for path in found]
    listing = "".join(f"{p.name}\t{size}\n" for p, size in zip(found, sizes, strict=True))
    return [
        {
            "files": len(found),
            "bytes": sum(sizes),
            "listing_xxh3_128": xxhash.xxh3_128_hexdigest(listing.encode(errors="replace")),
        }
    ]


def _digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
