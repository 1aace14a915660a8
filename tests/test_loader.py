"""`GraphLoader`: PyG's batches in the plan's order, from any number of workers, resumable."""

import json
import logging
import multiprocessing
import time
from pathlib import Path
from typing import Any

import graph_cases as make
import numpy as np
import pytest
import torch
from graph_equality import assert_same
from torch.utils.data import ConcatDataset, Subset, random_split
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

import shardgraph as sg
from shardgraph.shards.gather import Selection

SIZE = 23


def numbered(number: int) -> Data:
    n = 1 + number % 5
    return Data(
        x=torch.full((n, 2), float(number)),
        edge_index=torch.full((2, number % 4), n - 1),
        number=number,
    )


def write(path: Path, graphs: list, shard_size: Any = 300, **options: Any) -> Path:
    with sg.DatasetWriter(path, shard_size=shard_size, **options) as writer:
        for data in graphs:
            writer.write(data)
    return path


@pytest.fixture(scope="module")
def graphs() -> list[Data]:
    return [numbered(number) for number in range(SIZE)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, graphs) -> sg.ShardedDataset:
    return sg.ShardedDataset(write(tmp_path_factory.mktemp("loader"), graphs))


def orders(batches: Any) -> list[list[int]]:
    return [batch.number.tolist() for batch in batches]


def check_batches(graphs: list, batches: Any, **options: Any) -> None:
    """Each batch is PyG's of the graphs that it names."""
    for batch in batches:
        chosen = [graphs[number] for number in batch.number.tolist()]
        assert_same(Batch.from_data_list(chosen, **options), batch)


# Batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 4, SIZE, 100])
def test_batches_are_pygs(dataset, graphs, batch_size, num_workers):
    dataset[0]  # the parent has read before it forks
    loader = sg.GraphLoader(dataset, batch_size, num_workers=num_workers)
    expected = DataLoader(graphs, batch_size)
    found = list(loader)
    assert len(loader) == len(found) == len(expected)
    for one, other in zip(expected, found, strict=True):
        assert_same(one, other)
        assert_same(one.to_data_list(), other.to_data_list())


OPTIONS = {"follow_batch": ["x", "number", "nothing"], "exclude_keys": ["edge_index", "unknown"]}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_follow_batch_and_exclude_keys(dataset, graphs, num_workers):
    loader = sg.GraphLoader(dataset, 5, shuffle=True, num_workers=num_workers, **OPTIONS)
    batches = list(loader)
    assert batches[0].number_ptr.tolist() == [0, 1, 2, 3, 4, 5]
    check_batches(graphs, batches, **OPTIONS)


@pytest.mark.parametrize("name", ["follow_batch", "exclude_keys"])
def test_one_name_is_no_list_of_names(dataset, name):
    with pytest.raises(TypeError, match=rf"{name} is a list of names, got 'x': give \['x'\]"):
        sg.GraphLoader(dataset, 5, **{name: "x"})


def test_what_is_excluded_is_not_read(tmp_path):
    graphs = [Data(x=torch.zeros(2, 1), y=torch.ones(1)) for _ in range(4)]
    dataset = sg.ShardedDataset(write(tmp_path, graphs, "1MB"))
    dataset[0]
    shard = dataset._pool.shard(0)
    del shard.columns["x"], shard.axis_of["x"]
    (batch,) = sg.GraphLoader(dataset, 4, exclude_keys=["x"])
    assert "x" not in batch
    assert batch.y.tolist() == [1, 1, 1, 1]


@pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC) tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize("kind", ["every_dtype", "nested", "indexed", "hetero", "ruled"])
def test_workers_make_the_same_batches_as_the_main_process(tmp_path, kind):
    rng = np.random.default_rng(2)
    if kind in {"hetero", "ruled"}:
        graphs = [getattr(make, kind)(rng) for _ in range(9)]
    else:
        graphs = [getattr(make, kind)(rng, n) for n in (3, 0, 2, 1, 4, 2, 2, 0, 1)]
    dataset = sg.ShardedDataset(write(tmp_path, graphs))
    here, there = (sg.GraphLoader(dataset, 4, num_workers=n) for n in (0, 1))
    expected = [Batch.from_data_list(graphs[start : start + 4]) for start in (0, 4, 8)]
    for one, other, third in zip(expected, here, there, strict=True):
        assert_same(one, other)
        assert_same(one, third)


@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_ways_to_start_a_worker(tmp_path, method):
    rng = np.random.default_rng(4)
    graphs = [make.bipartite(rng) for _ in range(5)]
    chosen = [4, 0, 2, 1]
    dataset = sg.ShardedDataset(write(tmp_path, graphs))[chosen]
    dataset[0]
    options = {"batch_size": 3, "shuffle": True, "seed": 2}
    loader = sg.GraphLoader(dataset, num_workers=1, multiprocessing_context=method, **options)
    order = [[chosen[position] for position in batch] for batch in loader.plan.batches()]
    assert order != [[4, 0, 2], [1]]
    expected = [Batch.from_data_list([graphs[number] for number in batch]) for batch in order]
    assert_same(expected, list(loader))
    assert_same(expected, list(sg.GraphLoader(dataset, **options)))


def test_compressed_shards(tmp_path, graphs):
    dataset = sg.ShardedDataset(write(tmp_path, graphs, compression="gzip"))
    list(dataset)
    for num_workers in (0, 2):
        loader = sg.GraphLoader(dataset, 4, shuffle=True, num_workers=num_workers)
        check_batches(graphs, loader)


def add_mean(batch: Any) -> Any:
    batch.mean = batch.x.mean()
    return batch, ["anything", 3]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batch_transform(dataset, graphs, num_workers):
    loader = sg.GraphLoader(dataset, 4, batch_transform=add_mean, num_workers=num_workers)
    for one, (other, rest) in zip(DataLoader(graphs, 4), loader, strict=True):
        assert_same(add_mean(one)[0], other)
        assert rest == ["anything", 3]


def negate(data: Data) -> Data:
    data.number = -data.number
    return data


def test_a_transform_takes_the_other_path_and_says_so_once(dataset, graphs, caplog):
    changed = sg.ShardedDataset(dataset.directory, transform=negate)
    with caplog.at_level(logging.INFO, logger="shardgraph"):
        loader = sg.GraphLoader(changed, 6)
        expected = [Batch.from_data_list([negate(d.clone()) for d in graphs[:6]])]
        assert_same(expected, [next(iter(loader))])
        list(loader)
    assert [record.message for record in caplog.records] == [
        "batches are made graph by graph, since the dataset has a transform"
    ]
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="shardgraph"):
        list(sg.GraphLoader(dataset, 6))
    assert caplog.records == []


class Shifted(Data):
    """Rules that the dataset was not written with."""

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return 100 if key == "number" else super().__inc__(key, value, *args, **kwargs)


def test_a_class_given_with_rules_of_its_own_is_asked(tmp_path, dataset, graphs):
    given = sg.ShardedDataset(dataset.directory, data_cls=Shifted)
    expected = Batch.from_data_list([Shifted(**data.to_dict()) for data in graphs[:4]])
    assert expected.number.tolist() == [0, 101, 202, 303]
    assert_same(expected, next(iter(sg.GraphLoader(given, 4))))
    other = [Shifted(**data.to_dict()) for data in graphs[:4]]
    plain = sg.ShardedDataset(write(tmp_path, other), data_cls=Data)
    assert_same(Batch.from_data_list(graphs[:4]), next(iter(sg.GraphLoader(plain, 4))))


def test_batches_may_be_written_to(dataset, graphs):
    for num_workers in (0, 1):
        for batch in sg.GraphLoader(dataset, 4, num_workers=num_workers):
            batch.x.zero_()
            batch.edge_index += 1
            batch.number.zero_()
    assert_same(graphs, list(dataset))
    check_batches(graphs, sg.GraphLoader(dataset, 4))


# Datasets ----------------------------------------------------------------------------------------


def test_subsets_of_ours_and_of_torch(dataset):
    train, _ = random_split(dataset[3:], [10, 10], generator=torch.Generator().manual_seed(1))
    nested = Subset(Subset(dataset[::2], [5, 4, 3, 2]), [0, 3])
    assert orders(sg.GraphLoader(nested, 9)) == [[10, 4]]
    for subset in (dataset[[7, 7, 1]], train):
        expected = [data.number for data in subset]
        assert sum(orders(sg.GraphLoader(subset, 2)), []) == expected  # noqa: RUF017  # short
        found = [n for batch in sg.GraphLoader(subset, 2, shuffle=True) for n in batch.number]
        assert sorted(map(int, found)) == sorted(expected)


@pytest.mark.parametrize("other", [[], ConcatDataset([[1]]), {"a": 1}, Subset([1, 2], [0])])
def test_other_datasets_are_refused(other):
    with pytest.raises(TypeError, match=r"GraphLoader reads a ShardedDataset, got .*; for other"):
        sg.GraphLoader(other)


def test_ranks_come_together(dataset):
    with pytest.raises(ValueError, match="give rank and world_size together, got rank=1 and world"):
        sg.GraphLoader(dataset, rank=1)


# Order, budgets and lengths ----------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, "full", "window"])
def test_epochs_differ_and_repeat_by_seed(dataset, shuffle):
    def epochs(seed: int, count: int = 3) -> list[list[list[int]]]:
        loader = sg.GraphLoader(dataset, 4, shuffle=shuffle, seed=seed)
        return [orders(loader) for _ in range(count)]

    first = epochs(1)
    assert first == epochs(1)
    assert first != epochs(2)
    assert first[0] != first[1] != first[2]
    for epoch in first:
        assert sorted(n for batch in epoch for n in batch) == list(range(SIZE))
    loader = sg.GraphLoader(dataset, 4, shuffle=shuffle, seed=1, num_workers=2)
    loader.set_epoch(2)
    assert orders(loader) == first[2]
    loader.set_epoch(0)
    assert [orders(loader), orders(loader)] == first[:2]


def test_without_shuffle_the_order_is_the_datasets(dataset):
    loader = sg.GraphLoader(dataset, 10)
    assert orders(loader) == orders(loader) == [[*range(10)], [*range(10, 20)], [20, 21, 22]]
    assert orders(sg.GraphLoader(dataset[::-3], 3, drop_last=True)) == [[22, 19, 16], [13, 10, 7]]
    assert orders(sg.GraphLoader(dataset[:3])) == [[0], [1], [2]]


BUDGETS = [
    {"max_nodes": 9},
    {"max_edges": 5},
    {"max_nodes": 12, "max_graphs": 3},
    {"max_graphs": 4},
    {"max_nodes": 4, "oversized": "alone"},
    {"max_nodes": 4, "oversized": "skip"},
    {"batch_size": 6, "drop_last": True},
]


@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
@pytest.mark.parametrize("shuffle", [False, True])
def test_lengths_are_exact_and_budgets_kept(dataset, graphs, budget, shuffle):
    loader = sg.GraphLoader(dataset, shuffle=shuffle, seed=3, **budget)
    for _ in range(2):
        expected = len(loader)
        batches = list(loader)
        assert len(batches) == expected
        check_batches(graphs, batches)
        for batch in batches:
            if batch.num_graphs > 1 or "oversized" not in budget:
                assert batch.num_nodes <= budget.get("max_nodes", 1000)
                assert batch.num_edges <= budget.get("max_edges", 1000)
                assert batch.num_graphs <= budget.get("max_graphs", 1000)
        found = sorted(n for batch in batches for n in batch.number.tolist())
        if budget.get("oversized") == "skip":
            assert found == [n for n in range(SIZE) if n % 5 != 4]
        elif "drop_last" not in budget:
            assert found == list(range(SIZE))


def test_lengths_are_those_of_the_epoch_that_is_set(dataset):
    loader = sg.GraphLoader(dataset, max_nodes=7, max_edges=4, shuffle=True)
    lengths = []
    for epoch in range(8):
        loader.set_epoch(epoch)
        lengths.append(len(loader))
        assert len(list(loader)) == lengths[-1]
    assert len(set(lengths)) > 1


def test_budgets_by_type(tmp_path):
    graphs = [make.hetero(np.random.default_rng(seed)) for seed in range(12)]
    dataset = sg.ShardedDataset(write(tmp_path, graphs))
    limits = {"max_nodes": {"a": 6, "b": 8}, "max_edges": {("a", "to", "b"): 9, "c__back__b": 9}}
    for shuffle in (False, True):
        loader = sg.GraphLoader(dataset, **limits, shuffle=shuffle)
        batches = list(loader)
        assert len(batches) == len(loader)
        assert sum(batch.num_graphs for batch in batches) == 12
        for batch in batches:
            assert batch["a"].num_nodes <= 6
            assert batch["b"].num_nodes <= 8
            assert batch["a", "to", "b"].num_edges <= 9
            assert batch["c", "back", "b"].num_edges <= 9
    # In order, a batch ends only where the next graph does not fit.
    number = 0
    for batch in sg.GraphLoader(dataset, max_nodes={"a": 6}):
        number += batch.num_graphs
        if number < len(graphs):
            assert batch["a"].num_nodes + graphs[number]["a"].num_nodes > 6
    with pytest.raises(ValueError, match="max_nodes names the type 'd'; the graphs have 'a', 'b'"):
        sg.GraphLoader(dataset, max_nodes={"d": 6})


def test_skipped_graphs_are_counted_and_logged(dataset, caplog):
    with caplog.at_level(logging.WARNING):
        loader = sg.GraphLoader(dataset, max_nodes=4, oversized="skip")
    (record,) = [each for each in caplog.records if each.name.startswith("shardgraph")]
    assert record.getMessage().startswith("4 of 23 graphs are skipped: they exceed a budget")
    statistics = loader.plan.statistics()
    assert (statistics.oversized, statistics.skipped, statistics.num_graphs) == (4, 4, 19)


def test_a_graph_over_budget_is_an_error_unless_allowed(dataset):
    with pytest.raises(ValueError, match="4"):
        sg.GraphLoader(dataset, max_nodes=4)


# Weights -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labelled(tmp_path_factory) -> sg.ShardedDataset:
    """Forty graphs, sorted by label: 36 of class 0, 4 of class 5."""
    graphs = [Data(x=torch.ones(n % 3 + 1, 1), y=5 * (n >= 36), number=n) for n in range(40)]
    return sg.ShardedDataset(write(tmp_path_factory.mktemp("labelled"), graphs))


def test_balanced_classes_come_equally_often(labelled):
    loader = sg.GraphLoader(labelled, 10, shuffle=True, weights="balanced", num_samples=4000)
    labels = torch.cat([batch.y for batch in loader])
    assert len(labels) == 4000
    assert abs(int((labels == 5).sum()) - 2000) < 5 * 32
    assert len(loader) == 400
    # Of a subset, by the subset's own classes.
    half = labelled[18:38]
    loader = sg.GraphLoader(half, 10, shuffle=True, weights="balanced", num_samples=4000)
    numbers = torch.cat([batch.number for batch in loader])
    assert (numbers.min(), numbers.max()) == (18, 37)
    assert abs(int((numbers >= 36).sum()) - 2000) < 5 * 32


@pytest.mark.parametrize("shuffle", ["full", "window"])
def test_weighted_batches_are_equal_for_any_workers_and_ranks(labelled, shuffle):
    weights = torch.arange(40)
    options: dict[str, Any] = {"max_nodes": 9, "shuffle": shuffle, "weights": weights}
    expected = orders(sg.GraphLoader(labelled, **options))
    assert 0 not in [number for batch in expected for number in batch]
    assert sum(map(len, expected)) == 40
    assert orders(sg.GraphLoader(labelled, num_workers=2, **options)) == expected
    ranks = [orders(sg.GraphLoader(labelled, rank=r, world_size=2, **options)) for r in (0, 1)]
    steps = [sorted(step) for step in zip(*ranks, strict=True)]
    whole = len(expected) // 2
    assert steps[:whole] == [sorted(expected[2 * k : 2 * k + 2]) for k in range(whole)]


def test_planning_reads_labels_only(labelled, monkeypatch):
    read: list[str] = []
    column = Selection.column

    def watched(self: Any, name: str, *arguments: Any) -> None:
        read.append(name)
        column(self, name, *arguments)

    monkeypatch.setattr(Selection, "column", watched)
    dataset = sg.ShardedDataset(labelled.root)
    loader = sg.GraphLoader(dataset, max_nodes=4, shuffle=True, weights="balanced")
    assert len(loader) > 10
    assert set(read) == {"y"}
    next(iter(loader))
    assert set(read) == {"x", "y", "number"}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"weights": "equal"}, "weights is an array, 'balanced' or None, got 'equal'"),
        ({"weights": "balanced", "shuffle": False}, "so they need a shuffle"),
        ({"weights": [1.0] * 3}, "one number for each of 40 graphs"),
        ({"num_samples": 3}, "give weights too"),
    ],
)
def test_refused_weights(labelled, options, match):
    with pytest.raises(ValueError, match=match):
        sg.GraphLoader(labelled, 4, **{"shuffle": True, **options})


def test_balanced_weights_need_labels(dataset):
    with pytest.raises(ValueError, match="these graphs have no y"):
        sg.GraphLoader(dataset, 4, shuffle=True, weights="balanced")


# Resuming ----------------------------------------------------------------------------------------

LAWS: list[dict[str, Any]] = [
    {"batch_size": 4},
    {"batch_size": 3, "shuffle": True, "drop_last": True},
    {"batch_size": 5, "shuffle": "window"},
    {"max_nodes": 11, "shuffle": True},
    {"batch_size": 2, "shuffle": True, "rank": 1, "world_size": 2},
    {"max_nodes": 9, "shuffle": True, "weights": [*range(SIZE)], "num_samples": 30},
]


@pytest.mark.parametrize("options", LAWS, ids=repr)
def test_a_state_saved_after_any_step_gives_exactly_the_rest(dataset, options):
    def loader(**more: Any) -> sg.GraphLoader:
        return sg.GraphLoader(dataset, seed=5, **{**options, **more})

    whole = loader()
    epochs = [orders(whole) for _ in range(3)]
    running = loader()
    for epoch in range(2):
        states = [running.state_dict(), *(running.state_dict() for _ in running)]
        assert len(states) == len(epochs[epoch]) + 1
        for step, state in enumerate(states):
            assert state == json.loads(json.dumps(state))
            again = loader()
            again.load_state_dict(state)
            is_over = step == len(epochs[epoch])
            rest = epochs[epoch + 1] if is_over else epochs[epoch][step:]
            assert len(again) == len(epochs[epoch + 1 if is_over else epoch])
            assert again.state_dict()["epoch"] == (epoch + 1 if is_over else epoch)
            assert orders(again) == rest
            if epoch == 0:
                assert orders(again) == epochs[2 if is_over else 1]
    halfway = loader(num_workers=2)
    halfway.load_state_dict(json.loads(json.dumps(states[1])))
    assert orders(halfway) == epochs[1][1:]


def test_a_state_counts_batches_delivered_not_read(dataset):
    loader = sg.GraphLoader(dataset, 2, shuffle=True, num_workers=2, prefetch_factor=4)
    iterator = iter(loader)
    seen = [next(iterator).number.tolist() for _ in range(3)]
    state = loader.state_dict()
    rest = orders(iterator)
    again = sg.GraphLoader(dataset, 2, shuffle=True)
    again.load_state_dict(state)
    assert orders(again) == rest
    assert seen + rest == orders(sg.GraphLoader(dataset, 2, shuffle=True))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_is_of_the_iterator_begun_last(dataset, num_workers):
    loader = sg.GraphLoader(dataset, 5, num_workers=num_workers)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    next(newer)
    expected = loader.state_dict()
    assert (expected["epoch"], expected["cursor"]) == (1, 1)
    assert len(list(older)) == len(loader) - 1
    assert loader.state_dict() == expected
    loader.load_state_dict(expected)
    next(newer)
    assert loader.state_dict() == expected
    assert len(list(loader)) == len(loader) - 1


def test_a_state_of_another_loader_is_refused(dataset):
    state = sg.GraphLoader(dataset, 2, shuffle=True, seed=1).state_dict()
    for other, what in (
        ({"seed": 2}, "seed was 1 and is 2"),
        ({"batch_size": 3}, "batch_size was 2 and is 3"),
        ({"shuffle": False}, "order was 'full' and is 'sequential'"),
    ):
        options = {"batch_size": 2, "shuffle": True, "seed": 1, **other}
        with pytest.raises(ValueError, match=what):
            sg.GraphLoader(dataset, **options).load_state_dict(state)
    with pytest.raises(ValueError, match="graphs"):
        sg.GraphLoader(dataset[1:], 2, shuffle=True, seed=1).load_state_dict(state)


# Workers -----------------------------------------------------------------------------------------


def worker_pid(batch: Any) -> Any:
    batch.pid = multiprocessing.current_process().pid
    return batch


def children_end(seconds: float = 5.0) -> bool:
    give_up = time.monotonic() + seconds
    while multiprocessing.active_children() and time.monotonic() < give_up:
        time.sleep(0.01)
    return not multiprocessing.active_children()


def test_persistent_workers_outlive_an_epoch(dataset):
    options = {"batch_transform": worker_pid, "num_workers": 2}
    loader = sg.GraphLoader(dataset, 4, shuffle=True, persistent_workers=True, **options)
    first, second = ([(b.pid, b.number.tolist()) for b in loader] for _ in range(2))
    assert {pid for pid, _ in first} == {pid for pid, _ in second}
    plain = sg.GraphLoader(dataset, 4, shuffle=True)
    assert [n for _, n in first] == orders(plain)
    assert [n for _, n in second] == orders(plain)
    iterator = iter(loader)
    next(iterator)
    del iterator
    loader.set_epoch(0)
    assert orders(loader) == [n for _, n in first]
    del loader
    assert children_end()


def test_breaking_off_leaves_no_process(dataset):
    loader = sg.GraphLoader(dataset, 2, num_workers=2)
    for _ in loader:
        break
    assert children_end()
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    assert list(iterator) == []
    assert children_end()
    assert len(list(loader)) == 12


def test_an_error_in_a_worker_arrives(tmp_path, graphs):
    dataset = sg.ShardedDataset(write(tmp_path, graphs, 1))
    (tmp_path / "shard-00005.h5").unlink()
    for num_workers in (0, 1):
        batches = iter(sg.GraphLoader(dataset, 2, num_workers=num_workers))
        assert [next(batches).number.tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(sg.CorruptShardError, match=r"shard-00005.h5 is missing"):
            next(batches)
        assert list(batches) == []
    assert children_end()


def fail(_: Any) -> Any:
    raise KeyError("in the transform")


def test_an_error_in_the_batch_transform_arrives(dataset):
    for num_workers in (0, 1):
        with pytest.raises(KeyError, match="in the transform"):
            list(sg.GraphLoader(dataset, 2, batch_transform=fail, num_workers=num_workers))
    assert children_end()


def test_many_kept_batches_of_workers(dataset, graphs):
    kept = list(sg.GraphLoader(dataset, 1, num_workers=2))
    kept += list(sg.GraphLoader(dataset, 1, num_workers=2))
    check_batches(graphs, kept)


def test_two_epochs_at_once_are_two_epochs(tmp_path):
    with sg.DatasetWriter(tmp_path) as writer:
        for number in range(20):
            writer.write(Data(x=torch.full((1, 1), float(number))))
    loader = sg.GraphLoader(sg.ShardedDataset(tmp_path), 4, shuffle=True)
    expected = [[batch.x.flatten().tolist() for batch in loader] for _ in range(2)]
    loader.set_epoch(0)
    pairs = [[b.x.flatten().tolist() for b in pair] for pair in zip(loader, loader, strict=True)]
    assert [list(epoch) for epoch in zip(*pairs, strict=True)] == expected


def test_a_state_of_other_graphs_is_refused(tmp_path):
    with sg.DatasetWriter(tmp_path) as writer:
        for number in range(20):
            writer.write(Data(x=torch.full((1, 1), float(number))))
    dataset = sg.ShardedDataset(tmp_path)
    for others in (dataset[10:], dataset[:10][::-1], dataset[list(range(10))[::-1]]):
        state = sg.GraphLoader(dataset[:10], 2).state_dict()
        with pytest.raises(ValueError, match="the state belongs to other graphs"):
            sg.GraphLoader(others, 2).load_state_dict(state)
    sg.GraphLoader(sg.ShardedDataset(tmp_path)[:10], 2).load_state_dict(state)
