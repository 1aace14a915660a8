"""Random permutations that stay the same for good: on every machine, with every NumPy."""

import numpy as np
from numpy.typing import NDArray

FULL, BLOCKS, WINDOW, BATCHES, DRAW = 0, 1, 2, 3, 4
"""Random streams: all graphs, the blocks of window order, one window, the batches of a pool, a draw
by weights."""

_CHUNK = 16384


def key(seed: int, epoch: int, stream: int, index: int = 0) -> list[int]:
    """Return the words that seed one random stream; different arguments never share a stream.

    Args:
        seed: From 0 to 2**64 - 1; it fills two words.
        epoch: From 0 to 2**32 - 1.
        stream: What the numbers are for.
        index: Which window or pool they are for.
    """
    return [seed & 0xFFFFFFFF, seed >> 32, epoch, stream, index]


def permutation(num: int, words: list[int]) -> NDArray[np.int64]:
    """Return a random permutation of ``range(num)``: int64 [num], the only memory it takes.

    The high bits of each item are random and the low bits are its number; sorting shuffles. NumPy
    promises the raw output of a bit generator for good, but not that of `Generator.permutation`
    (https://numpy.org/doc/stable/reference/random/compatibility.html), so this order outlives NumPy
    releases. Items are distinct, so every sorting algorithm gives the same result. Equal high bits
    (40 of them for 16 million items) leave two items in ascending order, which is too rare to
    matter.
    """
    items = np.random.PCG64(words).random_raw(num)
    bits = max(num - 1, 1).bit_length()
    items >>= np.uint64(bits)
    items <<= np.uint64(bits)
    for start in range(0, num, _CHUNK):
        stop = min(start + _CHUNK, num)
        items[start:stop] |= np.arange(start, stop, dtype=np.uint64)
    items.sort()
    items &= np.uint64((1 << bits) - 1)
    return items.view(np.int64)
