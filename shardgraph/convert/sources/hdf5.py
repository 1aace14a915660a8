"""Graphs in HDF5 files of other programs: a group per graph, or padded arrays of all graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.convert.build import as_dtype, make_data
from shardgraph.convert.files import FileSource, FilesPartition
from shardgraph.convert.source import Confidence, Option, Partition, Reject, spans
from shardgraph.errors import FormatError

if TYPE_CHECKING:
    import h5py
    from torch_geometric.data.data import BaseData

# Where the known programs put things; the first that is there is taken, a "/" at the end stands
# for all datasets of numbers in that group.
_KNOWN = {
    "edge_index": ("edge_index", "edges/edge_index"),
    "pos": ("pos", "node_data/pos", "node_features/_position"),
    "x": ("x", "node", "node_feat", "node_data/", "node_features/"),
    "edge_attr": ("edge_attr", "edge_feat", "edge_data/", "edge_features/"),
    "y": ("y", "target", "targets"),
}
_SNIFFED_GROUPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Which datasets become which attribute; paths within a group, or within the file."""

    groups: bool
    attributes: dict[str, tuple[str, ...]]
    pairs_by_row: bool
    """Whether edge_index is stored as [E, 2]."""


class Hdf5Source(FileSource):
    """Reads a graph from each group, or from row i of padded arrays where there are no groups.

    ``x``, ``edge_attr`` and ``y`` float32 join the columns of their datasets, ``pos`` is float32,
    ``edge_index`` is turned to [2, E]. In padded arrays [G, N_max, ...] the nodes of a graph are
    the first ``num_nodes[i]`` rows, or those with a mask, and edges are the entries of an
    adjacency matrix that are not 0, their values ``edge_weight``.

    Args:
        spec: The file, or a folder of files.
        edge_index: Path of the dataset in a group; None recognises the usual names, as for the
            following three. A path that ends in "/" stands for all numbers in that group.
        x: Paths of the node features, joined as columns.
        edge_attr: Paths of the edge features.
        pos: Path of the positions.
        y: Paths of the targets of a graph, joined to [1, T].
        keep: Further attributes, as NAME=PATH.
        undirected: Adds to each edge its inverse, after all others.
        num_nodes: For padded arrays: path of the numbers of nodes [G].
        mask: For padded arrays: path of an array [G, N_max] that is not 0 at nodes.
        adjacency: For padded arrays: path of the matrices [G, N_max, N_max].
    """

    name = "hdf5"
    description = "HDF5 of other programs: a group per graph, or padded arrays of all graphs"
    suffixes = frozenset({".h5", ".hdf5", ".hdf"})
    options = (
        Option(name="edge_index", type=str, help="dataset of the edges (recognised)"),
        Option(name="x", type=str, many=True, help="datasets of node features (recognised)"),
        Option(name="edge_attr", type=str, many=True, help="datasets of edge features"),
        Option(name="pos", type=str, help="dataset of positions (recognised)"),
        Option(name="y", type=str, many=True, help="datasets that become y (recognised)"),
        Option(name="keep", type=str, many=True, help="further attributes, as NAME=PATH"),
        Option(name="undirected", type=bool, help="add the inverse of each edge", default=False),
        Option(name="num_nodes", type=str, help="padded arrays: dataset of numbers of nodes"),
        Option(name="mask", type=str, help="padded arrays: dataset that is not 0 at nodes"),
        Option(name="adjacency", type=str, help="padded arrays: dataset of adjacency matrices"),
    )

    def __init__(
        self,
        spec: str,
        *,
        edge_index: str | None = None,
        x: Sequence[str] | None = None,
        edge_attr: Sequence[str] | None = None,
        pos: str | None = None,
        y: Sequence[str] | None = None,
        keep: Sequence[str] | None = None,
        undirected: bool = False,
        num_nodes: str | None = None,
        mask: str | None = None,
        adjacency: str | None = None,
    ) -> None:
        super().__init__(spec)
        given: dict[str, Sequence[str] | None] = {
            "edge_index": edge_index and [edge_index],
            "x": x,
            "edge_attr": edge_attr,
            "pos": pos and [pos],
            "y": y,
        }
        self._given = {name: tuple(paths) for name, paths in given.items() if paths is not None}
        for item in keep or ():
            name, equals, path = item.partition("=")
            if not equals or not name.isidentifier() or name in _KNOWN:
                raise ValueError(f"keep takes NAME=PATH with a new name, got {item!r}")
            self._given[name] = (path,)
        self._undirected = undirected
        self._num_nodes, self._mask, self._adjacency = num_nodes, mask, adjacency

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Possible for an HDF5 suffix: many kinds of data are kept in HDF5."""
        return Confidence.POSSIBLE if super().recognise(spec) else None

    def partitions(self) -> Sequence[Partition]:
        """Runs of 10,000 graphs of a file, of 1,000 files of a folder."""
        self._plan  # noqa: B018 (made once, and pickled with the source)
        path = Path(self.spec)
        if path.is_dir():
            return super().partitions()
        with _opened(path) as file:
            num_graphs = self._count(file)
        return [
            Partition(file=self.spec, first=first, num_records=count)
            for first, count in spans(num_graphs, self.records_per_partition)
        ]

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:
        """Yields a graph or a `Reject` per group or row."""
        if isinstance(partition, FilesPartition):
            yield from super().read(partition)
            return
        stop = partition.first + (partition.num_records or 0)
        yield from self._read(Path(partition.file), partition.first, stop)

    def read_file(self, path: Path) -> Iterator[BaseData | Reject]:
        """Yields the graphs of one file of a folder."""
        yield from self._read(path, 0, None)

    def provenance(self) -> dict[str, Any]:
        """The datasets that became each attribute."""
        chosen: dict[str, Any] = {k: list(paths) for k, paths in self._plan.attributes.items()}
        padded = {
            "num_nodes": self._num_nodes,
            "mask": self._mask,
            "adjacency": self._adjacency,
            "undirected": self._undirected,
        }
        return super().provenance() | {"options": chosen | padded}

    def _read(self, path: Path, first: int, stop: int | None) -> Iterator[BaseData | Reject]:
        with _opened(path) as file:
            names = list(file) if self._plan.groups else range(self._count(file))
            for name in names[first:stop]:
                record = name if isinstance(name, str) else f"row {name}"
                try:
                    if isinstance(name, str):
                        yield self._of_group(file[name])
                    else:
                        yield self._of_row(file, name)
                except (LookupError, OSError, TypeError, ValueError) as error:
                    reason = f"{type(error).__name__}: {error}"
                    yield Reject(file=str(path), record=record, reason=reason)

    def _count(self, file: h5py.File) -> int:
        if self._plan.groups:
            return len(file)
        paths = [path for paths in self._plan.attributes.values() for path in paths]
        if absent := [path for path in paths if not _is_dataset(file.get(path))]:
            raise FormatError(f"{file.filename} has no array {', '.join(absent)}")
        lengths = {len(file[path]) for path in paths}
        if len(lengths) != 1:
            raise FormatError(
                f"{file.filename} has no group per graph, and its arrays have {sorted(lengths)} "
                "rows: name the arrays that have one row a graph"
            )
        return lengths.pop()

    @cached_property
    def _plan(self) -> _Plan:
        return self.of_first(self._plan_of)

    def _plan_of(self, path: Path) -> _Plan:
        with _opened(path) as file:
            # None: a link that leads nowhere.
            groups = [file.get(name) for name in list(file)[:_SNIFFED_GROUPS]]
            groups = [group for group in groups if group is not None and not _is_dataset(group)]
            first: h5py.Group = groups[0] if groups else file
            attributes = {
                name: _expand(first, self._given.get(name) or _known(first, paths))
                for name, paths in _KNOWN.items()
            }
            attributes["x"] = tuple(p for p in attributes["x"] if p not in attributes["pos"])
            kept = {name: paths for name, paths in self._given.items() if name not in _KNOWN}
            edges = [group.get(path) for group in groups for path in attributes["edge_index"]]
            shapes = {edge.shape for edge in edges if edge is not None}
            found = {name: paths for name, paths in (attributes | kept).items() if paths}
            if not found:
                raise FormatError(
                    f"{file.filename}: none of the usual names is in {first.name!r}, which holds "
                    f"{', '.join(_numbers_in(first)) or 'no numbers'}: name what is to be read"
                )
        return _Plan(
            groups=bool(groups),
            attributes=found,
            # Two edges of two ends look the same either way: the others tell.
            pairs_by_row=any(s[1:] == (2,) and s[0] != 2 for s in shapes)
            or not any(s[:1] == (2,) for s in shapes),
        )

    def _of_group(self, group: h5py.Group) -> BaseData:
        if _is_dataset(group):
            raise TypeError("a dataset where a group was expected")
        values = self._values(lambda path: group[path][()])
        edges = values.pop("edge_index", None)
        if edges is not None:
            edges = edges.T if self._plan.pairs_by_row else edges
            if edges.ndim != 2 or edges.shape[0] != 2:
                raise ValueError(f"edge_index has the shape {edges.shape[::-1]}, expected [E, 2]")
        num_nodes = None if "x" in values or "pos" in values else _scalar(group, "num_nodes")
        return self._build(edges, values, num_nodes)

    def _of_row(self, file: h5py.File, row: int) -> BaseData:
        values = self._values(lambda path: file[path][row])
        if self._num_nodes is not None:
            nodes = np.arange(int(file[self._num_nodes][row]))
            most = min((len(values[n]) for n in values.keys() - {"y", "edge_index"}), default=None)
            if most is not None and len(nodes) > most:
                raise ValueError(f"{len(nodes)} nodes in arrays of {most} rows")
        elif self._mask is not None:
            nodes = np.flatnonzero(file[self._mask][row])
        else:
            raise ValueError("padded arrays need num_nodes or mask to tell the nodes")
        for name in values.keys() - {"y", "edge_index"}:
            values[name] = values[name][nodes]
        edges = values.pop("edge_index", None)
        if self._adjacency is not None:
            matrix = file[self._adjacency][row][np.ix_(nodes, nodes)]
            edges = np.stack(np.nonzero(matrix))
            values["edge_weight"] = as_dtype(matrix[tuple(edges)], np.float32, "edge_weight")
        return self._build(edges, values, None if values.keys() & {"x", "pos"} else len(nodes))

    def _values(self, read: Callable[[str], Any]) -> dict[str, NDArray[Any]]:
        """Every attribute of a graph: its datasets, joined as columns."""
        found: dict[str, NDArray[Any]] = {}
        for name, paths in self._plan.attributes.items():
            arrays = [np.asarray(read(path)) for path in paths]
            if name == "y":
                joined = np.concatenate([np.ravel(array) for array in arrays])
                found[name] = as_dtype(joined, np.float32, name)[None]
            elif name in ("x", "edge_attr"):
                columns = [array.reshape(len(array), -1) for array in arrays]
                found[name] = as_dtype(np.concatenate(columns, axis=1), np.float32, name)
            else:
                (array,) = arrays
                found[name] = as_dtype(array, np.float32, name) if name == "pos" else array
        return found

    def _build(
        self, edges: NDArray[Any] | None, values: dict[str, NDArray[Any]], num_nodes: int | None
    ) -> BaseData:
        if edges is not None and self._undirected:
            num_edges = edges.shape[1]
            edges = np.concatenate([edges, edges[::-1]], axis=1)
            for name in [n for n in values if n.startswith("edge_")]:
                if len(values[name]) == num_edges:
                    values[name] = np.concatenate([values[name], values[name]])
        return make_data(
            edge_index=np.empty((2, 0), np.int64) if edges is None else edges,
            num_nodes=num_nodes,
            **values,
        )


def _opened(path: Path) -> h5py.File:
    import h5py

    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        raise FormatError(f"{path} cannot be read as HDF5: {error}") from error


def _is_dataset(item: Any) -> bool:
    import h5py

    return isinstance(item, h5py.Dataset)


def _known(group: h5py.Group, paths: Sequence[str]) -> tuple[str, ...]:
    return next(((path,) for path in paths if path.rstrip("/") in group), ())


def _expand(group: h5py.Group, paths: Sequence[str]) -> tuple[str, ...]:
    """The paths, with those of a whole group replaced by its datasets of numbers."""
    found: list[str] = []
    for path in paths:
        if path.endswith("/"):
            found += [f"{path}{name}" for name in _numbers_in(group[path])]
        else:
            found.append(path)
    return tuple(found)


def _numbers_in(group: Mapping[str, Any]) -> list[str]:
    return [n for n, item in group.items() if _is_dataset(item) and item.dtype.kind in "iufb"]


def _scalar(group: h5py.Group, name: str) -> int | None:
    return int(group[name][()]) if name in group and group[name].shape == () else None
