"""``shardgraph info PATH``: what a dataset holds, in one screen."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardgraph.cli.text import SHAPES, columns_of, table
from shardgraph.errors import FormatError

if TYPE_CHECKING:
    from shardgraph.format.histogram import Histogram
    from shardgraph.format.manifest import Manifest
    from shardgraph.format.moments import ColumnStatistics
    from shardgraph.shards.structure import StoredColumn

HELP = "say what a dataset holds"

_MOST = 12  # entries of a list before it is cut off: the answer is to fit a screen
_WIDTH = 100  # of a line of text
_LEGEND = f"{SHAPES}; stored as: integers in the narrowest dtype"
_MOST_SHARDS = 50  # shards that are opened to see how columns are stored


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset."""
    parser.add_argument(
        "path", metavar="PATH", help="directory of a dataset, or PyG root with one in processed/"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the dataset's description, and returns 1 if a shard cannot be opened."""
    from shardgraph.format.manifest import Manifest, dataset_directory
    from shardgraph.shards.structure import check_claims
    from shardgraph.verify.problem import printable

    path = dataset_directory(Path(args.path))
    manifest = Manifest.read(path)
    check_claims(path, manifest.shards)
    stored, problem = _stored(path, manifest)
    sections = [_totals(path, manifest), _columns(manifest, stored), _sizes(manifest)]
    sections += [_labels(manifest), _splits(manifest), _provenance(manifest)]
    if problem is not None:
        sections.append(f"PROBLEM  {problem}")
    text = "\n\n".join(section for section in sections if section)
    print("\n".join(map(printable, text.split("\n"))))
    return 0 if problem is None else 1


def _totals(path: Path, manifest: Manifest) -> str:
    from shardgraph.convert.report import counted, nbytes_text

    name = manifest.schema.data_class.partition(":")[2]
    return (
        f"{path}: {counted(manifest.num_graphs, 'graph')} ({name}) in "
        f"{counted(len(manifest.shards), 'shard')}\n"
        f"{counted(manifest.num_nodes, 'node')}, {counted(manifest.num_edges, 'edge')}, "
        f"{nbytes_text(manifest.raw_nbytes)} raw, {nbytes_text(manifest.nbytes)} stored"
    )


def _stored(path: Path, manifest: Manifest) -> tuple[dict[str, set[str]], FormatError | None]:
    """By column name, the dtypes it is stored as, and its axes; and the first damage met."""
    from shardgraph.shards.structure import read_index

    found: dict[str, set[str]] = {}
    for entry in manifest.shards[:_MOST_SHARDS]:
        try:
            index = read_index(path / entry.name, entry, manifest.schema)
        except FormatError as error:
            return found, error
        for name, column in index.columns.items():
            found.setdefault(name, set()).add(_how(column))
    return found, None


def _how(column: StoredColumn) -> str:
    packed = " packed" if column.located.offset is None else ""
    return f"{column.located.dtype}{packed}"


def _columns(manifest: Manifest, stored: Mapping[str, set[str]]) -> str:
    """A line for each column: how it comes back, how it is stored, its values."""
    rows = [["column", "dtype", "shape", "stored as", "mean", "std", "min", "max", "NaN"]]
    for name, dtype, shape in columns_of(manifest.schema):
        how = " or ".join(
            sorted(stored.get(name, {"in ptr" if name.endswith("num_nodes") else "?"}))
        )
        rows.append([name, dtype, shape, how, *_values(manifest.statistics.columns.get(name))])
    return f"{table(rows, right=range(4, 9))}\n{_LEGEND}"


def _values(found: ColumnStatistics | None) -> list[str]:
    """Moments over all values of a column, whatever their place in the row."""
    if found is None or not found.observed.sum():
        return ["", "", "", "", "" if found is None else f"{found.nan:,}"]
    import numpy as np

    seen = found.observed > 0
    counts, means = found.observed[seen], found.mean[seen]
    with np.errstate(all="ignore"):  # infinite values
        mean = float(np.average(means, weights=counts))
        m2 = found.m2[seen].sum() + (counts * (means - mean) ** 2).sum()
        std = float(np.sqrt(m2 / counts.sum()))
    ends = found.min[seen].min().item(), found.max[seen].max().item()
    return [*(f"{value:.4g}" for value in (mean, std, *ends)), f"{found.nan:,}"]


def _sizes(manifest: Manifest) -> str:
    statistics = manifest.statistics
    rows = [["per graph", "mean", "std", "min", "median", "max"]]
    for axis, histogram in _first(statistics.sizes):
        rows.append([_plural(axis), *_spread(histogram)])
    for axis, histogram in _first(statistics.in_degree):
        rows.append([f"in-degree ({axis})" if axis != "edge" else "in-degree", *_spread(histogram)])
    return table(rows, right=range(1, 6))


def _plural(axis: str) -> str:
    return {"node": "nodes", "edge": "edges", "num_nodes": "nodes", "num_edges": "edges"}.get(
        axis, axis
    )


def _spread(histogram: Histogram) -> list[str]:
    if not histogram.total:
        return [""] * 5
    low, high = int(histogram.values[0]), int(histogram.values[-1])
    return [
        f"{histogram.mean:.4g}",
        f"{histogram.std:.4g}",
        f"{low:,}",
        f"{histogram.quantile(0.5):,.6g}",
        f"{high:,}",
    ]


def _first(entries: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The first entries of a mapping that may be long."""
    yield from list(entries.items())[:_MOST]


def _labels(manifest: Manifest) -> str:
    """Classes of the integer labels: how many graphs, or nodes, have each."""
    lines = []
    for name, counts in manifest.statistics.labels.items():
        if not counts or not all(float(value).is_integer() for value in counts):
            continue
        listed = ", ".join(f"{int(value)}: {count:,}" for value, count in _first(counts))  # type: ignore[arg-type]
        more = ", ..." if len(counts) > _MOST else ""
        lines.append(f"{name} has {len(counts)} classes ({listed}{more})")
    return "\n".join(lines)


def _splits(manifest: Manifest) -> str:
    from shardgraph.format.splits import unpack_split

    parts = []
    for name, value in manifest.splits.items():
        size = len(unpack_split(value, manifest.num_graphs))
        parts.append(f"{name} {size:,} ({size / max(1, manifest.num_graphs):.1%})")
    return f"splits   {', '.join(parts)}" if parts else ""


def _provenance(manifest: Manifest) -> str:
    """Where the graphs are from, each entry in at most three lines; files without digests."""
    from shardgraph.convert.report import targets_text

    entries = dict(manifest.provenance)
    source = entries.get("source")
    if isinstance(source, Mapping):
        rest = {key: value for key, value in source.items() if key not in {"files", "targets"}}
        told: dict[str, Any] = {"source": rest}
        if isinstance(files := source.get("files"), list) and files:
            told["files"] = list(map(_file, files))
        if isinstance(targets := source.get("targets"), list) and targets:
            told["y"] = targets_text(list(map(str, targets)))
        entries = {**told, **{key: value for key, value in entries.items() if key != "source"}}
    return "\n".join(_entry(key, _flat(value)) for key, value in entries.items())


def _file(told: Any) -> str:
    """An input file, or many, without the digest."""
    from shardgraph.convert.report import counted, nbytes_text

    if not isinstance(told, Mapping) or not isinstance(told.get("bytes"), int):
        return _flat(told)
    name = told.get("name") or counted(told.get("files", 0), "file")
    return f"{name} ({nbytes_text(told['bytes'])})"


def _entry(key: str, text: str) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=f"{key:<8} ",
        subsequent_indent=" " * 9,
        max_lines=3,
        placeholder=" ...",
    )


def _flat(value: Any) -> str:
    """A JSON value in words: ``name=delaney.csv, bytes=96699``, without what is empty."""
    if isinstance(value, Mapping):
        kept = {key: item for key, item in value.items() if item not in (None, [], {}, "")}
        return ", ".join(
            f"{key}: {_flat(item)}" if isinstance(item, Mapping | list) else f"{key}={item}"
            for key, item in kept.items()
        )
    if isinstance(value, list):
        more = f" and {len(value) - 3} more" if len(value) > 3 else ""
        return "; ".join(_flat(item) for item in value[:3]) + more
    return str(value)
