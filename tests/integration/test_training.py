"""Training goes on bit for bit as if it had never been interrupted."""

import copy
import io
import random
from typing import Any

import pytest
import torch
from torch_geometric.nn import GCNConv, global_mean_pool

import shardgraph as sg


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCNConv(8, 8)
        self.drop = torch.nn.Dropout(0.2)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, batch):
        x = self.drop(self.conv(batch.x, batch.edge_index).relu())
        return self.head(global_mean_pool(x, batch.batch))


class Run:
    """A model, its optimizer and a loader."""

    def __init__(self, dataset: sg.ShardedDataset, **options: Any):
        torch.manual_seed(0)
        self.model = Model()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.loader: Any = sg.GraphLoader(dataset, shuffle=True, seed=6, **options)
        if options.get("num_workers"):
            self.loader = sg.DevicePrefetcher(self.loader, "cpu")

    def train(self, *, num_epochs: int, save_after: int | None = None) -> tuple[list[float], bytes]:
        """The loss of each step, and what was saved after so many."""
        losses, saved = [], b""
        for _ in range(num_epochs):
            for batch in self.loader:
                self.optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(self.model(batch), batch.y)
                loss.backward()
                self.optimizer.step()
                losses.append(loss.item())
                if len(losses) == save_after:
                    saved = self.save()
        return losses, saved

    def save(self) -> bytes:
        file = io.BytesIO()
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "random": torch.get_rng_state(),
        }
        torch.save(copy.deepcopy(state), file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        state = torch.load(io.BytesIO(saved), weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        torch.set_rng_state(state["random"])


@pytest.mark.parametrize("limits", [{"batch_size": 4}, {"max_nodes": 14}], ids=repr)
def test_losses_are_equal_to_the_last_bit(dataset, limits):
    """After a resume, and with any number of workers, dropout included."""
    whole, saved = Run(dataset, **limits).train(num_epochs=3, save_after=5)
    assert len(set(whole)) == len(whole) > 25
    with_workers, saved_there = Run(dataset, num_workers=2, **limits).train(
        num_epochs=3, save_after=5
    )
    assert with_workers == whole
    for num_workers, state in ((0, saved_there), (2, saved)):
        resumed = Run(dataset, num_workers=num_workers, **limits)
        resumed.load(state)
        assert resumed.train(num_epochs=3)[0] == whole[5:]


def draw(batch: Any) -> Any:
    return torch.rand(1).item(), random.random(), batch.number[0].item()


def test_workers_draw_random_numbers_by_seed_epoch_and_rank(dataset):
    def drawn(**options: Any) -> list[Any]:
        loader = sg.GraphLoader(dataset, 10, num_workers=1, batch_transform=draw, **options)
        return list(loader)

    state = torch.get_rng_state()
    first = drawn(seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert drawn(seed=1) == first
    others = [drawn(seed=2), *(drawn(seed=1, rank=rank, world_size=2) for rank in range(2))]
    loader = sg.GraphLoader(dataset, 10, num_workers=1, batch_transform=draw, seed=1)
    epochs = [list(loader), list(loader)]
    assert epochs[0] == first
    starts = {each[0][:2] for each in [first, *others[::2], epochs[1]]}
    assert len(starts) == 4
