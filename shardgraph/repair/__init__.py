"""Repairing a dataset: a new manifest over the shards that are whole, and what was lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

from shardgraph.atomic import directory_lock, file_digest, publishing, sync_directory
from shardgraph.errors import FormatError
from shardgraph.format import layout
from shardgraph.format.manifest import Manifest, ShardEntry, dataset_directory
from shardgraph.format.splits import is_split, renumbered
from shardgraph.format.statistics import Statistics
from shardgraph.repair.known import ADVICE, known_of
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
    except where no manifest can be read: then all that fit the schema are taken, in order of name;
    and where its bytes changed: then a shard is also known by its digest.

    Args:
        path: A directory with shards, or a PyG root whose ``processed/`` is one.
        broken: What becomes of broken shards: ``"quarantine"`` moves them to a folder beside the
            shards, ``"drop"`` removes them for good.
        like: Another dataset, or a folder with a copy of the manifest, whose schema is taken unless
            the manifest at ``path`` is as it was written.
        dry_run: Whether only to say what would be done.

    Raises:
        FormatError: if no schema can be had, or no shard is whole; nothing is changed.
        LockedError: if a writer is at work there.
        OSError: if a shard may not be read, for it may be whole; nothing is changed.
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
    directory = _directory(Path(path))
    if not directory.is_dir():
        raise FormatError(f"{directory} is not a directory, so there is nothing to repair")
    if dry_run:
        return _Repair(directory, like).report
    with directory_lock(directory):
        work = _Repair(directory, like)
        return work.carry_out(drop=broken == "drop")


def _directory(root: Path) -> Path:
    """Where the manifest is, or else the shards: in ``root``, or in its ``processed/``."""
    found, processed = dataset_directory(root), root / "processed"
    if not (found / layout.MANIFEST_NAME).exists() and not any(_shard_files(found)):
        return processed if any(_shard_files(processed)) else found
    return found


def _shard_files(directory: Path) -> list[Path]:
    """What has the name of a shard, in order of name."""
    files = directory.iterdir() if directory.is_dir() else ()
    return sorted(file for file in files if layout.SHARD_PATTERN.fullmatch(file.name))


class _Repair:
    """Finds out what is whole; then does what is to be done."""

    def __init__(self, directory: Path, like: str | Path | None) -> None:
        self._directory = directory
        self._known = known_of(directory, like)
        self._kept: list[ShardEntry] = []
        self._counts: list[tuple[int, bool]] = []
        """Number of graphs of each shard that the manifest names, and whether they are kept."""
        self._statistics: list[Statistics] = []
        self._lost: list[Loss] = []
        self._remarks = list(self._known.remarks)
        for name, entry in self._candidates():
            self._look_at(name, entry)
        if not self._kept:
            reasons = "; ".join(map(str, self._lost)) or "there are no shards"
            advice = (
                ""
                if self._known.is_intact or like is not None
                else f". If it is the manifest that is wrong, {ADVICE}"
            )
            raise FormatError(
                f"no shard in {directory} is whole, so nothing is changed: {reasons}{advice}"
            )
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
        if self._known.entries is None:
            yield from ((file.name, None) for file in _shard_files(self._directory))
            return
        found = self._renamed(self._known.entries)
        yield from ((found.get(entry.name, entry.name), entry) for entry in self._known.entries)

    def _renamed(self, entries: Sequence[ShardEntry]) -> dict[str, str]:
        """Of shards that are missing, the files that no entry names and that have their digests.

        For in a manifest that is not as it was written, a name may be what changed.
        """
        missing = [entry for entry in entries if not (self._directory / entry.name).exists()]
        if self._known.is_intact or not missing:
            return {}
        named = {entry.name for entry in entries}
        files = [f for f in _shard_files(self._directory) if f.name not in named and f.is_file()]
        found = {file_digest(file): file.name for file in files}
        return {e.name: found.pop(e.digest) for e in missing if e.digest in found}

    def _look_at(self, name: str, stated: ShardEntry | None) -> None:
        trusted = stated if self._known.is_intact else None
        found = whole_shard(self._directory / name, self._known.schema, trusted)
        if isinstance(found, str):
            count = None if stated is None else stated.num_graphs
            self._counts.append((count or 0, False))
            self._lost.append(Loss(name=name, num_graphs=count, reason=found))
            return
        entry, statistics = found
        self._counts.append((entry.num_graphs, True))
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
        counts, kept = zip(*self._counts, strict=True)
        found = {}
        for name, split in known.splits.items():
            if known.entries is None or not is_split(split, sum(counts)):
                self._remarks.append(f"split {name!r}: lost, since its graphs cannot be told")
                continue
            found[name], size, left = renumbered(split, counts, kept)
            if left < size:
                self._remarks.append(f"split {name!r}: {left} of {size} graphs are left")
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
