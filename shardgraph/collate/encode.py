"""Graphs to columns: what a PyG object holds, checked against the schema and encoded as bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import BaseData

from shardgraph.errors import SchemaError
from shardgraph.format.layout import STORAGE, quote
from shardgraph.format.schema import (
    INDEX_TYPES,
    NESTED,
    NUMBERS,
    SPARSE,
    Attribute,
    Column,
    Schema,
    Store,
    StoreKey,
    canonical,
    edge_axis,
)
from shardgraph.shards.write import ENDPOINTS_INC, NO_INC, NODES_INC, Cell, GraphRecord

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
# Attributes that tell a number of nodes, though PyG's batch counts no nodes by them alone
# (torch_geometric/data/storage.py, N_KEYS and can_infer_num_nodes).
_ALSO_TELL_NODES = frozenset({"feat", "n_id", "tf"})
SORT_ORDERS = (None, "row", "col")
PER_GRAPH_PARTS = frozenset({"size", "is_coalesced", "metadata"})


class GraphEncoder:
    """Encodes graphs of one dataset; the first graph fixes the schema, or ``schema`` does.

    ``varying`` names tensors whose trailing shape may differ from graph to graph.
    """

    def __init__(self, schema: Schema | None = None, *, varying: frozenset[str] = frozenset()):
        self.schema = schema
        self.varying = varying
        self.rules: dict[str, str | None] = {}
        self._stores: dict[StoreKey, _StoreEncoder] = {}
        self._class: type[BaseData] | None = None
        self._num_graphs = 0

    def encode(self, data: BaseData, graph: int) -> GraphRecord:
        """One graph as a record of cells.

        Raises:
            TypeError: if ``data`` is no ``Data`` or ``HeteroData``.
            SchemaError: if it does not fit, naming graph, attribute, expected and found.
        """
        schema, cls, num_stores = self.schema, self._class, len(self._stores)
        try:
            record = self._encode(data)
        except BaseException as error:
            # What a graph brought into the schema goes with it.
            self.schema, self._class = schema, cls
            for key in list(self._stores)[num_stores:]:
                del self._stores[key]
            if isinstance(error, SchemaError):
                raise SchemaError(f"graph {graph}: {error}") from error
            raise
        self._num_graphs += 1
        return record

    def _encode(self, data: BaseData) -> GraphRecord:
        if type(data) is not self._class:
            self._meet_class(data)
        record = GraphRecord(sizes={}, cells={})
        for store in data.stores:
            key = store._key
            if key is not None and len(store) == 0:
                continue  # a type without anything is a type that the graph lacks
            encoder = self._stores.get(key)
            if encoder is None:
                encoder = self._meet_store(data, store)
            encoder.encode(data, store, record)
        if isinstance(data, HeteroData):
            self._check_types(record)
        return record

    def _check_types(self, record: GraphRecord) -> None:
        """Checks what is across the stores of a typed graph: absent types, and edges' endpoints."""
        for key, encoder in self._stores.items():
            axis = encoder.store.node_axis or encoder.store.edge_axis
            if key is None or axis is None:
                continue
            if axis not in record.sizes:
                encoder.check_can_be_empty("it lacks")
            elif isinstance(key, tuple) and record.sizes[axis]:
                for node_type in (key[0], key[2]):
                    if not record.sizes.get(f"node/{quote(node_type)}"):
                        raise SchemaError(
                            f"edge type {key} has {record.sizes[axis]} edges, but node type "
                            f"{node_type!r} has no known number of nodes; set its num_nodes"
                        )

    def _meet_class(self, data: BaseData) -> None:
        if not isinstance(data, (Data, HeteroData)):
            raise TypeError(
                f"expected a torch_geometric Data or HeteroData, got {type(data).__name__}"
            )
        name = class_name(type(data))
        if self.schema is None:
            self.schema = Schema(
                data_class=name, is_hetero=isinstance(data, HeteroData), stores=()
            )
        if name != self.schema.data_class:
            raise SchemaError(f"expected a {self.schema.data_class}, found a {name}")
        self._class = type(data)
        for store in self.schema.stores:
            self._add_encoder(store)

    def _meet_store(self, data: BaseData, store: Any) -> _StoreEncoder:
        """Takes a store met for the first time into the schema: a new type, or the first graph."""
        schema = self.schema
        if schema is None:
            raise AssertionError("the class is met before its stores")
        described = describe_store(data, store, self.varying)
        self.schema = Schema(
            data_class=schema.data_class,
            is_hetero=schema.is_hetero,
            stores=canonical((*schema.stores, described)),
        )
        encoder = self._add_encoder(described)
        if self._num_graphs and store._key is not None:
            encoder.check_can_be_empty("the graphs before it lack")
        return encoder

    def _add_encoder(self, store: Store) -> _StoreEncoder:
        if self._class is None:
            raise AssertionError("the class is met before its stores")
        encoder = self._stores[store.key] = _StoreEncoder(store, self._class)
        self.rules.update(encoder.rules)
        return encoder


def class_name(cls: type) -> str:
    """``module:qualified name`` of a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


# Describing the first graph ----------------------------------------------------------------------


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
            _encode_num_nodes(value, data, store, {})
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
        inc_shape = np.shape(_ask_inc(context, name, value))
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
    cat_dim = _ask_cat_dim(context, name, value) if kind in SPARSE else None
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
    inc_shape = np.shape(_ask_inc(context, name, value))
    cat_dim = _ask_cat_dim(context, name, value)
    if isinstance(cat_dim, tuple):
        raise SchemaError(f"attribute {name!r}: __cat_dim__ gave {cat_dim} for a dense tensor")
    shape = tuple(value.shape)
    if varies:
        return Column(
            name=path, dtype=dtype, row_shape=None, cat_dim=cat_dim, inc_shape=inc_shape
        )
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


def _ask_cat_dim(context: Context, name: str, value: Any) -> Any:
    data, store = context
    dim = data.__cat_dim__(name, value, store)
    return tuple(int(d) for d in dim) if isinstance(dim, tuple) else dim


def _ask_inc(context: Context, name: str, value: Any) -> Any:
    """What PyG would add to the next graph's value, as an int or an int64 array."""
    data, store = context
    try:
        inc = data.__inc__(name, value, store)
    except (RuntimeError, TypeError) as error:
        if "batch" in name and isinstance(value, Tensor) and value.numel() == 0:
            return 0  # PyG takes max() + 1, which an empty tensor has not
        raise SchemaError(f"attribute {name!r}: __inc__ cannot tell its increment: {error}") from error
    if isinstance(inc, Tensor) and not (inc.is_floating_point() or inc.is_complex()):
        inc = inc.detach().cpu().numpy()
    array = np.asarray(inc if isinstance(inc, (int, np.ndarray, np.generic)) else np.nan)
    if array.dtype.kind not in "biu":
        raise SchemaError(f"attribute {name!r}: __inc__ must give integers, gave {inc!r}")
    return array.astype(np.int64) if array.shape else int(array)  # a copy


def kind_of(name: str, value: Any) -> str:
    """The kind of attribute that a value is, see ``format/schema.py``.

    Raises:
        SchemaError: if it is none that can be represented.
    """
    cls = type(value)
    if cls in _KINDS:  # exactly: what a subclass adds would be lost
        return _KINDS[cls]
    if isinstance(value, Tensor):
        return _tensor_kind(name, value)
    if cls is dict:
        if all(type(key) is str for key in value):
            return "dict"
        raise SchemaError(f"attribute {name!r} is a dict with keys that are not text")
    if cls in {list, tuple} and _holds_tensor(value):
        return cls.__name__
    _to_json(name, value)
    return "json"


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_tensor, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensor, value))
    return isinstance(value, Tensor)


def _tensor_kind(name: str, value: Tensor) -> str:
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


def _to_json(name: str, value: Any) -> bytes:
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
        return list(zip(INDEX_TYPES[kind], (value, _metadata(value))))
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


# Encoding every graph ----------------------------------------------------------------------------

# What PyG counts nodes and edges by, before anything else (torch_geometric/data/storage.py).
_N_KEYS = frozenset({"x", "feat", "pos", "batch", "node_type", "n_id", "tf"})
_E_KEYS = frozenset({"edge_index", "edge_weight", "edge_attr", "edge_type", "e_id"})

Encode: TypeAlias = "Callable[[Any, BaseData, Any, dict[str, Cell]], None]"


class _StoreEncoder:
    """Encodes one store of each graph."""

    def __init__(self, store: Store, cls: type[BaseData]) -> None:
        self.store = store
        self.names = [attribute.name for attribute in store.attributes]
        self.rules: dict[str, str | None] = {}
        self._default_rules = any(
            (cls.__inc__, cls.__cat_dim__, cls.num_nodes)
            == (base.__inc__, base.__cat_dim__, base.num_nodes)
            for base in (Data, HeteroData)
        )
        self._hetero = issubclass(cls, HeteroData)
        is_global = self._hetero and store.key is None
        names = {attribute.name for attribute in store.attributes}
        # PyG warns when it is asked for a number of nodes that nothing can tell.
        self._tells_nodes = store.counts_nodes or not _ALSO_TELL_NODES.isdisjoint(names)
        self._node_axis = None if is_global else store.node_axis
        self._edge_axis = None if is_global else store.edge_axis
        self._nodes_from = self._counting_column(_N_KEYS, "num_nodes")
        self._edges_from = self._counting_column(_E_KEYS, "num_edges")
        self.encoders = [(a.name, self._compile(a, a.name)) for a in store.attributes]

    def encode(self, data: BaseData, store: Any, record: GraphRecord) -> None:
        """Adds the store's sizes and cells to the record."""
        if list(store.keys()) != self.names:
            self._check_names(store)
        cells = record.cells
        for name, encode in self.encoders:
            encode(store[name], data, store, cells)
        if self._node_axis is not None:
            record.sizes[self._node_axis] = self._num_nodes(store, record)
        if self._edge_axis is not None:
            known = self._edges_from
            record.sizes[self._edge_axis] = (
                record.cells[known].rows if known else store.num_edges
            )

    def _num_nodes(self, store: Any, record: GraphRecord) -> int:
        if self._nodes_from:
            return record.cells[self._nodes_from].rows
        return (store.num_nodes or 0) if self._tells_nodes else 0

    def _counting_column(self, names: frozenset[str], explicit: str) -> str | None:
        """The column whose rows PyG counts first, where that is known: asking it takes longer."""
        attributes = {attribute.name: attribute for attribute in self.store.attributes}
        first = next((a for name, a in attributes.items() if name in names), None)
        if not self._default_rules or explicit in attributes or first is None:
            return None
        column = first.column if first.kind == "tensor" else None
        if column is None or column.per_graph or column.row_shape is None:
            return None
        return column.name

    def check_can_be_empty(self, who_lacks: str) -> None:
        """Raises SchemaError if no empty store can stand for this type in a graph that lacks it."""
        for attribute in self.store.attributes:
            if attribute.kind == "num_nodes":
                continue
            column = attribute.column
            if attribute.kind != "tensor" or column is None or column.per_graph:
                raise SchemaError(
                    f"{who_lacks} the type {self.store.key!r}, whose attribute {attribute.name!r} "
                    "has no empty form; give every graph that type"
                )

    def _check_names(self, store: Any) -> None:
        found, expected = set(store.keys()), set(self.names)
        where = "" if self.store.key is None else f" of {self.store.key!r}"
        if missing := expected - found:
            raise SchemaError(
                f"attribute {min(missing)!r}{where} is missing; expected {self.names}, "
                f"found {sorted(found)}"
            )
        if extra := found - expected:
            raise SchemaError(
                f"attribute {min(extra)!r}{where} is not in the schema; expected {self.names}, "
                f"found {sorted(found)}"
            )

    def _compile(self, attribute: Attribute, key: str) -> Encode:
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
        return _encode_tensor(attribute, column, key, rule, ask_dim=not self._default_rules)

    def _static_rule(self, key: str, *, is_tensor: bool) -> str | None:
        """The increment rule where PyG's default ``__inc__`` makes it known by name alone."""
        if not self._default_rules or ("batch" in key and is_tensor):
            return None
        if self._hetero:
            typed = isinstance(self.store.key, tuple) and "index" in key
            return ENDPOINTS_INC if typed else NO_INC
        return NODES_INC if "index" in key or key == "face" else NO_INC

    def _compile_parts(self, attribute: Attribute, key: str) -> Encode:
        kind = attribute.kind
        names = [item.name for item in attribute.items]
        ask_dim = kind in SPARSE and not self._default_rules
        encoders = []
        for item in attribute.items:
            if kind in NESTED:
                encoders.append(self._compile(item, item.name if kind == "dict" else key))
            elif item.column is not None and item.name == "data":
                rule = self.rules[item.column.name] = self._static_rule(key, is_tensor=True)
                encode_data = _encode_tensor(
                    item, item.column, key, rule, ask_dim=not self._default_rules
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
            if ask_dim and (dim := _ask_cat_dim((data, store), key, value)) != attribute.cat_dim:
                raise mismatch(attribute.name, f"__cat_dim__ {attribute.cat_dim}", dim)
            for name, encoder in zip(names, encoders):
                encoder(parts[name], data, store, cells)

        return encode


def mismatch(name: str, expected: Any, found: Any) -> SchemaError:
    """The error for a value that is not what the schema says."""
    return SchemaError(f"attribute {name!r}: expected {expected}, found {found}")


def _encode_num_nodes(value: Any, data: BaseData, store: Any, cells: dict[str, Cell]) -> None:
    if type(value) is not int or value < 0:
        raise mismatch("num_nodes", "a non-negative int", repr(value))


def _encode_text(attribute: Attribute, column: Column) -> Encode:
    name, kind = attribute.name, attribute.kind

    def encode(value: Any, data: BaseData, store: Any, cells: dict[str, Cell]) -> None:
        if (found := kind_of(name, value)) != kind:
            raise mismatch(name, kind, found)
        text = value.encode("utf-8", "surrogatepass") if kind == "str" else _to_json(name, value)
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
            raise mismatch(name, "a dense tensor", _tensor_kind(name, value))
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
            dim = _ask_cat_dim((data, store), key, asked)
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
    inc = _ask_inc(context, key, value)
    if np.shape(inc) != column.inc_shape:
        raise mismatch(key, f"__inc__ of shape {column.inc_shape}", f"shape {np.shape(inc)}")
    return inc


def to_numpy(value: Tensor, bits: torch.dtype | None, *, is_complex: bool) -> Any:
    """A tensor's values in their storage dtype; complex numbers as pairs in one more dimension."""
    if value.requires_grad:
        value = value.detach()
    if not value.is_cpu:
        value = value.cpu()
    if value.is_neg():
        value = value.resolve_neg()
    if is_complex:
        return torch.view_as_real(value.resolve_conj()).numpy()
    if bits is not None:
        value = value.view(bits) if value.dim() else value.reshape(1).view(bits).reshape(())
    return value.numpy()
