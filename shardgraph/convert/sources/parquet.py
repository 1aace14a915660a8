"""Graphs in Parquet files: a row per graph (list columns, SMILES), or tables of edges and nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardgraph.convert.build import as_dtype, make_data
from shardgraph.convert.files import FileSource, natural_key
from shardgraph.convert.source import (
    Confidence,
    Option,
    Partition,
    Reject,
    file_stamps,
    require,
    spans,
)
from shardgraph.convert.sources import _rdkit
from shardgraph.convert.sources._edge_tables import EdgeTables, TableColumns
from shardgraph.convert.sources._parquet import (
    Plan,
    column_arrays,
    inner_widths,
    leaf_type,
    open_parquet,
    single_numbers,
)
from shardgraph.convert.sources.edgelist import (
    GRAPH_NAMES,
    SOURCE_NAMES,
    TARGET_NAMES,
    find_column,
)
from shardgraph.convert.sources.smiles import smiles_column
from shardgraph.convert.table import is_id
from shardgraph.errors import FormatError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

# The names of the graph datasets on the Hugging Face hub, and what PyG calls them.
_RENAMED = {"node_feat": "x", "edge_feat": "edge_attr", "label": "y", "labels": "y", "target": "y"}
_NODE_NAMES = ("node_id", "id", "node")
_ROWS_AT_ONCE = 256
_SNIFFED_ROWS = 1000
# The hub keeps them in folders such as data/.
_PATTERNS = ("*.parquet", "*/*.parquet")


class ParquetSource(FileSource):
    """Reads one graph a row, from a file or the .parquet files of a folder.

    With a column ``edge_index`` (lists of two lists), the other columns of lists of numbers become
    attributes of the same name (node_feat ``x``, edge_feat ``edge_attr``), floats as float32,
    integers as int64, a list that is not of nodes or edges, such as ``y``, with the graph as its
    first dimension; ``num_nodes`` is taken where it is there. Without that column the SMILES are
    read as by `SmilesSource`. Single numbers become ``y`` float32 [1, T], NaN where null.

    A file with columns of sources and targets is a table of edges: one graph, or many where a
    column tells the graph of each edge, in ascending order of its ``graph_id``. Columns of numbers
    become ``edge_weight`` float32 [E] (one) or ``edge_attr`` float32 [E, K]. A table of nodes gives
    ``x`` float32 [N, F] and ``y`` of its label; ``node_id`` keeps the ids. These tables are read
    whole.

    Args:
        spec: The file or folder.
        targets: Columns of single numbers that become ``y``; None takes a column named y, label
            or target alone where there is one, else all but those named like an identifier.
        smiles: Column of the SMILES; None recognises one by name.
        with_hydrogen: Of SMILES: adds the hydrogens as atoms.
        kekulize: Of SMILES: turns aromatic bonds into single and double ones.
        source: Of a table of edges: column of the sources; None recognises it by name.
        target: Column of the targets, likewise.
        graph: Column of the graph, in both tables, likewise.
        nodes: File of the table of nodes; None takes nodes.parquet beside edges.parquet.
        undirected: Of a table of edges: adds to each edge its inverse, after all others.
    """

    name = "parquet"
    description = "Parquet: list columns as on the Hugging Face hub, SMILES, edge and node tables"
    extra = "table"
    suffixes = frozenset({".parquet"})
    options = (
        Option(name="targets", type=str, many=True, help="columns that become y (all of numbers)"),
        Option(name="smiles", type=str, help="column of the SMILES (recognised by name)"),
        Option(name="with_hydrogen", type=bool, help="add hydrogens as atoms", default=False),
        Option(
            name="kekulize", type=bool, help="single and double for aromatic bonds", default=False
        ),
        Option(name="source", type=str, help="edge table: column of the sources (recognised)"),
        Option(name="target", type=str, help="edge table: column of the targets (recognised)"),
        Option(name="graph", type=str, help="edge table: column of the graph (recognised)"),
        Option(name="nodes", type=str, help="edge table: file of the nodes (nodes.parquet)"),
        Option(name="undirected", type=bool, help="edge table: add inverse edges", default=False),
    )

    def __init__(
        self,
        spec: str,
        *,
        targets: Sequence[str] | None = None,
        smiles: str | None = None,
        with_hydrogen: bool = False,
        kekulize: bool = False,
        source: str | None = None,
        target: str | None = None,
        graph: str | None = None,
        nodes: str | None = None,
        undirected: bool = False,
    ) -> None:
        super().__init__(spec)
        require("pyarrow", "table", "reading Parquet")
        self._targets = targets if targets is None else tuple(targets)
        self._smiles = smiles
        self._with_hydrogen, self._kekulize = with_hydrogen, kekulize
        self._source, self._target, self._graph_column = source, target, graph
        self._nodes, self._undirected = nodes, undirected

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of .parquet files and of folders that hold such files."""
        path = Path(spec)
        found = path.suffix.lower() in cls.suffixes
        if path.is_dir():
            found = any(item.is_file() for pattern in _PATTERNS for item in path.glob(pattern))
        return Confidence.CERTAIN if found else None

    @classmethod
    def names(cls, folder: Path) -> list[str]:
        """The .parquet files of a folder and of the folders in it."""
        paths = (path for pattern in _PATTERNS for path in folder.glob(pattern))
        # Spark's files are in a folder that ends in .parquet too.
        names = [str(path.relative_to(folder)) for path in paths if path.is_file()]
        return sorted(names, key=natural_key)

    def partitions(self) -> Sequence[Partition]:
        """Runs of 10,000 rows of each file (SMILES: 2,000), or graphs of tables of edges."""
        if self._edge_columns is not None:
            num_graphs = len(self._tables().graph_ids)
            return [
                Partition(file=self.spec, first=first, num_records=count)
                for first, count in spans(num_graphs, self.records_per_partition)
            ]
        size = self.records_per_partition
        if self._plan.smiles is not None:
            require("rdkit", "chem", "reading SMILES")
            size = min(size, _rdkit.RECORDS_PER_PARTITION)
        found: list[Partition] = []
        for path in self.files():
            with open_parquet(path) as file:
                num_rows = file.metadata.num_rows
            found += [
                Partition(file=str(path), first=first, num_records=count)
                for first, count in spans(num_rows, size)
            ]
        return found

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:
        """Yields a graph or a `Reject` per row, or per graph of tables of edges."""
        if self._edge_columns is not None:
            yield from self._of_tables(partition)
            return
        path = Path(partition.file)
        rows = self._rows(path, partition.first)
        for number, row in itertools.islice(rows, partition.num_records):
            yield self._item(path, number, row)

    def read_file(self, path: Path) -> Iterator[BaseData | Reject]:
        """Yields the graphs of one file."""
        for number, row in self._rows(path, 0):
            yield self._item(path, number, row)

    def provenance(self) -> dict[str, Any]:
        """The columns chosen, beside the files."""
        if (edges := self._edge_columns) is not None:
            nodes = None if self._node_file is None else self._node_file.name
            chosen = {"source": edges.ids[0], "target": edges.ids[1], "graph": edges.graph}
            told = chosen | {"values": list(edges.values), "nodes": nodes}
            return super().provenance() | {"options": told | {"undirected": self._undirected}}
        plan = self._plan
        return super().provenance() | {
            "targets": list(plan.targets),
            "options": {
                "smiles": plan.smiles,
                "lists": plan.lists,
                "with_hydrogen": self._with_hydrogen,
                "kekulize": self._kekulize,
            },
        }

    @cached_property
    def _edge_columns(self) -> TableColumns | None:
        """The columns of a table of edges; None where the files are not such tables."""
        with open_parquet(self._edge_files()[0]) as file:
            schema = file.schema_arrow
        source = self._source or find_column(schema.names, SOURCE_NAMES)
        target = self._target or find_column(schema.names, TARGET_NAMES)
        if source is None or target is None or "edge_index" in schema.names:
            return None
        graph = self._graph_column or find_column(schema.names, GRAPH_NAMES)
        taken = {source, target, graph}
        values = tuple(name for name in single_numbers(schema) if name not in taken)
        return TableColumns(ids=(source, target), graph=graph, values=values)

    @property
    def _node_file(self) -> Path | None:
        if self._nodes is not None:
            return Path(self._nodes)
        path = Path(self.spec)
        beside = (path if path.is_dir() else path.parent) / "nodes.parquet"
        alone = path.is_dir() or path.stem == "edges"
        return beside if alone and beside.is_file() and beside != path else None

    def _edge_files(self) -> list[Path]:
        files = [path for path in self.files() if path != self._node_file]
        if not files:
            raise FormatError(f"{self.spec} has no .parquet file")
        return files

    def _tables(self) -> EdgeTables:
        if (edges := self._edge_columns) is None:
            raise FormatError(f"{self.spec} is no table of edges")
        node_file = self._node_file
        nodes = None if node_file is None else self._node_columns(node_file)
        edge_files = tuple(self._edge_files())
        stamps = file_stamps([*edge_files, *([node_file] if node_file else [])])
        return _load_tables(edge_files, edges, node_file, nodes, stamps)

    def _node_columns(self, path: Path) -> TableColumns:
        with open_parquet(path) as file:
            schema = file.schema_arrow
        node_id = find_column(schema.names, _NODE_NAMES)
        if node_id is None:
            raise FormatError(f"{path} has no column {', '.join(_NODE_NAMES)}")
        label = next((name for name in schema.names if _RENAMED.get(name, name) == "y"), None)
        graph = self._graph_column or find_column(schema.names, GRAPH_NAMES)
        values = [n for n in single_numbers(schema) if n not in (node_id, label, graph)]
        return TableColumns(ids=(node_id,), graph=graph, values=tuple(values), labels=label)

    def _of_tables(self, partition: Partition) -> Iterator[BaseData | Reject]:
        graphs = self._tables()
        for number in range(partition.first, partition.first + (partition.num_records or 0)):
            try:
                yield graphs.graph(number, undirected=self._undirected)
            except ValueError as error:
                record = f"graph {graphs.graph_ids[number]}"
                yield Reject(file=self.spec, record=record, reason=str(error))

    def _rows(self, path: Path, first: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The rows from number `first` on; row groups before it are not read."""
        with open_parquet(path) as file:
            missing = set(self._plan.columns()) - set(file.schema_arrow.names)
            if missing:
                raise FormatError(f"{path} has no column {', '.join(sorted(missing))}")
            start, group = 0, 0
            while group < file.num_row_groups:
                size = file.metadata.row_group(group).num_rows
                if start + size > first:
                    break
                start, group = start + size, group + 1
            batches = file.iter_batches(
                batch_size=_ROWS_AT_ONCE,
                row_groups=list(range(group, file.num_row_groups)),
                columns=self._plan.columns(),
            )
            for batch in batches:
                for row in batch.slice(max(first - start, 0)).to_pylist():
                    yield max(first, start), row
                    first = max(first, start) + 1
                start += batch.num_rows

    @cached_property
    def _plan(self) -> Plan:
        import pyarrow.types as kinds  # type: ignore[import-untyped]

        paths = self.files()
        if not paths:
            raise FormatError(f"{self.spec} has no .parquet file")
        with open_parquet(paths[0]) as file:
            schema = file.schema_arrow
            first = next(file.iter_batches(batch_size=_SNIFFED_ROWS), None)
        leaves = {field.name: leaf_type(field.type) for field in schema}
        numeric = [n for n, t in leaves.items() if kinds.is_integer(t) or kinds.is_floating(t)]
        numeric += [n for n, t in leaves.items() if kinds.is_boolean(t)]
        lists = [n for n in schema.names if n in numeric and leaves[n] != schema.field(n).type]
        single = [n for n in schema.names if n in numeric and n not in lists]
        has_edges = "edge_index" in lists
        smiles = None if has_edges else self._smiles or smiles_column(schema.names)
        if not has_edges and smiles not in schema.names:
            raise ValueError(
                f"{paths[0]} has neither a column edge_index of lists nor one of SMILES; its "
                f"columns are {', '.join(schema.names)}"
            )
        targets = self._targets
        if targets is None:
            named = [name for name in single if _RENAMED.get(name, name) == "y"]
            apart = ("num_nodes", self.split_by)
            others = [name for name in single if not is_id(name) and name not in apart]
            lists_y = has_edges and any(_RENAMED.get(name, name) == "y" for name in lists)
            targets = () if lists_y else tuple(named or others)
        if unknown := sorted(set(targets) - set(single)):
            raise ValueError(
                f"{paths[0]} has no column of single numbers named {', '.join(unknown)}; it has "
                f"{', '.join(single) or 'none'}"
            )
        return Plan(
            smiles=smiles,
            lists={name: _RENAMED.get(name, name) for name in lists} if has_edges else {},
            targets=targets,
            has_num_nodes=has_edges and "num_nodes" in single,
            split=tuple(name for name in schema.names if name == self.split_by),
            floating=frozenset(name for name in numeric if kinds.is_floating(leaves[name])),
            widths=inner_widths(first, lists) if has_edges and first is not None else {},
        )

    def _item(self, path: Path, number: int, row: Mapping[str, Any]) -> BaseData | Reject:
        graph: BaseData | str
        try:
            graph = self._graph(row) if self._plan.smiles is None else self._molecule(row)
        except (LookupError, OverflowError, TypeError, ValueError) as error:
            graph = f"{type(error).__name__}: {error}"
        if isinstance(graph, str):
            return Reject(file=str(path), record=f"row {number}", reason=graph)
        for name in self._plan.split:
            graph[name] = "" if row[name] is None else str(row[name])
        return graph

    def _molecule(self, row: Mapping[str, Any]) -> BaseData | str:
        smiles = (row[self._plan.smiles or ""] or "").strip()
        found = _rdkit.from_smiles(
            smiles, with_hydrogen=self._with_hydrogen, kekulize=self._kekulize
        )
        if not isinstance(found, str):
            found.smiles = smiles
            if self._plan.targets:
                found.y = _rdkit.row_tensor(self._y(row))
        return found

    def _graph(self, row: Mapping[str, Any]) -> BaseData:
        plan = self._plan
        values: dict[str, Any] = {}
        for column, name in plan.lists.items():
            if row[column] is None:
                raise ValueError(f"column {column!r} is null")
            array = as_dtype(row[column], np.float32 if column in plan.floating else np.int64, name)
            if array.shape == (0,) and column in plan.widths:
                array = array.reshape(0, plan.widths[column])
            values[name] = array
        if values["edge_index"].size == 0:
            values["edge_index"] = np.empty((2, 0), dtype=np.int64)
        edges = values["edge_index"]
        if edges.ndim != 2 or edges.shape[0] != 2:
            raise ValueError(f"edge_index has the shape {edges.shape}, expected (2, E)")
        if "y" in values:
            values["y"] = values["y"].reshape(1, -1)
        if plan.targets:
            values["y"] = as_dtype([self._y(row)], np.float32, "y")
        if plan.has_num_nodes:
            values["num_nodes"] = int(row["num_nodes"])
        return make_data(**values)

    def _y(self, row: Mapping[str, Any]) -> list[float]:
        values = [row[target] for target in self._plan.targets]
        return [np.nan if value is None else float(value) for value in values]


@lru_cache(maxsize=1)
def _load_tables(
    edge_files: tuple[Path, ...],
    edge_columns: TableColumns,
    node_file: Path | None,
    node_columns: TableColumns | None,
    stamps: tuple[tuple[int, int], ...],  # noqa: ARG001 (part of the key)
) -> EdgeTables:
    """The tables; kept for the partitions that the same process reads next."""
    nodes = None
    if node_file is not None and node_columns is not None:
        nodes = column_arrays([node_file], node_columns)
    return EdgeTables(column_arrays(edge_files, edge_columns), edge_columns, nodes, node_columns)
