"""The layout of a batch's one buffer: which array lies where."""

from __future__ import annotations

from typing import NamedTuple

from shardgraph.format.layout import BUFFER_ALIGNMENT


class Field(NamedTuple):
    """One array of a buffer. A tuple, since it crosses from worker to main with every batch."""

    dtype: str
    """Logical dtype."""
    shape: tuple[int, ...]
    offset: int
    """Of its first byte; a multiple of 64."""


class BufferLayout:
    """Lays arrays out one after the other, each aligned."""

    __slots__ = ("fields", "nbytes")

    def __init__(self) -> None:
        self.fields: list[Field] = []
        self.nbytes = 0

    def add(self, dtype: str, shape: tuple[int, ...], itemsize: int) -> int:
        """Places an array; returns its number."""
        count = itemsize
        for extent in shape:
            count *= extent
        self.fields.append(Field(dtype, shape, self.nbytes))
        self.nbytes += -(-count // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
        return len(self.fields) - 1
