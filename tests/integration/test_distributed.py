"""Two processes train together with DistributedDataParallel, over gloo."""

import json
import multiprocessing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from numbered import SIZE, orders
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import shardgraph as sg

FORK = multiprocessing.get_context("fork")

KINDS: list[dict[str, Any]] = [
    {"batch_size": 3, "shuffle": True},
    {"max_nodes": 12, "shuffle": True, "num_workers": 2},
    {"max_nodes": 10, "max_edges": 9, "shuffle": "window", "prefetch": True},
]
SAVE_AFTER = 2


def train(rank: int, dataset: sg.ShardedDataset, folder: Path) -> None:
    """One of two ranks; writes what it has read and what became of its model."""
    torch.set_num_threads(1)
    url = f"file://{folder / 'store'}"
    distributed.init_process_group("gloo", init_method=url, rank=rank, world_size=2)
    results = [train_kind(dataset, kind) for kind in KINDS]
    (folder / f"{rank}.json").write_text(json.dumps(results))
    distributed.barrier()  # as in examples/data_parallel.py
    distributed.destroy_process_group()


def train_kind(dataset: sg.ShardedDataset, kind: dict[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in kind.items() if name != "prefetch"}
    loader: Any = sg.GraphLoader(dataset, seed=3, **options)
    if "prefetch" in kind:
        loader = sg.DevicePrefetcher(loader, "cpu")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    epochs, state = [], None
    for _ in range(2):
        batches, expected = [], len(loader)
        for batch in loader:
            optimizer.zero_grad()
            model(batch.x).square().mean().backward()
            optimizer.step()
            batches.append(batch.number.tolist())
            if len(batches) == SAVE_AFTER:
                state = loader.state_dict()
        assert len(batches) == expected
        epochs.append(batches)
    weights = [parameter.tolist() for parameter in model.parameters()]
    return {"epochs": epochs, "state": state, "weights": weights}


@pytest.fixture(scope="module")
def results(dataset, tmp_path_factory) -> list[list[dict[str, Any]]]:
    """What each rank says of each kind of loader."""
    folder = tmp_path_factory.mktemp("ranks")
    processes = [FORK.Process(target=train, args=(rank, dataset, folder)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        process.kill()
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("number", range(len(KINDS)), ids=lambda number: repr(KINDS[number]))
def test_both_ranks_read_every_graph_once_in_equally_many_steps(results, number):
    first, second = (rank[number] for rank in results)
    assert first["weights"] == second["weights"]
    for one, other in zip(first["epochs"], second["epochs"], strict=True):
        assert len(one) == len(other) > 3
        # Each rank takes a part of each step: never an empty one.
        assert all(chain(one, other))
        assert sorted(chain(*one, *other)) == list(range(SIZE))


@pytest.mark.parametrize("number", range(len(KINDS)), ids=lambda number: repr(KINDS[number]))
def test_one_process_goes_on_where_two_were(dataset, results, number):
    first, second = (rank[number] for rank in results)
    assert first["state"] == second["state"]
    options = {name: value for name, value in KINDS[number].items() if name != "prefetch"}
    whole = sg.GraphLoader(dataset, seed=3, **{**options, "num_workers": 0})
    whole.set_epoch(1)
    expected = orders(whole)
    resumed = sg.GraphLoader(dataset, seed=3, **options)
    resumed.load_state_dict(first["state"])
    assert orders(resumed) == expected[2 * SAVE_AFTER :]
    steps = zip(first["epochs"][1], second["epochs"][1], strict=True)
    read = list(chain.from_iterable(steps))[: 2 * SAVE_AFTER]
    assert sorted(read) == sorted(expected[: 2 * SAVE_AFTER])
