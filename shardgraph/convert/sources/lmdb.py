"""LMDB databases with a record a key: a pickled graph, or a pickled or JSON dict of arrays."""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.convert.build import as_dtype, make_data
from shardgraph.convert.files import natural_key
from shardgraph.convert.restore import is_graph, restore_graph, restore_value
from shardgraph.convert.source import Confidence, Option, Partition, Reject, Source, require, spans
from shardgraph.convert.torchfile import loads_torch
from shardgraph.convert.unpickle import trusted
from shardgraph.errors import FormatError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

# Keys that the writers of such databases use for their own notes.
_NOTES = frozenset({b"length", b"__len__", b"nextid", b"__keys__", b"deleted_keys", b"metadata"})
_KNOWN = {
    "edge_index": ("edge_index",),
    "x": ("x", "node_feat"),
    "edge_attr": ("edge_attr", "edge_feat"),
    "z": ("z", "atomic_numbers", "numbers"),
    "pos": ("pos", "positions", "cart_coords", "coordinates"),
    "cell": ("cell",),
    "energy": ("energy", "total_energy"),
    "forces": ("forces", "force"),
    "y": ("y", "target", "targets"),
    "smiles": ("smiles",),
    "num_nodes": ("num_nodes",),
}
_LARGEST_RECORD = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _LmdbPartition(Partition):
    """Some keys of one database."""

    keys: tuple[bytes, ...]


class LmdbSource(Source):
    """Reads one graph a key: the pickled `Data` as it is, or a `Data` made of a dict.

    Of a dict the usual names are taken (atomic_numbers as ``z``, cart_coords or positions as
    ``pos``, energy, edge_index, x, ...), or those given. Floats become float32, but an energy
    float64 [1]; targets ``y`` float32 [1, T]. Values may be arrays, lists, numbers and text that
    is a number. Keys are read in the order of their numbers, without the writer's own notes
    (length, nextid, ...). A record may be compressed by zlib.

    Pickles are read without running code; see `PygSource`.

    Args:
        spec: The file, its folder (with data.mdb), or a folder of .lmdb files.
        attributes: What to take of a dict, as ATTRIBUTE=KEY; None takes the usual names.
        trust_pickle: Loads any pickle, running whatever code it holds.
    """

    name = "lmdb"
    description = "LMDB with a record a key: a pickled graph, or a dict (pickled or JSON)"
    extra = "lmdb"
    options = (
        Option(
            name="attributes", type=str, many=True, help="of a dict, as ATTRIBUTE=KEY (recognised)"
        ),
        Option(
            name="trust_pickle",
            type=bool,
            help="load any pickle, running whatever code it holds",
            default=False,
        ),
    )

    def __init__(
        self,
        spec: str,
        *,
        attributes: Sequence[str] | None = None,
        trust_pickle: bool = False,
    ) -> None:
        super().__init__(spec)
        require("lmdb", "lmdb", "reading LMDB")
        self._trust = trust_pickle
        self._given: dict[str, str] | None = None
        if attributes is not None:
            pairs = [item.partition("=") for item in attributes]
            if bad := [name for name, equals, _ in pairs if not equals or not name.isidentifier()]:
                raise ValueError(f"attributes are given as ATTRIBUTE=KEY, got {', '.join(bad)}")
            self._given = {name: key for name, _, key in pairs}

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of .lmdb and .mdb files and of folders that hold them."""
        return Confidence.CERTAIN if _databases(Path(spec)) else None

    def partitions(self) -> Sequence[Partition]:
        """Runs of 10,000 keys of each database."""
        found: list[Partition] = []
        for path in self._paths:
            with _opened(path) as transaction:
                keys = [bytes(key) for key in transaction.cursor().iternext(values=False)]
            keys = sorted(set(keys) - _NOTES, key=lambda key: natural_key(key.decode("latin1")))
            found += [
                _LmdbPartition(
                    file=str(path),
                    first=first,
                    num_records=count,
                    keys=tuple(keys[first : first + count]),
                )
                for first, count in spans(len(keys), self.records_per_partition)
            ]
        return found

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:
        """Yields a graph or a `Reject` per key."""
        if not isinstance(partition, _LmdbPartition):
            raise TypeError(f"expected a partition of this source, got {partition!r}")
        with _opened(Path(partition.file)) as transaction:
            for key in partition.keys:
                where = f"{partition.file}, key {key.decode('latin1')!r}"
                try:
                    yield self._graph(bytes(transaction.get(key)), where)
                except (
                    ArithmeticError,
                    LookupError,
                    RecursionError,
                    TypeError,
                    ValueError,
                ) as error:
                    yield Reject(
                        file=partition.file,
                        record=f"key {key.decode('latin1')!r}",
                        reason=f"{type(error).__name__}: {error}",
                    )

    def files(self) -> list[Path]:
        """The files of the databases."""
        return [path / "data.mdb" if path.is_dir() else path for path in self._paths]

    def provenance(self) -> dict[str, Any]:
        """What is taken of a dict, beside the files."""
        return super().provenance() | {
            "options": {
                "attributes": self._given,
                "trust_pickle": self._trust,
            }
        }

    @cached_property
    def _paths(self) -> list[Path]:
        found = _databases(Path(self.spec)) or [Path(self.spec)]
        if not found[0].exists():
            raise FormatError(f"{self.spec} holds no LMDB database")
        return found

    def _graph(self, data: bytes, where: str) -> BaseData:
        value = self._loads(data, where)
        if is_graph(value):
            return restore_graph(value, where)
        if not isinstance(value, Mapping):
            raise FormatError(f"{where}: a {type(value).__name__}, expected a graph or a dict")
        if self._given is None:
            chosen = {
                name: next((key for key in keys if value.get(key) is not None), None)
                for name, keys in _KNOWN.items()
            }
            chosen = {name: key for name, key in chosen.items() if key is not None}
        else:
            chosen = dict(self._given)
        if not chosen:
            raise FormatError(
                f"{where}: none of the usual names among {', '.join(map(str, value))}: name what "
                "is to be read as attributes"
            )
        return make_data(**{name: _value(name, value[key]) for name, key in chosen.items()})

    def _loads(self, data: bytes, where: str) -> Any:
        if data[:1] == b"\x78":
            try:
                data = zlib.decompressobj().decompress(data, _LARGEST_RECORD)
            except zlib.error as error:
                raise FormatError(f"{where} begins like zlib, but: {error}") from error
        if data[:1] in (b"{", b"["):
            return json.loads(data)
        if self._trust:
            return trusted(lambda: pickle.loads(data), where)
        value = loads_torch(data, where)
        return value if is_graph(value) else restore_value(value)


def _value(name: str, value: Any) -> Any:
    """An attribute of a graph from a value of a dict."""
    if name == "smiles":
        return str(value)
    if name == "num_nodes":
        return int(value)
    if hasattr(value, "numpy"):
        return value
    array = _array(value)
    if name == "energy":
        return array.astype(np.float64).reshape(1)
    if name == "y":
        return as_dtype(array, np.float32, name).reshape(1, -1)
    if name == "edge_index":
        return array.reshape(2, -1) if array.shape[:1] == (2,) else array.T
    return as_dtype(array, np.float32, name) if array.dtype.kind == "f" else array


def _array(value: Any) -> NDArray[Any]:
    """Numbers, and text that is numbers, which some writers keep with quotes inside."""
    array = np.asarray(value)
    if array.dtype.kind == "U":
        array = np.char.strip(array, "'\" ").astype(np.float64)
    if array.dtype.kind not in "iufb":
        raise TypeError(f"{type(value).__name__} of {array.dtype} holds no numbers")
    return array


def _databases(path: Path) -> list[Path]:
    """The databases at a path: a file, a folder that is one, or the .lmdb files of a folder."""
    if path.is_dir():
        if (path / "data.mdb").exists():
            return [path]
        found = [item for item in path.iterdir() if item.suffix.lower() == ".lmdb"]
        return sorted(found, key=lambda item: natural_key(item.name))
    return [path] if path.suffix.lower() in (".lmdb", ".mdb") else []


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A read-only transaction; nothing is written beside the database, not even a lock."""
    import lmdb

    try:
        environment = lmdb.open(
            str(path), subdir=path.is_dir(), readonly=True, lock=False, readahead=False
        )
    except lmdb.Error as error:
        raise FormatError(f"{path} cannot be read as LMDB: {error}") from error
    with environment, environment.begin() as transaction:
        yield transaction
