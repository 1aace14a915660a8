"""Named subsets of a dataset, as the manifest keeps them: ranges of graphs, or a bit a graph."""

from __future__ import annotations

import base64
import binascii
import bisect
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardgraph.errors import FormatError

MAX_RANGES: Final = 1000
"""A subset of more runs of consecutive graphs than this is kept as bits.

A random tenth of a million graphs is 1.5 MB as ranges and 170 kB as bits.
"""


def pack_split(graph_ids: NDArray[np.int64], num_graphs: int) -> Any:
    """The subset of these graphs as JSON: ``[[start, stop], ...]``, or ``{"bits": text}``.

    Order and repetition are not kept: a subset is read in the order of the dataset.

    Raises:
        IndexError: if a graph is not in the dataset.
    """
    ids = np.unique(graph_ids)
    if len(ids) and not (ids[0] >= 0 and ids[-1] < num_graphs):
        raise IndexError(f"a split has graphs {ids[0]} to {ids[-1]}, but there are {num_graphs}")
    cuts = np.flatnonzero(np.diff(ids) > 1) + 1
    if len(cuts) < MAX_RANGES:
        runs = np.split(ids, cuts) if len(ids) else []
        return [[int(run[0]), int(run[-1]) + 1] for run in runs]
    mask = np.zeros(num_graphs, bool)
    mask[ids] = True
    bits = np.packbits(mask, bitorder="little")
    return {"bits": base64.b64encode(bits.tobytes()).decode("ascii")}


def unpack_split(value: Any, num_graphs: int) -> NDArray[np.int64]:
    """The graphs of a subset, int64 [n], in the order it is kept in.

    Raises:
        FormatError: if the value is no subset of so many graphs.
    """
    if not is_split(value, num_graphs):
        raise FormatError(
            "a split must be a list of [start, stop) ranges, or a bit for each of "
            f"{num_graphs} graphs"
        )
    if isinstance(value, list):
        ranges = [np.arange(start, stop, dtype=np.int64) for start, stop in value]
        return np.concatenate([np.empty(0, np.int64), *ranges])
    mask = np.unpackbits(_bits(value), bitorder="little")
    return np.flatnonzero(mask).astype(np.int64, copy=False)


def renumbered(value: Any, counts: Sequence[int], kept: Sequence[bool]) -> tuple[Any, int, int]:
    """A subset where of runs of so many graphs only some are kept, by the new numbers of those.

    Also its number of graphs before and after. Takes no more memory than the subset does, whatever
    the counts say.
    """
    old = [*itertools.accumulate(counts, initial=0)]
    left = (count if is_kept else 0 for count, is_kept in zip(counts, kept, strict=True))
    new = [*itertools.accumulate(left, initial=0)]
    if isinstance(value, list):

        def place(graph: int) -> int:
            run = min(bisect.bisect_right(old, graph), len(counts)) - 1
            return new[run] + (graph - old[run]) * kept[run]

        before = _merged(value)
        after = _merged([place(start), place(stop)] for start, stop in before)
        return after, _size(before), _size(after)
    ids = unpack_split(value, old[-1])
    run = np.searchsorted(old, ids, side="right") - 1
    new_ids = (ids - np.array(old)[run] + np.array(new)[run])[np.array(kept)[run]]
    return pack_split(new_ids, new[-1]), len(ids), len(new_ids)


def _size(ranges: list[list[int]]) -> int:
    return sum(stop - start for start, stop in ranges)


def _merged(ranges: Iterable[list[int]]) -> list[list[int]]:
    """The same graphs in ranges that ascend and do not touch."""
    found: list[list[int]] = []
    for start, stop in sorted(each for each in ranges if each[0] < each[1]):
        if found and start <= found[-1][1]:
            found[-1][1] = max(stop, found[-1][1])
        else:
            found.append([start, stop])
    return found


def is_split(value: Any, num_graphs: int) -> bool:
    """Whether a JSON value is a subset of so many graphs, no more graphs than there are."""
    if isinstance(value, list):
        if not all(_is_range(item, num_graphs) for item in value):
            return False
        return bool(sum(stop - start for start, stop in value) <= num_graphs)
    bits = _bits(value)
    if len(bits) == 0 or len(bits) != -(-num_graphs // 8):
        return False
    spare = 8 * len(bits) - num_graphs
    return int(bits[-1]) >> (8 - spare) == 0


def _is_range(value: Any, num_graphs: int) -> bool:
    if not isinstance(value, list) or [type(end) for end in value] != [int, int]:
        return False
    start, stop = value
    return bool(0 <= start <= stop <= num_graphs)


def _bits(value: Any) -> NDArray[np.uint8]:
    """The bits, eight graphs a byte; empty if the value holds none."""
    text = value.get("bits") if isinstance(value, dict) else None
    try:
        found = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        found = b""
    return np.frombuffer(found, np.uint8)
