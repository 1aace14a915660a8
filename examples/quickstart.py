"""Convert real molecules once, then train a small GNN on them from disk.

``bash tools/quickstart.sh`` runs this; by hand it is ``python examples/quickstart.py``. The task is
ESOL: how much of a substance dissolves in water, as log10 of mol/L (``examples/esol/README.md``).
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import random_split
from torch_geometric.data import Batch
from torch_geometric.nn import MLP, GINEConv, global_add_pool
from torch_geometric.utils.smiles import e_map, x_map

import shardgraph as sg

ROOT = Path(__file__).resolve().parents[1]
MOLECULES = ROOT / "examples" / "esol" / "delaney-processed.csv"
TARGET = "measured log solubility in mols per litre"


def convert(data: Path) -> None:
    """Makes a dataset of the molecules at ``data``, unless it is there already."""
    if (data / "manifest.json").exists() and is_made_of_these(sg.Manifest.read(data).provenance):
        print(f"{data}: reusing the dataset, converted from {MOLECULES.name} before")
        return
    command = [sys.executable, ROOT / "tools" / "convert.py", MOLECULES, data, "--targets", TARGET]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit("the conversion failed; its message is above")


def is_made_of_these(provenance: dict[str, Any]) -> bool:
    """Whether a dataset was converted from the same file, with the same target."""
    source = provenance.get("source", {})
    digests = [file.get("xxh3_128") for file in source.get("files", [])]
    same_file = digests == [xxhash.xxh3_128_hexdigest(MOLECULES.read_bytes())]
    return same_file and source.get("targets") == [TARGET]


class Embedding(nn.Module):
    """The sum of one learned vector per feature, such as the element and the charge."""

    def __init__(self, features: dict[str, list], width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(len(f), width) for f in features.values())

    def forward(self, x: Tensor) -> Tensor:
        """From int64 [N, number of features] to float32 [N, width]."""
        return sum(table(x[:, i]) for i, table in enumerate(self.tables))


class GNN(nn.Module):
    """Three rounds of messages along the bonds, then a sum over the atoms of each molecule."""

    def __init__(self, mean: Tensor, std: Tensor, width: int = 96) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.atoms = Embedding(x_map, width)
        self.bonds = Embedding(e_map, width)
        self.convs = nn.ModuleList(GINEConv(MLP([width, width, width])) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(3))
        self.head = MLP([width, width, 1], dropout=0.1)

    def forward(self, batch: Batch) -> Tensor:
        """The solubility of each molecule: float32 [num_graphs, 1]."""
        x, bonds = self.atoms(batch.x), self.bonds(batch.edge_attr)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + norm(conv(x, batch.edge_index, bonds)).relu()
        return self.mean + self.std * self.head(global_add_pool(x, batch.batch))


@torch.no_grad()
def rmse(predict: Any, batches: sg.DevicePrefetcher) -> float:
    """Root mean square error of the predictions, in log mol/L."""
    errors = [predict(batch) - batch.y for batch in batches]
    return torch.cat(errors).square().mean().sqrt().item()


def share_waited(before: Any, after: Any) -> float:
    """Share of the time between two snapshots of a prefetcher's stats spent waiting for data."""
    waited = after.wait.total + after.device_wait_seconds
    waited -= before.wait.total + before.device_wait_seconds
    return waited / (after.wall_seconds - before.wall_seconds)


def main() -> None:
    """Converts, trains and tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data/esol"), help="the dataset")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)  # graphs this small are not worth sharing among cores

    convert(arguments.data)
    dataset = sg.ShardedDataset(arguments.data)
    train, valid, test = random_split(dataset, [0.8, 0.1, 0.1])
    loader = sg.GraphLoader(train, batch_size=32, shuffle=True, seed=arguments.seed)
    batches = sg.DevicePrefetcher(loader)  # on the GPU, if there is one
    valid_batches = sg.DevicePrefetcher(sg.GraphLoader(valid, batch_size=128))
    test_batches = sg.DevicePrefetcher(sg.GraphLoader(test, batch_size=128))
    y = torch.cat([batch.y for batch in sg.GraphLoader(train, batch_size=128)])

    print(f"training on {len(train)} of {len(dataset)} molecules, device {batches.device}")
    model = GNN(y.mean(), y.std()).to(batches.device)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, arguments.epochs * len(loader))
    for epoch in range(1, arguments.epochs + 1):
        total, before = 0.0, batches.stats
        model.train()
        for batch in batches:
            optimizer.zero_grad()
            loss = mse_loss(model(batch), batch.y)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * batch.num_graphs
        waited = share_waited(before, batches.stats)
        print(
            f"epoch {epoch:2}: loss {total / len(train):.3f}, validation RMSE "
            f"{rmse(model.eval(), valid_batches):.3f}, waited for data {waited:.1%} of the time"
        )

    print(batches.report())
    result, baseline = rmse(model, test_batches), rmse(lambda _: model.mean, test_batches)
    print(f"test RMSE {result:.3f} log mol/L; of predicting the mean {baseline:.3f}")


if __name__ == "__main__":
    main()
