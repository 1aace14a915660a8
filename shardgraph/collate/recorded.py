"""Graphs whose class is not at hand: plain PyG objects that answer with the recorded rules.

PyG asks ``__cat_dim__`` and ``__inc__`` of a graph when it batches. A subclass may override them,
and what it answered was recorded when the graph was written. Without the class, these stand in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import BaseData

from shardgraph.format.layout import quote
from shardgraph.format.schema import Attribute, Column, Schema, StoreKey
from shardgraph.shards.gather import Selection
from shardgraph.shards.open import Shard

_CAT_DIMS = "_recorded_cat_dims"
_INCS = "_recorded_incs"


class _Recorded:
    """Answers PyG's two questions from what the stores carry; else as the class would."""

    def __cat_dim__(self, key: str, value: Any, store: Any = None, *args: Any) -> Any:
        dims = _carried(self, store, _CAT_DIMS)
        if key in dims:
            return dims[key]
        return super().__cat_dim__(key, value, store, *args)  # type: ignore[misc]

    def __inc__(self, key: str, value: Any, store: Any = None, *args: Any) -> Any:
        incs = _carried(self, store, _INCS)
        if key in incs:
            return incs[key]
        return super().__inc__(key, value, store, *args)  # type: ignore[misc]


class RecordedData(_Recorded, Data):
    """A ``Data`` that batches as the class it was written from."""


class RecordedHeteroData(_Recorded, HeteroData):
    """A ``HeteroData`` that batches as the class it was written from."""


def _carried(data: Any, store: Any, name: str) -> dict[str, Any]:
    owner = store if store is not None else data.stores[0]
    found: dict[str, Any] = owner.__dict__.get(name, {})
    return found


class Rules:
    """The recorded rules of a schema's tensors and numbers, to be carried by its graphs."""

    def __init__(self, schema: Schema) -> None:
        self._dims: dict[StoreKey, dict[str, Any]] = {}
        self._columns: list[tuple[StoreKey, str, Column, tuple[str, str] | None]] = []
        for store in schema.stores:
            self._dims[store.key] = {}
            endpoints = None
            if isinstance(store.key, tuple):
                endpoints = (f"node/{quote(store.key[0])}", f"node/{quote(store.key[2])}")
            for attribute in store.attributes:
                self._add(store.key, attribute, attribute.name, endpoints)

    def _add(
        self, key: StoreKey, attribute: Attribute, name: str, endpoints: tuple[str, str] | None
    ) -> None:
        if attribute.cat_dim is not None:
            self._dims[key][name] = attribute.cat_dim
        elif attribute.column is not None and attribute.kind not in {"str", "json"}:
            is_scalar = attribute.column.per_graph and attribute.column.row_shape == ()
            if attribute.kind == "tensor" and not is_scalar:
                self._dims[key][name] = attribute.column.cat_dim
            self._columns.append((key, name, attribute.column, endpoints))
        for item in attribute.items:
            if attribute.kind == "dict":
                self._add(key, item, item.name, endpoints)
            elif attribute.kind in {"list", "tuple"} or item.name == "data":
                self._add(key, item, name, endpoints)

    def attach_dims(self, batch: BaseData) -> None:
        """Lets a batch carry the dimensions, so that it can be taken apart again."""
        for store in batch.stores:
            store.__dict__[_CAT_DIMS] = self._dims[store._key]

    def attach(self, data: BaseData, shard: Shard, local: int) -> None:
        """Lets one graph carry its rules."""
        self.attach_many([data], Selection.of_one(shard, local))

    def attach_many(self, graphs: Sequence[BaseData], selection: Selection) -> None:
        """Lets the graphs of a selection carry their rules."""
        stores = [{store._key: store for store in data.stores} for data in graphs]
        for place in stores:
            for key, store in place.items():
                store.__dict__[_CAT_DIMS] = self._dims[key]
                store.__dict__[_INCS] = {}
        for key, name, column, endpoints in self._columns:
            incs = selection.increments(column.name, column.inc_shape, endpoints)
            values: list[Any] = incs.tolist() if not column.inc_shape else list(torch.from_numpy(incs))
            for place, value in zip(stores, values):
                place[key].__dict__[_INCS][name] = value
