"""Checking a dataset against its manifest: what is wrong, and where, as a list."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardgraph.atomic import TEMPORARY, UNFINISHED, digest64, file_digest
from shardgraph.errors import CorruptShardError, FormatError
from shardgraph.format import layout
from shardgraph.format.histogram import Histogram
from shardgraph.format.manifest import Manifest, ShardEntry, is_intact
from shardgraph.format.schema import Column, Schema, Store
from shardgraph.shards import digests
from shardgraph.shards.open import Shard
from shardgraph.shards.structure import Located, check_size, read_digests
from shardgraph.shards.write import ENDPOINTS_INC, NO_INC, NODES_INC

Ints: TypeAlias = "NDArray[np.int64]"

LEVELS = ("quick", "structure", "full")
RESTORE = "restore the file from a copy, or convert the dataset again"

_STEP = 1 << 20
"""Rows that are looked at at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with a dataset. Its text is one line that says what to do."""

    message: str
    shard: str | None = None
    """File name; None if the dataset as a whole is concerned."""
    column: str | None = None
    """Its name, or the path of another array of the shard, such as ``ptr/node``."""
    graphs: range | None = None
    """Graphs of the dataset that are concerned, where that is known."""

    def __str__(self) -> str:
        where = [] if self.shard is None else [self.shard]
        if self.column is not None:
            where.append(f"column {self.column!r}")
        if self.graphs is not None and len(self.graphs) == 1:
            where.append(f"graph {self.graphs.start}")
        elif self.graphs is not None:
            where.append(f"graphs {self.graphs.start} to {self.graphs.stop - 1}")
        return f"{', '.join(where)}: {self.message}" if where else self.message


def verify(path: str | Path, *, level: str = "quick") -> list[Problem]:
    """What is wrong with the dataset at ``path``; an empty list if nothing is.

    Args:
        path: A directory with a manifest, or a PyG root whose ``processed/`` has one.
        level: ``"quick"`` looks at the manifest and at which files there are, and how long;
            ``"structure"`` also opens every shard, and checks that its arrays fit each other, the
            manifest and their dtypes, and that edges join nodes of their graph; ``"full"`` also
            reads every byte: a flipped bit is reported with its shard, column and graphs.

    Raises:
        ValueError: if there is no such level.

    Example:
        >>> import tempfile, torch, shardgraph as sg
        >>> from torch_geometric.data import Data
        >>> root = tempfile.mkdtemp()
        >>> with sg.DatasetWriter(root) as writer:
        ...     writer.write(Data(x=torch.ones(2, 4)))
        >>> sg.verify(root, level="full")
        []
    """
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}; got {level!r}")
    directory = Path(path)
    if not (directory / layout.MANIFEST_NAME).exists():
        processed = directory / "processed"
        directory = processed if (processed / layout.MANIFEST_NAME).exists() else directory
    try:
        manifest = Manifest.read(directory)
    except FormatError as error:
        return [Problem(message=str(error))]
    problems = [*_manifest_problems(directory, manifest), *_stray_files(directory, manifest)]
    sound = _Shards(directory, manifest)
    for entry in manifest.shards:
        problems += sound.problems_of(entry, level)
    return problems + (sound.statistics_problems() if level != "quick" else [])


def _manifest_problems(directory: Path, manifest: Manifest) -> Iterator[Problem]:
    data = (directory / layout.MANIFEST_NAME).read_bytes()
    if not is_intact(data):
        yield Problem(
            message=f"{layout.MANIFEST_NAME} is not as it was written; if it was edited on "
            "purpose, Manifest.read(path).write(path) signs it anew, else restore it"
        )
    stated, found = json.loads(data).get("totals"), manifest.to_json()["totals"]
    if stated != found:
        yield Problem(
            message=f"{layout.MANIFEST_NAME} states totals {stated}, its shards add up to {found}; "
            "restore it"
        )


def _stray_files(directory: Path, manifest: Manifest) -> Iterator[Problem]:
    named = {entry.name for entry in manifest.shards}
    for file in sorted(directory.iterdir()):
        name = file.name
        if layout.SHARD_PATTERN.fullmatch(name) and name not in named:
            yield Problem(shard=name, message="the manifest does not name this shard; remove it")
        elif (name.startswith(".") and TEMPORARY in name) or name == UNFINISHED:
            yield Problem(
                message=f"{name} was left by a writer that did not end; unless one is at work, "
                "remove it"
            )


class _Shards:
    """Checks one shard after the other, and what they add up to."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory = directory
        self._manifest = manifest
        self._first = 0
        self._sizes: dict[str, Histogram] = {}
        self._values: dict[str, int] = {}
        self._all_read = True

    def problems_of(self, entry: ShardEntry, level: str) -> list[Problem]:
        """What is wrong with the next shard."""
        path, first = self._directory / entry.name, self._first
        self._first += entry.num_graphs
        try:
            check_size(path, entry)
        except FormatError as error:
            self._all_read = False
            return [_of_error(error, path)]
        if level == "quick":
            return []
        problems, shard = self._structure(path, entry, first)
        if level == "full":
            problems += _digest_problems(path, entry, shard, first)
        if shard is not None:
            shard.close()
        return problems

    def _structure(
        self, path: Path, entry: ShardEntry, first: int
    ) -> tuple[list[Problem], Shard | None]:
        shard = None
        try:
            shard = Shard(path, entry, self._manifest.schema, strict=True)
            shard.check_rows()
            self._count(shard)
            return list(_content_problems(shard, self._manifest.schema, first)), shard
        except FormatError as error:
            self._all_read = False
            return [_of_error(error, path)], shard

    def _count(self, shard: Shard) -> None:
        for axis in self._manifest.schema.size_axes:
            found = Histogram.of(np.diff(shard.ptrs[axis]))
            known = self._sizes.get(axis)
            self._sizes[axis] = found if known is None else known.merge(found)
        for name, source in shard.columns.items():
            size = int(np.prod(source.shape, dtype=np.int64))
            self._values[name] = self._values.get(name, 0) + size

    def statistics_problems(self) -> list[Problem]:
        """What the manifest's statistics say that its shards do not bear out."""
        if not self._all_read:
            return []
        statistics = self._manifest.statistics
        wrong = []
        if statistics.num_graphs != self._manifest.num_graphs:
            wrong.append("number of graphs")
        for axis, sizes in self._sizes.items():
            if statistics.sizes.get(axis) != sizes:
                wrong.append(f"sizes of {axis!r}")
        for name, column in statistics.columns.items():
            if column.count != self._values.get(name, 0):
                wrong.append(f"number of values of {name!r}")
        if not wrong:
            return []
        message = f"the manifest's statistics do not fit its shards ({', '.join(wrong)})"
        return [Problem(message=f"{message}; convert the dataset again")]


def _of_error(error: FormatError, path: Path) -> Problem:
    """The problem that a reader's error tells of, the path said once."""
    text = str(error).removeprefix(f"{path}: ").removeprefix(f"{path} ")
    text = text.replace("check with `shardgraph verify` and restore the file", RESTORE)
    return Problem(shard=path.name, message=text if "restore" in text else f"{text}; {RESTORE}")


# Structure ---------------------------------------------------------------------------------------


def _content_problems(shard: Shard, schema: Schema, first: int) -> Iterator[Problem]:
    yield from _total_problems(shard, schema)
    for store in schema.stores:
        for attribute in store.attributes:
            for column in attribute.columns():
                if column.name in shard.columns:
                    yield from _range_problems(shard, column)
            if attribute.name == "edge_index" and attribute.kind in {"tensor", "edge_index"}:
                column = next(attribute.columns())
                if column.name in shard.columns and column.row_shape == (2,):
                    yield from _edge_problems(shard, column, store, first)


def _total_problems(shard: Shard, schema: Schema) -> Iterator[Problem]:
    nodes = [str(store.node_axis) for store in schema.node_stores]
    edges = [str(store.edge_axis) for store in schema.edge_stores]
    raw = 0
    for name, source in shard.columns.items():
        itemsize = np.dtype(layout.STORAGE[schema.columns[name].dtype]).itemsize
        raw += int(np.prod(source.shape, dtype=np.int64)) * itemsize
    found = {
        "num_nodes": sum(int(shard.ptrs[axis][-1]) for axis in nodes),
        "num_edges": sum(int(shard.ptrs[axis][-1]) for axis in edges),
        "raw_nbytes": raw,
    }
    for what, value in found.items():
        stated = getattr(shard.entry, what)
        if value != stated:
            yield Problem(
                shard=shard.path.name,
                message=f"its {what} is {value}, the manifest says {stated}; {RESTORE}",
            )


def _range_problems(shard: Shard, column: Column) -> Iterator[Problem]:
    """Values that the logical dtype cannot hold though the stored one can."""
    source = shard.columns[column.name]
    if column.dtype == "bool":
        low, high = 0, 1
    elif column.dtype in layout.INTEGERS and not np.can_cast(source.dtype, column.dtype):
        info = np.iinfo(column.dtype)
        low, high = int(info.min), int(info.max)
    else:
        return
    for start in range(0, len(source), _STEP):
        block = source[start : start + _STEP]
        if block.size and not low <= int(block.min()) <= int(block.max()) <= high:
            yield Problem(
                shard=shard.path.name,
                column=column.name,
                message=f"has values that {column.dtype} cannot hold; {RESTORE}",
            )
            return


def _edge_problems(shard: Shard, column: Column, store: Store, first: int) -> Iterator[Problem]:
    """Edges that do not join nodes of their own graph."""
    limits = _node_counts(shard, column, store)
    if limits is None:
        return
    source, ptr = shard.columns[column.name], _ptr(shard, column.name)
    count, where, example = 0, -1, 0
    for start in range(0, len(source), _STEP):
        block = source[start : start + _STEP]
        stop = start + len(block)
        begin = int(np.searchsorted(ptr, start, side="right")) - 1
        end = int(np.searchsorted(ptr, stop, side="left"))
        lengths = np.diff(ptr[begin : end + 1].clip(start, stop))
        most = np.repeat(limits[begin:end], lengths, axis=0)
        wrong = (block < 0) | (block >= most)
        if count == 0 and wrong.any():
            row, end_of_edge = np.argwhere(wrong)[0]
            where = begin + int(np.searchsorted(np.cumsum(lengths), row, side="right"))
            example = int(block[row, end_of_edge])
        count += int(wrong.any(axis=1).sum())
    if count:
        yield Problem(
            shard=shard.path.name,
            column=column.name,
            graphs=range(first + where, first + where + 1),
            message=f"an edge joins node {example}, the graph has {limits[where].max()} nodes "
            f"({count} such edges in this shard); correct the raw graphs and convert again",
        )


def _node_counts(shard: Shard, column: Column, store: Store) -> Ints | None:
    """Number of nodes that each graph's edges may lead from and to: int64 [G, 1 or 2].

    That is what PyG adds to the next graph's edges. None if nothing is added.
    """
    rule = shard.inc_of[column.name]
    if rule == NO_INC:
        return None
    if rule == NODES_INC:
        return np.diff(shard.ptrs["node"])[:, None]
    if rule == ENDPOINTS_INC:
        return np.stack([np.diff(shard.ptrs[axis]) for axis in store.endpoint_axes], axis=1)
    limits = shard.incs[column.name].reshape(shard.num_graphs, -1)
    return limits if limits.shape[1] in {1, 2} else None


def _ptr(shard: Shard, name: str) -> Ints:
    axis = shard.axis_of[name]
    if axis == layout.GRAPH_AXIS:
        return np.arange(shard.num_graphs + 1)
    return shard.ptrs[axis]


# Every byte --------------------------------------------------------------------------------------


def _digest_problems(
    path: Path, entry: ShardEntry, shard: Shard | None, first: int
) -> list[Problem]:
    """Differences between a shard's bytes and their digests, as near to their place as can be."""
    problems: list[Problem] = []
    is_same = file_digest(path) == entry.digest
    if shard is not None:
        try:
            located = read_digests(path, entry, shard.index)
            problems = list(_array_problems(shard, located, first))
        except FormatError as error:
            problems = [_of_error(error, path)]
    if not problems and not is_same:
        where = "outside its arrays" if shard is not None else "somewhere"
        problems.append(
            Problem(
                shard=entry.name,
                message=f"its bytes are not those that were written, {where}; {RESTORE}",
            )
        )
    return problems


def _array_problems(shard: Shard, located: dict[str, Located], first: int) -> Iterator[Problem]:
    check = _DigestCheck(shard, located, first)
    broken = set()
    for axis in shard.index.ptrs:
        found = list(check.problems(f"{layout.PTR}/{axis}", shard.ptrs[axis], before=1))
        if found:
            broken.add(axis)
        yield from found
    for name, source in shard.columns.items():
        axis = shard.axis_of[name]
        if axis not in broken:  # else it is not known whose rows are whose
            yield from check.problems(f"{layout.COLUMNS}/{name}", source, shard.ptrs.get(axis))
    for group, arrays in ((layout.INC, shard.incs), (layout.SHAPES, shard.shapes)):
        for name, array in arrays.items():
            yield from check.problems(f"{group}/{name}", array)


class _DigestCheck:
    """Compares a shard's arrays with their digests."""

    def __init__(self, shard: Shard, located: dict[str, Located], first: int) -> None:
        self._shard = shard
        self._located = located
        self._first = first

    def problems(
        self, path: str, array: Any, ptr: Ints | None = None, *, before: int = 0
    ) -> Iterator[Problem]:
        """What differs in one array. A row concerns the graph ``before`` it, too."""
        cuts = digests.run_cuts(len(array), ptr)
        stored = self._shard.view(self._located[path])
        name, column = self._shard.path.name, path.removeprefix(f"{layout.COLUMNS}/")
        if len(stored) != len(cuts) or not digests.is_intact(stored):
            message = f"its digests are damaged, so it cannot be checked; {RESTORE}"
            yield Problem(shard=name, column=column, message=message)
            return
        for runs in _damaged_runs(array, cuts, stored):
            start = max(0, runs.start * digests.RUN - before)
            stop = min(runs.stop * digests.RUN, self._shard.num_graphs)
            yield Problem(
                shard=name,
                column=column,
                graphs=range(self._first + start, self._first + stop),
                message=f"bytes are not those that were written; {RESTORE}",
            )


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
