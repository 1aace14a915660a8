"""Mutations of shards and manifests, checksums made right again so that parsers go on."""

from __future__ import annotations

import copy
import json
import struct
from dataclasses import dataclass
from typing import Any

import h5py
from hypothesis import strategies as st

BOUNDARIES = (
    0, 1, 2, 3, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 20, (1 << 31) - 1, 1 << 31,
    (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 8,
)  # fmt: skip
"""Numbers at which parsers go wrong."""

_MASK = 0xFFFFFFFF


def _rotated(x: int, k: int) -> int:
    return (x << k | x >> 32 - k) & _MASK


def lookup3(data: bytes) -> int:
    """The checksum of HDF5's metadata: Bob Jenkins's hashlittle, from 0.

    https://burtleburtle.net/bob/c/lookup3.c
    """
    a = b = c = 0xDEADBEEF + len(data) & _MASK
    padded = data + bytes(-len(data) % 12)
    words = struct.unpack(f"<{len(padded) // 4}I", padded)
    last = len(words) - 3
    for place in range(0, last, 3):
        a, b, c = a + words[place], b + words[place + 1], c + words[place + 2]
        for shift in (4, 6, 8, 16, 19, 4):
            a = (a - c & _MASK) ^ _rotated(c & _MASK, shift)
            c = c + b & _MASK
            a, b, c = b, c, a
    a, b, c = (words[last + n] + x & _MASK for n, x in enumerate((a, b, c)))
    for shift in (14, 11, 25, 16, 4, 14, 24):
        c = (c ^ b) - _rotated(b, shift) & _MASK
        a, b, c = b, c, a
    return b


@dataclass(frozen=True)
class Base:
    """A sound shard, and where what is to be mutated lies in it."""

    data: bytes
    blocks: list[tuple[int, int]]
    """Start and end of each block of metadata that ends in a checksum, which follows it."""
    numbers: list[int]
    """Places of the numbers of ptr, increments and shapes."""

    @classmethod
    def of(cls, data: bytes, path: Any) -> Base:
        """The shard at ``path``, which has this data."""
        numbers: list[int] = []
        with h5py.File(path, "r", locking=False) as file:

            def visit(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset) and name.split("/")[0] in {
                    "ptr",
                    "inc",
                    "shapes",
                }:
                    offset = item.id.get_offset() or 0
                    numbers.extend(range(offset, offset + item.nbytes, 8))

            file.visititems(visit)
        return cls(data=data, blocks=_blocks(data), numbers=numbers)


def _blocks(data: bytes) -> list[tuple[int, int]]:
    found = [(0, 44)]  # the superblock, of version 3
    for signature in (b"OHDR", b"OCHK", b"FAHD", b"FADB"):
        start = data.find(signature)
        while start >= 0:
            ends = range(start + 8, min(start + 1500, len(data) - 3))
            end = next((n for n in ends if _is_summed(data, start, n)), None)
            if end is not None:
                found.append((start, end))
            start = data.find(signature, start + 4)
    return found


def _is_summed(data: bytes, start: int, end: int) -> bool:
    return lookup3(data[start:end]) == int.from_bytes(data[end : end + 4], "little")


@st.composite
def shards(draw: Any, base: Base) -> bytes:
    """A mutated shard."""
    data = bytearray(base.data)
    kind = draw(st.sampled_from(["block", "block", "block", "number", "anywhere", "length"]))
    if kind == "block":
        start, end = draw(st.sampled_from(base.blocks))
        for _ in range(draw(st.integers(1, 3))):
            _edit(draw, data, draw(st.integers(start, end - 1)))
        data[end : end + 4] = lookup3(bytes(data[start:end])).to_bytes(4, "little")
    elif kind == "number":
        for _ in range(draw(st.integers(1, 4))):
            place = draw(st.sampled_from(base.numbers))
            value = draw(st.sampled_from(BOUNDARIES) | st.integers(0, 20))
            data[place : place + 8] = value.to_bytes(8, "little")
    elif kind == "anywhere":
        for _ in range(draw(st.integers(1, 8))):
            _edit(draw, data, draw(st.integers(0, len(data) - 1)))
    else:
        length = draw(st.integers(0, len(data)))
        data[length:] = draw(st.binary(max_size=64) | st.just(bytes(len(data) - length)))
    return bytes(data)


def _edit(draw: Any, data: bytearray, place: int) -> None:
    """One bit flipped, or a number put, at a place."""
    if draw(st.booleans()):
        data[place] ^= 1 << draw(st.integers(0, 7))
        return
    width = draw(st.sampled_from([1, 2, 4, 8]))
    value = draw(st.sampled_from(BOUNDARIES)) % (1 << 8 * width)
    data[place : place + width] = value.to_bytes(width, "little")[: len(data) - place]


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(BOUNDARIES).flatmap(lambda n: st.sampled_from([n, -n, float(n)])),
    st.sampled_from(["", "x", "../..", "/etc/passwd", "node", "shard-00000.h5", "\0", "inf"]),
    st.sampled_from([[], {}, [[]], [[0, 1]], [None], {"bits": "AA=="}, [0, 1 << 62]]),
)


@st.composite
def manifests(draw: Any, text: str) -> bytes:
    """A mutated manifest: its document with entries changed, or its bytes."""
    if draw(st.integers(0, 3)) == 0:
        data = bytearray(text.encode())
        for _ in range(draw(st.integers(1, 4))):
            _edit(draw, data, draw(st.integers(0, len(data) - 1)))
        return bytes(data)
    doc = json.loads(text)
    for _ in range(draw(st.integers(1, 3))):
        _change(draw, doc)
    return json.dumps(doc).encode()


def _change(draw: Any, owner: Any) -> None:
    """Puts, removes or doubles an entry somewhere below ``owner``."""
    while True:
        keys = sorted(owner) if isinstance(owner, dict) else list(range(len(owner)))
        if not keys:
            return
        key = draw(st.sampled_from(keys))
        if isinstance(owner[key], (dict, list)) and draw(st.integers(0, 5)):
            owner = owner[key]
            continue
        change = draw(st.sampled_from(["put", "put", "remove", "double"]))
        if change == "put":
            owner[key] = draw(JUNK)
        elif change == "remove":
            del owner[key]
        elif isinstance(owner, list):
            owner.append(copy.deepcopy(owner[key]))
        else:
            owner[f"{key}2"] = copy.deepcopy(owner[key])
        return
