"""Names and constants of the on-disk format, each once. ``SPEC.md`` beside this file is the law."""

from __future__ import annotations

import operator
import re
from typing import Final

FORMAT_NAME: Final = "shardgraph"
FORMAT_VERSION: Final = (1, 0)
"""Major: readers must refuse what they do not know. Minor: readers may go on, with a warning."""

MANIFEST_NAME: Final = "manifest.json"
SHARD_PATTERN: Final = re.compile(r"shard-[0-9]{5,}(-[0-9]+)?\.h5")

COLUMNS: Final = "columns"
PTR: Final = "ptr"
INC: Final = "inc"
SHAPES: Final = "shapes"
DIGESTS: Final = "digests"

GRAPH_AXIS: Final = "graph"
"""One row a graph; its ptr is 0, 1, ..., G and is not stored."""

ALIGNMENT: Final = 4096
"""File offset alignment of every array of at least `ALIGNED_FROM` bytes, so that long views over a
map are aligned for any dtype."""

ALIGNED_FROM: Final = 2048
"""Bytes; smaller arrays lie packed, or a shard of few graphs would be mostly holes."""

MAX_ATTRIBUTE: Final = 4096
"""Bytes of a text attribute of a shard."""

MAX_RANK: Final = 32
"""Dimensions of an array of a shard: H5S_MAX_RANK."""

BUFFER_ALIGNMENT: Final = 64
"""Offset alignment of the arrays in a batch's one buffer: a cache line."""

# Logical dtype -> dtype of the bytes on disk. What NumPy and HDF5 lack goes as raw bits of the
# same width; complex numbers go as (real, imaginary) pairs in a last dimension of 2.
STORAGE: Final[dict[str, str]] = {
    "bool": "uint8",
    "uint8": "uint8",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "float16": "float16",
    "float32": "float32",
    "float64": "float64",
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "complex32": "float16",
    "complex64": "float32",
    "complex128": "float64",
}
COMPLEX: Final = frozenset({"complex32", "complex64", "complex128"})
RAW_BITS: Final = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
INTEGERS: Final = frozenset(
    {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)

_NARROWER: Final = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "uint64")


def generation_of(shard: str) -> int:
    """The generation in a shard's file name; 0 in a name that has none."""
    match = SHARD_PATTERN.fullmatch(shard)
    return int(match[1][1:]) if match and match[1] else 0


def quote(component: str) -> str:
    """A path component that HDF5 accepts for any name: no "/", no bare "." or "..", no "__"."""
    text = component.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    text = text.replace("__", "%5F%5F")
    if not text:
        return "%"
    return text.replace(".", "%2E") if text in {".", ".."} else text


def parse_size(size: str | int) -> int:
    """Bytes of ``"128MB"``, ``"1.5 GiB"`` or a plain number. Decimal units are powers of 1000.

    Raises:
        ValueError: if the text is no size, or the size is not positive.
        TypeError: if it is neither text nor a whole number.
    """
    if not isinstance(size, str):
        value = operator.index(size)
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", size.lower())
        if match is None:
            raise ValueError(f"cannot read {size!r} as a size; write for example '128MB' or '1GiB'")
        number, unit, binary = match.groups()
        base = 1024 if binary else 1000
        value = int(float(number) * base ** " kmgt".index(unit or " "))
    if value <= 0:
        raise ValueError(f"a size must be positive, got {size!r}")
    return value


def narrowest(low: int, high: int, logical: str) -> str:
    """The narrowest integer dtype that holds ``low..high`` and is not wider than ``logical``."""
    import numpy as np

    for name in _NARROWER:
        info = np.iinfo(name)
        if np.dtype(name).itemsize > np.dtype(logical).itemsize:
            break
        if info.min <= low and high <= info.max:
            return name
    return logical
