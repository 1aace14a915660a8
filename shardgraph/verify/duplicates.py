"""Graphs that are there more than once, found by a digest of all their values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.atomic import digest128
from shardgraph.errors import CorruptShardError
from shardgraph.format import layout
from shardgraph.verify.problem import Problem
from shardgraph.verify.rows import Looked

_RUN = 1024  # graphs whose rows are widened at once
_MOST = 20  # that are named


def graph_digests(looked: Looked) -> NDArray[np.uint64] | None:
    """xxh3_128 of each graph of a shard, uint64 [G, 2]; None if not all of it can be read.

    Of its sizes, and of its values in their logical dtypes, bit for bit: a graph has the same in
    any shard.
    """
    shard = looked.shard
    sound = {name: (source, ptr) for name, source, ptr in looked.sound()}
    if looked.bad_axes or sound.keys() != shard.columns.keys():
        return None
    sizes = np.stack(
        [
            *(np.diff(shard.ptrs[axis]) for axis in looked.schema.size_axes),
            *(np.diff(sound[n][1]) if n in sound else _zeros(looked) for n in _names(looked)),
            _zeros(looked),
        ],
        axis=1,
    )
    texts: list[str] = []
    try:
        for start in range(0, shard.num_graphs, _RUN):
            texts += _run(looked, sound, sizes, start, min(start + _RUN, shard.num_graphs))
    except CorruptShardError:  # which the digests report
        return None
    return np.frombuffer(bytes.fromhex("".join(texts)), ">u8").reshape(-1, 2)


def _names(looked: Looked) -> list[str]:
    return list(looked.schema.columns)


def _zeros(looked: Looked) -> NDArray[np.int64]:
    return np.zeros(looked.shard.num_graphs, np.int64)


def _run(
    looked: Looked, sound: dict[str, Any], sizes: NDArray[np.int64], start: int, stop: int
) -> list[str]:
    parts: list[list[bytes]] = [[sizes[graph].tobytes()] for graph in range(start, stop)]
    for name in _names(looked):
        if name not in sound:
            continue
        source, ptr = sound[name]
        ends = ptr[start : stop + 1]
        rows = np.asarray(source[int(ends[0]) : int(ends[-1])])
        dtype = np.dtype(layout.STORAGE[looked.schema.columns[name].dtype])
        rows = np.ascontiguousarray(rows, dtype)
        row_nbytes = int(np.prod(rows.shape[1:], dtype=np.int64)) * dtype.itemsize
        cuts = ((ends - ends[0]) * row_nbytes).tolist()
        data = rows.tobytes()
        shapes = looked.shard.shapes.get(name)
        for number, part in enumerate(parts):
            part.append(data[cuts[number] : cuts[number + 1]])
            if shapes is not None:  # -1 fills up to the most dimensions of the shard
                shape = shapes[start + number]
                part.append(shape[shape >= 0].tobytes())
    return [digest128(b"".join(part)) for part in parts]


def duplicate_notes(graphs: NDArray[np.int64], found: NDArray[np.uint64]) -> list[Problem]:
    """Which graphs equal an earlier one, the first of them by name, and how many in all.

    ``graphs`` [n] are ascending numbers of graphs, ``found`` [n, 2] their digests.
    """
    order = np.lexsort((found[:, 1], found[:, 0]))
    is_same = np.zeros(len(order), bool)
    is_same[1:] = (found[order[1:]] == found[order[:-1]]).all(axis=1)
    heads = np.maximum.accumulate(np.where(is_same, 0, np.arange(len(order))))
    first = np.empty(len(order), np.int64)
    first[order] = graphs[order[heads]]
    again = np.flatnonzero(first != graphs)
    notes = [
        Problem(
            graphs=range(graph, graph + 1),
            message=f"equals graph {earlier}, by a digest of all its values",
        )
        for graph, earlier in zip(
            graphs[again[:_MOST]].tolist(), first[again[:_MOST]].tolist(), strict=True
        )
    ]
    if len(again):
        notes.append(Problem(message=f"{len(again):,} of {len(graphs):,} graphs equal another"))
    return notes
