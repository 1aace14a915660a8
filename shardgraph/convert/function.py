"""Functions and classes named on the command line: ``package.module:name`` or ``file.py:name``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import io
import pickle
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

Function = Callable[[Any], Any]
"""Of one graph."""

NAMED = re.compile(r"(?P<module>.+\.py|[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*)")
"""How they are written."""

_MOST = 20  # names that a message lists

_FILES: dict[str, Path] = {}
"""The files that this process has taken for modules, by the name of the module."""


@lru_cache
def load_function(name: str) -> Function:
    """The function named ``package.module:function`` or ``file.py:function``.

    Raises:
        ValueError: if the name is not written so, or names nothing that can be called.
    """
    found = load_named(name, "function")
    if not callable(found):
        raise ValueError(  # noqa: TRY004 (the argument names no function)
            f"{name} is a {type(found).__name__}, not a function"
        )
    function: Function = found
    return function


def load_named(name: str, what: str) -> Any:
    """What is named ``package.module:name`` or ``file.py:name``; ``what`` it is, for messages.

    A file is imported once a process. Modules beside it can be imported in it.

    Raises:
        ValueError: if the name is not written so, or there is no such file, module or name.
    """
    match = NAMED.fullmatch(name)
    if match is None:
        raise ValueError(
            f"{name!r} does not name a {what}: write package.module:{what} or file.py:{what}"
        )
    path = match["module"]
    if path.endswith(".py") and not Path(path).is_file():
        raise ValueError(f"no such file: {path}")
    try:
        module = _load_file(Path(path)) if path.endswith(".py") else importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise ValueError(f"cannot load {name}: {error}") from error
    if not hasattr(module, match["name"]):
        known = sorted(key for key, value in vars(module).items() if callable(value))
        listed = ", ".join(known[:_MOST]) + ", ..." * (len(known) > _MOST)
        raise ValueError(f"{path} has no {what} {match['name']!r}; it defines {listed or 'none'}")
    return getattr(module, match["name"])


def _load_file(path: Path) -> ModuleType:
    """The module of a file, imported once a process."""
    path = path.resolve()
    for name, file in _FILES.items():
        if file == path and name in sys.modules:
            return sys.modules[name]
    name = _module_name(path)
    module = sys.modules.get(name) or _execute(path, name)
    _FILES[name] = path
    return module


def _module_name(path: Path) -> str:
    """The file's own, under which a program imports the classes it defines; if that is free."""
    name = path.stem
    file = None
    if name in sys.modules:
        file = getattr(sys.modules[name], "__file__", None)
        is_free = False
    else:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        is_free = spec is None and name.isidentifier()
        file = spec.origin if spec is not None and spec.has_location else None
    if is_free or (file is not None and Path(file).resolve() == path):
        return name
    return f"_shardgraph_{name}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"


def _execute(path: Path, name: str) -> ModuleType:
    """Imports a file. Its folder is searched first meanwhile, and last from then on."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"cannot import {path}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    folder = str(path.parent)
    is_new = folder not in sys.path
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(folder)
        if is_new:
            sys.path.append(folder)
    return module


def dumps(value: Any) -> bytes:
    """A pickle that can be read where the files named here have not been imported yet."""
    stream = io.BytesIO()
    _Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    """Names the functions and classes of such a file by the file."""

    def reducer_override(self, obj: Any) -> Any:
        named = isinstance(obj, type | FunctionType) and "<locals>" not in obj.__qualname__
        if not named or obj.__module__ not in _FILES:
            return NotImplemented
        return _restore, (str(_FILES[obj.__module__]), obj.__qualname__)


def _restore(path: str, qualified: str) -> Any:
    found: Any = _load_file(Path(path))
    for part in qualified.split("."):
        found = getattr(found, part)
    return found


def describe(function: str | Function) -> dict[str, str | None]:
    """What a function is called, and a digest of its code where that can be had."""
    found = load_function(function) if isinstance(function, str) else function
    name = function if isinstance(function, str) else getattr(found, "__qualname__", None)
    try:
        code = hashlib.sha256(inspect.getsource(found).encode()).hexdigest()
    except (OSError, TypeError):
        code = None
    module, _, attribute = (name or re.sub(r" at 0x[0-9a-fA-F]+", "", repr(found))).rpartition(":")
    # The folder of a file is the machine's affair.
    return {"name": f"{Path(module).name}:{attribute}" if module else attribute, "sha256": code}
