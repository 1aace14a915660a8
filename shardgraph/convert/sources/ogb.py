"""A folder of the Open Graph Benchmark: raw/*.csv.gz, with its splits.

The layout is that of ``ogb.io.DatasetSaver`` and of the downloads of https://ogb.stanford.edu.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shardgraph.convert import table as tables
from shardgraph.convert.build import as_dtype, make_data
from shardgraph.convert.source import Confidence, Option, Partition, Reject, Source, spans
from shardgraph.errors import FormatError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

# Datasets of which OGB itself adds the inverse of each edge (add_inverse_edge in its master.csv).
_INVERSE = ("ogbg_mol", "ogbg_ppa", "ogbn_products", "ogbn_proteins")
_ATTRIBUTES = {"node-feat": "x", "edge-feat": "edge_attr", "node-label": "y", "graph-label": "y"}
_MASKS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}


class OGBSource(Source):
    """Reads ogbg- and homogeneous ogbn- folders, lazily, in the order of the files.

    ``x`` and ``edge_attr`` are int64 where their files hold integers only, else float32, NaN where
    a field is empty;
    ``y`` likewise, [1, T] of a graph or [N, T] of nodes; files such as node_species become
    attributes of that name. The given split becomes `splits` of graphs, and ``train_mask``,
    ``val_mask`` and ``test_mask`` of nodes.

    Args:
        spec: The folder, such as ``ogbg_molhiv``, that holds ``raw``.
        inverse_edges: Adds to each edge its inverse, right behind it; None does so for the
            datasets of which OGB does.
        split: Name of the split to take; None takes the one there is.
    """

    name = "ogb"
    description = "a folder of the Open Graph Benchmark: raw/*.csv.gz, with its split"
    options = (
        Option(name="inverse_edges", type=bool, help="add the inverse of each edge (as OGB does)"),
        Option(name="split", type=str, help="name of the split to take (the only one)"),
    )

    def __init__(
        self, spec: str, *, inverse_edges: bool | None = None, split: str | None = None
    ) -> None:
        super().__init__(spec)
        if inverse_edges is None:
            inverse_edges = Path(self.spec).resolve().name.replace("-", "_").startswith(_INVERSE)
        self._inverse_edges = inverse_edges
        self._split = split

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of a folder with raw/edge.csv.gz and raw/num-node-list.csv.gz."""
        names = ("edge", "num-node-list")
        found = all((Path(spec) / "raw" / f"{name}.csv.gz").exists() for name in names)
        return Confidence.CERTAIN if found else None

    def partitions(self) -> Sequence[Partition]:
        """Runs of 10,000 graphs."""
        self._columns  # noqa: B018 (found out once, and pickled with the source)
        return [
            Partition(file=self.spec, first=first, num_records=count)
            for first, count in spans(len(self._num_nodes), self.records_per_partition)
        ]

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:
        """Yields a graph, or a `Reject` where one of its lines does not hold numbers."""
        first = partition.first
        before = {
            "node": int(self._num_nodes[:first].sum()),
            "edge": int(self._num_edges[:first].sum()),
            "graph": first,
        }
        with ExitStack() as stack:
            lines = {}
            for name, (of, _, _) in self._columns.items():
                stream = stack.enter_context(tables.open_binary(self._raw(name)))
                lines[name] = _skip(stream, before[of])
            stop = first + (partition.num_records or 0)
            for graph in range(first, stop):
                yield self._graph(graph, lines)
            for name, rest in lines.items() if stop == len(self._num_nodes) else ():
                if any(line.strip() for line in rest):
                    raise FormatError(f"{self._raw(name)} has more lines than all {stop} graphs")

    def splits(self) -> dict[str, NDArray[np.int64]]:
        """The given split of graphs; of nodes it is in the masks instead."""
        return {} if self._has_node_labels else self._split_of

    def files(self) -> list[Path]:
        """The files of raw and of the split."""
        split = sorted(self._split_folder.glob("*.csv.gz")) if self._split_folder else []
        return [*sorted((Path(self.spec) / "raw").glob("*.csv.gz")), *split]

    def provenance(self) -> dict[str, Any]:
        """The options as they were applied."""
        split = self._split_folder.name if self._split_folder else None
        return super().provenance() | {
            "dataset": Path(self.spec).resolve().name,
            "options": {"inverse_edges": self._inverse_edges, "split": split},
        }

    def _raw(self, name: str) -> Path:
        return Path(self.spec) / "raw" / f"{name}.csv.gz"

    @cached_property
    def _num_nodes(self) -> NDArray[np.int64]:
        return _counts(self._raw("num-node-list"))

    @cached_property
    def _num_edges(self) -> NDArray[np.int64]:
        found = _counts(self._raw("num-edge-list"))
        if len(found) != len(self._num_nodes):
            raise FormatError(
                f"{self.spec}/raw: num-edge-list has {len(found)} lines, num-node-list has "
                f"{len(self._num_nodes)}"
            )
        return found

    @property
    def _has_node_labels(self) -> bool:
        return self._raw("node-label").exists()

    @cached_property
    def _columns(self) -> dict[str, tuple[str, int, bool]]:
        """Per file: what its lines count, their number of columns, whether all are integers."""
        paths = (Path(self.spec) / "raw").glob("*.csv.gz")
        names = [path.name.removesuffix(".csv.gz") for path in paths]
        counted = {name: name.replace("_", "-").split("-")[0] for name in sorted(names)}
        if "edge" not in counted:
            raise FormatError(f"{self.spec}/raw has no edge.csv.gz")
        return {
            name: (of, *_look_at(self._raw(name)))
            for name, of in counted.items()
            if of in ("node", "edge", "graph")
        }

    def _graph(self, graph: int, lines: dict[str, Iterator[bytes]]) -> BaseData | Reject:
        counts = {
            "node": int(self._num_nodes[graph]),
            "edge": int(self._num_edges[graph]),
            "graph": 1,
        }
        # All files move on to the next graph, whatever is wrong with this one.
        texts = {
            name: list(itertools.islice(lines[name], counts[of]))
            for name, (of, _, _) in self._columns.items()
        }
        values: dict[str, Any] = {}
        for name, (of, width, integers) in self._columns.items():
            found = _parse(texts[name], counts[of], width, integers, name)
            if isinstance(found, str):
                path = str(self._raw(name))
                return Reject(file=path, record=f"graph {graph}", reason=found)
            values[_ATTRIBUTES.get(name, name.replace("-", "_"))] = found
        return self._build(graph, counts["node"], values)

    def _build(self, graph: int, num_nodes: int, values: dict[str, Any]) -> BaseData | Reject:
        edges = values.pop("edge")
        if edges.size and not 0 <= edges.min() <= edges.max() < num_nodes:
            reason = f"an edge joins {edges.max()}, but nodes are 0 to {num_nodes - 1}"
            return Reject(file=str(self._raw("edge")), record=f"graph {graph}", reason=reason)
        if self._inverse_edges:
            edges = np.stack([edges, edges[:, ::-1]], axis=1).reshape(-1, 2)
            for name in [name for name in values if name.startswith("edge_")]:
                values[name] = values[name].repeat(2, axis=0)
        if self._has_node_labels:
            for name, nodes in self._split_of.items():
                mask = np.zeros(num_nodes, dtype=bool)
                mask[nodes] = True
                values[_MASKS.get(name, f"{name}_mask")] = mask
        return make_data(
            edge_index=edges.T, **values, num_nodes=None if "x" in values else num_nodes
        )

    @property
    def _split_folder(self) -> Path | None:
        folder = Path(self.spec) / "split"
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        if self._split is None and len(names) <= 1:
            return folder / names[0] if names else None
        if self._split not in names:
            raise ValueError(
                f"{folder} has the splits {', '.join(names) or 'none'}: name one of them, "
                f"not {self._split!r}"
            )
        return folder / self._split

    @cached_property
    def _split_of(self) -> dict[str, NDArray[np.int64]]:
        folder = self._split_folder
        return {
            path.name.removesuffix(".csv.gz"): _integers(path)
            for path in sorted(folder.glob("*.csv.gz") if folder else [])
        }


def _skip(stream: BinaryIO, num_lines: int) -> Iterator[bytes]:
    return itertools.islice(stream, num_lines, None)


def _look_at(path: Path) -> tuple[int, bool]:
    """Number of columns, and whether the whole file holds integers and separators only."""
    width, integers, last = 0, True, b"\n"
    with tables.open_binary(path) as stream:
        width = stream.readline().count(b",") + 1
        stream.seek(0)
        while integers and (piece := stream.read(1 << 20)):
            others = piece.translate(None, b"0123456789-+, \r\n")
            integers = not others and not _has_gaps(last + piece)
            last = piece[-1:]
    return width, integers and last != b","


def _has_gaps(text: bytes) -> bool:
    """Whether there are empty fields, as pandas writes what is missing."""
    return b",," in text or b"\n," in text or b",\n" in text or b",\r" in text


def _filled(line: bytes) -> bytes:
    if not _has_gaps(b"\n" + line + b"\n"):
        return line
    return b",".join(field if field.strip() else b"nan" for field in line.split(b","))


def _parse(
    lines: list[bytes], num_lines: int, width: int, integers: bool, name: str
) -> NDArray[Any] | str:
    """The numbers, int64 or float32 [num_lines, width], or why there are none."""
    if len(lines) != num_lines:
        return f"the file ends: {num_lines} lines were expected, {len(lines)} are left"
    if not lines:
        return np.empty((0, width), dtype=np.int64 if integers else np.float32)
    try:
        if integers:
            found = tables.load_numbers(lines, np.int64, delimiter=",")
        else:
            found = tables.load_numbers([*map(_filled, lines)], np.float64, delimiter=",")
            found = as_dtype(found, np.float32, name)
    except (ValueError, OverflowError) as error:
        return str(error)
    if found.shape != (num_lines, width):
        return f"{found.shape} numbers where {(num_lines, width)} were expected"
    return found


def _integers(path: Path) -> NDArray[np.int64]:
    """A column of integers, one a line."""
    with tables.open_binary(path) as stream:
        lines = list(stream)
    found = _parse(lines, len(lines), 1, integers=True, name=path.name)
    if isinstance(found, str):
        raise FormatError(f"{path}: {found}")
    return found[:, 0]


def _counts(path: Path) -> NDArray[np.int64]:
    found = _integers(path)
    if found.min(initial=0) < 0:
        raise FormatError(f"{path}, line {found.argmin() + 1}: {found.min()} is no count")
    return found
