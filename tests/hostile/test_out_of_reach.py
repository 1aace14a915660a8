"""Graphs that are not there: ids out of range, a dataset closed, moved or deleted after opening."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

import shardgraph as sg

GONE = "holds no dataset any more: it was moved or deleted after it was opened; open it where it is"


@pytest.fixture(params=[None, "gzip"], ids=["mapped", "gzip"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Six graphs in several shards."""
    root = tmp_path / "data"
    with sg.DatasetWriter(root, shard_size=40, compression=request.param) as writer:
        for number in range(6):
            writer.write(Data(x=torch.full((number % 3 + 1, 2), float(number))))
    assert len(sg.Manifest.read(root).shards) == 2
    return root


OUT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "one beyond": (lambda d: d[6], "graph 6 of a dataset of 6 graphs"),
    "far beyond": (lambda d: d[1 << 70], f"graph {1 << 70} of a dataset of 6 graphs"),
    "negative beyond": (lambda d: d[-7], "graph -7 of a dataset of 6 graphs"),
    "of NumPy": (lambda d: d[np.int64(6)], "graph 6 of a dataset of 6 graphs"),
    "of torch": (lambda d: d[torch.tensor(-7)], "graph -7 of a dataset of 6 graphs"),
    "get": (lambda d: d.get(6), "graph 6 of a dataset of 6 graphs"),
    "get counts from the front": (lambda d: d.get(-1), "graph -1 of a dataset of 6 graphs"),
    "list": (lambda d: d[[0, 6]], "positions 0 to 6 in a dataset of 6 graphs"),
    "negative list": (lambda d: d[[-7, 0]], "positions -7 to 0 in a dataset of 6 graphs"),
    "array": (lambda d: d[np.array([9])], "positions 9 to 9 in a dataset of 6 graphs"),
    "tensor": (lambda d: d[torch.tensor([2, 9])], "positions 2 to 9 in a dataset of 6 graphs"),
    "beyond 64 bits": (lambda d: d[[1 << 70]], "index a dataset by an int, a slice, or a list"),
    "as loaders ask": (
        lambda d: d.__getitems__([0, 6]),
        "positions 0 to 6 in a dataset",
    ),
    "subset": (lambda d: d[2:4][2], "graph 2 of a dataset of 2 graphs"),
    "subset, negative": (lambda d: d[2:4][-3], "graph -3 of a dataset of 2 graphs"),
    "list of a subset": (lambda d: d[2:4][[2]], "positions 2 to 2 in a dataset of 2 graphs"),
    "empty subset": (lambda d: d[[]][0], "graph 0 of a dataset of 0 graphs"),
    "last of an empty subset": (lambda d: d[3:3][-1], "graph -1 of a dataset of 0 graphs"),
    "mask": (lambda d: d[torch.ones(5, dtype=torch.bool)], "a mask of length 5 for a dataset of 6"),
}


@pytest.mark.parametrize("case", OUT)
def test_out_of_range(case: str, root: Path) -> None:
    read, message = OUT[case]
    with pytest.raises(IndexError, match=message):
        read(sg.ShardedDataset(root))


def test_negative_ids_count_from_the_end(root: Path) -> None:
    dataset = sg.ShardedDataset(root)
    assert [int(dataset[i].x[0, 0]) for i in (-1, -6)] == [5, 0]
    assert [int(data.x[0, 0]) for data in dataset[[-1, 0, -6]]] == [5, 0, 0]
    assert [int(data.x[0, 0]) for data in dataset.__getitems__([-2, -6])] == [4, 0]


def test_closed_datasets_open_again(root: Path) -> None:
    dataset = sg.ShardedDataset(root)
    assert int(dataset[0].x[0, 0]) == 0
    for _ in range(2):
        dataset.close()
        dataset.close()
        assert [int(data.x[0, 0]) for data in dataset] == list(range(6))


LEAVE: dict[str, Callable[[Path], Any]] = {
    "moved": lambda root: root.rename(root.with_name("elsewhere")),
    "deleted": shutil.rmtree,
}


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE.keys())
def test_gone(leave: Callable[[Path], Any], root: Path) -> None:
    dataset = sg.ShardedDataset(root)
    subset = dataset[[4, 5]]
    assert int(dataset[0].x[0, 0]) == 0
    leave(root)
    assert len(dataset) == 6
    assert int(dataset[0].x[0, 0]) == 0  # a map outlives its file's name
    reads: list[Callable[[], Any]] = [
        lambda: dataset[5],
        lambda: dataset[[0, 5]][1],
        lambda: dataset.__getitems__([5]),
        lambda: list(subset),
        lambda: dataset.sizes,
        lambda: list(sg.GraphLoader(dataset, batch_size=2)),
        lambda: list(sg.GraphLoader(subset, batch_size=2)),
        lambda: list(DataLoader(subset, batch_size=2)),
        lambda: list(sg.DevicePrefetcher(sg.GraphLoader(subset, batch_size=2), device="cpu")),
    ]
    for read in reads:
        with pytest.raises(sg.FormatError, match=f"{root} {GONE}"):
            read()
    with pytest.raises(sg.FormatError, match=f"{root} does not exist"):
        sg.ShardedDataset(root)
    assert f"{root} does not exist" in str(sg.verify(root)[0])


def test_gone_before_workers_read(root: Path) -> None:
    batches = sg.GraphLoader(sg.ShardedDataset(root), batch_size=2, num_workers=2)
    shutil.rmtree(root)
    with pytest.raises(sg.FormatError, match=GONE):
        list(batches)


def test_one_shard_gone(root: Path) -> None:
    dataset = sg.ShardedDataset(root)
    last = sg.Manifest.read(root).shards[-1].name
    (root / last).unlink()
    assert int(dataset[0].x[0, 0]) == 0
    with pytest.raises(sg.CorruptShardError, match=f"{last} is missing though the manifest names"):
        dataset[5]


def test_what_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(sg.FormatError, match="absent does not exist, so there is no dataset in it"):
        sg.ShardedDataset(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(sg.FormatError, match=r"file has no manifest\.json, so it is not a dataset"):
        sg.ShardedDataset(tmp_path / "file")
