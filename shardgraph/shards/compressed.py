"""Compressed columns: row ranges out of chunks, which are decoded once and kept for a while."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardgraph.errors import CorruptShardError
from shardgraph.shards.chunks import Chunks
from shardgraph.shards.inspect import Located

if TYPE_CHECKING:
    from shardgraph.shards.open import Shard

Array: TypeAlias = "NDArray[Any]"

MOST_DECODED: Final = 256 << 20
"""Bytes of decoded chunks that a process keeps of a dataset."""

_turn = threading.RLock()
"""Held by the one thread that uses HDF5 handles, so that no other closes one meanwhile; and by one
that forks: a child would wait for ever for an import that another thread had begun."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_turn.acquire, after_in_parent=_turn.release, after_in_child=_turn.release
    )


class DecodedChunks:
    """Chunks decoded of a dataset's columns; those used longest ago go when there are too many."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[tuple[int, int], Array] = OrderedDict()
        self._nbytes = 0

    def get(self, column: ChunkedColumn, number: int) -> Array | None:
        """A chunk of a column, if it is kept."""
        key = id(column), number  # columns live as long as the pool, or the shard, that keeps this
        with _turn:
            chunk = self._chunks.get(key)
            if chunk is not None:
                self._chunks.move_to_end(key)
        return chunk

    def keep(self, column: ChunkedColumn, number: int, chunk: Array) -> None:
        """Keeps a chunk of a column."""
        with _turn:
            if self._chunks.setdefault((id(column), number), chunk) is chunk:
                self._nbytes += chunk.nbytes
            while self._nbytes > MOST_DECODED:
                self._nbytes -= self._chunks.popitem(last=False)[1].nbytes


class ChunkedColumn:
    """A compressed column: reads row ranges, once their chunks are found sound."""

    def __init__(self, shard: Shard, name: str, located: Located) -> None:
        self._shard = shard
        self._name = name
        self._chunks: Chunks | None = None
        self.dtype = located.dtype
        self.shape = located.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        if start >= stop:
            return np.empty((0, *self.shape[1:]), self.dtype)
        try:
            return self._rows(self._chunks or self._open(), start, stop)
        except (OSError, KeyError, RuntimeError, ValueError) as error:
            raise CorruptShardError(
                f"{self._shard.path}: column {self._name}, rows {start} to {stop} cannot be "
                f"decompressed: {error}"
            ) from error

    def _rows(self, chunks: Chunks, start: int, stop: int) -> Array:
        step = chunks.num_rows
        first, last = start // step, (stop - 1) // step
        if last > first + 1 or not chunks.hold_whole_rows:
            return self._read(chunks, start, stop)
        found = self._chunk(chunks, first)[start - first * step : stop - first * step]
        if last > first:
            found = np.concatenate([found, self._chunk(chunks, last)[: stop - last * step]])
        return found

    def _open(self) -> Chunks:
        with _turn:
            if self._chunks is None:
                self._chunks = Chunks(self._shard.handle(self._name).id, self._shard.map.array)
            return self._chunks

    def _read(self, chunks: Chunks, start: int, stop: int) -> Array:
        """Rows of many chunks, which are not kept."""
        with _turn:
            dset = self._shard.handle(self._name)
            chunks.check(dset.id, start, stop)
            return np.asarray(dset[start:stop])

    def _chunk(self, chunks: Chunks, number: int) -> Array:
        """All rows of a chunk."""
        kept = self._shard.decoded.get(self, number)
        if kept is not None:
            return kept
        step = chunks.num_rows
        place = [number] + [0] * (len(self.shape) - 1)
        chunk: Array
        with _turn:
            dset = self._shard.handle(self._name)
            raw, mask = chunks.raw(dset.id, place)
            inflates = chunks.deflated and mask == 0
            if not inflates:
                chunks.check(dset.id, number * step, (number + 1) * step)
                chunk = np.asarray(dset[number * step : (number + 1) * step])
        if inflates:
            chunk = chunks.inflate(raw, place).view(self.dtype).reshape(-1, *self.shape[1:])
        self._shard.decoded.keep(self, number, chunk)
        return chunk
