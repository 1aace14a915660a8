"""Looking at an untrusted HDF5 file through h5py's low level, one named object at a time.

A shard may come from anywhere, so nothing in it is trusted: every array must be an ordinary
dataset of this file (no soft or external link, no external storage, no virtual dataset), of plain
numbers, and lie within the file. What is opened is what a schema names; no group is listed.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from shardgraph.errors import CorruptShardError, FormatError
from shardgraph.format.layout import MAX_ATTRIBUTE
from shardgraph.shards.chunks import EXPANSION, MAX_CHUNK, ORDERS


@dataclass(frozen=True, slots=True)
class Located:
    """Where an array lies: in the map, or (chunked) behind an HDF5 handle."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int | None
    """Of its first byte in the file; None for a chunked array."""


class Inspector:
    """The named objects of one open file, each checked before anything is read of it."""

    def __init__(self, file: h5py.h5f.FileID, path: Path) -> None:
        self.file = file
        self.path = path
        self.nbytes = path.stat().st_size
        if file.get_create_plist().get_userblock():
            # HDF5 would count offsets from its end, and the map from the file's beginning.
            raise self.fault("its user block", "is not allowed; write the shard without one")
        self._groups = {"": h5py.h5g.open(file, b"/")}

    def fault(self, name: str, what: str) -> FormatError:
        """The error for what a shard must not hold."""
        return FormatError(f"{self.path}: {name} {what}")

    def lost(self, name: str, what: str) -> CorruptShardError:
        """The error for what is missing or damaged."""
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
        if kind.committed():
            raise self.fault(name, "has a committed type, which is refused")
        if dset.get_space().get_simple_extent_type() != h5py.h5s.SIMPLE:
            raise self.fault(name, "is not an array")
        dtype, shape = kind.dtype, tuple(int(extent) for extent in dset.shape)
        if not kind.equal(h5py.h5t.py_create(dtype)):
            raise self.fault(name, f"holds numbers of other bits than {dtype} has")
        if dtype.byteorder == ">":
            raise self.fault(name, "is big-endian; shards are little-endian")
        if 8 * math.prod(extent for extent in shape if extent) > sys.maxsize:
            raise self.fault(name, f"has shape {list(shape)}, which nothing can hold")
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
        filters = tuple(plist.get_filter(n)[0] for n in range(plist.get_nfilters()))
        for found in filters:
            if found not in EXPANSION:
                raise self.fault(name, f"needs HDF5 filter {found}, which is refused")
            expansion *= EXPANSION[found]
        if filters not in ORDERS:
            raise self.fault(name, f"uses HDF5 filters {filters} in an order that is refused")
        chunk = math.prod(plist.get_chunk()) * dset.get_type().get_size()
        if chunk > MAX_CHUNK:
            raise self.fault(name, f"has chunks of {chunk} bytes; {MAX_CHUNK} is the most")
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
            or kind.committed()
            or attribute.get_space().get_simple_extent_type() != h5py.h5s.SCALAR
            or (is_text and kind.is_variable_str())
            or attribute.get_storage_size() > MAX_ATTRIBUTE
        ):
            what = "a short text" if h5py.h5t.STRING in classes else "an integer"
            raise self.fault(f"attribute {name!r}", f"is not {what}")
        value = np.empty((), kind.dtype)
        attribute.read(value)
        return value[()]

    def text(self, owner: Any, name: str) -> str:
        """A short fixed-length text attribute."""
        return bytes(self.attribute(owner, name, {h5py.h5t.STRING})).decode()
