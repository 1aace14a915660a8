"""Writing one shard: graphs collected as encoded cells, then one contiguous array a column."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray

from shardgraph.atomic import file_digest, publishing
from shardgraph.format import layout
from shardgraph.format.manifest import ShardEntry
from shardgraph.format.schema import Column, Schema
from shardgraph.format.statistics import Statistics
from shardgraph.shards.chunks import MAX_CHUNK
from shardgraph.shards.digests import run_cuts, run_digests

Array: TypeAlias = "NDArray[Any]"

NO_INC = "none"
NODES_INC = "num_nodes"
ENDPOINTS_INC = "endpoints"
EXPLICIT_INC = "explicit"

CHUNK_BYTES = 1 << 16
"""Size of an HDF5 chunk in compressed shards: a few graphs (research: 4 to 64 kB suits reads)."""


class Cell(NamedTuple):
    """One graph's value of one column, encoded; made a million times, which a tuple is quick at."""

    payload: bytes
    """The rows in C order, in the column's storage dtype."""
    rows: int
    inc: int | Array | None = None
    """What ``__inc__`` gave; None where the column's rule says it."""
    shape: tuple[int, ...] | None = None
    """Shape with the leading axis, only where row shapes vary."""


class GraphRecord(NamedTuple):
    """One graph, encoded: its sizes and its cells, by axis and column name.

    A node or edge type that the graph lacks is absent, and counts as empty.
    """

    sizes: dict[str, int]
    cells: dict[str, Cell]


class _ColumnParts:
    """The cells of one column so far; graphs before its first cell have none."""

    def __init__(self, column: Column, rule: str | None) -> None:
        self.column = column
        self.rule = rule
        self.graphs: list[int] = []
        self.payloads: list[bytes] = []
        self.rows: list[int] = []
        self.incs: list[int | Array] = []
        self.shapes: list[tuple[int, ...]] = []

    def append(self, graph: int, cell: Cell) -> None:
        self.graphs.append(graph)
        self.payloads.append(cell.payload)
        self.rows.append(cell.rows)
        if cell.inc is not None:
            self.incs.append(cell.inc)
        if cell.shape is not None:
            self.shapes.append(cell.shape)

    def room(self, num_graphs: int) -> int:
        """Bytes that it takes beside its values at most: own ptr, increments, shapes; and HDF5."""
        width = 0 if self.column.per_graph else 1
        width += math.prod(self.column.inc_shape) if self.incs else 0
        width += max(map(len, self.shapes), default=0)
        return width * 8 * (num_graphs + 1) + 2 * layout.ALIGNMENT

    def array(self) -> Array:
        """All rows: [R, *row_shape], complex numbers as pairs in one more dimension."""
        data = np.frombuffer(b"".join(self.payloads), layout.STORAGE[self.column.dtype])
        self.payloads.clear()
        return data.reshape(sum(self.rows), *stored_row_shape(self.column))

    def spread(self, values: Sequence[Any], shape: tuple[int, ...], num_graphs: int) -> Array:
        """int64 [G, *shape]: the values at the graphs that have a cell, zero elsewhere."""
        out = np.zeros((num_graphs, *shape), np.int64)
        if values:
            out[self.graphs] = np.asarray(values, np.int64).reshape(-1, *shape)
        return out


def _padded(parts: _ColumnParts, num_graphs: int) -> NDArray[np.int64]:
    """int64 [G, D]: shapes that vary, those of fewer dimensions filled up with -1.

    A graph without the column counts as having an empty vector there.
    """
    out = np.full((num_graphs, max(1, *map(len, parts.shapes))), -1, np.int64)
    out[:, 0] = 0
    for graph, shape in zip(parts.graphs, parts.shapes, strict=True):
        out[graph] = (*shape, *[-1] * (out.shape[1] - len(shape)))
    return out


def stored_row_shape(column: Column) -> tuple[int, ...]:
    """Shape of one stored row: () where shapes vary, one more dimension of 2 for complex."""
    shape = () if column.row_shape is None else column.row_shape
    return (*shape, 2) if column.dtype in layout.COMPLEX else shape


class ShardBuffer:
    """The graphs of one shard to be, as encoded cells; ``write`` makes them a file."""

    def __init__(self) -> None:
        self.num_graphs = 0
        self.nbytes = 0
        self._columns: dict[str, _ColumnParts] = {}
        self._sizes: dict[str, dict[int, int]] = {}

    def append(
        self, record: GraphRecord, columns: Mapping[str, Column], rules: Mapping[str, str | None]
    ) -> None:
        """Adds one graph. ``rules`` gives each column's increment rule, None where cells say it."""
        graph, nbytes = self.num_graphs, self.nbytes
        for name, cell in record.cells.items():
            parts = self._columns.get(name)
            if parts is None:
                parts = self._columns[name] = _ColumnParts(columns[name], rules[name])
            parts.append(graph, cell)
            self.nbytes += len(cell.payload)
        if self.nbytes == nbytes:
            self.nbytes += 8 * len(record.sizes)  # or graphs without values would never end one
        for axis, size in record.sizes.items():
            self._sizes.setdefault(axis, {})[graph] = size
        self.num_graphs += 1

    def room(self, schema: Schema) -> int:
        """Bytes that its file takes at most, near enough: most arrays share a ptr."""
        ptr = 8 * (self.num_graphs + 1) + layout.ALIGNMENT
        beside = sum(parts.room(self.num_graphs) for parts in self._columns.values())
        return self.nbytes + ptr * len(schema.size_axes) + beside

    def write(
        self, path: Path, schema: Schema, *, compression: str | None = None
    ) -> tuple[ShardEntry, Statistics]:
        """Writes the shard as ``path``, whole or not at all, and empties the buffer."""
        sizes = {axis: self._size_array(axis) for axis in schema.size_axes}
        contents = _Contents(self._columns, sizes, self.num_graphs)
        raw_nbytes = sum(a.nbytes for a in contents.arrays.values())
        arrays, lengths = contents.with_absent(schema)
        statistics = Statistics.of_shard(schema, arrays, sizes, lengths)
        with publishing(path) as temporary:
            _write_file(temporary, contents, compression)
            digest, nbytes = file_digest(temporary), temporary.stat().st_size
        entry = ShardEntry(
            name=path.name,
            num_graphs=self.num_graphs,
            num_nodes=sum(int(sizes[s.node_axis].sum()) for s in schema.node_stores if s.node_axis),
            num_edges=sum(int(sizes[s.edge_axis].sum()) for s in schema.edge_stores if s.edge_axis),
            nbytes=nbytes,
            raw_nbytes=raw_nbytes,
            digest=digest,
        )
        self.__init__()  # type: ignore[misc]  # empty again
        return entry, statistics

    def _size_array(self, axis: str) -> NDArray[np.int64]:
        out = np.zeros(self.num_graphs, np.int64)
        if sizes := self._sizes.get(axis):
            out[list(sizes)] = list(sizes.values())
        return out


class _Contents:
    """What a shard file will hold: arrays, which axis each counts, and their increment rules."""

    def __init__(
        self,
        columns: Mapping[str, _ColumnParts],
        sizes: Mapping[str, NDArray[np.int64]],
        num_graphs: int,
    ) -> None:
        self.num_graphs = num_graphs
        self.axes: dict[str, NDArray[np.int64]] = dict(sizes)
        self.columns = {name: parts.column for name, parts in columns.items()}
        self.arrays: dict[str, Array] = {}
        self.lengths: dict[str, NDArray[np.int64]] = {}
        self.axis_of: dict[str, str] = {}
        self.inc_of: dict[str, str] = {}
        self.incs: dict[str, NDArray[np.int64]] = {}
        self.shapes: dict[str, NDArray[np.int64]] = {}
        for name, parts in columns.items():
            lengths = parts.spread(parts.rows, (), num_graphs)
            self.lengths[name] = lengths
            self.axis_of[name] = self._axis(name, parts.column, lengths)
            self._increment(name, parts, sizes)
            if parts.shapes:
                self.shapes[name] = _padded(parts, num_graphs)
            self.arrays[name] = parts.array()

    def with_absent(self, schema: Schema) -> tuple[dict[str, Array], dict[str, NDArray[np.int64]]]:
        """Arrays and lengths of all the schema's columns: empty where no graph here has them."""
        absent = {name: c for name, c in schema.columns.items() if name not in self.arrays}
        arrays = {
            name: np.empty((0, *stored_row_shape(column)), layout.STORAGE[column.dtype])
            for name, column in absent.items()
        }
        lengths = dict.fromkeys(absent, np.zeros(self.num_graphs, np.int64))
        return {**self.arrays, **arrays}, {**self.lengths, **lengths}

    def _axis(self, name: str, column: Column, lengths: NDArray[np.int64]) -> str:
        """The axis whose sizes are these lengths, the likeliest by name first, or a new one."""
        prefix, _, _ = name.rpartition("/")
        own_first = [prefix] if prefix in self.axes else []
        edges_first = ["edge", "node"] if "edge" in name else ["node", "edge"]
        if column.row_shape is not None and (column.per_graph or np.all(lengths == 1)):
            return layout.GRAPH_AXIS
        for axis in (*own_first, *edges_first, *self.axes):
            if axis in self.axes and np.array_equal(self.axes[axis], lengths):
                return axis
        self.axes[f"own/{name}"] = lengths
        return f"own/{name}"

    def _increment(
        self, name: str, parts: _ColumnParts, sizes: Mapping[str, NDArray[np.int64]]
    ) -> None:
        if parts.rule is not None:
            self.inc_of[name] = parts.rule
            return
        incs = parts.spread(parts.incs, parts.column.inc_shape, self.num_graphs)
        if not incs.any():
            self.inc_of[name] = NO_INC
        elif "node" in sizes and np.array_equal(incs, sizes["node"]):
            self.inc_of[name] = NODES_INC
        else:
            self.inc_of[name], self.incs[name] = EXPLICIT_INC, incs


def _write_file(path: Path, contents: _Contents, compression: str | None) -> None:
    """One shard file; see SPEC.md."""
    with h5py.File(_create(path)) as file:
        file.attrs["format"] = np.bytes_(layout.FORMAT_NAME)
        file.attrs["version"] = np.bytes_(".".join(map(str, layout.FORMAT_VERSION)))
        file.attrs["num_graphs"] = contents.num_graphs
        arrays = _Arrays(file)
        ptrs: dict[str, NDArray[np.int64]] = {}
        for axis, lengths in contents.axes.items():
            ptr = ptrs[axis] = np.zeros(len(lengths) + 1, np.int64)
            np.cumsum(lengths, out=ptr[1:])
            arrays.write(f"{layout.PTR}/{axis}", ptr)
        for name, incs in contents.incs.items():
            arrays.write(f"{layout.INC}/{name}", incs)
        for name, shapes in contents.shapes.items():
            arrays.write(f"{layout.SHAPES}/{name}", shapes)
        for name, array in contents.arrays.items():
            column, axis = contents.columns[name], contents.axis_of[name]
            stored = _narrowed(array, column.dtype)
            dset = arrays.write(
                f"{layout.COLUMNS}/{name}", stored, ptr=ptrs.get(axis), compression=compression
            )
            texts = {**column.recorded(), "axis": axis, "inc": contents.inc_of[name]}
            for key, text in texts.items():
                dset.attrs[key] = np.bytes_(text.encode())


def _create(path: Path) -> h5py.h5f.FileID:
    """A new HDF5 file of superblock 3, so that any reader sees if it was not closed."""
    fapl = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    fapl.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    fapl.set_alignment(layout.ALIGNED_FROM, layout.ALIGNMENT)
    fapl.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    fcpl = _timeless(h5py.h5p.FILE_CREATE)
    return h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_EXCL, fcpl=fcpl, fapl=fapl)


def _timeless(kind: Any) -> Any:
    """Properties of a new object that keeps no times: equal contents are to be equal bytes."""
    properties = h5py.h5p.create(kind)
    properties.set_obj_track_times(False)
    return properties


def _narrowed(array: Array, logical: str) -> Array:
    if logical not in layout.INTEGERS or array.size == 0:
        return array
    dtype = layout.narrowest(int(array.min()), int(array.max()), logical)
    return array.astype(dtype, copy=False)


class _Arrays:
    """The arrays of a shard file being written, each with the digests of its runs."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        self._groups: set[str] = set()

    def write(
        self,
        path: str,
        array: Array,
        *,
        ptr: NDArray[np.int64] | None = None,
        compression: str | None = None,
    ) -> h5py.Dataset:
        """One array; ``ptr`` says which rows are whose where a graph has not one each."""
        array = np.ascontiguousarray(array)
        digests = run_digests(array, run_cuts(len(array), ptr))
        self._contiguous(f"{layout.DIGESTS}/{path}", digests)
        row_nbytes = array.nbytes // max(1, len(array))
        if compression is not None and array.size and row_nbytes <= MAX_CHUNK:
            return self._chunked(path, array, compression)
        return self._contiguous(path, array)

    def _chunked(self, path: str, array: Array, compression: str) -> h5py.Dataset:
        self._make_groups(path)
        rows = max(1, CHUNK_BYTES // max(1, array.nbytes // len(array)))
        chunks = (min(rows, len(array)), *array.shape[1:])
        options = compression_options(compression)
        return self._file.create_dataset(
            path, data=array, chunks=chunks, shuffle=True, track_times=False, **options
        )

    def _contiguous(self, path: str, array: Array) -> h5py.Dataset:
        """Allocated at once and never filled, so that its bytes have a place in the file."""
        self._make_groups(path)
        dcpl = _timeless(h5py.h5p.DATASET_CREATE)
        dcpl.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        dcpl.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple(array.shape)
        dtype = h5py.h5t.py_create(array.dtype.newbyteorder("<"))
        identifier = h5py.h5d.create(
            self._file.id, path.encode(), dtype, space, dcpl=dcpl, lcpl=_utf8_link()
        )
        if array.size:
            identifier.write(h5py.h5s.ALL, h5py.h5s.ALL, array)
        return h5py.Dataset(identifier)

    def _make_groups(self, path: str) -> None:
        """Makes the groups above a path. HDF5 could do so by itself, but then they keep times."""
        components = path.split("/")[:-1]
        for depth in range(1, len(components) + 1):
            group = "/".join(components[:depth])
            if group not in self._groups:
                self._groups.add(group)
                gcpl = _timeless(h5py.h5p.GROUP_CREATE)
                h5py.h5g.create(self._file.id, group.encode(), lcpl=_utf8_link(), gcpl=gcpl)


def _utf8_link() -> Any:
    properties = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    properties.set_char_encoding(h5py.h5t.CSET_UTF8)
    return properties


def compression_options(compression: str) -> dict[str, Any]:
    """h5py's keywords for a compression by name: "gzip", or "zstd" and "lz4" of hdf5plugin.

    Raises:
        ValueError: if the name is none of these.
        ImportError: if hdf5plugin is needed and not installed.
    """
    if compression == "gzip":
        return {"compression": "gzip", "compression_opts": 4}
    if compression not in {"zstd", "lz4"}:
        raise ValueError(f"compression must be None, 'gzip', 'zstd' or 'lz4', got {compression!r}")
    try:
        import hdf5plugin
    except ImportError as error:
        raise ImportError(
            f"compression {compression!r} needs hdf5plugin: pip install 'shardgraph[compress]'"
        ) from error
    return dict(hdf5plugin.Zstd() if compression == "zstd" else hdf5plugin.LZ4())
