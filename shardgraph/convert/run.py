"""`convert`: raw graphs of any format to a dataset, in parallel, resumable, in bounded memory."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from shardgraph.atomic import directory_lock
from shardgraph.convert.conversion import Conversion
from shardgraph.convert.function import Function
from shardgraph.convert.job import make_job
from shardgraph.convert.journal import Journal
from shardgraph.convert.pool import prepare
from shardgraph.convert.progress import Progress
from shardgraph.convert.report import ConversionReport
from shardgraph.convert.source import Source
from shardgraph.format.manifest import Manifest
from shardgraph.writer import RECORDS


def convert(
    source: str | os.PathLike[str] | Source,
    out: str | os.PathLike[str],
    /,
    *,
    format: str | None = None,
    workers: int = 1,
    executor: Executor | None = None,
    shard_size: str | int = "128MB",
    compression: str | None = None,
    on_error: str = "error",
    keep_rejected: bool = False,
    overwrite: bool = False,
    resume: bool = True,
    progress: bool = True,
    shuffle: int | None = None,
    pre_filter: str | Function | None = None,
    pre_transform: str | Function | None = None,
    keys: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    cast: Mapping[str, str] | None = None,
    varying: Collection[str] = (),
    split: str | Mapping[str, float] | None = None,
    seed: int = 0,
    split_by: str | None = None,
    split_file: str | os.PathLike[str] | None = None,
    **source_options: Any,
) -> ConversionReport:
    r"""Converts raw graphs into a dataset, and says what became of every record.

    Memory is bounded by one shard a worker. The files are the same, byte for byte, for any number
    of workers. A conversion that was interrupted, however it was, goes on at its last finished
    shard when it is called again, and ends in the same files; to get there a source is read past
    the records that are done with, within one partition, without making graphs of them again.

    Args:
        source: A path, ``package.module:function``, or a `Source`.
        out: Directory of the dataset; made if absent.
        format: Name of the source's format, where it is not recognised.
        workers: Number of processes; 1 works in this one.
        executor: Runs the tasks in place of processes of our own: threads, Dask, MPI, Ray. It must
            see the same file system.
        shard_size: Bytes of values after which a new shard begins. A shard also ends with the
            source's partition (or with the run of partitions that fill it), and where very many
            records were rejected.
        compression: None, ``"gzip"``, ``"zstd"`` or ``"lz4"``, as in ``DatasetWriter``.
        on_error: ``"error"`` stops at a record that cannot become a graph; ``"skip"`` leaves it
            out and lists it in ``rejects.jsonl``, a line of JSON each: ``record``, its number
            counted from 0, ``file``, ``line`` counted from 1 or else ``where``, and ``reason``.
        keep_rejected: Whether that list has the records themselves too, as ``raw``: their text, or
            what PyG prints of a graph that does not fit.
        overwrite: Whether a dataset that is already there may be replaced.
        resume: Whether to go on with an interrupted conversion; if not, it is thrown away.
        progress: Whether to show a bar on stderr, if that is a terminal.
        shuffle: Seed of a random order to write the graphs in; None: that of the input. The disk
            then holds the graphs twice for a while, memory 8 bytes a graph.
        pre_filter: Says of each graph whether it is kept: a function or the name of one.
        pre_transform: Applied to each kept graph before it is written.
        keys: Names of the attributes to keep; None: all.
        drop: Names of attributes to leave out.
        cast: Name of an attribute to the dtype it is stored in.
        varying: Names of tensors whose trailing shape may differ from graph to graph.
        split: Named subsets drawn at random, ``"train=0.8,val=0.1,test=0.1"`` or a mapping to
            fractions, for ``dataset.split("train")``. By default the input's own, if it has any; a
            bare name chooses among those of an ``ogb`` folder.
        seed: Of the random split.
        split_by: Name of an attribute, text or a number, that says which subset a graph is of; or
            of a column of a table of molecules, a property of structures or a column of Parquet.
            Where it is empty, the graph is in none.
        split_file: A JSON file, ``{"train": [0, 2, ...]}``, of records counted from 0, or a text
            file with the name of a subset on the line of each record.
        source_options: Of the source's format.

    Raises:
        ConversionError: if a record cannot become a graph, the disk is full, a worker dies, or
            what was interrupted here was another conversion. Nothing is published.
        FileExistsError: if there is a dataset already and ``overwrite`` is not set.
        LockedError: if another process is converting into ``out``.
        KeyboardInterrupt: at Ctrl-C, saying how to go on.

    Example:
        >>> import tempfile, shardgraph as sg
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "mol.smi").write_text("CCO\nC1CC1\n")
        >>> report = sg.convert(folder / "mol.smi", folder / "mol")
        >>> report.graphs, report.nodes, report.edges
        (2, 6, 10)
    """
    started = time.monotonic()
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if shuffle is not None and shuffle < 0:
        raise ValueError(f"shuffle takes a seed that is not negative, got {shuffle}")
    if workers > 1 and executor is None:
        prepare()
    job = make_job(
        source,
        out,
        format=format,
        shard_size=shard_size,
        compression=compression,
        on_error=on_error,
        pre_filter=pre_filter,
        pre_transform=pre_transform,
        keys=keys,
        drop=drop,
        cast=cast,
        varying=varying,
        split=split,
        seed=seed,
        split_by=split_by,
        split_file=split_file,
        **source_options,
    )
    with directory_lock(job.out):
        journal = Journal(job.out)
        conversion = Conversion(job, journal, overwrite=overwrite, resume=resume, shuffle=shuffle)
        with Progress(journal.directory, conversion.num_records, show=progress) as bar:
            manifest = conversion.run(workers, executor, bar=bar, keep=keep_rejected)
    return _report(Path(out), manifest, time.monotonic() - started)


def _report(path: Path, manifest: Manifest, seconds: float) -> ConversionReport:
    records = manifest.provenance[RECORDS]
    return ConversionReport(
        path=path,
        read=records["read"],
        graphs=manifest.num_graphs,
        rejected=records["rejected"],
        filtered=records["filtered"],
        nodes=manifest.num_nodes,
        edges=manifest.num_edges,
        shards=len(manifest.shards),
        raw_nbytes=manifest.raw_nbytes,
        nbytes=manifest.nbytes,
        seconds=seconds,
        targets=tuple(map(str, manifest.provenance["source"].get("targets") or ())),
    )
