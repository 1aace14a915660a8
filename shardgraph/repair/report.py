"""What a repair did, or would do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One shard that a repaired dataset has no more."""

    name: str
    num_graphs: int | None
    """None if nothing tells how many."""
    reason: str

    def __str__(self) -> str:
        graphs = "an unknown number of graphs" if self.num_graphs is None else ""
        return f"{self.name}: lost {graphs or f'{self.num_graphs} graphs'}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """What a repair did, or would do. Its text has a line for each thing."""

    path: Path
    changed: bool
    """Whether there was anything to repair."""
    kept: tuple[str, ...]
    """Names of the shards that the dataset has."""
    num_graphs: int
    lost: tuple[Loss, ...] = ()
    remarks: tuple[str, ...] = ()
    """What else changed: splits that are smaller or gone, what was taken on trust."""
    quarantine: Path | None = None
    """The folder that now holds the manifest there was and the broken shards not dropped."""

    def __str__(self) -> str:
        if not self.changed:
            return f"{self.path}: nothing to repair"
        head = f"{self.path}: {self.num_graphs} graphs in {len(self.kept)} whole shards"
        tail = [] if self.quarantine is None else [f"what was taken out is in {self.quarantine}"]
        return "\n".join([head, *map(str, self.lost), *self.remarks, *tail])
