"""Millions of graphs on disk, read by PyTorch Geometric as if they were in memory.

``convert`` turns raw graphs into a dataset of HDF5 shards; ``DatasetWriter`` writes one graph by
graph. ``ShardedDataset`` opens the result as an ordinary ``torch_geometric.data.Dataset``,
``GraphLoader`` makes the batches that a ``BatchPlan`` decides, and ``DevicePrefetcher`` keeps them
ready on the device. ``verify`` checks a dataset against its ``Manifest``, whose ``Schema`` says
what every graph holds; ``repair`` keeps what is whole of a damaged one. A ``Source``, made known by
``register_source``, reads one raw format.

Importing this package loads neither torch nor PyG: a public name loads its module on first use.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shardgraph.errors import (
    ConversionError,
    CorruptShardError,
    FormatError,
    SchemaError,
    ShardGraphError,
)

if TYPE_CHECKING:
    from shardgraph.convert import Source, convert, register_source
    from shardgraph.dataset import ShardedDataset
    from shardgraph.format import Manifest, Schema
    from shardgraph.loader import GraphLoader
    from shardgraph.prefetch import DevicePrefetcher
    from shardgraph.repair import repair
    from shardgraph.sampling import BatchPlan
    from shardgraph.verify import verify
    from shardgraph.writer import DatasetWriter

__version__ = "0.1.0"

__all__ = [
    "BatchPlan",
    "ConversionError",
    "CorruptShardError",
    "DatasetWriter",
    "DevicePrefetcher",
    "FormatError",
    "GraphLoader",
    "Manifest",
    "Schema",
    "SchemaError",
    "ShardGraphError",
    "ShardedDataset",
    "Source",
    "convert",
    "register_source",
    "repair",
    "verify",
]

_HOME = {
    "BatchPlan": "shardgraph.sampling",
    "DatasetWriter": "shardgraph.writer",
    "DevicePrefetcher": "shardgraph.prefetch",
    "GraphLoader": "shardgraph.loader",
    "Manifest": "shardgraph.format",
    "Schema": "shardgraph.format",
    "ShardedDataset": "shardgraph.dataset",
    "Source": "shardgraph.convert",
    "register_source": "shardgraph.convert",
}
_NAMESAKES = frozenset({"convert", "repair", "verify"})


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    if name in _NAMESAKES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the module's names, those not yet loaded included."""
    return sorted({*globals(), *__all__})


class _CallableModule(ModuleType):
    """A sub-module that, called, calls the public function of the same name in it.

    ``help`` and ``inspect.signature`` tell of that function.
    """

    def _function(self) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function()(*args, **kwargs)

    @property
    def __signature__(self) -> Any:
        import inspect

        return inspect.signature(self._function())

    @property
    def __doc__(self) -> str:  # type: ignore[override]  # a module's own is not for users
        import inspect
        import textwrap

        function = self._function()
        plain = [p.replace(annotation=p.empty) for p in self.__signature__.parameters.values()]
        call = f"shardgraph.{function.__name__}{inspect.Signature(plain)}"
        shown = textwrap.fill(call, 92, subsequent_indent=" " * 8)
        first, _, rest = (inspect.getdoc(function) or "").partition("\n")
        return f"{first}\n\n{shown}\n{rest}"

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


class _Package(ModuleType):
    """The class of this package: ``convert``, ``repair`` and ``verify`` are modules and functions.

    An imported sub-module is bound to its name in the package, over a function of that name. So it
    is made callable as it is bound: ``shardgraph.convert(...)`` works whatever was imported first.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _NAMESAKES and isinstance(value, ModuleType):
            value.__class__ = _CallableModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
