"""Datasets of shardgraph itself: to re-shard, compress, select, shuffle or merge them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.convert.source import Confidence, Option, Partition, Reject, Source, spans
from shardgraph.errors import FormatError
from shardgraph.format.layout import FORMAT_NAME, MANIFEST_NAME, SHARD_PATTERN
from shardgraph.format.manifest import Manifest
from shardgraph.format.schema import Attribute
from shardgraph.format.splits import unpack_split

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

    from shardgraph.collate import GraphDecoder

_PLAIN = frozenset(
    {"torch_geometric.data.data:Data", "torch_geometric.data.hetero_data:HeteroData"}
)
_GRAPHS_AT_ONCE = 256
_NBYTES_AT_ONCE = 4_000_000


class ShardgraphSource(Source):
    """Reads the graphs of one dataset, or of several one after the other, in their order.

    They keep their class, also where it cannot be imported, and the rules for batching that were
    recorded, and the new dataset their splits; those of one name are joined. Statistics are made
    anew. Several datasets must have the same attributes, of what ``keys`` and ``drop`` leave.

    Args:
        spec: The dataset, or a PyG root that has one in ``processed``.
        also: Further datasets, to follow it.
    """

    name = "shardgraph"
    description = "datasets of shardgraph: re-shard, compress, select, and merge with --also"
    options = (
        Option(
            name="also", type=str, many=True, repeated=True, help="a further dataset, to follow it"
        ),
    )

    def __init__(self, spec: str, *, also: Sequence[str] | None = None) -> None:
        super().__init__(spec)
        if isinstance(also, str):
            raise TypeError(f"also takes a list of datasets, got {also!r}")
        self._roots = [_directory(Path(path)) for path in (self.spec, *map(os.fspath, also or ()))]
        self._classes: list[type[BaseData] | None] = []

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of a dataset, possible of a root whose raw files may be known too."""
        path = Path(spec)
        if _is_dataset(path) or (path.is_file() and SHARD_PATTERN.fullmatch(path.name)):
            return Confidence.CERTAIN
        return Confidence.POSSIBLE if _is_dataset(path / "processed") else None

    def partitions(self) -> Sequence[Partition]:
        """Runs of 10,000 graphs of each dataset."""
        from shardgraph.collate import known_class

        # Pickled along: a worker must have the methods that a transform may call.
        self._classes = [known_class(m.schema.data_class) for m in self._manifests]
        return [
            Partition(file=str(root), first=first, num_records=count)
            for root, manifest in zip(self._roots, self._manifests, strict=True)
            for first, count in spans(manifest.num_graphs, self.records_per_partition)
        ]

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:
        """Yields the graphs; a damaged shard is an error."""
        place = self._roots.index(Path(partition.file))
        if self._readers[place] is None:
            known = self._classes[place] if self._classes else None
            self._readers[place] = _Reader(self._roots[place], self._manifests[place], known)
        first = partition.first
        yield from self._readers[place].graphs(first, first + (partition.num_records or 0))

    def splits(self) -> dict[str, NDArray[np.int64]]:
        """The splits of the datasets."""
        found: dict[str, list[NDArray[np.int64]]] = {}
        start = 0
        for manifest in self._manifests:
            for name, packed in manifest.splits.items():
                ids = unpack_split(packed, manifest.num_graphs)
                found.setdefault(name, []).append(np.asarray(ids, np.int64) + start)
            start += manifest.num_graphs
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def varying(self) -> frozenset[str]:
        """The tensors of varying shape, as the datasets have them."""
        return frozenset(
            name
            for manifest in self._manifests
            for store in manifest.schema.stores
            for attribute in store.attributes
            for name in _varying(attribute, attribute.name)
        )

    def files(self) -> list[Path]:
        """The manifests, which hold the digests of the shards."""
        return [root / MANIFEST_NAME for root in self._roots]

    def provenance(self) -> dict[str, Any]:
        """Names of the datasets, and where their graphs are from."""
        origins = [manifest.provenance.get("source", {}) for manifest in self._manifests]
        told = {"datasets": [root.resolve().name for root in self._roots], "from": origins}
        targets = [origin.get("targets") for origin in origins if isinstance(origin, dict)]
        same = targets[:1] * len(origins) == targets and targets[0] is not None
        return super().provenance() | told | ({"targets": targets[0]} if same else {})

    @cached_property
    def _manifests(self) -> list[Manifest]:
        return [Manifest.read(root) for root in self._roots]

    @cached_property
    def _readers(self) -> list[Any]:
        return [None] * len(self._roots)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_manifests", "_readers"):
            state.pop(name, None)
        return state


class _Reader:
    """One dataset open in this process."""

    def __init__(self, root: Path, manifest: Manifest, known: type[BaseData] | None) -> None:
        from shardgraph.shards.advise import Advisor
        from shardgraph.shards.pool import ShardPool

        self._pool = ShardPool(root, manifest, manifest.schema)
        self._advisor = Advisor(self._pool)
        self._decoder, self._class = _decoder(manifest, known)
        mean = manifest.raw_nbytes // max(1, manifest.num_graphs)
        self._step = max(1, min(_GRAPHS_AT_ONCE, _NBYTES_AT_ONCE // max(1, mean)))

    def graphs(self, first: int, stop: int) -> Iterator[BaseData]:
        """Some graphs, a few at a time; those after them are asked for from the disk meanwhile."""
        from shardgraph.shards.gather import Selection

        for start in range(first, stop, self._step):
            end = min(start + self._step, stop)
            if end < stop:
                self._advisor.ask(np.array([end]), np.array([min(end + self._step, stop)]))
            ids = np.arange(start, end, dtype=np.int64)
            for data in self._decoder.many(Selection.of(self._pool, ids)):
                if self._class is not None:
                    object.__setattr__(data, "__class__", self._class)
                yield data


def _decoder(
    manifest: Manifest, known: type[BaseData] | None
) -> tuple[GraphDecoder, type[BaseData] | None]:
    """What makes the graphs, and the class they are given then.

    That class has the name of the one they were written from, so that it is recorded again, and
    answers with the recorded rules, whether or not that one is there to inherit from.
    """
    from shardgraph.collate import GraphDecoder, known_class

    name = manifest.schema.data_class
    if name in _PLAIN:
        return GraphDecoder(manifest.schema, known_class(name)), None
    decoder = GraphDecoder(manifest.schema, None)
    base = type(decoder.template)
    module, _, qualified = name.partition(":")
    bases = (base,) if known is None else (base, known)
    names = {"__module__": module, "__qualname__": qualified, "__doc__": base.__doc__}
    return decoder, type(qualified.rpartition(".")[2], bases, names)


def _varying(attribute: Attribute, name: str) -> Iterator[str]:
    """The names under which an attribute's tensors of varying shape are told to the writer."""
    column = attribute.column
    if attribute.kind == "tensor" and column is not None and column.row_shape is None:
        yield name
    for item in attribute.items:
        yield from _varying(item, item.name if attribute.kind == "dict" else name)


def _is_dataset(path: Path) -> bool:
    try:
        with (path / MANIFEST_NAME).open("rb") as file:
            return f'"format": "{FORMAT_NAME}"'.encode() in file.read(1000)
    except OSError:
        return False


def _directory(path: Path) -> Path:
    """The directory of the dataset that a path means."""
    for found in (path, path / "processed"):
        if (found / MANIFEST_NAME).is_file():
            return found
    if path.is_file():
        raise FormatError(f"{path} is a file; name the directory of a dataset, not a part of it")
    if not path.exists():
        raise FileNotFoundError(f"no such folder: {path}")
    raise FormatError(f"{path} has no {MANIFEST_NAME}, so it is not a dataset of shardgraph")
