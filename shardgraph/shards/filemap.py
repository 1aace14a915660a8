"""A file mapped read-only as one NumPy array, without keeping its descriptor.

Python's ``mmap`` holds a duplicate of the descriptor (until 3.13's ``trackfd=False``), so 10,000
shards would need 10,000 descriptors; and it keeps the GIL during ``madvise``. Calling the C
library does neither. Where there is none (Windows), Python's ``mmap`` serves.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAGE = mmap.PAGESIZE
_FAILED = ctypes.c_void_p(-1).value
_PROT_READ, _MAP_SHARED = 1, 1


class FileMap:
    """The bytes of a file. ``array`` is uint8, read-only, and valid as long as any view of it."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            self.nbytes = os.fstat(descriptor).st_size
            self._owner = _map(descriptor, self.nbytes)
        finally:
            os.close(descriptor)
        self.array: NDArray[np.uint8] = np.frombuffer(b"", np.uint8)
        if self._owner is not None:
            self.array = np.asarray(self._owner)

    def advise_random(self) -> None:
        """Says that pages are read in no order: no read-around on a fault."""
        self._advise(0, self.nbytes, getattr(mmap, "MADV_RANDOM", None))

    def will_need(self, start: int, stop: int) -> None:
        """Asks for the bytes ``start..stop`` to be read in the background, whole pages."""
        first = start // PAGE * PAGE
        if first < (last := min(stop, self.nbytes)):
            self._advise(first, last - first, getattr(mmap, "MADV_WILLNEED", None))

    def _advise(self, start: int, length: int, advice: int | None) -> None:
        # Advice only: a kernel that has no such call, or refuses it, reads as well without.
        if isinstance(self._owner, _Mapping) and advice is not None and length > 0:
            _libc().madvise(self._owner.address + start, length, advice)


class _Mapping:
    """Mapped memory as NumPy sees it; unmapped when the last view of it is gone."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (address, True),
        }
        finalizer = weakref.finalize(self, _libc().munmap, address, nbytes)
        finalizer.atexit = False  # views may outlive this point; the process ends anyway


def _map(descriptor: int, nbytes: int) -> _Mapping | mmap.mmap | None:
    if nbytes == 0:
        return None
    if os.name == "nt":
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    address = _libc().mmap(None, nbytes, _PROT_READ, _MAP_SHARED, descriptor, 0)
    if address is None or address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {nbytes} bytes: {os.strerror(code)}")
    return _Mapping(address, nbytes)


@lru_cache(maxsize=None)
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_longlong]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc
