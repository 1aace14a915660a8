"""Delimited text (CSV, TSV, blank-separated; plain or .gz), row by row with line and byte.

A row is found again from its byte offset, so that a partition starts without parsing what is
before it. Quoted fields may hold delimiters and line breaks. Blank lines are not rows. A record
that cannot be parsed is its first line alone: a quote that nothing closes spoils no other row.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from shardgraph.convert.files import suffix_of
from shardgraph.convert.source import Partition, Reject, runs_of_records
from shardgraph.errors import ConversionError, FormatError

_MISSING = frozenset({"", "nan", "na", "n/a", "null", "none"})
_ID_NAMES = frozenset({"", "id", "index", "idx", "name", "unnamed: 0"})
_MAX_RAW = 1000


class Row(NamedTuple):
    """One record: its fields, or the error for which it has none."""

    line: int
    offset: int
    end: int
    end_line: int
    """Byte after the record and line of it, at which the next one starts."""
    fields: tuple[str, ...]
    error: str | None
    raw: str
    """The text of the record without its line end, cut to 1,000 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A delimited text file whose columns are known, and where its first row of data is."""

    path: str
    delimiter: str | None
    """None: runs of blanks, without quoting."""
    columns: tuple[str, ...]
    offset: int
    line: int
    comment: str = ""
    """Characters that, at the start of a line, make it a comment."""

    def rows(self, *, offset: int | None = None, line: int | None = None) -> Iterator[Row]:
        """Rows of data, from the one at `offset` and `line` on (the first by default).

        A row with another number of fields than the header carries an error, except in
        blank-separated text, where a name may hold blanks.
        """
        width = len(self.columns)
        offset, line = (self.offset, self.line) if offset is None else (offset, line or 1)
        for row in iter_rows(
            self.path, self.delimiter, offset=offset, line=line, comment=self.comment
        ):
            if self.delimiter and row.error is None and len(row.fields) != width:
                error = f"{len(row.fields)} fields, where the header has {width}"
                yield row._replace(fields=(), error=error)
            else:
                yield row

    def partitions(self, size: int) -> list[Partition]:
        """Partitions of `size` rows, found in one pass over the file."""
        return runs_of_records(self.path, self.rows(), size)

    def read(self, partition: Partition) -> Iterator[Row]:
        """The rows of one partition."""
        rows = self.rows(offset=partition.offset, line=partition.line)
        return itertools.islice(rows, partition.num_records)

    def locate(self, numbers: Sequence[int]) -> tuple[int, list[tuple[int, int]]]:
        """How many rows there are, and byte and line of those numbered so (of row 0 beyond)."""
        wanted, found, count = set(numbers), {}, 0
        for count, row in enumerate(self.rows(), start=1):
            if count - 1 in wanted:
                found[count - 1] = (row.offset, row.line)
        return count, [found.get(number, (self.offset, self.line)) for number in numbers]

    def column(self, name: str) -> int:
        """The position of a column; ValueError lists the columns unless exactly one is so named."""
        if self.columns.count(name) != 1:
            problem = "no column" if name not in self.columns else "several columns"
            raise ValueError(
                f"{self.path} has {problem} named {name!r}; its columns are "
                f"{', '.join(repr(column) for column in self.columns)}"
            )
        return self.columns.index(name)

    def numeric_columns(self, num_rows: int) -> list[str]:
        """Columns of numbers and missing values in the first `num_rows` rows, ids left out."""
        numeric = [not is_id(name) for name in self.columns]
        seen = [False] * len(self.columns)
        for row in itertools.islice(self.rows(), num_rows):
            for i, text in enumerate(row.fields[: len(numeric)]):
                value = parse_number(text) if numeric[i] else None
                numeric[i] = value is not None
                seen[i] |= value is not None and not math.isnan(value)
        return [c for c, n, s in zip(self.columns, numeric, seen, strict=True) if n and s]

    def reject(self, row: Row, reason: str | None = None) -> Reject:
        """The reject of a row, for its own error or for `reason`."""
        reason = reason or row.error or "unreadable"
        return Reject(file=self.path, record=row.line, reason=reason, raw=row.raw)


def open_table(path: str, *, delimiter: str | None = None, header: bool = True) -> Table:
    """Reads the header of a comma-, semicolon- or tab-separated file.

    Args:
        path: The file, plain or compressed by gzip.
        delimiter: One character; None: tab for .tsv and .tab, else the one of comma, semicolon
            and tab that the first line has most of.
        header: Whether the first row names the columns; else they are named "0", "1", ...
    """
    first = next(iter_rows(path, ","), None)
    if first is None:
        raise FormatError(f"{path} is empty: a header row was expected")
    delimiter = delimiter or _sniff_delimiter(path, first.raw)
    first = next(iter_rows(path, delimiter))
    if first.error is not None:
        raise FormatError(f"{path}, line {first.line}: {first.error}")
    if not header:
        columns = tuple(str(i) for i in range(len(first.fields)))
        return Table(
            path=path, delimiter=delimiter, columns=columns, offset=first.offset, line=first.line
        )
    return Table(
        path=path,
        delimiter=delimiter,
        columns=tuple(name.strip() for name in first.fields),
        offset=first.end,
        line=first.end_line,
    )


def iter_rows(
    path: str, delimiter: str | None, *, offset: int = 0, line: int = 1, comment: str = ""
) -> Iterator[Row]:
    """All records from a byte offset on, which is that of `line`; comments are left out.

    Raises:
        ConversionError: a compressed file is damaged; the rows before are yielded.
    """
    with open_binary(path) as stream:
        stream.seek(offset)
        lines = _Lines(stream, offset, line, comment)
        reader = None if delimiter is None else csv.reader(lines, delimiter=delimiter, strict=True)
        while True:
            lines.begin()
            fields, error = [], None
            try:
                fields = next(lines).split() if reader is None else next(reader)
            except StopIteration:
                return
            except csv.Error as problem:
                error = str(problem)
                lines.back_to_second()
            raw = lines.raw.rstrip("\r\n")
            if reader is None and "\r" in raw:
                error = "lines must end in LF or CR LF, not in CR alone"
            if fields or error:
                yield Row(
                    line=lines.first_line,
                    offset=lines.first_offset,
                    end=lines.offset,
                    end_line=lines.line,
                    fields=tuple(fields),
                    error=error,
                    raw=raw[:_MAX_RAW],
                )


@contextmanager
def open_binary(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a file for reading bytes, decompressed where it starts like gzip.

    Raises:
        ConversionError: inside the with block, a compressed file is damaged.
    """
    with Path(path).open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not is_gzip:
            yield file
            return
        with gzip.open(file) as stream:
            try:
                yield cast("BinaryIO", stream)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ConversionError(f"{path} is damaged: {error}") from error


def parse_number(text: str) -> float | None:
    """The number that `text` is, NaN where it says that none is known, None where it is neither."""
    text = text.strip()
    if text.casefold() in _MISSING:
        return math.nan
    try:
        # float() takes 48866084_50429806, an identifier, for a number.
        return None if "_" in text else float(text)
    except ValueError:
        return None


def checked_number(text: str) -> float | str:
    """The number that `text` is, NaN where none is known, or what is wrong with it."""
    value = parse_number(text)
    if value is None:
        return "which is not a number"
    beyond = math.isinf(value) and "inf" not in text.casefold()
    return "which float64 cannot hold" if beyond else value


def load_numbers(
    lines: Path | list[str] | list[bytes], dtype: type[np.generic], **options: Any
) -> NDArray[Any]:
    """The numbers of a file's or of some lines, [lines, columns], as ``np.loadtxt`` reads them.

    Raises:
        ValueError: a field is no number, or one that float64 cannot hold.
        OverflowError: likewise, of integers.
    """
    found: NDArray[Any] = np.loadtxt(lines, dtype, ndmin=2, comments=None, **options)
    if found.dtype.kind == "f" and np.isinf(found).any():
        texts = lines.read_bytes().splitlines() if isinstance(lines, Path) else lines
        for text in texts:
            line = text if isinstance(text, str) else text.decode()
            for word in re.split(r"[\s,]+", line):
                if word and isinstance(fault := checked_number(word), str):
                    raise ValueError(f"{word}, {fault}")
    return found


def parse_numbers(row: Row, table: Table, positions: Sequence[int]) -> list[float] | Reject:
    """The numbers in some fields of a row, or its reject where one is not a number."""
    values = []
    for position in positions:
        text = row.fields[position] if position < len(row.fields) else ""
        value = checked_number(text)
        if isinstance(value, str):
            column = table.columns[position]
            return table.reject(row, f"column {column!r} holds {text!r}, {value}")
        values.append(value)
    return values


def is_id(name: str) -> bool:
    """Whether a column of that name counts or names the rows, so that it is not a target."""
    return name.casefold() in _ID_NAMES


def _sniff_delimiter(path: str, first_line: str) -> str:
    if suffix_of(Path(path)) in {".tsv", ".tab"}:
        return "\t"
    return max(",;\t", key=first_line.count)


class _Lines:
    """The lines of a stream as text, for csv.reader, which takes no more of them than it needs.

    Counts the bytes and lines taken, and keeps the text of those since `begin`. A byte that is
    not UTF-8 becomes a lone surrogate, so that it spoils its own field only.
    """

    def __init__(self, stream: BinaryIO, offset: int, line: int, comment: str) -> None:
        self._stream = stream
        self._comment = tuple(comment)
        self.offset = self.first_offset = offset
        self.line = self.first_line = line
        self._parts: list[tuple[str, int]] = []
        self._again: list[tuple[str, int]] = []

    def begin(self) -> None:
        """The next line is the first of a record."""
        self._parts.clear()

    @property
    def raw(self) -> str:
        """The lines since `begin`, comments before the first left out."""
        return "".join(text for text, _ in self._parts)

    def back_to_second(self) -> None:
        """Gives the lines since the first once more, as those of other records."""
        again = self._parts[1:]
        del self._parts[1:]
        self._again += reversed(again)
        self.offset -= sum(nbytes for _, nbytes in again)
        self.line -= len(again)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while (taken := self._take()) is not None:
            text, nbytes = taken
            first_offset, first_line = self.offset, self.line
            self.offset += nbytes
            self.line += 1
            if not self._parts and self._comment and text.startswith(self._comment):
                continue
            if not self._parts:
                self.first_offset, self.first_line = first_offset, first_line
            self._parts.append(taken)
            return text
        raise StopIteration

    def _take(self) -> tuple[str, int] | None:
        """The next line and its bytes, or None at the end."""
        if self._again:
            return self._again.pop()
        data = self._stream.readline()
        encoding = "utf-8-sig" if self.offset == 0 else "utf-8"
        return (data.decode(encoding, errors="surrogateescape"), len(data)) if data else None
