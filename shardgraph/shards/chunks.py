"""Chunks of compressed columns: what they may be, and that each decodes to just its own size.

HDF5 (2.0, in h5py 3.16) does not check that: of a chunk that decodes to fewer bytes it hands out
whatever lies behind them in memory, or crashes, and for one that decodes to more it takes memory
until the stream ends. So every chunk is looked at here before HDF5 decodes it, or decoded here.
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


class Chunks:
    """The chunks of one dataset: their bytes, and which were found to decode to their size."""

    def __init__(self, dset: Any, file: NDArray[np.uint8]) -> None:
        plist = dset.get_create_plist()
        self._file = file
        self._chunk = plist.get_chunk()
        self._filters = tuple(plist.get_filter(number)[0] for number in range(plist.get_nfilters()))
        self._itemsize = dset.get_type().get_size()
        self._nbytes = math.prod(self._chunk) * self._itemsize
        self.num_rows: int = self._chunk[0]
        """Rows of a chunk."""
        extents = zip(dset.shape, self._chunk, strict=True)
        grid = tuple(-(-extent // size) for extent, size in extents)
        self.hold_whole_rows = self._chunk[1:] == dset.shape[1:]
        """Whether each chunk holds all values of its rows."""
        self.deflated = self._filters in ((DEFLATE,), (SHUFFLE, DEFLATE))
        """Whether `inflate` decodes them."""
        self._is_sound: NDArray[np.bool_] = np.zeros(grid, np.bool_)

    def raw(self, dset: Any, place: list[int]) -> tuple[NDArray[np.uint8], int]:
        """A chunk as it is stored, and the mask of the filters that it went without.

        Raises:
            ValueError: if it does not lie within the file.
        """
        offsets = tuple(number * size for number, size in zip(place, self._chunk, strict=True))
        info = dset.get_chunk_info_by_coord(offsets)
        if info.byte_offset is None or info.byte_offset + info.size > len(self._file):
            raise ValueError(f"chunk {place} does not lie within the file")
        return self._file[info.byte_offset : info.byte_offset + info.size], info.filter_mask

    def inflate(self, raw: NDArray[np.uint8], place: list[int]) -> NDArray[np.uint8]:
        """The bytes of a deflated chunk; another thread may use HDF5 meanwhile.

        Raises:
            ValueError: if it does not decode to its size.
        """
        stream = zlib.decompressobj()
        try:
            found = np.frombuffer(stream.decompress(raw.data, self._nbytes + 1), np.uint8)
        except zlib.error as error:
            raise self._misfit(place) from error
        if len(found) != self._nbytes or not stream.eof:
            raise self._misfit(place)
        if self._filters[0] == SHUFFLE:  # all first bytes of the values, all second ones, ...
            found = np.ascontiguousarray(found.reshape(self._itemsize, -1).T).reshape(-1)
        return found

    def check(self, dset: Any, start: int, stop: int) -> None:
        """Looks at the chunks that hold some rows, those that were found sound excepted.

        Raises:
            ValueError: if one does not decode to its size.
        """
        first, last = start // self._chunk[0], -(-stop // self._chunk[0])
        for place in np.argwhere(~self._is_sound[first:last]).tolist():
            place[0] += first
            self._check(place, *self.raw(dset, place))
            self._is_sound[tuple(place)] = True

    def _check(self, place: list[int], raw: NDArray[np.uint8], mask: int) -> None:
        for number, step in reversed(list(enumerate(self._filters))):
            if mask >> number & 1:
                continue
            if step == FLETCHER32:
                raw = raw[: max(0, len(raw) - 4)]
            elif step != SHUFFLE:
                if not _DECODES[step](raw.tobytes(), self._nbytes):
                    raise self._misfit(place)
                return
        if len(raw) != self._nbytes:
            raise ValueError(f"chunk {place} is not of its {self._nbytes} bytes")

    def _misfit(self, place: list[int]) -> ValueError:
        return ValueError(f"chunk {place} does not decode to its {self._nbytes} bytes")


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
