"""Checking a dataset against its manifest: what is wrong, and where, as a list."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shardgraph.atomic import TEMPORARY, UNFINISHED
from shardgraph.errors import FormatError
from shardgraph.format import layout
from shardgraph.format.manifest import Manifest, dataset_directory, is_intact
from shardgraph.verify.problem import RESTORE, Findings, Problem
from shardgraph.verify.shard import LEVELS, ShardFindings, Task, check_shard
from shardgraph.verify.total import Total

__all__ = ["LEVELS", "RESTORE", "Findings", "Problem", "verify"]

_MOST_THREADS = 8


def verify(
    path: str | Path,
    *,
    level: str = "quick",
    duplicates: bool = False,
    workers: int | None = None,
    progress: bool = False,
) -> Findings:
    """All that is wrong with the dataset at ``path``; an empty list if nothing is.

    Nothing that a file holds makes this raise. What is no fault, NaN and infinite values and equal
    graphs, is in the list's ``notes``.

    Args:
        path: A directory with a manifest, or a PyG root whose ``processed/`` has one.
        level: ``"quick"`` looks at the manifest, at which files there are, how long they are, and
            what their headers say; ``"structure"`` also checks that the arrays of every shard fit
            each other, the manifest and their dtypes, and that edges join nodes of their graph;
            ``"full"`` also reads every byte: a flipped bit is reported with its shard, column and
            graphs; and counts NaN and infinite values.
        duplicates: Whether to look for graphs with equal values, at level ``"full"``. Takes 16
            bytes of memory a graph.
        workers: Number of threads; by default one for each core, up to 8. They overlap reading.
        progress: Whether to show a bar on stderr, if that is a terminal.

    Raises:
        ValueError: if there is no such level, or duplicates are asked for at another than
            ``"full"``, or ``workers`` is not positive.

    Example:
        >>> import tempfile, torch, shardgraph as sg
        >>> from torch_geometric.data import Data
        >>> root = tempfile.mkdtemp()
        >>> with sg.DatasetWriter(root) as writer:
        ...     writer.write(Data(x=torch.tensor([[1.0], [torch.nan]])))
        >>> found = sg.verify(root, level="full")
        >>> found, str(found.notes[0])
        ([], "column 'x': 1 NaN and 0 infinite of 2 values, the first in graph 0")
    """
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}; got {level!r}")
    if duplicates and level != "full":
        raise ValueError(f"duplicates are found at level 'full', got level {level!r}")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    directory = dataset_directory(Path(path))
    try:
        manifest = Manifest.read(directory)
    except FormatError as error:
        is_absent = isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError))
        advice = "" if is_absent else "; restore it, or see `shardgraph repair`"
        return Findings([Problem(message=f"{error}{advice}")])
    data = (directory / layout.MANIFEST_NAME).read_bytes()
    problems = [*_manifest_problems(data, manifest), *_stray_files(directory, data, manifest)]
    total = Total(manifest)
    tasks = _tasks(directory, manifest, level, duplicates=duplicates)
    for task, found in _checked(tasks, workers, progress=progress):
        problems += found.problems
        total.add(found, task.entry.num_graphs)
    return Findings(problems + (total.problems() if level != "quick" else []), total.notes())


def _tasks(directory: Path, manifest: Manifest, level: str, *, duplicates: bool) -> list[Task]:
    tasks, first = [], 0
    for entry in manifest.shards:
        task = Task(
            directory=directory,
            entry=entry,
            schema=manifest.schema,
            first=first,
            level=level,
            duplicates=duplicates,
        )
        tasks.append(task)
        first += entry.num_graphs
    return tasks


def _checked(
    tasks: list[Task], workers: int | None, *, progress: bool
) -> Iterator[tuple[Task, ShardFindings]]:
    """Each shard's findings, in order; several shards are looked at at once."""
    advance, close = _bar(sum(task.entry.nbytes for task in tasks), show=progress)
    count = min(workers or min(os.cpu_count() or 1, _MOST_THREADS), max(1, len(tasks)))
    pool = ThreadPoolExecutor(count, thread_name_prefix="shardgraph-verify")
    try:
        for task, found in zip(tasks, pool.map(check_shard, tasks), strict=True):
            advance(task.entry.nbytes)
            yield task, found
    finally:
        pool.shutdown(cancel_futures=True)
        close()


def _bar(total: int, *, show: bool) -> tuple[Callable[[int], object], Callable[[], None]]:
    """What advances a progress bar, and what closes it."""
    if not show:
        return lambda _: None, lambda: None
    from tqdm import tqdm

    bar = tqdm(total=total, unit="B", unit_scale=True, disable=None)
    return bar.update, bar.close


def _manifest_problems(data: bytes, manifest: Manifest) -> Iterator[Problem]:
    if not is_intact(data):
        yield Problem(
            message=f"{layout.MANIFEST_NAME} is not as it was written; if it was edited on "
            "purpose, Manifest.read(path).write(path) signs it anew, else restore it, or see "
            "`shardgraph repair`"
        )
    stated, found = json.loads(data).get("totals"), manifest.to_json()["totals"]
    if stated != found:
        yield Problem(
            message=f"{layout.MANIFEST_NAME} states totals {stated}, its shards add up to {found}; "
            "restore it"
        )


def _stray_files(directory: Path, data: bytes, manifest: Manifest) -> Iterator[Problem]:
    named = {entry.name for entry in manifest.shards}
    # In a manifest that has changed, it may be a shard's name that did.
    advice = "remove it" if is_intact(data) else "keep it until the manifest is restored"
    for file in sorted(directory.iterdir()):
        name = file.name
        if layout.SHARD_PATTERN.fullmatch(name) and name not in named:
            yield Problem(shard=name, message=f"the manifest does not name this shard; {advice}")
        elif (name.startswith(".") and TEMPORARY in name) or name == UNFINISHED:
            yield Problem(
                message=f"{name} was left by a writer that did not end; unless one is at work, "
                "remove it"
            )
