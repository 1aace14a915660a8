"""A folder of TUDataset text files: NAME_A.txt, NAME_graph_indicator.txt and optional parts.

The format is described at https://chrsmrrs.github.io/datasets/docs/format/.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
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
    spans,
)
from shardgraph.errors import FormatError, SchemaError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

_LOADTXT_PROBLEM = re.compile(r"(?:at|on) row (\d+)")

_MOST_EMPTY = 1000  # graphs per node: what is beyond is a wrong number, not empty graphs
_MOST_LABELS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrays:
    """The whole dataset: nodes and edges grouped by graph."""

    node_ptr: NDArray[np.int64]
    edge_ptr: NDArray[np.int64]
    edge_index: NDArray[np.int64]
    """[2, E], counted from 0 within each graph."""
    x: NDArray[np.floating] | None
    """Float64 where float32 cannot hold all of them, as of ``edge_attr`` and ``y``."""
    edge_attr: NDArray[np.floating] | None
    y: NDArray[Any] | None
    """[G] classes from 0 to C - 1, or [G, T] or [G] targets."""

    def graph(self, number: int) -> BaseData:
        """One graph; SchemaError where float32 cannot hold one of its numbers."""
        n0, n1 = self.node_ptr[number : number + 2]
        e0, e1 = self.edge_ptr[number : number + 2]
        rows = {"x": (n0, n1), "edge_attr": (e0, e1), "y": (number, number + 1)}
        values = {}
        for name, (start, stop) in rows.items():
            array = getattr(self, name)
            if array is not None:
                values[name] = array[start:stop].copy()
                if array.dtype.kind == "f":
                    values[name] = as_dtype(values[name], np.float32, name)
        return make_data(
            edge_index=self.edge_index[:, e0:e1],
            num_nodes=None if "x" in values else int(n1 - n0),
            **values,
        )


class TUDatasetSource(Source):
    """Reads the folder as ``torch_geometric.datasets.TUDataset`` does, isolated nodes included.

    ``x`` and ``edge_attr`` float32 hold the attributes followed by the labels as one-hot vectors,
    ``edge_index`` is sorted by source and target, ``y`` is int64 [1] (classes renumbered from 0
    in ascending order; ``provenance`` keeps the original ones) or, where there are graph
    attributes, float32 [1] or [1, T].

    A folder is read whole, because its edges may be in any order: memory is that of its arrays.

    Args:
        spec: The folder, or one whose ``raw`` folder it is.
        coalesce: Drops self-loops and merges repeated edges, summing their attributes, as PyG
            does; by default every edge is kept.
    """

    name = "tudataset"
    description = "a folder of TUDataset files: NAME_A.txt, NAME_graph_indicator.txt, ..."
    options = (
        Option(
            name="coalesce",
            type=bool,
            help="drop self-loops and merge repeated edges, as PyG's TUDataset does",
            default=False,
        ),
    )

    def __init__(self, spec: str, *, coalesce: bool = False) -> None:
        super().__init__(spec)
        self._coalesce = coalesce

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of a folder with NAME_A.txt and NAME_graph_indicator.txt."""
        return Confidence.CERTAIN if len(_prefixes(spec)) == 1 else None

    def partitions(self) -> Sequence[Partition]:
        """Runs of 10,000 graphs."""
        num_graphs = len(self._arrays().node_ptr) - 1
        return [
            Partition(file=self.spec, first=first, num_records=count)
            for first, count in spans(num_graphs, self.records_per_partition)
        ]

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:
        """Yields the graphs; most faults in the files are errors of the folder as a whole."""
        arrays = self._arrays()
        for graph in range(partition.first, partition.first + (partition.num_records or 0)):
            try:
                yield arrays.graph(graph)
            except SchemaError as error:
                yield Reject(file=self.spec, record=f"graph {graph + 1}", reason=str(error))

    def files(self) -> list[Path]:
        """The text files of the dataset."""
        folder, prefix = self._locate()
        return sorted(folder.glob(f"{prefix}_*.txt"))

    def provenance(self) -> dict[str, Any]:
        """The dataset's name and the original values of the classes."""
        folder, prefix = self._locate()
        told: dict[str, Any] = {"dataset": prefix, "options": {"coalesce": self._coalesce}}
        labels = folder / f"{prefix}_graph_labels.txt"
        if labels.exists() and not (folder / f"{prefix}_graph_attributes.txt").exists():
            told["classes"] = np.unique(_integers(labels)).tolist()
        return super().provenance() | told

    def _locate(self) -> tuple[Path, str]:
        prefixes = _prefixes(self.spec)
        if len(prefixes) != 1:
            raise FormatError(
                f"{self.spec} holds {len(prefixes) or 'no'} datasets; expected one pair of "
                "NAME_A.txt and NAME_graph_indicator.txt, in it or in its folder raw"
            )
        return prefixes[0]

    def _arrays(self) -> _Arrays:
        return _load(*self._locate(), self._coalesce, file_stamps(self.files()))


def _prefixes(spec: str) -> list[tuple[Path, str]]:
    return [
        (folder, path.name.removesuffix("_A.txt"))
        for folder in (Path(spec), Path(spec) / "raw")
        for path in sorted(folder.glob("*_A.txt"))
        if Path(str(path).removesuffix("A.txt") + "graph_indicator.txt").exists()
    ]


@lru_cache(maxsize=1)
def _load(
    folder: Path,
    prefix: str,
    coalesce: bool,
    stamps: tuple[tuple[int, int], ...],  # noqa: ARG001 (part of the key)
) -> _Arrays:
    """Reads all files; kept for the partitions that the same process reads next."""
    start = folder / prefix
    indicator = _integers(Path(f"{start}_graph_indicator.txt"))[:, 0] - 1
    num_nodes = len(indicator)
    y = _targets(start)
    num_graphs = max(int(indicator.max(initial=-1)) + 1, 0 if y is None else len(y))
    if y is not None and len(y) < num_graphs:
        raise FormatError(f"{start}_graph_*.txt: {len(y)} targets for {num_graphs} graphs")
    if num_nodes and indicator.min() < 0:
        raise FormatError(f"{start}_graph_indicator.txt: graphs are counted from 1")
    if num_graphs > _MOST_EMPTY * (num_nodes + 1) and y is None:
        raise FormatError(f"{start}_graph_indicator.txt: graph {num_graphs} of {num_nodes} nodes")
    by_graph = np.argsort(indicator, kind="stable")
    node_ptr = _ptr(indicator, num_graphs)
    position = np.empty(num_nodes, dtype=np.int64)
    position[by_graph] = np.arange(num_nodes)

    edges = _edges(Path(f"{start}_A.txt"), indicator)
    edge_attr = _features(start, "edge", len(edges))
    source, target = position[edges].T
    order = np.lexsort((target, source))
    source, target = source[order], target[order]
    if edge_attr is not None:
        edge_attr = edge_attr[order]
    if coalesce:
        source, target, edge_attr = _merge(source, target, edge_attr)
    graph = indicator[by_graph][source]
    x = _features(start, "node", num_nodes)
    return _Arrays(
        node_ptr=node_ptr,
        edge_ptr=_ptr(graph, num_graphs),
        edge_index=np.stack([source, target]) - node_ptr[graph],
        x=None if x is None else x[by_graph],
        edge_attr=edge_attr,
        y=y,
    )


def _ptr(graph: NDArray[np.int64], num_graphs: int) -> NDArray[np.int64]:
    counts = np.bincount(graph, minlength=num_graphs)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _edges(path: Path, indicator: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of NAME_A.txt, int64 [E, 2], counted from 0 and checked."""
    edges = _integers(path) - 1
    if edges.shape[1] != 2:
        raise FormatError(f"{path}: {edges.shape[1]} columns, expected 2: source, target")
    bad = np.flatnonzero(((edges < 0) | (edges >= len(indicator))).any(axis=1))
    if len(bad):
        raise FormatError(
            f"{path}, edge {bad[0] + 1}: node {edges[bad[0]].tolist()} counted from 0, but there "
            f"are {len(indicator)} nodes"
        )
    apart = np.flatnonzero(indicator[edges[:, 0]] != indicator[edges[:, 1]])
    if len(apart):
        source, target = edges[apart[0]] + 1
        raise FormatError(
            f"{path}, edge {apart[0] + 1}: nodes {source} and {target} are in different graphs"
        )
    return edges


def _targets(start: Path) -> NDArray[Any] | None:
    attributes, labels = Path(f"{start}_graph_attributes.txt"), Path(f"{start}_graph_labels.txt")
    if attributes.exists():
        values = _numbers(attributes)
        return values[:, 0] if values.shape[1] == 1 else values
    if not labels.exists():
        return None
    classes = _integers(labels)
    # Over all columns at once, as PyG renumbers them.
    renumbered = np.unique(classes, return_inverse=True)[1].reshape(classes.shape)
    renumbered = renumbered.astype(np.int64)
    return renumbered[:, 0] if classes.shape[1] == 1 else renumbered


def _features(start: Path, of: str, num_rows: int) -> NDArray[np.floating] | None:
    """Attributes, then labels as one-hot vectors; None where there are neither."""
    parts: list[NDArray[np.floating]] = []
    attributes, labels = Path(f"{start}_{of}_attributes.txt"), Path(f"{start}_{of}_labels.txt")
    if attributes.exists():
        parts.append(_numbers(attributes))
        _check_rows(attributes, len(parts[-1]), num_rows, of)
    if labels.exists():
        columns = _integers(labels)
        _check_rows(labels, len(columns), num_rows, of)
        for column in columns.T:
            category = column - column.min(initial=0 if not len(column) else column[0])
            width = int(category.max(initial=-1)) + 1
            if width > _MOST_LABELS:
                raise FormatError(
                    f"{labels}: labels from {column.min()} to {column.max()} would be one-hot "
                    f"vectors of {width} numbers; at most {_MOST_LABELS} are made"
                )
            one_hot = np.zeros((num_rows, width), dtype=np.float32)
            one_hot[np.arange(num_rows), category] = 1
            parts.append(one_hot)
    return np.concatenate(parts, axis=1) if parts else None


def _check_rows(path: Path, found: int, expected: int, of: str) -> None:
    if found != expected:
        raise FormatError(f"{path}: {found} lines for {expected} {of}s")


def _merge(
    source: NDArray[np.int64], target: NDArray[np.int64], edge_attr: NDArray[np.floating] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.floating] | None]:
    """Drops self-loops and sums repeated edges of sorted edges."""
    kept = source != target
    source, target = source[kept], target[kept]
    first = np.ones(len(source), dtype=bool)
    first[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    if edge_attr is not None and len(source):
        edge_attr = np.add.reduceat(edge_attr[kept], np.flatnonzero(first), axis=0)
    elif edge_attr is not None:
        edge_attr = edge_attr[kept]
    return source[first], target[first], edge_attr


def _numbers(path: Path) -> NDArray[np.floating]:
    """All numbers of a comma-separated file, float32 [rows, columns], or float64 if need be."""
    found = _loadtxt(path, np.float64)
    try:
        return as_dtype(found, np.float32, path.name)
    except SchemaError:
        return found  # `read` tells whose they are


def _integers(path: Path) -> NDArray[np.int64]:
    """All integers of a comma-separated file, int64 [rows, columns]; "2.0" counts as one."""
    try:
        return _loadtxt(path, np.int64)
    except FormatError:
        numbers = _loadtxt(path, np.float64)
    whole = (numbers == np.floor(numbers)) & (np.abs(numbers) < 2.0**63)
    rows = np.flatnonzero(~whole.all(axis=1))
    if len(rows):
        line, told = _line_of_row(path, int(rows[0]) + 1), numbers[rows[0]].tolist()
        raise FormatError(f"{path}, line {line}: {told}, not integers of 64 bits")
    return numbers.astype(np.int64)


def _loadtxt(path: Path, dtype: type[np.generic]) -> NDArray[Any]:
    if not path.stat().st_size:
        return np.empty((0, 2), dtype=dtype)
    try:
        return tables.load_numbers(path, dtype, delimiter=",")
    except ValueError as error:
        # NumPy counts rows from 0 in this one of its messages, and never counts blank lines.
        match = _LOADTXT_PROBLEM.search(str(error))
        row = int(match[1]) + str(error).startswith("could not convert") if match else 1
        raise FormatError(f"{path}, line {_line_of_row(path, row)}: {error}") from error


def _line_of_row(path: Path, row: int) -> int:
    with path.open("rb") as file:
        lines = (number for number, line in enumerate(file, start=1) if line.strip())
        return next(itertools.islice(lines, row - 1, None), row)
