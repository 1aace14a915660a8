"""PyG objects in ``.pt`` files: one graph, a list, a collated dataset, or a folder of files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardgraph.convert.files import FileSource, FilesPartition, suffix_of
from shardgraph.convert.restore import describe, is_graph, restore_dict, restore_graph
from shardgraph.convert.source import Confidence, Option, Partition, Reject, file_stamps, spans
from shardgraph.convert.torchfile import load_pt
from shardgraph.errors import FormatError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

_PYG_OWN = frozenset({"pre_transform.pt", "pre_filter.pt"})


class PygSource(FileSource):
    """Reads what PyG's users save: `Data` or `HeteroData`, a list of them, or collated ones.

    Collated are ``(data, slices)`` and ``(dict, slices, class)``, the files that
    `InMemoryDataset` keeps in ``processed``, also those written by PyG 1. A folder of ``.pt``
    files is read file by file in the order of the numbers in their names; of the root of a PyG
    dataset, its folder ``processed``.

    Files hold pickles. Only PyG's, torch's and NumPy's own classes are read from them and no code
    is run; a subclass of `Data`, or anything else, is refused unless `trust_pickle` is set.

    Args:
        spec: The file or folder, or the root of a dataset.
        trust_pickle: Hands the files to ``torch.load``, which runs whatever code they hold.
    """

    name = "pyg"
    suffixes = frozenset({".pt", ".pth"})
    description = "PyG graphs in a .pt file (one, a list, or collated) or a folder of .pt files"
    options = (
        Option(
            name="trust_pickle",
            type=bool,
            help="load any pickle, running whatever code it holds",
            default=False,
        ),
    )

    def __init__(self, spec: str, *, trust_pickle: bool = False) -> None:
        super().__init__(spec)
        self._trust = trust_pickle

        path = Path(self.spec)
        if path.is_dir() and not self.names(path) and (path / "processed").is_dir():
            path /= "processed"
        names = self.names(path) if path.is_dir() else []
        # A file alone, as InMemoryDataset keeps it, is read in runs of graphs.
        self.spec = str(path / names[0] if len(names) == 1 else path)

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of the suffixes; possible of a root, whose raw files may be known too."""
        root = Path(spec) / "processed"
        found = super().recognise(spec)
        if found is None and root.is_dir() and cls.has_files(root):
            found = Confidence.POSSIBLE
        return found

    @classmethod
    def has_files(cls, folder: Path) -> bool:
        """Whether a folder holds a .pt file that is not one of PyG's own notes."""
        with os.scandir(folder) as entries:
            names = (entry.name for entry in entries)
            return any(suffix_of(Path(n)) in cls.suffixes and n not in _PYG_OWN for n in names)

    @classmethod
    def names(cls, folder: Path) -> list[str]:
        """The .pt files of a folder but those that PyG keeps its own notes in."""
        return [name for name in super().names(folder) if name not in _PYG_OWN]

    def partitions(self) -> Sequence[Partition]:
        """Runs of 10,000 graphs of a file, of 1,000 files of a folder."""
        path = Path(self.spec)
        if path.is_dir():
            return super().partitions()
        num_graphs = len(_load(path, file_stamps([path]), self._trust))
        return [
            Partition(file=self.spec, first=first, num_records=count)
            for first, count in spans(num_graphs, self.records_per_partition)
        ]

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:
        """Yields graphs; a file of a folder that cannot be read gives one `Reject`."""
        if isinstance(partition, FilesPartition):
            yield from super().read(partition)
            return
        path = Path(partition.file)
        graphs = _load(path, file_stamps([path]), self._trust)
        for i in range(partition.first, partition.first + (partition.num_records or 0)):
            yield graphs[i]

    def read_file(self, path: Path) -> Iterator[BaseData | Reject]:
        """Yields the graphs of one file of a folder."""
        graphs = _Graphs(path, load_pt(path, trust=self._trust))
        yield from (graphs[i] for i in range(len(graphs)))

    def provenance(self) -> dict[str, Any]:
        """Whether pickles were trusted, beside the files."""
        return super().provenance() | {"options": {"trust_pickle": self._trust}}


@lru_cache(maxsize=1)
def _load(
    path: Path,
    stamps: tuple[tuple[int, int], ...],  # noqa: ARG001 (part of the key)
    trust: bool,
) -> _Graphs:
    """The graphs of a file; kept for the partitions that the same process reads next."""
    return _Graphs(path, load_pt(path, trust=trust))


class _Graphs:
    """The graphs in the value of a .pt file, made one by one."""

    def __init__(self, path: Path, value: Any) -> None:
        self._path = path
        self._slices: Mapping[Any, Any] | None = None
        if _is_collated(value):
            data, self._slices, *rest = value
            self._items = [restore_dict(data, rest, str(path)) if isinstance(data, dict) else data]
            if self._slices is not None:
                self._collated = restore_graph(self._items[0], str(path))
                if hasattr(self._collated, "node_types"):
                    # A type that holds nothing but its number of nodes has no slices.
                    types = [*self._collated.node_types, *self._collated.edge_types]
                    self._slices = {**{key: {} for key in types}, **self._slices}
        elif isinstance(value, list | tuple):
            self._items = list(value)
        else:
            self._items = [value]
        self._num_graphs = len(self._items) if self._slices is None else self._count(self._slices)
        if self._num_graphs and self._slices is None and not any(map(is_graph, self._items)):
            raise FormatError(
                f"{path} holds {describe(value)}; expected a Data or HeteroData of PyG, a list "
                "of them, or (data, slices) as InMemoryDataset saves it"
            )

    def __len__(self) -> int:
        return self._num_graphs

    def __getitem__(self, i: int) -> BaseData | Reject:
        from torch_geometric.data.separate import separate

        try:
            if self._slices is None:
                return restore_graph(self._items[i], str(self._path))
            data = self._collated
            graph: BaseData = separate(data.__class__, data, i, self._slices, decrement=False)
        except (FormatError, AttributeError, LookupError, RuntimeError, TypeError) as error:
            reason = f"not a graph: {type(error).__name__}: {error}"
            return Reject(file=str(self._path), record=f"graph {i}", reason=reason)
        return graph

    def _count(self, slices: Mapping[Any, Any]) -> int:
        lengths = {len(leaf) for leaf in _leaves(slices)}
        if len(lengths) != 1 or 0 in lengths:
            raise FormatError(
                f"{self._path}: the slices have {sorted(lengths)} entries; each attribute must "
                "have one more than there are graphs"
            )
        return lengths.pop() - 1


def _is_collated(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) >= 2
        and (is_graph(value[0]) or isinstance(value[0], dict))
        and (value[1] is None or isinstance(value[1], dict))
    )


def _leaves(value: Any) -> Iterator[Any]:
    for leaf in value.values():
        if isinstance(leaf, Mapping):
            yield from _leaves(leaf)
        else:
            yield leaf
