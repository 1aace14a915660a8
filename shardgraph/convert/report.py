"""What a conversion did, in numbers and as the summary that the command line prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_MOST_TARGETS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionReport:
    """The account of one conversion: every record read was written, rejected or filtered."""

    path: Path
    """Directory of the dataset."""
    read: int
    """Records of the input."""
    graphs: int
    """Records that became graphs of the dataset."""
    rejected: int
    """Records that could not be read or did not fit; ``rejects.jsonl`` lists them."""
    filtered: int
    """Graphs that ``pre_filter`` dropped."""
    nodes: int
    edges: int
    shards: int
    raw_nbytes: int
    """Bytes of all values in their own dtypes."""
    nbytes: int
    """Bytes of the shards on disk."""
    seconds: float
    """Of this run; a resumed conversion counts only what it still had to do."""
    targets: tuple[str, ...] = ()
    """What the input calls the columns of ``y``, where the source chose among several."""

    def __post_init__(self) -> None:
        accounted = self.graphs + self.rejected + self.filtered
        if self.read != accounted:
            raise ValueError(
                f"{self.read} records were read, but {self.graphs} written + {self.rejected} "
                f"rejected + {self.filtered} filtered make {accounted}"
            )

    def __str__(self) -> str:
        ratio = f" ({self.raw_nbytes / self.nbytes:.1f} x smaller)" if self._shrank else ""
        listed = " (see rejects.jsonl)" if self.rejected else ""
        rate = f"{self.graphs / self.seconds:,.0f} graphs/s" if self.seconds else ""
        return (
            f"{self.path}: {counted(self.graphs, 'graph')} in {counted(self.shards, 'shard')}\n"
            f"  size     {counted(self.nodes, 'node')}, {counted(self.edges, 'edge')}\n"
            f"  bytes    {nbytes_text(self.raw_nbytes)} raw, "
            f"{nbytes_text(self.nbytes)} stored{ratio}\n"
            f"  records  {self.read:,} read = {self.graphs:,} written + {self.rejected:,} "
            f"rejected{listed} + {self.filtered:,} filtered\n"
            f"{self._told_targets}"
            f"  time     {self.seconds:.1f} s, {rate}"
        )

    @property
    def _told_targets(self) -> str:
        return f"  y        {targets_text(self.targets)}\n" if self.targets else ""

    @property
    def _shrank(self) -> bool:
        return self.nbytes > 0 and self.raw_nbytes >= 1.1 * self.nbytes


def counted(count: int, noun: str) -> str:
    """``1 graph``, ``1,128 graphs``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def targets_text(names: Sequence[str]) -> str:
    """What became y: ``2 columns: gap, "energy, eV"``; many are cut off."""
    listed = [f'"{name}"' if "," in name else name for name in names]
    more = ", ..." if len(listed) > _MOST_TARGETS else ""
    return f"{counted(len(listed), 'column')}: {', '.join(listed[:_MOST_TARGETS])}{more}"


def nbytes_text(nbytes: float) -> str:
    """A size for reading: ``9.6 MB``; units are powers of 1000."""
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    for unit in ("kB", "MB", "GB"):
        nbytes /= 1000
        if nbytes < 999.5:
            return f"{nbytes:.3g} {unit}"
    return f"{nbytes / 1000:,.3g} TB"
