"""The structure of one shard file: where its arrays are, checked with h5py, which is then closed.

Readers stop at the first fault; a verifier surveys the whole file and gets them all.
"""

from __future__ import annotations

import contextlib
import math
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np

from shardgraph.errors import CorruptShardError, FormatError
from shardgraph.format import layout
from shardgraph.format.manifest import ShardEntry, check_version
from shardgraph.format.schema import Column, Schema, Store
from shardgraph.shards.inspect import Inspector, Located
from shardgraph.shards.write import ENDPOINTS_INC, EXPLICIT_INC, NO_INC, NODES_INC, stored_row_shape

_RULES = frozenset({NO_INC, NODES_INC, ENDPOINTS_INC, EXPLICIT_INC})
_OF_HDF5 = (OSError, KeyError, RuntimeError, ValueError, TypeError)
"""What h5py raises on a file that HDF5 cannot make sense of."""

_MANY = 1 << 24
"""Graphs whose ids, 128 MB, are made without a look at the files."""

T = TypeVar("T")


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
    if (found := file_size(path)) != entry.nbytes:
        raise CorruptShardError(
            f"{path} has {found} bytes, the manifest says {entry.nbytes}: it was truncated "
            "or replaced; restore it, or convert the dataset again"
        )


def file_size(path: Path) -> int:
    """The size of a shard's file, which is there and no pipe or device, which may never end.

    Raises:
        CorruptShardError: if it is missing or no regular file.
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
    return found.st_size


def check_claims(directory: Path, entries: Sequence[ShardEntry]) -> None:
    """Checks, where a manifest claims very many graphs, that it has the bytes for them.

    Arrays of graph ids are made before any shard is opened, and must not be larger than the files.

    Raises:
        CorruptShardError: as `check_size`.
    """
    if sum(entry.num_graphs for entry in entries) > _MANY:
        for entry in entries:
            check_size(directory / entry.name, entry)


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


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a file's structure."""

    array: str | None
    """The path of the array that is concerned, such as ``columns/x``; None: the file."""
    error: FormatError


def read_index(path: Path, entry: ShardEntry, schema: Schema) -> ShardIndex:
    """The structure of the shard at ``path``, checked against manifest and schema.

    Raises:
        CorruptShardError: if the file is damaged or is not what the manifest says.
        FormatError: if it uses what a dataset must not (links, external storage, other types).
    """
    return _read(path, entry, lambda file: _Indexer(file, path, entry, schema).index())


def survey(path: Path, entry: ShardEntry, schema: Schema) -> tuple[ShardIndex, list[Fault]]:
    """The structure of a shard as far as it is sound, and all that is wrong with it.

    Checks also what the shard says of itself for readers without the manifest, which takes as long
    again.

    Raises:
        FormatError: as `read_index`, if it cannot be read as a shard at all.
    """

    def look(file: h5py.h5f.FileID) -> tuple[ShardIndex, list[Fault]]:
        faults: list[Fault] = []
        return _Indexer(file, path, entry, schema, faults=faults).index(), faults

    return _read(path, entry, look)


def read_num_graphs(path: Path, entry: ShardEntry | None = None) -> int:
    """What a file's header says: that it is a shard, of a known version, of so many graphs.

    Raises:
        FormatError: as `read_index`.
    """
    return _read(path, entry, lambda file: _num_graphs(Inspector(file, path)))


def read_digests(
    path: Path, entry: ShardEntry, index: ShardIndex
) -> dict[str, Located | FormatError]:
    """Where the digests of a shard's arrays are, or why they cannot be had, by array.

    Raises:
        FormatError: if the file cannot be read.
    """

    def locate(file: h5py.h5f.FileID) -> dict[str, Located | FormatError]:
        found = Inspector(file, path)
        digests: dict[str, Located | FormatError] = {}
        for name in index.paths():
            try:
                with _hdf5_errors(path):
                    digests[name] = found.fixed(f"{layout.DIGESTS}/{name}", "uint64", (None,))
            except FormatError as error:
                digests[name] = error
        return digests

    return _read(path, entry, locate)


def _read(path: Path, entry: ShardEntry | None, read: Callable[[h5py.h5f.FileID], T]) -> T:
    """What ``read`` finds in the open file; HDF5's own errors name the file."""
    if entry is not None:
        check_size(path, entry)
    with _hdf5_errors(path), open_hdf5(path) as file:
        return read(file.id)


@contextlib.contextmanager
def _hdf5_errors(path: Path) -> Iterator[None]:
    """Turns HDF5's own errors into ours."""
    try:
        yield
    except FormatError:
        raise
    except _OF_HDF5 as error:
        raise CorruptShardError(f"{path} cannot be read as a shard: {error}") from error


def _num_graphs(found: Inspector) -> int:
    root = h5py.h5o.open(found.file, b"/")
    if found.text(root, "format") != layout.FORMAT_NAME:
        raise found.fault("attribute 'format'", f"is not {layout.FORMAT_NAME!r}")
    try:
        check_version(found.text(root, "version"))
    except CorruptShardError:
        raise
    except FormatError as error:
        raise found.fault("attribute 'version':", str(error)) from error
    return int(found.attribute(root, "num_graphs", {h5py.h5t.INTEGER}))


class _Indexer(Inspector):
    """Reads the structure that a schema says a shard has."""

    def __init__(
        self,
        file: h5py.h5f.FileID,
        path: Path,
        entry: ShardEntry,
        schema: Schema,
        *,
        faults: list[Fault] | None = None,
    ) -> None:
        super().__init__(file, path)
        self.faults = faults
        """Where to list what is wrong; None: the first fault is raised."""
        self.num_graphs = entry.num_graphs
        self.schema = schema
        self.ptrs: dict[str, Located] = {}
        self.incs: dict[str, Located] = {}
        self.shapes: dict[str, Located] = {}
        self.unsound: set[str] = set()
        """Axes whose ptr is at fault, which has been listed."""

    def index(self) -> ShardIndex:
        columns: dict[str, StoredColumn] = {}
        absent: dict[str, str] = {}
        found = _num_graphs(self)
        if found != self.num_graphs:
            raise self.lost(f"has {found} graphs,", f"the manifest says {self.num_graphs}")
        for axis in self.schema.size_axes:
            # A type that came into the schema after this shard was written is not in it.
            self.add_ptr(axis, missing_ok=self.schema.is_hetero)
        for store in self.schema.stores:
            for column in (c for attribute in store.attributes for c in attribute.columns()):
                with self.noting(f"{layout.COLUMNS}/{column.name}") as array:
                    may_lack = store.key is not None and not column.per_graph
                    dset = self.dataset(array, missing_ok=may_lack)
                    if dset is None:
                        absent[column.name] = str(store.node_axis or store.edge_axis)
                    elif (stored := self.column(dset, column, store)) is not None:
                        columns[column.name] = stored
        return ShardIndex(
            columns=columns, absent=absent, ptrs=self.ptrs, incs=self.incs, shapes=self.shapes
        )

    @contextlib.contextmanager
    def noting(self, array: str) -> Iterator[str]:
        """Lists what is wrong with an array, where faults are listed."""
        try:
            with _hdf5_errors(self.path):
                yield array
        except FormatError as error:
            if self.faults is None:
                raise
            self.faults.append(Fault(array, error))

    def add_ptr(self, axis: str, *, missing_ok: bool = False) -> None:
        if axis in self.ptrs or axis in self.unsound:
            return
        with self.noting(f"{layout.PTR}/{axis}") as path:
            if missing_ok and self.dataset(path, missing_ok=True) is None:
                return
            self.ptrs[axis] = self.fixed(path, "int64", (self.num_graphs + 1,))
        if axis not in self.ptrs:
            self.unsound.add(axis)

    def column(self, dset: h5py.h5d.DatasetID, column: Column, store: Store) -> StoredColumn | None:
        """One column, checked against its schema; what belongs to it is located on the way.

        None if it cannot be read because what belongs to it is at fault, which has been listed.
        """
        name = f"/{layout.COLUMNS}/{column.name}"
        located = self.locate(dset, name)
        self.check_type(dset, located, column, name)
        axis, inc = self.text(dset, "axis"), self.text(dset, "inc")
        self.check_rule(inc, column, store, name)
        if inc == EXPLICIT_INC:
            shape = (self.num_graphs, *column.inc_shape)
            with self.noting(f"{layout.INC}/{column.name}") as path:
                self.incs[column.name] = self.fixed(path, "int64", shape)
        if column.row_shape is None:
            with self.noting(f"{layout.SHAPES}/{column.name}") as path:
                self.shapes[column.name] = self.fixed(path, "int64", (self.num_graphs, None))
        if axis != layout.GRAPH_AXIS:
            if column.per_graph:
                raise self.fault(name, f"counts axis {axis!r}, must be {layout.GRAPH_AXIS!r}")
            self.add_ptr(axis)
        elif located.shape[0] != self.num_graphs:
            raise self.lost(name, f"has {located.shape[0]} rows for {self.num_graphs} graphs")
        lacks_inc = inc == EXPLICIT_INC and column.name not in self.incs
        lacks_shapes = column.row_shape is None and column.name not in self.shapes
        if axis in self.unsound or lacks_inc or lacks_shapes:
            return None
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
        for key, wanted_text in column.recorded().items() if self.faults is not None else ():
            if (found := self.text(dset, key)) != wanted_text:
                raise self.fault(name, f"has {key} {found!r}, the schema says {wanted_text!r}")

    def check_rule(self, inc: str, column: Column, store: Store, name: str) -> None:
        fits, known = inc in _RULES, self.ptrs.keys() | self.unsound
        if inc == NODES_INC:
            fits = "node" in known and column.inc_shape == ()
        elif inc == ENDPOINTS_INC:
            ends = store.endpoint_axes
            fits = len(ends) == math.prod(column.inc_shape) == 2 and known >= set(ends)
        if not fits:
            raise self.fault(
                name, f"has increment rule {inc!r}, which is unknown or cannot be here"
            )
