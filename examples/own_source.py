"""Convert a raw format of your own: a ``Source`` says how one graph after the other is read.

Run it as ``python examples/own_source.py``. The format, made up here: one path of numbers a line.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

import shardgraph as sg


@sg.register_source
class Paths(sg.Source):
    """Reads lines of numbers: each number is a node, joined to the next one."""

    name = "paths"
    description = "one path a line: the numbers of its nodes, separated by blanks"

    def read(self, partition: Any) -> Iterator[Data]:
        """Yields the graphs of one file, in its order."""
        with open(partition.file) as file:
            for line in file:
                x = torch.tensor([float(word) for word in line.split()]).view(-1, 1)
                nodes = torch.arange(len(x))
                yield Data(x=x, edge_index=torch.stack([nodes[:-1], nodes[1:]]))


def main() -> None:
    """Writes a raw file, converts it and reads a graph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=Path("data/own-source"))
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    raw = directory / "paths.txt"
    raw.write_text("".join(" ".join(map(str, range(n))) + "\n" for n in range(2, 1002)))

    report = sg.convert(raw, directory / "dataset", format="paths", overwrite=True)
    print(report)
    dataset = sg.ShardedDataset(directory / "dataset")
    print(len(dataset), "graphs; graph 3 is", dataset[3], "with x", dataset[3].x.flatten().tolist())


if __name__ == "__main__":
    main()
