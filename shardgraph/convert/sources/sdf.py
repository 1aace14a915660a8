"""Molecules with 3-D positions from an SDF file, plain or .gz, with targets from it or beside it.

The format is the CTfile format, V2000 and V3000: records end with a line ``$$$$``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shardgraph.convert import table as tables
from shardgraph.convert.files import suffix_of
from shardgraph.convert.source import (
    Confidence,
    Option,
    Partition,
    Reject,
    Source,
    require,
    runs_of_records,
)
from shardgraph.convert.sources import _rdkit
from shardgraph.errors import FormatError, SchemaError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

_SUFFIXES = frozenset({".sdf", ".sd"})
_PROPERTY = re.compile(r"^>.*?<([^>]*)>.*\n((?:[^\n]*\S[^\n]*\n?)*)", re.MULTILINE)
_SNIFFED_RECORDS = 1000
_MAX_RAW = 1000


class _Record(NamedTuple):
    line: int
    offset: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _SdfPartition(Partition):
    """A run of records, and the row of the companion table that belongs to the first."""

    row_offset: int
    row_line: int
    rows_of_valid: bool
    """Whether records that RDKit rejects have no row."""


class SdfSource(Source):
    """Reads one molecule a record: atoms in the file's order, each bond as two edges.

    ``x`` int64 [N, 9], ``edge_index`` and ``edge_attr`` int64 [E, 3] are those of
    ``torch_geometric.utils.from_rdmol``; ``z`` int64 [N] the atomic numbers, ``pos`` float32
    [N, 3] the coordinates of the file (angstrom), ``y`` float32 [1, T] the targets.

    Targets come from a table beside the file or, without one, from the records' own properties.
    Rows of the table belong to the records where there are as many rows as records; to those
    records that RDKit can read where there are as many as these, which takes a pass over all
    molecules to find out; any other number is an error.

    Args:
        spec: The file.
        targets: Columns or properties that become ``y``; None takes all of numbers, an empty
            list none.
        targets_file: The table; None takes NAME.sdf.csv or NAME.csv beside NAME.sdf where there
            is one.
        remove_hydrogens: Drops explicit hydrogens.
    """

    name = "sdf"
    description = "molecules with 3-D positions in an SDF file, targets in it or in NAME.sdf.csv"
    extra = "chem"
    records_per_partition = _rdkit.RECORDS_PER_PARTITION
    options = (
        Option(name="targets", type=str, many=True, help="columns or properties that become y"),
        Option(name="targets_file", type=str, help="table of targets (recognised by name)"),
        Option(name="remove_hydrogens", type=bool, help="drop hydrogens", default=False),
    )

    def __init__(
        self,
        spec: str,
        *,
        targets: Sequence[str] | None = None,
        targets_file: str | None = None,
        remove_hydrogens: bool = False,
    ) -> None:
        super().__init__(spec)
        require("rdkit", "chem", "reading SDF")
        self._targets = targets if targets is None else tuple(targets)
        self._targets_file = targets_file or self._companion()
        self._remove_hydrogens = remove_hydrogens

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of .sdf and .sd."""
        return Confidence.CERTAIN if suffix_of(Path(spec)) in _SUFFIXES else None

    def partitions(self) -> Sequence[Partition]:
        """Runs of 2,000 records."""
        found = runs_of_records(self.spec, _records(self.spec), self.records_per_partition)
        return found if self._table is None else self._with_rows(found, self._table)

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:
        """Yields a `Data` or a `Reject` per record."""
        rows, rows_of_valid = None, False
        if isinstance(partition, _SdfPartition) and self._table is not None:
            rows = self._table.rows(offset=partition.row_offset, line=partition.row_line)
            rows_of_valid = partition.rows_of_valid
        records = _records(self.spec, offset=partition.offset, line=partition.line)
        for record in itertools.islice(records, partition.num_records):
            mol = self._parse(record)
            has_row = rows is not None and not (rows_of_valid and isinstance(mol, str))
            yield self._graph(record, mol, next(rows) if rows is not None and has_row else None)

    def files(self) -> list[Path]:
        """The file, and the table of targets."""
        return [Path(self.spec), *([Path(self._targets_file)] if self._targets_file else [])]

    def provenance(self) -> dict[str, Any]:
        """The targets chosen and where they come from, beside the files."""
        table = Path(self._targets_file).name if self._targets_file else None
        return super().provenance() | {
            "targets": list(self._names),
            "options": {
                "targets_file": table,
                "remove_hydrogens": self._remove_hydrogens,
            },
        }

    def _companion(self) -> str | None:
        path = Path(self.spec)
        stem = path.name[: -len(".gz")] if path.suffix.lower() == ".gz" else path.name
        beside = [path.with_name(f"{stem}.csv"), path.with_name(f"{Path(stem).stem}.csv")]
        return next((str(table) for table in beside if table.is_file()), None)

    @cached_property
    def _table(self) -> tables.Table | None:
        return tables.open_table(self._targets_file) if self._targets_file else None

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """The targets: given, or recognised as numbers."""
        if self._targets is not None:
            if self._table is not None:
                for name in self._targets:
                    self._table.column(name)
            return self._targets
        if self._table is not None:
            found = self._table.numeric_columns(_SNIFFED_RECORDS)
        else:
            records = itertools.islice(_records(self.spec), _SNIFFED_RECORDS)
            found = _numeric_properties(_properties(record.text) for record in records)
        return tuple(name for name in found if name != self.split_by)

    def _with_rows(self, parts: list[Partition], table: tables.Table) -> list[Partition]:
        """Adds to each partition the row of the table at which its first record's is."""
        num_records = sum(part.num_records or 0 for part in parts)
        num_rows, places = table.locate([part.first for part in parts])
        rows_of_valid = num_rows != num_records
        if rows_of_valid:
            before = [0]
            for part in parts:
                before.append(before[-1] + sum(self._is_valid(part)))
            if num_rows != before[-1]:
                raise FormatError(
                    f"{table.path} has {num_rows} rows, but {self.spec} has {num_records} "
                    f"records, {before[-1]} of which RDKit can read: the rows cannot be matched"
                )
            _, places = table.locate(before[:-1])
        return [
            _SdfPartition(
                **dataclasses.asdict(part),
                row_offset=offset,
                row_line=line,
                rows_of_valid=rows_of_valid,
            )
            for part, (offset, line) in zip(parts, places, strict=True)
        ]

    def _is_valid(self, part: Partition) -> Iterator[bool]:
        records = _records(self.spec, offset=part.offset, line=part.line)
        for record in itertools.islice(records, part.num_records):
            yield not isinstance(self._parse(record), str)

    def _parse(self, record: _Record) -> Any:
        """The molecule, or a sentence on why RDKit rejects it."""
        from rdkit import Chem

        return _rdkit.parse(
            Chem.MolFromMolBlock,
            record.text,
            "not a mol block that RDKit can read",
            removeHs=self._remove_hydrogens,
        )

    def _graph(self, record: _Record, mol: Any, row: tables.Row | None) -> BaseData | Reject:
        if isinstance(mol, str):
            return self._reject(record, mol)
        y = self._y(record, row)
        if isinstance(y, Reject):
            return y
        data = _rdkit.from_mol(mol)
        if isinstance(data, str):
            return self._reject(record, data)
        _rdkit.add_positions(data, mol)
        if (split := self._split(record, row)) is not None:
            data[self.split_by] = split
        if self._names:
            try:
                data.y = _rdkit.row_tensor(y)
            except SchemaError as error:
                return self._reject(record, str(error))
        return data

    def _y(self, record: _Record, row: tables.Row | None) -> list[float] | Reject:
        if row is not None and self._table is not None:
            if row.error is not None:
                return self._table.reject(row)
            positions = [self._table.column(name) for name in self._names]
            return tables.parse_numbers(row, self._table, positions)
        properties, values = _properties(record.text), []
        for name in self._names:
            value = tables.checked_number(properties.get(name, ""))
            if isinstance(value, str):
                return self._reject(record, f"property {name!r} is {properties[name]!r}, {value}")
            values.append(value)
        return values

    def _split(self, record: _Record, row: tables.Row | None) -> str | None:
        """The text that tells the subset: of the table, or else of the record."""
        name = self.split_by or ""
        if row is not None and self._table is not None and name in self._table.columns:
            return row.fields[self._table.column(name)].strip()
        return _properties(record.text).get(name)

    def _reject(self, record: _Record, reason: str) -> Reject:
        return Reject(file=self.spec, record=record.line, reason=reason, raw=record.text[:_MAX_RAW])


def _records(path: str, *, offset: int = 0, line: int = 1) -> Iterator[_Record]:
    """The records of an SDF file from a place on; text after the last ``$$$$`` is one too."""
    with tables.open_binary(path) as stream:
        stream.seek(offset)
        lines: list[bytes] = []
        start, start_line = offset, line
        for text in stream:
            offset, line = offset + len(text), line + 1
            if text.startswith(b"$$$$"):
                yield _Record(start_line, start, _decode(lines))
                lines, start, start_line = [], offset, line
            else:
                lines.append(text)
        if any(text.strip() for text in lines):
            yield _Record(start_line, start, _decode(lines))


def _decode(lines: list[bytes]) -> str:
    # RDKit ends a line at \n only.
    return b"".join(lines).decode("utf-8", errors="replace").replace("\r\n", "\n")


def _properties(text: str) -> dict[str, str]:
    """Name and value of the data items after the mol block."""
    _, end, items = text.partition("M  END")
    return {name: value.strip() for name, value in _PROPERTY.findall(items)} if end else {}


def _numeric_properties(records: Iterable[dict[str, str]]) -> list[str]:
    values: dict[str, list[float | None]] = {}
    for properties in records:
        for name, text in properties.items():
            values.setdefault(name, []).append(tables.parse_number(text))
    return [
        name
        for name, found in values.items()
        if not tables.is_id(name)
        and None not in found
        and any(value is not None and not math.isnan(value) for value in found)
    ]
