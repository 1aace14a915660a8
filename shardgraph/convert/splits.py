"""Named subsets of the dataset being made: random, by attribute, from a file, or the input's."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shardgraph.convert.journal import Step
from shardgraph.convert.source import Source
from shardgraph.errors import ConversionError
from shardgraph.format.splits import pack_split
from shardgraph.sampling.permute import key, permutation

_STREAM = 16  # of random numbers: none of those that training draws from

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """How the dataset is split; at most one way. With none, as the input says, if it does."""

    fractions: Mapping[str, float] | None = None
    """Random: the share of each subset. What they leave is in none."""
    seed: int = 0
    by: str | None = None
    """Name of an attribute, text or a number, whose value is the name of the graph's subset.

    With an empty one the graph is in none.
    """
    file: Path | None = None
    """JSON, ``{"train": [record, ...]}``, or text with the name of a subset for each record."""
    LATE: ClassVar[frozenset[str]] = frozenset({"split", "seed", "split_file"})
    """Entries of the description that decide nothing before all shards are finished."""

    def __post_init__(self) -> None:
        if sum(way is not None for way in (self.fractions, self.by, self.file)) > 1:
            raise ValueError(
                "split by one of fractions, an attribute (split_by) or a file, not two"
            )
        shares = self.fractions or {}
        if not all(0 < share <= 1 for share in shares.values()) or sum(shares.values()) > 1 + 1e-9:
            raise ValueError(
                f"the fractions of a split must be positive and make at most 1, got {dict(shares)}"
            )
        if self.file is not None and not self.file.is_file():
            raise FileNotFoundError(f"no such file: {self.file}")
        if self.seed < 0:
            raise ValueError(f"the seed of a split must not be negative, got {self.seed}")
        if self.file is not None:
            _read(self.file)  # what is wrong with it is told before any work

    @classmethod
    def of(
        cls,
        split: str | Mapping[str, float] | None,
        seed: int,
        by: str | None,
        file: str | os.PathLike[str] | None,
    ) -> SplitRule:
        """The rule that arguments of ``convert`` describe."""
        if isinstance(split, str):
            split = parse_fractions(split)
        return cls(fractions=split, seed=seed, by=by, file=None if file is None else Path(file))

    def describe(self) -> dict[str, Any]:
        """The rule as JSON; nothing if the input's own split is taken."""
        if self.fractions is not None:
            return {"split": dict(self.fractions), "seed": self.seed}
        if self.file is not None:
            digest = hashlib.sha256(self.file.read_bytes()).hexdigest()
            return {"split_file": {"name": self.file.name, "sha256": digest}}
        return {} if self.by is None else {"split_by": self.by}


def parse_fractions(text: str) -> dict[str, float]:
    """The fractions in ``train=0.8,val=0.1,test=0.1``.

    Raises:
        ValueError: if the text is not written so.
    """
    found: dict[str, float] = {}
    for word in text.split(","):
        name, _, share = (part.strip() for part in word.partition("="))
        if name in found:
            raise ValueError(f"the split names {name!r} twice: {text!r}")
        try:
            found[name] = float(share)
        except ValueError:
            name = ""
        if not name:
            raise ValueError(f"write a split as train=0.8,val=0.1,test=0.1, got {text!r}") from None
    return found


def make_splits(
    rule: SplitRule, source: Source, steps: Iterable[Step], num_graphs: int
) -> dict[str, Any]:
    """The splits for the manifest: name to packed subset.

    Args:
        rule: How to split.
        source: The input, which may have a split of its own.
        steps: All steps of the conversion, in order.
        num_graphs: Number of graphs written.

    Raises:
        ConversionError: if a record is named that the input has not.
    """
    if rule.fractions is not None:
        found = random_split(rule.fractions, num_graphs, rule.seed)
    elif rule.by is not None:
        found = _by_label(steps)
    else:
        records = source.splits() if rule.file is None else _read(rule.file)
        found = _of_records(records, steps) if records else {}
    return {name: pack_split(ids, num_graphs) for name, ids in found.items()}


def random_split(fractions: Mapping[str, float], num_graphs: int, seed: int) -> dict[str, Ids]:
    """Disjoint random subsets of these shares; if they make 1, every graph is in one."""
    order = permutation(num_graphs, key(seed, 0, _STREAM))
    ends = np.rint(np.cumsum(list(fractions.values())) * num_graphs).astype(np.int64)
    parts = np.split(order, np.minimum(ends, num_graphs))
    return dict(zip(fractions, parts, strict=False))


def _by_label(steps: Iterable[Step]) -> dict[str, Ids]:
    parts: dict[str, list[Ids]] = {}
    start = 0
    for label, count in (run for step in steps for run in step.labels):
        if label:  # an empty one puts a graph in none
            parts.setdefault(label, []).append(np.arange(start, start + count, dtype=np.int64))
        start += count
    return {label: np.concatenate(runs) for label, runs in parts.items()}


def _read(path: Path) -> dict[str, Ids]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".json":
            return {name: _numbers(value) for name, value in json.loads(text).items()}
    except UnicodeDecodeError as error:
        raise ConversionError(f"{path} is not text in UTF-8: {error}") from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ConversionError(
            f'{path} must hold names of subsets with numbers of records, {{"train": [0, 2]}}: '
            f"{error}"
        ) from error
    found: dict[str, list[int]] = {}
    for record, line in enumerate(text.splitlines()):
        if name := line.strip():
            found.setdefault(name, []).append(record)
    return {name: np.array(numbers, np.int64) for name, numbers in found.items()}


def _numbers(value: Any) -> Ids:
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise TypeError(f"{str(value)[:100]} is not a list of integers")
    return np.array(value, np.int64)


def _of_records(splits: Mapping[str, Ids], steps: Iterable[Step]) -> dict[str, Ids]:
    """Subsets of records, as subsets of the graphs that the records became."""
    num_records, runs = 0, [np.empty(0, np.int64)]
    for step in steps:
        runs += [np.arange(*run, dtype=np.int64) + num_records for run in step.dropped]
        num_records += step.read
    dropped = np.concatenate(runs)
    found = {}
    for name, given in splits.items():
        records = np.asarray(given)
        if len(records) and records.dtype.kind not in "iu":
            raise ConversionError(f"split {name!r} holds {records.dtype}, not numbers of records")
        if len(records) and not (records.min() >= 0 and records.max() < num_records):
            raise ConversionError(
                f"split {name!r} has records {records.min()} to {records.max()}, but there are "
                f"{num_records}, counted from 0"
            )
        before = np.searchsorted(dropped, records)
        kept = ~np.isin(records, dropped)
        found[name] = (records - before)[kept]
    return found
