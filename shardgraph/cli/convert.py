"""``shardgraph convert SOURCE OUT``: raw graphs to a dataset."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from shardgraph.cli.text import SHAPES, columns_of, table

if TYPE_CHECKING:
    from shardgraph.convert import Option

HELP = "convert raw graphs into a dataset"

_EPILOG = """\
LIST stands for words with commas between; a word that has a comma itself goes in quotes:
'"solubility, log mol/L",name'. FUNCTION is package.module:function or file.py:function; a source
of your own is, likewise, --format package.module:Class or --format file.py:Class.
A conversion that was interrupted goes on when the same command is given again.

exit status:
  0  done
  1  failed, and nothing was published
  2  usage
  3  published, but records were rejected: OUT/rejects.jsonl lists them, a line of JSON each, with
     the number of the record (counted from 0), the file, the line (from 1) or else where in it,
     and the reason
  130  interrupted by Ctrl-C; the same command goes on
"""

_UNKNOWN = 1_000_000  # records that a preview tells of where their number is not known
_METAVARS = {str: "TEXT", int: "N", float: "X", bool: ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the conversion, then those of the formats, with the formats they belong to."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "%(prog)s [OPTION ...] SOURCE OUT"
    parser.epilog = _EPILOG
    add = parser.add_argument
    add(
        "source",
        metavar="SOURCE",
        help="file or folder to convert, or a FUNCTION that yields graphs",
    )
    # With nargs="?", options between SOURCE and OUT would take OUT for absent.
    out = add("out", metavar="OUT", help="directory of the dataset, made if absent")
    out.required = False
    add(
        "--format",
        metavar="NAME",
        help="format of SOURCE (recognised; see shardgraph formats), or a class of your own",
    )
    add("--dry-run", action="store_true", help="read 100 records, write nothing, say what it makes")
    add("--no-progress", action="store_true", help="show no progress bar")
    _add_work(parser)
    _add_edits(parser)
    _add_splits(parser)
    _add_source_options(parser)
    add = parser.add_argument_group("a source of your own").add_argument
    add("--set", type=_pair, action="append", metavar="NAME=VALUE", help="option of such a source")


def _add_work(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("how it is written").add_argument
    add("--workers", type=int, default=1, metavar="N", help="number of processes (default 1)")
    add("--shard-size", default="128MB", metavar="SIZE", help="bytes a shard (default 128MB)")
    add("--compression", choices=("gzip", "zstd", "lz4"), help="for archives: slower to read")
    add("--shuffle", type=int, metavar="SEED", help="write the graphs in random order")
    add("--overwrite", action="store_true", help="replace a dataset that is there already")
    add("--no-resume", action="store_true", help="throw an interrupted conversion away")
    add = parser.add_argument_group("records that cannot become a graph").add_argument
    add(
        "--on-error",
        choices=("error", "skip"),
        default="error",
        help="stop at the first (default), or go on and list them in OUT/rejects.jsonl",
    )
    add("--keep-rejected", action="store_true", help="list the rejected records themselves too")


def _add_edits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is made of each graph, in this order").add_argument
    add("--filter", metavar="FUNCTION", help="keep the graphs for which it is true")
    add("--transform", metavar="FUNCTION", help="write what it returns")
    add("--keys", type=words, metavar="LIST", help="keep only these attributes")
    add("--drop", type=words, metavar="LIST", default=[], help="leave these attributes out")
    add("--cast", type=pairs, metavar="LIST", help="store as another dtype: x=float16,pos=float32")
    add("--varying", type=words, metavar="LIST", default=[], help="tensors of varying row shape")


def _add_splits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("named subsets, for dataset.split(name)").add_argument
    add(
        "--split",
        metavar="LIST",
        help="at random: train=0.8,val=0.1,test=0.1; or the name of one of the splits of an ogb "
        "folder (default: the input's own, if it has one)",
    )
    add("--seed", type=int, default=0, help="of the random split (default 0)")
    add(
        "--split-by",
        metavar="NAME",
        help="attribute or column that names a graph's subset",
    )
    add("--split-file", metavar="FILE", help="subset of each record: lines of names, or JSON")


def words(text: str) -> list[str]:
    """The words of a list; none of an empty text."""
    return [word.strip() for row in csv.reader([text], skipinitialspace=True) for word in row]


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"write NAME=VALUE, got {text!r}")
    return name, value


def pairs(text: str) -> dict[str, str]:
    """The ``name=value`` words of a list."""
    found = [word.partition("=") for word in words(text)]
    if not all(name and value for name, _, value in found):
        raise argparse.ArgumentTypeError(f"write name=value,name=value, got {text!r}")
    return {name: value for name, _, value in found}


def _add_source_options(parser: argparse.ArgumentParser) -> None:
    """The options of each format in a group of its own, after those that several share."""
    options = {name: found for name, found in source_options().items() if name != "split"}
    owners = dict.fromkeys(formats[0] for _, formats in options.values() if len(formats) == 1)
    shared = parser.add_argument_group("options of several formats")
    groups = {owner: parser.add_argument_group(f"options of {owner}") for owner in owners}
    for name, (option, formats) in options.items():
        single = len(formats) == 1
        text = option.help if single else f"{', '.join(formats)}: {option.help}"
        kind: dict[str, Any] = {"type": option.type, "metavar": _METAVARS[option.type]}
        if option.repeated:
            kind = {"type": option.type, "action": "append", "metavar": "PATH"}
        elif option.many:
            kind = {"type": words, "metavar": "LIST"}
        elif option.type is bool:
            kind = {"action": argparse.BooleanOptionalAction}
            if option.default is False:
                kind = {"action": "store_true", "default": None}
        (groups[formats[0]] if single else shared).add_argument(
            f"--{name.replace('_', '-')}",
            dest=f"source_{name}",
            help=text.replace("%", "%%"),
            **kind,
        )


def source_options() -> dict[str, tuple[Option, list[str]]]:
    """The options of all formats by name, each with the formats that have it."""
    from shardgraph.convert import source_class, source_names

    found: dict[str, tuple[Option, list[str]]] = {}
    for name in source_names():
        for option in source_class(name).options:
            found.setdefault(option.name, (option, []))[1].append(name)
    return found


def _own_options(format: str | None, given: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The values of ``--set`` as the options of a source want them.

    Raises:
        ValueError: if the source has no such option, or a value is none that it takes.
    """
    from shardgraph.convert import source_class

    values = dict(given)
    if values and format is None:
        raise ValueError("--set gives options of a source of your own: name it with --format")
    known = {o.name: o for o in source_class(format).options} if format and values else {}
    found: dict[str, Any] = {}
    for name, text in values.items():
        if name not in known:
            raise ValueError(
                f"{format} has no option {name!r}; it has {', '.join(sorted(known)) or 'none'}"
            )
        read: Any = _boolean if known[name].type is bool else known[name].type
        try:
            found[name] = list(map(read, words(text))) if known[name].many else read(text)
        except ValueError as error:
            raise ValueError(f"--set {name}: {error}") from error
    return found


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(f"write true or false, not {text!r}")
    return text.lower() == "true"


def run(args: argparse.Namespace) -> int:
    """Converts, prints the summary, and returns 3 if records were rejected."""
    if not args.source:
        raise ValueError("SOURCE is empty: what should be converted?")
    if not args.out and not args.dry_run:
        raise ValueError("OUT is missing: where should the dataset go?")
    if args.workers < 1:
        raise ValueError(f"workers must be at least 1, got {args.workers}")
    options = {name: getattr(args, f"source_{name}", None) for name in source_options()}
    options |= _own_options(args.format, args.set or ())
    edits: dict[str, Any] = {
        "format": args.format,
        "on_error": args.on_error,
        "shard_size": args.shard_size,
        "compression": args.compression,
        "pre_filter": args.filter,
        "pre_transform": args.transform,
        "keys": args.keys,
        "drop": args.drop,
        "cast": args.cast,
        "varying": args.varying,
        "split": args.split,
        "seed": args.seed,
        "split_by": args.split_by,
        "split_file": args.split_file,
        **{name: value for name, value in options.items() if value is not None},
    }
    if args.dry_run:
        return _dry_run(args, edits)
    if args.workers > 1:
        from shardgraph.convert.pool import prepare

        prepare()  # the workers import torch while this process does
    from shardgraph.convert import convert

    report = convert(
        args.source,
        args.out,
        workers=args.workers,
        keep_rejected=args.keep_rejected,
        overwrite=args.overwrite,
        resume=not args.no_resume,
        progress=not args.no_progress,
        shuffle=args.shuffle,
        **edits,
    )
    print(report)
    return 3 if report.rejected else 0


def _dry_run(args: argparse.Namespace, options: dict[str, Any]) -> int:
    """Prints what the first records become, and what the whole may come to."""
    from shardgraph.convert.job import make_job
    from shardgraph.convert.preview import preview
    from shardgraph.convert.report import counted, nbytes_text

    found = preview(make_job(args.source, args.out or ".", **options))
    known = "an unknown number" if found.num_records is None else f"{found.num_records:,}"
    print(f"format    {found.format}")
    print(
        f"records   {known}; of the first {found.read}: {found.graphs} written, "
        f"{len(found.rejects)} rejected, {found.filtered} filtered"
    )
    for reject in found.rejects[:3]:
        print(f"          rejected: {reject}")
    if found.rejects and options["on_error"] == "error":
        print("          as asked for, it would stop there; --on-error skip leaves them out")
    print(f"example   {found.example}")
    print(table([["column", "dtype", "shape"], *columns_of(found.schema)]))
    print(SHAPES)
    raw, stored = found.raw_nbytes / found.graphs, found.nbytes / found.graphs
    print(f"per graph {nbytes_text(raw)} raw, {nbytes_text(stored)} stored")
    records = _UNKNOWN if found.num_records is None else found.num_records
    graphs = round(records * found.graphs / found.read)
    seconds = records * found.seconds / args.workers
    print(
        f"{'in all   ' if found.num_records is not None else 'a million'} about "
        f"{counted(graphs, 'graph')}, {nbytes_text(graphs * stored)} stored, "
        f"{seconds:,.0f} s with {counted(args.workers, 'worker')}"
    )
    print("nothing was written")
    return 0
