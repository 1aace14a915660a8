"""Process raw files of your own as PyG's datasets do, and read the graphs lazily.

Run it as ``python examples/subclass.py``. The raw file, made up here, holds rings and trees, one a
line; telling them apart is the task.
"""

import argparse
import json
import random
from collections.abc import Iterator

import torch
from torch_geometric.data import Data
from torch_geometric.transforms import Compose, LocalDegreeProfile, ToUndirected

import shardgraph as sg


class RingsAndTrees(sg.ShardedDataset):
    """Raw files in ``root/raw``, shards in ``root/processed``."""

    raw_file_names = ("graphs.jsonl",)

    def download(self) -> None:
        """Runs when a raw file is not there; a real one fetches it."""
        rng = random.Random(0)
        with open(self.raw_paths[0], "w") as file:
            for _ in range(500):
                num_nodes, is_ring = rng.randint(3, 20), rng.random() < 0.5
                edges = [[i, i - 1 if is_ring else rng.randrange(i)] for i in range(1, num_nodes)]
                if is_ring:
                    edges.append([0, num_nodes - 1])
                json.dump({"num_nodes": num_nodes, "edges": edges, "is_ring": is_ring}, file)
                file.write("\n")

    def generate(self) -> Iterator[Data]:
        """Yields one graph at a time, so that raw files may be larger than memory."""
        print("generating from", *self.raw_file_names)
        with open(self.raw_paths[0]) as file:
            for line in file:
                graph = json.loads(line)
                edge_index = torch.tensor(graph["edges"]).t()
                yield Data(edge_index=edge_index, num_nodes=graph["num_nodes"], y=graph["is_ring"])


def is_small(data: Data) -> bool:
    """Keeps graphs of at most 15 nodes."""
    return data.num_nodes <= 15


def open_dataset(root: str) -> RingsAndTrees:
    """The dataset; generated if ``root`` does not hold it yet."""
    features = Compose([ToUndirected(), LocalDegreeProfile()])  # x: degrees around each node
    return RingsAndTrees(root, pre_filter=is_small, pre_transform=features)


def main() -> None:
    """Opens the dataset twice: the second time, nothing is generated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", default="data/rings-and-trees")
    root = parser.parse_args().root
    open_dataset(root)
    dataset = open_dataset(root)
    print(f"{len(dataset)} graphs, {dataset.num_features} features, {dataset.num_classes} classes")
    print("the first:", dataset[0])
    batch = next(iter(sg.GraphLoader(dataset[:0.8], batch_size=64, shuffle=True)))
    print("a batch of the first 80 %:", batch)


if __name__ == "__main__":
    main()
