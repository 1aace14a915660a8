"""Large buffers that are used again: their pages are huge where possible, and faulted in once.

A fresh buffer costs one page fault for each 4 kB that is written to it, which takes longer than
gathering the rows does. A training loop lets go of a batch soon after it got the next one, so the
memory of a few batches serves a whole epoch.
"""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import numpy as np
import torch

from shardgraph.collate.buffer import Memory, ordinary_memory

LARGE = 1 << 20
"""Buffers of fewer bytes are left to malloc, which reuses them itself."""

KEPT = 4
"""Free blocks kept: as many as a prefetcher and a training loop hold between them."""

_HUGE_PAGE = 2 << 20
_MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", None)


class ReusedMemory:
    """Allocates buffers; a large one is reused when the last tensor over it is gone.

    What is free is let go with this object. Several threads may allocate.
    """

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []

    def __call__(self, nbytes: int) -> Memory:
        """A buffer of ``nbytes`` bytes, its content undefined."""
        if nbytes < LARGE or not hasattr(mmap, "MAP_PRIVATE"):
            return ordinary_memory(nbytes)
        block = self._take(nbytes)
        array = np.frombuffer(block, np.uint8, nbytes)
        weakref.finalize(array, _give_back, self._free, block).atexit = False
        tensor = torch.from_numpy(array)
        return Memory(tensor, tensor)

    def _take(self, nbytes: int) -> mmap.mmap:
        """A free block that is large enough, or a new one in place of one that is not."""
        for _ in range(len(self._free)):
            try:
                block = self._free.pop()
            except IndexError:  # another thread was faster
                break
            if len(block) >= nbytes:
                return block
        # Batches differ in size: an eighth more, so that most of them fit.
        size = -(-(nbytes + nbytes // 8) // _HUGE_PAGE) * _HUGE_PAGE
        block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if _MADV_HUGEPAGE is not None:
            block.madvise(_MADV_HUGEPAGE)
        return block

    def __reduce__(self) -> Any:
        return ReusedMemory, ()


def _give_back(free: list[mmap.mmap], block: mmap.mmap) -> None:
    free.append(block)
    del free[:-KEPT]
