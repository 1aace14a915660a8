"""Graphs that a Python function yields: ``package.module:function`` or ``file.py:function``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardgraph.convert.function import NAMED, load_function
from shardgraph.convert.source import Confidence, Option, Partition, Reject, Source
from shardgraph.errors import ConversionError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData


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
        self._module, _, self._function = self.spec.rpartition(":")
        self._args = tuple(args or ())

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of anything written like module:function that is not a path."""
        return Confidence.CERTAIN if NAMED.fullmatch(spec) and not Path(spec).exists() else None

    def partitions(self) -> Sequence[Partition]:
        """One: only the function knows where a record starts."""
        load_function(self.spec)
        return super().partitions()

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:  # noqa: ARG002 (the one)
        """Yields what the function yields."""
        from torch_geometric.data.data import BaseData

        items = load_function(self.spec)(*self._args)
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
