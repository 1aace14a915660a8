"""One conversion in its locked directory: what is left to do, doing it, and how it can go wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from shardgraph.atomic import full_disk_errno
from shardgraph.convert.assemble import assemble
from shardgraph.convert.edit import Edit
from shardgraph.convert.execute import run_tasks
from shardgraph.convert.job import Job, Task
from shardgraph.convert.journal import Journal, State, Step
from shardgraph.convert.plan import plan_tasks, tasks_of
from shardgraph.convert.progress import Progress
from shardgraph.convert.records import partitions_of
from shardgraph.convert.report import counted
from shardgraph.convert.shuffle import ShuffledSource
from shardgraph.convert.source import Partition
from shardgraph.convert.splits import SplitRule, make_splits
from shardgraph.convert.worker import run_task
from shardgraph.errors import ConversionError
from shardgraph.format.manifest import Manifest
from shardgraph.format.schema import Schema
from shardgraph.writer import (
    next_generation,
    previous_manifest,
    published_generation,
    remove_unpublished,
    versions,
)


class Conversion:
    """One run of a conversion in its locked directory."""

    def __init__(
        self,
        job: Job,
        journal: Journal,
        *,
        overwrite: bool = False,
        resume: bool = True,
        shuffle: int | None = None,
    ) -> None:
        self._journal = journal
        partitions = partitions_of(job.source)
        self._provenance = _provenance(job, shuffle)
        identity = _identity(self._provenance, partitions)
        state = journal.load() if resume else None  # else thrown away when there is a new one
        published = published_generation(job.out)
        if state is not None and published == state.generation and state.identity != identity:
            journal.clear()  # another conversion, which was stopped when it was published already
            state = None
        previous = None
        if state is None or published != state.generation:
            previous = previous_manifest(job.out, overwrite=overwrite)
        if state is None:
            schema, task_size = (None, 1) if shuffle is not None else plan_tasks(job, partitions)
            state = State(
                identity=identity,
                generation=next_generation(job.out, previous),
                task_size=task_size,
                schema=schema,
            )
            journal.begin(state)
        _check_same(state.identity, identity, journal)
        self._published = published == state.generation
        self._state = state
        self._shuffle = shuffle
        self._job = replace(job, schema=state.schema)
        self._tasks = tasks_of(partitions, state.task_size)

    @property
    def num_records(self) -> int | None:
        """Number of records to be gone through; None where only reading tells."""
        counts = [p.num_records for task in self._tasks for p in task.partitions]
        times = 1 if self._shuffle is None else 2
        return None if None in counts else times * sum(count or 0 for count in counts)

    def run(
        self, workers: int, executor: Executor | None, *, bar: Progress, keep: bool
    ) -> Manifest:
        """Does what is left to do, and returns the manifest of the published dataset."""
        if self._published:  # and stopped just after that
            manifest = Manifest.read(self._job.out)
            remove_unpublished(self._job.out, manifest)
            return manifest
        self._journal.remove_temporaries()
        self._say_what_is_there(bar)
        if self._shuffle is not None:
            self._order(self._shuffle, workers, executor, bar=bar, keep=keep)
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
                shuffled=self._shuffle is not None,
            )
        except BaseException as error:
            self._stop(error)
            raise

    def _say_what_is_there(self, bar: Progress) -> None:
        steps = [step for task in self._tasks for step in self._journal.steps(task.number)]
        if not steps or self._journal.complete:
            return
        counts = [partition.num_records for task in self._tasks for partition in task.partitions]
        known = "" if None in counts else f" of {sum(count or 0 for count in counts):,}"
        shards = sum(step.shard is not None for step in steps)
        bar.say(
            f"resuming: {counted(shards, 'finished shard')} there, "
            f"{sum(step.read for step in steps):,}{known} records done"
        )

    def _order(
        self, seed: int, workers: int, executor: Executor | None, *, bar: Progress, keep: bool
    ) -> None:
        """Converts in the order of the input, and sets out to shuffle the dataset that gives."""
        job, out = self._job, self._journal.ordered
        out.mkdir(exist_ok=True)
        if published_generation(out) is None:
            rule = SplitRule() if job.split.fractions else job.split
            first = replace(job, out=out, compression=None, split=rule)
            try:
                Conversion(first, Journal(out)).run(workers, executor, bar=bar, keep=keep)
            except BaseException:
                if not self._journal.num_shards():
                    self._journal.clear()
                raise
        source = ShuffledSource(out, seed=seed, shard_size=job.shard_size)
        rule = job.split if job.split.fractions else SplitRule()
        self._job = replace(job, source=source, edit=Edit(), split=rule, schema=source.schema)
        self._tasks = tasks_of(source.partitions(), 1)

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


def _provenance(job: Job, shuffle: int | None) -> dict[str, Any]:
    """What the manifest tells of where the graphs are from: the same for any number of workers."""
    order = {} if shuffle is None else {"shuffle": shuffle}
    found = {"source": job.source.provenance(), "conversion": {**job.options(), **order}}
    try:
        json.dumps(found, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConversionError(
            f"the provenance of the {job.source.name} source must be JSON: {error}"
        ) from error
    return found


def _identity(provenance: Mapping[str, Any], partitions: Sequence[Partition]) -> dict[str, Any]:
    """What must not differ between a conversion and its continuation, as it comes out of JSON."""
    listing = "\n".join(map(repr, partitions))
    digest = hashlib.sha256(listing.encode(errors="backslashreplace")).hexdigest()
    # Splits of graphs are made when the shards are finished; but those of records in the order of
    # the input, before they are shuffled.
    told = provenance["conversion"]
    late = SplitRule.LATE - ({"split_file"} if "shuffle" in told else set())
    options = {k: v for k, v in told.items() if k not in late}
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
                yield key, *_differing(kept.get(key), now.get(key))
    elif kept != now:
        yield "", kept, now


def _differing(kept: Any, now: Any) -> tuple[Any, Any]:
    """Of two lists of files, those that are not in both."""
    if all(
        isinstance(files, list) and files and isinstance(files[0], dict) for files in (kept, now)
    ):
        only = (
            [file for file in kept if file not in now],
            [file for file in now if file not in kept],
        )
        return only if any(only) else (kept, now)
    return kept, now
