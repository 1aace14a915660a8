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
from collections.abc import Iterable
from functools import cache
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
        self.path = path
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            self.nbytes = os.fstat(descriptor).st_size
            self._owner = _map(descriptor, self.nbytes)
            self.tail = self._find_tail(descriptor)
            """Address and value of a byte that changes if the file is truncated: see `Tails`."""
        finally:
            os.close(descriptor)
        self.array: NDArray[np.uint8] = np.frombuffer(b"", np.uint8)
        if self._owner is not None:
            self.array = np.asarray(self._owner)

    def _find_tail(self, descriptor: int) -> tuple[int, int]:
        """The last byte that is not 0 on the file's last page; else the file's last.

        Cutting off what follows the former takes nothing but zeros, and gives zeros.
        """
        if not isinstance(self._owner, Mapped):
            return 0, 0
        start = (self.nbytes - 1) // PAGE * PAGE
        page = os.pread(descriptor, self.nbytes - start, start)
        last = max(len(page.rstrip(b"\0")) or len(page), 1) - 1
        return self._owner.address + start + last, page[last] if page else 0

    def advise_random(self) -> None:
        """Says that pages are read in no order: no read-around on a fault."""
        advice = getattr(mmap, "MADV_RANDOM", None)
        if isinstance(self._owner, Mapped) and advice is not None:
            libc().madvise(self._owner.address, self.nbytes, advice)

    def will_need(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Asks for byte ranges to be read in the background, as whole pages, overlaps once.

        Advice only: where the system has no such call, reading works as well without.
        """
        if isinstance(self._owner, Mapped) and hasattr(mmap, "MADV_WILLNEED"):
            first, nbytes = page_pieces(starts, np.minimum(stops, self.nbytes))
            if len(first):
                _advise_pieces(first + self._owner.address, nbytes)

    def let_go(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Says that the whole pages in byte ranges are not needed in the page cache.

        The kernel keeps pages that a process has mapped: see `forget`.
        """
        starts, stops = -(-starts // PAGE) * PAGE, stops // PAGE * PAGE
        first, nbytes = page_pieces(starts, stops, _UNCUT)
        spans = zip(first.tolist(), nbytes.tolist(), strict=True)
        advise_file(self.path, spans, "POSIX_FADV_DONTNEED")

    def forget(self) -> None:
        """Lets this process's page table go; pages are mapped again when they are read."""
        if isinstance(self._owner, Mapped) and hasattr(mmap, "MADV_DONTNEED"):
            libc().madvise(self._owner.address, self.nbytes, mmap.MADV_DONTNEED)

    def is_cached(self, offsets: NDArray[np.int64]) -> bool:
        """Whether the bytes at these offsets can be read without waiting for the disk.

        False also where the system cannot tell.
        """
        if not hasattr(os, "RWF_NOWAIT"):
            return False
        byte = bytearray(1)
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return all(
                os.preadv(descriptor, [byte], offset, os.RWF_NOWAIT) == 1
                for offset in offsets.tolist()
            )
        except OSError:  # EAGAIN: not cached; EOPNOTSUPP: not a question for this file system
            return False
        finally:
            os.close(descriptor)


def advise_file(path: Path, spans: Iterable[tuple[int, int]], advice: str) -> None:
    """Gives advice about bytes of a file, as offsets and lengths; where there is no call, nothing.

    Raises:
        OSError: if the file cannot be opened.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for offset, length in spans:
            os.posix_fadvise(descriptor, offset, length, getattr(os, advice))
    finally:
        os.close(descriptor)


PIECE = 1 << 19
"""Longest range of one call: the kernel reads no more than its device's limit ahead for each."""

_UNCUT = 1 << 62
"""A piece that no range exceeds: folios, which may be large, are dropped in whole or not at all."""


def page_pieces(
    starts: NDArray[np.int64], stops: NDArray[np.int64], piece: int = PIECE
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Byte ranges as sorted, disjoint pieces of whole pages: first bytes and lengths.

    No piece is longer than ``piece``, a multiple of pages.
    """
    keep = starts < stops
    first = starts[keep] // PAGE
    last = -(-stops[keep] // PAGE)
    if not len(first):
        return first, last
    order = np.argsort(first, kind="stable")
    first, last = first[order], np.maximum.accumulate(last[order])
    fresh = np.ones(len(first), bool)
    fresh[1:] = first[1:] > last[:-1]
    first, last = first[fresh], last[np.append(np.flatnonzero(fresh)[1:] - 1, len(last) - 1)]
    pages = piece // PAGE
    counts = -(-(last - first) // pages)
    number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = np.repeat(first, counts) + number * pages
    end = np.minimum(begin + pages, np.repeat(last, counts))
    return begin * PAGE, (end - begin) * PAGE


_SYS_PROCESS_MADVISE = 440  # the same on all architectures that Linux 5.10 and later runs on
_MOST_RANGES = 1024  # UIO_MAXIOV
_pidfd: tuple[int, int] | None = None
"""This process's pid and a descriptor for it, opened on first use."""


def _advise_pieces(addresses: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
    """MADV_WILLNEED for many ranges: one call for up to 1,024 where the kernel has it."""
    descriptor = _own_pidfd()
    vectors = np.stack([addresses, lengths], axis=1).astype(np.uintp)
    for start in range(0, len(vectors), _MOST_RANGES):
        part = vectors[start : start + _MOST_RANGES]
        done = -1
        if descriptor >= 0:
            done = libc().syscall(
                _SYS_PROCESS_MADVISE,
                ctypes.c_int(descriptor),
                ctypes.c_void_p(part.ctypes.data),
                ctypes.c_size_t(len(part)),
                ctypes.c_int(mmap.MADV_WILLNEED),
                ctypes.c_uint(0),
            )
        if done < 0:
            for address, length in part.tolist():
                libc().madvise(address, length, mmap.MADV_WILLNEED)


def _own_pidfd() -> int:
    global _pidfd
    if _pidfd is None or _pidfd[0] != os.getpid():
        try:
            _pidfd = os.getpid(), os.pidfd_open(os.getpid())
        except (AttributeError, OSError):
            _pidfd = os.getpid(), -1
    return _pidfd[1]


class Mapped:
    """Mapped or reserved addresses as NumPy sees them; given back with the last view of them."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (address, True),
        }
        finalizer = weakref.finalize(self, libc().munmap, address, nbytes)
        finalizer.atexit = False  # views may outlive this point; the process ends anyway


def _map(descriptor: int, nbytes: int) -> Mapped | mmap.mmap | None:
    if nbytes == 0:
        return None
    if os.name == "nt":
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    address = libc().mmap(None, nbytes, _PROT_READ, _MAP_SHARED, descriptor, 0)
    if address is None or address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {nbytes} bytes: {os.strerror(code)}")
    return Mapped(address, nbytes)


@cache
def libc() -> Any:
    """The C library; its functions run without the GIL."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_longlong]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.syscall.restype = ctypes.c_long
    if hasattr(libc, "process_vm_writev"):
        libc.process_vm_writev.restype = ctypes.c_ssize_t
        pointer, number = ctypes.c_void_p, ctypes.c_ulong
        libc.process_vm_writev.argtypes = [ctypes.c_int, pointer, number, pointer, number, number]
    return libc
