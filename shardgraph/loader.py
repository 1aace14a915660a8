"""`GraphLoader`: dataset, plan and one-buffer batches as a torch ``DataLoader``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset

from shardgraph.collate import Crossing, PackedBatch, StaticShape, less_padding
from shardgraph.collator import Collator
from shardgraph.dataset import ShardedDataset
from shardgraph.epoch import Epoch, PlanSampler, Progress
from shardgraph.processes import starting_workers
from shardgraph.readahead import ReadAheadThread
from shardgraph.sampling import BatchPlan, ReadAhead, balanced_weights
from shardgraph.shards.open import SMALL
from shardgraph.shards.room import page_cache_room

logger = logging.getLogger(__name__)


class GraphLoader(DataLoader[Any]):
    """Batches of a dataset's graphs, equal to ``Batch.from_data_list``, read as one buffer each.

    What an epoch reads and in which order depends on the dataset, ``seed`` and the epoch alone,
    not on workers or ranks. Each ``iter()`` is the next epoch; ``set_epoch`` chooses another.

    Of torch's arguments it takes no ``sampler``, ``batch_sampler`` or ``generator``, as the plan
    orders the graphs (``shuffle``, ``weights``, ``seed``), nor ``collate_fn``: there is
    ``batch_transform``.

    What the plan reads next is asked of the disk ahead of time. In window order, if the graphs at
    hand have more bytes than memory has room for, what was read leaves the page cache behind.

    Args:
        dataset: A `ShardedDataset`, a subset of it, or a ``torch.utils.data.Subset`` of one.
        batch_size: Graphs in a batch; 1 if no budget is given either.
        max_nodes: Budget: nodes in a batch, as stored (a ``transform`` that adds some exceeds it);
            of all types together, or by node type: ``{"paper": 1000, "author": 500}``.
        max_edges: Budget: edges in a batch; by edge type as triples or as PyG's strings.
        max_graphs: Budget: graphs in a batch.
        oversized: What becomes of a graph over budget: ``"error"``; ``"alone"``, a batch of its
            own; or ``"skip"``, which is logged with their number.
        pad: Fill each batch up to ``max_nodes``, ``max_edges`` and ``max_graphs``, all of which
            must be given, for ``torch.compile`` to see one shape. The last graph of a batch is the
            padding; its edges join its first node, and its values are zeros. ``node_mask``,
            ``edge_mask`` and ``graph_mask`` are true for what is real. One node and one graph of
            the budgets are kept for it.
        weights: Draw the graphs of an epoch at random in proportion to these, one a graph; or
            ``"balanced"``, so that each class in ``dataset.labels`` comes equally often. Needs a
            shuffle.
        num_samples: Draws in an epoch, by default as many as there are graphs.
        replacement: Whether a graph may be drawn again in the same epoch.
        shuffle: False; ``"full"``; ``"window"``, which a disk reads well; or True: full for small
            datasets and window for large.
        seed: Of the shuffle and, with the epoch and the rank, of the workers' random generators.
        drop_last: Leave out a last batch that is not full.
        pad_ranks: Repeat some graphs rather than drop any, for ranks to take equally many steps.
        rank: This process among ``world_size``; by default what ``torch.distributed`` says.
        world_size: Number of processes.
        num_workers: Processes that read; 0 reads in this one.
        follow_batch: Attributes that get a batch vector of their own, as in PyG.
        exclude_keys: Attributes left out, as in PyG; their bytes are not read.
        batch_transform: Applied to each batch where it is made (in the worker, if there are any).
        pin_memory: Whether batches come in page-locked memory.
        persistent_workers: Whether workers outlive an epoch.
        prefetch_factor: Batches that each worker keeps ready (torch's default is 2).
        multiprocessing_context: How workers start: ``"fork"``, ``"spawn"``, ``"forkserver"``.
        timeout: Seconds to wait for a batch from a worker; 0 is forever.
        worker_init_fn: Called in each worker with its number.

    Raises:
        TypeError: if the dataset is no `ShardedDataset`.
        ValueError: if an argument is out of its range.

    Example:
        >>> import tempfile, torch, shardgraph as sg
        >>> from torch_geometric.data import Data
        >>> root = tempfile.mkdtemp()
        >>> with sg.DatasetWriter(root) as writer:
        ...     for n in range(1, 6):
        ...         writer.write(Data(x=torch.ones(n, 4), y=n))
        >>> loader = sg.GraphLoader(sg.ShardedDataset(root), batch_size=2)
        >>> [batch.y.tolist() for batch in loader]
        [[1, 2], [3, 4], [5]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        max_nodes: int | Mapping[Any, int] | None = None,
        max_edges: int | Mapping[Any, int] | None = None,
        max_graphs: int | None = None,
        oversized: Any = "error",
        pad: bool = False,
        weights: Any = None,
        num_samples: int | None = None,
        replacement: bool = True,
        shuffle: bool | str = False,
        seed: int = 0,
        drop_last: bool = False,
        pad_ranks: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        num_workers: int = 0,
        follow_batch: Sequence[str] | None = None,
        exclude_keys: Sequence[str] | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: Any = None,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
    ) -> None:
        dataset = _unwrapped(dataset)
        rank, world_size = _ranks(rank, world_size)
        if batch_size is None and max_nodes is max_edges is max_graphs is None:
            batch_size = 1
        shape = None
        if pad:
            if oversized == "alone":
                raise ValueError("pad=True cannot fill up a batch over budget: oversized='alone'")
            shape = StaticShape.of(
                dataset.schema, max_nodes=max_nodes, max_edges=max_edges, max_graphs=max_graphs
            )
            max_nodes, max_graphs = less_padding(max_nodes), less_padding(max_graphs)
        num_nodes, num_edges = _sizes(dataset, max_nodes, max_edges)
        manifest = dataset.manifest
        nbytes = manifest.nbytes * len(dataset) // max(1, manifest.num_graphs)
        self.plan = BatchPlan(
            len(dataset),
            batch_size=batch_size,
            max_nodes=max_nodes,
            max_edges=max_edges,
            max_graphs=max_graphs,
            num_nodes=num_nodes,
            num_edges=num_edges,
            oversized=oversized,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            pad_ranks=pad_ranks,
            nbytes=nbytes,
            weights=_weights(dataset, weights),
            num_samples=num_samples,
            replacement=replacement,
        )
        if self.plan.skipped:
            logger.warning(
                "%d of %d graphs are skipped: they exceed a budget (oversized='skip')",
                self.plan.skipped,
                len(dataset),
            )
        self._exceeds_memory = self.plan.window_size is not None and nbytes > page_cache_room()
        self._batch_size = batch_size
        self._source = dataset
        self._digest: str | None = None
        self._collator = Collator(
            dataset,
            follow_batch=follow_batch or (),
            exclude_keys=exclude_keys or (),
            batch_transform=batch_transform,
            most_on_their_way=num_workers * (prefetch_factor or 2) + 2,
            shape=shape,
            unmap_after=self.plan.window_size if self._exceeds_memory else None,
        )
        self._progress = Progress()
        super().__init__(
            dataset,
            batch_size=None,
            sampler=PlanSampler(self.plan, self._progress),
            num_workers=num_workers,
            collate_fn=self._collator,  # type: ignore[arg-type]  # without batch_size: one item
            pin_memory=pin_memory,
            persistent_workers=persistent_workers,
            prefetch_factor=prefetch_factor,
            multiprocessing_context=multiprocessing_context,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            generator=torch.Generator(),
        )

    @property
    def batch_size(self) -> int | None:
        """Graphs in a batch; None with budgets."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: int | None) -> None:
        """Torch's own notion of a batch size is not used: the plan makes the batches."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source!r}, {self.plan!r})"

    def __len__(self) -> int:
        """Number of batches of the epoch at hand, those before a resume included."""
        return len(self.sampler)  # type: ignore[arg-type]  # it is ours

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Iterates over the next epoch's batches."""
        return self._epoch(self._unpacked)

    def packed_batches(self) -> Iterator[Any]:
        """Iterates over the next epoch's batches as they travel: `PackedBatch` where possible.

        A device prefetcher moves such a batch as one block and unpacks it on arrival.
        """
        return self._epoch(self._attached)

    def _epoch(self, convert: Callable[[Any], Any]) -> Epoch:
        progress = self._progress
        progress.begin()
        # Workers' seeds come from here, not from torch's global generator: dropout, say, then goes
        # on the same after a resume, and with any number of workers.
        words = [self.plan.seed, progress.epoch, self.plan.rank]
        self.generator.manual_seed(int(np.random.SeedSequence(words).generate_state(1)[0]))
        # Without workers, torch's own iterator would cost a tenth of the time of reading a batch.
        items = self._read_in_workers() if self.num_workers else self._read_here()
        # After the workers were forked: a thread must not be caught in a fork.
        ahead: ReadAheadThread | None = None
        if self._source.manifest.nbytes > SMALL:
            items_from = partial(self._read_ahead, progress.epoch, progress.cursor)
            ahead = ReadAheadThread(
                self._source, items_from, progress.handed_out, lets_go=self._exceeds_memory
            )
            progress.ahead = ahead
        check_files = self._source.check_files if self.num_workers else None
        return Epoch(items, progress, convert, ahead, check_files=check_files)

    def _read_in_workers(self) -> Iterator[Any]:
        """The epoch's batches, read by torch's workers, which end with this process."""
        with starting_workers(self):
            return super().__iter__()

    def _read_here(self) -> Iterator[Any]:
        """The epoch's batches, read in this process."""
        positions = iter(self.sampler)  # now: the epoch is settled when iteration begins
        pins = self.pin_memory and torch.cuda.is_available()

        def read() -> Iterator[Any]:
            for each in positions:
                item = self._collator.read(self._source, each)
                yield item.pin_memory() if pins and hasattr(item, "pin_memory") else item

        return read()

    def _read_ahead(self, epoch: int, cursor: int, batch: int) -> Iterator[ReadAhead]:
        """What is read from this rank's ``batch`` on, counted from ``cursor``."""
        if batch >= self.plan.num_batches(epoch, cursor):
            return iter(())
        return self.plan.read_ahead(epoch, cursor + batch * self.plan.world_size)

    def _attached(self, item: Any) -> Any:
        if isinstance(item, Crossing):
            return item.unpack()
        return item.attach(self._collator.batcher) if isinstance(item, PackedBatch) else item

    def _unpacked(self, item: Any) -> Any:
        item = self._attached(item)
        return item.unpack() if isinstance(item, PackedBatch) else item

    @property
    def epoch(self) -> int:
        """The epoch that the next ``iter()`` yields, from 0; of a resumed one, what was left."""
        return self._progress.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch that the next ``iter()`` yields; of a resumed one, what was left."""
        self._progress.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the training is: small, JSON-able, the same on all ranks."""
        progress = self._progress
        state = self.plan.state_dict(progress.epoch, progress.delivered, progress.cursor)
        return {**state, "steps": progress.steps(), "dataset": self._identity()}

    def _identity(self) -> str:
        if self._digest is None:
            self._digest = self._source.identity()
        return self._digest

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state: the next ``iter()`` yields exactly what was left of its epoch.

        A state taken at the end of an epoch goes on with the next. The number of workers and of
        ranks may differ from the run that saved it.

        Raises:
            ValueError: if the state belongs to another dataset, seed, order or way of batching.
        """
        state = dict(state)
        if state.pop("dataset", None) != self._identity():
            raise ValueError(
                "the state belongs to other graphs: to another dataset or subset, or to the same "
                "graphs in another order; build the loader on the dataset that it was saved with"
            )
        steps = state.pop("steps", None)
        if not isinstance(steps, int) or steps < 0:
            raise ValueError(f"the state's steps must be a whole number from 0 on, got {steps!r}")
        epoch, cursor = self.plan.resume(state)
        if cursor and self.plan.num_batches(epoch, cursor) == 0:
            epoch, cursor, steps = epoch + 1, 0, 0
        self._progress.choose(epoch, cursor, steps)


def _unwrapped(dataset: Any) -> ShardedDataset:
    """The dataset itself; a ``torch.utils.data.Subset`` becomes a subset of ours."""
    if type(dataset) is Subset:
        inner = _unwrapped(dataset.dataset)
        return inner.index_select(np.asarray(dataset.indices, np.int64))
    if not isinstance(dataset, ShardedDataset):
        raise TypeError(
            f"GraphLoader reads a ShardedDataset, got {type(dataset).__name__}; "
            "for other datasets use torch_geometric.loader.DataLoader"
        )
    return dataset


def _sizes(dataset: ShardedDataset, max_nodes: Any, max_edges: Any) -> tuple[Any, Any]:
    """Nodes and edges of each graph, by type where budgets are; None without budgets."""
    if max_nodes is None and max_edges is None:
        return None, None
    sizes = dataset.sizes
    return (
        sizes.num_nodes_dict if isinstance(max_nodes, Mapping) else sizes.num_nodes,
        sizes.num_edges_dict if isinstance(max_edges, Mapping) else sizes.num_edges,
    )


def _weights(dataset: ShardedDataset, weights: Any) -> Any:
    if isinstance(weights, str):
        if weights != "balanced":
            raise ValueError(f"weights is an array, 'balanced' or None, got {weights!r}")
        return balanced_weights(dataset.labels)
    return weights


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise ValueError(f"give rank and world_size together, got {rank=} and {world_size=}")
    if rank is not None and world_size is not None:
        return rank, world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
