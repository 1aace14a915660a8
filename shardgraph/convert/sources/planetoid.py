"""Cora, CiteSeer, PubMed in their original form: ind.NAME.x, .tx, .allx, .y, .ty, .ally, .graph.

The files are those of https://github.com/kimiyoung/planetoid, pickled by Python 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.convert.build import as_dtype, make_data
from shardgraph.convert.source import Confidence, Partition, Reject, Source
from shardgraph.convert.unpickle import Record, loads
from shardgraph.errors import FormatError

if TYPE_CHECKING:
    from torch_geometric.data.data import BaseData

_NUM_VALIDATION = 500
_PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")


class PlanetoidSource(Source):
    """Reads the one graph of the folder, as ``torch_geometric.datasets.Planetoid`` does.

    ``x`` float32 [N, F], ``y`` int64 [N], ``edge_index`` sorted, without self-loops and repeated
    edges, ``train_mask``, ``val_mask`` (the 500 nodes after the training ones) and ``test_mask``
    bool [N]. A node that the files say nothing of has features 0 and class 0.

    The pickles are read without running code: arrays, lists and SciPy's CSR matrices only.
    """

    name = "planetoid"
    description = "a folder of Planetoid files: ind.NAME.x, ind.NAME.graph, ..."

    @classmethod
    def recognise(cls, spec: str) -> Confidence | None:
        """Certain of a folder with one ind.NAME.allx."""
        return Confidence.CERTAIN if len(_starts(spec)) == 1 else None

    def read(self, partition: Partition) -> Iterator[BaseData | Reject]:  # noqa: ARG002 (the one)
        """Yields the one graph; a fault in the files is an error of the folder as a whole."""
        start = self._start()
        try:
            yield _graph({part: _read(Path(f"{start}.{part}")) for part in _PARTS})
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"{start}.*: {type(error).__name__}: {error}") from error

    def files(self) -> list[Path]:
        """The eight files."""
        start = self._start()
        return [Path(f"{start}.{part}") for part in _PARTS]

    def _start(self) -> str:
        starts = _starts(self.spec)
        if len(starts) != 1:
            raise FormatError(
                f"{self.spec} holds {len(starts) or 'no'} files ind.NAME.allx; expected one"
            )
        return starts[0]


def _starts(spec: str) -> list[str]:
    return [
        str(path).removesuffix(".allx")
        for folder in (Path(spec), Path(spec) / "raw")
        for path in sorted(folder.glob("ind.*.allx"))
    ]


def _read(path: Path) -> Any:
    if path.name.endswith(".test.index"):
        return np.loadtxt(path, dtype=np.int64, ndmin=1)
    value = loads(path.read_bytes(), str(path), encoding="latin1")
    return _dense(value.state) if isinstance(value, Record) else value


def _dense(state: dict[str, Any]) -> NDArray[np.float32]:
    """The array of a SciPy CSR matrix, from its attributes (named _shape or shape)."""
    num_rows, num_columns = state["_shape"] if "_shape" in state else state["shape"]
    indptr, columns = np.asarray(state["indptr"]), np.asarray(state["indices"])
    values = as_dtype(state["data"], np.float32, "x")
    dense = np.zeros((num_rows, num_columns), dtype=np.float32)
    np.add.at(dense, (np.repeat(np.arange(num_rows), np.diff(indptr)), columns), values)
    return dense


def _graph(parts: dict[str, Any]) -> BaseData:
    test: NDArray[np.int64] = parts["test.index"]
    graph: dict[int, list[int]] = parts["graph"]
    num_nodes = max(len(graph), len(parts["allx"]), int(test.max(initial=-1)) + 1)
    x = np.zeros((num_nodes, parts["allx"].shape[1]), dtype=np.float32)
    one_hot = np.zeros((num_nodes, parts["ally"].shape[1]), dtype=np.int64)
    for values, rest, rest_test in ((x, "allx", "tx"), (one_hot, "ally", "ty")):
        values[: len(parts[rest])] = parts[rest]
        values[test] = parts[rest_test]
    num_train = len(parts["y"])
    masks = {name: np.zeros(num_nodes, dtype=bool) for name in ("train", "val", "test")}
    masks["train"][:num_train] = True
    masks["val"][num_train : num_train + _NUM_VALIDATION] = True
    masks["test"][test] = True
    return make_data(
        x=x,
        edge_index=_edges(graph, num_nodes),
        y=one_hot.argmax(axis=1),
        **{f"{name}_mask": mask for name, mask in masks.items()},
    )


def _edges(graph: dict[int, list[int]], num_nodes: int) -> NDArray[np.int64]:
    sources = np.repeat(
        np.array(list(graph), dtype=np.int64), [len(near) for near in graph.values()]
    )
    targets = np.array([node for near in graph.values() for node in near], dtype=np.int64)
    both = np.stack([sources, targets])
    if both.size and not 0 <= both.min() <= both.max() < num_nodes:
        raise FormatError(f"an edge joins {both.max()}, but there are {num_nodes} nodes")
    return np.unique(both[:, sources != targets], axis=1)
