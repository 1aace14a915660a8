"""What fuzzing has found, each as a small test of its own."""

import json
from pathlib import Path

import pytest
import torch
from forging import write
from torch_geometric.data import HeteroData

import shardgraph as sg


def edit(root: Path, old: str, new: str) -> None:
    path = root / "manifest.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_node_types_without_edge_types(tmp_path: Path) -> None:
    """Sizes and summary had no edges to add up."""
    with sg.DatasetWriter(tmp_path) as writer:
        for n in (1, 3):
            data = HeteroData()
            data["a"].x = torch.ones(n, 1)
            writer.write(data)
    dataset = sg.ShardedDataset(tmp_path)
    assert dataset.sizes.num_nodes.tolist() == [1, 3]
    assert dataset.sizes.num_edges.tolist() == [0, 0]
    for some in (dataset, dataset[[1]]):
        assert some.get_summary().num_edges.max == 0.0
    assert sg.verify(tmp_path, level="full", duplicates=True) == []


def test_statistics_without_the_sizes_of_an_axis(tmp_path: Path) -> None:
    """The summary raised KeyError; graphs are read without."""
    root = write(tmp_path)
    doc = json.loads((root / "manifest.json").read_text())
    del doc["statistics"]["sizes"]["edge"]
    (root / "manifest.json").write_text(json.dumps(doc))
    dataset = sg.ShardedDataset(root)
    assert dataset[2].name == "nnnn"
    with pytest.raises(sg.FormatError, match="statistics lack the sizes of 'edge'; `shardgraph"):
        dataset.get_summary()


def test_counts_beyond_64_bits(tmp_path: Path) -> None:
    """A histogram's total wrapped around, and its deviation was the root of a negative number."""
    root = write(tmp_path)
    doc = json.loads((root / "manifest.json").read_text())
    doc["statistics"]["sizes"]["node"]["counts"] = [1 << 62, 1 << 62, 1]
    (root / "manifest.json").write_text(json.dumps(doc))
    with pytest.raises(sg.FormatError, match="a histogram's counts and sum must fit into 64 bits"):
        sg.Manifest.read(root)
