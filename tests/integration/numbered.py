"""Datasets of numbered graphs for the tests here, and what their loaders yield."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

import shardgraph as sg

SIZE = 41


def write(path: Path, size: int = SIZE) -> Path:
    """Writes graphs that know their number, of 1 to 5 nodes and 0 to 3 edges, to several shards."""
    with sg.DatasetWriter(path, shard_size=400) as writer:
        for number in range(size):
            n = 1 + number % 5
            x = torch.full((n, 8), number / size)
            x[:, 1] = torch.arange(n) / 5
            edge_index = torch.full((2, number % 4), n - 1)
            y = torch.tensor([[(number * 37 % 11) / 11.0]])
            writer.write(Data(x=x, edge_index=edge_index, y=y, number=number))
    return path


def orders(batches: Iterable[Any]) -> list[list[int]]:
    """The numbers of the graphs of each batch."""
    return [batch.number.tolist() for batch in batches]
