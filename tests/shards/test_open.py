"""Opening shards that are damaged or of another version, and beside other readers."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from forging import SHARD, attribute, forge, write
from torch_geometric.data import Data

import shardgraph as sg


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "data")


def test_a_newer_minor_version_is_read_with_a_warning(root: Path) -> None:
    forge(root, attribute("/", "version", np.bytes_("1.4")))
    with pytest.warns(UserWarning, match=r"format version 1\.4 is newer than 1\.0"):
        assert sg.ShardedDataset(root)[1].name == "n"


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("locking", [True, False, None])
def test_beside_h5py_in_the_same_process(
    compression: str | None, locking: bool | None, tmp_path: Path
) -> None:
    root = write(tmp_path / "data", compression)
    with h5py.File(root / SHARD, "r", locking=locking) as file:
        dataset = sg.ShardedDataset(root)
        assert dataset[2].x.tolist() == file["columns/x"][4:].tolist()
        dataset.close()


# Damage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0, 1, 0.5, -1])
@pytest.mark.parametrize("signed", [False, True])
def test_truncated(share: float, signed: bool, root: Path) -> None:
    path = root / SHARD
    data = path.read_bytes()
    length = {0: 0, 1: 1, 0.5: len(data) // 2, -1: len(data) - 1}[share]
    path.write_bytes(data[:length])
    message = f"{SHARD} has {length} bytes, the manifest says {len(data)}"
    if signed:
        manifest = sg.Manifest.read(root)
        (entry,) = manifest.shards
        replace(manifest, shards=(replace(entry, nbytes=length),)).write(root)
        message = f"{SHARD} cannot be read as a shard: .*(truncated file|signature not found)"
    if signed and length < 2:
        message = f"shard {SHARD} cannot hold 3 graphs in its {length} bytes"
    with pytest.raises(sg.FormatError, match=message):
        sg.ShardedDataset(root)[0]


def test_longer(root: Path) -> None:
    path = root / SHARD
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(sg.CorruptShardError, match="it was truncated or replaced"):
        sg.ShardedDataset(root)[0]


def test_missing(root: Path) -> None:
    (root / SHARD).unlink()
    with pytest.raises(sg.CorruptShardError, match=f"{SHARD} is missing though the manifest names"):
        sg.ShardedDataset(root)[0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_no_shard(root: Path) -> None:
    path = root / SHARD
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(sg.CorruptShardError, match=f"{SHARD} is not a file"):
        sg.ShardedDataset(root)[0]


def test_zeros_for_a_tail_are_found(root: Path) -> None:
    path = root / SHARD
    data = bytearray(path.read_bytes())
    half = len(data) // 2
    data[half:] = bytes(len(data) - half)
    path.write_bytes(data)
    with pytest.raises(sg.CorruptShardError, match=f"{SHARD} cannot be read as a shard"):
        sg.ShardedDataset(root)[0]


def test_size_changed_while_open(root: Path) -> None:
    dataset = sg.ShardedDataset(root)
    assert dataset[0].name == "nnn"
    (root / SHARD).write_bytes((root / SHARD).read_bytes()[:100])
    dataset._pool._next_check = 0.0  # the sizes were looked at a moment ago
    with pytest.raises(sg.CorruptShardError, match=f"{SHARD} has 100 bytes, the manifest says"):
        dataset.__getitems__([0])


@pytest.mark.parametrize("shard_size", ["1MB", 1000], ids=["one shard", "group"])
@pytest.mark.parametrize(
    "ptr",
    [
        [0, 5, -(1 << 63), 15],  # from 5 to there is 2 ** 63 - 5 in 64 bits
        [0, 1 << 62, (1 << 63) - 1, -(1 << 62), 0, 25],  # which rises all the way round
    ],
)
def test_lengths_that_wrap_around(ptr: list[int], shard_size: Any, tmp_path: Path) -> None:
    with sg.DatasetWriter(tmp_path, shard_size=shard_size) as writer:
        for _ in range(20):
            writer.write(Data(x=torch.ones(5, 10)))
    assert len(sg.Manifest.read(tmp_path).shards) == (1 if shard_size == "1MB" else 4)
    with h5py.File(tmp_path / SHARD, "r+") as file:
        file["ptr/node"][: len(ptr)] = ptr
    dataset = sg.ShardedDataset(tmp_path)
    message = "shard-00000.h5: /ptr/node does not rise from 0"
    for ids in ([1], [1, 19]):
        with pytest.raises(sg.CorruptShardError, match=message):
            dataset.__getitems__(ids)
    with pytest.raises(sg.CorruptShardError, match=message):
        _ = dataset.sizes
