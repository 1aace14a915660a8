"""The peers' datasets, as their users write them. Imports torch and PyG: for child processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Sampler
from torch_geometric.data import Data, OnDiskDataset


class OnDiskGraphs(OnDiskDataset):
    """PyG's on-disk dataset with a schema of tensors."""

    def __init__(self, root: str, schema: dict[str, Any]) -> None:
        super().__init__(root, schema=schema, log=False)

    def serialize(self, data: Any) -> Any:
        """A graph as the row that the schema describes."""
        return data.to_dict()

    def deserialize(self, data: Any) -> Any:
        """A graph from its row."""
        return Data.from_dict(data)


class LmdbGraphs:
    """A map-style dataset over an LMDB, opened by each process when it first reads."""

    def __init__(self, path: Path, decode: Callable[[Any], Any]) -> None:
        self.path = path
        self.decode = decode
        self._pid = -1
        with self._open() as env:
            self.size = int(env.stat()["entries"])

    def _open(self) -> Any:
        import lmdb

        # No read-ahead: LMDB's own advice for random reads of more data than memory.
        return lmdb.open(
            str(self.path), subdir=False, readonly=True, lock=False, readahead=False, meminit=False
        )

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> Any:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._transaction = self._open().begin(buffers=True)
        return self.decode(self._transaction.get(b"%012d" % number))


class GraphFiles:
    """A map-style dataset of one ``torch.save`` file a graph, 1,000 to a folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        self.size = 1 + int(max(max(directory.iterdir()).iterdir()).stem)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> Any:
        path = f"{self.directory}/{number // 1000:06d}/{number:09d}.pt"
        return torch.load(path, weights_only=False)


class EndlessShuffle(Sampler[int]):
    """Permutation after permutation, so that workers never come to the end of an epoch."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(self.size).tolist()
