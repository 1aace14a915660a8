"""What the shards of a dataset add up to, against the manifest's statistics; and the notes."""

from __future__ import annotations

import numpy as np

from shardgraph.format.histogram import Histogram
from shardgraph.format.manifest import Manifest
from shardgraph.verify.duplicates import duplicate_notes
from shardgraph.verify.problem import Problem
from shardgraph.verify.shard import ShardFindings
from shardgraph.verify.values import NonFinite


class Total:
    """Adds up the findings of the shards, in their order."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._first = 0
        self._sizes: dict[str, Histogram] = {}
        self._num_values: dict[str, int] = {}
        self._non_finite: dict[str, NonFinite] = {}
        self._graphs = [np.empty(0, np.int64)]
        self._digests = [np.empty((0, 2), np.uint64)]
        self._all_sound = True

    def add(self, found: ShardFindings, num_graphs: int) -> None:
        """Adds what was found in the next shard."""
        for axis, sizes in found.sizes.items():
            known = self._sizes.get(axis)
            self._sizes[axis] = sizes if known is None else known.merge(sizes)
        for name, count in found.num_values.items():
            self._num_values[name] = self._num_values.get(name, 0) + count
        for name, counts in found.non_finite.items():
            self._non_finite[name] = self._non_finite.get(name, NonFinite()).plus(counts)
        if found.digests is not None:
            self._graphs.append(self._first + np.arange(num_graphs))
            self._digests.append(found.digests)
        self._all_sound &= found.is_sound
        self._first += num_graphs

    def problems(self) -> list[Problem]:
        """What the manifest's statistics say that its shards do not bear out."""
        if not self._all_sound:
            return []
        statistics = self._manifest.statistics
        wrong = []
        if statistics.num_graphs != self._manifest.num_graphs:
            wrong.append("number of graphs")
        for axis, sizes in self._sizes.items():
            if statistics.sizes.get(axis) != sizes:
                wrong.append(f"sizes of {axis!r}")
        for name, column in statistics.columns.items():
            if column.count != self._num_values.get(name, 0):
                wrong.append(f"number of values of {name!r}")
            elif name in self._non_finite and column.nan != self._non_finite[name].nan:
                wrong.append(f"number of NaN of {name!r}")
        if not wrong:
            return []
        message = f"the manifest's statistics do not fit its shards ({', '.join(wrong)})"
        return [Problem(message=f"{message}; `shardgraph repair` counts anew")]

    def notes(self) -> list[Problem]:
        """What is no fault but worth knowing: values that are not finite, and equal graphs."""
        notes = [
            Problem(
                column=name,
                message=f"{found.nan:,} NaN and {found.infinite:,} infinite of {found.values:,} "
                f"values, the first in graph {found.first}",
            )
            for name, found in self._non_finite.items()
            if found.first is not None
        ]
        return notes + duplicate_notes(np.concatenate(self._graphs), np.concatenate(self._digests))
