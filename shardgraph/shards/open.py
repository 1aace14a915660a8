"""Opening one shard: read and check its structure with h5py, close it, map it.

A shard may come from anywhere, so nothing in it is trusted: every array must be an ordinary
dataset of this file (no soft or external link, no external storage, no virtual dataset), of plain
numbers, and lie within the file. What is opened is what the schema names; no group is listed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray

from shardgraph.errors import CorruptShardError, FormatError
from shardgraph.format import layout
from shardgraph.format.manifest import ShardEntry, check_version
from shardgraph.format.schema import Column, Schema
from shardgraph.shards.filemap import FileMap
from shardgraph.shards.write import ENDPOINTS_INC, EXPLICIT_INC, NO_INC, NODES_INC, stored_row_shape

Array: TypeAlias = "NDArray[Any]"

_RULES = frozenset({NO_INC, NODES_INC, ENDPOINTS_INC, EXPLICIT_INC})
# HDF5's own filter ids for deflate, shuffle and fletcher32, and those registered for LZ4 and Zstd.
_FILTERS = frozenset({1, 2, 3, 32004, 32015})
_MAX_ATTRIBUTE = 4096


@dataclass(frozen=True, slots=True)
class Located:
    """Where an array lies: in the map, or (chunked) behind an HDF5 handle."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int | None
    """Of its first byte in the file; None for a chunked array."""


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """One column of one shard."""

    located: Located
    axis: str
    inc: str


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """All that reading a shard needs to know of its structure."""

    columns: dict[str, StoredColumn]
    """Only the columns that this shard has: a type that all its graphs lack is absent."""
    ptrs: dict[str, Located]
    incs: dict[str, Located]
    shapes: dict[str, Located]

    @property
    def chunked(self) -> bool:
        """Whether any column is compressed, and so read through h5py."""
        return any(column.located.offset is None for column in self.columns.values())


def check_size(path: Path, entry: ShardEntry) -> None:
    """Checks that the file is there and as long as the manifest says.

    Raises:
        CorruptShardError: if it is not; a map of a file that shrank would kill the process.
    """
    try:
        found = os.stat(path).st_size
    except FileNotFoundError as error:
        raise CorruptShardError(
            f"{path} is missing though the manifest names it; "
            "restore it, or convert the dataset again"
        ) from error
    if found != entry.nbytes:
        raise CorruptShardError(
            f"{path} has {found} bytes, the manifest says {entry.nbytes}: it was truncated or "
            "replaced; restore it, or convert the dataset again"
        )


def read_index(path: Path, entry: ShardEntry, schema: Schema) -> ShardIndex:
    """The structure of the shard at ``path``, checked against manifest and schema.

    Raises:
        CorruptShardError: if the file is damaged or is not what the manifest says.
        FormatError: if it uses what a dataset must not (links, external storage, other types).
    """
    check_size(path, entry)
    try:
        with open_hdf5(path) as file:
            return _Indexer(file.id, path, entry, schema).index()
    except FormatError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        raise CorruptShardError(f"{path} cannot be read as a shard: {error}") from error


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """The file opened for reading, without locking (shards never change)."""
    with h5py.File(path, "r", locking=False) as file:
        yield file


class _Indexer:
    """Reads a shard's structure through h5py's low level, one named object at a time."""

    def __init__(
        self, file: h5py.h5f.FileID, path: Path, entry: ShardEntry, schema: Schema
    ) -> None:
        self.file = file
        self.path = path
        self.num_graphs = entry.num_graphs
        self.schema = schema

    def index(self) -> ShardIndex:
        root = h5py.h5o.open(self.file, b"/")
        if self.text(root, "format") != layout.FORMAT_NAME:
            raise FormatError(f"{self.path} is not a shardgraph shard")
        check_version(self.text(root, "version"))
        ptrs = {axis: self.ptr(axis) for axis in self.schema.size_axes}
        columns: dict[str, StoredColumn] = {}
        incs: dict[str, Located] = {}
        shapes: dict[str, Located] = {}
        for name, column in self.schema.columns.items():
            dset = self.dataset(f"{layout.COLUMNS}/{name}", missing_ok=True)
            if dset is None:
                continue
            stored = self.column(dset, column)
            if stored.axis != layout.GRAPH_AXIS and stored.axis not in ptrs:
                ptrs[stored.axis] = self.ptr(stored.axis)
            if stored.inc == EXPLICIT_INC:
                shape = (self.num_graphs, *column.inc_shape)
                incs[name] = self.int64(f"{layout.INC}/{name}", shape)
            if column.row_shape is None:
                shapes[name] = self.int64(f"{layout.SHAPES}/{name}", (self.num_graphs, None))
            columns[name] = stored
        return ShardIndex(columns=columns, ptrs=ptrs, incs=incs, shapes=shapes)

    def fault(self, name: str, what: str) -> FormatError:
        return FormatError(f"{self.path}: {name} {what}")

    def column(self, dset: h5py.h5d.DatasetID, column: Column) -> StoredColumn:
        name = f"/{layout.COLUMNS}/{column.name}"
        located = self.locate(dset, name)
        logical = np.dtype(layout.STORAGE[column.dtype])
        kinds = "iu" if column.dtype in layout.INTEGERS else logical.kind
        if located.dtype.kind not in kinds or located.dtype.itemsize > logical.itemsize:
            raise self.fault(name, f"has dtype {located.dtype}, expected {column.dtype}")
        if column.dtype not in layout.INTEGERS and located.dtype != logical:
            raise self.fault(name, f"has dtype {located.dtype}, expected {logical}")
        if located.shape[1:] != stored_row_shape(column) or not located.shape:
            raise self.fault(name, f"has shape {located.shape}, rows must be {column.row_shape}")
        axis, inc = self.text(dset, "axis"), self.text(dset, "inc")
        if inc not in _RULES:
            raise self.fault(name, f"has unknown increment rule {inc!r}")
        if axis == layout.GRAPH_AXIS and located.shape[0] != self.num_graphs:
            raise self.fault(name, f"has {located.shape[0]} rows for {self.num_graphs} graphs")
        return StoredColumn(located=located, axis=axis, inc=inc)

    def ptr(self, axis: str) -> Located:
        return self.int64(f"{layout.PTR}/{axis}", (self.num_graphs + 1,))

    def int64(self, path: str, shape: tuple[int | None, ...]) -> Located:
        """A mapped int64 array of that shape; None stands for any extent."""
        dset = self.dataset(path)
        located = self.locate(dset, path)
        fits = len(located.shape) == len(shape) and all(
            want is None or have == want for have, want in zip(located.shape, shape)
        )
        if located.dtype != np.dtype("<i8") or not fits or located.offset is None:
            raise self.fault(
                path, f"must be contiguous int64 {shape}, is {located.dtype} {located.shape}"
            )
        return located

    def dataset(self, path: str, *, missing_ok: bool = False) -> Any:
        """The dataset at a path of hard links; anything else is refused before it is opened."""
        group = h5py.h5g.open(self.file, b"/")
        *groups, last = path.split("/")
        for depth, component in enumerate([*groups, last]):
            name = component.encode()
            if not group.links.exists(name):
                if missing_ok:
                    return None
                raise CorruptShardError(f"{self.path}: /{path} is missing")
            if group.links.get_info(name).type != h5py.h5l.TYPE_HARD:
                raise self.fault(f"/{path}", "is behind a soft or external link, which is refused")
            child = h5py.h5o.open(group, name)
            wanted = h5py.h5d.DatasetID if depth == len(groups) else h5py.h5g.GroupID
            if not isinstance(child, wanted):
                raise self.fault(f"/{path}", f"is not a {wanted.__name__[:-2].lower()}")
            group = child
        return group

    def locate(self, dset: h5py.h5d.DatasetID, name: str) -> Located:
        """Where a dataset's bytes are, all of them within the file."""
        plist = dset.get_create_plist()
        kind = dset.get_type()
        if kind.get_class() not in {h5py.h5t.INTEGER, h5py.h5t.FLOAT} or kind.get_size() > 8:
            raise self.fault(name, "does not hold plain numbers")
        dtype, shape = kind.dtype, tuple(int(extent) for extent in dset.shape)
        if dtype.byteorder == ">":
            raise self.fault(name, "is big-endian; shards are little-endian")
        nbytes = dtype.itemsize
        for extent in shape:
            nbytes *= extent
        if plist.get_layout() == h5py.h5d.CHUNKED:
            self.check_chunks(dset, plist, name, nbytes)
            return Located(dtype=dtype, shape=shape, offset=None)
        if plist.get_layout() != h5py.h5d.CONTIGUOUS or plist.get_external_count():
            raise self.fault(name, "uses a storage layout that is refused (external or virtual)")
        if nbytes == 0:
            return Located(dtype=dtype, shape=shape, offset=0)
        offset = dset.get_offset()
        if offset is None or dset.get_storage_size() != nbytes:
            raise CorruptShardError(f"{self.path}: {name} has no storage for its {nbytes} bytes")
        if offset + nbytes > os.stat(self.path).st_size:
            raise CorruptShardError(f"{self.path}: {name} reaches beyond the end of the file")
        return Located(dtype=dtype, shape=shape, offset=offset)

    def check_chunks(
        self, dset: h5py.h5d.DatasetID, plist: h5py.h5p.PropDCID, name: str, nbytes: int
    ) -> None:
        for number in range(plist.get_nfilters()):
            if (found := plist.get_filter(number)[0]) not in _FILTERS:
                raise self.fault(name, f"needs HDF5 filter {found}, which is not allowed")
        # A deflate stream expands at most 1,032 times (zlib's own bound), so a larger array lies.
        if nbytes > 1100 * dset.get_storage_size():
            raise self.fault(name, f"claims {nbytes} bytes, more than its chunks can hold")
        chunk = int(np.prod(plist.get_chunk(), dtype=np.int64)) * dset.get_type().get_size()
        if chunk > 1 << 26:
            raise self.fault(name, f"has chunks of {chunk} bytes; 64 MiB is the most")

    def text(self, owner: Any, name: str) -> str:
        """A short fixed-length text attribute."""
        if not h5py.h5a.exists(owner, name.encode()):
            raise CorruptShardError(f"{self.path}: attribute {name!r} is missing")
        attribute = h5py.h5a.open(owner, name.encode())
        kind = attribute.get_type()
        if (
            kind.get_class() != h5py.h5t.STRING
            or kind.is_variable_str()
            or attribute.get_storage_size() > _MAX_ATTRIBUTE
        ):
            raise self.fault(f"attribute {name!r}", "is not a short text")
        value = np.empty((), kind.dtype)
        attribute.read(value)
        return bytes(value[()]).decode()


class Shard:
    """One open shard: its columns as views into the map, or behind an HDF5 handle."""

    def __init__(self, path: Path, entry: ShardEntry, schema: Schema) -> None:
        self.path = path
        self.entry = entry
        self.num_graphs = entry.num_graphs
        index = read_index(path, entry, schema)
        self.index_chunked = index.chunked
        self.map = FileMap(path)
        self.map.advise_random()
        if self.map.nbytes != entry.nbytes:
            check_size(path, entry)
        self.ptrs = {axis: self.view(located) for axis, located in index.ptrs.items()}
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
        self._file: h5py.File | None = None

    def view(self, located: Located) -> Array:
        """An array over the map."""
        offset = located.offset or 0
        count = int(np.prod(located.shape, dtype=np.int64))
        flat = self.map.array[offset : offset + count * located.dtype.itemsize]
        return flat.view(located.dtype).reshape(located.shape)

    def handle(self, name: str) -> h5py.Dataset:
        """The HDF5 dataset of a chunked column."""
        if self._file is None:
            _load_filters()
            self._file = h5py.File(self.path, "r", locking=False, rdcc_nbytes=1 << 20)
        return self._file[f"{layout.COLUMNS}/{name}"]

    def close(self) -> None:
        """Closes the HDF5 handle, if one is open; it reopens on use. Views of the map stay."""
        if self._file is not None:
            self._file.close()
            self._file = None


class ChunkedColumn:
    """A compressed column: reads row ranges through h5py."""

    def __init__(self, shard: Shard, name: str, located: Located) -> None:
        self._shard = shard
        self._name = name
        self.dtype = located.dtype
        self.shape = located.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        try:
            return np.asarray(self._shard.handle(self._name)[rows])
        except OSError as error:
            raise CorruptShardError(
                f"{self._shard.path}: column {self._name}, rows {rows.start} to {rows.stop} "
                f"cannot be decompressed: {error}"
            ) from error


def _load_filters() -> None:
    """Registers the LZ4 and Zstd filters where they are installed: each process needs its own."""
    with contextlib.suppress(ImportError):
        import hdf5plugin  # noqa: F401
