"""The structure of one shard file: where its arrays are, checked with h5py, which is then closed.

A shard may come from anywhere, so nothing in it is trusted: every array must be an ordinary
dataset of this file (no soft or external link, no external storage, no virtual dataset), of plain
numbers, and lie within the file. What is opened is what the schema names; no group is listed.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from shardgraph.errors import CorruptShardError, FormatError
from shardgraph.format import layout
from shardgraph.format.manifest import ShardEntry, check_version
from shardgraph.format.schema import Column, Schema, Store
from shardgraph.shards.write import ENDPOINTS_INC, EXPLICIT_INC, NO_INC, NODES_INC, stored_row_shape

_RULES = frozenset({NO_INC, NODES_INC, ENDPOINTS_INC, EXPLICIT_INC})
# HDF5's ids of the filters that a compressed column may use: deflate, shuffle and fletcher32 are
# its own, LZ4 and Zstd registered. Beside each, how many times a stream may expand: zlib's bound is
# 1,032, LZ4's 255, and a Zstd frame of 12 bytes can be a whole chunk of 64 KiB.
_EXPANSION = {1: 1100, 2: 1, 3: 1, 32004: 300, 32015: 1 << 13}
_MAX_CHUNK = 1 << 26
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
    absent: dict[str, str]
    """Columns that it lacks, and the axis that must therefore have no rows."""
    ptrs: dict[str, Located]
    incs: dict[str, Located]
    shapes: dict[str, Located]

    @property
    def chunked(self) -> bool:
        """Whether any column is compressed, and so read through h5py."""
        return any(column.located.offset is None for column in self.columns.values())

    def paths(self) -> Iterable[str]:
        """The path in the file of every array."""
        yield from (f"{layout.PTR}/{axis}" for axis in self.ptrs)
        yield from (f"{layout.INC}/{name}" for name in self.incs)
        yield from (f"{layout.SHAPES}/{name}" for name in self.shapes)
        yield from (f"{layout.COLUMNS}/{name}" for name in self.columns)


def check_size(path: Path, entry: ShardEntry) -> None:
    """Checks that the file is there and as long as the manifest says.

    Raises:
        CorruptShardError: if it is not; a map of a file that shrank would kill the process.
    """
    try:
        found = path.stat()
    except FileNotFoundError as error:
        raise CorruptShardError(
            f"{path} is missing though the manifest names it; "
            "restore it, or convert the dataset again"
        ) from error
    if not stat.S_ISREG(found.st_mode):
        raise CorruptShardError(f"{path} is not a file; restore it, or convert the dataset again")
    if found.st_size != entry.nbytes:
        raise CorruptShardError(
            f"{path} has {found.st_size} bytes, the manifest says {entry.nbytes}: it was truncated "
            "or replaced; restore it, or convert the dataset again"
        )


def open_hdf5(path: Path, **options: Any) -> h5py.File:
    """The file opened for reading, without locking it: shards never change."""
    # HDF5 wants the same setting wherever a process has a file open, so if it is open, take that.
    for locking in (False, None):
        try:
            return h5py.File(path, "r", locking=locking, **options)
        except OSError as error:
            if "locking" not in str(error):
                raise
    return h5py.File(path, "r", locking=True, **options)


def read_index(
    path: Path, entry: ShardEntry, schema: Schema, *, strict: bool = False
) -> ShardIndex:
    """The structure of the shard at ``path``, checked against manifest and schema.

    ``strict`` also checks what the shard says of itself for readers without the manifest, which
    takes as long again.

    Raises:
        CorruptShardError: if the file is damaged or is not what the manifest says.
        FormatError: if it uses what a dataset must not (links, external storage, other types).
    """

    def read(file: h5py.h5f.FileID) -> ShardIndex:
        return _Indexer(file, path, entry, schema, strict=strict).index()

    index: ShardIndex = _read(path, entry, read)
    return index


def read_digests(path: Path, entry: ShardEntry, index: ShardIndex) -> dict[str, Located]:
    """Where the digests of a shard's arrays are, by the path of the array.

    Raises:
        CorruptShardError, FormatError: as `read_index`, and if an array has none.
    """

    def locate(file: h5py.h5f.FileID) -> dict[str, Located]:
        found = _Inspector(file, path)
        return {
            name: found.fixed(f"{layout.DIGESTS}/{name}", "uint64", (None,))
            for name in index.paths()
        }

    digests: dict[str, Located] = _read(path, entry, locate)
    return digests


def _read(path: Path, entry: ShardEntry, read: Any) -> Any:
    """What ``read`` finds in the open file; HDF5's own errors name the file."""
    check_size(path, entry)
    try:
        with open_hdf5(path) as file:
            return read(file.id)
    except FormatError:
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError) as error:
        raise CorruptShardError(f"{path} cannot be read as a shard: {error}") from error


class _Inspector:
    """Looks at an untrusted file through h5py's low level, one named object at a time."""

    def __init__(self, file: h5py.h5f.FileID, path: Path) -> None:
        self.file = file
        self.path = path
        self.nbytes = path.stat().st_size
        self._groups = {"": h5py.h5g.open(file, b"/")}

    def fault(self, name: str, what: str) -> FormatError:
        return FormatError(f"{self.path}: {name} {what}")

    def lost(self, name: str, what: str) -> CorruptShardError:
        return CorruptShardError(f"{self.path}: {name} {what}")

    def fixed(self, path: str, dtype: str, shape: tuple[int | None, ...]) -> Located:
        """A mapped array of that dtype and shape; None stands for any extent."""
        located = self.locate(self.dataset(path), f"/{path}")
        fits = len(located.shape) == len(shape) and all(
            want is None or have == want for have, want in zip(located.shape, shape, strict=True)
        )
        if located.dtype != np.dtype(dtype) or not fits or located.offset is None:
            wanted = f"[{', '.join('*' if n is None else str(n) for n in shape)}]"
            raise self.fault(
                f"/{path}",
                f"must be contiguous {dtype} {wanted}, is {located.dtype} {list(located.shape)}",
            )
        return located

    def dataset(self, path: str, *, missing_ok: bool = False) -> Any:
        """The dataset at a path of hard links; anything else is refused before it is opened."""
        above, _, last = path.rpartition("/")
        group = self._group(above)
        found = None if group is None else self._child(group, last, path)
        if found is None:
            if missing_ok:
                return None
            raise self.lost(f"/{path}", "is missing")
        if not isinstance(found, h5py.h5d.DatasetID):
            raise self.fault(f"/{path}", "is not a dataset")
        return found

    def _group(self, path: str) -> Any:
        """The group at a path, None if there is none; each is opened once."""
        if path not in self._groups:
            above, _, last = path.rpartition("/")
            parent = self._group(above)
            found = None if parent is None else self._child(parent, last, path)
            if not isinstance(found, (h5py.h5g.GroupID, type(None))):
                raise self.fault(f"/{path}", "is not a group")
            self._groups[path] = found
        return self._groups[path]

    def _child(self, group: Any, name: str, path: str) -> Any:
        """The object of that name in a group, None if there is none."""
        encoded = name.encode()
        if not group.links.exists(encoded):
            return None
        if group.links.get_info(encoded).type != h5py.h5l.TYPE_HARD:
            raise self.fault(f"/{path}", "is a soft or external link, which is refused")
        return h5py.h5o.open(group, encoded)

    def locate(self, dset: h5py.h5d.DatasetID, name: str) -> Located:
        """Where a dataset's bytes are, all of them within the file."""
        plist = dset.get_create_plist()
        kind = dset.get_type()
        if kind.get_class() not in {h5py.h5t.INTEGER, h5py.h5t.FLOAT} or kind.get_size() > 8:
            raise self.fault(name, "does not hold plain numbers")
        if dset.get_space().get_simple_extent_type() != h5py.h5s.SIMPLE:
            raise self.fault(name, "is not an array")
        dtype, shape = kind.dtype, tuple(int(extent) for extent in dset.shape)
        if dtype.byteorder == ">":
            raise self.fault(name, "is big-endian; shards are little-endian")
        nbytes = dtype.itemsize * math.prod(shape)
        if plist.get_layout() == h5py.h5d.CHUNKED:
            self._check_chunks(dset, plist, name, nbytes)
            return Located(dtype=dtype, shape=shape, offset=None)
        if plist.get_layout() != h5py.h5d.CONTIGUOUS or plist.get_external_count():
            raise self.fault(
                name, "has a storage layout that is refused (external, virtual, compact)"
            )
        if nbytes == 0:
            return Located(dtype=dtype, shape=shape, offset=0)
        offset = dset.get_offset()
        if offset is None or dset.get_storage_size() != nbytes:
            raise self.lost(name, f"has no storage for its {nbytes} bytes")
        if offset + nbytes > self.nbytes:
            raise self.lost(name, "reaches beyond the end of the file")
        return Located(dtype=dtype, shape=shape, offset=offset)

    def _check_chunks(
        self, dset: h5py.h5d.DatasetID, plist: h5py.h5p.PropDCID, name: str, nbytes: int
    ) -> None:
        expansion = 1
        for number in range(plist.get_nfilters()):
            found = plist.get_filter(number)[0]
            if found not in _EXPANSION:
                raise self.fault(name, f"needs HDF5 filter {found}, which is refused")
            expansion *= _EXPANSION[found]
        chunk = math.prod(plist.get_chunk()) * dset.get_type().get_size()
        if chunk > _MAX_CHUNK:
            raise self.fault(name, f"has chunks of {chunk} bytes; {_MAX_CHUNK} is the most")
        # Chunks may claim the same bytes of the file, so that counts, too.
        if nbytes > expansion * min(dset.get_storage_size(), self.nbytes) + chunk:
            raise self.fault(name, f"claims {nbytes} bytes, more than its chunks can hold")
        pairs = zip(dset.shape, plist.get_chunk(), strict=True)
        if dset.get_num_chunks() != math.prod(-(-extent // size) for extent, size in pairs):
            raise self.lost(name, "lacks some of its chunks")

    def attribute(self, owner: Any, name: str, classes: set[int]) -> Any:
        """The value of a short attribute that is one number or one fixed-length text."""
        if not h5py.h5a.exists(owner, name.encode()):
            raise self.lost(f"attribute {name!r}", "is missing")
        attribute = h5py.h5a.open(owner, name.encode())
        kind = attribute.get_type()
        is_text = kind.get_class() == h5py.h5t.STRING
        if (
            kind.get_class() not in classes
            or attribute.get_space().get_simple_extent_type() != h5py.h5s.SCALAR
            or (is_text and kind.is_variable_str())
            or attribute.get_storage_size() > _MAX_ATTRIBUTE
        ):
            what = "a short text" if h5py.h5t.STRING in classes else "an integer"
            raise self.fault(f"attribute {name!r}", f"is not {what}")
        value = np.empty((), kind.dtype)
        attribute.read(value)
        return value[()]

    def text(self, owner: Any, name: str) -> str:
        """A short fixed-length text attribute."""
        return bytes(self.attribute(owner, name, {h5py.h5t.STRING})).decode()


class _Indexer(_Inspector):
    """Reads the structure that a schema says a shard has."""

    def __init__(
        self, file: h5py.h5f.FileID, path: Path, entry: ShardEntry, schema: Schema, *, strict: bool
    ) -> None:
        super().__init__(file, path)
        self.strict = strict
        self.num_graphs = entry.num_graphs
        self.schema = schema
        self.ptrs: dict[str, Located] = {}
        self.incs: dict[str, Located] = {}
        self.shapes: dict[str, Located] = {}

    def index(self) -> ShardIndex:
        root = h5py.h5o.open(self.file, b"/")
        if self.text(root, "format") != layout.FORMAT_NAME:
            raise self.fault("attribute 'format'", f"is not {layout.FORMAT_NAME!r}")
        try:
            check_version(self.text(root, "version"))
        except CorruptShardError:
            raise
        except FormatError as error:
            raise self.fault("attribute 'version':", str(error)) from error
        found = int(self.attribute(root, "num_graphs", {h5py.h5t.INTEGER}))
        if found != self.num_graphs:
            raise self.lost(f"has {found} graphs,", f"the manifest says {self.num_graphs}")
        for axis in self.schema.size_axes:
            # A type that came into the schema after this shard was written is not in it.
            self.add_ptr(axis, missing_ok=self.schema.is_hetero)
        columns: dict[str, StoredColumn] = {}
        absent: dict[str, str] = {}
        for store in self.schema.stores:
            for column in (c for attribute in store.attributes for c in attribute.columns()):
                may_lack = store.key is not None and not column.per_graph
                dset = self.dataset(f"{layout.COLUMNS}/{column.name}", missing_ok=may_lack)
                if dset is None:
                    absent[column.name] = str(store.node_axis or store.edge_axis)
                else:
                    columns[column.name] = self.column(dset, column, store)
        return ShardIndex(
            columns=columns, absent=absent, ptrs=self.ptrs, incs=self.incs, shapes=self.shapes
        )

    def add_ptr(self, axis: str, *, missing_ok: bool = False) -> None:
        path = f"{layout.PTR}/{axis}"
        if missing_ok and self.dataset(path, missing_ok=True) is None:
            return
        if axis not in self.ptrs:
            self.ptrs[axis] = self.fixed(path, "int64", (self.num_graphs + 1,))

    def column(self, dset: h5py.h5d.DatasetID, column: Column, store: Store) -> StoredColumn:
        """One column, checked against its schema; what belongs to it is located on the way."""
        name = f"/{layout.COLUMNS}/{column.name}"
        located = self.locate(dset, name)
        self.check_type(dset, located, column, name)
        axis, inc = self.text(dset, "axis"), self.text(dset, "inc")
        self.check_rule(inc, column, store, name)
        if inc == EXPLICIT_INC:
            shape = (self.num_graphs, *column.inc_shape)
            self.incs[column.name] = self.fixed(f"{layout.INC}/{column.name}", "int64", shape)
        if column.row_shape is None:
            path = f"{layout.SHAPES}/{column.name}"
            self.shapes[column.name] = self.fixed(path, "int64", (self.num_graphs, None))
        if axis != layout.GRAPH_AXIS:
            if column.per_graph:
                raise self.fault(name, f"counts axis {axis!r}, must be {layout.GRAPH_AXIS!r}")
            self.add_ptr(axis)
        elif located.shape[0] != self.num_graphs:
            raise self.lost(name, f"has {located.shape[0]} rows for {self.num_graphs} graphs")
        return StoredColumn(located=located, axis=axis, inc=inc)

    def check_type(
        self, dset: h5py.h5d.DatasetID, located: Located, column: Column, name: str
    ) -> None:
        logical = np.dtype(layout.STORAGE[column.dtype])
        if column.dtype in layout.INTEGERS:
            fits = located.dtype.kind in "iu" and located.dtype.itemsize <= logical.itemsize
        else:
            fits = located.dtype == logical
        if not fits:
            raise self.fault(name, f"has dtype {located.dtype}, the schema says {column.dtype}")
        rows = stored_row_shape(column)
        if located.shape[1:] != rows or not located.shape:
            wanted = ["*", *map(str, rows)]
            raise self.fault(
                name, f"has shape {list(located.shape)}, must have [{', '.join(wanted)}]"
            )
        for key, wanted_text in column.recorded().items() if self.strict else ():
            if (found := self.text(dset, key)) != wanted_text:
                raise self.fault(name, f"has {key} {found!r}, the schema says {wanted_text!r}")

    def check_rule(self, inc: str, column: Column, store: Store, name: str) -> None:
        fits = inc in _RULES
        if inc == NODES_INC:
            fits = "node" in self.ptrs and column.inc_shape == ()
        elif inc == ENDPOINTS_INC:
            ends = store.endpoint_axes
            fits = len(ends) == math.prod(column.inc_shape) == 2 and self.ptrs.keys() >= set(ends)
        if not fits:
            raise self.fault(
                name, f"has increment rule {inc!r}, which is unknown or cannot be here"
            )
