"""Graphs whose class is not at hand batch exactly as that class would."""

import copy
import pickle
import sys
from pathlib import Path

import graph_cases as make
import numpy as np
import pytest
import torch
from graph_equality import assert_same
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader

import shardgraph as sg
from shardgraph.collate import known_class

KINDS = ["pair", "bipartite", "ruled", "ruled_hetero"]
# PyG's own batching of these asks for a number of nodes that it has to guess.
pytestmark = pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")


def written(path: Path, graphs: list, shard_size: int = 200) -> Path:
    with sg.DatasetWriter(path, shard_size=shard_size) as writer:
        for data in graphs:
            writer.write(data)
    return path


@pytest.fixture(params=KINDS)
def graphs(request) -> list:
    rng = np.random.default_rng(5)
    return [getattr(make, request.param)(rng) for _ in range(6)]


@pytest.fixture
def unknown(tmp_path, graphs, monkeypatch) -> sg.ShardedDataset:
    """The graphs' dataset, opened where nobody has imported their class."""
    written(tmp_path, graphs)
    monkeypatch.delitem(sys.modules, "graph_cases")
    dataset = sg.ShardedDataset(tmp_path)
    assert dataset.data_cls is None
    return dataset


def batched(dataset, graphs, loader, **options) -> None:
    """Checks a loader's batches, the last of them shorter, against PyG's of the originals."""
    batches = list(loader(dataset, batch_size=4, **options))
    for start, batch in zip((0, 4), batches, strict=True):
        expected = Batch.from_data_list(graphs[start : start + 4], **options)
        assert_same(expected, batch, classes=False)
        assert_same(expected.to_data_list(), batch.to_data_list(), classes=False)


def test_graphs_come_back_as_plain_ones(unknown, graphs):
    assert isinstance(unknown[0], HeteroData if isinstance(graphs[0], HeteroData) else Data)
    for place, data in enumerate(graphs):
        assert_same(data, unknown[place], classes=False)
    assert_same(graphs, unknown.__getitems__(range(6)), classes=False)


def test_graph_loader_batches_by_the_recorded_rules(unknown, graphs):
    batched(unknown, graphs, sg.GraphLoader)


def test_graph_loader_follows_and_excludes(unknown, graphs):
    names = [key for store in graphs[0].stores for key in store]
    batched(unknown, graphs, sg.GraphLoader, follow_batch=names[-1:], exclude_keys=names[:1])


def test_pygs_loader_batches_by_the_recorded_rules(unknown, graphs):
    batched(unknown, graphs, DataLoader)
    single = [unknown[place] for place in range(6)]
    batched(single, graphs, DataLoader)


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda data: data.clone(), lambda d: pickle.loads(pickle.dumps(d))],
    ids=["copy", "deepcopy", "clone", "pickle"],
)
def test_copies_keep_the_rules(unknown, graphs, again):
    copies = [again(data) for data in unknown]
    assert_same(Batch.from_data_list(graphs), Batch.from_data_list(copies), classes=False)


def test_class_given_by_the_reader(tmp_path, graphs, monkeypatch):
    written(tmp_path, graphs)
    cls = type(graphs[0])
    monkeypatch.delitem(sys.modules, "graph_cases")
    dataset = sg.ShardedDataset(tmp_path, data_cls=cls)
    assert_same(graphs, list(dataset))
    assert_same(Batch.from_data_list(graphs), next(iter(sg.GraphLoader(dataset, batch_size=6))))


@pytest.mark.parametrize("given", [int, Data(), "Data", HeteroData, torch.Tensor], ids=repr)
def test_a_class_that_such_graphs_are_not_of_is_refused(tmp_path, given):
    written(tmp_path, [Data(x=torch.ones(1, 1))])
    with pytest.raises(TypeError, match="data_cls must be Data or a subclass of it, got"):
        sg.ShardedDataset(tmp_path, data_cls=given)


def test_class_local_to_a_function(tmp_path):
    class Local(Data):
        def __inc__(self, key, value, *args, **kwargs):
            return 5 if key == "z" else super().__inc__(key, value, *args, **kwargs)

    graphs = [Local(x=torch.rand(n, 2), z=torch.arange(n)) for n in (2, 3)]
    dataset = sg.ShardedDataset(written(tmp_path, graphs))
    assert dataset.data_cls is None
    batched_now = next(iter(sg.GraphLoader(dataset, batch_size=2)))
    assert_same(Batch.from_data_list(graphs), batched_now, classes=False)
    assert batched_now.z.tolist() == [0, 1, 5, 6, 7]


class Plain(Data):
    """A class without rules of its own."""


def add_a_node(data):
    data.x = torch.cat([data.x, data.x.new_zeros(1, 2)])
    data.extra_index = torch.zeros(2, 1, dtype=torch.int64)
    data.label = "new"
    return data


def plain(n: int) -> Plain:
    return Plain(x=torch.rand(n, 2), edge_index=torch.zeros(2, n, dtype=torch.int64))


def test_a_transform_may_change_what_the_usual_rules_count(tmp_path, monkeypatch):
    graphs = [plain(n) for n in (2, 3, 1)]
    written(tmp_path, graphs)
    monkeypatch.setattr(sys.modules[__name__], "Plain", None)
    dataset = sg.ShardedDataset(tmp_path, transform=add_a_node)
    assert dataset.data_cls is None
    expected = Batch.from_data_list([add_a_node(copy.copy(data)) for data in graphs])
    for loader in (sg.GraphLoader, DataLoader):
        assert_same(expected, next(iter(loader(dataset, batch_size=3))), classes=False)


def test_only_classes_that_are_there_already_are_known():
    assert known_class("torch_geometric.data.data:Data") is Data
    assert known_class("graph_cases:PairData") is make.PairData
    for name in (
        "os:path",
        "sys:modules",
        "json.tool:main",
        "graph_cases:Data",
        "graph_cases:PairData.__inc__",
        "graph_cases:",
        ":",
        "",
        "antigravity:Data",
    ):
        assert known_class(name) is None
    assert "antigravity" not in sys.modules


def test_a_name_does_not_make_a_module_import_anything(monkeypatch):
    def refuse(name):
        raise AssertionError(f"asked for {name}")

    monkeypatch.setattr(make, "__getattr__", refuse, raising=False)
    assert known_class("graph_cases:Lazy") is None
