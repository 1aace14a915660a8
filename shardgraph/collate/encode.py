"""Graphs to columns: what a PyG object holds, checked against the schema and encoded as bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.data import BaseData

from shardgraph.collate.describe import describe_store
from shardgraph.collate.values import (
    BITS,
    Context,
    ask_cat_dim,
    ask_inc,
    check_num_nodes,
    class_name,
    kind_of,
    mismatch,
    parts_of,
    tensor_kind,
    to_json,
)
from shardgraph.errors import SchemaError
from shardgraph.format.layout import INTEGERS, STORAGE, quote
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
)
from shardgraph.shards.write import ENDPOINTS_INC, NO_INC, NODES_INC, Cell, GraphRecord

# Attributes that tell a number of nodes, though PyG's batch counts no nodes by them alone
# (torch_geometric/data/storage.py, N_KEYS and can_infer_num_nodes).
_ALSO_TELL_NODES = frozenset({"feat", "n_id", "tf"})

# What PyG counts nodes and edges by, before anything else (torch_geometric/data/storage.py).
_N_KEYS = frozenset({"x", "feat", "pos", "batch", "node_type", "n_id", "tf"})
_E_KEYS = frozenset({"edge_index", "edge_weight", "edge_attr", "edge_type", "e_id"})

Encode: TypeAlias = "Callable[[Any, BaseData, Any, dict[str, Cell]], None]"


class GraphEncoder:
    """Encodes graphs of one dataset; the first graph fixes the schema, or ``schema`` does.

    ``varying`` names tensors whose trailing shape may differ from graph to graph.
    """

    def __init__(
        self, schema: Schema | None = None, *, varying: frozenset[str] = frozenset()
    ) -> None:
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
                sizes = [record.sizes[f"node/{quote(node_type)}"] for node_type in key[::2]]
                encoder.check_edges(record, sizes)

    def _meet_class(self, data: BaseData) -> None:
        if isinstance(data, Batch):
            raise TypeError(
                "expected a single graph, got a Batch; write each of batch.to_data_list()"
            )
        if not isinstance(data, (Data, HeteroData)):
            raise TypeError(
                f"expected a torch_geometric Data or HeteroData, got {type(data).__name__}"
            )
        name = class_name(type(data))
        if self.schema is None:
            self.schema = Schema(data_class=name, is_hetero=isinstance(data, HeteroData), stores=())
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
        self._edge_index = self._checked_edge_index()
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
            record.sizes[self._edge_axis] = self._num_edges(store, record)
        if not self._hetero and self._node_axis is not None:
            self.check_edges(record, [record.sizes[self._node_axis]] * 2)

    def check_edges(self, record: GraphRecord, sizes: Sequence[int]) -> None:
        """Checks that the edges of a graph join nodes that it has: ``sizes`` at their two ends.

        Raises:
            SchemaError: naming a node that it does not have.
        """
        column = self._edge_index
        cell = record.cells.get(column.name) if column else None
        if column is None or cell is None or not cell.rows:
            return
        ends = np.frombuffer(cell.payload, column.dtype).reshape(-1, 2)
        # As unsigned numbers, negative ones are the largest: one look finds both faults.
        if np.maximum.reduce(ends.view(f"u{ends.itemsize}"), axis=None) < min(sizes):
            return
        for end, size in zip(ends.T, sizes, strict=True):
            wrong = end[(end < 0) | (end >= size)]
            if len(wrong):
                of = "" if self.store.key is None else f" of {self.store.key!r}"
                raise SchemaError(
                    f"attribute 'edge_index'{of} names node {wrong[0]} of {size} nodes; "
                    "correct it, or set num_nodes if there are more"
                )

    def _checked_edge_index(self) -> Column | None:
        """The column whose values must be nodes of the graph, by PyG's own rules."""
        named = (a for a in self.store.attributes if a.name == "edge_index" and a.kind == "tensor")
        column = next((a.column for a in named), None)
        if column is None or not self._default_rules or column.dtype not in INTEGERS:
            return None
        return column if column.row_shape == (2,) else None

    def _num_nodes(self, store: Any, record: GraphRecord) -> int:
        if self._nodes_from:
            return record.cells[self._nodes_from].rows
        return (store.num_nodes or 0) if self._tells_nodes else 0

    def _num_edges(self, store: Any, record: GraphRecord) -> int:
        if self._edges_from:
            return record.cells[self._edges_from].rows
        try:
            return int(store.num_edges)
        except IndexError:  # PyG looks at a 0-d tensor with "edge" in its name
            return 0

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
        if name := self.store.without_empty_form:
            raise SchemaError(
                f"{who_lacks} the type {self.store.key!r}, whose attribute {name!r} "
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
