"""Graphs that a Python function yields: ``package.module:function`` or ``file.py:function``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shardgraph.convert.source import Confidence, Option, Partition, Reject, Source
from shardgraph.errors import ConversionError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

_SPEC = re.compile(r"(?P<module>.+\.py|[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<function>[^\W\d]\w*)")


class PythonSource(Source):
    """Calls the function and takes the graphs it yields, as one partition, in their order.

    An error inside the function ends the conversion also where bad records are skipped, for a
    generator cannot go on after it has raised. A function that wants a record skipped yields a
    ``Reject`` in its place.

    Args:
        spec: ``package.module:function`` or ``file.py:function``.
        args: Strings passed to the function.
    """

    name = "python"
    description = "a function that yields graphs: package.module:function or file.py:function"
    options = (Option(name="args", type=str, many=True, help="strings passed to the function"),)

    def __init__(self, spec: str, *, args: Sequence[str] | None = None) -> None:
        super().__init__(spec)
        match = _SPEC.fullmatch(self.spec)
        if match is None:
            raise ValueError(
                f"{self.spec!r} does not name a function: write package.module:function or "
                "file.py:function"
            )
        self._module, self._function = match["module"], match["function"]
        self._args = tuple(args or ())

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of anything written like module:function that is not a path."""
        return Confidence.CERTAIN if _SPEC.fullmatch(spec) and not Path(spec).exists() else None

    def partitions(self) -> Sequence[Partition]:
        """One: only the function knows where a record starts."""
        self._load()
        return super().partitions()

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:  # noqa: ARG002 (the one)
        """Yields what the function yields."""
        from torch_geometric.data.data import BaseData

        items = self._load()(*self._args)
        if not isinstance(items, Iterable):
            raise ConversionError(
                f"{self.spec} returned {type(items).__name__}, not an iterable of graphs"
            )
        iterator, record = iter(items), 0
        while True:
            try:
                item = next(iterator)
            except StopIteration:
                return
            except Exception as error:
                raise ConversionError(
                    f"{self.spec} failed at record {record}: {type(error).__name__}: {error}"
                ) from error
            if not isinstance(item, BaseData | Reject):
                raise ConversionError(
                    f"{self.spec} yielded {type(item).__name__} as record {record}, not a graph of "
                    "torch_geometric.data"
                )
            yield item
            record += 1

    def files(self) -> list[Path]:
        """The file of the function, where it is named by its file."""
        return [Path(self._module)] if self._module.endswith(".py") else []

    def provenance(self) -> dict[str, Any]:
        """The function's name and arguments."""
        name = Path(self._module).name if self.files() else self._module
        function = f"{name}:{self._function}"
        return super().provenance() | {"function": function, "options": {"args": [*self._args]}}

    def _load(self) -> Callable[..., Any]:
        path = Path(self._module)
        module = _load_file(path) if self.files() else importlib.import_module(self._module)
        function = getattr(module, self._function, None)
        if not callable(function):
            raise ValueError(  # noqa: TRY004 (the argument names no function)
                f"{self._module} has no function {self._function!r}; it defines "
                f"{', '.join(sorted(n for n, v in vars(module).items() if callable(v))) or 'none'}"
            )
        found: Callable[..., Any] = function
        return found


def _load_file(path: Path) -> ModuleType:
    """Imports a file as a module of its own, once per process; its folder is importable in it."""
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    path = path.resolve()
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    name = f"_shardgraph_source_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module
