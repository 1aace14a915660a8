"""Chunks of compressed columns: what they may be, and that each decodes to just its own size.

HDF5 (2.0, in h5py 3.16) does not check that: of a chunk that decodes to fewer bytes it hands out
whatever lies behind them in memory, or crashes, and for one that decodes to more it takes memory
until the stream ends. So every chunk is looked at here before HDF5 decodes it.
"""

from __future__ import annotations

import itertools
import math
import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

DEFLATE: Final = 1
SHUFFLE: Final = 2
FLETCHER32: Final = 3
LZ4: Final = 32004
ZSTD: Final = 32015

EXPANSION: Final = {DEFLATE: 1100, SHUFFLE: 1, FLETCHER32: 1, LZ4: 300, ZSTD: 1 << 13}
"""HDF5's ids of the filters that a column may use, and how many times each may expand its input.

zlib's bound is 1,032, LZ4's 255, and a Zstd frame of 12 bytes can be a whole chunk of 64 KiB.
"""

MAX_CHUNK: Final = 1 << 26
"""Bytes that a chunk may decode to."""

_STEPS = ((None, SHUFFLE), (None, DEFLATE, LZ4, ZSTD), (None, FLETCHER32))
ORDERS: Final = frozenset(
    tuple(number for number in steps if number is not None) for steps in itertools.product(*_STEPS)
)
"""The orders of filters that are known: shuffled, compressed once, then summed, or less."""


class ChunkCheck:
    """Which chunks of one dataset have been found to decode to what they should."""

    def __init__(self, dset: Any, file: NDArray[np.uint8]) -> None:
        plist = dset.get_create_plist()
        self._file = file
        self._chunk = plist.get_chunk()
        self._filters = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
        self._nbytes = math.prod(self._chunk) * dset.get_type().get_size()
        self.num_rows: int = self._chunk[0]
        """Rows of a chunk."""
        self.row_nbytes: int = math.prod(dset.shape[1:]) * dset.get_type().get_size()
        """Bytes of a row of the dataset."""
        extents = zip(dset.shape, self._chunk, strict=True)
        grid = tuple(-(-extent // size) for extent, size in extents)
        self._is_sound: NDArray[np.bool_] = np.zeros(grid, np.bool_)

    def rows(self, dset: Any, start: int, stop: int) -> str | None:
        """What is wrong with the chunks that hold some rows; None if nothing is."""
        first, last = start // self._chunk[0], -(-stop // self._chunk[0])
        for place in np.argwhere(~self._is_sound[first:last]).tolist():
            place[0] += first
            if (fault := self._fault(dset, place)) is not None:
                return f"chunk {place} {fault}"
            self._is_sound[tuple(place)] = True
        return None

    def _fault(self, dset: Any, place: list[int]) -> str | None:
        offsets = tuple(number * size for number, size in zip(place, self._chunk, strict=True))
        info = dset.get_chunk_info_by_coord(offsets)
        if info.byte_offset is None or info.byte_offset + info.size > len(self._file):
            return "does not lie within the file"
        raw = self._file[info.byte_offset : info.byte_offset + info.size]
        for number, step in reversed(list(enumerate(self._filters))):
            if info.filter_mask >> number & 1:  # this chunk went without
                continue
            if step == FLETCHER32:
                raw = raw[: max(0, len(raw) - 4)]
            elif step != SHUFFLE:
                fits = _DECODES[step](raw.tobytes(), self._nbytes)
                return None if fits else f"does not decode to its {self._nbytes} bytes"
        return None if len(raw) == self._nbytes else f"is not of its {self._nbytes} bytes"


def _deflate_fits(raw: bytes, nbytes: int) -> bool:
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(raw, nbytes + 1)
    except zlib.error:
        return False
    return len(found) == nbytes and stream.eof


def _lz4_fits(raw: bytes, nbytes: int) -> bool:
    """Whether the blocks of an HDF5 LZ4 chunk are of that size in all, and lie within it.

    https://github.com/HDFGroup/hdf5_plugins/blob/master/docs/RegisteredFilterPlugins.md: big-endian
    the decoded size (8 bytes), a block's (4), then each block's stored size (4) and itself.
    """
    block = int.from_bytes(raw[8:12], "big")
    if len(raw) < 12 or int.from_bytes(raw[:8], "big") != nbytes or not block > 0:
        return False
    place = 12
    for _ in range(-(-nbytes // block)):
        if place + 4 > len(raw):
            return False
        place += 4 + int.from_bytes(raw[place : place + 4], "big")
    return place <= len(raw)


def _zstd_fits(raw: bytes, nbytes: int) -> bool:
    """Whether a Zstd frame says that it is of that size; the decoder holds it to its word.

    https://www.rfc-editor.org/rfc/rfc8878#section-3.1.1.1
    """
    if len(raw) < 6 or raw[:4] != b"\x28\xb5\x2f\xfd":
        return False
    is_single, width = raw[4] >> 5 & 1, (0, 2, 4, 8)[raw[4] >> 6]
    if width == 0 and is_single:
        width = 1
    start = 5 + (1 - is_single) + (0, 1, 2, 4)[raw[4] & 3]
    found = int.from_bytes(raw[start : start + width], "little")
    return width > 0 and found + (256 if width == 2 else 0) == nbytes


_DECODES = {DEFLATE: _deflate_fits, LZ4: _lz4_fits, ZSTD: _zstd_fits}
