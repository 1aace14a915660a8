"""Edge lists: one edge a line, separated by commas, semicolons, tabs or blanks; plain or .gz."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.convert import table as tables
from shardgraph.convert.build import make_data
from shardgraph.convert.files import FileSource, suffix_of
from shardgraph.convert.report import counted
from shardgraph.convert.source import Confidence, Option, Reject
from shardgraph.errors import ConversionError, FormatError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

SOURCE_NAMES = ("source", "src", "from", "head", "u", "source_id", "src_id", "fromnodeid", "node1")
TARGET_NAMES = ("target", "dst", "to", "tail", "v", "target_id", "dst_id", "tonodeid", "node2")
GRAPH_NAMES = ("graph_id", "graph", "graphid")
_EDGES_ONLY = frozenset({".edges", ".edgelist", ".el"})
_TEXT = frozenset({".csv", ".tsv", ".tab", ".txt"})
_COMMENT = "#%"
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_SNIFFED_ROWS = 1000
_MOST_FIELDS = 4
"""Of a row that is taken for an edge without being called one: two ids, a weight and a time."""
_ROWS_AT_ONCE = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Positions of what is read of each row."""

    source: int
    target: int
    graph: int | None
    relation: int | None
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Rows as numbers: ids [E, 2], graphs [E], relations [E] and values [E, K]."""

    edges: NDArray[np.int64]
    graph: NDArray[np.int64]
    relation: NDArray[np.int64] | None
    values: NDArray[np.floating[Any]] | None

    def take(self, rows: NDArray[np.int64]) -> _Rows:
        """Some of the rows."""
        return _Rows(
            edges=self.edges[rows],
            graph=self.graph[rows],
            relation=None if self.relation is None else self.relation[rows],
            values=None if self.values is None else self.values[rows],
        )


@dataclass(slots=True)
class _Ids:
    """Names of nodes, graphs or relations as numbers: themselves where all are integers.

    Text is numbered in the order in which it comes.
    """

    integers: bool
    numbers: dict[str, int] = field(default_factory=dict)

    def of(self, texts: Sequence[str]) -> NDArray[np.int64]:
        if self.integers:
            if not all(map(_INTEGER.fullmatch, texts)):
                raise _NotIntegers
            return np.array([int(text) for text in texts], dtype=np.int64)
        known = self.numbers
        return np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int64)

    def names(self, numbers: NDArray[np.int64]) -> NDArray[np.int64] | list[str]:
        """The names of some numbers."""
        if self.integers:
            return numbers
        names = list(self.numbers)
        return [names[number] for number in numbers]


class _NotIntegers(Exception):
    """An id is not an integer after all: all of them are read as text."""


class EdgelistSource(FileSource):
    """Reads a file as one graph, or as many where a column tells the graph of each edge.

    Ids of nodes are any text. They are numbered in ascending order where all are integers, in the
    order in which they come otherwise, per graph, and ``node_id`` keeps them: int64 [N] or a list
    of str. ``edge_index`` has the edges in the file's order; one column of values becomes
    ``edge_weight`` float32 [E], several ``edge_attr`` float32 [E, K] (float64 if an integer of the
    file, such as a time, needs it), a relation ``edge_type`` int64 [E]. Graphs come in ascending
    order of their ``graph_id``, whatever the order of lines.

    A file is read whole: memory is that of its numbers. All lines have as many fields as the first;
    those that start with # or % are comments. The first line names the columns if it has a known
    name for source and target (source, src, from, head; target, dst, to, tail); else columns are
    named "0", "1", ...

    Args:
        spec: The file, or a folder of .edges, .edgelist or .el files.
        source: Column of the sources; None recognises it, or takes the first.
        target: Column of the targets; None recognises it, or takes the second.
        graph: Column that tells the graph; None recognises graph_id, graph or graphid.
        relation: Column of categories, the numbers of which `provenance` tells.
        values: Columns of numbers; None takes all columns of numbers that are left.
        undirected: Adds to each edge its inverse, after all others.
    """

    name = "edgelist"
    description = "edge lists: one edge a line (CSV, TSV or blanks), ids of any kind, plain or .gz"
    suffixes = _EDGES_ONLY
    options = (
        Option(name="source", type=str, help="column of the sources (recognised, or the first)"),
        Option(name="target", type=str, help="column of the targets (recognised, or the second)"),
        Option(name="graph", type=str, help="column that tells the graph of an edge (recognised)"),
        Option(name="relation", type=str, help="column of categories that become edge_type"),
        Option(name="values", type=str, many=True, help="columns of numbers (all that are left)"),
        Option(name="undirected", type=bool, help="add the inverse of each edge", default=False),
    )

    def __init__(
        self,
        spec: str,
        *,
        source: str | None = None,
        target: str | None = None,
        graph: str | None = None,
        relation: str | None = None,
        values: Sequence[str] | None = None,
        undirected: bool = False,
    ) -> None:
        super().__init__(spec)
        self._source, self._target = source, target
        self._graph, self._relation = graph, relation
        self._values = values if values is None else tuple(values)
        self._undirected = undirected

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of its own suffixes and of known column names; possible for pairs of integers.

        Those start each of the first lines, all of which have the same two to four fields.
        """
        path = Path(spec)
        if path.is_dir() or suffix_of(path) in _EDGES_ONLY:
            return super().recognise(spec)
        if suffix_of(path) not in _TEXT:
            return None
        try:
            table = _open(path)
            rows = list(itertools.islice(table.rows(), _SNIFFED_ROWS))
        except (OSError, FormatError, ConversionError):
            return None
        if find_column(table.columns, SOURCE_NAMES) and find_column(table.columns, TARGET_NAMES):
            return Confidence.CERTAIN
        alike = all(len(row.fields) == len(table.columns) for row in rows)
        pairs = rows and all(all(map(_INTEGER.fullmatch, row.fields[:2])) for row in rows)
        fits = 2 <= len(table.columns) <= _MOST_FIELDS and alike and pairs
        return Confidence.POSSIBLE if fits else None

    def read_file(self, path: Path) -> Iterator[BaseData | Reject]:
        """Yields the graphs of one file."""
        table, columns = self._looked_at(path)
        _check_header(table, columns)
        try:
            yield from self._graphs(table, columns, integers=True)
        except _NotIntegers:
            yield from self._graphs(table, columns, integers=False)

    def provenance(self) -> dict[str, Any]:
        """The columns chosen, and the relations in the order of their numbers."""
        table, columns = self.of_first(self._looked_at)
        named: dict[str, Any] = {
            key: None if position is None else table.columns[position]
            for key, position in (
                ("source", columns.source),
                ("target", columns.target),
                ("graph", columns.graph),
                ("relation", columns.relation),
            )
        }
        named["values"] = [table.columns[position] for position in columns.values]
        told = super().provenance() | {"options": named | {"undirected": self._undirected}}
        if columns.relation is not None:
            told["relations"] = self._vocabulary
        return told

    @cached_property
    def _vocabulary(self) -> list[str]:
        """All relations of all files, sorted: their numbers do not depend on one file alone."""
        found: set[str] = set()
        for path in self.files():
            try:
                table = self._open(path)
            except (FormatError, ConversionError):
                continue  # `read` tells of it in its turn
            position = table.column(self._relation or "")
            rows = (row.fields for row in table.rows() if len(row.fields) > position)
            found.update(fields[position].strip() for fields in rows)
        return sorted(found)

    def _looked_at(self, path: Path) -> tuple[tables.Table, _Columns]:
        table = self._open(path)
        return table, self._positions(table)

    def _open(self, path: Path) -> tables.Table:
        given = (self._source, self._target, self._graph, self._relation, *(self._values or ()))
        return _open(path, [name for name in given if name is not None])

    def _positions(self, table: tables.Table) -> _Columns:
        columns = table.columns

        def position(given: str | None, names: Sequence[str], default: int | None) -> int | None:
            name = given or find_column(columns, names)
            return default if name is None else table.column(name)

        source = position(self._source, SOURCE_NAMES, 0)
        target = position(self._target, TARGET_NAMES, 1)
        if len(columns) < 2 or source is None or target is None:
            raise FormatError(f"{table.path} has one column, {columns[0]!r}; an edge needs two")
        graph = position(self._graph, GRAPH_NAMES, None)
        relation = position(self._relation, (), None)
        values = self._values
        if values is None:
            taken = {source, target, graph, relation}
            numeric = table.numeric_columns(_SNIFFED_ROWS)
            values = tuple(name for name in numeric if columns.index(name) not in taken)
        return _Columns(
            source=source,
            target=target,
            graph=graph,
            relation=relation,
            values=tuple(table.column(name) for name in values),
        )

    def _graphs(
        self, table: tables.Table, columns: _Columns, *, integers: bool
    ) -> Iterator[BaseData]:
        """The graphs of a table, with ids read as integers or as text."""
        ids, graph_ids = _Ids(integers=integers), _Ids(integers=False)
        rows = self._rows(table, columns, ids, graph_ids)
        names = list(graph_ids.numbers)
        keys: list[Any] = names
        if all(map(_INTEGER.fullmatch, names)):
            keys = [int(name) for name in names]
        order = sorted(range(len(names)), key=keys.__getitem__)
        rank = np.empty(len(names), dtype=np.int64)
        rank[order] = np.arange(len(names))
        by_graph = np.argsort(rank[rows.graph], kind="stable")
        ends = np.cumsum(np.bincount(rank[rows.graph], minlength=len(names)))
        for number, kept in zip(order, np.split(by_graph, ends[:-1]), strict=True):
            graph_id = keys[number] if columns.graph is not None else None
            yield self._build(rows.take(kept), ids, graph_id)

    def _rows(self, table: tables.Table, columns: _Columns, ids: _Ids, graph_ids: _Ids) -> _Rows:
        """All rows of the table as numbers."""
        relations = {}
        if columns.relation is not None:
            relations = {name: i for i, name in enumerate(self._vocabulary)}
        parts: list[_Rows] = []
        rows = table.rows()
        while batch := list(itertools.islice(rows, _ROWS_AT_ONCE)):
            _check(table, batch, columns)
            texts = [[text.strip() for text in row.fields] for row in batch]
            ends = [text[column] for text in texts for column in (columns.source, columns.target)]
            graph, relation = columns.graph, columns.relation
            values = [_values(table, row, columns.values) for row in batch]
            parts.append(
                _Rows(
                    edges=ids.of(ends).reshape(-1, 2),
                    graph=graph_ids.of(["" if graph is None else text[graph] for text in texts]),
                    relation=None
                    if relation is None
                    else np.array([relations[text[relation]] for text in texts]),
                    values=np.array(values, np.float64) if columns.values else None,
                )
            )
        if not parts:
            raise FormatError(f"{table.path} has no edge")
        return _joined(parts)

    def _build(
        self,
        rows: _Rows,
        ids: _Ids,
        graph_id: int | str | None,
    ) -> BaseData:
        found, index = np.unique(rows.edges, return_inverse=True)
        edge_index = index.reshape(rows.edges.shape).T
        names, relation, values = ids.names(found), rows.relation, rows.values
        if self._undirected:
            edge_index = np.concatenate([edge_index, edge_index[::-1]], axis=1)
            relation = None if relation is None else np.concatenate([relation, relation])
            values = None if values is None else np.concatenate([values, values])
        single = values is not None and values.shape[1] == 1
        graph = make_data(
            edge_index=edge_index,
            edge_weight=values[:, 0] if values is not None and single else None,
            edge_attr=None if single else values,
            edge_type=relation,
            num_nodes=len(found),
            graph_id=graph_id,
        )
        # A list of str is an attribute as it is; make_data would take it for numbers.
        graph.node_id = names if isinstance(names, list) else make_data(x=names).x
        return graph


def _joined(parts: Sequence[_Rows]) -> _Rows:
    """The rows of all parts, of which there is at least one."""
    relations = [part.relation for part in parts if part.relation is not None]
    values = [part.values for part in parts if part.values is not None]
    return _Rows(
        edges=np.concatenate([part.edges for part in parts]),
        graph=np.concatenate([part.graph for part in parts]),
        relation=np.concatenate(relations) if relations else None,
        values=_narrowed(np.concatenate(values)) if values else None,
    )


def _narrowed(values: NDArray[np.float64]) -> NDArray[np.floating[Any]]:
    """As float32, unless an integer, such as a time, would become another one."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    changed = values[(narrow != values) & np.isfinite(values)]
    return values if (changed == np.floor(changed)).any() else narrow


def _open(path: Path, given: Sequence[str] = ()) -> tables.Table:
    """The table, with a header where it names a source and a target, or a column that is given."""
    first = next(tables.iter_rows(str(path), None, comment=_COMMENT), None)
    if first is None:
        raise FormatError(f"{path} has no edge")
    counts = {delimiter: first.raw.count(delimiter) for delimiter in ",;\t"}
    delimiter = max(counts, key=counts.__getitem__)
    separator = delimiter if counts[delimiter] else None
    first = next(tables.iter_rows(str(path), separator, comment=_COMMENT))
    columns = tuple(name.strip() for name in first.fields)
    if first.error is not None:
        raise FormatError(f"{path}, line {first.line}: {first.error}")
    known = find_column(columns, SOURCE_NAMES) and find_column(columns, TARGET_NAMES)
    header = bool(known) or any(name in columns and not name.isdecimal() for name in given)
    return tables.Table(
        path=str(path),
        delimiter=separator,
        columns=columns if header else tuple(str(i) for i in range(len(columns))),
        offset=first.end if header else first.offset,
        line=first.end_line if header else first.line,
        comment=_COMMENT,
    )


def _check_header(table: tables.Table, columns: _Columns) -> None:
    """Refuses a first line of names that would be taken for an edge."""
    rows = list(itertools.islice(table.rows(), _SNIFFED_ROWS))
    whole = [row.fields for row in rows if len(row.fields) == len(table.columns)]
    ends = [[fields[i].strip() for i in (columns.source, columns.target)] for fields in whole]
    first, others = ends[:1], ends[1:]
    if not others or any(map(_INTEGER.fullmatch, first[0])):
        return
    if all(_INTEGER.fullmatch(end) for pair in others for end in pair):
        raise FormatError(
            f"{table.path}, line {rows[0].line} names columns, as it seems: name those of source "
            f"and target, such as source={first[0][0]!r}, target={first[0][1]!r}; or remove it"
        )


def find_column(columns: Sequence[str], names: Sequence[str]) -> str | None:
    """The first of the names that a column has, whatever its case."""
    by_name = {column.casefold(): column for column in reversed(columns)}
    return next((by_name[name] for name in names if name in by_name), None)


def _check(table: tables.Table, rows: Sequence[tables.Row], columns: _Columns) -> None:
    width = len(table.columns)
    names = (columns.source, columns.target)
    for row in rows:
        error = row.error
        if error is None and len(row.fields) != width:
            error = f"{counted(len(row.fields), 'field')}, where the first line has {width}"
        if error is None and not all(row.fields[name].strip() for name in names):
            error = "an end of the edge is not named"
        if error is not None:
            raise FormatError(f"{table.path}, line {row.line}: {error}")


def _values(table: tables.Table, row: tables.Row, positions: Sequence[int]) -> list[float]:
    found = tables.parse_numbers(row, table, positions)
    if isinstance(found, Reject):
        raise FormatError(str(found))
    return found
