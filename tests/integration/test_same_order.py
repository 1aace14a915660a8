"""What an epoch reads, and in which order, depends on the dataset, the seed and the epoch alone."""

from itertools import chain

import pytest
from graph_equality import assert_same
from numbered import SIZE, orders

import shardgraph as sg

KINDS = [
    {"batch_size": 3, "shuffle": True},
    {"max_nodes": 12, "max_edges": 9, "shuffle": True},
    {"max_nodes": 12, "shuffle": "window"},
    {"batch_size": 4},
]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("kind", KINDS[:2], ids=repr)
def test_any_number_of_workers_reads_the_same_batches(dataset, kind):
    expected = [list(loader) for loader in [sg.GraphLoader(dataset, seed=2, **kind)] * 2]
    for num_workers in (1, 2, 4):
        loader = sg.GraphLoader(
            dataset, seed=2, num_workers=num_workers, persistent_workers=num_workers == 2, **kind
        )
        for epoch in expected:
            assert_same(epoch, list(loader))


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_the_ranks_of_a_step_read_the_next_batches_of_the_one_order(dataset, kind, num_ranks):
    whole = sg.GraphLoader(dataset, seed=2, **kind)
    ranks = [
        sg.GraphLoader(dataset, seed=2, rank=rank, world_size=num_ranks, **kind)
        for rank in range(num_ranks)
    ]
    for _ in range(2):
        batches = orders(whole)
        steps = list(zip(*map(orders, ranks), strict=True))
        num_full = len(batches) // num_ranks
        for number, step in enumerate(steps[:num_full]):
            start = number * num_ranks
            assert sorted(step) == sorted(batches[start : start + num_ranks])
        # What is left is shared out, but for graphs that do not suffice for another step.
        left = list(chain(*batches[num_full * num_ranks :]))
        shared = list(chain(*chain(*steps[num_full:])))
        assert len(set(shared)) == len(shared)
        assert set(shared) <= set(left)
        assert len(left) - len(shared) < num_ranks
        assert sorted(chain(*batches)) == list(range(SIZE))
