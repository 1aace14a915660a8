"""Graphs to columns: what a PyG object holds, checked against the schema and encoded as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.data import BaseData

from shardgraph.collate.describe import describe_store
from shardgraph.collate.encode_attribute import AttributeCompiler
from shardgraph.collate.values import EDGE_KEYS, NODE_KEYS, class_name
from shardgraph.errors import SchemaError
from shardgraph.format.layout import INTEGERS, quote
from shardgraph.format.schema import Column, Schema, Store, StoreKey, canonical
from shardgraph.shards.write import GraphRecord

# Attributes that tell a number of nodes, though PyG's batch counts no nodes by them alone
# (torch_geometric/data/storage.py, N_KEYS and can_infer_num_nodes).
_ALSO_TELL_NODES = frozenset({"feat", "n_id", "tf"})


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
        self.schema.check_storable()
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
        compiler = AttributeCompiler(store.key, cls)
        self._default_rules = compiler.default_rules
        self._hetero = issubclass(cls, HeteroData)
        is_global = self._hetero and store.key is None
        names = {attribute.name for attribute in store.attributes}
        # PyG warns when it is asked for a number of nodes that nothing can tell.
        self._tells_nodes = store.counts_nodes or not _ALSO_TELL_NODES.isdisjoint(names)
        self._node_axis = None if is_global else store.node_axis
        self._edge_axis = None if is_global else store.edge_axis
        self._nodes_from = self._counting_column(NODE_KEYS, "num_nodes")
        self._edges_from = self._counting_column(EDGE_KEYS, "num_edges")
        self._edge_index = self._checked_edge_index()
        self.encoders = [(a.name, compiler.compile(a, a.name)) for a in store.attributes]
        self.rules = compiler.rules

    def encode(self, data: BaseData, store: Any, record: GraphRecord) -> None:
        """Adds the store's sizes and cells to the record."""
        values = store._mapping
        if [*values] != self.names:
            self._check_names(store)
        cells = record.cells
        for name, encode in self.encoders:
            encode(values[name], data, store, cells)
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
