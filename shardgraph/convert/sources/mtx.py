"""Adjacency matrices in Matrix Market files (.mtx, plain or .gz), one graph a file.

The format is described at https://math.nist.gov/MatrixMarket/formats.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.convert import table as tables
from shardgraph.convert.build import as_dtype, make_data
from shardgraph.convert.files import FileSource
from shardgraph.convert.source import Reject
from shardgraph.errors import FormatError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

_HEADER = re.compile(
    r"%%matrixmarket\s+matrix\s+(?P<layout>coordinate|array)\s+"
    r"(?P<field>real|double|integer|complex|pattern)\s+"
    r"(?P<symmetry>general|symmetric|skew-symmetric|hermitian)\s*",
    re.IGNORECASE,
)
_Number = type[np.float64] | type[np.int64]
_DTYPES: dict[str, _Number] = {
    "real": np.float64,
    "double": np.float64,
    "integer": np.int64,
    "complex": np.float64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrix:
    """The stored entries, counted from 0; values are None for a pattern."""

    shape: tuple[int, int]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[Any] | None
    symmetry: str


class MtxSource(FileSource):
    """Reads a square matrix as a graph: an edge from row to column for each stored entry.

    Of symmetric matrices both halves become edges. ``edge_index`` is sorted by row and column,
    ``edge_weight`` [E] float32, int64 or complex64 holds the values, and pattern matrices have
    none. Explicit zeros of a sparse matrix are edges, zeros of a dense one are not. A rectangular
    matrix becomes `HeteroData` with edges from nodes "row" to nodes "column".
    """

    name = "mtx"
    description = "adjacency matrices in Matrix Market files, one or a folder of .mtx or .mtx.gz"
    suffixes = frozenset({".mtx"})

    def read_file(self, path: Path) -> Iterator[BaseData | Reject]:
        """Yields the graph of one file."""
        matrix = _mirrored(_read(path))
        order = np.lexsort((matrix.columns, matrix.rows))
        edges = np.stack([matrix.rows, matrix.columns])[:, order]
        weight = None if matrix.values is None else _narrow(matrix.values[order])
        num_rows, num_columns = matrix.shape
        if num_rows == num_columns:
            yield make_data(edge_index=edges, edge_weight=weight, num_nodes=num_rows)
        else:
            yield _bipartite(matrix.shape, make_data(edge_index=edges, edge_weight=weight))


def _bipartite(shape: tuple[int, int], edges: BaseData) -> BaseData:
    from torch_geometric.data import HeteroData

    graph: BaseData = HeteroData()
    graph["row"].num_nodes, graph["column"].num_nodes = shape
    graph["row", "to", "column"].update(edges.to_dict())
    return graph


def _read(path: Path) -> _Matrix:
    with tables.open_binary(path) as stream:
        lines = enumerate((line.decode("utf-8", errors="replace") for line in stream), start=1)
        _, first = next(lines, (1, ""))
        header = _HEADER.fullmatch(first)
        if header is None:
            raise FormatError(
                f"{path}, line 1: {first.strip()!r} is not a header such as "
                "'%%MatrixMarket matrix coordinate real general'"
            )
        told = {key: value.lower() for key, value in header.groupdict().items()}
        data = ((n, text) for n, text in lines if text.strip() and not text.startswith("%"))
        number, sizes = next(data, (1, ""))
        try:
            num_rows, num_columns, *num_entries = (int(size) for size in sizes.split())
        except ValueError as error:
            raise FormatError(f"{path}, line {number}: {sizes.strip()!r} are not sizes") from error
        if min(num_rows, num_columns) < 0 or len(num_entries) != (told["layout"] == "coordinate"):
            raise FormatError(f"{path}, line {number}: {sizes.strip()!r} are not sizes")
        if max(num_rows, num_columns, *num_entries) >= 1 << 63:
            raise FormatError(f"{path}, line {number}: {sizes.strip()!r} are beyond 64 bits")
        shape = (num_rows, num_columns)
        if told["symmetry"] != "general" and num_rows != num_columns:
            raise FormatError(f"{path}: a {told['symmetry']} matrix of {shape} is not square")
        if told["layout"] == "array":
            return _dense(path, data, shape, told)
        return _sparse(path, data, shape, told, num_entries[0])


def _sparse(
    path: Path,
    data: Iterator[tuple[int, str]],
    shape: tuple[int, int],
    told: dict[str, str],
    num_entries: int,
) -> _Matrix:
    field = told["field"]
    width = {"pattern": 2, "complex": 4}.get(field, 3)
    found = _numbers(path, data, width, _DTYPES.get(field, np.int64))
    if len(found) != num_entries:
        raise FormatError(f"{path}: {len(found)} entries, where the header tells {num_entries}")
    places = as_dtype(found[:, :2], np.int64, "row or column") - 1
    outside = np.flatnonzero(((places < 0) | (places >= shape)).any(axis=1))
    if len(outside):
        entry = (places[outside[0]] + 1).tolist()
        raise FormatError(f"{path}, entry {outside[0] + 1}: {entry} is outside of {shape}")
    values = None if field == "pattern" else _values(found[:, 2:], field)
    return _Matrix(
        shape=shape,
        rows=places[:, 0],
        columns=places[:, 1],
        values=values,
        symmetry=told["symmetry"],
    )


def _dense(
    path: Path, data: Iterator[tuple[int, str]], shape: tuple[int, int], told: dict[str, str]
) -> _Matrix:
    """Columns one after the other; of symmetric matrices only from the diagonal down."""
    field, symmetry = told["field"], told["symmetry"]
    if field == "pattern":
        raise FormatError(f"{path}: a dense matrix has values, it cannot be a pattern")
    found = _numbers(path, data, 2 if field == "complex" else 1, _DTYPES[field])
    lowest = {"general": -shape[0], "skew-symmetric": 1}.get(symmetry, 0)
    size = shape[0]  # and shape[1], but in a general one
    expected = shape[0] * shape[1] if symmetry == "general" else size * (size + 1 - 2 * lowest) // 2
    if len(found) != expected:
        raise FormatError(f"{path}: {len(found)} values, where {shape} needs {expected}")
    columns, rows = np.divmod(np.arange(shape[0] * shape[1]), max(shape[0], 1))
    kept = rows - columns >= lowest
    values = _values(found, field)
    edges = values != 0
    return _Matrix(
        shape=shape,
        rows=rows[kept][edges],
        columns=columns[kept][edges],
        values=values[edges],
        symmetry=symmetry,
    )


def _numbers(
    path: Path,
    data: Iterator[tuple[int, str]],
    width: int,
    dtype: _Number,
) -> NDArray[Any]:
    """All remaining lines, [lines, width]; a wrong one is named."""
    numbers, texts = [], []
    for number, text in data:
        numbers.append(number)
        texts.append(text)
    if not texts:
        return np.empty((0, width), dtype=dtype)
    try:
        return tables.load_numbers(texts, dtype, usecols=range(width))
    except (ValueError, OverflowError, IndexError):
        for number, text in zip(numbers, texts, strict=True):
            try:
                tables.load_numbers([text], dtype, usecols=range(width))
            except (ValueError, OverflowError, IndexError) as error:
                raise FormatError(f"{path}, line {number}: {error}") from error
        raise


def _values(columns: NDArray[Any], field: str) -> NDArray[Any]:
    return columns[:, 0] + 1j * columns[:, 1] if field == "complex" else columns[:, 0]


def _mirrored(matrix: _Matrix) -> _Matrix:
    """The matrix with the half that a symmetric one leaves out."""
    if matrix.symmetry == "general":
        return matrix
    off = matrix.rows != matrix.columns
    values = matrix.values
    if values is not None:
        other = values[off]
        if matrix.symmetry == "skew-symmetric":
            other = -other
        elif matrix.symmetry == "hermitian":
            other = other.conj()
        values = np.concatenate([values, other])
    return _Matrix(
        shape=matrix.shape,
        rows=np.concatenate([matrix.rows, matrix.columns[off]]),
        columns=np.concatenate([matrix.columns, matrix.rows[off]]),
        values=values,
        symmetry="general",
    )


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    """The dtype of a graph's values: float32 and complex64, integers as they are."""
    dtypes = {"f": np.float32, "c": np.complex64}
    return as_dtype(values, dtypes.get(values.dtype.kind, np.int64), "edge_weight")
