"""The graphs that are measured: seeded, of any number, with sizes that vary around a mean.

Only a pool of distinct graphs is generated; a longer sequence draws from it at random. That keeps
the making of millions of graphs cheap, and nothing that is measured compresses or deduplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Workload:
    """One kind of graph."""

    name: str
    description: str
    make: Callable[[np.random.Generator], Any]
    """Makes one ``Data``."""
    pool_size: int
    """Distinct graphs in a long sequence."""
    default_count: int
    """Graphs of a dataset that fits in memory."""
    batch_sizes: tuple[int, ...]

    def graphs(self, count: int, seed: int = 0) -> Iterator[Any]:
        """Yields ``count`` graphs; up to ``pool_size`` of them are distinct objects and values."""
        rng = np.random.default_rng([seed, 0])
        pool = [self.make(rng) for _ in range(min(count, self.pool_size))]
        yield from pool
        more = np.random.default_rng([seed, 1])
        for start in range(len(pool), count, 1 << 16):
            for number in more.integers(0, len(pool), min(1 << 16, count - start)).tolist():
                yield pool[number]

    def separate_graphs(self, count: int, seed: int = 0) -> list[Any]:
        """A list of ``count`` graphs that share no memory."""
        return [
            data if number < self.pool_size else data.clone()
            for number, data in enumerate(self.graphs(count, seed))
        ]


def _floats(rng: np.random.Generator, *shape: int) -> Any:
    import torch

    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))


def _integers(rng: np.random.Generator, bound: int, *shape: int) -> Any:
    import torch

    return torch.from_numpy(rng.integers(0, bound, shape))


def _molecule(rng: np.random.Generator) -> Any:
    from torch_geometric.data import Data

    num_nodes = int(rng.integers(6, 31))
    num_edges = 2 * num_nodes + int(rng.integers(-2, 5))
    return Data(
        x=_floats(rng, num_nodes, 11),
        edge_index=_integers(rng, num_nodes, 2, num_edges),
        edge_attr=_floats(rng, num_edges, 4),
        y=_floats(rng, 1, 19),
        pos=_floats(rng, num_nodes, 3),
        z=_integers(rng, 10, num_nodes),
    )


def _structure(rng: np.random.Generator) -> Any:
    from torch_geometric.data import Data

    num_nodes = int(rng.integers(50, 101))
    num_edges = num_nodes * 100 // 3
    return Data(
        z=_integers(rng, 90, num_nodes),
        pos=_floats(rng, num_nodes, 3),
        edge_index=_integers(rng, num_nodes, 2, num_edges),
        edge_vec=_floats(rng, num_edges, 3),
        y=_floats(rng, 1),
        force=_floats(rng, num_nodes, 3),
    )


def _mesh(rng: np.random.Generator) -> Any:
    from torch_geometric.data import Data

    num_nodes = int(rng.integers(16_000, 24_001))
    num_edges = 6 * num_nodes
    return Data(
        x=_floats(rng, num_nodes, 8),
        pos=_floats(rng, num_nodes, 3),
        edge_index=_integers(rng, num_nodes, 2, num_edges),
        edge_attr=_floats(rng, num_edges, 4),
        y=_floats(rng, num_nodes, 3),
    )


def _tiny(rng: np.random.Generator) -> Any:
    from torch_geometric.data import Data

    return Data(x=_floats(rng, 3, 1), edge_index=_integers(rng, 3, 2, 2), y=_floats(rng, 1))


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "molecules",
            "18 nodes and 37 edges in the mean, 6 attributes, 2.3 kB",
            _molecule,
            pool_size=10_000,
            default_count=50_000,
            batch_sizes=(32, 256),
        ),
        Workload(
            "atomistic",
            "75 nodes and 2,500 edges in the mean, 6 attributes, 73 kB",
            _structure,
            pool_size=2_000,
            default_count=4_000,
            batch_sizes=(32, 256),
        ),
        Workload(
            "meshes",
            "20,000 nodes and 120,000 edges in the mean, 5 attributes, 5 MB",
            _mesh,
            pool_size=50,
            default_count=100,
            batch_sizes=(2, 8),
        ),
        Workload(
            "tiny",
            "3 nodes and 2 edges, 3 attributes, 48 bytes",
            _tiny,
            pool_size=10_000,
            default_count=100_000,
            batch_sizes=(256,),
        ),
    )
}


def synthetic_runs(length: int, kind: str) -> Callable[[np.random.Generator], Any]:
    """Makes graphs whose one long attribute has exactly ``length`` rows.

    Args:
        length: Rows a graph.
        kind: ``"floats"``: ``pos`` float32 [length, 3], copied as it is. ``"edges"``:
            ``edge_index`` int64 [2, length] of 8 nodes, stored in a byte each, so that it is
            widened, offset and transposed.
    """

    def make(rng: np.random.Generator) -> Any:
        from torch_geometric.data import Data

        if kind == "floats":
            return Data(pos=_floats(rng, length, 3))
        return Data(edge_index=_integers(rng, 8, 2, length), num_nodes=8)

    return make
