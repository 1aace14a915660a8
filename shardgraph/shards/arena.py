"""One array over many files: the same column of many shards, mapped side by side.

A batch from many shards would need one gather for each. Mapped into one reserved range of
addresses, at multiples of the row's size, a column of all shards is one array, and a batch one
gather. Nothing is copied, and a range costs nothing until it is mapped.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.shards.filemap import PAGE, Mapped, libc

_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED = 0x1, 0x2, 0x10
_MAP_ANONYMOUS = getattr(mmap, "MAP_ANONYMOUS", 0x20)
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)
_FAILED = ctypes.c_void_p(-1).value

STEP = 4096
"""Arrays begin at multiples of this many rows: whole pages, whatever the size of a row."""


class Arena:
    """A reserved range of addresses that rows of one dtype and shape are mapped into.

    ``array`` is read-only, [capacity, *row_shape]; only rows that were placed may be read.

    Raises:
        OSError: if the range cannot be reserved.
    """

    def __init__(self, dtype: np.dtype[Any], row_shape: tuple[int, ...], capacity: int) -> None:
        self.row_nbytes = int(np.prod(row_shape, dtype=np.int64)) * dtype.itemsize
        nbytes = self._nbytes = max(1, capacity * self.row_nbytes)
        self._address = _map(None, nbytes, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS, -1, 0)
        self._range = Mapped(self._address, nbytes)
        self._mapped: list[tuple[int, int]] = []  # stretches of addresses without copies
        self._copied = False
        self.array: NDArray[Any] = (
            np.asarray(self._range)[: capacity * self.row_nbytes]
            .view(dtype)
            .reshape(capacity, *row_shape)
        )

    def place(self, first_row: int, descriptor: int, offset: int, nbytes: int) -> None:
        """Maps ``nbytes`` of a file, from ``offset`` on, as the rows from ``first_row`` on.

        Each time behind the rows that were placed before.

        Raises:
            OSError: if the system maps no more.
        """
        if nbytes == 0:
            return
        if first_row * self.row_nbytes + nbytes > self._nbytes:
            raise OSError(errno.ENOMEM, "the reserved range is full")
        address = self._address + first_row * self.row_nbytes
        if offset % PAGE == 0 and address % PAGE == 0:
            _map(address, nbytes, _PROT_READ, _MAP_SHARED | _MAP_FIXED, descriptor, offset)
            if hasattr(mmap, "MADV_RANDOM"):
                libc().madvise(address, nbytes, mmap.MADV_RANDOM)
            start = self._mapped.pop()[0] if self._mapped and not self._copied else address
            self._mapped.append((start, address + nbytes))
            self._copied = False
            return
        # A small array, which HDF5 does not align: its bytes are copied.
        protection = _PROT_READ | _PROT_WRITE
        _map(address, nbytes, protection, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_FIXED, -1, 0)
        ctypes.memmove(address, os.pread(descriptor, nbytes, offset), nbytes)
        self._copied = True

    def forget(self) -> None:
        """Lets this process's page table go; pages are mapped again when they are read."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for start, stop in self._mapped:
                libc().madvise(start, stop - start, mmap.MADV_DONTNEED)


def _map(
    address: int | None, nbytes: int, protection: int, flags: int, descriptor: int, offset: int
) -> int:
    if nbytes > sys.maxsize:  # which the call would take for less
        raise OSError(errno.ENOMEM, f"cannot map {nbytes} bytes")
    if flags & _MAP_ANONYMOUS:
        flags |= _MAP_NORESERVE
    found = libc().mmap(address, nbytes, protection, flags, descriptor, offset)
    if found is None or found == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {nbytes} bytes: {os.strerror(code)}")
    return int(found)
