"""Columns to graphs: PyG objects whose tensors own their memory."""

from __future__ import annotations

import copy
import itertools
import json
import math
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import BaseData

from shardgraph.collate.recorded import RecordedData, RecordedHeteroData, Rules
from shardgraph.collate.values import BITS, SORT_ORDERS, class_name
from shardgraph.errors import CorruptShardError
from shardgraph.format.layout import COMPLEX, GRAPH_AXIS, STORAGE
from shardgraph.format.schema import INDEX_TYPES, NUMBERS, SPARSE, Attribute, Column, Schema, Store
from shardgraph.shards.gather import Selection
from shardgraph.shards.open import Shard
from shardgraph.shards.write import stored_row_shape

Decode: TypeAlias = "Callable[[Selection], list[Any]]"
DecodeOne: TypeAlias = "Callable[[Shard, int], Any]"


def graph_class(schema: Schema, given: Any = None) -> type[BaseData] | None:
    """The class of a dataset's graphs: ``given``, else the one they were written from, if known.

    Raises:
        TypeError: if ``given`` is no class that such graphs can be of.
    """
    base = HeteroData if schema.is_hetero else Data
    if given is None:
        return known_class(schema.data_class)
    if not (isinstance(given, type) and issubclass(given, base)):
        raise TypeError(f"data_cls must be {base.__name__} or a subclass of it, got {given!r}")
    return given


def known_class(name: str) -> type[BaseData] | None:
    """The class of that ``module:qualified name``, if this process has it already.

    Nothing is imported: a file must not decide what code runs.
    """
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # no __getattr__, which may import
    if isinstance(found, type) and issubclass(found, BaseData) and class_name(found) == name:
        return found
    return None


class GraphDecoder:
    """Makes the graphs of a selection, or one graph of a shard."""

    def __init__(self, schema: Schema, data_cls: type[BaseData] | None) -> None:
        self.schema = schema
        self.data_cls = data_cls
        self._rules = None if data_cls is not None else Rules(schema)
        self.template = self._empty()
        self._many = [
            (store, [(a.name, decoder_of(a)) for a in store.attributes]) for store in schema.stores
        ]
        self._one = [
            (store.key, [(a.name, _one(a, store)) for a in store.attributes])
            for store in schema.stores
        ]

    def _empty(self) -> BaseData:
        """A graph of the right class with all its stores and no attribute."""
        cls = self.data_cls
        if cls is None:
            cls = RecordedHeteroData if self.schema.is_hetero else RecordedData
        data = without_arguments(cls)
        for store in data.stores:
            store._mapping.clear()  # of what the constructor sets by itself
        for store in self.schema.stores:
            if isinstance(store.key, tuple):
                data.get_edge_store(*store.key)
            elif store.key is not None:
                data.get_node_store(store.key)
        return data

    def empty(self, name: str) -> BaseData | None:
        """A graph without nodes and edges that shows the shape of attribute ``name``.

        None if a store has it in a form that only a real graph can show.
        """
        data = copy.copy(self.template)
        for store in self.schema.stores:
            for attribute in store.attributes:
                if attribute.name != name:
                    continue
                column = attribute.column
                if attribute.kind != "tensor" or column is None or column.row_shape is None:
                    return None
                shape = list(column.row_shape)
                if not column.per_graph:
                    shape.insert(along(column), 0)
                _store_of(data, store)[name] = torch.empty(shape)
        return data

    def one(self, shard: Shard, local: int) -> BaseData:
        """Graph ``local`` of a shard."""
        data = copy.copy(self.template)
        stores = {store._key: store for store in data.stores}
        for key, attributes in self._one:
            target = stores[key]
            for name, decode in attributes:
                target[name] = decode(shard, local)
        if self._rules is not None:
            self._rules.attach(data, shard, local)
        return data

    def many(self, selection: Selection) -> list[BaseData]:
        """The graphs of a selection, in its order. Their tensors share memory with each other."""
        graphs = [copy.copy(self.template) for _ in range(selection.num_graphs)]
        for store, attributes in self._many:
            targets = [_store_of(data, store) for data in graphs]
            for name, decode in attributes:
                if name == "num_nodes":
                    values = selection.axis_rows(str(store.node_axis)).lengths.tolist()
                else:
                    values = decode(selection)
                for target, value in zip(targets, values, strict=False):
                    target[name] = value
        if self._rules is not None:
            self._rules.attach_many(graphs, selection)
        return graphs


def without_arguments(cls: type[BaseData]) -> Any:
    """An object of a graph class, its constructor's required arguments being None, as in PyG."""
    import inspect

    required = {
        name: None
        for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
    }
    return cls(**required)


def _store_of(data: BaseData, store: Store) -> Any:
    if store.key is None:
        return data.stores[0]
    return data.get_edge_store(*store.key) if isinstance(store.key, tuple) else data[store.key]


# Arrays and tensors ------------------------------------------------------------------------------


def along(column: Column) -> int:
    """The dimension of a graph's value that counts rows (0 where each graph is one row)."""
    if column.cat_dim is None or column.row_shape is None:
        return 0
    return column.cat_dim % (len(column.row_shape) + 1)


def to_tensor(array: Any, column: Column) -> Tensor:
    """A tensor of the column's dtype over an array of its storage dtype."""
    value = torch.from_numpy(array)
    if column.dtype == "bool":
        return value.view(torch.bool)
    if column.dtype in COMPLEX:
        if value.numel() == 0:  # NumPy gives it strides of 0, which the view refuses
            return torch.empty(value.shape[:-1], dtype=getattr(torch, column.dtype))
        return torch.view_as_complex(value)
    if column.dtype in BITS:
        return value.view(getattr(torch, column.dtype))
    return value


def _gathered(selection: Selection, column: Column) -> Tensor:
    """All rows of a column for a selection, the row dimension where PyG has it."""
    rows = selection.column_rows(column.name)
    shape = [rows.total, *stored_row_shape(column)]
    dim = along(column)
    shape.insert(dim, shape.pop(0))
    out = np.empty(shape, STORAGE[column.dtype])
    selection.column(column.name, np.moveaxis(out, dim, 0))
    return to_tensor(out, column)


def decoder_of(attribute: Attribute) -> Decode:
    """A function that reads one attribute of every graph of a selection."""
    column = attribute.column
    if column is None:
        return _decoder_of_parts(attribute)
    if attribute.kind in {"str", "json"}:
        return lambda selection: _texts(selection, column, attribute.kind)
    if attribute.kind in NUMBERS:
        return lambda selection: _gathered(selection, column).tolist()
    if column.row_shape is None:
        return lambda selection: _varying(selection, column)
    if column.per_graph:
        return lambda selection: list(_gathered(selection, column).unbind(0))
    dim = along(column)

    def decode(selection: Selection) -> list[Any]:
        lengths = selection.column_rows(column.name).lengths.tolist()
        return list(_gathered(selection, column).split(lengths, dim))

    return decode


def _texts(selection: Selection, column: Column, kind: str) -> list[Any]:
    rows = selection.column_rows(column.name)
    out = np.empty(rows.total, np.uint8)
    selection.column(column.name, out)
    data, ptr = out.tobytes(), rows.ptr.tolist()
    try:
        texts = [data[a:b].decode("utf-8", "surrogatepass") for a, b in itertools.pairwise(ptr)]
        return texts if kind == "str" else [json.loads(text) for text in texts]
    except (ValueError, RecursionError) as error:
        what = f"/columns/{column.name} holds no {kind} where it should: {error}"
        raise _damaged(selection, what) from error


def _damaged(selection: Selection, what: str) -> CorruptShardError:
    files = ", ".join(str(part.shard.path) for part in selection.parts)
    return CorruptShardError(
        f"{files}: {what}; check with `shardgraph verify` and restore the file"
    )


def _varying(selection: Selection, column: Column) -> list[Any]:
    flat = _gathered(selection, column)
    lengths = selection.column_rows(column.name).lengths.tolist()
    padded = selection.shapes(column.name).tolist()
    shapes = [[extent for extent in shape if extent >= 0] for shape in padded]
    if any(math.prod(shape) != length for shape, length in zip(shapes, lengths, strict=False)):
        raise _damaged(selection, f"/shapes/{column.name} does not fit its values")
    return [part.view(shape) for part, shape in zip(flat.split(lengths), shapes, strict=False)]


def _decoder_of_parts(attribute: Attribute) -> Decode:
    decoders = [decoder_of(item) for item in attribute.items]
    names = [item.name for item in attribute.items]
    kind = attribute.kind

    def decode(selection: Selection) -> list[Any]:
        if not decoders:
            return [compose(kind, [], []) for _ in range(selection.num_graphs)]
        columns = [decoder(selection) for decoder in decoders]
        try:
            return [compose(kind, names, list(values)) for values in zip(*columns, strict=True)]
        except (RuntimeError, ValueError, IndexError) as error:
            what = f"the parts of attribute {attribute.name!r} make no {kind}: {error}"
            raise _damaged(selection, what) from error

    return decode


def compose(kind: str, names: list[str], values: list[Any]) -> Any:
    """A value from its parts."""
    if kind == "dict":
        return dict(zip(names, values, strict=False))
    if kind == "list":
        return values
    if kind == "tuple":
        return tuple(values)
    if kind in INDEX_TYPES:
        return _index(kind, *values)
    if kind in SPARSE:
        return _sparse(kind, dict(zip(names, values, strict=False)))
    raise AssertionError(f"kind {kind!r} has no parts")


def _index(kind: str, data: Tensor, metadata: Tensor) -> Tensor:
    numbers = metadata.tolist()
    if kind == "index":
        size, is_sorted = numbers
        index: Tensor = Index(
            data.contiguous(), dim_size=None if size < 0 else size, is_sorted=bool(is_sorted)
        )
        return index
    rows, columns, order, undirected = numbers
    edge_index: Tensor = EdgeIndex(
        data.contiguous(),
        sparse_size=(None if rows < 0 else rows, None if columns < 0 else columns),
        sort_order=SORT_ORDERS[order],
        is_undirected=bool(undirected),
    )
    return edge_index


def _sparse(kind: str, parts: dict[str, Tensor]) -> Tensor:
    size = tuple(parts["size"].tolist())
    if kind == "sparse_coo":
        return torch.sparse_coo_tensor(
            parts["indices"].contiguous(),
            parts["values"],
            size,
            is_coalesced=bool(parts["is_coalesced"]),
            check_invariants=True,
        )
    make = torch.sparse_csr_tensor if kind == "sparse_csr" else torch.sparse_csc_tensor
    # Torch before 2.5 looks at the stride of even a single index, which NumPy leaves open.
    ordinary = torch.contiguous_format
    compressed, plain = (part.clone(memory_format=ordinary) for part in list(parts.values())[:2])
    return make(compressed, plain, parts["values"], size, check_invariants=True)


# One graph ---------------------------------------------------------------------------------------


def _one(attribute: Attribute, store: Store) -> DecodeOne:
    """A function that reads one attribute of one graph; plain tensors without any detour."""
    column, axis = attribute.column, str(store.node_axis)
    if attribute.kind == "num_nodes":
        return lambda shard, local: int(shard.ptrs[axis][local + 1] - shard.ptrs[axis][local])
    if attribute.kind in NUMBERS and column is not None:
        number = {"bool": bool, "int": int, "float": float}[attribute.kind]
        return lambda shard, local: number(_one_rows(shard, local, column)[0])
    if attribute.kind != "tensor" or column is None or column.row_shape is None:
        many = decoder_of(attribute)
        return lambda shard, local: many(Selection.of_one(shard, local))[0]
    dtype = np.dtype(STORAGE[column.dtype])
    dim = along(column)

    def decode(shard: Shard, local: int) -> Tensor:
        rows = _one_rows(shard, local, column)
        if column.per_graph:
            rows = rows[0]
        elif dim:
            rows = np.moveaxis(rows, 0, dim)
        return to_tensor(np.array(rows, dtype, order="C"), column)

    return decode


def _one_rows(shard: Shard, local: int, column: Column) -> Any:
    name = column.name
    source = shard.columns.get(name)
    if source is None:
        return np.empty((0, *stored_row_shape(column)), STORAGE[column.dtype])
    axis = shard.axis_of[name]
    if axis == GRAPH_AXIS:
        return source[local : local + 1]
    start, stop = shard.ptrs[axis][local : local + 2].tolist()
    if not 0 <= start <= stop <= len(source):
        raise CorruptShardError(
            f"{shard.path}: /ptr/{axis} gives rows {start} to {stop} of a column of {len(source)} "
            "rows; check with `shardgraph verify` and restore the file"
        )
    return source[start:stop]
