"""What a verification finds: problems, each with its place and what to do, and notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shardgraph.format import layout

RESTORE = "restore the file from a copy, or convert the dataset again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with a dataset, or worth a note. Its text is one line.

    The line says what was found and where, and what to do about it.
    """

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
        return printable(f"{', '.join(where)}: {self.message}" if where else self.message)


def printable(line: str) -> str:
    """A line for a terminal: names come from anywhere, so what would steer it is escaped."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


class Findings(list[Problem]):
    """The problems, none if the dataset is sound; beside them what is no fault, in ``notes``."""

    def __init__(self, problems: Iterable[Problem] = (), notes: Iterable[Problem] = ()) -> None:
        super().__init__(problems)
        self.notes = list(notes)
        """NaN and infinite values by column, and graphs that are there twice."""


def of_error(error: Exception, path: Path, array: str | None = None) -> Problem:
    """The problem that a reader's error tells of, the path said once."""
    text = str(error).removeprefix(f"{path}: ").removeprefix(f"{path} ")
    text = text.replace("check with `shardgraph verify` and restore the file", RESTORE)
    return Problem(
        shard=path.name,
        column=None if array is None else column_of(array),
        message=text if "restore" in text else f"{text}; {RESTORE}",
    )


def column_of(array: str) -> str:
    """What a problem calls an array of a shard: a column by its name, others by their path."""
    return array.removeprefix(f"{layout.COLUMNS}/")
