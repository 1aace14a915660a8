"""`ShardedDataset`: a PyG ``Dataset`` that reads its graphs from disk, when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Dataset
from torch_geometric.data.data import BaseData

from shardgraph.atomic import digest128
from shardgraph.collate import GraphDecoder, Padding, StaticShape, graph_class
from shardgraph.facts import Facts
from shardgraph.format.layout import MANIFEST_NAME
from shardgraph.format.manifest import Manifest
from shardgraph.format.schema import Schema
from shardgraph.format.splits import unpack_split
from shardgraph.format.statistics import Statistics
from shardgraph.indexing import as_number, choose, id_ranges, ids_at
from shardgraph.per_graph import GraphSizes, read_labels, read_sizes, select
from shardgraph.processing import build, is_current
from shardgraph.shards.advise import Advisor, FaultWatch, sorted_ranges
from shardgraph.shards.gather import Selection
from shardgraph.shards.pool import ShardPool
from shardgraph.shards.structure import check_claims


class ShardedDataset(Dataset):
    """Graphs on disk as an ordinary PyG dataset.

    Nothing is opened in the constructor; each process opens a shard when it first reads from it.
    Length, slices, ``num_features``, ``num_classes`` and ``get_summary()`` come from the manifest.
    Graphs own their tensors, which may be written to.

    To process raw files as PyG datasets do, subclass it: name the raw files in ``raw_file_names``,
    optionally define ``download()``, and yield the graphs from ``generate()``. That runs once, with
    ``pre_filter`` and ``pre_transform``, into ``root/processed``.

    Args:
        root: A dataset's directory, or a PyG root whose ``processed/`` is one.
        transform: Applied to each graph when it is read.
        pre_transform: Applied to each generated graph before it is written.
        pre_filter: Says of each generated graph whether it is kept.
        keys: Names of the attributes to read; the bytes of the others are not touched. The number
            of nodes stays known.
        data_cls: Class of the graphs. By default the one they were written from, if it is imported
            already; else a stand-in that batches as that class did.
        force_reload: Whether to generate anew.
        log: Whether to say on stderr that graphs are being generated.

    Raises:
        FormatError: if there is no dataset at ``root``, or it cannot be read.
        TypeError: if the graphs cannot be of class ``data_cls``, or a subclass has ``process()`` in
            place of ``generate()``.

    Example:
        >>> import tempfile, torch, shardgraph as sg
        >>> from torch_geometric.data import Data
        >>> root = tempfile.mkdtemp()
        >>> with sg.DatasetWriter(root) as writer:
        ...     for n in range(10):
        ...         writer.write(Data(x=torch.full((n, 4), float(n)), y=n % 3))
        >>> dataset = sg.ShardedDataset(root)
        >>> len(dataset), dataset.num_features, dataset.num_classes
        (10, 4, 3)
        >>> dataset[:0.5][-1]
        Data(x=[4, 4], y=1)
    """

    varying: Collection[str] = ()
    """Names of generated tensors whose trailing shape may differ from graph to graph."""

    raw_file_names: Any = ()
    processed_file_names: Any = MANIFEST_NAME

    def __init__(
        self,
        root: str | Path,
        transform: Callable[[Any], Any] | None = None,
        pre_transform: Callable[[Any], Any] | None = None,
        pre_filter: Callable[[Any], bool] | None = None,
        *,
        keys: Sequence[str] | None = None,
        data_cls: type[BaseData] | None = None,
        force_reload: bool = False,
        log: bool = True,
    ) -> None:
        if not self.has_process and type(self).process is not Dataset.process:
            raise TypeError(
                f"{type(self).__name__} defines process(), which ShardedDataset does not call: "
                "rename it generate(), and yield the graphs one by one instead of saving a list"
            )
        super().__init__(
            os.fspath(root),
            transform,
            pre_transform,
            pre_filter,
            log=log,
            force_reload=force_reload,
        )
        directory = Path(self.root).absolute()  # so that a chdir does not lose it
        if self.has_process or not (directory / MANIFEST_NAME).exists():
            processed = Path(self.processed_dir).absolute()
            directory = processed if (processed / MANIFEST_NAME).exists() else directory
        self.directory = directory
        self.manifest = Manifest.read(directory)
        check_claims(directory, self.manifest.shards)
        self.keys = None if keys is None else frozenset(keys)
        self.data_cls = graph_class(self.manifest.schema, data_cls)
        self.schema: Schema = self.manifest.schema.select(self.keys)
        self._pool = ShardPool(directory, self.manifest, self.schema)
        self._start_fresh()

    def _start_fresh(self) -> None:
        """What is of this process alone, and not pickled."""
        self._decoder: GraphDecoder | None = None
        self._advisor = Advisor(self._pool)
        self._faults = FaultWatch()
        self._known: dict[str, Any] = {}

    # Processing ----------------------------------------------------------------------------------

    def generate(self) -> Iterator[BaseData]:
        """Yields the graphs of the raw files; to be defined by subclasses that process."""
        raise NotImplementedError(f"{type(self).__name__} does not define generate()")

    @property
    def has_process(self) -> bool:
        """Whether this class generates its graphs."""
        return type(self).generate is not ShardedDataset.generate

    def _process(self) -> None:
        if self.force_reload or not is_current(self):
            build(self)

    # Reading -------------------------------------------------------------------------------------

    def len(self) -> int:
        """Number of graphs of the whole dataset, whatever the subset."""
        return self._pool.num_graphs

    def get(self, idx: int) -> BaseData:
        """Graph ``idx`` of the whole dataset, untransformed."""
        idx = int(idx)
        shard, local = self._pool.locate(idx)
        if self._faults.is_cold():
            self._advisor.ask(np.array([idx]), np.array([idx + 1]))
        data = self._graphs().one(shard, local)
        self._faults.after_read()
        return data

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """The graphs at some positions of this subset, transformed; what torch's loaders call."""
        if self.overrides_get:
            return [self[position] for position in positions]
        graphs = self._graphs().many(self.selection(np.asarray(positions, np.int64)))
        self._faults.after_read()
        if self.transform is None:
            return graphs
        return list(map(self._transformed, graphs, positions))

    def _transformed(self, data: BaseData, position: int) -> Any:
        """The graph at a position of this subset, transformed; an error says which graph it is."""
        try:
            return data if self.transform is None else self.transform(data)
        except Exception as error:
            if hasattr(error, "add_note"):  # since Python 3.11
                (number,) = self.graph_ids(np.array([position])).tolist()
                error.add_note(f"This was the transform of graph {number} of {self.directory}")
            raise

    def _graphs(self) -> GraphDecoder:
        if self._decoder is None:
            self._decoder = GraphDecoder(self.schema, self.data_cls)
        return self._decoder

    @property
    def overrides_get(self) -> bool:
        """Whether a subclass reads graphs its own way."""
        return type(self).get is not ShardedDataset.get

    def selection(self, positions: NDArray[np.int64] | None = None) -> Selection:
        """The graphs at some positions of this subset, or all of it, to be gathered.

        Raises:
            IndexError: if a position is out of range.
        """
        if positions is None:
            ids = np.asarray(self.indices(), np.int64)
        else:
            ids = self.graph_ids(positions)
        if self._faults.is_cold():
            self._advisor.ask(*sorted_ranges(ids))
        return Selection.of(self._pool, ids)

    def will_read(self, ranges: NDArray[np.int64]) -> int:
        """Asks for the graphs in half-open ranges of positions to be read in the background.

        Returns the number of bytes asked for: 0 if the graphs are found to be cached.
        """
        return self._advisor.ask(*id_ranges(self.indices(), ranges))

    def was_read(self, ranges: NDArray[np.int64]) -> None:
        """Says that the graphs in half-open ranges of positions may leave the page cache."""
        self._advisor.let_go(*id_ranges(self.indices(), ranges))

    def unmap_pages(self) -> None:
        """Lets this process's page tables go: the kernel keeps the pages that they hold."""
        self._pool.forget()

    def graph_ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The whole dataset's ids of the graphs at some positions of this subset."""
        return ids_at(self.indices(), positions)

    def check_files(self) -> None:
        """Compares the sizes of all shards with the manifest; `verify` checks much more.

        Raises:
            CorruptShardError: naming a shard that is missing, or longer or shorter.
        """
        self._pool.check_all()

    def close(self) -> None:
        """Closes this process's shards; reading again opens them again."""
        self._pool.close()

    # Indexing ------------------------------------------------------------------------------------

    def __getitem__(self, idx: Any) -> Any:
        """A graph (int), or a subset (slice, list, tensor, array, mask), as in PyG."""
        number = as_number(idx)
        if number is None:
            return self.index_select(idx)
        if not -len(self) <= number < len(self):
            raise IndexError(f"graph {number} of a dataset of {len(self)} graphs")
        return self._transformed(self.get(int(self.indices()[number])), number)

    def index_select(self, idx: Any) -> ShardedDataset:
        """The subset at ``idx``: a slice (float ends are fractions), indices, or a bool mask.

        Raises:
            IndexError: if an index is out of range, or a mask has not the dataset's length.
        """
        subset = self.__copy__()
        subset._indices = choose(self.indices(), idx)
        return subset

    def __copy__(self) -> ShardedDataset:
        # Without __getstate__: a subset shares the open shards of its dataset.
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_decoder", "_advisor", "_faults", "_known"):
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_fresh()

    # Facts ---------------------------------------------------------------------------------------

    @property
    def statistics(self) -> Statistics:
        """Exact statistics, from the manifest; of a subset, by reading its values.

        Of the stored values, whatever ``transform`` does. Keep the result: a subset is read anew
        each time.
        """
        return self._facts().statistics()

    def identity(self) -> str:
        """A digest of what this subset holds and in which order: it tells two subsets apart."""
        indices = self._indices
        if indices is None or isinstance(indices, range):
            chosen = repr(indices).encode()
        else:
            chosen = np.ascontiguousarray(indices, np.int64).tobytes()
        shards = ",".join(entry.digest for entry in self.manifest.shards)
        return digest128(shards.encode() + b"/" + chosen)

    def split(self, name: str) -> ShardedDataset:
        """The named subset that was stored with the dataset.

        Raises:
            KeyError: if there is no such split.
        """
        splits = self.manifest.splits
        if name not in splits:
            none = "none: `shardgraph convert SOURCE OUT --split train=0.9,test=0.1` makes some"
            raise KeyError(f"no split {name!r}; the dataset has {sorted(splits) or none}")
        subset = self.__copy__()
        subset._indices = unpack_split(splits[name], self.manifest.num_graphs)
        return subset

    @property
    def sizes(self) -> GraphSizes:
        """Nodes and edges of each graph of this subset, also by type, as read-only NumPy arrays.

        Reads ptr only, once; subsets share it, and those made by slices are views.

        Example:
            ``dataset[dataset.sizes.num_nodes <= 100]`` is the subset of small graphs.
        """
        whole = self._known.get("sizes")
        if whole is None:
            facts = Facts(self._pool, self.manifest, self.schema, None)
            whole = self._known["sizes"] = read_sizes(facts, self.schema)
        return whole if self._indices is None else whole.select(self._indices)

    @property
    def labels(self) -> NDArray[Any]:
        """``y`` of each graph of this subset as a read-only NumPy array, whatever ``transform``.

        [len(self)] if ``y`` is one number, else [len(self), ...]. Reads that column only, once;
        subsets share it, and those made by slices are views.

        Raises:
            ValueError: if there is not one ``y`` of numbers for each graph.
        """
        whole = self._known.get("labels")
        if whole is None:
            whole = self._known["labels"] = read_labels(self._pool, self.schema)
        return select(whole, self._indices)

    def padding(self, shape: StaticShape, exclude_keys: Sequence[str] = ()) -> Padding:
        """How batches of these graphs are filled up to one shape.

        Raises:
            ValueError: if an attribute that is not excluded cannot be filled up.
        """
        shards = [self._pool.shard(number) for number in range(len(self.manifest.shards))]
        return Padding.of(self.schema, shards, shape, exclude_keys)

    def _facts(self) -> Facts:
        return Facts(self._pool, self.manifest, self.schema, self._indices)

    @property
    def num_node_features(self) -> Any:
        """Number of features per node; of each node type, if there are types."""
        return self._example("x").num_node_features

    @property
    def num_edge_features(self) -> Any:
        """Number of features per edge; of each edge type, if there are types."""
        return self._example("edge_attr").num_edge_features

    def _example(self, name: str) -> Any:
        """A graph that tells the features: an empty one, or the first where that is not enough."""
        if self.transform is None and not self.overrides_get:
            example = self._graphs().empty(name)
            if example is not None:
                return example
        data = self[0]
        return data[0] if isinstance(data, tuple) else data

    @property
    def num_classes(self) -> int:
        """Number of classes in ``y``, as PyG tells it; of a subset, by reading its labels."""
        if self.transform is not None or self.overrides_get:
            return int(super().num_classes)
        found = self._facts().num_classes()
        if found is None:
            found = self._infer_num_classes(self._labels())
        return int(found)

    def _labels(self) -> Tensor | None:
        labels = ShardedDataset.__copy__(self)
        labels.schema = self.schema.select(frozenset({"y"}))
        labels._decoder = GraphDecoder(labels.schema, self.data_cls)
        ys: list[Any] = []
        for start in range(0, len(self), 1 << 16):
            stop = min(start + (1 << 16), len(self))
            ys += [data.y for data in labels.__getitems__(range(start, stop))]
        if not ys:
            return None
        if isinstance(ys[0], Tensor):
            return torch.cat([torch.atleast_1d(y) for y in ys])
        return torch.as_tensor(ys)

    def get_summary(self) -> Any:
        """PyG's summary of graph sizes, from the manifest; of a subset, from ptr."""
        if self.transform is not None or self.overrides_get:
            return super().get_summary()
        return self._facts().summary(type(self).__name__)
