"""A folder of DGL's CSVDataset: a YAML file that names the CSV files of nodes, edges and graphs.

The layout is described at https://www.dgl.ai/dgl_docs/guide/data-loadcsv.html; that of its version
0.0.1, before DGL 0.8, had other names in the YAML file and is read too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.convert import table as tables
from shardgraph.convert.build import as_dtype, make_data
from shardgraph.convert.source import (
    Confidence,
    Option,
    Partition,
    Reject,
    Source,
    file_stamps,
    require,
    spans,
)
from shardgraph.errors import FormatError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

_META = ("meta.yaml", "meta.yml", "csv_meta.yml", "csv_meta.yaml")
_PARTS = {"nodes": "node_data", "edges": "edge_data", "graphs": "graph_data"}
# What DGL calls things, by the key of the YAML that may say otherwise.
_FIELDS = {
    "graph_id_field": "graph_id",
    "node_id_field": "node_id",
    "src_id_field": "src_id",
    "dst_id_field": "dst_id",
    "split_type_field": "split_type",
}
_SPLITS = ("train", "val", "test")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Store:
    """One CSV file: its rows, in the order of the file, by graph."""

    key: Any
    """The type of the nodes, or (source, relation, target)."""
    ends: tuple[NDArray[np.str_], ...]
    """Ids of the nodes, or of the sources and of the targets of the edges."""
    values: dict[str, NDArray[Any]]
    rows: dict[str, NDArray[np.int64]]
    """Rows of each graph."""
    node_id: NDArray[Any] | None = None
    """Of nodes that no file describes: int64 or text, by row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dataset:
    graph_ids: list[str]
    nodes: list[_Store]
    edges: list[_Store]
    graphs: dict[str, NDArray[Any]]
    splits: dict[str, NDArray[np.int64]]
    hetero: bool


class DglCsvSource(Source):
    """Reads `Data`, or `HeteroData` where the files have types of nodes or edges.

    ``x`` and ``edge_attr`` float32 are the column ``feat`` (numbers with commas between) or the
    columns that start with the prefix the YAML names; ``y`` the labels, int64 [N] (of a graph:
    [1], ``graph_y`` where nodes have labels too) where all are integers, else float32; other
    columns of numbers keep their name. A split type (0, 1, 2) becomes ``train_mask``,
    ``val_mask`` and ``test_mask`` of nodes and edges, and `splits` of graphs. Nodes keep the
    order of their file; lines of edges may be in any order.

    Any tables of typed edges and nodes become one typed graph this way, once a YAML file says of
    each which type it is and which columns hold the ids. A type of nodes without a table has the
    nodes that edges name, in ascending order of their ids, and keeps these as ``node_id``, int64
    [N] or a list of str. With this the customers have a table and the cards have none::

        node_data:
        - {file_name: customer.csv, ntype: customer, node_id_field: id}
        edge_data:
        - {file_name: owns.csv, etype: [customer, owns, card],
           src_id_field: source, dst_id_field: target}

    The files are read whole: memory is that of their columns.

    Args:
        spec: The folder.
        meta: The YAML file; None takes the one of DGL's name in the folder.
    """

    name = "dgl-csv"
    description = "tables of nodes and edges, typed or not, as DGL's CSVDataset: meta.yaml and CSV"
    extra = "table"
    options = (
        Option(name="meta", type=str, help="YAML file that describes the tables (recognised)"),
    )

    def __init__(self, spec: str, *, meta: str | None = None) -> None:
        super().__init__(spec)
        require("yaml", "table", "reading the YAML file of DGL's CSVDataset")
        self._given = None if meta is None else Path(meta)

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of a folder with meta.yaml or csv_meta.yml beside CSV files."""
        return Confidence.CERTAIN if _meta(Path(spec)) and any(Path(spec).glob("*.csv")) else None

    def partitions(self) -> Sequence[Partition]:
        """Runs of 10,000 graphs."""
        return [
            Partition(file=self.spec, first=first, num_records=count)
            for first, count in spans(len(self._dataset().graph_ids), self.records_per_partition)
        ]

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:
        """Yields the graphs; one whose edges name nodes it has not gives a `Reject`."""
        data = self._dataset()
        stop = partition.first + (partition.num_records or 0)
        for number in range(partition.first, stop):
            graph_id = data.graph_ids[number]
            try:
                yield _graph(data, number)
            except ValueError as error:
                yield Reject(file=self.spec, record=f"graph {graph_id}", reason=str(error))

    def splits(self) -> dict[str, NDArray[np.int64]]:
        """The split types of graphs."""
        return self._dataset().splits

    def files(self) -> list[Path]:
        """The files of the folder, and the YAML file where it is elsewhere."""
        found = super().files()
        given = [] if self._given is None or self._given in found else [self._given]
        return [*found, *given]

    def _dataset(self) -> _Dataset:
        path = self._given or _meta(Path(self.spec))
        if path is None:
            raise FormatError(
                f"{self.spec} has none of {', '.join(_META)}: name the file that describes its "
                "tables (meta, --meta)"
            )
        if not path.is_file():
            raise FileNotFoundError(f"no such file: {path}")
        return _load(Path(self.spec), path, file_stamps(self.files()))


def _meta(folder: Path) -> Path | None:
    return next((folder / name for name in _META if (folder / name).is_file()), None)


@lru_cache(maxsize=1)
def _load(
    folder: Path,
    path: Path,
    stamps: tuple[tuple[int, int], ...],  # noqa: ARG001 (part of the key)
) -> _Dataset:
    """All files; kept for the partitions that the same process reads next."""
    import yaml  # type: ignore[import-untyped]

    try:
        meta = _parts(yaml.safe_load(path.read_text(encoding="utf-8-sig")))
        nodes, edges = meta.get("nodes", []), meta["edges"]
        hetero = any("ntype" in told for told in nodes) or any("etype" in told for told in edges)
        node_stores = [_store(folder, told, ("node_id_field",)) for told in nodes]
        edge_stores = [_store(folder, told, ("src_id_field", "dst_id_field")) for told in edges]
        ends = dict.fromkeys(end for s in edge_stores for end in (s.key[0], s.key[2]))
        described = {store.key for store in node_stores}
        node_stores += [_named(end, edge_stores) for end in ends if end not in described]
        told = meta.get("graphs", {})
        graphs = _columns(folder, told) if told else {}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{path} is not the description of a CSVDataset, with node_data and edge_data: "
            f"{type(error).__name__}: {error}"
        ) from error
    keys = [store.key for store in (*node_stores, *edge_stores)]
    if len(set(keys)) < len(keys):
        raise FormatError(f"{path}: two files are of one type, {max(keys, key=keys.count)!r}")
    where = f"{folder}/{told.get('file_name')}"
    graph_ids = _graph_ids(graphs, told, [*node_stores, *edge_stores], where)
    values, split = _values(graphs, told, "y", where)
    return _Dataset(
        graph_ids=graph_ids,
        nodes=node_stores,
        edges=edge_stores,
        graphs=values,
        splits={} if split is None else {
            name: np.flatnonzero(split == i) for i, name in enumerate(_SPLITS)
        },
        hetero=hetero,
    )  # fmt: skip


def _graph_ids(
    graphs: dict[str, NDArray[np.str_]],
    told: Mapping[str, Any],
    stores: Sequence[_Store],
    where: str,
) -> list[str]:
    """The ids of all graphs in order, taken out of the table of graphs where there is one."""
    named = {graph for store in stores for graph in store.rows}
    if not graphs:
        return sorted(named, key=_id_key)
    field = told.get("graph_id_field", _FIELDS["graph_id_field"])
    if field not in graphs:
        raise FormatError(f"{where} has no column {field}")
    found = [str(value) for value in graphs.pop(field)]
    graph_id, count = Counter(found).most_common(1)[0] if found else ("", 0)
    if count > 1:
        raise FormatError(f"{where}: graph {graph_id!r} is there {count} times")
    if absent := sorted(named - set(found), key=_id_key):
        raise FormatError(f"{where} has no graph {absent[0]!r}, of which the other tables tell")
    return found


def _parts(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What the YAML says of nodes, edges and graphs, each file with its separator."""
    found: dict[str, Any] = {}
    for key, name in _PARTS.items():
        told = meta.get(name, meta.get(key))
        if told is None and key == "edges":
            raise KeyError(name)
        separator = {"separator": meta.get("separator", ",")}
        if told is not None and isinstance(told, list) == (key == "graphs"):
            raise TypeError(
                f"{name} must be {'one file' if key == 'graphs' else 'a list of files'}"
            )
        if isinstance(told, list):
            found[key] = [separator | entry for entry in told]
        elif told is not None:
            found[key] = separator | told
    return found


def _store(folder: Path, told: Mapping[str, Any], id_fields: Sequence[str]) -> _Store:
    """One file of nodes or edges."""
    columns = _columns(folder, told)
    where = f"{folder / told['file_name']}"
    names = [told.get(field, _FIELDS[field]) for field in id_fields]
    if missing := [name for name in names if name not in columns]:
        raise FormatError(f"{where} has no column {', '.join(missing)}")
    ends = tuple(columns.pop(name) for name in names)
    num_rows = len(ends[0])
    graph = columns.pop(told.get("graph_id_field", _FIELDS["graph_id_field"]), None)
    if graph is None:
        graph = np.full(num_rows, "0")
    ids, index = np.unique(graph, return_inverse=True)
    order = np.argsort(index, kind="stable")
    runs = np.split(order, np.cumsum(np.bincount(index, minlength=len(ids))))[:-1]
    is_edge = len(names) == 2
    values, split = _values(columns, told, "edge_attr" if is_edge else "x", where)
    if split is not None:
        values |= {f"{name}_mask": split == i for i, name in enumerate(_SPLITS)}
    key: Any = told.get("ntype", "_N")
    if is_edge:
        key = tuple(told.get("etype", ("_N", "_E", "_N")))
    return _Store(
        key=key,
        ends=ends,
        values=values,
        rows={str(graph_id): run for graph_id, run in zip(ids, runs, strict=True)},
    )


def _named(kind: str, edges: Sequence[_Store]) -> _Store:
    """The nodes of a type that has no file: those that edges join."""
    found: dict[str, set[str]] = {}
    for store in edges:
        for end, ids in zip((store.key[0], store.key[2]), store.ends, strict=True):
            for graph_id, rows in store.rows.items() if end == kind else ():
                found.setdefault(graph_id, set()).update(ids[rows].tolist())
    names = [name for group in found.values() for name in sorted(group, key=_id_key)]
    stops = np.cumsum([len(group) for group in found.values()])
    runs = np.split(np.arange(len(names)), stops[:-1])
    integers = all(_INTEGER.fullmatch(name) for name in names)
    return _Store(
        key=kind,
        ends=(np.array(names, dtype=np.str_),),
        values={},
        rows=dict(zip(found, runs, strict=True)),
        node_id=np.array([int(name) for name in names] if integers else names),
    )


def _columns(folder: Path, told: Mapping[str, Any]) -> dict[str, NDArray[np.str_]]:
    """The named columns of a CSV file, as text."""
    path = folder / told["file_name"]
    if folder.resolve() not in path.resolve().parents:
        raise FormatError(f"{folder}: the file {told['file_name']!r} is not in it")
    table = tables.open_table(str(path), delimiter=told["separator"])
    rows = []
    for row in table.rows():
        if row.error is not None:
            raise FormatError(f"{table.path}, line {row.line}: {row.error}")
        rows.append(row.fields)
    columns = zip(*rows, strict=True) if rows else ((),) * len(table.columns)
    return {
        name: np.array([text.strip() for text in column], dtype=np.str_)
        for name, column in zip(table.columns, columns, strict=True)
        if name
    }


def _values(
    columns: Mapping[str, NDArray[np.str_]], told: Mapping[str, Any], features: str, where: str
) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64] | None]:
    """The attributes of the rows, and their split types where the YAML tells of them."""
    label = told.get("labels", {}).get("field", "label")
    split_field = told.get("split_type_field", "")
    prefix = told.get("feat_prefix_field")
    found: dict[str, NDArray[Any]] = {}
    parts = []
    for name, texts in columns.items():
        if name == split_field:
            continue
        array = _numbers(texts)
        if name == label:
            if array is None or array.ndim != 1:
                raise FormatError(f"{where}: the labels in column {name!r} are not numbers")
            found["y"] = array
        elif name == "feat" or (prefix and name.startswith(prefix)):
            if array is None:
                raise FormatError(f"{where}: the features in column {name!r} are not numbers")
            parts.append(array.astype(np.float64).reshape(len(texts), array[:1].size or 1))
        elif array is not None:
            found[name] = array
    if parts:
        found["graph_feat" if features == "y" else features] = np.concatenate(parts, axis=1)
    split = _numbers(columns[split_field]) if split_field in columns else None
    return found, split


def _numbers(texts: NDArray[np.str_]) -> NDArray[Any] | None:
    """Integers or float64 [rows], or float64 [rows, K] of texts with commas; None: no numbers."""
    if any("," in text for text in texts[:1]):
        try:
            return tables.load_numbers(texts.tolist(), np.float64, delimiter=",")
        except ValueError:
            return None
    parsed = [tables.checked_number(text) for text in texts]
    if any(isinstance(value, str) for value in parsed):
        return None
    if all(text.lstrip("-").isdecimal() for text in texts):
        return np.array([int(text) for text in texts])
    return np.array(parsed, dtype=np.float64)


def _narrow(values: Mapping[str, NDArray[Any]], rows: Any) -> dict[str, NDArray[Any]]:
    """Some rows of each attribute as int64, float32 or bool; SchemaError where that cannot be."""
    dtypes = {"f": np.float32, "b": np.bool_}
    return {
        name: as_dtype(array[rows], dtypes.get(array.dtype.kind, np.int64), name)
        for name, array in values.items()
    }


def _graph(data: _Dataset, number: int) -> BaseData:
    from torch_geometric.data import HeteroData

    graph_id = data.graph_ids[number]
    graph_values = _narrow(data.graphs, slice(number, number + 1))
    graph = HeteroData(**make_data(**graph_values).to_dict())
    index: dict[Any, dict[str, int]] = {}
    for store in data.nodes:
        rows = store.rows.get(graph_id, np.empty(0, dtype=np.int64))
        index[store.key] = {node: i for i, node in enumerate(store.ends[0][rows].tolist())}
        if len(index[store.key]) != len(rows):
            raise ValueError(f"nodes of type {store.key!r} have an id twice")
        values = _narrow(store.values, rows)
        num_nodes = None if "x" in values else len(rows)
        graph[store.key].update(make_data(**values, num_nodes=num_nodes).to_dict())
        if store.node_id is not None:
            names = store.node_id[rows]
            texts = names.dtype.kind == "U"
            graph[store.key].node_id = names.tolist() if texts else make_data(x=names).x
    for store in data.edges:
        rows = store.rows.get(graph_id, np.empty(0, dtype=np.int64))
        source, _, target = store.key
        ends = []
        for kind, ids in zip((source, target), store.ends, strict=True):
            try:
                ends.append([index[kind][node] for node in ids[rows].tolist()])
            except KeyError as error:
                raise ValueError(f"an edge joins a {kind} {error}, which is not there") from error
        values = _narrow(store.values, rows)
        edge_index = np.array(ends, dtype=np.int64).reshape(2, -1)
        graph[store.key].update(make_data(edge_index=edge_index, **values).to_dict())
    return graph if data.hetero else _homogeneous(graph)


def _homogeneous(graph: Any) -> BaseData:
    """One `Data` of the only types; what edges share a name with nodes is called edge_NAME."""
    from torch_geometric.data import Data

    (nodes,), (edges,) = graph.node_stores, graph.edge_stores
    found = dict(nodes.to_dict())
    for name, value in edges.to_dict().items():
        own = name in ("edge_index", "edge_attr") or name not in found
        found[name if own else f"edge_{name}"] = value
    for name, value in graph._global_store.to_dict().items():
        found[name if name not in found else f"graph_{name}"] = value
    data: BaseData = Data(**found)
    return data


def _id_key(text: str) -> tuple[int, int, str]:
    return (0, int(text), "") if text.lstrip("-").isdecimal() else (1, 0, text)
