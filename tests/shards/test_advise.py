"""Advice on what is read next stays within the file, whatever its ptr says."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import shardgraph as sg
from shardgraph.shards.advise import Advisor, byte_ranges
from shardgraph.shards.pool import ShardPool


@pytest.mark.parametrize("value", [-1, -(1 << 40), 1 << 40, (1 << 63) - 1, -(1 << 63)])
def test_a_ptr_that_lies(value: int, tmp_path: Path) -> None:
    with sg.DatasetWriter(tmp_path) as writer:
        for _ in range(9):
            writer.write(Data(x=torch.ones(50, 200)))
    with h5py.File(tmp_path / "shard-00000.h5", "r+") as file:
        file["ptr/node"][3] = value
    manifest = sg.Manifest.read(tmp_path)
    pool = ShardPool(tmp_path, manifest, manifest.schema)
    first, last = np.array([0, 3, 5]), np.array([3, 5, 9])
    starts, stops = byte_ranges(pool.shard(0), first, last)
    assert (starts >= 0).all()
    assert (starts <= stops).all()
    assert (stops <= manifest.nbytes).all()
    for one in (slice(0, 1), slice(1, 2), slice(0, 3)):
        Advisor(pool).ask(first[one], last[one])
        Advisor(pool).let_go(first[one], last[one])
