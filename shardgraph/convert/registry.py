"""Which sources there are, and which of them reads a given input.

Listing them imports their modules, and those import neither torch nor a format's packages
before a graph is read.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, overload

from shardgraph.convert.function import load_named
from shardgraph.convert.source import Confidence, Source

_BUILTIN: dict[str, str] = {
    "python": "shardgraph.convert.sources.python:PythonSource",
    "pyg": "shardgraph.convert.sources.pyg:PygSource",
    "smiles": "shardgraph.convert.sources.smiles:SmilesSource",
    "sdf": "shardgraph.convert.sources.sdf:SdfSource",
    "tudataset": "shardgraph.convert.sources.tudataset:TUDatasetSource",
    "ogb": "shardgraph.convert.sources.ogb:OGBSource",
    "planetoid": "shardgraph.convert.sources.planetoid:PlanetoidSource",
    "mtx": "shardgraph.convert.sources.mtx:MtxSource",
    "edgelist": "shardgraph.convert.sources.edgelist:EdgelistSource",
    "networkx": "shardgraph.convert.sources.networkx:NetworkxSource",
    "atoms": "shardgraph.convert.sources.atoms:AtomsSource",
    "hdf5": "shardgraph.convert.sources.hdf5:Hdf5Source",
    "lmdb": "shardgraph.convert.sources.lmdb:LmdbSource",
    "parquet": "shardgraph.convert.sources.parquet:ParquetSource",
    "dgl-csv": "shardgraph.convert.sources.dgl_csv:DglCsvSource",
    "ondisk": "shardgraph.convert.sources.ondisk:OnDiskSource",
    "shardgraph": "shardgraph.convert.sources.shardgraph:ShardgraphSource",
}
_REGISTERED: dict[str, type[Source]] = {}
_MOST_LOOKED_AT = 20  # of what is in a folder that is no input itself

SourceT = TypeVar("SourceT", bound=type[Source])


@overload
def register_source(cls: SourceT) -> SourceT: ...
@overload
def register_source(*, replace: bool) -> Callable[[SourceT], SourceT]: ...
def register_source(
    cls: SourceT | None = None, *, replace: bool = False
) -> SourceT | Callable[[SourceT], SourceT]:
    """Makes a source known under its ``name``; usable as a decorator.

    A name already taken is an error unless ``replace=True``. The class must be importable
    (not defined inside a function) for worker processes to find it.
    """

    def register(cls: SourceT) -> SourceT:
        name = getattr(cls, "name", None)
        if not (isinstance(cls, type) and issubclass(cls, Source)) or not isinstance(name, str):
            raise TypeError(
                f"register_source takes a subclass of Source with a `name`, got {cls!r}"
            )
        if name in source_names() and not replace and _REGISTERED.get(name) is not cls:
            raise ValueError(
                f"a source named {name!r} exists already; choose another name, or pass "
                "replace=True to take its place"
            )
        _REGISTERED[name] = cls
        return cls

    return register if cls is None else register(cls)


def source_names() -> tuple[str, ...]:
    """Names of all known sources: the built-in ones, then the registered ones."""
    return tuple(dict.fromkeys([*_BUILTIN, *_REGISTERED]))


def source_class(name: str) -> type[Source]:
    """The source of that name, or the class named ``package.module:Class`` or ``file.py:Class``.

    Raises:
        ValueError: no source has that name, and the message lists those there are; or what is
            named is not a source.
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name not in _BUILTIN and ":" not in name:
        raise ValueError(
            f"unknown format {name!r}; known: {', '.join(source_names())}, "
            "or a source class of your own as package.module:Class or file.py:Class"
        )
    found = load_named(_BUILTIN.get(name, name), "class")
    if not (isinstance(found, type) and issubclass(found, Source)):
        raise ValueError(  # noqa: TRY004 (the argument names no source)
            f"{name} is not a subclass of shardgraph.Source, but {found!r}"
        )
    if inspect.isabstract(found) or not isinstance(getattr(found, "name", None), str):
        raise ValueError(f"{name} must define `name` and `read`, as shardgraph.Source asks")
    return found


def find_source(
    spec: str | os.PathLike[str], *, format: str | None = None, **options: object
) -> Source:
    """The source that reads `spec`: of the named format, or the one that recognises it.

    Args:
        spec: A path, or whatever else a source takes, such as ``package.module:function``.
        format: Name of a source, or ``package.module:Class`` or ``file.py:Class``.
        options: Passed to the source; those with the value None are left at their default.

    Raises:
        ValueError: nothing or more than one source recognises `spec`, or an option is unknown.
        FileNotFoundError: `spec` is a path that does not exist.
    """
    spec = os.fspath(spec)
    cls = source_class(format) if format is not None else _recognise(spec)
    given = {name: value for name, value in options.items() if value is not None}
    known = {option.name for option in cls.options}
    if unknown := sorted(set(given) - known):
        close = difflib.get_close_matches(unknown[0], known, 1)
        meant = f"did you mean {close[0]} (--{close[0].replace('_', '-')})? " if close else ""
        raise ValueError(
            f"the {cls.name} source has no option {', '.join(unknown)}; "
            f"{meant}it has {', '.join(sorted(known)) or 'none'}"
        )
    if cls in _paths() and not Path(spec).exists():
        raise FileNotFoundError(f"no such file or folder: {spec}")
    return cls(spec, **given)


def _paths() -> set[type[Source]]:
    """The built-in sources, which read paths; but for the one that calls functions."""
    return {source_class(name) for name in _BUILTIN if name not in {"python", *_REGISTERED}}


def _answers(spec: str) -> dict[str, Confidence]:
    """The sources that recognise `spec`, and how sure they are."""
    answers = {name: source_class(name).recognise(spec) for name in source_names()}
    return {name: answer for name, answer in answers.items() if answer is not None}


def _recognise(spec: str) -> type[Source]:
    matches = _answers(spec)
    best = [name for name, answer in matches.items() if answer == max(matches.values())]
    if len(best) == 1:
        return source_class(best[0])
    if not matches and not Path(spec).exists():
        raise FileNotFoundError(
            f"no such file or folder: {spec} (a function that yields graphs is named as "
            "package.module:function or file.py:function)"
        )
    if not matches:
        advice = _advice(Path(spec)) or f": name it as one of {', '.join(source_names())}"
        raise ValueError(f"cannot tell the format of {spec}{advice}")
    raise ValueError(f"{spec} could be {' or '.join(best)}: name the format to use")


def _advice(path: Path) -> str | None:
    """What may have been meant by a path that no source reads: what is in it, or what it is of."""
    if path.is_dir():
        inside = sorted(itertools.islice(path.iterdir(), _MOST_LOOKED_AT))
        known = {child: name for child in inside if (name := _certain(child))}
        if not known:
            return None
        listed = ", ".join(f"{child.name} is {name}" for child, name in known.items())
        return f", but of what is in it: {listed}; give one of those, such as {next(iter(known))}"
    for folder in path.absolute().parents[:2]:
        name = _certain(folder)
        if name and path.absolute() in _files(source_class(name), folder):
            return f" alone: it is of a dataset in the format {name}; give its folder, {folder}"
    return None


def _files(cls: type[Source], folder: Path) -> list[Path]:
    """The files that a source reads of a folder; none where its packages are not there."""
    try:
        return cls(folder).files()
    except ImportError:
        return []


def _certain(path: Path) -> str | None:
    """The one format that a path is certainly in."""
    found = [name for name, sure in _answers(str(path)).items() if sure is Confidence.CERTAIN]
    return found[0] if len(found) == 1 else None


__all__ = ["Confidence", "find_source", "register_source", "source_class", "source_names"]
