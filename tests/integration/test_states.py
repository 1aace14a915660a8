"""States of a loader, of a prefetcher around it and of torchdata's loader mean the same."""

import json
from typing import Any

import pytest
from graph_equality import assert_same
from numbered import orders
from torch.utils.data import DataLoader
from torch_geometric.loader.dataloader import Collater

import shardgraph as sg

# Torchdata 0.11 calls a function that torch 2.13 has given up.
pytestmark = pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")

LIMITS = [{"batch_size": 6}, {"max_nodes": 15}]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("limits", LIMITS, ids=repr)
def test_a_prefetchers_state_is_that_of_the_batches_it_delivered(dataset, limits, num_workers):
    plain = sg.GraphLoader(dataset, shuffle=True, **limits)
    loader = sg.GraphLoader(dataset, shuffle=True, num_workers=num_workers, **limits)
    with sg.DevicePrefetcher(loader, "cpu", depth=4) as prefetcher:
        for _ in range(2):
            assert prefetcher.state_dict()["cursor"] == plain.state_dict()["cursor"]
            expected = [(batch.number.tolist(), plain.state_dict()) for batch in plain]
            found = [(batch.number.tolist(), prefetcher.state_dict()) for batch in prefetcher]
            assert found == expected
        begun = [next(iter_).number.tolist() for iter_ in [iter(prefetcher)] * 3]
        state = json.loads(json.dumps(prefetcher.state_dict()))
    whole = orders(plain)
    assert begun == whole[:3]
    for resumed in (plain, prefetcher):
        resumed.load_state_dict(state)
        assert orders(resumed) == whole[3:]


def test_the_length_counts_the_steps_before_a_resume_whatever_the_ranks(dataset):
    def loader(rank: int, world_size: int) -> sg.GraphLoader:
        return sg.GraphLoader(dataset, 2, rank=rank, world_size=world_size)

    running = loader(0, 2)
    iterator = iter(running)
    for _ in range(4):
        next(iterator)
    assert len(running) == 10  # of 2 of the 20 full batches each
    state = running.state_dict()
    assert (state["cursor"], state["steps"]) == (8, 4)
    for rank in range(3):
        resumed = loader(rank, 3)
        resumed.load_state_dict(state)
        lengths = [len(resumed)]
        for number, _ in enumerate(resumed):
            lengths.append(len(resumed))
            assert resumed.state_dict()["steps"] == 4 + number + 1
        # 4 steps of 2 ranks, then 4 of 3; the next epoch has 7.
        assert [*lengths, len(resumed)] == [8] * 5 + [7]


@pytest.mark.parametrize("steps", [None, -1, "2", 1.0])
def test_damaged_steps_are_refused(dataset, steps):
    loader = sg.GraphLoader(dataset, 2)
    state = {**loader.state_dict(), "steps": steps}
    with pytest.raises(ValueError, match=rf"steps must be a whole number from 0 on, got {steps!r}"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("of_sampler", [False, True])
def test_a_loop_that_sets_each_epoch_keeps_the_place_of_a_resume(dataset, of_sampler):
    def train(loader: sg.GraphLoader, first_epoch: int) -> list[list[list[int]]]:
        epochs = []
        for epoch in range(first_epoch, 3):
            (loader.sampler if of_sampler else loader).set_epoch(epoch)
            epochs.append(orders(loader))
        return epochs

    expected = train(sg.GraphLoader(dataset, 6, shuffle=True), 0)
    running = sg.GraphLoader(dataset, 6, shuffle=True)
    running.set_epoch(1)
    state = state_after(running, 2)
    resumed = sg.GraphLoader(dataset, 6, shuffle=True)
    resumed.load_state_dict(state)
    assert train(resumed, 1) == [expected[1][2:], expected[2]]
    assert [train(resumed, 1), train(resumed, 0)] == [expected[1:], expected]


def test_an_epoch_told_once_it_has_begun_goes_on_and_may_begin_again(dataset):
    """As Lightning does with each epoch."""
    loader = sg.GraphLoader(dataset, 6, shuffle=True)
    loader.load_state_dict(state_after(sg.GraphLoader(dataset, 6, shuffle=True), 2))
    first = iter(loader)
    next(first)
    loader.sampler.set_epoch(0)
    assert loader.state_dict()["steps"] == 3
    rest = orders(first)
    assert loader.state_dict()["steps"] == 7
    loader.sampler.set_epoch(1)
    iter(loader)
    loader.sampler.set_epoch(1)
    epochs = sg.GraphLoader(dataset, 6, shuffle=True)
    assert rest == orders(epochs)[3:]
    assert orders(loader) == orders(epochs)
    assert orders(loader) == orders(epochs)


# Torchdata ---------------------------------------------------------------------------------------


def stateful(dataset: Any, **options: Any) -> DataLoader:
    module = pytest.importorskip("torchdata.stateful_dataloader")
    collate = Collater(dataset, None, None)
    return module.StatefulDataLoader(dataset, batch_size=6, collate_fn=collate, **options)


def state_after(loader: Any, num_batches: int) -> dict[str, Any]:
    iterator = iter(loader)
    for _ in range(num_batches):
        next(iterator)
    return json.loads(json.dumps(loader.state_dict()))


def test_the_loader_is_what_torchdata_calls_stateful(dataset):
    protocol = pytest.importorskip("torchdata.stateful_dataloader.stateful").Stateful
    loader = sg.GraphLoader(dataset, 6)
    assert isinstance(loader, protocol)
    assert isinstance(sg.DevicePrefetcher(loader, "cpu"), protocol)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loader_reads_the_dataset(dataset, num_workers):
    """Also a subset, where an index could mean a row of the whole."""
    subset = dataset[30::-2]
    expected = list(sg.GraphLoader(subset, 6))
    assert_same(expected, list(stateful(subset, num_workers=num_workers)))
    resumed = stateful(subset, num_workers=num_workers)
    resumed.load_state_dict(state_after(stateful(subset, num_workers=num_workers), 1))
    assert_same(expected[1:], list(resumed))


@pytest.mark.parametrize(
    ("num_workers", "places"), [(0, range(7)), (2, [3])], ids=["no workers", "2 workers"]
)
def test_after_loading_both_give_the_rest(dataset, num_workers, places):
    def ours(**options: Any) -> DataLoader:
        return sg.GraphLoader(dataset, 6, **options)

    def theirs(**options: Any) -> DataLoader:
        return stateful(dataset, **options)

    whole = orders(ours())
    for num_batches in places:
        found = []
        for make in (ours, theirs):
            resumed = make(num_workers=num_workers)
            resumed.load_state_dict(state_after(make(num_workers=num_workers), num_batches))
            found.append((len(resumed), orders(resumed), orders(resumed), len(resumed)))
        assert found == [(7, whole[num_batches:], whole, 7)] * 2


def test_after_the_last_batch_ours_goes_on_with_the_next_epoch(dataset):
    """Theirs first gives an epoch without batches, unless the loop had come to its end."""
    loader = sg.GraphLoader(dataset, 6, shuffle=True)
    before_the_end, after_it = state_after(loader, 7), None
    loader.set_epoch(0)
    orders(loader)
    after_it = loader.state_dict()
    assert before_the_end == after_it
    next_epoch = orders(loader)
    loader.load_state_dict(after_it)
    assert orders(loader) == next_epoch
