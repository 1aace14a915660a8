"""Which bytes of one shard are not those that were written: its digests, run by run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.atomic import digest64
from shardgraph.errors import CorruptShardError, FormatError
from shardgraph.format import layout
from shardgraph.format.manifest import ShardEntry
from shardgraph.shards import digests
from shardgraph.shards.structure import read_digests
from shardgraph.verify.problem import RESTORE, Problem, of_error
from shardgraph.verify.rows import Ints, Looked


def digest_problems(entry: ShardEntry, looked: Looked | None, *, is_same: bool) -> list[Problem]:
    """Differences between a shard's bytes and their digests, as near to their place as can be.

    ``is_same`` says whether the file as a whole has the manifest's digest.
    """
    problems = [] if looked is None else list(array_problems(looked))
    if not problems and not is_same:
        where = "outside its arrays" if looked is not None else "somewhere"
        message = f"its bytes are not those that were written, {where}; {RESTORE}"
        problems.append(Problem(shard=entry.name, message=message))
    return problems


def array_problems(looked: Looked) -> Iterator[Problem]:
    """Differences between a shard's arrays and the digests that it keeps of them."""
    shard = looked.shard
    try:
        located = read_digests(shard.path, shard.entry, shard.index)
    except FormatError as error:
        yield of_error(error, shard.path)
        return
    stored: dict[str, NDArray[np.uint64]] = {}
    for name, where in located.items():
        if isinstance(where, FormatError):
            yield of_error(where, shard.path, name)
        else:
            stored[name] = shard.view(where)
    unknown = set(looked.bad_axes)
    for axis in shard.index.ptrs:
        found = list(_problems(looked, stored, f"{layout.PTR}/{axis}", shard.ptrs[axis], before=1))
        if found:
            unknown.add(axis)
        yield from found
    for name, source in shard.columns.items():
        axis = shard.axis_of[name]
        if axis not in unknown:  # else it is not known whose rows are whose
            ptr = shard.ptrs.get(axis)
            yield from _problems(looked, stored, f"{layout.COLUMNS}/{name}", source, ptr)
    for group, arrays in ((layout.INC, shard.incs), (layout.SHAPES, shard.shapes)):
        for name, array in arrays.items():
            yield from _problems(looked, stored, f"{group}/{name}", array)


def _problems(
    looked: Looked,
    stored: dict[str, NDArray[np.uint64]],
    path: str,
    array: Any,
    ptr: Ints | None = None,
    *,
    before: int = 0,
) -> Iterator[Problem]:
    """What differs in one array. A row concerns the graph ``before`` it, too."""
    if path not in stored:
        return
    cuts, known = digests.run_cuts(len(array), ptr), stored[path]
    if len(known) != len(cuts) or not digests.is_intact(known):
        message = f"its digests are damaged, so it cannot be checked; {RESTORE}"
        yield looked.problem(message, path)
        return
    for runs in _damaged_runs(array, cuts, known):
        start = max(0, runs.start * digests.RUN - before)
        stop = min(runs.stop * digests.RUN, looked.shard.num_graphs)
        message = f"bytes are not those that were written; {RESTORE}"
        yield looked.problem(message, path, range(start, stop))


def _damaged_runs(array: Any, cuts: list[int], stored: NDArray[np.uint64]) -> Iterator[range]:
    """The runs whose bytes have other digests than those stored, neighbours together."""
    begin = None
    for run, (start, stop) in enumerate(pairwise(cuts)):
        try:
            is_same = digest64(array[start:stop]) == int(stored[run])
        except CorruptShardError:  # a compressed chunk that cannot be read
            is_same = False
        if not is_same and begin is None:
            begin = run
        elif is_same and begin is not None:
            yield range(begin, run)
            begin = None
    if begin is not None:
        yield range(begin, len(cuts) - 1)
