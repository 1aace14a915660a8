"""Structures as ASE reads them, one by one, with all that the file tells of each."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from shardgraph.convert import table as tables
from shardgraph.convert.files import suffix_of
from shardgraph.convert.source import Partition, runs_of_records
from shardgraph.errors import FormatError

# The names under which programs write the forces.
FORCES = ("forces", "force", "atomic_forces", "REF_forces", "dft_forces")


class Frame(NamedTuple):
    """One structure, and all that is told of it."""

    record: int | str
    atoms: Any
    """None where the structure could not be read."""
    told: Mapping[str, Any]
    """Properties by name: of the calculator, the header, the database row."""
    error: str | None


class _Text(NamedTuple):
    line: int
    offset: int
    text: bytes


def _told(atoms: Any) -> dict[str, Any]:
    """Everything that a structure carries besides positions, cell and numbers."""
    told = {name: value for name, value in atoms.arrays.items() if name in FORCES}
    told |= dict(atoms.info)
    if atoms.calc is not None:
        # ASE's readers repeat the energy as the free energy.
        results = atoms.calc.results.items()
        told |= {k: v for k, v in results if v is not None and k != "free_energy"}
    return told


def is_ase_db(path: Path) -> bool:
    """Whether a file is an SQLite database that ASE has made."""
    try:
        with path.open("rb") as file:
            return b"CREATE TABLE systems" in file.read(1 << 16)
    except OSError:
        return False


def xyz_partitions(spec: str, size: int) -> list[Partition]:
    """Runs of `size` frames of an XYZ file, found in one pass over it."""
    return runs_of_records(spec, _xyz_texts(Path(spec), 0, 1), size)


def _xyz_texts(path: Path, offset: int, line: int) -> Iterator[_Text]:
    """Each frame: a count, a comment, and that many atoms."""
    with tables.open_binary(path) as stream:
        stream.seek(offset)
        while first := stream.readline():
            if not first.strip():
                offset, line = offset + len(first), line + 1
                continue
            if not first.strip().isdigit():
                raise FormatError(f"{path}, line {line}: {first!r} is not a number of atoms")
            # No file has more lines than that, and islice counts no further.
            num_lines = min(int(first) + 1, sys.maxsize)
            text = first + b"".join(itertools.islice(stream, num_lines))
            yield _Text(line, offset, text)
            offset, line = offset + len(text), line + text.count(b"\n")


def xyz_frames(path: Path, part: Partition | None) -> Iterator[Frame]:
    """The frames of a partition of an XYZ file, or of the whole file."""
    texts = _xyz_texts(path, part.offset if part else 0, part.line if part else 1)
    for line, _, text in itertools.islice(texts, part.num_records if part else None):
        yield _guarded(line, lambda text=text: _read_xyz(text))  # type: ignore[misc]


def _read_xyz(text: bytes) -> Any:
    from ase.io import read

    first, *rest = text.splitlines()
    if len(rest) <= int(first):  # ASE would go on looking for as many lines as are told
        raise ValueError(
            f"{int(first)} atoms are told, the file ends after {max(0, len(rest) - 1)}"
        )
    return read(io.StringIO(text.decode("utf-8")), index=0, format="extxyz")


def ase_frames(path: Path, ase_format: str | None) -> Iterator[Frame]:
    """All structures of any file that ASE reads; it ends at the first that it cannot read."""
    from ase.io import iread

    frames = iread(str(path), index=":", format=ase_format)
    for number in itertools.count():
        frame = _guarded(f"structure {number}", lambda: next(frames, None))
        if frame.atoms is None and frame.error is None:
            return
        yield frame
        if frame.error is not None:
            return


def _guarded(record: int | str, read: Callable[[], Any]) -> Frame:
    """A structure, or the error that ASE raises for it: it has no class of its own for them."""
    try:
        atoms = read()
    except Exception as error:  # noqa: BLE001 (told as the reason of the reject)
        return Frame(record, None, {}, f"ASE cannot read it: {type(error).__name__}: {error}")
    return Frame(record, atoms, {} if atoms is None else _told(atoms), None)


@contextmanager
def opened(path: Path) -> Iterator[_Database | _Trajectory]:
    """The structures of a database or a trajectory, each found by its number."""
    if suffix_of(path) == ".db":
        from ase.db import connect

        if not is_ase_db(path):
            raise FormatError(f"{path} is not a database of ASE")
        with connect(str(path)) as database:  # type: ignore[no-untyped-call]
            yield _Database(database)
    else:
        from ase.io.trajectory import TrajectoryReader

        try:
            frames = TrajectoryReader(str(path))  # type: ignore[no-untyped-call]
        except Exception as error:
            raise FormatError(f"{path} is not a trajectory of ASE: {error}") from error
        with frames:
            yield _Trajectory(frames)


class _Database:
    """The rows of an ASE database, in the order of their ids."""

    def __init__(self, database: Any) -> None:
        self._db = database
        self._ids = [row.id for row in self._db.select(columns=["id"], sort="id")]

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, i: int) -> Frame:
        row_id = self._ids[i]
        told: dict[str, Any] = {}

        def read() -> Any:
            row = self._db.get(id=row_id)
            told.update(row.data, **row.key_value_pairs)
            return row.toatoms()

        frame = _guarded(f"row {row_id}", read)
        return frame._replace(told=told | dict(frame.told))


class _Trajectory:
    """The frames of an ASE trajectory."""

    def __init__(self, frames: Any) -> None:
        self._frames = frames

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, i: int) -> Frame:
        return _guarded(f"structure {i}", lambda: self._frames[i])
