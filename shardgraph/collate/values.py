"""Values of attributes: which kind each is, what its parts are, and what PyG says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex, Index
from torch_geometric.data.data import BaseData

from shardgraph.errors import SchemaError
from shardgraph.format.schema import (
    INDEX_TYPES,
    SPARSE,
)

Context: TypeAlias = "tuple[BaseData, Any]"
"""The graph and the store that an attribute is read from: what PyG's rules are asked with."""

BITS = {"bfloat16": torch.int16, "float8_e4m3fn": torch.uint8, "float8_e5m2": torch.uint8}
_LAYOUTS = {
    torch.sparse_coo: "sparse_coo",
    torch.sparse_csr: "sparse_csr",
    torch.sparse_csc: "sparse_csc",
}
_KINDS = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    EdgeIndex: "edge_index",
    Index: "index",
}
# What PyG counts nodes and edges by, before anything else (torch_geometric/data/storage.py).
NODE_KEYS = frozenset({"x", "feat", "pos", "batch", "node_type", "n_id", "tf"})
EDGE_KEYS = frozenset({"edge_index", "edge_weight", "edge_attr", "edge_type", "e_id"})

SORT_ORDERS = (None, "row", "col")


def class_name(cls: type) -> str:
    """``module:qualified name`` of a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def mismatch(name: str, expected: Any, found: Any) -> SchemaError:
    """The error for a value that is not what the schema says."""
    return SchemaError(f"attribute {name!r}: expected {expected}, found {found}")


def ask_cat_dim(context: Context, name: str, value: Any) -> Any:
    """The dimension, or dimensions, along which PyG would join the attribute; None: a new one."""
    data, store = context
    dim = data.__cat_dim__(name, value, store)
    return tuple(int(d) for d in dim) if isinstance(dim, tuple) else dim


def ask_inc(context: Context, name: str, value: Any) -> Any:
    """What PyG would add to the next graph's value, as an int or an int64 array."""
    data, store = context
    try:
        inc = data.__inc__(name, value, store)
    except (RuntimeError, TypeError) as error:
        if "batch" in name and isinstance(value, Tensor) and value.numel() == 0:
            return 0  # PyG takes max() + 1, which an empty tensor has not
        raise SchemaError(
            f"attribute {name!r}: __inc__ cannot tell its increment: {error}"
        ) from error
    if isinstance(inc, Tensor) and inc.dtype is torch.int64:
        inc = inc.detach().cpu().numpy()
    if type(inc) is int or getattr(inc, "dtype", None) == np.int64:
        return np.array(inc) if np.ndim(inc) else int(inc)  # a copy
    # PyG would add others in their own dtype, which is not stored.
    raise SchemaError(
        f"attribute {name!r}: __inc__ must give an int or an int64 tensor, gave {inc!r}"
    )


def kind_of(name: str, value: Any) -> str:
    """The kind of attribute that a value is, see ``format/schema.py``.

    Raises:
        SchemaError: if it is none that can be represented.
    """
    cls = type(value)
    if cls in _KINDS:  # exactly: what a subclass adds would be lost
        return _KINDS[cls]
    if isinstance(value, Tensor):
        return tensor_kind(name, value)
    if cls is dict:
        if all(type(key) is str for key in value):
            return "dict"
        raise SchemaError(f"attribute {name!r} is a dict with keys that are not text")
    if cls in {list, tuple} and _holds_tensor(value):
        return cls.__name__
    to_json(name, value)
    return "json"


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_tensor, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensor, value))
    return isinstance(value, Tensor)


def tensor_kind(name: str, value: Tensor) -> str:
    """The kind of a tensor by its layout.

    Raises:
        SchemaError: if it is nested, or of a layout that cannot be stored.
    """
    if type(value) not in {Tensor, torch.nn.Parameter}:
        raise SchemaError(
            f"attribute {name!r} of type {type(value).__name__} cannot be stored: "
            "use value.as_subclass(torch.Tensor)"
        )
    if value.is_nested:
        raise SchemaError(f"attribute {name!r} is a nested tensor; store a list of tensors instead")
    if value.layout is torch.strided:
        return "tensor"
    if value.layout in _LAYOUTS:
        return _LAYOUTS[value.layout]
    raise SchemaError(f"attribute {name!r} has layout {value.layout}, which cannot be stored")


def to_json(name: str, value: Any) -> bytes:
    """A value as JSON text that reads back as the same.

    Raises:
        SchemaError: if there is no such text.
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
        back = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(_unstorable(name, value)) from error
    if not _same(back, value):
        raise SchemaError(_unstorable(name, value))
    return text.encode("utf-8", "surrogatepass")


def _same(a: Any, b: Any) -> bool:
    """Equal and of equal types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b) or (a != a and b != b)


def _unstorable(name: str, value: Any) -> str:
    hint = "store tensors, numbers, text, or lists and dicts of these"
    if isinstance(value, np.ndarray):
        hint = "use torch.from_numpy(value)"
    elif isinstance(value, np.generic):
        hint = "use value.item()"
    elif isinstance(value, (tuple, set)):
        hint = "use a list"
    elif isinstance(value, Mapping):
        hint = "use a dict"
    return f"attribute {name!r} of type {type(value).__name__} cannot be stored: {hint}"


def parts_of(kind: str, value: Any) -> list[tuple[str, Any]]:
    """The named parts of a value that is not a leaf."""
    if kind == "dict":
        return list(value.items())
    if kind in {"list", "tuple"}:
        return [(str(place), inner) for place, inner in enumerate(value)]
    if kind in INDEX_TYPES:
        return list(zip(INDEX_TYPES[kind], (value, _metadata(value)), strict=False))
    return [(part, _component(value, part)) for part in SPARSE[kind]]


def _component(value: Tensor, part: str) -> Tensor:
    if part == "size":
        return torch.tensor(value.size())
    if part == "is_coalesced":
        return torch.tensor(value.is_coalesced())
    if value.layout is torch.sparse_coo:
        # The methods without underscore demand a coalesced tensor; duplicates must survive.
        return value._indices() if part == "indices" else value._values()
    component: Tensor = getattr(value, part)()
    return component


def _metadata(value: Any) -> Tensor:
    """EdgeIndex: rows, columns, sort order, undirected. Index: size, sorted. -1: unknown."""
    if isinstance(value, EdgeIndex):
        rows, columns = value.sparse_size()
        order = value._sort_order
        code = SORT_ORDERS.index(None if order is None else order.value)
        sizes = [-1 if size is None else int(size) for size in (rows, columns)]
        return torch.tensor([*sizes, code, int(value.is_undirected)])
    size = value.dim_size
    return torch.tensor([-1 if size is None else int(size), int(value.is_sorted)])


def check_num_nodes(value: Any) -> None:
    """Checks an explicit number of nodes.

    Raises:
        SchemaError: if it is not a non-negative int.
    """
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise mismatch("num_nodes", "a non-negative int of 64 bits", repr(value))
