"""Reading batches: from columns where PyG's batch can be had from them, else graph by graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import get_worker_info
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.dataloader import Collater

from shardgraph.collate import (
    Batcher,
    Crossing,
    Memory,
    PaddedBatcher,
    ReusedMemory,
    StaticShape,
    batches_from_columns,
    shared_memory,
)
from shardgraph.collate.values import class_name
from shardgraph.dataset import ShardedDataset

logger = logging.getLogger(__name__)


class Collator:
    """Reads the graphs of a lazy subset as one batch, in a worker or in the main process.

    After every ``unmap_after`` graphs it lets go of mapped pages, for the kernel to drop them.
    """

    def __init__(
        self,
        dataset: ShardedDataset,
        *,
        follow_batch: Iterable[str],
        exclude_keys: Iterable[str],
        batch_transform: Callable[[Any], Any] | None,
        most_on_their_way: int,
        shape: StaticShape | None = None,
        unmap_after: int | None = None,
    ) -> None:
        for name, keys in (("follow_batch", follow_batch), ("exclude_keys", exclude_keys)):
            if isinstance(keys, str):
                raise TypeError(f"{name} is a list of names, got {keys!r}: give [{keys!r}]")
        self._most_on_their_way = most_on_their_way
        self._follow = tuple(follow_batch)
        self._exclude = tuple(exclude_keys)
        self._transform = batch_transform
        self._schema = dataset.schema
        self._data_cls = dataset.data_cls
        self._per_graph: Collater | None = None
        self._batcher: Batcher | None = None
        self._memory = ReusedMemory()
        self._unmap_after = unmap_after
        self._since_unmapped = 0
        self._pads = shape is not None
        if reason := _why_per_graph(dataset, self._exclude):
            self._read_per_graph(reason)
        self._padding = None if shape is None else dataset.padding(shape, self._exclude)

    def _read_per_graph(self, reason: str) -> None:
        if self._pads:
            raise ValueError(
                f"pad=True fills up batches made from columns, but {reason}, so that they are "
                "made graph by graph; a batch_transform would do"
            )
        logger.info("batches are made graph by graph, since %s", reason)
        self._per_graph = Collater(None, list(self._follow), list(self._exclude))

    @property
    def batcher(self) -> Batcher:
        """Packs and unpacks this loader's batches."""
        if self._batcher is None:
            options: Any = {"follow_batch": self._follow, "exclude_keys": self._exclude}
            if self._padding is None:
                self._batcher = Batcher(self._schema, self._data_cls, **options)
            else:
                self._batcher = PaddedBatcher(
                    self._schema, self._data_cls, padding=self._padding, **options
                )
        return self._batcher

    def _shared(self, nbytes: int) -> Memory:
        return shared_memory(nbytes, keep=self._most_on_their_way)

    def __call__(self, graphs: ShardedDataset) -> Any:
        """The batch of a lazy subset, as torch's loader asks for it."""
        return self.read(graphs, np.arange(len(graphs)))

    def read(self, dataset: ShardedDataset, positions: NDArray[np.int64]) -> Any:
        """The batch of the graphs at some positions, packed where it is to travel further."""
        in_worker = get_worker_info() is not None
        self._since_unmapped += len(positions)
        if self._unmap_after is not None and self._since_unmapped > self._unmap_after:
            self._since_unmapped = 0
            dataset.unmap_pages()
        if self._per_graph is None and dataset.transform is not None:  # given since
            self._read_per_graph("the dataset has a transform")
        if self._per_graph is not None:
            batch = self._per_graph(dataset.__getitems__(positions.tolist()))
        else:
            plain = self._transform is None
            crosses = in_worker and plain
            packed = self.batcher.pack(
                dataset.selection(positions), self._shared if crosses else self._memory
            )
            if plain:
                return packed
            batch = packed.unpack()
        if self._transform is not None:
            batch = self._transform(batch)
        return Crossing.of(batch, self._shared) if in_worker else batch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batcher": None}


def _why_per_graph(dataset: ShardedDataset, exclude_keys: Sequence[str]) -> str | None:
    """Why batches cannot be had from columns, or None."""
    if dataset.transform is not None:
        return "the dataset has a transform"
    if dataset.overrides_get:
        return f"{type(dataset).__name__} overrides get()"
    if _has_other_rules(dataset):
        return f"{dataset.data_cls} may have other rules than the graphs were written with"
    if not batches_from_columns(dataset.schema, frozenset(exclude_keys)):
        return "the schema has sparse, indexed or varying attributes, or increments of their own"
    return None


def _has_other_rules(dataset: ShardedDataset) -> bool:
    """Whether the graphs are of a class whose rules of batching may not be those recorded."""
    cls, base = dataset.data_cls, HeteroData if dataset.schema.is_hetero else Data
    recorded = dataset.schema.data_class
    if cls is None or class_name(cls) == recorded:
        return False
    usual = (base.__inc__, base.__cat_dim__)
    return class_name(base) != recorded or (cls.__inc__, cls.__cat_dim__) != usual
