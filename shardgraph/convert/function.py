"""Functions named on the command line: ``package.module:function`` or ``file.py:function``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

Function = Callable[[Any], Any]
"""Of one graph."""

_NAME = re.compile(r"(?P<module>.+\.py|[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<function>[^\W\d]\w*)")


@lru_cache
def load_function(name: str) -> Function:
    """The function named ``package.module:function`` or ``file.py:function``.

    Raises:
        ValueError: if the name is not written so, or names nothing that can be called.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            f"{name!r} does not name a function: write package.module:function or file.py:function"
        )
    path = match["module"]
    try:
        module = _load_file(Path(path)) if path.endswith(".py") else importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise ValueError(f"cannot find the module of {name!r}: {error}") from error
    function = getattr(module, match["function"], None)
    if not callable(function):
        raise ValueError(  # noqa: TRY004 (the argument names no function)
            f"{path} has no function {match['function']!r}"
        )
    found: Function = function
    return found


def _load_file(path: Path) -> ModuleType:
    """The module of a file, loaded once a process."""
    if not path.is_file():
        raise ValueError(f"no such file: {path}")
    path = path.resolve()
    name = f"_shardgraph_function_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"cannot import {path}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


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
