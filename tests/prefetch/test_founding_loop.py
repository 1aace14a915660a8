"""The loop this project was founded on: only the loader is wrapped, nothing else changes."""

import multiprocessing
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import global_mean_pool

from shardgraph import DatasetWriter, GraphLoader, ShardedDataset
from shardgraph.prefetch import DevicePrefetcher, measure_waits


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, batch):
        return self.linear(global_mean_pool(batch.x, batch.batch)).squeeze(-1)


def graphs(count):
    generator = torch.Generator().manual_seed(1)
    made = []
    for k in range(count):
        x = torch.rand(5 + k % 3, 4, generator=generator)
        made.append(Data(x=x, edge_index=torch.tensor([[0, 1], [1, 0]]), y=x.mean().view(1)))
    return made


def make_loader(count=64, batch_size=8, num_workers=2):
    workers = {"persistent_workers": True, "prefetch_factor": 2} if num_workers else {}
    return DataLoader(
        graphs(count), batch_size=batch_size, num_workers=num_workers, pin_memory=False, **workers
    )


def train(loader, device):
    torch.manual_seed(0)
    model = Model().to(device)
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        for batch in loader:
            optimizer.zero_grad()
            pred = model(batch)
            loss = criterion(pred, batch.y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def test_the_wrapped_loop_trains_the_same_model():
    device = torch.device("cpu")
    loader = make_loader()
    losses = train(DevicePrefetcher(loader, device), device)
    assert losses == train(loader, device)
    assert len(losses) == 24
    assert losses[-1] < losses[0]
    del loader
    assert multiprocessing.active_children() == []


NUM_STEPS = 240  # p99 is then the third longest wait


class Pauses:
    """How much later than asked for another process wakes up while this one is measured."""

    def __enter__(self):
        self.here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=self._watch, args=(there,))
        self.process.start()
        return self

    def __exit__(self, *error):
        self.here.send(None)
        self.third = self.here.recv()
        self.process.join()

    @staticmethod
    def _watch(there):
        late = []
        while not there.poll():
            start = time.perf_counter()
            time.sleep(0.001)
            late.append(time.perf_counter() - start - 0.001)
        there.send(sorted(late)[-3])


@pytest.mark.alone
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_step_of_5_ms_does_not_wait(num_workers, tmp_path):
    # With PyG's loader, making or even only sending a batch takes about as long as the step.
    with DatasetWriter(tmp_path) as writer:
        for data in graphs(256 * 20):
            writer.write(data)
    dataset = ShardedDataset(tmp_path)
    loader = GraphLoader(
        dataset[np.tile(np.arange(len(dataset)), 12)],
        batch_size=256,
        shuffle="full",
        num_workers=num_workers,
    )
    # The machine may be busy with other things: the best of three runs is what the code can do.
    for _ in range(3):
        with Pauses() as pauses:
            stats = measure_waits(loader, "cpu", step=0.005, num_steps=NUM_STEPS)
        if stats.wait.p50 <= 50e-6 and stats.wait.p99 <= 1e-3 + pauses.third:
            break
        time.sleep(0.5)
    assert stats.wait.p50 <= 50e-6
    assert stats.wait.p99 <= 1e-3 + pauses.third
