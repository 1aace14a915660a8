"""Writing a dataset: graphs in, shards and a manifest out, whole or not at all."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
import torch
import torch_geometric
from torch_geometric.data.data import BaseData

from shardgraph.atomic import TEMPORARY, UNFINISHED, directory_lock, needing_room
from shardgraph.collate import GraphEncoder
from shardgraph.errors import FormatError
from shardgraph.format.layout import MANIFEST_NAME, SHARD_PATTERN, generation_of, parse_size
from shardgraph.format.manifest import Manifest, ShardEntry, parse_json
from shardgraph.format.schema import Schema
from shardgraph.format.statistics import Statistics
from shardgraph.shards.write import GraphRecord, ShardBuffer, compression_options

REJECTS_NAME = "rejects.jsonl"
"""The list of records that a conversion skipped, in the dataset's directory."""

RECORDS = "records"
"""What the provenance calls a conversion's account of the input's records."""


class ShardSink:
    """Encodes graphs and writes them as whole shards; memory is bounded by one shard.

    ``name`` gives the file name of shard 0, 1, ...; a shard ends when its values reach
    ``shard_size`` bytes.
    """

    def __init__(
        self,
        directory: Path,
        name: Any,
        *,
        shard_size: int,
        compression: str | None = None,
        varying: Collection[str] = (),
        schema: Schema | None = None,
        first_graph: int = 0,
    ) -> None:
        self._directory = directory
        self._name = name
        self._shard_size = shard_size
        self._compression = compression
        self._encoder = GraphEncoder(schema, varying=frozenset(varying))
        self._buffer = ShardBuffer()
        self.shards: list[tuple[ShardEntry, Statistics]] = []
        self.num_graphs = first_graph

    @property
    def schema(self) -> Schema | None:
        """What the graphs so far look like; None before the first."""
        return self._encoder.schema

    def write(self, data: BaseData) -> None:
        """Adds one graph.

        Raises:
            SchemaError: if it does not fit; nothing of it is kept, and writing may go on.
        """
        record = self._encoder.encode(data, self.num_graphs)
        schema = self._encoder.schema
        if schema is None:
            raise AssertionError("the encoder has met a graph")
        self._add(record, schema, self._encoder.rules)

    def write_encoded(self, record: GraphRecord, rules: Mapping[str, str | None]) -> None:
        """Adds one graph that is encoded already, as the schema given at the start says.

        ``rules`` gives each column's increment rule, None where the record's cells say it.
        """
        schema = self._encoder.schema
        if schema is None:
            raise ValueError("a sink of encoded graphs needs their schema")
        self._add(record, schema, rules)

    def _add(self, record: GraphRecord, schema: Schema, rules: Mapping[str, str | None]) -> None:
        self._buffer.append(record, schema.columns, rules)
        self.num_graphs += 1
        if self._buffer.nbytes >= self._shard_size:
            self.flush()

    def flush(self) -> None:
        """Ends the current shard, if it has any graph."""
        schema = self._encoder.schema
        if self._buffer.num_graphs and schema is not None:
            path = self._directory / self._name(len(self.shards))
            with needing_room(path, self._buffer.room(schema)):
                shard = self._buffer.write(path, schema, compression=self._compression)
            self.shards.append(shard)

    def discard(self) -> None:
        """Removes the shards written so far, and one whose writing was cut off at its very end."""
        for number in range(len(self.shards) + 1):
            (self._directory / self._name(number)).unlink(missing_ok=True)


class DatasetWriter:
    """Writes a dataset graph by graph; leaving the ``with`` block publishes it.

    Memory is bounded by one shard. The graphs' values are copied, so an object may be changed and
    written again. An exception in the block publishes nothing and leaves nothing behind; an
    existing dataset stays as it is until the new one is whole.

    Args:
        path: Directory of the dataset; made if absent.
        shard_size: Bytes of values after which a new shard begins, such as ``"128MB"``.
        compression: None (default, fastest to read), ``"gzip"``, or ``"zstd"`` and ``"lz4"`` with
            hdf5plugin: read 3 to 6 times slower; each process that reads keeps up to 256 MB of a
            dataset decoded.
        overwrite: Whether a dataset that is already there may be replaced.
        varying: Names of tensors whose trailing shape may differ from graph to graph.
        provenance: JSON-able entries to keep in the manifest.

    Raises:
        FileExistsError: if there is a dataset already and ``overwrite`` is not set.
        LockedError: if another process is writing there.
        ValueError: if an argument is wrong, or JSON cannot hold the provenance.

    Example:
        >>> import tempfile, torch, shardgraph as sg
        >>> from torch_geometric.data import Data
        >>> root = tempfile.mkdtemp()
        >>> with sg.DatasetWriter(root) as writer:
        ...     for n in (2, 3):
        ...         writer.write(Data(x=torch.ones(n, 4), edge_index=torch.tensor([[0], [1]])))
        >>> sg.ShardedDataset(root)[1]
        Data(x=[3, 4], edge_index=[2, 1])
    """

    def __init__(
        self,
        path: str | Path,
        *,
        shard_size: str | int = "128MB",
        compression: str | None = None,
        overwrite: bool = False,
        varying: Collection[str] = (),
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        size = parse_size(shard_size)
        if isinstance(varying, str):
            raise TypeError(f"varying must be a list of names, got the text {varying!r}")
        if compression is not None:
            compression_options(compression)
        self.path = Path(path)
        self._provenance = _json_of(provenance or {})
        with ExitStack() as stack:
            stack.enter_context(directory_lock(self.path))
            previous = previous_manifest(self.path, overwrite=overwrite)
            generation = next_generation(self.path, previous)
            if previous is not None or not (self.path / MANIFEST_NAME).exists():
                remove_unpublished(self.path, previous)
            self._held = stack.pop_all()
        self._generation = generation
        self._sink = ShardSink(
            self.path,
            lambda number: shard_name(number, generation),
            shard_size=size,
            compression=compression,
            varying=varying,
        )
        self._closed = False

    @property
    def num_graphs(self) -> int:
        """Number of graphs written so far."""
        return self._sink.num_graphs

    def write(self, data: BaseData) -> None:
        """Adds one ``Data`` or ``HeteroData``.

        The first graph fixes the schema; node and edge types may appear later.

        Raises:
            SchemaError: if the graph does not fit; it is not added, and writing may go on.
        """
        if self._closed:
            raise ValueError(f"the writer of {self.path} is closed")
        self._sink.write(data)

    def close(self) -> None:
        """Publishes the dataset. Closing again does nothing.

        Raises:
            ValueError: if no graph was written; an empty dataset has no schema.
        """
        if self._closed:
            return
        if self._sink.num_graphs == 0:
            self.abort()
            raise ValueError(f"no graph was written to {self.path}; nothing is published")
        try:
            self._sink.flush()
            publish(
                self.path,
                schema=self._sink.schema,
                shards=[entry for entry, _ in self._sink.shards],
                statistics=reduce(Statistics.merge, (s for _, s in self._sink.shards)),
                generation=self._generation,
                provenance=self._provenance,
            )
        except BaseException:
            self.abort()
            raise
        self._closed = True
        with self._held:
            remove_unpublished(self.path, Manifest.read(self.path))

    def abort(self) -> None:
        """Gives up: removes what was written, leaves what was there before."""
        if self._closed:
            return
        self._closed = True
        with self._held:
            self._sink.discard()

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def _json_of(provenance: Mapping[str, Any]) -> Any:
    """A copy as the manifest will hold it: else what it cannot hold would show at the very end."""
    try:
        return parse_json(json.dumps(dict(provenance), allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"provenance must be what a JSON object can hold: {error}") from error


def shard_name(number: int, generation: int) -> str:
    """File name of a shard. Later generations differ, so that old and new can stand together."""
    return f"shard-{number:05d}.h5" if generation == 0 else f"shard-{number:05d}-{generation}.h5"


def previous_manifest(path: Path, *, overwrite: bool) -> Manifest | None:
    """The manifest of the dataset that is there already; None if there is none to read.

    Raises:
        FileExistsError: if there is one and it must not be overwritten.
    """
    if not (path / MANIFEST_NAME).exists():
        return None
    if not overwrite:
        raise FileExistsError(
            f"{path} already holds a dataset; pass overwrite=True (--overwrite) to replace it"
        )
    try:
        return Manifest.read(path)
    except FormatError:
        return None  # what cannot be read can be replaced all the same


def published_generation(path: Path) -> int | None:
    """The generation of the dataset that is there; None if there is none that can be read."""
    try:
        return Manifest.read(path).generation
    except FormatError:
        return None


def next_generation(path: Path, previous: Manifest | None) -> int:
    """The generation of shards whose names are those of none that is there to stay.

    Names count beside what a manifest says: one that was edited or repaired may say less.
    """
    if previous is not None:
        names = [entry.name for entry in previous.shards]
        return 1 + max([previous.generation, *map(generation_of, names)])
    if not (path / MANIFEST_NAME).exists():
        return 0
    return 1 + max(generation_of(file.name) for file in path.iterdir())


def publish(
    path: Path,
    *,
    schema: Schema | None,
    shards: Sequence[ShardEntry],
    statistics: Statistics,
    generation: int,
    provenance: Mapping[str, Any],
    splits: Mapping[str, Any] | None = None,
) -> Manifest:
    """Writes the manifest over finished shards: from here on, the dataset exists."""
    if schema is None:
        raise FormatError("a dataset needs at least one graph")
    manifest = Manifest(
        schema=schema,
        shards=tuple(shards),
        statistics=statistics,
        splits=splits or {},
        provenance={**provenance, "versions": versions()},
        generation=generation,
    )
    manifest.write(path)
    return manifest


def versions() -> dict[str, str]:
    """Versions of what wrote a dataset."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "h5py": h5py.__version__,
        "numpy": np.__version__,
    }


def remove_unpublished(path: Path, manifest: Manifest | None) -> None:
    """Removes what a crash or an interrupted conversion left.

    That is shards that the manifest does not name, temporary files, the folder of an unfinished
    conversion, and a list of rejected records where the manifest knows of none.
    """
    records = {} if manifest is None else manifest.provenance.get(RECORDS)
    if not (isinstance(records, dict) and records.get("rejected")):
        (path / REJECTS_NAME).unlink(missing_ok=True)
    named = set() if manifest is None else {entry.name for entry in manifest.shards}
    for file in path.iterdir():
        unnamed = SHARD_PATTERN.fullmatch(file.name) is not None and file.name not in named
        if unnamed or (file.name.startswith(".") and TEMPORARY in file.name):
            file.unlink()
    # Last, so that what is stopped here is tidied up by the conversion that goes on.
    shutil.rmtree(path / UNFINISHED, ignore_errors=True)
