"""`ShardedDataset` is a PyG dataset in every way, and opens files only when it reads."""

import copy
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import graph_cases as make
import numpy as np
import pytest
import torch
from graph_equality import assert_same
from torch.utils.data import ConcatDataset, Subset, random_split
from torch_geometric.data import Batch, Data, Dataset, HeteroData
from torch_geometric.datasets import FakeDataset, FakeHeteroDataset
from torch_geometric.loader import DataLoader

import shardgraph as sg
from shardgraph.shards import pool as shard_pool

SIZE = 20


def numbered(number: int) -> Data:
    n = number % 5
    return Data(
        x=torch.full((n, 2), float(number)),
        edge_index=torch.zeros(2, 2 * n, dtype=torch.int64),
        edge_attr=torch.full((2 * n, 3), float(number)),
        y=torch.tensor([number % 3]),
        number=number,
    )


class InMemory(Dataset):
    """The same graphs as PyG would serve them from a list."""

    def __init__(self, graphs: list, transform: Any = None) -> None:
        super().__init__(None, transform)
        self.graphs = graphs

    def len(self) -> int:
        return len(self.graphs)

    def get(self, idx: int) -> Any:
        return copy.copy(self.graphs[idx])


def write(path: Path, graphs: list, shard_size: Any = 400, **options: Any) -> Path:
    with sg.DatasetWriter(path, shard_size=shard_size, **options) as writer:
        for data in graphs:
            writer.write(data)
    return path


@pytest.fixture(scope="module")
def graphs() -> list[Data]:
    return [numbered(number) for number in range(SIZE)]


@pytest.fixture(scope="module")
def root(tmp_path_factory, graphs) -> Path:
    return write(tmp_path_factory.mktemp("dataset"), graphs)


@pytest.fixture
def dataset(root) -> sg.ShardedDataset:
    return sg.ShardedDataset(root)


def numbers(dataset: Any) -> list[int]:
    return [data.number for data in dataset]


# Indexing ----------------------------------------------------------------------------------------

MASK = [number % 3 == 0 for number in range(SIZE)]
INDICES = {
    "slice": slice(3, 9),
    "step": slice(2, 17, 4),
    "backwards": slice(None, None, -2),
    "negative": slice(-5, -1),
    "fractions": slice(0.25, 0.8),
    "fraction to the end": slice(0.9, None),
    "fraction rounded": slice(None, 0.33),
    "empty slice": slice(5, 5),
    "beyond": slice(15, 100),
    "list": [3, 1, 1, -1],
    "tuple": (4, 2),
    "range": range(1, 20, 6),
    "empty list": [],
    "tensor": torch.tensor([5, 0, -20]),
    "array": np.array([7, 7, 2]),
    "tensor mask": torch.tensor(MASK),
    "array mask": np.array(MASK),
}
NESTED = [slice(2, 18), slice(None, None, -1), [9, 3, 5, 14, 14, 0, 1, 2, 7, 8]]


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
def test_subsets_are_those_of_pyg(dataset, graphs, index):
    subset = dataset[index]
    expected = InMemory(graphs)[index]
    assert isinstance(subset, sg.ShardedDataset)
    assert numbers(subset) == numbers(expected)
    assert len(subset) == len(expected)
    assert isinstance(subset.indices(), (range, np.ndarray))
    assert list(subset.indices()) == list(expected.indices())
    together = subset.__getitems__(list(range(len(subset))))
    assert_same(list(expected), together)


@pytest.mark.parametrize("outer", range(3))
@pytest.mark.parametrize("inner", range(3))
def test_subsets_of_subsets_compose(dataset, graphs, outer, inner):
    outer, inner = NESTED[outer], NESTED[inner]
    subset, expected = dataset[outer], InMemory(graphs)[outer]
    if isinstance(inner, list):
        inner = [place for place in inner if place < len(expected)]
    subset, expected = subset[inner][1:], expected[inner][1:]
    assert numbers(subset) == numbers(expected)
    assert subset[-1].number == expected[-1].number
    assert [d.number for d in subset.__getitems__([-1, 0, 0])] == numbers(expected[[-1, 0, 0]])


@pytest.mark.parametrize(
    "index",
    [7, -3, True, np.int64(4), np.uint8(4), np.int32(-1), torch.tensor(6), np.array(6)],
    ids=repr,
)
def test_a_number_gives_a_graph(dataset, graphs, index):
    assert_same(graphs[int(index)], dataset[index])
    subset = dataset[[3, 9, 4, 0, 5, 6, 7]]
    assert_same(graphs[[3, 9, 4, 0, 5, 6, 7][int(index)]], subset[index]) if index != 7 else None


@pytest.mark.parametrize("index", [SIZE, -SIZE - 1, [SIZE], [0, -SIZE - 1], torch.tensor([SIZE])])
def test_out_of_range(dataset, index):
    with pytest.raises(
        IndexError,
        match=r"graph \S+ of a dataset of 20 graphs|positions \S+ to \S+ in a dataset of 20 graphs",
    ):
        dataset[index]
    with pytest.raises(IndexError, match=r"of a dataset of 10 graphs|in a dataset of 10 graphs"):
        dataset[:10][index]


@pytest.mark.parametrize("length", [0, SIZE - 1, SIZE + 1])
def test_a_mask_must_have_the_datasets_length(dataset, length):
    for mask in (torch.ones(length, dtype=torch.bool), np.ones(length, bool)):
        with pytest.raises(IndexError, match=f"a mask of length {length} for a dataset of 20"):
            dataset[mask]
    assert len(dataset[:7][np.ones(7, bool)]) == 7


@pytest.mark.parametrize(
    "index",
    [
        *("a", 1.5, None, {1}, torch.tensor([1.0]), np.array(["a"]), [0.5], [[1, 2], [3, 4]]),
        *(torch.tensor(1.5), np.array(1.5), np.array("3")),
    ],
    ids=repr,
)
def test_other_indices_are_refused(dataset, index):
    with pytest.raises((IndexError, TypeError), match="index a dataset by an int, a slice, or a"):
        dataset[index]


@pytest.mark.parametrize("make_index", [np.arange, torch.arange])
def test_a_subset_does_not_change_with_the_array_it_was_made_from(dataset, make_index):
    index = make_index(5)
    subset = dataset[index]
    again = Subset(dataset, index)
    loader = sg.GraphLoader(again, batch_size=5)
    index[:] = 7
    assert numbers(subset) == [0, 1, 2, 3, 4]
    assert next(iter(loader)).number.tolist() == [0, 1, 2, 3, 4]


def test_positions_beyond_the_subset_are_refused(dataset):
    with pytest.raises(IndexError, match="positions 0 to 5 in a dataset of 5 graphs"):
        dataset[5:10].__getitems__([0, 5])
    assert dataset[5:10].__getitems__([]) == []
    assert dataset[5:5].__getitems__([]) == []


def test_indices_stay_numpy(dataset):
    shuffled = dataset.shuffle()
    assert isinstance(shuffled.indices(), np.ndarray)
    assert sorted(numbers(shuffled)) == list(range(SIZE))
    assert isinstance(dataset.indices(), range)
    assert isinstance(dataset[2:][::3].indices(), range)
    subset, permutation = dataset.shuffle(return_perm=True)
    assert numbers(subset) == permutation.tolist()


# Laziness ----------------------------------------------------------------------------------------


def test_the_constructor_and_the_facts_open_nothing(tmp_path, graphs):
    write(tmp_path, graphs)
    for shard in tmp_path.glob("*.h5"):
        shard.unlink()
    dataset = sg.ShardedDataset(tmp_path)
    assert len(dataset) == SIZE
    assert len(dataset[3:9][::2]) == 3
    assert (dataset.num_features, dataset.num_node_features, dataset.num_edge_features) == (2, 2, 3)
    assert dataset.num_classes == 3
    assert dataset.get_summary().num_graphs == SIZE
    assert repr(dataset) == "ShardedDataset(20)"
    assert len(dataset.shuffle()) == SIZE
    assert dataset[:5].num_features == 2
    assert dataset._pool.num_open == 0
    with pytest.raises(sg.FormatError, match=r"shard-00000.h5 is missing though the manifest name"):
        dataset[0]


def test_shards_open_one_by_one(dataset):
    assert dataset._pool.num_open == 0
    dataset[0]
    assert dataset._pool.num_open == 1
    dataset[:2][0]
    assert dataset._pool.num_open == 1
    list(dataset)
    assert dataset._pool.num_open == len(dataset.manifest.shards) > 3
    dataset.close()
    assert dataset._pool.num_open == 0
    assert dataset[3].number == 3


def test_a_shard_that_shrinks_is_an_error_and_not_a_crash(tmp_path, graphs, monkeypatch):
    monkeypatch.setattr(shard_pool, "CHECK_SECONDS", 0.0)
    for read in (lambda d: d[1], lambda d: d.__getitems__([1])):
        path = write(tmp_path / f"{id(read)}", graphs, "1MB")
        dataset = sg.ShardedDataset(path)
        read(dataset)
        os.truncate(path / "shard-00000.h5", 4096)
        with pytest.raises(
            sg.CorruptShardError, match=r"shard-00000.h5 has 4096 bytes, the manife"
        ):
            read(dataset)


def test_there_must_be_a_dataset(tmp_path):
    with pytest.raises(sg.FormatError, match=r"has no manifest.json, so it is not a dataset"):
        sg.ShardedDataset(tmp_path)
    with pytest.raises(sg.FormatError, match=r"does not exist, so there is no dataset in it"):
        sg.ShardedDataset(str(tmp_path / "nowhere"))
    assert not list(tmp_path.iterdir())


def test_a_root_may_be_a_pyg_root(tmp_path, graphs):
    write(tmp_path / "processed", graphs)
    assert numbers(sg.ShardedDataset(str(tmp_path))) == list(range(SIZE))


# Copies and processes ----------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_copies_read_the_same(tmp_path, graphs, again, compression):
    dataset = sg.ShardedDataset(write(tmp_path, graphs, compression=compression))[5:]
    dataset[0]
    copied = again(dataset)
    assert_same(graphs[5:], list(copied))
    assert_same(graphs[5:], copied.__getitems__(range(15)))
    assert_same(graphs[5:], list(dataset))


def test_a_pickle_is_small_and_holds_nothing_open(dataset):
    list(dataset)
    size = len(pickle.dumps(dataset))
    assert size < 20_000
    again = pickle.loads(pickle.dumps(dataset))
    assert again._pool.num_open == 0
    assert len(pickle.dumps(dataset[[3, 4]])) < size + 1000


def test_a_subset_shares_the_open_shards(dataset):
    dataset[0]
    assert dataset[3:]._pool is dataset._pool


# Subclasses --------------------------------------------------------------------------------------


class Doubled(sg.ShardedDataset):
    """Reads its graphs its own way."""

    def get(self, idx: int) -> Any:
        data = super().get(idx)
        data.doubled = 2 * data.number
        return data


def negative(data: Data) -> Data:
    data.number = -data.number
    return data


def test_an_overridden_get_is_honoured_everywhere(root):
    dataset = Doubled(root)[4:]
    assert dataset[0].doubled == 8
    assert [data.doubled for data in dataset] == [2 * n for n in range(4, 20)]
    assert [data.doubled for data in dataset.__getitems__([3, 0])] == [14, 8]
    for loader in (DataLoader, sg.GraphLoader):
        batch = next(iter(loader(dataset, batch_size=3)))
        assert batch.doubled.tolist() == [8, 10, 12]


def test_a_transform_applies_to_each_graph_read(root, graphs):
    dataset = sg.ShardedDataset(root, transform=negative)
    assert dataset[2].number == dataset[2].number == -2
    assert dataset.get(2).number == 2
    assert [data.number for data in dataset[3:].__getitems__([0, 1])] == [-3, -4]
    for loader in (DataLoader, sg.GraphLoader):
        (batch,) = loader(dataset, batch_size=SIZE)
        expected = Batch.from_data_list([negative(copy.copy(data)) for data in graphs])
        assert_same(expected, batch)


def test_a_transform_may_be_given_after_the_loader_was_made(dataset):
    loader = sg.GraphLoader(dataset, batch_size=5)
    dataset.transform = negative
    assert next(iter(loader)).number.tolist() == [0, -1, -2, -3, -4]


def refuse_seven(data: Data) -> Data:
    if data.number == 7:
        raise KeyError("charge")
    return data


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
def test_an_error_in_a_transform_names_the_graph(root):
    dataset = sg.ShardedDataset(root, transform=refuse_seven)
    told = f"This was the transform of graph 7 of {root}"
    reads = [lambda: dataset[-13], lambda: list(dataset[5:]), lambda: dataset[5:].__getitems__([2])]
    reads.append(lambda: list(sg.GraphLoader(dataset[::-1], batch_size=3)))
    for read in reads:
        with pytest.raises(KeyError, match=rf"^'charge'\n{told}$"):
            read()
    with pytest.raises(KeyError, match=rf"KeyError: 'charge'\s+{told}"):
        list(sg.GraphLoader(dataset, batch_size=3, num_workers=1))


# Projections and classes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys", [["x"], ["edge_index"], ["y", "number"], ["edge_attr", "x"], [], ["edge_index", "y"]]
)
def test_keys_read_some_attributes_and_keep_the_number_of_nodes(root, graphs, keys):
    dataset = sg.ShardedDataset(root, keys=keys)
    expected = []
    for data in graphs:
        part = Data(**{key: value for key, value in data.items() if key in keys})
        if "x" not in keys:
            part.num_nodes = data.num_nodes
        expected.append(part)
    assert_same(expected, list(dataset))
    assert_same(expected, dataset.__getitems__(range(SIZE)))
    (batch,) = sg.GraphLoader(dataset, batch_size=SIZE)
    assert_same(Batch.from_data_list(expected), batch)


def test_keys_of_what_tells_no_number_of_nodes_to_a_batch(tmp_path):
    graphs = [
        Data(feat=torch.rand(n, 1), edge_index=torch.zeros(2, 1).long(), n_id=torch.arange(n))
        for n in (2, 3)
    ]
    write(tmp_path, graphs)
    for keys in (["feat"], ["n_id"]):
        dataset = sg.ShardedDataset(tmp_path, keys=keys)
        assert [data.num_nodes for data in dataset] == [2, 3]
        (batch,) = sg.GraphLoader(dataset, batch_size=2)
        assert_same(Batch.from_data_list(list(dataset)), batch)


def test_keys_of_typed_graphs(tmp_path):
    rng = np.random.default_rng(0)
    graphs = [make.hetero(rng) for _ in range(4)]
    dataset = sg.ShardedDataset(write(tmp_path, graphs), keys=["tag", "edge_index"])
    for data, found in zip(graphs, dataset, strict=True):
        assert found.num_nodes == data.num_nodes
        assert_same(data["a"].tag, found["a"].tag)
        assert "x" not in found["a"]
        assert "edge_attr" not in found["a", "to", "b"]
    (batch,) = sg.GraphLoader(dataset, batch_size=4)
    assert_same(Batch.from_data_list(list(dataset)), batch)


def test_keys_must_exist(root):
    with pytest.raises(ValueError, match=r"no attribute \['z'\]; the dataset has \['edge_attr', "):
        sg.ShardedDataset(root, keys=["x", "z"])


class Named(Data):
    """A class of one's own."""


def test_data_cls_chooses_the_class(root, graphs):
    dataset = sg.ShardedDataset(root, data_cls=Named)
    assert type(dataset[0]) is Named
    assert_same(graphs, list(dataset), classes=False)
    (batch,) = sg.GraphLoader(dataset, batch_size=SIZE)
    assert_same(Batch.from_data_list([Named(**data.to_dict()) for data in graphs]), batch)


# Facts -------------------------------------------------------------------------------------------

LABELS: dict[str, Any] = {
    "int": lambda i: torch.tensor([i % 4]),
    "int column": lambda i: torch.tensor([[i % 4]]),
    "node int": lambda i: torch.arange(i % 4 + 1),
    "bool": lambda i: torch.tensor([i % 2 == 0]),
    "two floats": lambda i: torch.tensor([float(i % 2)]),
    "float targets": lambda i: torch.tensor([[float(i), 1.0, 2.0]]),
    "int targets": lambda i: torch.tensor([[i, 1, 2, 3]]),
    "number": lambda i: i % 5,
    "none": None,
}


@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS.keys())
def test_num_classes_are_pygs(tmp_path, label):
    graphs = [Data(x=torch.zeros(2, 1)) for _ in range(9)]
    for place, data in enumerate(graphs):
        if label is not None:
            data.y = label(place)
    dataset, expected = sg.ShardedDataset(write(tmp_path, graphs, 40)), InMemory(graphs)
    if label is not None:
        assert dataset.num_classes == expected.num_classes
        assert dataset[2:7].num_classes == expected[2:7].num_classes
        assert dataset[[1]].num_classes == expected[[1]].num_classes
    else:
        assert dataset.num_classes == dataset[2:7].num_classes == 0


def test_num_classes_of_labels_without_a_dimension(tmp_path):
    graphs = [Data(x=torch.zeros(2, 1), y=torch.tensor(place)) for place in range(5)]
    dataset = sg.ShardedDataset(write(tmp_path, graphs))
    assert (dataset.num_classes, dataset[1:3].num_classes) == (5, 3)


def test_num_classes_of_float_labels_warns_as_in_pyg(tmp_path):
    graphs = [Data(x=torch.zeros(2, 1), y=torch.tensor([i / 2])) for i in range(5)]
    dataset = sg.ShardedDataset(write(tmp_path, graphs))
    with pytest.warns(UserWarning, match="Found floating-point labels"):
        assert dataset.num_classes == 5


def test_num_classes_after_a_transform(root):
    def shift(data: Data) -> Data:
        data.y = data.y + 10
        return data

    assert sg.ShardedDataset(root, transform=shift).num_classes == 13


def test_num_classes_of_typed_graphs(tmp_path):
    graphs = [make.hetero(np.random.default_rng(seed)) for seed in range(5)]
    dataset = sg.ShardedDataset(write(tmp_path, graphs))
    assert dataset.num_classes == InMemory(graphs).num_classes


X = {
    "matrix": torch.zeros(3, 5),
    "vector": torch.zeros(3),
    "cube": torch.zeros(3, 2, 4),
    "int": torch.zeros(3, 1, dtype=torch.int64),
}


@pytest.mark.parametrize("x", X.values(), ids=X.keys())
def test_numbers_of_features_are_pygs(tmp_path, x):
    graphs = [Data(x=x, edge_attr=x, edge_index=torch.zeros(2, 3, dtype=torch.int64))]
    dataset, expected = sg.ShardedDataset(write(tmp_path, graphs)), InMemory(graphs)
    for name in ("num_features", "num_node_features", "num_edge_features"):
        assert getattr(dataset, name) == getattr(expected, name)


def test_numbers_of_features_without_features(tmp_path):
    dataset = sg.ShardedDataset(write(tmp_path, [Data(num_nodes=3)]))
    assert (dataset.num_features, dataset.num_edge_features) == (0, 0)


def test_numbers_of_features_follow_a_transform(root):
    def widen(data: Data) -> tuple[Data, Data]:
        data.x = torch.cat([data.x, data.x], dim=1)
        return data, data

    assert sg.ShardedDataset(root, transform=widen).num_features == 4


def assert_summary(expected: Any, found: Any) -> None:
    assert found.num_graphs == expected.num_graphs
    pairs = [(expected.num_nodes, found.num_nodes), (expected.num_edges, found.num_edges)]
    for name in ("num_nodes_per_type", "num_edges_per_type"):
        one, other = getattr(expected, name), getattr(found, name)
        assert (one is None) == (other is None)
        assert list(one or ()) == list(other or ())
        pairs += [(one[key], other[key]) for key in one or ()]
    for one, other in pairs:
        assert vars(other) == pytest.approx(vars(one), rel=1e-6, nan_ok=True)


def test_the_summary_is_pygs(dataset, graphs):
    expected = InMemory(graphs)
    assert_summary(expected.get_summary(), dataset.get_summary())
    for index in (slice(3, 9), [4, 4, 1]):
        assert_summary(expected[index].get_summary(), dataset[index].get_summary())
    assert dataset.get_summary().name == "ShardedDataset"


def test_the_summary_of_typed_graphs_is_pygs(tmp_path):
    graphs = [make.hetero(np.random.default_rng(seed)) for seed in range(7)]
    dataset, expected = sg.ShardedDataset(write(tmp_path, graphs)), InMemory(graphs)
    assert_summary(expected.get_summary(), dataset.get_summary())
    assert_summary(expected[2:5].get_summary(), dataset[2:5].get_summary())


def test_sizes(dataset, graphs):
    sizes = dataset.sizes
    assert sizes.num_nodes.tolist() == [data.num_nodes for data in graphs]
    assert sizes.num_edges.tolist() == [data.num_edges for data in graphs]
    assert (sizes.num_nodes_dict, sizes.num_edges_dict) == ({}, {})
    assert sizes.num_nodes.dtype == sizes.num_edges.dtype == np.int32
    chosen = dataset[[4, 9, 0]].sizes
    assert (chosen.num_nodes.tolist(), chosen.num_edges.tolist()) == ([4, 4, 0], [8, 8, 0])
    with pytest.raises(ValueError, match="read-only"):
        chosen.num_nodes[0] = 1


@pytest.mark.parametrize("part", [slice(4, 9, 2), slice(None, None, -3), slice(6, 2, -1)], ids=str)
def test_sizes_and_labels_of_a_slice_are_views(tmp_path, part):
    write(tmp_path, [Data(x=torch.zeros(n, 1), y=n) for n in range(10)], "300")
    dataset = sg.ShardedDataset(tmp_path)
    expected = np.arange(10)[part].tolist()
    assert dataset[part].sizes.num_nodes.tolist() == dataset[part].labels.tolist() == expected
    assert np.shares_memory(dataset[part].sizes.num_nodes, dataset.sizes.num_nodes)
    assert np.shares_memory(dataset[part].labels, dataset.labels)
    nothing = dataset[part][len(expected) :]
    assert nothing.sizes.num_nodes.tolist() == nothing.labels.tolist() == []


def test_sizes_by_type_are_pygs(tmp_path):
    graphs = [make.hetero(np.random.default_rng(seed)) for seed in range(5)]
    dataset = sg.ShardedDataset(write(tmp_path, graphs))
    sizes = dataset[1:].sizes
    nodes = {key: counts.tolist() for key, counts in sizes.num_nodes_dict.items()}
    edges = {key: counts.tolist() for key, counts in sizes.num_edges_dict.items()}
    assert nodes == {
        key: [g[key].num_nodes if key in g.node_types else 0 for g in graphs[1:]] for key in nodes
    }
    assert edges == {
        key: [g[key].num_edges if key in g.edge_types else 0 for g in graphs[1:]] for key in edges
    }
    assert set(nodes) == {key for g in graphs for key in g.node_types}
    assert set(edges) == {key for g in graphs for key in g.edge_types}
    assert sizes.num_nodes.tolist() == [g.num_nodes for g in graphs[1:]]
    assert sizes.num_edges.tolist() == [g.num_edges for g in graphs[1:]]
    assert dataset.labels.tolist() == [int(g.y) for g in graphs]


def test_sizes_and_labels_of_compressed_shards(tmp_path):
    write(tmp_path, [Data(x=torch.zeros(n, 1), y=n) for n in range(10)], compression="gzip")
    dataset = sg.ShardedDataset(tmp_path)
    assert dataset.sizes.num_nodes.tolist() == dataset.labels.tolist() == [*range(10)]


@pytest.mark.parametrize(
    ("y", "dtype"),
    [
        (lambda n: n, np.int64),
        (lambda n: n / 2, np.float64),
        (lambda n: n > 2, np.bool_),
        (lambda n: torch.tensor(n), np.int64),
        (lambda n: torch.tensor([n], dtype=torch.int32), np.int32),
        (lambda n: torch.tensor([[n / 2]]), np.float32),
        (lambda n: torch.tensor([n / 2], dtype=torch.bfloat16), np.float32),
        (lambda n: torch.tensor([[n, n + 1]]), np.int64),
    ],
    ids=["int", "float", "bool", "0-d", "one", "one-by-one", "bfloat16", "two"],
)
def test_labels(tmp_path, y, dtype):
    write(tmp_path, [Data(x=torch.zeros(2, 1), y=y(n)) for n in range(5)], "300")
    dataset = sg.ShardedDataset(tmp_path, transform=lambda _: 1 / 0)
    expected = [n.tolist() if isinstance(n := y(k), torch.Tensor) else n for k in range(5)]
    flat = [np.ravel(each).tolist() for each in expected]
    labels = dataset.labels
    assert labels.dtype == dtype
    assert [np.ravel(each).tolist() for each in labels] == flat
    assert labels.ndim == (2 if len(flat[0]) == 2 else 1)
    assert [np.ravel(each).tolist() for each in dataset[[3, 0]].labels] == [flat[3], flat[0]]


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (Data(x=torch.zeros(3, 1)), "these graphs have no y"),
        (Data(x=torch.zeros(3, 1), y=torch.zeros(3)), "does not have exactly one row in each"),
        (Data(x=torch.zeros(3, 1), y="toxic"), "y is of kind 'str'"),
        (Data(x=torch.zeros(3, 1), y=[torch.zeros(1)]), "a y of kind 'list'"),
    ],
)
def test_labels_that_are_not_one_number_a_graph(tmp_path, data, match):
    write(tmp_path, [data, data])
    with pytest.raises(ValueError, match=match):
        sg.ShardedDataset(tmp_path).labels  # noqa: B018


def test_splits_are_named_subsets(tmp_path, graphs):
    write(tmp_path, graphs)
    advice = "none: `shardgraph convert SOURCE OUT --split train=0.9,test=0.1` makes some"
    with pytest.raises(KeyError, match=f"no split 'train'; the dataset has {advice}"):
        sg.ShardedDataset(tmp_path).split("train")


# PyG's and torch's own machinery -----------------------------------------------------------------


@pytest.mark.parametrize("make_subset", [lambda d: d, lambda d: d[[15, 2, 9, 9]], lambda d: d[6:]])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_pygs_loader(dataset, graphs, make_subset, num_workers):
    dataset[0]  # what the parent has opened must not matter to its children
    subset, expected = make_subset(dataset), make_subset(InMemory(graphs))
    loader = DataLoader(subset, batch_size=3, num_workers=num_workers)
    for one, other in zip(DataLoader(expected, batch_size=3), loader, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shuffled_epoch_is_a_permutation(dataset, num_workers):
    list(dataset)
    loader = DataLoader(dataset[3:], batch_size=4, shuffle=True, num_workers=num_workers)
    found = [number for batch in loader for number in batch.number.tolist()]
    assert found != list(range(3, SIZE))
    assert sorted(found) == list(range(3, SIZE))


def test_torchs_own_subsets(dataset, graphs):
    subset = Subset(dataset[2:], [0, 5, 3])
    (batch,) = DataLoader(subset, batch_size=3)
    assert batch.number.tolist() == [2, 7, 5]
    train, test = random_split(dataset, [15, 5], generator=torch.Generator().manual_seed(0))
    found = [batch.number.tolist() for part in (train, test) for batch in DataLoader(part, 5)]
    assert sorted(np.concatenate(found).tolist()) == list(range(SIZE))
    both = ConcatDataset([dataset[:3], dataset[10:12]])
    (batch,) = DataLoader(both, batch_size=5)
    assert_same(Batch.from_data_list([graphs[i] for i in (0, 1, 2, 10, 11)]), batch)


def test_spawned_workers_read_the_same(tmp_path):
    rng = np.random.default_rng(3)
    graphs = [make.pair(rng) for _ in range(7)]
    dataset = sg.ShardedDataset(write(tmp_path, graphs, compression="gzip"))[1:]
    list(dataset)
    loader = DataLoader(dataset, 3, num_workers=1, multiprocessing_context="spawn")
    expected = DataLoader(graphs[1:], 3)
    for one, other in zip(expected, loader, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("kind", [FakeDataset, FakeHeteroDataset])
def test_pygs_fake_datasets(tmp_path, kind):
    torch.manual_seed(1)
    options = {"num_graphs": 12} if kind is FakeDataset else {"num_graphs": 12, "edge_dim": 2}
    graphs = list(kind(avg_num_nodes=6, avg_degree=3, **options))
    dataset, expected = sg.ShardedDataset(write(tmp_path, graphs, 9_000)), InMemory(graphs)
    assert len(dataset.manifest.shards) > 1
    assert_same(graphs, list(dataset))
    assert_same(graphs, dataset.__getitems__(range(12)))
    for loader in (DataLoader, sg.GraphLoader):
        for part in (slice(None), slice(4, 11)):
            batches = zip(DataLoader(expected[part], 4), loader(dataset[part], 4), strict=True)
            for one, other in batches:
                assert_same(one, other)
    assert dataset.num_features == expected.num_features
    assert dataset.num_edge_features == expected.num_edge_features
    assert_summary(expected.get_summary(), dataset.get_summary())
    if kind is FakeDataset:
        assert dataset.num_classes == expected.num_classes


def test_a_typed_graph_is_typed(tmp_path):
    graphs = [make.hetero(np.random.default_rng(seed)) for seed in range(3)]
    dataset = sg.ShardedDataset(write(tmp_path, graphs))
    assert isinstance(dataset[0], HeteroData)
    assert dataset.num_node_features == {"a": 2, "b": 3, "c": 0}


def test_statistics_of_a_subset_are_those_of_a_dataset_of_its_graphs(tmp_path, monkeypatch):
    monkeypatch.setattr("shardgraph.facts._CHUNK_NBYTES", 1000)
    generator = torch.Generator().manual_seed(0)
    graphs = [
        Data(
            x=torch.randn(1 + number % 5, 3, generator=generator),
            edge_index=torch.randint(0, 1 + number % 5, (2, number), generator=generator),
            y=torch.tensor([number % 3]),
            name=f"graph {number}",
        )
        for number in range(40)
    ]
    whole = sg.ShardedDataset(write(tmp_path / "whole", graphs, shard_size=500))
    order = np.random.default_rng(0).permutation(40)[:25]
    part = sg.ShardedDataset(write(tmp_path / "part", [graphs[i] for i in order]))
    found, expected = whole[order].statistics, part.statistics
    assert found.num_graphs == expected.num_graphs == 25
    assert found.sizes == expected.sizes
    assert found.in_degree == expected.in_degree
    assert found.labels == expected.labels
    for name, column in expected.columns.items():
        np.testing.assert_allclose(found.columns[name].mean, column.mean, rtol=1e-12)
        np.testing.assert_allclose(found.columns[name].std, column.std, rtol=1e-12)
        assert np.array_equal(found.columns[name].min, column.min)
        assert np.array_equal(found.columns[name].max, column.max)
    assert whole.statistics is whole.manifest.statistics


def test_a_relative_path_outlives_a_chdir(tmp_path, graphs, monkeypatch):
    write(tmp_path / "d", graphs)
    monkeypatch.chdir(tmp_path)
    dataset = sg.ShardedDataset("d")
    monkeypatch.chdir("/")
    assert numbers(dataset) == list(range(SIZE))
