"""The journal of a conversion: what is finished already, kept on disk beside the finished shards.

It lives in ``.conversion`` in the dataset's directory until the dataset is published::

    state.json                  what is being converted, and how
    shard-00003-00000.h5        first shard of task 3, whole
    00003-00000.json            what went into it (a step): counts, rejects, schema, statistics
    complete                    all tasks are done, shards are being moved to their final names
    ordered/                    the dataset in the order of the input, where that is to be shuffled

Every file is written whole or not at all, a step after its shard: what can be read is true.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shardgraph.atomic import TEMPORARY, UNFINISHED, file_digest, write_text
from shardgraph.convert.source import Reject
from shardgraph.errors import ConversionError
from shardgraph.format.manifest import ShardEntry
from shardgraph.format.schema import Schema
from shardgraph.format.statistics import Statistics

_STATE = "state.json"
_COMPLETE = "complete"

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is being converted and how; a run with another identity must not go on with it."""

    identity: dict[str, Any]
    generation: int
    task_size: int
    """Number of partitions of the source in a task."""
    schema: Schema | None
    """Of the first graph; None where the only task meets it by itself."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON from which ``from_json`` gives an equal object."""
        return {
            "identity": self.identity,
            "generation": self.generation,
            "task_size": self.task_size,
            "schema": None if self.schema is None else self.schema.to_json(),
        }

    @classmethod
    def from_json(cls, doc: dict[str, Any]) -> State:
        """The inverse of ``to_json``."""
        schema = doc["schema"]
        return cls(
            identity=doc["identity"],
            generation=doc["generation"],
            task_size=doc["task_size"],
            schema=None if schema is None else Schema.from_json(schema),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A run of consecutive records of a task that is done with, and the shard they filled."""

    last: bool
    """Whether the task ends here."""
    read: int
    """Number of records."""
    dropped: tuple[tuple[int, int], ...]
    """Those of them that gave no graph, as half-open [start, stop) runs counted within the step."""
    rejects: tuple[tuple[int, Reject], ...]
    """Why, for those that were not filtered; by number within the step."""
    labels: tuple[tuple[str, int], ...]
    """Runs of graphs of one subset, with their number, where an attribute tells the split."""
    schema: Schema | None
    """As the task knows it by now; None before its first graph."""
    shard: ShardEntry | None
    """Named as in the journal; None if there was no graph left to write."""
    statistics: Statistics | None

    @property
    def graphs(self) -> int:
        """Number of graphs in the shard."""
        return 0 if self.shard is None else self.shard.num_graphs

    @property
    def filtered(self) -> int:
        """Number of records that the filter dropped."""
        return sum(stop - start for start, stop in self.dropped) - len(self.rejects)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON from which ``from_json`` gives an equal object."""
        return {
            "last": self.last,
            "read": self.read,
            "dropped": [list(run) for run in self.dropped],
            "rejects": [[number, dataclasses.asdict(reject)] for number, reject in self.rejects],
            "labels": [list(run) for run in self.labels],
            "schema": None if self.schema is None else self.schema.to_json(),
            "shard": None if self.shard is None else self.shard.to_json(),
            "statistics": None if self.statistics is None else self.statistics.to_json(),
        }

    @classmethod
    def from_json(cls, doc: dict[str, Any]) -> Step:
        """The inverse of ``to_json``."""
        schema, shard, statistics = doc["schema"], doc["shard"], doc["statistics"]
        return cls(
            last=doc["last"],
            read=doc["read"],
            dropped=tuple((start, stop) for start, stop in doc["dropped"]),
            rejects=tuple((number, Reject(**reject)) for number, reject in doc["rejects"]),
            labels=tuple((label, count) for label, count in doc["labels"]),
            schema=None if schema is None else Schema.from_json(schema),
            shard=None if shard is None else ShardEntry.from_json(shard),
            statistics=None if statistics is None else Statistics.from_json(statistics),
        )


class Journal:
    """Reads and writes the journal of the dataset that is being made in a directory."""

    def __init__(self, out: Path) -> None:
        self.directory = out / UNFINISHED

    def load(self) -> State | None:
        """The state of the conversion that was interrupted here; None if there is none."""
        path = self.directory / _STATE
        return _read(path, State.from_json) if path.exists() else None

    def begin(self, state: State) -> None:
        """Starts a journal, over what an older one may have left."""
        self.clear()
        self.directory.mkdir()
        self._write(_STATE, state.to_json())

    def clear(self) -> None:
        """Removes the journal and the shards in it.

        The state goes last: a journal that is half gone is found, and is true as far as it goes.
        """
        (self.directory / _COMPLETE).unlink(missing_ok=True)
        for path in self.directory.glob("*"):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != _STATE:
                path.unlink(missing_ok=True)
        if self.directory.exists():
            shutil.rmtree(self.directory)

    def remove_temporaries(self) -> None:
        """Removes what workers that were killed left, but no step and no shard."""
        for path in self.directory.glob(".*"):
            if TEMPORARY in path.name:
                path.unlink(missing_ok=True)
        for path in self.directory.glob("running-*"):
            path.unlink(missing_ok=True)

    def forget(self, task: int) -> None:
        """Removes the steps of a task, so that it is done anew."""
        for path in self.directory.glob(f"{task:05d}-*.json"):
            path.unlink()

    @property
    def complete(self) -> bool:
        """Whether all tasks are done, so that shards may have their final names already."""
        return (self.directory / _COMPLETE).exists()

    def mark_complete(self) -> None:
        """Says that all tasks are done."""
        write_text(self.directory / _COMPLETE, "")

    @property
    def ordered(self) -> Path:
        """Directory of the dataset in the order of the input, before it is shuffled."""
        return self.directory / "ordered"

    def shard_name(self, task: int, step: int) -> str:
        """File name of a step's shard in the journal."""
        return f"shard-{task:05d}-{step:05d}.h5"

    def add(self, task: int, number: int, step: Step) -> None:
        """Keeps a step, whose shard is on disk already."""
        self._write(_step_name(task, number), step.to_json())

    def steps(self, task: int) -> Iterator[Step]:
        """The steps of a task that are kept, in order."""
        number = 0
        while (path := self.directory / _step_name(task, number)).exists():
            step = _read(path, Step.from_json)
            yield step
            if step.last:
                return
            number += 1

    def intact_steps(self, task: int) -> Iterator[Step]:
        """The steps of a task up to the first whose shard is not there as it was written."""
        for step in self.steps(task):
            if step.shard is not None:
                path = self.directory / step.shard.name
                if not path.exists() or path.stat().st_size != step.shard.nbytes:
                    return
                if file_digest(path) != step.shard.digest:
                    return
            yield step

    def num_shards(self) -> int:
        """Number of finished shards, for messages."""
        return sum(1 for _ in self.directory.rglob("shard-*.h5"))

    def move(self, entry: ShardEntry, target: Path) -> None:
        """Gives a shard its final name, if it has not got it already.

        Raises:
            ConversionError: if it is at neither place.
        """
        source = self.directory / entry.name
        if source.exists():
            source.replace(target)
        elif not target.exists() or target.stat().st_size != entry.nbytes:
            raise ConversionError(
                f"{target} was finished but is gone; pass resume=False (--no-resume) to start over"
            )

    def _write(self, name: str, doc: dict[str, Any]) -> None:
        write_text(self.directory / name, json.dumps(doc, allow_nan=False))


def _read(path: Path, from_json: Callable[[dict[str, Any]], Entry]) -> Entry:
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        raise ConversionError(
            f"{path} is not what a conversion writes ({error!r}); pass resume=False "
            "(--no-resume) to start over"
        ) from error


def _step_name(task: int, step: int) -> str:
    return f"{task:05d}-{step:05d}.json"
