"""A source for the tests of the engine: graphs made of their own number, with faults on demand."""

import os
import signal
import time
from pathlib import Path

import torch
from torch_geometric.data import Data, HeteroData

from shardgraph.convert import Option, Partition, Reject, Source


class Numbers(Source):
    """Record i is a graph of ``i % 7 + 1`` nodes; partitions are of ``size`` records.

    ``bad`` records are rejects, ``odd`` ones have another dtype, and at ``die`` the process does.
    """

    name = "numbers"
    options = (Option(name="count", type=int, help="records", default=100),)

    def __init__(self, *, count=100, size=20, bad=(), odd=(), die=None, delay=0.0, known=True):
        super().__init__("numbers.txt")
        self.count, self.size, self.delay, self.known = count, size, delay, known
        self.bad, self.odd, self.die = frozenset(bad), frozenset(odd), die

    def partitions(self):
        return [
            Partition(
                file=self.spec,
                first=first,
                num_records=min(self.size, self.count - first) if self.known else None,
            )
            for first in range(0, self.count, self.size)
        ]

    def read(self, partition):
        for i in range(partition.first, min(partition.first + self.size, self.count)):
            if self.delay:
                time.sleep(self.delay)
            if i == self.die:
                os.kill(os.getpid(), signal.SIGKILL)
            if i in self.bad:
                yield Reject(file=self.spec, record=i + 1, reason=f"{i} is bad", raw=str(i))
            else:
                yield self.graph(i)

    def graph(self, i):
        return number_graph(i, dtype=torch.float64 if i in self.odd else torch.float32)

    def provenance(self):
        return {"format": self.name, "count": self.count}


class Typed(Numbers):
    """Typed graphs; the node type "late" appears from ``start`` on, and is odd in odd records."""

    start = 50

    def graph(self, i):
        data = HeteroData()
        data["early"].x = torch.full((i % 3 + 1, 2), float(i))
        if i >= self.start:
            dtype = torch.float64 if i in self.odd else torch.float32
            data["late"].x = torch.full((i % 2, 3), float(i), dtype=dtype)
        return data


def number_graph(i, dtype=torch.float32):
    n = i % 7 + 1
    edge_index = torch.tensor([[k, (k + 1) % n] for k in range(n)]).t().contiguous()
    return Data(x=torch.full((n, 2), float(i), dtype=dtype), edge_index=edge_index, y=i % 3)


def is_even(data):
    return int(data.x[0, 0]) % 2 == 0


def negate(data):
    data.x = -data.x
    return data


def fail_at_30(data):
    if int(data.x[0, 0]) == 30:
        raise LookupError("no thirty")
    return data


def contents(directory):
    """The bytes of every file of a dataset, by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}


def written(directory):
    """The numbers of the graphs of a dataset, in order."""
    from shardgraph import ShardedDataset

    return [int(data.x[0, 0].abs()) for data in ShardedDataset(directory)]
