"""Columns to a PyG ``Batch``: gathered into ONE buffer, taken out as views.

The result equals ``Batch.from_data_list`` of the same graphs; the rules are those of PyG's
``torch_geometric/data/collate.py``. No object is made per graph.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Batch
from torch_geometric.data.data import BaseData

from shardgraph.collate.buffer import Allocate, ordinary_memory
from shardgraph.collate.decode import GraphDecoder, along, decoder_of
from shardgraph.collate.packed import PackedBatch, Packing, Views
from shardgraph.collate.recorded import Rules
from shardgraph.format.layout import COMPLEX, INTEGERS, quote
from shardgraph.format.schema import NESTED, NUMBERS, Attribute, Column, Schema, Store
from shardgraph.shards.gather import Selection

Pack: TypeAlias = "Callable[[Packing], None]"
Unpack: TypeAlias = "Callable[[Views], tuple[Any, Any, Any]]"


def batches_from_columns(schema: Schema, exclude_keys: frozenset[str] = frozenset()) -> bool:
    """Whether PyG's batch of such graphs, without the excluded attributes, needs columns alone.

    Sparse tensors, ``Index`` and ``EdgeIndex``, tensors of varying shape, lists that PyG does not
    look into, and what ``__inc__`` gives a number each row or another shape are joined by PyG's own
    code, from the graphs.
    """
    return all(
        _from_columns(attribute, top=True)
        for store in schema.stores
        for attribute in store.attributes
        if attribute.name not in exclude_keys
    )


def _from_columns(attribute: Attribute, *, top: bool) -> bool:
    if attribute.column is not None:
        return attribute.column.row_shape is not None and _increments_fit(attribute.column)
    if attribute.kind == "num_nodes":
        return top
    if attribute.kind == "dict":
        return all(_from_columns(item, top=False) for item in attribute.items)
    if attribute.kind in NESTED:
        return all(
            item.kind == "tensor" and _from_columns(item, top=False) for item in attribute.items
        )
    return False


def _increments_fit(column: Column) -> bool:
    """Whether what ``__inc__`` gives is the same for all rows of a graph and keeps their shape."""
    extents = [*(column.row_shape or ())]
    extents.insert(along(column), 1)
    shape = column.inc_shape
    return len(shape) <= len(extents) and all(
        inc in {1, extent} for inc, extent in zip(shape[::-1], extents[::-1], strict=False)
    )


class Batcher:
    """Makes batches of one dataset's graphs, with PyG's ``follow_batch`` and ``exclude_keys``."""

    def __init__(
        self,
        schema: Schema,
        data_cls: type[BaseData] | None,
        *,
        follow_batch: Sequence[str] = (),
        exclude_keys: Sequence[str] = (),
    ) -> None:
        self.schema = schema
        self.follow = frozenset(follow_batch)
        self.exclude = frozenset(exclude_keys)
        self._rules = None if data_cls is not None else Rules(schema)
        example = GraphDecoder(schema, data_cls).template
        template = Batch(_base_cls=type(example))
        template.stores_as(example)
        if self._rules is not None:
            self._rules.attach_dims(template)
        self._template = template
        self._packs: list[Pack] = []
        self._stores: list[tuple[Store, list[tuple[str, Unpack | None, bool]]]] = []
        for store in schema.stores:
            self._compile(store)

    def _compile(self, store: Store) -> None:
        attributes: list[tuple[str, Unpack | None, bool]] = []
        for attribute in store.attributes:
            name = attribute.name
            if name in self.exclude or name == "ptr":
                continue
            if name == "num_nodes" and attribute.kind == "num_nodes":
                attributes.append((name, None, False))
                self._packs.append(_pack_num_nodes(str(store.node_axis)))
                continue
            pack, unpack = _compile(attribute, name, store)
            self._packs.append(pack)
            follow = name in self.follow
            if follow:
                self._packs.append(_pack_follow(attribute))
            attributes.append((name, unpack, follow))
        if store.counts_nodes:
            self._packs.append(_pack_batch_vector(str(store.node_axis)))
        self._stores.append((store, attributes))

    def pack(self, selection: Selection, allocate: Allocate = ordinary_memory) -> PackedBatch:
        """The batch of a selection as one buffer, from ``allocate``."""
        if selection.num_graphs == 0:
            raise ValueError("a batch needs at least one graph")
        packing = Packing(selection)
        for pack in self._packs:
            pack(packing)
        return packing.finish(allocate).attach(self)

    def unpack(self, packed: PackedBatch) -> BaseData:
        """The PyG ``Batch`` of a packed one."""
        views = Views(packed)
        batch = copy.copy(self._template)
        slices: dict[Any, Any] = {}
        incs: dict[Any, Any] = {}
        num_nodes = iter(packed.record.num_nodes)
        for (store, attributes), target in zip(self._stores, batch.stores, strict=False):
            store_slices = slices if store.key is None else slices.setdefault(store.key, {})
            store_incs = incs if store.key is None else incs.setdefault(store.key, {})
            # Straight into the mapping of a store that has no caches yet: each item that is set
            # through the store costs as much as making its tensor.
            values = target._mapping
            for name, unpack, follow in attributes:
                if unpack is None:
                    counts = next(num_nodes)
                    target._num_nodes = counts
                    target.num_nodes = sum(counts)
                    continue
                values[name], store_slices[name], store_incs[name] = unpack(views)
                if follow:
                    values[f"{name}_batch"], values[f"{name}_ptr"] = _unpack_follow(
                        store_slices[name], views
                    )
            if store.counts_nodes:
                values["batch"] = views.tensor(views.number())
                values["ptr"] = views.tensor(views.number())
        for found in (slices, incs):
            for store, _ in self._stores:
                if store.key is not None and not found[store.key]:
                    del found[store.key]
        batch._num_graphs = packed.record.num_graphs
        batch._slice_dict = slices
        batch._inc_dict = incs
        return batch


# Leaves ------------------------------------------------------------------------------------------


def _compile(attribute: Attribute, key: str, store: Store) -> tuple[Pack, Unpack]:
    """How one attribute is packed and unpacked."""
    kind, column = attribute.kind, attribute.column
    if kind in {"str", "json"}:
        decode = decoder_of(attribute)
        return lambda packing: packing.objects.append(decode(packing.selection)), _unpack_objects
    endpoints = None
    if isinstance(store.key, tuple):
        endpoints = (f"node/{quote(store.key[0])}", f"node/{quote(store.key[2])}")
    if column is not None:
        is_number = kind in NUMBERS
        pack = _Leaf(column, endpoints, is_number=is_number).pack
        return pack, _unpack_leaf
    parts = [
        _compile(item, item.name if kind == "dict" else key, store) for item in attribute.items
    ]
    names = [item.name for item in attribute.items]

    def pack_parts(packing: Packing) -> None:
        for pack, _ in parts:
            pack(packing)

    def unpack_parts(views: Views) -> tuple[Any, Any, Any]:
        values, slices, incs = [], [], []
        for _, unpack in parts:
            value, value_slices, value_incs = unpack(views)
            values.append(value)
            slices.append(value_slices)
            incs.append(value_incs)
        if kind == "dict":
            named = [dict(zip(names, part, strict=True)) for part in (values, slices, incs)]
            return named[0], named[1], named[2]
        return values, slices, incs

    return pack_parts, unpack_parts


class _Leaf:
    """Packs one column: its values with increments added, its slices and its increments."""

    def __init__(
        self, column: Column, endpoints: tuple[str, str] | None, *, is_number: bool
    ) -> None:
        self.column = column
        self.endpoints = endpoints
        self.is_number = is_number
        self.dim = dim = along(column)
        row_shape = column.row_shape or ()
        self.before, self.behind = row_shape[:dim], row_shape[dim:]
        complex_pair = [len(row_shape) + 1] if column.dtype in COMPLEX else []
        others = [axis for axis in range(len(row_shape) + 1) if axis != dim]
        self.rows_first = [dim, *others, *complex_pair]
        self.dtype = column.dtype
        if is_number and column.dtype == "float64":
            self.dtype = str(torch.get_default_dtype()).removeprefix("torch.")
        self.added_dtype = _dtype_with(column, is_number=is_number)

    def pack(self, packing: Packing) -> None:
        selection, column = packing.selection, self.column
        rows = selection.column_rows(column.name)
        slices = increments = -1
        add: NDArray[np.int64] | None = None
        if column.inc_shape or selection.has_increments(column.name):
            incs = selection.increments(column.name, column.inc_shape, self.endpoints)
            add = np.zeros_like(incs)
            np.cumsum(incs[:-1], axis=0, out=add[1:])
            increments = packing.keep((add.shape, add.tobytes()), add)
            if not column.inc_shape and int(add[-1]) == 0:
                add = None  # as PyG: without a dtype promotion either
        dtype = self.dtype if add is None else self.added_dtype
        if not selection.one_row_each(column.name):
            slices = packing.keep(("rows", id(rows)), rows.ptr)
        shape = (*self.before, rows.total, *self.behind)

        def fill(out: NDArray[Any]) -> None:
            self._fill(selection, out, dtype, add)

        packing.numbers += (packing.add(dtype, shape, fill), slices, increments)

    def _fill(
        self, selection: Selection, out: NDArray[Any], dtype: str, add: NDArray[np.int64] | None
    ) -> None:
        target = out.transpose(self.rows_first) if self.dim else out
        rows_first = None if add is None else _rows_first(add, self.column, self.dim)
        if self.is_number and dtype != self.column.dtype:  # Python's floats, in torch's default
            stored = np.empty(out.shape, np.float64)
            selection.column(self.column.name, stored)
            _as_torch(target, dtype).copy_(torch.from_numpy(stored))
        elif rows_first is None or dtype in INTEGERS:
            selection.column(self.column.name, target, rows_first)
            return
        else:
            selection.column(self.column.name, target)
        if rows_first is None:
            return
        # Floats: rounded by torch itself, graph by graph, as PyG does.
        tensor = _as_torch(target, dtype)
        ptr = selection.column_rows(self.column.name).ptr.tolist()
        for place, (start, stop) in enumerate(itertools.pairwise(ptr)):
            tensor[start:stop] += torch.from_numpy(np.asarray(rows_first[place]))


def _as_torch(array: NDArray[Any], dtype: str) -> Tensor:
    tensor = torch.from_numpy(array)
    if dtype in COMPLEX:
        return torch.view_as_complex(tensor)
    return tensor if tensor.dtype is getattr(torch, dtype) else tensor.view(getattr(torch, dtype))


def _dtype_with(column: Column, *, is_number: bool) -> str:
    """The dtype of values after an int64 increment was added, by torch's promotion."""
    dtype = getattr(torch, column.dtype)
    if is_number:
        return column.dtype if dtype is not torch.float64 else str(torch.get_default_dtype())[6:]
    ndim = 1 + len(column.row_shape or ())
    value = torch.empty([0] * ndim, dtype=dtype)
    inc = torch.empty([1] * len(column.inc_shape), dtype=torch.int64)
    return str(torch.result_type(value, inc)).removeprefix("torch.")


def _rows_first(incs: NDArray[np.int64], column: Column, dim: int) -> NDArray[np.int64]:
    """Increments [B, *inc_shape] shaped to broadcast against rows [*row_shape] of each graph."""
    ndim = 1 + len(column.row_shape or ())
    if not column.inc_shape:
        return incs.reshape(len(incs), *[1] * (ndim - 1))
    padded = incs.reshape(len(incs), *[1] * (ndim - len(column.inc_shape)), *column.inc_shape)
    return np.moveaxis(padded, 1 + dim, 1)[:, 0]


def _unpack_leaf(views: Views) -> tuple[Any, Any, Any]:
    value = views.tensor(views.number())
    slices = views.kept(views.number(), views.arange)
    incs = views.kept(views.number(), views.zeros)
    return value.clone() if slices is views.arange else value, slices, incs


def _unpack_objects(views: Views) -> tuple[Any, Any, Any]:
    return views.objects(), views.arange, None


# Vectors beside the attributes -------------------------------------------------------------------


def _pack_num_nodes(axis: str) -> Pack:
    return lambda packing: packing.num_nodes.append(
        packing.selection.axis_rows(axis).lengths.tolist()
    )


def _pack_vectors(packing: Packing, lengths: NDArray[np.int64], ptr: NDArray[np.int64]) -> None:
    def fill_batch(out: NDArray[Any]) -> None:
        out[...] = np.repeat(np.arange(len(lengths)), lengths)

    packing.numbers.append(packing.add("int64", (int(ptr[-1]),), fill_batch))
    packing.numbers.append(packing.add("int64", ptr.shape, lambda out: np.copyto(out, ptr)))


def _pack_batch_vector(axis: str) -> Pack:
    def pack(packing: Packing) -> None:
        rows = packing.selection.axis_rows(axis)
        _pack_vectors(packing, rows.lengths, rows.ptr)

    return pack


def _pack_follow(attribute: Attribute) -> Pack:
    """``{attr}_batch`` and ``{attr}_ptr`` of every leaf, in order."""

    def pack(packing: Packing) -> None:
        count = packing.selection.num_graphs
        for leaf in _leaves(attribute):
            if leaf.column is None or leaf.column.per_graph or leaf.kind in {"str", "json"}:
                _pack_vectors(packing, np.ones(count, np.int64), np.arange(count + 1))
            else:
                rows = packing.selection.column_rows(leaf.column.name)
                _pack_vectors(packing, rows.lengths, rows.ptr)

    return pack


def _leaves(attribute: Attribute) -> list[Attribute]:
    if attribute.column is not None:
        return [attribute]
    return [leaf for item in attribute.items for leaf in _leaves(item)]


def _unpack_follow(slices: Any, views: Views) -> tuple[Any, Any]:
    if isinstance(slices, dict):
        pairs = {key: _unpack_follow(value, views) for key, value in slices.items()}
        return {k: pair[0] for k, pair in pairs.items()}, {k: p[1] for k, p in pairs.items()}
    if isinstance(slices, list):
        listed = [_unpack_follow(value, views) for value in slices]
        return [pair[0] for pair in listed], [pair[1] for pair in listed]
    return views.tensor(views.number()), views.tensor(views.number())
