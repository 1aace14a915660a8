"""Parquet files: their columns as arrays, and what their schema tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.convert.build import as_dtype
from shardgraph.convert.sources._edge_tables import TableColumns
from shardgraph.errors import FormatError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which columns are read, and as what."""

    smiles: str | None
    lists: dict[str, str]
    """Attribute by column, of the columns of lists of numbers."""
    targets: tuple[str, ...]
    has_num_nodes: bool
    floating: frozenset[str]
    """Columns of floats."""
    widths: dict[str, int]
    """Of lists of lists: the length of the inner ones, which an empty list does not tell."""
    split: tuple[str, ...]
    """The column that tells the split, where one does."""

    def columns(self) -> list[str]:
        """The columns to read."""
        told = [self.smiles] if self.smiles else [*self.lists]
        extra = ["num_nodes"] if self.has_num_nodes else []
        return list(dict.fromkeys([*told, *extra, *self.targets, *self.split]))


def open_parquet(path: Path) -> Any:
    """An open ``pyarrow.parquet.ParquetFile``; FormatError where it is none."""
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise FormatError(f"{path} cannot be read as Parquet: {error}") from error


def column_arrays(paths: Sequence[Path], columns: TableColumns) -> dict[str, NDArray[Any]]:
    """The columns of all files, joined; ids are int64 or text.

    Raises:
        FormatError: a file lacks a column, or an id is missing.
        SchemaError: an id is a number that is no integer of 64 bits.
    """
    names = [*columns.ids, *columns.values]
    names += [name for name in (columns.graph, columns.labels) if name is not None]
    parts = []
    for path in paths:
        with open_parquet(path) as file:
            if missing := sorted(set(names) - set(file.schema_arrow.names)):
                raise FormatError(f"{path} has no column {', '.join(missing)}")
            parts.append(file.read(columns=names))
    ids = [name for name in (*columns.ids, columns.graph) if name is not None]
    for name in ids:
        if any(part[name].null_count for part in parts):
            raise FormatError(f"{paths[0]}: column {name!r} has a null, where an id is needed")

    def array(part: Any, name: str) -> NDArray[Any]:
        values: NDArray[Any] = part[name].to_numpy(zero_copy_only=False)
        # Ids of two types of numbers would be compared as floats.
        is_id = name in ids and values.dtype.kind in "biuf"
        return as_dtype(values, np.int64, name) if is_id else values

    return {name: np.concatenate([array(part, name) for part in parts]) for name in names}


def single_numbers(schema: Any) -> list[str]:
    """The columns of one number a row."""
    import pyarrow.types as kinds  # type: ignore[import-untyped]

    checks = (kinds.is_integer, kinds.is_floating, kinds.is_boolean)
    return [field.name for field in schema if any(check(field.type) for check in checks)]


def inner_widths(batch: Any, columns: Sequence[str]) -> dict[str, int]:
    """Of columns of lists of lists: the length of the first inner list."""
    found = {}
    for name in columns:
        rows = (row for row in batch.column(name).to_pylist() if row)
        if isinstance(inner := next(rows, [0])[0], list):
            found[name] = len(inner)
    return found


def leaf_type(kind: Any) -> Any:
    """The type of the values in lists of lists."""
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return kind
