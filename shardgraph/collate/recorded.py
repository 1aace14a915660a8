"""Graphs whose class is not at hand: plain PyG objects that answer with the recorded rules.

PyG asks ``__cat_dim__`` and ``__inc__`` of a graph when it batches. A subclass may override them,
and what it answered was recorded when the graph was written. Without the class, these stand in.
Graphs that are taken out of a batch of them know how to be joined, but not what they counted: they
count by PyG's usual rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import BaseData

from shardgraph.format.schema import Attribute, Column, Schema, StoreKey
from shardgraph.shards.gather import Selection
from shardgraph.shards.group import ShardGroup
from shardgraph.shards.open import Shard
from shardgraph.shards.write import EXPLICIT_INC, NO_INC, NODES_INC

_CAT_DIMS = "_recorded_cat_dims"
_INCS = "_recorded_incs"
_NODES = "num_nodes"
"""Stands for the graph's own number of nodes, which a transform may have changed."""


class _Recorded:
    """Answers PyG's two questions from what the stores carry; else as the class would."""

    def __cat_dim__(self, key: str, value: Any, store: Any = None, *args: Any) -> Any:
        dims = _carried(self, store, _CAT_DIMS)
        if key in dims:
            return dims[key]
        return super().__cat_dim__(key, value, store, *args)  # type: ignore[misc]

    def __inc__(self, key: str, value: Any, store: Any = None, *args: Any) -> Any:
        incs = _carried(self, store, _INCS)
        if key not in incs:
            return super().__inc__(key, value, store, *args)  # type: ignore[misc]
        return self.num_nodes if incs[key] is _NODES else incs[key]  # type: ignore[attr-defined]

    def stores_as(self, data: BaseData) -> Any:
        """As PyG's; a batch made of this takes the dimensions along, to be taken apart by."""
        super().stores_as(data)  # type: ignore[misc]
        for store, other in zip(self.stores, data.stores, strict=True):  # type: ignore[attr-defined]
            store.__dict__[_CAT_DIMS] = other.__dict__.get(_CAT_DIMS, {})
        return self


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
        self._columns: list[tuple[StoreKey, str, Column]] = []
        for store in schema.stores:
            self._dims[store.key] = {}
            for attribute in store.attributes:
                self._add(store.key, attribute, attribute.name)

    def _add(self, key: StoreKey, attribute: Attribute, name: str) -> None:
        if attribute.cat_dim is not None:
            self._dims[key][name] = attribute.cat_dim
        elif attribute.column is not None and attribute.kind not in {"str", "json"}:
            is_scalar = attribute.column.per_graph and attribute.column.row_shape == ()
            if attribute.kind == "tensor" and not is_scalar:
                self._dims[key][name] = attribute.column.cat_dim
            self._columns.append((key, name, attribute.column))
        for item in attribute.items:
            if attribute.kind == "dict":
                self._add(key, item, item.name)
            elif attribute.kind in {"list", "tuple"} or item.name == "data":
                self._add(key, item, name)

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
        for key, name, column in self._columns:
            for part in selection.parts:
                values = _increments(part.shard, column, part.local)
                places = range(len(graphs)) if part.places is None else part.places.tolist()
                for place, value in zip(places, values, strict=False):
                    stores[place][key].__dict__[_INCS][name] = value


def _increments(
    shard: Shard | ShardGroup, column: Column, local: NDArray[np.int64]
) -> Iterable[Any]:
    """What each graph's ``__inc__`` is to answer; nothing where PyG's usual rule says it."""
    rule = shard.inc_of.get(column.name)
    if rule == NO_INC:
        return repeat(0, len(local))
    if rule == NODES_INC:
        return repeat(_NODES, len(local))
    if rule == EXPLICIT_INC:
        incs = shard.incs[column.name][local]
        return list(torch.from_numpy(incs)) if column.inc_shape else incs.tolist()
    return ()
