"""Shared memory that one process makes and another of the same program opens, without a handshake.

Torch hands a descriptor over through a socket, with a thread on the other side that must get the
GIL first: 0.3 ms a batch and more. Here the receiver opens the block through ``/proc`` by the
maker's pid and descriptor number. The maker keeps its last descriptors open for that; how many
batches can be on their way is known. Where there is no ``memfd_create`` or ``/proc``, torch serves.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections import deque
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shardgraph.shards.filemap import libc

_PROT_READ_WRITE, _MAP_SHARED = 3, 1
_MAP_POPULATE = getattr(mmap, "MAP_POPULATE", 0)
_MADV_REMOVE = getattr(mmap, "MADV_REMOVE", None)
_FAILED = ctypes.c_void_p(-1).value

_num_forks = 0
if hasattr(os, "register_at_fork"):

    def _count_fork() -> None:
        global _num_forks
        _num_forks += 1

    os.register_at_fork(after_in_parent=_count_fork)

_sent: deque[int] = deque()
"""Descriptors of blocks that are on their way to another process, oldest first."""


@cache
def can_share() -> bool:
    """Whether blocks can be made and opened here."""
    return hasattr(os, "memfd_create") and os.path.isdir(f"/proc/{os.getpid()}/fd")


class SharedBlock:
    """A block of shared memory: uint8 ``tensor`` [nbytes]. Pickling it sends it, once.

    ``keep`` is how many sent blocks may not have been opened yet.
    """

    def __init__(self, nbytes: int, *, keep: int) -> None:
        self.nbytes = nbytes
        self._keep = keep
        try:
            self._descriptor = os.memfd_create("shardgraph", os.MFD_CLOEXEC)
        except OSError as error:
            raise _no_memory(nbytes, error.errno) from error
        self._close = weakref.finalize(self, os.close, self._descriptor)
        os.ftruncate(self._descriptor, max(nbytes, 1))
        self.tensor = _mapped(self._descriptor, nbytes, owner=False)

    def __reduce__(self) -> Any:
        if self._close.detach() is None:
            raise RuntimeError("a shared block is sent once")
        _sent.append(self._descriptor)
        while len(_sent) > self._keep:
            os.close(_sent.popleft())
        return _opened, (os.getpid(), self._descriptor, self.nbytes)


def _opened(pid: int, number: int, nbytes: int) -> Tensor:
    """The block that another process has sent, as a tensor; it is freed with its last view."""
    try:
        descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise RuntimeError(
            f"cannot open a batch of worker {pid} ({error.strerror}): "
            "it has ended, or runs as another user"
        ) from error
    try:
        return _mapped(descriptor, nbytes, owner=True)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, nbytes: int, *, owner: bool) -> Tensor:
    flags = _MAP_SHARED | _MAP_POPULATE
    address = libc().mmap(None, max(nbytes, 1), _PROT_READ_WRITE, flags, descriptor, 0)
    if address is None or address == _FAILED:
        raise _no_memory(nbytes, ctypes.get_errno())
    return torch.from_numpy(np.asarray(_Mapping(address, nbytes, owner=owner)))


def _no_memory(nbytes: int, code: int | None) -> OSError:
    return OSError(
        code,
        f"no shared memory for a batch of {nbytes:,} bytes ({os.strerror(code or 0)}); "
        "use smaller batches, fewer workers or a smaller prefetch_factor",
    )


class _Mapping:
    """Mapped memory as NumPy sees it, writable."""

    def __init__(self, address: int, nbytes: int, *, owner: bool) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (address, False),
        }
        made = (os.getpid(), _num_forks) if owner else None
        finalizer = weakref.finalize(self, _unmap, address, max(nbytes, 1), made)
        finalizer.atexit = False


def _unmap(address: int, nbytes: int, made: tuple[int, int] | None) -> None:
    # The maker may still hold a descriptor, so the pages are let go here. Not if this process has
    # forked since, or is the child of that fork: the two share the pages.
    if made == (os.getpid(), _num_forks) and _MADV_REMOVE is not None:
        libc().madvise(address, nbytes, _MADV_REMOVE)
    libc().munmap(address, nbytes)
