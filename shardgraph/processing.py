"""Processing a PyG root: raw files in, ``processed/`` out, once, whatever happens in between."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_geometric.data.data import BaseData

from shardgraph.atomic import directory_lock
from shardgraph.errors import ConversionError, FormatError
from shardgraph.format.layout import MANIFEST_NAME
from shardgraph.format.manifest import Manifest
from shardgraph.writer import DatasetWriter, published_generation


def is_current(dataset: Any) -> bool:
    """Whether ``processed/`` holds a whole dataset; warns if it was made in another way.

    The manifest is written last, so its presence says that nothing is half done.
    """
    directory = Path(dataset.processed_dir)
    if not (directory / MANIFEST_NAME).exists():
        return False
    made = Manifest.read(directory).provenance.get("processing")
    if not isinstance(made, dict):
        raise FormatError(f"{directory} holds a dataset that was not made by generate()")
    now = fingerprint(dataset)
    changed = [name for name in now if now[name] is not None and made.get(name) != now[name]]
    if changed:
        warnings.warn(
            f"{directory} was processed with another {' and '.join(changed)} than now; pass "
            "force_reload=True to process it again",
            stacklevel=4,
        )
    return True


def fingerprint(dataset: Any) -> dict[str, Any]:
    """What the processed graphs depend on, as far as it can be told; None where it cannot."""
    sizes = {}
    for path in dataset.raw_paths:
        sizes[os.path.basename(path)] = os.path.getsize(path) if os.path.exists(path) else None
    try:
        source: str | None = inspect.getsource(type(dataset).generate)
    except (OSError, TypeError):
        source = None
    return {
        "pre_transform": _describe(dataset.pre_transform),
        "pre_filter": _describe(dataset.pre_filter),
        "raw files": None if None in sizes.values() else sizes,
        "generate()": source and hashlib.sha256(source.encode()).hexdigest(),
    }


def _describe(function: Any) -> str:
    """A callable's text without addresses."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(function))


def build(dataset: Any) -> None:
    """Generates the graphs into ``processed/``. Of several processes, one does; the others wait."""
    directory = Path(dataset.processed_dir)
    seen = published_generation(directory)
    with directory_lock(Path(dataset.root), wait=True):
        now = published_generation(directory)
        if now != seen or (now is not None and not dataset.force_reload):
            return  # another process built it while this one waited
        missing = [path for path in dataset.raw_paths if not os.path.exists(path)]
        if missing:
            raise FileNotFoundError(
                f"raw file {missing[0]} is missing; put it there, or define download()"
            )
        if dataset.log and "PYTEST_CURRENT_TEST" not in os.environ:
            print("Processing...", file=sys.stderr)  # noqa: T201  # as PyG does
        provenance = {"processing": fingerprint(dataset), "class": type(dataset).__name__}
        with DatasetWriter(
            directory, overwrite=True, provenance=provenance, varying=dataset.varying
        ) as writer:
            for data in _kept(dataset):
                writer.write(data)
            if writer.num_graphs == 0:
                raise ConversionError(
                    f"{type(dataset).__name__}.generate() gave no graph (that pre_filter kept); "
                    "a dataset needs at least one"
                )


def _kept(dataset: Any) -> Iterator[BaseData]:
    for data in dataset.generate():
        if dataset.pre_filter is None or dataset.pre_filter(data):
            yield data if dataset.pre_transform is None else dataset.pre_transform(data)
