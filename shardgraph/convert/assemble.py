"""From finished tasks to a published dataset: final names, list of rejects, manifest."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shardgraph.atomic import publishing, sync_directory
from shardgraph.convert.job import Task
from shardgraph.convert.journal import Journal, State, Step
from shardgraph.errors import ConversionError, SchemaError
from shardgraph.format.manifest import Manifest, ShardEntry
from shardgraph.format.schema import Schema
from shardgraph.format.statistics import Statistics
from shardgraph.writer import RECORDS, REJECTS_NAME, publish, remove_unpublished, shard_name

_REJECTS_DRAFT = "rejects.draft"


@dataclass(slots=True)
class _Total:
    """All steps so far, put together in order."""

    schema: Schema | None = None
    shards: list[ShardEntry] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics.empty)
    records: Counter[str] = field(default_factory=Counter)

    first_reject: str = ""

    def add(self, step: Step) -> None:
        if step.rejects and not self.first_reject:
            self.first_reject = f". The first rejected: {step.rejects[0][1]}"
        self.schema = step.schema if self.schema is None else self.schema
        if step.schema is not None and self.schema is not None:
            self.schema = self.schema.merged(step.schema)
        if step.shard is not None and step.statistics is not None:
            self.shards.append(step.shard)
            self.statistics = self.statistics.merge(step.statistics)
        self.records.update(
            read=step.read,
            written=step.graphs,
            rejected=len(step.rejects),
            filtered=step.filtered,
        )


def assemble(
    out: Path,
    state: State,
    tasks: Sequence[Task],
    *,
    redo: Callable[[Task, Schema], None],
    keep_rejected: bool,
    provenance: Mapping[str, Any],
    splits: Callable[[Iterator[Step], int], Mapping[str, Any]],
    shuffled: bool = False,
) -> Manifest:
    """Publishes the shards of finished tasks; done again after an interruption, it goes on.

    Args:
        out: The dataset's directory.
        state: The state that its journal began with.
        tasks: All tasks, each finished.
        redo: Runs a task anew from a schema. Needed where two tasks met a node or edge type first
            and took it for different things: it is what the earlier one says.
        keep_rejected: Whether the rejected records themselves go into the list.
        provenance: For the manifest.
        splits: Makes the splits, of all steps in order and the number of graphs.
        shuffled: Whether the steps are of graphs of the journal's ordered dataset, which has the
            account of the records and the list of those rejected.

    Raises:
        ConversionError: if there is no graph at all.
    """
    journal = Journal(out)
    total = _Total()
    draft = journal.directory / _REJECTS_DRAFT
    with publishing(draft) as path, path.open("wb") as file:
        for task in tasks:
            for step in _agreed(journal, task, total, redo):
                for line in _reject_lines(step, total.records["read"], keep_rejected):
                    file.write(line)
                total.add(step)
    records = {name: total.records[name] for name in ("read", "written", "rejected", "filtered")}
    if shuffled:
        records = Manifest.read(journal.ordered).provenance[RECORDS]
        if records["rejected"]:
            shutil.copyfile(journal.ordered / REJECTS_NAME, draft)
    if not total.shards:
        raise ConversionError(
            f"none of {records['read']} records became a graph ({records['rejected']} rejected, "
            f"{records['filtered']} filtered); a dataset needs at least one{total.first_reject}"
        )
    steps = (step for task in tasks for step in journal.steps(task.number))
    subsets = splits(steps, sum(entry.num_graphs for entry in total.shards))
    journal.mark_complete()
    names = [shard_name(number, state.generation) for number in range(len(total.shards))]
    for entry, name in zip(total.shards, names, strict=True):
        journal.move(entry, out / name)
    sync_directory(out)
    if records["rejected"]:
        draft.replace(out / REJECTS_NAME)
    manifest = publish(
        out,
        schema=total.schema,
        shards=[replace(e, name=name) for e, name in zip(total.shards, names, strict=True)],
        statistics=total.statistics,
        generation=state.generation,
        provenance={**provenance, RECORDS: records},
        splits=subsets,
    )
    remove_unpublished(out, manifest)
    return manifest


def _agreed(
    journal: Journal, task: Task, total: _Total, redo: Callable[[Task, Schema], None]
) -> Iterator[Step]:
    """The steps of a task, whose schema agrees with that of the tasks before."""
    if total.schema is not None:
        schema = total.schema
        for step in journal.steps(task.number):
            try:
                schema = schema.merged(step.schema or schema)
            except SchemaError:
                redo(task, total.schema)
                break
    yield from journal.steps(task.number)


def _reject_lines(step: Step, first: int, keep: bool) -> Iterator[bytes]:
    """A line of JSON for each reject; ``first`` is the number of the step's first record.

    Records are counted from 0, lines from 1; ``where`` tells the place where a file has no lines.
    """
    for number, reject in step.rejects:
        is_line = isinstance(reject.record, int)
        doc = {
            "record": first + number,
            "file": reject.file,
            "line": reject.record if is_line else None,
            "where": None if is_line else reject.record,
            "reason": reject.reason,
        }
        if keep:
            doc["raw"] = reject.raw
        # A surrogate, from a damaged name, has no UTF-8; escaped it is JSON all the same.
        yield (json.dumps(doc, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
