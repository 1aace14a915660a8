"""Describing a graph: the schema that the first graph of a dataset gives it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.data.data import BaseData

from shardgraph.collate.values import (
    Context,
    ask_cat_dim,
    ask_inc,
    check_num_nodes,
    kind_of,
    parts_of,
)
from shardgraph.errors import SchemaError
from shardgraph.format.layout import STORAGE, quote
from shardgraph.format.schema import (
    NESTED,
    NUMBERS,
    SPARSE,
    Attribute,
    Column,
    Store,
    StoreKey,
    edge_axis,
)

PER_GRAPH_PARTS = frozenset({"size", "is_coalesced", "metadata"})


def describe_store(data: BaseData, store: Any, varying: frozenset[str]) -> Store:
    """The schema of one store of a graph.

    Raises:
        SchemaError: if an attribute's value cannot be represented.
    """
    key = store._key
    prefix = _prefix(data, key)
    attributes = []
    for name, value in store.items():
        if name == "num_nodes":
            if isinstance(data, HeteroData) and not isinstance(key, str):
                raise SchemaError("num_nodes of a HeteroData belongs to a node type")
            check_num_nodes(value)
            attributes.append(Attribute(name=name, kind=name))
        else:
            path = f"{prefix}{quote(name)}"
            attributes.append(_describe(name, value, path, (data, store), varying))
    counts = not isinstance(key, tuple) and bool(getattr(store, "can_infer_num_nodes", False))
    return Store(key=key, attributes=tuple(attributes), counts_nodes=counts)


def _prefix(data: BaseData, key: StoreKey) -> str:
    if not isinstance(data, HeteroData):
        return ""
    if key is None:
        return "graph/"
    return f"{edge_axis(key)}/" if isinstance(key, tuple) else f"node/{quote(key)}/"


def _describe(
    name: str, value: Any, path: str, context: Context, varying: frozenset[str]
) -> Attribute:
    kind = kind_of(name, value)
    if kind == "tensor":
        column = _tensor_column(name, value, path, context, varies=name in varying)
        return Attribute(name=name, kind=kind, column=column)
    if kind in NUMBERS:
        inc_shape = np.shape(ask_inc(context, name, value))
        column = Column(
            name=path,
            dtype=NUMBERS[kind],
            row_shape=(),
            cat_dim=None,
            inc_shape=inc_shape,
            per_graph=True,
        )
        return Attribute(name=name, kind=kind, column=column)
    if kind in {"str", "json"}:
        return Attribute(
            name=name, kind=kind, column=Column(name=path, dtype="uint8", row_shape=())
        )
    items = []
    for part, inner in parts_of(kind, value):
        inner_path = f"{path}/{quote(part)}"
        if kind == "dict":
            items.append(_describe(part, inner, inner_path, context, varying))
        elif kind in NESTED:  # these answer to the outer name in PyG
            item = _describe(name, inner, inner_path, context, varying)
            items.append(replace(item, name=part))
        elif part == "data":
            column = _tensor_column(name, value, inner_path, context, varies=False)
            items.append(Attribute(name=part, kind="tensor", column=column))
        else:
            column = _component_column(part, inner, inner_path)
            items.append(Attribute(name=part, kind="tensor", column=column))
    cat_dim = ask_cat_dim(context, name, value) if kind in SPARSE else None
    return Attribute(name=name, kind=kind, items=tuple(items), cat_dim=cat_dim)


def _component_column(part: str, value: Tensor, path: str) -> Column:
    """The column of a component of a sparse tensor or an index, to which no rule of PyG applies."""
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in STORAGE:
        raise SchemaError(f"component {part!r} has dtype {dtype}, which cannot be stored")
    shape = tuple(value.shape)
    if part in PER_GRAPH_PARTS:
        return Column(name=path, dtype=dtype, row_shape=shape, cat_dim=None, per_graph=True)
    if part == "indices":
        return Column(name=path, dtype=dtype, row_shape=shape[:1], cat_dim=-1)
    return Column(name=path, dtype=dtype, row_shape=shape[1:], cat_dim=0)


def _tensor_column(
    name: str, value: Tensor, path: str, context: Context, *, varies: bool
) -> Column:
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in STORAGE:
        raise SchemaError(f"attribute {name!r} has dtype {dtype}, which cannot be stored")
    inc_shape = np.shape(ask_inc(context, name, value))
    cat_dim = ask_cat_dim(context, name, value)
    if isinstance(cat_dim, tuple):
        raise SchemaError(f"attribute {name!r}: __cat_dim__ gave {cat_dim} for a dense tensor")
    shape = tuple(value.shape)
    if varies:
        return Column(name=path, dtype=dtype, row_shape=None, cat_dim=cat_dim, inc_shape=inc_shape)
    if cat_dim is None or not shape:
        return Column(
            name=path,
            dtype=dtype,
            row_shape=shape,
            cat_dim=None,
            inc_shape=inc_shape,
            per_graph=True,
        )
    if not -len(shape) <= cat_dim < len(shape):
        raise SchemaError(
            f"attribute {name!r} has shape {shape}, but __cat_dim__ names dimension {cat_dim}"
        )
    along = cat_dim % len(shape)
    return Column(
        name=path,
        dtype=dtype,
        row_shape=shape[:along] + shape[along + 1 :],
        cat_dim=cat_dim,
        inc_shape=inc_shape,
    )
