"""`convert`: raw graphs of any format to a dataset, in parallel, resumable, in bounded memory."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardgraph.atomic import directory_lock, full_disk_errno
from shardgraph.convert.assemble import assemble, clean_up
from shardgraph.convert.execute import run_tasks
from shardgraph.convert.function import Function
from shardgraph.convert.job import Job, Task, make_job
from shardgraph.convert.journal import Journal, State, Step
from shardgraph.convert.plan import plan_tasks, tasks_of
from shardgraph.convert.pool import prepare
from shardgraph.convert.progress import Progress
from shardgraph.convert.report import ConversionReport, counted
from shardgraph.convert.source import Partition, Source
from shardgraph.convert.splits import SplitRule, make_splits
from shardgraph.convert.worker import run_task
from shardgraph.errors import ConversionError
from shardgraph.format.layout import MANIFEST_NAME
from shardgraph.format.manifest import Manifest
from shardgraph.format.schema import Schema
from shardgraph.writer import RECORDS, previous_manifest, versions


def convert(
    source: str | os.PathLike[str] | Source,
    out: str | os.PathLike[str],
    /,
    *,
    format: str | None = None,
    workers: int = 1,
    executor: Executor | None = None,
    shard_size: str | int = "128MB",
    compression: str | None = None,
    on_error: str = "error",
    keep_rejected: bool = False,
    overwrite: bool = False,
    resume: bool = True,
    progress: bool = True,
    pre_filter: str | Function | None = None,
    pre_transform: str | Function | None = None,
    keys: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    cast: Mapping[str, str] | None = None,
    varying: Collection[str] = (),
    split: str | Mapping[str, float] | None = None,
    seed: int = 0,
    split_by: str | None = None,
    split_file: str | os.PathLike[str] | None = None,
    **source_options: Any,
) -> ConversionReport:
    r"""Converts raw graphs into a dataset, and says what became of every record.

    Memory is bounded by one shard a worker. The files are the same, byte for byte, for any number
    of workers. A conversion that was interrupted, however it was, goes on at its last finished
    shard when it is called again, and ends in the same files; to get there a source is read past
    the records that are done with, within one partition, without making graphs of them again.

    Args:
        source: A path, ``package.module:function``, or a `Source`.
        out: Directory of the dataset; made if absent.
        format: Name of the source's format, where it is not recognised.
        workers: Number of processes; 1 works in this one.
        executor: Runs the tasks in place of processes of our own: threads, Dask, MPI, Ray. It must
            see the same file system.
        shard_size: Bytes of values after which a new shard begins. A shard also ends with the
            source's partition (or with the run of partitions that fill it).
        compression: None, ``"gzip"``, ``"zstd"`` or ``"lz4"``, as in ``DatasetWriter``.
        on_error: ``"error"`` stops at a record that cannot become a graph; ``"skip"`` leaves it
            out and lists it in ``rejects.jsonl``.
        keep_rejected: Whether that list has the records themselves too.
        overwrite: Whether a dataset that is already there may be replaced.
        resume: Whether to go on with an interrupted conversion; if not, it is thrown away.
        progress: Whether to show a bar on stderr, if that is a terminal.
        pre_filter: Says of each graph whether it is kept: a function or the name of one.
        pre_transform: Applied to each kept graph before it is written.
        keys: Names of the attributes to keep; None: all.
        drop: Names of attributes to leave out.
        cast: Name of an attribute to the dtype it is stored in.
        varying: Names of tensors whose trailing shape may differ from graph to graph.
        split: Named subsets drawn at random, ``"train=0.8,val=0.1,test=0.1"`` or a mapping to
            fractions, for ``dataset.split("train")``. By default the input's own, if it has any; a
            bare name chooses among those of an ``ogb`` folder.
        seed: Of the random split.
        split_by: Name of an attribute, text or a number, that says which subset a graph is of.
        split_file: A JSON file, ``{"train": [0, 2, ...]}``, of records counted from 0, or a text
            file with the name of a subset on the line of each record.
        source_options: Of the source's format.

    Raises:
        ConversionError: if a record cannot become a graph, the disk is full, a worker dies, or
            what was interrupted here was another conversion. Nothing is published.
        FileExistsError: if there is a dataset already and ``overwrite`` is not set.
        LockedError: if another process is converting into ``out``.
        KeyboardInterrupt: at Ctrl-C, saying how to go on.

    Example:
        >>> import tempfile, shardgraph as sg
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "mol.smi").write_text("CCO\nC1CC1\n")
        >>> report = sg.convert(folder / "mol.smi", folder / "mol")
        >>> report.graphs, report.nodes, report.edges
        (2, 6, 10)
    """
    started = time.monotonic()
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if workers > 1 and executor is None:
        prepare()
    job = make_job(
        source,
        out,
        format=format,
        shard_size=shard_size,
        compression=compression,
        on_error=on_error,
        pre_filter=pre_filter,
        pre_transform=pre_transform,
        keys=keys,
        drop=drop,
        cast=cast,
        varying=varying,
        split=split,
        seed=seed,
        split_by=split_by,
        split_file=split_file,
        **source_options,
    )
    with _directory(job.out) as journal:
        conversion = _Conversion(job, journal, overwrite=overwrite, resume=resume)
        with Progress(journal.directory, conversion.num_records, show=progress) as bar:
            manifest = conversion.run(workers, executor, bar=bar, keep=keep_rejected)
    return _report(Path(out), manifest, time.monotonic() - started)


@contextmanager
def _directory(out: Path) -> Iterator[Journal]:
    """The directory, made and locked; removed again if it was made and nothing is in it."""
    made = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        with directory_lock(out):
            yield Journal(out)
    finally:
        if made and not any(path.name != ".lock" for path in out.iterdir()):
            (out / ".lock").unlink(missing_ok=True)
            out.rmdir()


class _Conversion:
    """One run of a conversion in its locked directory."""

    def __init__(self, job: Job, journal: Journal, *, overwrite: bool, resume: bool) -> None:
        self._journal = journal
        partitions = job.source.partitions()
        self._provenance = _provenance(job)
        identity = _identity(self._provenance, partitions)
        if not resume:
            journal.clear()
        state = journal.load()
        published = _generation(job.out)
        if state is None or published != state.generation:
            previous_manifest(job.out, overwrite=overwrite)
        if state is None:
            schema, task_size = plan_tasks(job, partitions)
            state = State(
                identity=identity,
                generation=0 if published is None else published + 1,
                task_size=task_size,
                schema=schema,
            )
            journal.begin(state)
        _check_same(state.identity, identity, journal)
        self._published = published == state.generation
        self._state = state
        self._job = replace(job, schema=state.schema)
        self._tasks = tasks_of(partitions, state.task_size)

    @property
    def num_records(self) -> int | None:
        """Number of records of the input; None where only reading tells."""
        counts = [p.num_records for task in self._tasks for p in task.partitions]
        return None if None in counts else sum(count or 0 for count in counts)

    def run(
        self, workers: int, executor: Executor | None, *, bar: Progress, keep: bool
    ) -> Manifest:
        """Does what is left to do, and returns the manifest of the published dataset."""
        if self._published:  # and stopped just after that
            manifest = Manifest.read(self._job.out)
            clean_up(self._journal, self._job.out, manifest)
            return manifest
        self._journal.remove_temporaries()
        try:
            if not self._journal.complete:
                run_tasks(
                    self._job, self._tasks, workers=workers, executor=executor, advance=bar.advance
                )
            return assemble(
                self._job.out,
                self._state,
                self._tasks,
                redo=self._redo,
                keep_rejected=keep,
                provenance=self._provenance,
                splits=self._splits,
            )
        except BaseException as error:
            self._stop(error)
            raise

    def _redo(self, task: Task, schema: Schema) -> None:
        self._journal.forget(task.number)
        run_task(self._job, task, start=schema)

    def _splits(self, steps: Iterator[Step], num_graphs: int) -> dict[str, Any]:
        return make_splits(self._job.split, self._job.source, steps, num_graphs)

    def _stop(self, error: BaseException) -> None:
        """Tidies up, and raises the error again if it should say how to go on."""
        kept = self._journal.num_shards()
        way_on = "nothing was finished, and nothing is left behind"
        if kept:
            self._journal.remove_temporaries()
            way_on = (
                f"{counted(kept, 'finished shard')} kept in {self._journal.directory}: the same "
                "command goes on from there, with --no-resume it starts over"
            )
        else:
            self._journal.clear()
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted; {way_on}") from None
        if isinstance(error, ConversionError) or full_disk_errno(error) is not None:
            raise ConversionError(f"{error}\n{way_on}") from error


def _generation(out: Path) -> int | None:
    return Manifest.read(out).generation if (out / MANIFEST_NAME).exists() else None


def _provenance(job: Job) -> dict[str, Any]:
    """What the manifest tells of where the graphs are from: the same for any number of workers."""
    return {"source": job.source.provenance(), "conversion": job.options()}


def _identity(provenance: Mapping[str, Any], partitions: Sequence[Partition]) -> dict[str, Any]:
    """What must not differ between a conversion and its continuation, as it comes out of JSON."""
    listing = "\n".join(map(repr, partitions))
    digest = hashlib.sha256(listing.encode(errors="backslashreplace")).hexdigest()
    # Splits of graphs are made when the shards are finished.
    options = {k: v for k, v in provenance["conversion"].items() if k not in SplitRule.LATE}
    doc = {**provenance, "conversion": options, "partitions": digest, "versions": versions()}
    found: dict[str, Any] = json.loads(json.dumps(doc))
    return found


def _check_same(kept: dict[str, Any], now: dict[str, Any], journal: Journal) -> None:
    parts = {
        f"{part} {key}" if key else part: (before, after)
        for part in kept.keys() | now.keys()
        for key, before, after in _entries(kept.get(part), now.get(part))
    }
    if parts:
        if len(parts) > 1:
            parts.pop("partitions", None)  # a digest, which says nothing beside what changed it
        listed = "; ".join(
            f"{name}: {a!r} then, {b!r} now" for name, (a, b) in sorted(parts.items())
        )
        raise ConversionError(
            f"{journal.directory} keeps {counted(journal.num_shards(), 'shard')} of another "
            f"conversion ({listed}). Convert as before to go on with it, or pass resume=False "
            "(--no-resume) to throw it away"
        )


def _entries(kept: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """The entries that differ between two documents."""
    if isinstance(kept, dict) and isinstance(now, dict):
        for key in kept.keys() | now.keys():
            if kept.get(key) != now.get(key):
                yield key, kept.get(key), now.get(key)
    elif kept != now:
        yield "", kept, now


def _report(path: Path, manifest: Manifest, seconds: float) -> ConversionReport:
    records = manifest.provenance[RECORDS]
    return ConversionReport(
        path=path,
        read=records["read"],
        graphs=manifest.num_graphs,
        rejected=records["rejected"],
        filtered=records["filtered"],
        nodes=manifest.num_nodes,
        edges=manifest.num_edges,
        shards=len(manifest.shards),
        raw_nbytes=manifest.raw_nbytes,
        nbytes=manifest.nbytes,
        seconds=seconds,
    )
