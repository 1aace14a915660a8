"""The stores that are compared: how each is written, opened and iterated over in batches.

Every peer is set up as its own documentation or its users do it, with the options that make it
fastest in shuffled order, and goes through PyG's ``DataLoader`` unless it brings a loader.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override


class Store:
    """One way to keep graphs. ``write`` and ``open`` may be called in different processes."""

    name: ClassVar[str]
    description: ClassVar[str]
    needs: ClassVar[str | None] = None
    """Optional package without which the store is left out."""
    in_memory: ClassVar[bool] = False
    """Whether all graphs are held in RAM, so that no run with less memory than data is possible."""
    max_count: ClassVar[int | None] = None
    """Most graphs that are written: a subset stands for the rest where writing takes long."""

    def __init__(self, *, memoize: bool = False, shard_size: str = "128MB") -> None:
        self._memo: dict[int, Any] | None = {} if memoize else None
        self.shard_size = shard_size

    @classmethod
    def missing(cls) -> bool:
        """Whether the optional package is not installed."""
        return cls.needs is not None and importlib.util.find_spec(cls.needs) is None

    def write(self, graphs: Iterable[Any], directory: Path) -> None:
        """Stores the graphs in an existing, empty directory."""
        raise NotImplementedError

    def open(self, directory: Path) -> Any:
        """The stored graphs as a dataset."""
        raise NotImplementedError

    def loader(
        self, dataset: Any, batch_size: int, *, num_workers: int = 0, endless: bool = False
    ) -> Any:
        """A shuffled loader of PyG batches; ``endless`` keeps workers busy across epochs."""
        return pyg_loader(dataset, batch_size, num_workers=num_workers, endless=endless)

    def encode(self, data: Any) -> Any:
        """One graph as the store keeps it; remembered by object where ``memoize`` is set."""
        if self._memo is None:
            return self.to_value(data)
        value = self._memo.get(id(data))
        if value is None:
            value = self._memo[id(data)] = self.to_value(data)
        return value

    def to_value(self, data: Any) -> Any:
        """One graph as the store keeps it."""
        return data


def pyg_loader(
    dataset: Any, batch_size: int, *, num_workers: int = 0, endless: bool = False
) -> Any:
    """PyG's own ``DataLoader`` in shuffled order."""
    from torch_geometric.loader import DataLoader

    from benchmarks.datasets import EndlessShuffle

    order = {"sampler": EndlessShuffle(len(dataset))} if endless else {"shuffle": True}
    return DataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        **order,
    )


class ShardGraph(Store):
    """This project."""

    name = "shardgraph"
    description = "ShardedDataset and GraphLoader"
    compression: str | None = None

    @override
    def write(self, graphs: Iterable[Any], directory: Path) -> None:
        import shardgraph as sg

        options = {"shard_size": self.shard_size, "compression": self.compression}
        with sg.DatasetWriter(directory, **options) as writer:
            for data in graphs:
                writer.write(data)

    @override
    def open(self, directory: Path) -> Any:
        import shardgraph as sg

        return sg.ShardedDataset(directory)

    @override
    def loader(
        self,
        dataset: Any,
        batch_size: int,
        *,
        num_workers: int = 0,
        endless: bool = False,
        shuffle: str = "full",
        seed: int = 0,
    ) -> Any:
        import shardgraph as sg

        if endless:  # one long epoch: every graph so many times
            repeats = -(-2_000_000 // len(dataset))
            dataset = dataset[np.tile(np.arange(len(dataset)), repeats)]
        return sg.GraphLoader(
            dataset,
            batch_size,
            shuffle=shuffle,
            seed=seed,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
        )


class ShardGraphGzip(ShardGraph):
    """This project, its files compressed."""

    name = "shardgraph-gzip"
    description = "the same, compressed"
    compression = "gzip"


class OnDisk(Store):
    """PyG's ``OnDiskDataset`` with a schema, its fastest form."""

    name = "sqlite"
    description = "PyG OnDiskDataset (SQLite, schema)"

    @override
    def write(self, graphs: Iterable[Any], directory: Path) -> None:
        from benchmarks.datasets import OnDiskGraphs

        graphs = iter(graphs)
        first = next(graphs)
        schema = _tensor_schema(first)
        (directory / "schema.pickle").write_bytes(pickle.dumps(schema))
        dataset = OnDiskGraphs(str(directory), schema)
        for chunk in _chunks(itertools.chain([first], graphs), 10_000):
            dataset.extend(chunk)
        dataset.close()

    @override
    def open(self, directory: Path) -> Any:
        from benchmarks.datasets import OnDiskGraphs

        schema = pickle.loads((directory / "schema.pickle").read_bytes())
        return OnDiskGraphs(str(directory), schema)


def _tensor_schema(data: Any) -> dict[str, Any]:
    schema = {}
    for key, value in data.to_dict().items():
        size = list(value.shape)
        size[data.__cat_dim__(key, value)] = -1
        schema[key] = {"dtype": value.dtype, "size": tuple(size)}
    return schema


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


class Lmdb(Store):
    """An LMDB of pickled graphs, as large atomistic datasets are commonly kept."""

    name = "lmdb"
    description = "LMDB of pickled Data"
    needs = "lmdb"

    @override
    def write(self, graphs: Iterable[Any], directory: Path) -> None:
        import lmdb

        env = lmdb.open(
            str(directory / "graphs.lmdb"), subdir=False, map_size=1 << 40, meminit=False
        )
        number = 0
        for chunk in _chunks(graphs, 1_000):
            with env.begin(write=True) as transaction:
                for data in chunk:
                    transaction.put(b"%012d" % number, self.encode(data))
                    number += 1
        env.sync()
        env.close()

    @override
    def to_value(self, data: Any) -> bytes:
        return pickle.dumps(data, protocol=-1)

    @staticmethod
    def from_value(value: Any) -> Any:
        """A graph from its stored bytes."""
        return pickle.loads(value)

    @override
    def open(self, directory: Path) -> Any:
        from benchmarks.datasets import LmdbGraphs

        return LmdbGraphs(directory / "graphs.lmdb", self.from_value)


class LmdbArrays(Lmdb):
    """An LMDB of pickled NumPy dictionaries: what a careful user writes by hand."""

    name = "lmdb-numpy"
    description = "LMDB of pickled dicts of NumPy arrays"

    @override
    def to_value(self, data: Any) -> bytes:
        arrays = {key: value.numpy() for key, value in data.to_dict().items()}
        return pickle.dumps(arrays, protocol=5)

    @staticmethod
    @override
    def from_value(value: Any) -> Any:
        import torch
        from torch_geometric.data import Data

        arrays = pickle.loads(value)
        return Data.from_dict({key: torch.from_numpy(array) for key, array in arrays.items()})


class Files(Store):
    """One ``torch.save`` file a graph, PyG's own example of a dataset larger than memory."""

    name = "pt"
    description = "one .pt file per graph"
    max_count = 50_000

    @override
    def write(self, graphs: Iterable[Any], directory: Path) -> None:
        import torch

        for number, data in enumerate(graphs):
            folder = directory / f"{number // 1000:06d}"
            if number % 1000 == 0:
                folder.mkdir()
            torch.save(data, folder / f"{number:09d}.pt")

    @override
    def open(self, directory: Path) -> Any:
        from benchmarks.datasets import GraphFiles

        return GraphFiles(directory)


class InMemory(Store):
    """PyG's ``InMemoryDataset``: concatenated tensors in RAM, cut apart graph by graph."""

    name = "inmemory"
    description = "PyG InMemoryDataset"
    in_memory = True

    @override
    def write(self, graphs: Iterable[Any], directory: Path) -> None:
        from torch_geometric.data import InMemoryDataset

        InMemoryDataset.save(list(graphs), str(directory / "data.pt"))

    @override
    def open(self, directory: Path) -> Any:
        from torch_geometric.data import InMemoryDataset

        dataset = InMemoryDataset()
        dataset.load(str(directory / "data.pt"))
        return dataset


class PlainList(Store):
    """A Python list of ``Data``: nothing is faster to hand to PyG's loader."""

    name = "list"
    description = "list of Data in RAM"
    in_memory = True

    @override
    def write(self, graphs: Iterable[Any], directory: Path) -> None:
        import torch

        torch.save(list(graphs), directory / "list.pt")

    @override
    def open(self, directory: Path) -> Any:
        import torch

        # Clones: objects read from one file lie side by side, unlike those that a program makes.
        return [data.clone() for data in torch.load(directory / "list.pt", weights_only=False)]


class LitData(Store):
    """LitData's streaming dataset of graphs. Shuffles chunks, and within 256 graphs."""

    name = "litdata"
    description = "LitData StreamingDataset"
    needs = "litdata"
    max_count = 200_000

    @override
    def write(self, graphs: Iterable[Any], directory: Path) -> None:
        from litdata.streaming.cache import Cache

        cache = Cache(str(directory), chunk_bytes="64MB")
        for number, data in enumerate(graphs):
            cache[number] = data
        cache.done()
        cache.merge()

    @override
    def open(self, directory: Path) -> Any:
        os.environ.setdefault("LITDATA_DISABLE_VERSION_CHECK", "1")
        from litdata import StreamingDataset

        # Decoding ahead, the default, decodes neighbours that a shuffled order does not use.
        return StreamingDataset(str(directory), shuffle=True, batch_decode=False)

    @override
    def loader(
        self, dataset: Any, batch_size: int, *, num_workers: int = 0, endless: bool = False
    ) -> Any:
        del endless  # it has an order of its own
        from litdata import StreamingDataLoader

        return StreamingDataLoader(
            dataset,
            batch_size=batch_size,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
        )


STORES: dict[str, type[Store]] = {
    store.name: store
    for store in (
        *(ShardGraph, OnDisk, Lmdb, LmdbArrays, Files, InMemory, PlainList, LitData),
        ShardGraphGzip,
    )
}
