"""Read a dataset with h5py alone: its shards are plain HDF5, and reading needs no shardgraph.

Run it as ``python examples/plain_h5py.py [DATASET]``; it makes a small dataset if there is none.
The whole format is in ``shardgraph/format/SPEC.md``.
"""

import argparse
import json
from pathlib import Path

import h5py


def locate(dataset: Path, i: int) -> tuple[Path, int]:
    """The shard that holds graph ``i`` of the dataset, and which of its graphs that is."""
    for shard in json.loads((dataset / "manifest.json").read_text())["shards"]:
        if i < shard["num_graphs"]:
            return dataset / shard["name"], i
        i -= shard["num_graphs"]
    raise IndexError("the dataset has fewer graphs")


def print_graph(dataset: Path, i: int) -> None:
    """Prints the nodes and edges of graph ``i``."""
    shard, k = locate(dataset, i)
    with h5py.File(shard, "r") as file:
        # Each column holds all graphs of the shard; ptr says where graph k begins and ends.
        start, stop = file["ptr/node"][k : k + 2]
        x = file["columns/x"][start:stop]
        start, stop = file["ptr/edge"][k : k + 2]
        edge_index = file["columns/edge_index"][start:stop].T
        # Integers are stored as narrow as they go; the attribute says what they were.
        edge_index = edge_index.astype(file["columns/edge_index"].attrs["dtype"])
    print(f"graph {i} is graph {k} of {shard.name}")
    print(f"x, {x.dtype} {x.shape}:", *x.tolist(), sep="\n  ")
    print(f"edge_index, {edge_index.dtype} {edge_index.shape}:", *edge_index.tolist(), sep="\n  ")


def make_small_dataset(path: Path) -> None:
    """Writes paths of 2 to 100 nodes, in several shards."""
    import torch
    from torch_geometric.data import Data

    import shardgraph as sg

    with sg.DatasetWriter(path, shard_size="64kB") as writer:
        for n in range(2, 101):
            nodes = torch.arange(n)
            edge_index = torch.stack([nodes[:-1], nodes[1:]])
            writer.write(Data(x=nodes.view(-1, 1) / 2, edge_index=edge_index))


def main() -> None:
    """Prints one graph of a dataset."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", nargs="?", type=Path, default=Path("data/paths"))
    parser.add_argument("--graph", type=int, default=2)
    arguments = parser.parse_args()
    if not (arguments.dataset / "manifest.json").exists():
        make_small_dataset(arguments.dataset)
    print_graph(arguments.dataset, arguments.graph)


if __name__ == "__main__":
    main()
