"""The SQLite database of a PyG ``OnDiskDataset``."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from shardgraph.convert.build import make_data
from shardgraph.convert.restore import is_graph, restore_graph, restore_value
from shardgraph.convert.source import Confidence, Option, Partition, Reject, Source
from shardgraph.convert.torchfile import load_pt_bytes
from shardgraph.errors import FormatError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

_COLUMN = re.compile(r"COL_(.+)")
_SCHEMA = re.compile(r"(?P<name>\w+)=(?P<dtype>\w+)(:(?P<size>-?\d+(,-?\d+)*))?")
_DTYPES = frozenset(
    {"float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"}
)
_SAVED = (b"PK\x03\x04", b"\x80\x02\x8a\x0a")


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowsPartition(Partition):
    """Some rows of the table, from the one with that id on."""

    start_id: int


class OnDiskSource(Source):
    """Reads the rows of the table in the order of their ids, read-only.

    Saved objects (the default schema) are `Data` or a dict of attributes; of a schema of columns
    each becomes an attribute. The database does not keep the schema: tensors are bare bytes, and
    their type must be told, but for ``edge_index`` (int64, 2 x E). Pickles run no code; see
    `PygSource`.

    Args:
        spec: The file sqlite.db, or the root or ``processed`` folder that holds it.
        schema: Of the columns that are tensors: NAME=DTYPE or NAME=DTYPE:SIZE, as in
            ``x=float32:-1,9``; the size is that of `OnDiskDataset`'s schema, by default -1.
        trust_pickle: Loads any pickle, running whatever code it holds.
    """

    name = "ondisk"
    description = "the SQLite database of a PyG OnDiskDataset"
    options = (
        Option(name="schema", type=str, many=True, help="tensor columns, as x=float32:-1,9"),
        Option(
            name="trust_pickle",
            type=bool,
            help="load any pickle, running whatever code it holds",
            default=False,
        ),
    )

    def __init__(
        self, spec: str, *, schema: Sequence[str] | None = None, trust_pickle: bool = False
    ) -> None:
        super().__init__(spec)
        self._trust = trust_pickle
        self._schema: dict[str, tuple[str, tuple[int, ...]]] = {"edge_index": ("int64", (2, -1))}
        for item in schema or ():
            match = _SCHEMA.fullmatch(item)
            if match is None or match["dtype"] not in _DTYPES:
                raise ValueError(
                    f"schema takes NAME=DTYPE or NAME=DTYPE:SIZE with one of "
                    f"{', '.join(sorted(_DTYPES))}, got {item!r}"
                )
            size = tuple(int(part) for part in (match["size"] or "-1").split(","))
            self._schema[match["name"]] = (match["dtype"], size)

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of a SQLite file with a table that PyG's has made."""
        path = _database(Path(spec))
        try:
            return Confidence.CERTAIN if path is not None and _table(path) else None
        except (OSError, FormatError):
            return None

    def partitions(self) -> Sequence[Partition]:
        """Runs of 10,000 rows."""
        table, _ = self._table
        size = self.records_per_partition
        with closing(_connect(self._path)) as connection:
            ids = (row[0] for row in connection.execute(f"SELECT id FROM {table} ORDER BY id"))
            found: list[Partition] = []
            while (start := next(ids, None)) is not None:
                count = 1 + sum(1 for _, _ in zip(range(size - 1), ids, strict=False))
                found.append(
                    _RowsPartition(
                        file=str(self._path),
                        first=len(found) * size,
                        num_records=count,
                        start_id=start,
                    )
                )
        return found

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:
        """Yields a graph or a `Reject` per row."""
        if not isinstance(partition, _RowsPartition):
            raise TypeError(f"expected a partition of this source, got {partition!r}")
        table, names = self._table
        columns = ", ".join(_quoted(f"COL_{name}") for name in names)
        query = f"SELECT id, {columns} FROM {table} WHERE id >= ? ORDER BY id LIMIT ?"
        with closing(_connect(self._path)) as connection:
            rows = connection.execute(query, (partition.start_id, partition.num_records))
            for row_id, *values in rows:
                where = f"{self._path}, row {row_id}"
                try:
                    yield self._graph(dict(zip(names, values, strict=True)), where)
                except (FormatError, RuntimeError, TypeError, ValueError) as error:
                    reason = f"{type(error).__name__}: {error}"
                    yield Reject(file=str(self._path), record=f"row {row_id}", reason=reason)

    def files(self) -> list[Path]:
        """The database."""
        return [self._path]

    def provenance(self) -> dict[str, Any]:
        """The schema told, beside the file."""
        schema = {name: [dtype, list(size)] for name, (dtype, size) in self._schema.items()}
        return super().provenance() | {
            "options": {"schema": schema, "trust_pickle": self._trust},
        }

    @property
    def _path(self) -> Path:
        path = _database(Path(self.spec))
        if path is None:
            raise FormatError(f"{self.spec} holds no sqlite.db of an OnDiskDataset")
        return path

    @cached_property
    def _table(self) -> tuple[str, list[str]]:
        """The table, quoted, and the names of its columns without COL_."""
        found = _table(self._path)
        if found is None:
            raise FormatError(f"{self._path} holds no table of an OnDiskDataset")
        return found

    def _graph(self, row: dict[str, Any], where: str) -> BaseData:
        values = {name: self._value(name, value, where) for name, value in row.items()}
        # A schema that is not a dict is one of columns 0, 1, ...
        value = values["0"] if list(values) == ["0"] else values
        if is_graph(value):
            return restore_graph(value, where)
        if not isinstance(value, dict) or "0" in value:
            raise FormatError(f"{where}: a {type(value).__name__}, expected a graph or a dict")
        return make_data(**{name: restore_value(item) for name, item in value.items()})

    def _value(self, name: str, value: Any, where: str) -> Any:
        if not isinstance(value, bytes):
            return float("nan") if value is None else value
        if value.startswith(_SAVED):
            return load_pt_bytes(value, where, trust=self._trust)
        if name not in self._schema:
            raise FormatError(
                f"{where}: column {name} is a tensor of {len(value)} bytes, and the database does "
                f"not tell of what type: give it as schema, such as {name}=float32:-1,9"
            )
        dtype, size = self._schema[name]
        return np.frombuffer(value, dtype=dtype).reshape(size).copy()


def _database(path: Path) -> Path | None:
    candidates = [path / "sqlite.db", path / "processed" / "sqlite.db"] if path.is_dir() else [path]
    for candidate in candidates:
        if candidate.is_file():
            with candidate.open("rb") as file:
                if file.read(16) == b"SQLite format 3\x00":
                    return candidate
    return None


def _table(path: Path) -> tuple[str, list[str]] | None:
    """The one table with an id and columns named COL_..., quoted, and their names."""
    with closing(_connect(path)) as connection:
        try:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            for (name,) in tables.fetchall():
                columns = [
                    row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(name)})")
                ]
                matches = [_COLUMN.fullmatch(column) for column in columns[1:]]
                if columns[:1] == ["id"] and matches and all(matches):
                    return _quoted(name), [match[1] for match in matches if match]
        except sqlite3.DatabaseError as error:
            raise FormatError(f"{path} cannot be read as SQLite: {error}") from error
    return None


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
