"""Repairing a dataset: a new manifest over the shards that are whole, and what was lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.atomic import directory_lock, publishing, sync_directory
from shardgraph.errors import FormatError
from shardgraph.format import layout
from shardgraph.format.manifest import Manifest, ShardEntry, dataset_directory
from shardgraph.format.splits import is_split, pack_split, unpack_split
from shardgraph.format.statistics import Statistics
from shardgraph.repair.known import known_of
from shardgraph.repair.report import Loss, RepairReport
from shardgraph.repair.whole import whole_shard

__all__ = ["BROKEN", "Loss", "RepairReport", "repair"]

BROKEN = ("quarantine", "drop")
REPAIRS = "repairs"
"""What the provenance calls the account of repairs."""
QUARANTINE = "quarantine"
"""Names of folders for what a repair took out: this, a dash and a number."""


def repair(
    path: str | Path,
    *,
    broken: str = "quarantine",
    like: str | Path | None = None,
    dry_run: bool = False,
) -> RepairReport:
    """Makes a dataset of the shards at ``path`` that are whole; graphs are numbered anew.

    A shard is whole if it can be opened, fits the schema, its arrays are those that their digests
    were taken of, and its counts are the manifest's. Statistics are taken anew, splits lose the
    graphs that are lost. The new manifest replaces the old at once; the old one is kept, and so are
    broken shards unless they are to be dropped. Shards that no manifest names are left alone,
    except where no manifest can be read: then all that fit ``like`` are taken, in order of name.

    Args:
        path: A directory with shards, or a PyG root whose ``processed/`` is one.
        broken: What becomes of broken shards: ``"quarantine"`` moves them to a folder beside the
            shards, ``"drop"`` removes them for good.
        like: Another dataset, or a copy of the manifest, whose schema is taken if no schema can be
            had from the manifest at ``path``.
        dry_run: Whether only to say what would be done.

    Raises:
        FormatError: if no schema can be had, or no shard is whole; nothing is changed.
        LockedError: if a writer is at work there.
        ValueError: if ``broken`` is neither.

    Example:
        >>> import tempfile, torch, shardgraph as sg
        >>> from pathlib import Path
        >>> from torch_geometric.data import Data
        >>> root = Path(tempfile.mkdtemp())
        >>> with sg.DatasetWriter(root, shard_size=1) as writer:
        ...     for n in (2, 3):
        ...         writer.write(Data(x=torch.ones(n, 4)))
        >>> (root / "shard-00000.h5").unlink()
        >>> report = sg.repair(root)
        >>> report.num_graphs, len(sg.ShardedDataset(root)), report.lost[0].num_graphs
        (1, 1, 1)
    """
    if broken not in BROKEN:
        raise ValueError(f"broken must be one of {', '.join(BROKEN)}; got {broken!r}")
    directory = dataset_directory(Path(path))
    if not directory.is_dir():
        raise FormatError(f"{directory} is not a directory, so there is nothing to repair")
    if dry_run:
        return _Repair(directory, like).report
    with directory_lock(directory):
        work = _Repair(directory, like)
        return work.carry_out(drop=broken == "drop")


class _Repair:
    """Finds out what is whole; then does what is to be done."""

    def __init__(self, directory: Path, like: str | Path | None) -> None:
        self._directory = directory
        self._known = known_of(directory, like)
        self._kept: list[ShardEntry] = []
        self._statistics: list[Statistics] = []
        self._lost: list[Loss] = []
        self._remarks = list(self._known.remarks)
        for name, entry in self._candidates():
            self._look_at(name, entry)
        if not self._kept:
            reasons = "; ".join(map(str, self._lost)) or "there are no shards"
            raise FormatError(f"no shard in {directory} is whole, so nothing is changed: {reasons}")
        self._manifest = self._make_manifest()
        self.report = RepairReport(
            path=directory,
            changed=self._is_needed(),
            kept=tuple(entry.name for entry in self._kept),
            num_graphs=self._manifest.num_graphs,
            lost=tuple(self._lost),
            remarks=tuple(self._remarks),
        )

    def _candidates(self) -> Iterator[tuple[str, ShardEntry | None]]:
        if self._known.entries is not None:
            yield from ((entry.name, entry) for entry in self._known.entries)
            return
        for file in sorted(self._directory.iterdir()):
            if layout.SHARD_PATTERN.fullmatch(file.name):
                yield file.name, None

    def _look_at(self, name: str, stated: ShardEntry | None) -> None:
        trusted = stated if self._known.is_intact else None
        found = whole_shard(self._directory / name, self._known.schema, trusted)
        if isinstance(found, str):
            count = None if stated is None else stated.num_graphs
            self._lost.append(Loss(name=name, num_graphs=count, reason=found))
            return
        entry, statistics = found
        self._kept.append(entry)
        self._statistics.append(statistics)
        if stated is not None and stated != entry:
            self._remarks.append(
                f"{name}: whole and kept, though the manifest says otherwise, or bytes outside its "
                "arrays have changed"
            )

    def _make_manifest(self) -> Manifest:
        known = self._known
        return Manifest(
            schema=known.schema,
            shards=tuple(self._kept),
            statistics=reduce(Statistics.merge, self._statistics),
            splits=self._splits(),
            provenance=known.provenance,
            generation=known.generation,
        )

    def _splits(self) -> dict[str, Any]:
        """The splits with the graphs that are left, by their new numbers."""
        known = self._known
        kept = {entry.name: entry.num_graphs for entry in self._kept}
        entries = known.entries or ()
        counts = [kept.get(entry.name, entry.num_graphs) for entry in entries]
        is_kept = np.repeat([entry.name in kept for entry in entries], counts)
        new: NDArray[np.int64] = np.cumsum(is_kept) - 1
        found = {}
        for name, split in known.splits.items():
            if known.entries is None or not is_split(split, len(is_kept)):
                self._remarks.append(f"split {name!r}: lost, since its graphs cannot be told")
                continue
            ids = unpack_split(split, len(is_kept))
            left = new[ids[is_kept[ids]]]
            found[name] = pack_split(left, int(is_kept.sum()))
            if len(left) < len(ids):
                self._remarks.append(f"split {name!r}: {len(left)} of {len(ids)} graphs are left")
        return found

    def _is_needed(self) -> bool:
        if self._lost or not self._known.is_intact or self._known.entries != tuple(self._kept):
            return True
        stated = Manifest.read(self._directory).statistics
        changed: bool = _counts(stated) != _counts(self._manifest.statistics)
        return changed

    def carry_out(self, *, drop: bool) -> RepairReport:
        """Publishes the new manifest, then takes the broken shards out of the way."""
        if not self.report.changed:
            return self.report
        quarantine = self._make_quarantine()
        manifest = self._directory / layout.MANIFEST_NAME
        if manifest.is_file():
            with publishing(quarantine / layout.MANIFEST_NAME) as copy:
                copy.write_bytes(manifest.read_bytes())
        account = [{"lost": [[loss.name, loss.num_graphs] for loss in self._lost]}]
        earlier = self._manifest.provenance.get(REPAIRS)
        account = [*(earlier if isinstance(earlier, list) else []), *account]
        # From here on the dataset is whole: a crash leaves broken shards that no manifest names.
        self._manifest.with_provenance(**{REPAIRS: account}).write(self._directory)
        for loss in self._lost:
            path = self._directory / loss.name
            if not path.is_symlink() and not path.is_file():
                continue
            if drop:
                path.unlink()
            else:
                path.rename(quarantine / loss.name)
        sync_directory(self._directory)
        sync_directory(quarantine)
        if not any(quarantine.iterdir()):
            quarantine.rmdir()
            return self.report
        return replace(self.report, quarantine=quarantine)

    def _make_quarantine(self) -> Path:
        number = 0
        while (path := self._directory / f"{QUARANTINE}-{number}").exists():
            number += 1
        path.mkdir()
        return path


def _counts(statistics: Statistics) -> Any:
    """The whole numbers of statistics: moments may differ in their last bits between machines."""
    columns = {name: (column.count, column.nan) for name, column in statistics.columns.items()}
    return statistics.num_graphs, statistics.sizes, columns, statistics.labels
