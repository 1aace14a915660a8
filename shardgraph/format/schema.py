"""The schema: which attributes every graph of a dataset has, and how each is stored.

A graph is a list of stores (one for ``Data``; the global one, one a node type and one an edge type
for ``HeteroData``). A store is an ordered list of attributes. An attribute is a leaf with one
column (a tensor, a number, a text) or has parts of its own (a dict, a sparse tensor).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from shardgraph.errors import FormatError, SchemaError
from shardgraph.format.layout import COMPLEX, MAX_ATTRIBUTE, MAX_RANK, STORAGE, quote

StoreKey: TypeAlias = "str | tuple[str, str, str] | None"
"""PyG's key of a store: None (``Data``, or the global store), a node type, or an edge type."""

LEAVES = frozenset({"tensor", "bool", "int", "float", "str", "json"})
NUMBERS = {"bool": "bool", "int": "int64", "float": "float64"}
NESTED = frozenset({"dict", "list", "tuple"})
SPARSE = {
    "sparse_coo": ("indices", "values", "size", "is_coalesced"),
    "sparse_csr": ("crow_indices", "col_indices", "values", "size"),
    "sparse_csc": ("ccol_indices", "row_indices", "values", "size"),
}
INDEX_TYPES = {"edge_index": ("data", "metadata"), "index": ("data", "metadata")}
PARTS = SPARSE | INDEX_TYPES
KINDS = LEAVES | NESTED | SPARSE.keys() | INDEX_TYPES.keys() | {"num_nodes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One attribute of all graphs, concatenated along its rows."""

    name: str
    """Path of the array below ``/columns`` in a shard."""
    dtype: str
    """Logical dtype, by torch's name without the prefix; "str" columns hold UTF-8 as uint8."""
    row_shape: tuple[int, ...] | None
    """Shape of one row, the leading axis removed. None: it varies from graph to graph."""
    cat_dim: int | None = 0
    """The dimension that counts rows, as PyG's ``__cat_dim__`` gave it; None: a new dimension."""
    inc_shape: tuple[int, ...] = ()
    """Shape of what PyG's ``__inc__`` gave: () for a number, (2, 1) for a typed edge_index."""
    per_graph: bool = False
    """True: always exactly one row a graph (a number, a 0-d tensor, a new dimension)."""

    def __post_init__(self) -> None:
        if self.dtype not in STORAGE:
            raise FormatError(f"column {self.name!r} has unknown dtype {self.dtype!r}")
        extents = (*(self.row_shape or ()), *self.inc_shape)
        if not all(type(extent) is int and extent >= 0 for extent in extents):
            raise FormatError(f"column {self.name!r}: extents must not be negative: {extents}")
        if self.cat_dim is not None and type(self.cat_dim) is not int:
            raise FormatError(f"column {self.name!r}: cat_dim must be an int, got {self.cat_dim!r}")
        if type(self.name) is not str or type(self.per_graph) is not bool:
            raise FormatError(f"column {self.name!r}: name must be text and per_graph a bool")

    def recorded(self) -> dict[str, str]:
        """What a shard says of the column, as texts of its attributes."""
        return {
            "dtype": self.dtype,
            "row_shape": "varies" if self.row_shape is None else str(list(self.row_shape)),
            "cat_dim": str(self.cat_dim),
        }

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, as in SPEC.md."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "row_shape": None if self.row_shape is None else list(self.row_shape),
            "cat_dim": self.cat_dim,
            "inc_shape": list(self.inc_shape),
            "per_graph": self.per_graph,
        }

    @classmethod
    def from_json(cls, doc: dict[str, Any]) -> Column:
        """The inverse of ``to_json``; KeyError or TypeError where an entry is missing or odd."""
        shape = doc["row_shape"]
        return cls(
            name=doc["name"],
            dtype=doc["dtype"],
            row_shape=None if shape is None else tuple(shape),
            cat_dim=doc["cat_dim"],
            inc_shape=tuple(doc["inc_shape"]),
            per_graph=doc["per_graph"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """One attribute of a store, or one part of a composed attribute."""

    name: str
    kind: str
    column: Column | None = None
    items: tuple[Attribute, ...] = ()
    cat_dim: tuple[int, ...] | int | None = None
    """Of a sparse tensor: the dimension or dimensions it is stacked along."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise FormatError(f"attribute {self.name!r} has unknown kind {self.kind!r}")
        if type(self.name) is not str:
            raise FormatError(f"an attribute's name must be text, got {self.name!r}")
        column = self.column
        if (self.kind in LEAVES) != (column is not None):
            raise FormatError(f"attribute {self.name!r} of kind {self.kind!r}: leaf without column")
        names = tuple(item.name for item in self.items)
        if names != PARTS.get(self.kind, names if self.kind in NESTED else ()):
            raise FormatError(f"attribute {self.name!r} of kind {self.kind!r} has parts {names}")
        dtype = NUMBERS.get(self.kind, "uint8" if self.kind in {"str", "json"} else None)
        if (
            column is not None
            and dtype is not None
            and (column.dtype, column.row_shape) != (dtype, ())
        ):
            raise FormatError(
                f"attribute {self.name!r} of kind {self.kind!r} is stored as {column}"
            )

    def columns(self) -> Iterator[Column]:
        """The columns of this attribute and of its parts, in order."""
        if self.column is not None:
            yield self.column
        for item in self.items:
            yield from item.columns()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, as in SPEC.md."""
        doc: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.column is not None:
            doc["column"] = self.column.to_json()
        if self.items or self.kind in NESTED:
            doc["items"] = [item.to_json() for item in self.items]
        if self.kind in SPARSE:
            dim = self.cat_dim
            doc["cat_dim"] = list(dim) if isinstance(dim, tuple) else dim
        return doc

    @classmethod
    def from_json(cls, doc: dict[str, Any]) -> Attribute:
        """The inverse of ``to_json``; KeyError or TypeError where an entry is missing or odd."""
        dim = doc.get("cat_dim")
        return cls(
            name=doc["name"],
            kind=doc["kind"],
            column=Column.from_json(doc["column"]) if "column" in doc else None,
            items=tuple(cls.from_json(item) for item in doc.get("items", ())),
            cat_dim=tuple(dim) if isinstance(dim, list) else dim,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The attributes of one PyG store, in the order of the first graph that has it."""

    key: StoreKey
    attributes: tuple[Attribute, ...]
    counts_nodes: bool
    """Whether PyG can tell the number of nodes from the attributes, and so adds batch and ptr."""

    def __post_init__(self) -> None:
        key = self.key
        is_edge_type = isinstance(key, tuple) and [type(part) for part in key] == [str] * 3
        if not (key is None or type(key) is str or is_edge_type):
            raise FormatError(f"a store's key must be None, a node type or an edge type: {key!r}")

    @property
    def without_empty_form(self) -> str | None:
        """An attribute for which a graph that lacks this type would have no value; None: none."""
        for attribute in self.attributes:
            column = attribute.column
            is_rows = attribute.kind == "tensor" and column is not None and not column.per_graph
            if not is_rows and attribute.kind != "num_nodes":
                return attribute.name
        return None

    @property
    def node_axis(self) -> str | None:
        """Axis of the nodes: "node" or "node/<type>". None for an edge type."""
        if isinstance(self.key, tuple):
            return None
        return "node" if self.key is None else f"node/{quote(self.key)}"

    @property
    def edge_axis(self) -> str | None:
        """Axis of the edges: "edge" or "edge/<src>__<rel>__<dst>". None for a node type."""
        if isinstance(self.key, str):
            return None
        return "edge" if self.key is None else edge_axis(self.key)

    @property
    def endpoint_axes(self) -> tuple[str, ...]:
        """Axes of the nodes that the edges of an edge type lead from and to; else nothing."""
        if not isinstance(self.key, tuple):
            return ()
        return (f"node/{quote(self.key[0])}", f"node/{quote(self.key[2])}")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, as in SPEC.md."""
        return {
            "key": list(self.key) if isinstance(self.key, tuple) else self.key,
            "attributes": [attribute.to_json() for attribute in self.attributes],
            "counts_nodes": self.counts_nodes,
        }

    @classmethod
    def from_json(cls, doc: dict[str, Any]) -> Store:
        """The inverse of ``to_json``; KeyError or TypeError where an entry is missing or odd."""
        key = doc["key"]
        return cls(
            key=tuple(key) if isinstance(key, list) else key,
            attributes=tuple(Attribute.from_json(item) for item in doc["attributes"]),
            counts_nodes=doc["counts_nodes"],
        )


def edge_axis(key: tuple[str, str, str]) -> str:
    """Axis name of an edge type: "edge/<src>__<rel>__<dst>", different for different types."""
    parts = (quote(part) for part in key)
    # An underscore at a part's edge would blur where the separator begins.
    return "edge/" + "__".join(re.sub("^_|_$", "%5F", part) for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """What every graph of a dataset looks like: its class, its stores, their attributes."""

    data_class: str
    """``module:qualified name`` of the graphs' class; no file decides that it is imported."""
    is_hetero: bool
    stores: tuple[Store, ...]
    _columns: dict[str, Column] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.data_class) is not str or type(self.is_hetero) is not bool:
            raise FormatError("the schema's class must be text, and hetero a bool")
        keys = [store.key for store in self.stores]
        if len(set(keys)) != len(keys) or (not self.is_hetero and set(keys) - {None}):
            raise FormatError(f"a dataset of class {self.data_class} cannot have stores {keys}")
        names: dict[str, Column] = {}
        for store in self.stores:
            for attribute in store.attributes:
                for column in attribute.columns():
                    if column.name in names:
                        raise SchemaError(f"two attributes would share the column {column.name!r}")
                    names[column.name] = column
        object.__setattr__(self, "_columns", names)

    @property
    def columns(self) -> dict[str, Column]:
        """All columns by name, in order."""
        return self._columns

    def store(self, key: StoreKey) -> Store | None:
        """The store of that key, or None."""
        return next((store for store in self.stores if store.key == key), None)

    @property
    def node_stores(self) -> tuple[Store, ...]:
        """The stores that hold nodes: all of a ``Data``, the node types of a ``HeteroData``."""
        if not self.is_hetero:
            return self.stores
        return tuple(store for store in self.stores if isinstance(store.key, str))

    @property
    def edge_stores(self) -> tuple[Store, ...]:
        """The stores that hold edges: all of a ``Data``, the edge types of a ``HeteroData``."""
        if not self.is_hetero:
            return self.stores
        return tuple(store for store in self.stores if isinstance(store.key, tuple))

    @property
    def size_axes(self) -> tuple[str, ...]:
        """The node and edge axes: always stored, so that sizes are known without the attributes."""
        nodes = [store.node_axis for store in self.node_stores]
        edges = [store.edge_axis for store in self.edge_stores]
        return tuple(axis for axis in (*nodes, *edges) if axis is not None)

    def select(self, keys: frozenset[str] | None) -> Schema:
        """The schema with only the attributes named in ``keys`` (in every store).

        The number of nodes stays known: where no remaining attribute tells it, the stored count
        becomes an explicit ``num_nodes``.

        Raises:
            ValueError: if a key is no attribute of any store.
        """
        if keys is None:
            return self
        known = {attribute.name for store in self.stores for attribute in store.attributes}
        if unknown := keys - known:
            raise ValueError(f"no attribute {sorted(unknown)}; the dataset has {sorted(known)}")
        return replace(self, stores=tuple(_select(store, keys) for store in self.stores))

    def merged(self, other: Schema) -> Schema:
        """This schema, with the node and edge types that only ``other`` has added at the end.

        Raises:
            SchemaError: if a store or the class differs between the two, or if a type that only one
                has cannot be empty in the graphs of the other.
        """
        if self == other:
            return self
        if (self.data_class, self.is_hetero) != (other.data_class, other.is_hetero):
            raise SchemaError(f"class {other.data_class!r} where {self.data_class!r} was expected")
        stores = {store.key: store for store in self.stores}
        mine, others = (schema.stores for schema in (self, other))
        for store in (*mine, *others):
            lacking = other if store in mine else self
            name = None if store.key is None else store.without_empty_form
            if name is not None and lacking.store(store.key) is None:
                raise SchemaError(
                    f"some graphs lack the type {store.key!r}, whose attribute {name!r} has no "
                    "empty form; give every graph that type"
                )
        for store in others:
            if stores.setdefault(store.key, store) != store:
                raise SchemaError(f"the store {store.key!r} has other attributes: {store}")
        return replace(self, stores=canonical(tuple(stores.values())))

    def check_storable(self) -> None:
        """Checks that HDF5 can hold what a shard will hold by these names and shapes.

        Raises:
            SchemaError: naming the column or type, if a name is too long or no text, or if there
                are too many dimensions.
        """
        most = MAX_ATTRIBUTE - len("own/")
        for name in (*self.size_axes, *self._columns):
            try:
                nbytes = len(name.encode())
            except UnicodeEncodeError as error:
                raise SchemaError(f"{name!r} is no name, for UTF-8 cannot encode it") from error
            if nbytes > most:
                raise SchemaError(f"the name {name[:40]!r}... takes {nbytes} bytes, at most {most}")
        for column in self._columns.values():
            width = len(column.row_shape or ()) + (column.dtype in COMPLEX)
            rank = 1 + max(width, len(column.inc_shape))
            if rank > MAX_RANK:
                raise SchemaError(
                    f"column {column.name!r} would have {rank} dimensions; HDF5 takes {MAX_RANK}"
                )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, as in SPEC.md."""
        return {
            "class": self.data_class,
            "hetero": self.is_hetero,
            "stores": [store.to_json() for store in self.stores],
        }

    @classmethod
    def from_json(cls, doc: dict[str, Any]) -> Schema:
        """The inverse of ``to_json``; KeyError or TypeError where an entry is missing or odd."""
        schema = cls(
            data_class=doc["class"],
            is_hetero=doc["hetero"],
            stores=tuple(Store.from_json(store) for store in doc["stores"]),
        )
        if schema.store(None) is None:
            raise FormatError("a schema has a store of key null, which this one lacks")
        return schema


def canonical(stores: tuple[Store, ...]) -> tuple[Store, ...]:
    """The stores as PyG lists them: the global one, node types, edge types."""
    rank = {type(None): 0, str: 1, tuple: 2}
    return tuple(sorted(stores, key=lambda store: rank[type(store.key)]))


# What PyG reads a node count from without guessing, and then counts a batch's nodes by
# (torch_geometric/data/storage.py, N_KEYS and can_infer_num_nodes).
_TELLS_NUM_NODES = frozenset({"num_nodes", "x", "pos", "batch", "node_type"})


def _select(store: Store, keys: frozenset[str]) -> Store:
    kept = tuple(a for a in store.attributes if a.name in keys or a.name == "num_nodes")
    if store.counts_nodes and not any(a.name in _TELLS_NUM_NODES for a in kept):
        kept = (*kept, Attribute(name="num_nodes", kind="num_nodes"))
    return replace(store, attributes=kept)
