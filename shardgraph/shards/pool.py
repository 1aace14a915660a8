"""The open shards of a dataset in one process, opened when first needed."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.errors import CorruptShardError, FormatError
from shardgraph.format.manifest import Manifest, ShardEntry
from shardgraph.format.schema import Schema
from shardgraph.shards.open import Shard
from shardgraph.shards.structure import check_size

CHECK_SECONDS = 5.0
"""How often the sizes of open shards are compared with the manifest; about 1 us a shard."""

MAX_HANDLES = 64
"""Open HDF5 handles (compressed shards only) a process keeps; each costs about 0.7 MB."""


class ShardPool:
    """Opens shards on first use, each process its own; pickles and forks as if nothing were open.

    Not shared between threads that open and close; reading from several threads is safe, at worst
    a shard is opened twice.
    """

    def __init__(self, root: Path, manifest: Manifest, schema: Schema) -> None:
        self.root = root
        self.entries = manifest.shards
        self.schema = schema
        self.starts: NDArray[np.int64] = np.zeros(len(self.entries) + 1, np.int64)
        np.cumsum([entry.num_graphs for entry in self.entries], out=self.starts[1:])
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._next_check = 0.0
        self._shards: dict[int, Shard] = {}
        self._handles: OrderedDict[int, Shard] = OrderedDict()

    @property
    def num_graphs(self) -> int:
        """Number of graphs of all shards."""
        return int(self.starts[-1])

    @property
    def num_open(self) -> int:
        """How many shards this process has open."""
        return len(self._shards) if self._pid == os.getpid() else 0

    def shard(self, number: int) -> Shard:
        """The open shard of that number.

        Raises:
            CorruptShardError: if the file is not the shard it should be.
            FormatError: if the dataset was replaced by another, or the file holds what it must not.
        """
        if self._pid != os.getpid():
            self._reset()
        shard = self._shards.get(number)
        if shard is None:
            shard = self._shards[number] = self._open(self.entries[number])
        if shard.index_chunked:
            self._keep_handle(number, shard)
        return shard

    def _open(self, entry: ShardEntry) -> Shard:
        try:
            shard = Shard(self.root / entry.name, entry, self.schema)
        except (CorruptShardError, FileNotFoundError) as error:
            if Manifest.read(self.root).shards != self.entries:
                raise FormatError(
                    f"{self.root} holds another dataset than when it was opened; open it again"
                ) from error
            raise
        shard.map.advise_random()
        return shard

    def _keep_handle(self, number: int, shard: Shard) -> None:
        self._handles[number] = shard
        self._handles.move_to_end(number)
        while len(self._handles) > MAX_HANDLES:
            self._handles.popitem(last=False)[1].close()

    def locate(self, graph: int) -> tuple[Shard, int]:
        """The shard that holds a graph, and the graph's number in it.

        Raises:
            IndexError: if there is no such graph.
        """
        if not 0 <= graph < self.num_graphs:
            raise IndexError(f"graph {graph} of a dataset of {self.num_graphs} graphs")
        self.recheck()
        number = int(np.searchsorted(self.starts, graph, side="right")) - 1
        return self.shard(number), graph - int(self.starts[number])

    def recheck(self) -> None:
        """Checks now and then that no open shard has shrunk: reading its map would kill.

        Raises:
            CorruptShardError: naming the shard that has. One that was removed can still be read.
        """
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS
        for number in list(self._shards):
            entry = self.entries[number]
            if (path := self.root / entry.name).exists():
                check_size(path, entry)

    def close(self) -> None:
        """Forgets all open shards; reading again opens them again."""
        for shard in self._handles.values() if self._pid == os.getpid() else ():
            shard.close()
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_pid", "_next_check", "_shards", "_handles"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()
