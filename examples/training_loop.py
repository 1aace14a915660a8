"""The training loop you have, with one line more: ``DevicePrefetcher`` around your loader.

Run it as ``python examples/training_loop.py``. The loader is PyG's own and the loop stays as it is:
the batches come to it on the device. (With ``shardgraph.GraphLoader`` for the loader they are also
made faster. It takes the arguments used here, but no sampler, batch_sampler, generator or
collate_fn: its plan orders the graphs by shuffle=, weights= and seed=, and batch_transform= changes
the batches.)
"""

import argparse
from pathlib import Path

import torch
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

import shardgraph as sg


class Model(torch.nn.Module):
    """Two convolutions, the mean over the nodes, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GCNConv(8, 32)
        self.second = GCNConv(32, 32)
        self.head = torch.nn.Linear(32, 1)

    def forward(self, batch: Data) -> torch.Tensor:
        """One number a graph: float32 [num_graphs, 1]."""
        x = self.first(batch.x, batch.edge_index).relu()
        x = self.second(x, batch.edge_index).relu()
        return self.head(global_mean_pool(x, batch.batch))


def write_graphs(path: Path) -> None:
    """Writes 2,000 random graphs whose target is the mean of their nodes' features."""
    with sg.DatasetWriter(path, overwrite=True) as writer:
        for n in torch.randint(5, 30, (2000,)).tolist():
            x = torch.rand(n, 8)
            edge_index = torch.randint(n, (2, 3 * n))
            writer.write(Data(x=x, edge_index=edge_index, y=x.mean().view(1, 1)))


def main() -> None:
    """Trains for some epochs and reports how long the loop waited for data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data/random"))
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    write_graphs(arguments.data)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Model().to(device)
    criterion = torch.nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    dataset = sg.ShardedDataset(arguments.data)
    loader = DataLoader(
        dataset,
        batch_size=64,
        shuffle=True,
        num_workers=arguments.workers,
        pin_memory=True,
        persistent_workers=True,
        prefetch_factor=2,
    )
    loader = sg.DevicePrefetcher(loader, device)

    for epoch in range(1, arguments.epochs + 1):
        total = 0.0
        for batch in loader:
            optimizer.zero_grad()
            pred = model(batch)
            loss = criterion(pred, batch.y)
            loss.backward()
            optimizer.step()
            total += loss.item() * batch.num_graphs
        print(f"epoch {epoch}: loss {total / len(dataset):.4f}")

    print(loader.report())
    loader.close()


if __name__ == "__main__":
    main()
