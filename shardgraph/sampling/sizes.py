"""Sizes of graphs: one array for all, or one for each node or edge type."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

TypeName: TypeAlias = "str | tuple[str, str, str]"
"""A node type, or an edge type as PyG writes it: a triple, or its parts joined by ``__``."""

_CHUNK = 1 << 18

_MAX_TOTAL = 1 << 62
"""Twice as much fits an int64, as packing needs."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """One number for each graph: the sum of integer arrays [G], which are not copied."""

    parts: tuple[NDArray[np.integer], ...]

    def __len__(self) -> int:
        return len(self.parts[0])

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sizes of graphs: int64 [len(ids)]."""
        sizes = self.parts[0][ids].astype(np.int64)
        for part in self.parts[1:]:
            sizes += part[ids]
        return sizes

    def bound(self) -> int:
        """Return a number that no graph's size exceeds, at the cost of a pass over the arrays."""
        return sum(int(part.max(initial=0)) for part in self.parts)

    def total(self) -> int:
        """Return the size of all graphs together."""
        return sum(int(part.sum(dtype=np.int64)) for part in self.parts)

    def digest(self) -> int:
        """Return the CRC-32 of the sizes, the same for any dtype and any number of parts."""
        crc = 0
        for start in range(0, len(self), _CHUNK):
            sizes = sum(part[start : start + _CHUNK].astype(np.int64) for part in self.parts)
            crc = zlib.crc32(np.asarray(sizes, "<i8").tobytes(), crc)
        return crc


@dataclass(frozen=True, slots=True)
class SizesByType:
    """Sizes by type; all types together where the graphs have one kind of node or edge."""

    total: Sizes
    by_type: Mapping[str, Sizes]


def type_name(key: TypeName) -> str:
    """Return a type as one string, as PyG does: the parts of an edge type joined by ``__``."""
    return key if isinstance(key, str) else "__".join(key)


def read_sizes(
    name: str, sizes: ArrayLike | Mapping[TypeName, ArrayLike] | None, num_graphs: int
) -> SizesByType | None:
    """Return sizes as integer arrays [num_graphs], without a copy where they are arrays.

    Raises:
        TypeError: If they are not integers.
        ValueError: If there is not one for each graph, one is negative, or they add up to
            `_MAX_TOTAL` or more.
    """
    if sizes is None:
        return None
    by_type: dict[str, Sizes] = {}
    if isinstance(sizes, Mapping):
        for key, each in sizes.items():
            kind = type_name(key)
            by_type[kind] = Sizes((_size_array(f"{name}[{kind!r}]", each, num_graphs),))
        parts = tuple(each.parts[0] for each in by_type.values())
    else:
        parts = (_size_array(name, sizes, num_graphs),)
    if sum(float(part.sum(dtype=np.float64)) for part in parts) >= _MAX_TOTAL:
        raise ValueError(f"{name} must add up to less than {_MAX_TOTAL:,} over all graphs.")
    return SizesByType(Sizes(parts or (np.zeros(num_graphs, np.int64),)), by_type)


def _size_array(name: str, sizes: ArrayLike, num_graphs: int) -> NDArray[np.integer]:
    array = np.asarray(sizes)
    if not array.size:
        array = array.astype(np.int64)
    if array.shape != (num_graphs,):
        raise ValueError(
            f"{name} must have one number for each of {num_graphs} graphs, got shape {array.shape}."
        )
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got dtype {array.dtype}.")
    if num_graphs and array.min() < 0:
        raise ValueError(
            f"{name} must not be negative, got {array.min()} for graph {int(array.argmin())}."
        )
    return array
