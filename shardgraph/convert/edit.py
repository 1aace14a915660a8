"""What is done to each graph between reading and writing it: filter, transform, select, cast."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardgraph.convert.function import Function, describe, load_function
from shardgraph.errors import SchemaError

if TYPE_CHECKING:
    import torch
    from torch_geometric.data.data import BaseData


class Edit:
    """Makes of a graph the one to write, or None. Picklable if its functions are.

    Args:
        pre_filter: Says whether a graph is kept. A function, or the name of one as
            ``package.module:function`` or ``file.py:function``.
        pre_transform: Makes of a kept graph the one to go on with; likewise.
        keys: Names of the attributes to keep, None for all.
        drop: Names of attributes to leave out; a graph may lack them.
        cast: Name of a tensor attribute to the dtype it is stored in, such as ``"float16"``.

    Raises:
        ValueError: if a function cannot be found, or a dtype is none of torch's.
    """

    def __init__(
        self,
        *,
        pre_filter: str | Function | None = None,
        pre_transform: str | Function | None = None,
        keys: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        cast: Mapping[str, str] | None = None,
    ) -> None:
        self._functions = {"pre_filter": pre_filter, "pre_transform": pre_transform}
        self._keys = None if keys is None else tuple(keys)
        self._drop = frozenset(drop)
        self._cast = dict(cast or {})
        for function in self._functions.values():
            _resolve(function)
        for dtype in self._cast.values():
            _dtype(dtype)

    def __call__(self, data: BaseData) -> BaseData | None:
        """The graph to write; None if the filter drops it. ``data`` itself stays as it is.

        Raises:
            SchemaError: if it or what the transform returns is not one graph, lacks an attribute
                to keep or cast, or the cast loses values.
        """
        keep = _resolve(self._functions["pre_filter"])
        if keep is not None and not keep(data):
            return None
        transform = _resolve(self._functions["pre_transform"])
        if transform is not None:
            data = transform(_cloned(data))
        _check_single(data, self._functions["pre_transform"])
        if self._keys is not None or self._drop or self._cast:
            data = copy.copy(data)
            self._select(data)
            for name, dtype in self._cast.items():
                _cast(data, name, _dtype(dtype))
        return data

    def _select(self, data: Any) -> None:
        """Removes attributes; where they told the number of nodes, it becomes ``num_nodes``."""
        if self._keys is not None:
            _find(data, self._keys)
        for store in data.stores:
            gone = [name for name in store.keys() if self._is_dropped(name)]  # noqa: SIM118 (PyG's)
            if not gone:
                continue
            # Stores of edges, and of what is no node's, have no number of nodes.
            tells = any(map(_tells_num_nodes, gone))
            num_nodes = getattr(store, "num_nodes", None) if tells else None
            for name in gone:
                del store[name]
            if num_nodes is not None and not any(map(_tells_num_nodes, store.keys())):
                store.num_nodes = num_nodes

    def _is_dropped(self, name: str) -> bool:
        unwanted = self._keys is not None and name not in self._keys and name != "num_nodes"
        return unwanted or name in self._drop

    def describe(self) -> dict[str, Any]:
        """The edits as JSON, functions by name and digest of their code; without those unused."""
        functions = {name: describe(f) for name, f in self._functions.items() if f is not None}
        keys = {} if self._keys is None else {"keys": list(self._keys)}  # none is a choice too
        rest = {"drop": sorted(self._drop), "cast": self._cast}
        return functions | keys | {name: value for name, value in rest.items() if value}


def _cloned(data: Any) -> Any:
    """The graph with tensors of its own: a source may hold on to its, and read them again."""
    data = copy.copy(data)
    for store in data.stores:
        for name, value in list(store.items()):
            if (own := _own(value)) is not value:
                store[name] = own
    return data


def _own(value: Any) -> Any:
    """The value with clones of its tensors; unlike PyG's ``clone``, tuples stay tuples."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.clone()
    if type(value) in (list, tuple):
        return type(value)(map(_own, value))
    return {key: _own(item) for key, item in value.items()} if type(value) is dict else value


def _check_single(data: object, transform: str | Function | None) -> None:
    from torch_geometric.data import Batch, Data, HeteroData

    if isinstance(data, Batch) or not isinstance(data, Data | HeteroData):
        origin = "the source yielded"
        if transform is not None:
            origin = f"pre_transform (--transform) {describe(transform)['name']} returned"
        raise SchemaError(
            f"{origin} a {type(data).__name__}, not a graph: expected one Data or HeteroData"
        )


def _tells_num_nodes(name: str) -> bool:
    """Whether PyG takes the number of nodes from an attribute of that name."""
    from torch_geometric.data.storage import N_KEYS

    return name in N_KEYS or name == "num_nodes" or "node" in name


def _find(data: Any, names: Sequence[str]) -> None:
    """Raises SchemaError for a name that no store of the graph has."""
    known = {name for store in data.stores for name in store.keys()}  # noqa: SIM118 (PyG's)
    for name in names:
        if name not in known:
            raise SchemaError(f"no attribute {name!r} in the graph; it has {sorted(known)}")


def _cast(data: Any, name: str, dtype: torch.dtype) -> None:
    _find(data, [name])
    for store in data.stores:
        if name in store:
            store[name] = cast_tensor(name, store[name], dtype)


def cast_tensor(name: str, value: Any, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in another dtype; what a narrower float rounds is accepted.

    Raises:
        SchemaError: if it is no tensor, a finite value is beyond the dtype, or one does not survive
            the cast to an integer or bool dtype.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        raise SchemaError(f"attribute {name!r} is a {type(value).__name__}, only tensors are cast")
    if dtype.is_complex < value.dtype.is_complex:
        raise SchemaError(f"attribute {name!r} is complex; {dtype} would drop its imaginary part")
    found = value.to(dtype)
    wide = value.float() if value.itemsize == 1 else value  # torch compares no float8
    if dtype.is_floating_point and dtype.itemsize == 1:  # nor do those become infinite
        lost = torch.isfinite(wide) & (wide.abs() > torch.finfo(dtype).max)
    elif dtype.is_floating_point or dtype.is_complex:
        lost = torch.isfinite(wide) & ~torch.isfinite(found)
    else:
        lost = found.to(wide.dtype) != wide
    if lost.any():
        first = value[lost][0].item()
        raise SchemaError(f"attribute {name!r} holds {first}, which {dtype} cannot hold")
    return found


def _dtype(name: str) -> torch.dtype:
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(  # noqa: TRY004 (the argument names no dtype)
            f"unknown dtype {name!r}; use torch's names, such as 'float16' or 'int32'"
        )
    return found


def _resolve(function: str | Function | None) -> Function | None:
    return load_function(function) if isinstance(function, str) else function
