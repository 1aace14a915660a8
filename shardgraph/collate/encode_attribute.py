"""Encoding one attribute: its values are checked against its column and become cells of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import BaseData

from shardgraph.collate.values import (
    BITS,
    Context,
    ask_cat_dim,
    ask_inc,
    check_num_nodes,
    kind_of,
    mismatch,
    parts_of,
    tensor_kind,
    to_json,
)
from shardgraph.format.layout import STORAGE
from shardgraph.format.schema import (
    INDEX_TYPES,
    NESTED,
    NUMBERS,
    SPARSE,
    Attribute,
    Column,
    StoreKey,
)
from shardgraph.shards.write import ENDPOINTS_INC, NO_INC, NODES_INC, Cell

Encode: TypeAlias = "Callable[[Any, BaseData, Any, dict[str, Cell]], None]"
"""Encodes a value of a graph, found in a store of it, into the cells by column."""


class AttributeCompiler:
    """Makes the functions that encode the attributes of one store, and their increment rules.

    ``rules`` has by column what ``__inc__`` gives, if the class of the graphs leaves that to PyG;
    None where each graph must be asked.
    """

    def __init__(self, store_key: StoreKey, cls: type[BaseData]) -> None:
        self.rules: dict[str, str | None] = {}
        self.default_rules = any(
            (cls.__inc__, cls.__cat_dim__, cls.num_nodes)
            == (base.__inc__, base.__cat_dim__, base.num_nodes)
            for base in (Data, HeteroData)
        )
        self._store_key = store_key
        self._is_hetero = issubclass(cls, HeteroData)

    def compile(self, attribute: Attribute, key: str) -> Encode:
        """A function that encodes one attribute; ``key`` is the name PyG's rules are asked with."""
        column = attribute.column
        if attribute.kind == "num_nodes":
            return _encode_num_nodes
        if column is None:
            return self._compile_parts(attribute, key)
        if attribute.kind in {"str", "json"}:
            self.rules[column.name] = NO_INC
            return _encode_text(attribute, column)
        rule = self._static_rule(key, is_tensor=attribute.kind == "tensor")
        self.rules[column.name] = rule
        if attribute.kind in NUMBERS:
            return _encode_number(attribute, column, key, ask=rule is None)
        return _encode_tensor(attribute, column, key, rule, ask_dim=not self.default_rules)

    def _static_rule(self, key: str, *, is_tensor: bool) -> str | None:
        """The increment rule where PyG's default ``__inc__`` makes it known by name alone."""
        if not self.default_rules or ("batch" in key and is_tensor):
            return None
        if self._is_hetero:
            typed = isinstance(self._store_key, tuple) and "index" in key
            return ENDPOINTS_INC if typed else NO_INC
        return NODES_INC if "index" in key or key == "face" else NO_INC

    def _compile_parts(self, attribute: Attribute, key: str) -> Encode:
        kind = attribute.kind
        names = [item.name for item in attribute.items]
        ask_dim = kind in SPARSE and not self.default_rules
        encoders = []
        for item in attribute.items:
            if kind in NESTED:
                encoders.append(self.compile(item, item.name if kind == "dict" else key))
            elif item.column is not None and item.name == "data":
                rule = self.rules[item.column.name] = self._static_rule(key, is_tensor=True)
                encode_data = _encode_tensor(
                    item, item.column, key, rule, ask_dim=not self.default_rules
                )
                encoders.append(encode_data)
            elif item.column is not None:
                self.rules[item.column.name] = NO_INC
                encoders.append(_encode_tensor(item, item.column, key, NO_INC, ask_dim=False))

        def encode(value: Any, data: BaseData, store: Any, cells: dict[str, Cell]) -> None:
            if (found := kind_of(key, value)) != kind:
                raise mismatch(attribute.name, kind, found)
            parts = dict(parts_of(kind, value))
            if parts.keys() != set(names):
                raise mismatch(attribute.name, f"{kind} of {names}", f"{kind} of {list(parts)}")
            if ask_dim and (dim := ask_cat_dim((data, store), key, value)) != attribute.cat_dim:
                raise mismatch(attribute.name, f"__cat_dim__ {attribute.cat_dim}", dim)
            for name, encoder in zip(names, encoders, strict=False):
                encoder(parts[name], data, store, cells)

        return encode


def _encode_num_nodes(value: Any, _data: BaseData, _store: Any, _cells: dict[str, Cell]) -> None:
    check_num_nodes(value)


def _encode_text(attribute: Attribute, column: Column) -> Encode:
    name, kind = attribute.name, attribute.kind

    def encode(value: Any, _data: BaseData, _store: Any, cells: dict[str, Cell]) -> None:
        if (found := kind_of(name, value)) != kind:
            raise mismatch(name, kind, found)
        text = value.encode("utf-8", "surrogatepass") if kind == "str" else to_json(name, value)
        cells[column.name] = Cell(text, len(text))

    return encode


def _encode_number(attribute: Attribute, column: Column, key: str, *, ask: bool) -> Encode:
    name, kind = attribute.name, attribute.kind
    dtype = np.dtype(STORAGE[column.dtype])

    def encode(value: Any, data: BaseData, store: Any, cells: dict[str, Cell]) -> None:
        if (found := kind_of(name, value)) != kind:
            raise mismatch(name, kind, found)
        try:
            payload = np.asarray(value, dtype).tobytes()
        except OverflowError:
            raise mismatch(name, "an int of 64 bits", value) from None
        inc = _checked_inc((data, store), key, value, column) if ask else None
        cells[column.name] = Cell(payload, 1, inc)

    return encode


def _encode_tensor(
    attribute: Attribute, column: Column, key: str, rule: str | None, *, ask_dim: bool
) -> Encode:
    name, row_shape, cat_dim = attribute.name, column.row_shape, column.cat_dim
    torch_dtype: torch.dtype = getattr(torch, column.dtype)
    bits = BITS.get(column.dtype)
    is_complex, ask = torch_dtype.is_complex, rule is None
    ndim = None if row_shape is None else len(row_shape) + (not column.per_graph)
    along = 0 if cat_dim is None or ndim is None else cat_dim % ndim
    per_graph, column_name = column.per_graph, column.name
    rows_first = list(range((ndim or 0) + is_complex))
    rows_first.insert(0, rows_first.pop(along) if rows_first else 0)

    def encode(value: Any, data: BaseData, store: Any, cells: dict[str, Cell]) -> None:
        asked = value
        if type(value) is not Tensor:
            found = kind_of(name, value)
            if found in INDEX_TYPES and name == "data":
                value = value.as_tensor()
            elif found != "tensor":
                raise mismatch(name, f"a tensor of {column.dtype}", found)
        if value.dtype is not torch_dtype:
            raise mismatch(name, f"dtype {column.dtype}", f"dtype {value.dtype}")
        if value.layout is not torch.strided or value.is_nested:
            raise mismatch(name, "a dense tensor", tensor_kind(name, value))
        if value.dim() != ndim and ndim is not None:
            raise mismatch(name, _expected_shape(column), f"shape {list(value.shape)}")
        array = to_numpy(value, bits, is_complex=is_complex)
        shape = None
        if row_shape is None:
            rows, shape = value.numel(), tuple(value.shape)
        elif per_graph:
            rows = 1
            if tuple(value.shape) != row_shape:
                raise mismatch(name, _expected_shape(column), f"shape {list(value.shape)}")
        else:
            rows = value.shape[along]
            if along:
                array = array.transpose(rows_first)
            if array.shape[1:ndim] != row_shape:
                raise mismatch(name, _expected_shape(column), f"shape {list(value.shape)}")
        if ask_dim and not (per_graph and not row_shape):
            dim = ask_cat_dim((data, store), key, asked)
            if dim != cat_dim:
                raise mismatch(name, f"__cat_dim__ {cat_dim}", dim)
        inc = _checked_inc((data, store), key, asked, column) if ask else None
        cells[column_name] = Cell(array.tobytes(), rows, inc, shape)

    return encode


def _expected_shape(column: Column) -> str:
    if column.per_graph or column.row_shape is None or column.cat_dim is None:
        return f"shape {list(column.row_shape or ())}"
    shape: list[Any] = list(column.row_shape)
    shape.insert(column.cat_dim % (len(shape) + 1), "*")
    text = ", ".join(map(str, shape))
    return f"shape [{text}] (declare it as varying if other extents may differ)"


def _checked_inc(context: Context, key: str, value: Any, column: Column) -> Any:
    inc = ask_inc(context, key, value)
    if np.shape(inc) != column.inc_shape:
        raise mismatch(key, f"__inc__ of shape {column.inc_shape}", f"shape {np.shape(inc)}")
    return inc


def to_numpy(value: Tensor, bits: torch.dtype | None, *, is_complex: bool) -> Any:
    """A tensor's values in their storage dtype; complex numbers as pairs in one more dimension."""
    if bits is None and not is_complex:
        try:
            return value.numpy()
        except (RuntimeError, TypeError):
            return _plain(value).numpy()
    value = _plain(value)
    if is_complex:
        return torch.view_as_real(value.resolve_conj()).numpy()
    if bits is not None:
        value = value.view(bits) if value.dim() else value.reshape(1).view(bits).reshape(())
    return value.numpy()


def _plain(value: Tensor) -> Tensor:
    """A tensor without autograd, on the CPU, and not negated lazily."""
    return value.detach().cpu().resolve_neg()
