"""Batches of one shape: filled up to their budgets, so that a compiler sees the same shapes always.

A batch of k graphs gets empty graphs k, k + 1, ... and, as its last one, the padding graph with all
the nodes and edges that are missing. So the padding's index in ``batch`` is the same in all
batches, and so is ``batch.max() + 1``. Padding edges join the padding graph's first node; all other
values are zeros. ``node_mask``, ``edge_mask`` and ``graph_mask`` tell what is real.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch_geometric.data.data import BaseData

from shardgraph.collate.batch import Batcher
from shardgraph.collate.buffer import Allocate, ordinary_memory
from shardgraph.collate.packed import PackedBatch, Packing, Views
from shardgraph.collate.values import EDGE_KEYS, NODE_KEYS
from shardgraph.format.layout import GRAPH_AXIS
from shardgraph.format.schema import Attribute, Schema, Store
from shardgraph.sampling.arguments import integer
from shardgraph.shards.gather import Rows, Selection
from shardgraph.shards.open import Shard
from shardgraph.shards.write import EXPLICIT_INC, NO_INC

TypeKey = str | tuple[str, str, str]
Limits = int | Mapping[TypeKey, int]

_TEXTS: dict[str, bytes] = {"str": b"", "json": b"null"}
"""What a padding graph has as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticShape:
    """How many graphs, and rows of each node and edge axis, every batch has, padding included."""

    num_graphs: int
    rows: Mapping[str, int]

    @classmethod
    def of(
        cls,
        schema: Schema,
        *,
        max_nodes: Limits | None,
        max_edges: Limits | None,
        max_graphs: int | None,
    ) -> StaticShape:
        """The shape that budgets give, by type where the graphs have types.

        Raises:
            ValueError: If a budget is missing or has no room for padding.
        """
        if max_nodes is None or max_edges is None or max_graphs is None:
            got = {"max_nodes": max_nodes, "max_edges": max_edges, "max_graphs": max_graphs}
            missing = ", ".join(name for name, value in got.items() if value is None)
            raise ValueError(
                "pad=True fills every batch up to max_nodes, max_edges and max_graphs: give all "
                f"three; missing: {missing}"
            )
        node_axes = {store.key: str(store.node_axis) for store in schema.node_stores}
        edge_axes = {store.key: str(store.edge_axis) for store in schema.edge_stores}
        nodes = _by_axis("max_nodes", max_nodes, node_axes, by_type=schema.is_hetero)
        edges = _by_axis("max_edges", max_edges, edge_axes, by_type=schema.is_hetero)
        limits = [("max_graphs", max_graphs), *(("max_nodes", limit) for limit in nodes.values())]
        for name, limit in limits:
            integer(name, limit, 2, because=", since pad=True keeps one for padding")
        return cls(num_graphs=max_graphs, rows={**nodes, **edges})


def _by_axis(
    name: str, limits: Limits, axes: Mapping[Any, str], *, by_type: bool
) -> dict[str, int]:
    """The budget of each axis, whose keys are node or edge types (None: there are no types)."""
    if not by_type:
        if isinstance(limits, Mapping):
            raise ValueError(f"{name} is one number for graphs without types, got {limits!r}")
        return dict.fromkeys(axes.values(), limits)
    given = {_joined(key): n for key, n in limits.items()} if isinstance(limits, Mapping) else {}
    missing = [_joined(key) for key in axes if _joined(key) not in given]
    if missing:
        raise ValueError(
            f"pad=True needs {name} for every type, as a dict; missing: {', '.join(missing)}"
        )
    return {axis: given[_joined(key)] for key, axis in axes.items()}


def _joined(key: TypeKey) -> str:
    return key if isinstance(key, str) else "__".join(key)


def less_padding(limits: Any) -> Any:
    """A budget of nodes or of graphs, less the one that is kept for padding."""
    if isinstance(limits, Mapping):
        return {key: limit - 1 for key, limit in limits.items()}
    return limits - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """How the columns of one dataset are filled up to a shape."""

    shape: StaticShape
    axis_of: Mapping[str, str]
    """By column of numbers: the axis that its rows count in every shard."""
    counting: frozenset[str]
    """Columns that ``__inc__`` adds something to, in any shard."""
    texts: Mapping[str, bytes]
    """By column of text: what a padding graph has."""

    @classmethod
    def of(
        cls,
        schema: Schema,
        shards: Sequence[Shard],
        shape: StaticShape,
        exclude_keys: Collection[str] = (),
    ) -> Padding:
        """The padding of a dataset's graphs; ``shards`` are all that it has.

        Raises:
            ValueError: If an attribute that is not excluded cannot be filled up.
        """
        axis_of: dict[str, str] = {}
        texts: dict[str, bytes] = {}
        counting: set[str] = set()
        masks = {"node_mask", "edge_mask", "graph_mask"}
        for store in schema.stores:
            for attribute in store.attributes:
                if attribute.name in exclude_keys or attribute.kind == "num_nodes":
                    continue
                if attribute.name in masks:
                    raise ValueError(
                        f"pad=True makes an attribute {attribute.name!r}, which these graphs have "
                        "already: leave it out with exclude_keys"
                    )
                for leaf in _leaves(attribute):
                    name = leaf.column.name if leaf.column else ""
                    if leaf.kind in _TEXTS:
                        texts[name] = _TEXTS[leaf.kind]
                        continue
                    axis = _counted_axis(attribute, store)
                    if axis in schema.size_axes and _all_count(shards, name, axis):
                        axis_of[name] = axis
                    else:
                        axis_of[name] = _common_axis(attribute.name, name, schema, shards)
                    rules = {shard.inc_of.get(name, NO_INC) for shard in shards} - {NO_INC}
                    if rules:
                        counting.add(name)
                    if EXPLICIT_INC in rules:
                        raise _refused(attribute.name, "counts on by __inc__ of its own")
        return cls(shape=shape, axis_of=axis_of, counting=frozenset(counting), texts=texts)


def _leaves(attribute: Attribute) -> Iterable[Attribute]:
    if attribute.column is not None:
        yield attribute
    for item in attribute.items:
        yield from _leaves(item)


def _refused(attribute: str, why: str) -> ValueError:
    return ValueError(
        f"pad=True cannot fill up attribute {attribute!r}, which {why}: leave it out with "
        "exclude_keys"
    )


def _counted_axis(attribute: Attribute, store: Store) -> str:
    """The axis that PyG counts by an attribute, also where all have one row; "" for none."""
    axis = None
    if attribute.column is not None and not attribute.column.per_graph:
        if attribute.name in NODE_KEYS:
            axis = store.node_axis
        elif attribute.name in EDGE_KEYS:
            axis = store.edge_axis
    return axis or ""


def _common_axis(attribute: str, name: str, schema: Schema, shards: Sequence[Shard]) -> str:
    """The axis that a column counts in all shards; those of one may leave open which."""
    if {shard.axis_of.get(name) for shard in shards} == {GRAPH_AXIS}:
        return GRAPH_AXIS
    first = [axis for axis in schema.size_axes if ("edge" in name) == axis.startswith("edge")]
    for axis in dict.fromkeys((*first, *schema.size_axes)):
        own = name.startswith(f"{axis}/") if schema.is_hetero else True
        if own and _all_count(shards, name, axis):
            return axis
    raise _refused(attribute, "has neither a row for each node or edge, nor one for each graph")


def _all_count(shards: Sequence[Shard], name: str, axis: str) -> bool:
    return all(_counts(shard, name, axis) for shard in shards)


def _counts(shard: Shard, name: str, axis: str) -> bool:
    found = shard.axis_of.get(name, axis)
    if found == axis:
        return True
    lengths = np.diff(shard.ptrs[axis])
    if found == GRAPH_AXIS:
        return bool((lengths == 1).all())
    return np.array_equal(np.diff(shard.ptrs[found]), lengths)


class PaddedSelection(Selection):
    """A selection with padding graphs after its own."""

    __slots__ = ("_padded", "_padding", "_real")

    def __init__(self, real: Selection, padding: Padding) -> None:
        super().__init__(real.parts, padding.shape.num_graphs)
        self._real = real
        self._padding = padding
        self._padded: dict[str, Rows] = {}

    def num_real(self, axis: str) -> int:
        """How many rows of an axis are not padding."""
        return self._real.num_graphs if axis == GRAPH_AXIS else self._real.axis_rows(axis).total

    def axis_rows(self, axis: str) -> Rows:
        """The rows of a node or edge axis."""
        return self._filled(axis, self._real.axis_rows(axis))

    def column_rows(self, name: str) -> Rows:
        """The rows of a column."""
        real = self._real.column_rows(name)
        text = self._padding.texts.get(name)
        if text is not None:
            more = np.full(self.num_graphs - self._real.num_graphs, len(text), np.int64)
            return Rows(np.concatenate((real.lengths, more)), [])
        return self._filled(self._padding.axis_of[name], real)

    def _filled(self, axis: str, real: Rows) -> Rows:
        rows = self._padded.get(axis)
        if rows is None:
            more = np.zeros(self.num_graphs - self._real.num_graphs, np.int64)
            if axis == GRAPH_AXIS:
                more[:] = 1
            else:
                more[-1] = self._padding.shape.rows[axis] - real.total
            rows = self._padded[axis] = Rows(np.concatenate((real.lengths, more)), [])
        return rows

    def one_row_each(self, name: str) -> bool:
        """Whether a column has exactly one row for every graph, in this batch and any other."""
        return self._padding.axis_of.get(name) == GRAPH_AXIS

    def column(self, name: str, out: NDArray[Any], add: NDArray[Any] | None = None) -> None:
        """Copies a column's rows and fills up, as `Selection.column` does."""
        real, num_graphs = self._real.column_rows(name).total, self._real.num_graphs
        self._real.column(name, out[:real], None if add is None else add[:num_graphs])
        if name in self._padding.texts:
            text = np.frombuffer(self._padding.texts[name], np.uint8)
            out[real:] = np.tile(text, self.num_graphs - num_graphs)
        elif add is None:
            out[real:] = 0
        else:
            lengths = self.column_rows(name).lengths[num_graphs:]
            out[real:] = np.repeat(add[num_graphs:], lengths, axis=0)

    def has_increments(self, name: str) -> bool:
        """Whether ``__inc__`` gave anything but 0 for any graph of the dataset."""
        return name in self._padding.counting

    def increments(
        self, name: str, shape: tuple[int, ...], endpoints: tuple[str, str] | None
    ) -> NDArray[np.int64]:
        """What ``__inc__`` gives for each graph: int64 [B, *shape]."""
        more = np.zeros((self.num_graphs - self._real.num_graphs, *shape), np.int64)
        counted = endpoints or ("node",)
        last = [self.axis_rows(axis).lengths[-1] for axis in counted]
        more[-1] = np.reshape(last, shape) if shape else last[0]
        return np.concatenate((self._real.increments(name, shape, endpoints), more))


class PaddedBatcher(Batcher):
    """Makes batches of one shape, with masks of what is real."""

    def __init__(
        self,
        schema: Schema,
        data_cls: type[BaseData] | None,
        *,
        padding: Padding,
        follow_batch: Sequence[str] = (),
        exclude_keys: Sequence[str] = (),
    ) -> None:
        super().__init__(schema, data_cls, follow_batch=follow_batch, exclude_keys=exclude_keys)
        self._padding = padding
        self._masks: list[tuple[TypeKey | None, str, str]] = [
            *((store.key, "node_mask", str(store.node_axis)) for store in schema.node_stores),
            *((store.key, "edge_mask", str(store.edge_axis)) for store in schema.edge_stores),
            (None, "graph_mask", GRAPH_AXIS),
        ]
        self._packs += [self._pack_masks]

    def pack(self, selection: Selection, allocate: Allocate = ordinary_memory) -> PackedBatch:
        """The batch of a selection, filled up, as one buffer."""
        if selection.num_graphs == 0:
            raise ValueError("a batch needs at least one graph")
        return super().pack(PaddedSelection(selection, self._padding), allocate)

    def _pack_masks(self, packing: Packing) -> None:
        selection = packing.selection
        assert isinstance(selection, PaddedSelection)
        shape = self._padding.shape
        for _, _, axis in self._masks:
            size = shape.num_graphs if axis == GRAPH_AXIS else shape.rows[axis]
            num_real = selection.num_real(axis)

            def fill(out: NDArray[Any], num_real: int = num_real) -> None:
                out[:num_real] = 1
                out[num_real:] = 0

            packing.numbers.append(packing.add("bool", (size,), fill))

    def unpack(self, packed: PackedBatch) -> BaseData:
        """The PyG ``Batch`` of a packed one, with its masks."""
        batch = super().unpack(packed)
        views = Views(packed)
        numbers = packed.record.numbers[-len(self._masks) :]
        for (key, name, _), number in zip(self._masks, numbers, strict=True):
            target: Any = batch if key is None else batch[key]
            setattr(target, name, views.tensor(number))
        return batch
