"""One open shard: columns as views into the mapped file, or behind an HDF5 handle."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray

from shardgraph.errors import CorruptShardError
from shardgraph.format import layout
from shardgraph.format.manifest import ShardEntry
from shardgraph.format.schema import Schema
from shardgraph.shards.compressed import ChunkedColumn, DecodedChunks
from shardgraph.shards.filemap import FileMap
from shardgraph.shards.inspect import Located
from shardgraph.shards.structure import ShardIndex, open_hdf5, read_index

Array: TypeAlias = "NDArray[Any]"
Ints: TypeAlias = "NDArray[np.int64]"

SMALL = 8 << 20
"""Bytes up to which a file is read ahead as a whole when it is opened."""


def _nothing() -> None:
    """For a shard that stands alone."""


class Shard:
    """One open shard: its columns as views into the map, or behind an HDF5 handle.

    Its structure is checked, and that every ptr ends with its columns. That ptr rises between its
    ends is checked where it is read. A verifier gives the ``index`` that it found, and checks ptr
    itself.
    """

    def __init__(
        self, path: Path, entry: ShardEntry, schema: Schema, *, index: ShardIndex | None = None
    ) -> None:
        self.path = path
        self.entry = entry
        self.num_graphs = entry.num_graphs
        is_checked = index is None
        index = read_index(path, entry, schema) if index is None else index
        self.index: ShardIndex = index
        self.index_chunked = index.chunked
        self.map = FileMap(path)
        if self.map.nbytes != entry.nbytes:
            raise CorruptShardError(f"{path} changed its size while it was opened")
        self.ptrs = {axis: self.view(located) for axis, located in index.ptrs.items()}
        none = np.broadcast_to(np.zeros(1, np.int64), (entry.num_graphs + 1,))
        self.ptrs |= {axis: none for axis in schema.size_axes if axis not in self.ptrs}
        self.incs = {name: self.view(located) for name, located in index.incs.items()}
        self.shapes = {name: self.view(located) for name, located in index.shapes.items()}
        self.axis_of = {name: column.axis for name, column in index.columns.items()}
        self.inc_of = {name: column.inc for name, column in index.columns.items()}
        self.columns: dict[str, Any] = {}
        for name, column in index.columns.items():
            if column.located.offset is None:
                self.columns[name] = ChunkedColumn(self, name, column.located)
            else:
                self.columns[name] = self.view(column.located)
        beside = [(c.axis, c.located) for c in index.columns.values()]
        beside += [(layout.GRAPH_AXIS, p) for p in (*index.incs.values(), *index.shapes.values())]
        self.mapped = [(axis, located) for axis, located in beside if located.offset is not None]
        """What is read of a graph beside ptr, with the axis that each array's rows count."""
        self.ends = {layout.GRAPH_AXIS: entry.num_graphs}
        """Number of rows of each axis."""
        if is_checked:
            self._check_ends()
        self._want(index)
        self._file: h5py.File | None = None
        self.decoded = DecodedChunks()
        """Where its compressed columns keep chunks; the shards of a dataset share one."""
        self.before_use: Callable[[], None] = _nothing
        """Called before the HDF5 handle is used; the handles of other shards may be closed then."""

    def _want(self, index: ShardIndex) -> None:
        """Has ptr read at once: about 1 % of the bytes, and every graph needs it. All, if small."""
        spans = [(p.offset or 0, (p.offset or 0) + p.shape[0] * 8) for p in index.ptrs.values()]
        if self.map.nbytes <= SMALL:
            spans = [(0, self.map.nbytes)]
        starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
        self.map.will_need(starts, stops)

    def _check_ends(self) -> None:
        """Checks that every ptr begins at row 0 and ends with its columns."""
        for axis, ptr in self.ptrs.items():
            if ptr[0] != 0 or ptr[-1] < 0:
                raise self._damaged(f"/{layout.PTR}/{axis} does not rise from 0")
            self.ends[axis] = int(ptr[-1])
        for name, source in self.columns.items():
            axis = self.axis_of[name]
            if self.ends[axis] != len(source):
                raise self._damaged(
                    f"/{layout.PTR}/{axis} ends at row {self.ends[axis]} of column {name!r}, "
                    f"which has {len(source)} rows"
                )
        for name, axis in self.index.absent.items():
            if self.ends[axis] != 0:
                raise self._damaged(f"/{layout.COLUMNS}/{name} is missing")

    def runs(self, axis: str, graphs: Ints, numbers: Ints | None = None) -> tuple[Ints, Ints]:
        """First row and number of rows of each graph on an axis; ``numbers`` is for groups.

        Raises:
            CorruptShardError: if ptr falls, or gives more rows than there are.
        """
        del numbers
        ptr, end = self.ptrs[axis], self.ends[axis]
        starts, stops = ptr[graphs], ptr[graphs + 1]
        lengths = stops - starts
        if (
            np.minimum.reduce(lengths) < 0
            or np.minimum.reduce(starts) < 0
            or np.minimum.reduce(stops) < 0  # or a length might wrap around
            or np.maximum.reduce(stops) > end
        ):
            raise self.falls(axis)
        if np.add.reduce(lengths) > end:  # repeats of a graph, or runs that overlap
            each = np.unique(graphs)
            if np.add.reduce(ptr[each + 1] - ptr[each]) > end:
                raise self.falls(axis)
        return starts, lengths

    def lengths(self, axis: str) -> Ints:
        """Number of rows of every graph on an axis: int64 [G].

        Raises:
            CorruptShardError: if ptr falls.
        """
        ptr = self.ptrs[axis]
        if (ptr[1:] < ptr[:-1]).any():
            raise self.falls(axis)
        lengths: Ints = np.diff(ptr)
        return lengths

    def falls(self, axis: str) -> CorruptShardError:
        """The error for a ptr that does not rise."""
        return self._damaged(f"/{layout.PTR}/{axis} does not rise from 0")

    def _damaged(self, what: str) -> CorruptShardError:
        return CorruptShardError(
            f"{self.path}: {what}; check with `shardgraph verify` and restore the file"
        )

    def view(self, located: Located) -> Array:
        """An array over the map."""
        offset = located.offset or 0
        count = int(np.prod(located.shape, dtype=np.int64))
        flat = self.map.array[offset : offset + count * located.dtype.itemsize]
        return flat.view(located.dtype).reshape(located.shape)

    def handle(self, name: str) -> h5py.Dataset:
        """The HDF5 dataset of a chunked column, for the thread whose turn it is."""
        self.before_use()
        if self._file is None:
            _load_filters()
            self._file = open_hdf5(self.path, rdcc_nbytes=1 << 20)
        return self._file[f"{layout.COLUMNS}/{name}"]

    def close(self) -> None:
        """Closes the HDF5 handle, if one is open; it reopens on use. Views of the map stay."""
        if self._file is not None:
            self._file.close()
            self._file = None


def shapes_fit(shapes: Array, rows: Array) -> bool:
    """Whether each stored shape, filled up by -1, has as many values as its graph has rows."""
    # As floats, a product cannot wrap around to the right number.
    is_extent = shapes != -1
    sizes = np.where(is_extent, shapes, 1).prod(axis=1, dtype=np.float64)
    gaps = is_extent[:, 1:] > is_extent[:, :-1]
    return not ((shapes < -1).any() or gaps.any()) and np.array_equal(sizes, rows)


def _load_filters() -> None:
    """Registers the LZ4 and Zstd filters where they are installed: each process needs its own."""
    with contextlib.suppress(ImportError):
        import hdf5plugin  # noqa: F401
