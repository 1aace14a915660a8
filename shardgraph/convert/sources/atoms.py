"""Atomistic structures that ASE reads: extended XYZ, ASE databases and trajectories, CIF, ..."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.convert.build import as_dtype, make_data
from shardgraph.convert.files import FileSource, FilesPartition, suffix_of
from shardgraph.convert.source import Confidence, Option, Partition, Reject, require, spans
from shardgraph.convert.sources._ase import (
    FORCES,
    Frame,
    ase_frames,
    is_ase_db,
    opened,
    xyz_frames,
    xyz_partitions,
)
from shardgraph.errors import ConversionError, FormatError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

_XYZ = frozenset({".xyz", ".extxyz"})
# The names under which programs write the same thing.
_ENERGY = ("energy", "total_energy", "potential_energy", "Energy", "REF_energy", "dft_energy")
_STRESS = ("stress", "REF_stress", "dft_stress")
_TABLE = "id_prop.csv"
_SNIFFED_FRAMES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What every graph has."""

    energy: bool
    forces: bool
    stress: bool
    targets: dict[str, int]
    """Names of what becomes y, and how many numbers each is."""


class AtomsSource(FileSource):
    """Reads one graph a structure: z int64 [N], pos float32 [N, 3] (the file's unit, angstrom).

    ``cell`` float32 [1, 3, 3] and ``pbc`` bool [1, 3] always; ``energy`` float64 [1], as total
    energies need more than float32; ``forces`` float32 [N, 3] and ``stress`` float32 [1, 3, 3],
    whatever name the file has for them, where any of the first 1,000 structures has them (NaN in
    one that has not). Other numbers of a structure become ``y`` float64 [1, T]; `provenance` keeps
    their names. In a folder of CIF files with a table id_prop.csv (name, value, ...; CGCNN's
    layout), ``y`` is taken from it.

    With a cutoff, ``edge_index`` holds each pair of atoms within it in both directions, images of
    periodic cells included, and ``edge_shift`` int64 [E, 3] the image: the vector from source to
    target is ``pos[target] - pos[source] + edge_shift @ cell``. Without one there are no edges.

    Args:
        spec: The file, or a folder of files.
        cutoff: Radius of the neighbour list, in the unit of the positions.
        targets: Properties that become ``y``, arrays flattened; None takes all single numbers,
            an empty list none.
        arrays: Further properties of each atom to keep, such as tags or charges.
        ase_format: Name of ASE's format; None lets ASE tell it from the file.
    """

    name = "atoms"
    description = "structures that ASE reads: (ext)xyz, ASE .db and .traj, CIF; --cutoff adds edges"
    extra = "atoms"
    records_per_partition = 2_000
    suffixes = frozenset({".xyz", ".extxyz", ".traj", ".db", ".cif"})
    options = (
        Option(name="cutoff", type=float, help="radius of the neighbour list (no edges)"),
        Option(name="targets", type=str, many=True, help="properties that become y (all numbers)"),
        Option(name="arrays", type=str, many=True, help="further properties of atoms to keep"),
        Option(name="ase_format", type=str, help="ASE's name of the format (recognised)"),
    )

    def __init__(
        self,
        spec: str,
        *,
        cutoff: float | None = None,
        targets: Sequence[str] | None = None,
        arrays: Sequence[str] | None = None,
        ase_format: str | None = None,
    ) -> None:
        super().__init__(spec)
        require("ase", "atoms", "reading structures")
        if cutoff is not None:
            require("vesin", "atoms", "a neighbour list")
            if not 0 < cutoff < math.inf:
                raise ValueError(f"cutoff must be a positive length, got {cutoff}")
        self._cutoff = cutoff
        self._asked = targets if targets is None else tuple(targets)
        self._arrays = tuple(arrays or ())
        self._format = ase_format

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of the suffixes; a .db only where it is an ASE database."""
        if suffix_of(Path(spec)) == ".db" and not is_ase_db(Path(spec)):
            return None
        return super().recognise(spec)

    @classmethod
    def has_files(cls, folder: Path) -> bool:
        """Whether a folder holds files that ASE reads."""
        return super().has_files(folder) and bool(cls.names(folder))

    @classmethod
    def names(cls, folder: Path) -> list[str]:
        """The files of a folder that ASE reads; databases of others are not."""
        names = super().names(folder)
        return [n for n in names if not n.lower().endswith(".db") or is_ase_db(folder / n)]

    def partitions(self) -> Sequence[Partition]:
        """Runs of 2,000 structures of a file, of 1,000 files of a folder."""
        self._plan  # noqa: B018 (made once, and pickled with the source)
        path, size = Path(self.spec), self.records_per_partition
        if path.is_dir() or self._kind(path) == "other":
            return super().partitions()
        if self._kind(path) == "xyz":
            return xyz_partitions(self.spec, size)
        with opened(path) as frames:
            return [
                Partition(file=self.spec, first=first, num_records=count)
                for first, count in spans(len(frames), size)
            ]

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:
        """Yields a graph or a `Reject` per structure."""
        if isinstance(partition, FilesPartition):
            yield from super().read(partition)
            return
        path = Path(partition.file)
        for frame in self._frames(path, partition):
            yield self._build(path, frame)

    def read_file(self, path: Path) -> Iterator[BaseData | Reject]:
        """Yields the graphs of one file of a folder."""
        for frame in self._frames(path, None):
            yield self._build(path, frame)

    def provenance(self) -> dict[str, Any]:
        """The properties that became y, and the cutoff."""
        return super().provenance() | {
            "targets": list(self._plan.targets),
            "options": {
                "cutoff": self._cutoff,
                "arrays": list(self._arrays),
                "ase_format": self._format,
            },
        }

    def _kind(self, path: Path) -> str:
        suffix = suffix_of(path)
        if self._format is not None:
            return "xyz" if self._format in ("xyz", "extxyz") else "other"
        return "xyz" if suffix in _XYZ else suffix[1:] if suffix in (".db", ".traj") else "other"

    def _frames(self, path: Path, part: Partition | None) -> Iterator[Frame]:
        kind = self._kind(path)
        if kind == "xyz":
            yield from xyz_frames(path, part)
            return
        if kind == "other":
            yield from ase_frames(path, self._format)
            return
        with opened(path) as frames:
            first = part.first if part else 0
            stop = first + (part.num_records or 0) if part else len(frames)
            yield from (frames[i] for i in range(first, stop))

    @cached_property
    def _plan(self) -> _Plan:
        frames = itertools.chain.from_iterable(
            self._readable(path) for path in (self.files() or [Path(self.spec)])
        )
        seen = [frame.told for frame in itertools.islice(frames, _SNIFFED_FRAMES) if frame.atoms]
        sizes: dict[str, int] = {}
        for name, value in (item for told in seen for item in told.items()):
            sizes[name] = max(sizes.get(name, 0), np.size(value) if _is_numeric(value) else 1 << 62)
        if self._asked is not None:
            targets = {name: sizes.get(name, 0) for name in self._asked}
            if bad := [name for name, size in targets.items() if not 0 < size < 1 << 62]:
                raise ValueError(
                    f"{self.spec}: no numbers are named {', '.join(bad)}; the properties are "
                    f"{', '.join(sizes) or 'none'}"
                )
        elif self._table:
            targets = {_TABLE: max(map(len, self._table.values()))}
        else:
            own = {*_ENERGY, *FORCES, *_STRESS, self.split_by}
            targets = {name: 1 for name, size in sizes.items() if size == 1 and name not in own}
        return _Plan(
            energy=any(_first(told, _ENERGY) is not None for told in seen),
            forces=any(_first(told, FORCES) is not None for told in seen),
            stress=any(_first(told, _STRESS) is not None for told in seen),
            targets=targets,
        )

    def _readable(self, path: Path) -> Iterator[Frame]:
        try:
            yield from self._frames(path, None)
        except (FormatError, ConversionError):
            return  # `read` tells of it in its turn

    @cached_property
    def _table(self) -> dict[str, list[float]]:
        """CGCNN's table of targets, by the name of the file without its suffix."""
        path = Path(self.spec) / _TABLE
        if not path.is_file():
            return {}
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
        try:
            return {row[0]: [float(value) for value in row[1:]] for row in rows}
        except ValueError as error:
            raise FormatError(f"{path}: {error}") from error

    def _build(self, path: Path, frame: Frame) -> BaseData | Reject:
        if frame.error is None:
            try:
                return self._graph(path, frame)
            except (ValueError, TypeError, RuntimeError, LookupError) as error:
                frame = frame._replace(error=f"{type(error).__name__}: {error}")
        return Reject(file=str(path), record=frame.record, reason=frame.error or "unreadable")

    def _graph(self, path: Path, frame: Frame) -> BaseData:
        atoms, told, plan = frame.atoms, frame.told, self._plan
        num_atoms = len(atoms)
        values: dict[str, Any] = {}
        if plan.energy:
            values["energy"] = _floats("energy", _first(told, _ENERGY), (1,), np.float64)
        if plan.forces:
            values["forces"] = _floats("forces", _first(told, FORCES), (num_atoms, 3))
        if plan.stress:
            stress = _full_stress(_first(told, _STRESS))
            values["stress"] = _floats("stress", stress, (1, 3, 3))
        if plan.targets:
            if _TABLE in plan.targets:
                told = {**told, _TABLE: self._table.get(path.stem)}
            sizes = plan.targets.items()
            found = [_floats(n, told.get(n), (size,), np.float64) for n, size in sizes]
            values["y"] = np.concatenate(found)[None]
        if self.split_by is not None and self.split_by in told:
            values[self.split_by] = str(told[self.split_by])
        for name in self._arrays:
            array = np.asarray(told[name] if name in told else atoms.arrays[name])
            values[name] = array
            if array.dtype == np.float64:
                values[name] = as_dtype(array, np.float32, name)
        if self._cutoff is not None:
            values |= _edges(atoms, self._cutoff)
        else:
            values["edge_index"] = np.empty((2, 0), dtype=np.int64)
        return make_data(
            z=atoms.numbers.astype(np.int64),
            pos=as_dtype(atoms.positions, np.float32, "pos"),
            cell=as_dtype(atoms.cell[:], np.float32, "cell")[None],
            pbc=np.asarray(atoms.pbc, dtype=bool)[None],
            **values,
        )


def _edges(atoms: Any, cutoff: float) -> dict[str, NDArray[np.int64]]:
    """The neighbour list in both directions, sorted by source, target and image."""
    from vesin import NeighborList  # type: ignore[import-untyped]

    found = NeighborList(cutoff=cutoff, full_list=True).compute(
        points=atoms.positions, box=atoms.cell[:], periodic=atoms.pbc, quantities="ijS"
    )
    source, target, shift = (np.asarray(part, dtype=np.int64) for part in found)
    shift = shift.reshape(-1, 3)
    order = np.lexsort((*shift.T[::-1], target, source))
    return {"edge_index": np.stack([source, target])[:, order], "edge_shift": shift[order]}


def _first(told: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((told[name] for name in names if told.get(name) is not None), None)


def _floats(
    name: str,
    value: Any,
    shape: tuple[int, ...],
    dtype: type[np.float32] | type[np.float64] = np.float32,
) -> NDArray[Any]:
    """The value in that shape, all NaN where there is none."""
    if value is None:
        return np.full(shape, np.nan, dtype=dtype)
    return as_dtype(value, dtype, name).reshape(shape)


def _full_stress(value: Any) -> Any:
    """3 x 3 of the six numbers xx, yy, zz, yz, xz, xy, ASE's order of Voigt."""
    if value is None or np.size(value) != 6:
        return value
    return np.ravel(value)[[0, 5, 4, 5, 1, 3, 4, 3, 2]].reshape(3, 3)


def _is_numeric(value: Any) -> bool:
    try:
        return np.asarray(value).dtype.kind in "iufb"
    except ValueError:  # lists of unequal lengths
        return False
