"""Batches filled up to one shape: equal to PyG's batch of the graphs and padding graphs by hand."""

import json

import numpy as np
import pytest
import torch
from graph_equality import assert_same
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import GraphConv, global_add_pool

import shardgraph as sg

SHAPE = {"max_nodes": 12, "max_edges": 9, "max_graphs": 5}
MASKS = ("node_mask", "edge_mask", "graph_mask")


def graph(number: int, nodes: int, edges: int, name: str = "") -> Data:
    """A graph with an attribute of every kind that can be filled up; number 0 is a blank one."""
    return Data(
        x=torch.full((nodes, 2), float(number)),
        edge_index=torch.full((2, edges), max(nodes - 1, 0) if number else 0),
        edge_attr=torch.full((edges, 3), number, dtype=torch.int16),
        y=torch.tensor([[number, 2 * number]]),
        scalar=torch.tensor(number > 0),
        half=number / 2,
        name=name,
        nested={"x": torch.full((nodes,), number, dtype=torch.uint8), "number": number},
    )


def write(path, graphs, shard_size=900):
    with sg.DatasetWriter(path, shard_size=shard_size) as writer:
        for data in graphs:
            writer.write(data)
    return sg.ShardedDataset(path)


def filled(graphs, max_nodes, max_edges, max_graphs, blank=graph, **options):
    """PyG's batch of the graphs, of empty graphs, and of one with the missing nodes and edges."""
    nodes = max_nodes - sum(data.num_nodes for data in graphs)
    edges = max_edges - sum(data.num_edges for data in graphs)
    empty = [blank(0, 0, 0) for _ in range(max_graphs - len(graphs) - 1)]
    return Batch.from_data_list([*graphs, *empty, blank(0, nodes, edges)], **options)


def take_masks(batch):
    masks = {name: batch[name].tolist() for name in MASKS}
    for name in MASKS:
        del batch[name]
    return masks


def check(graphs, batch, **options):
    """The batch is the filled one of its real graphs, and its masks tell which those are."""
    masks = take_masks(batch)
    num_graphs = sum(masks["graph_mask"])
    chosen = [graphs[number - 1] for number in batch.y[:num_graphs, 0].tolist()]
    assert_same(filled(chosen, **SHAPE, **options), batch)
    for name, size, real in (
        ("node_mask", 12, sum(data.num_nodes for data in chosen)),
        ("edge_mask", 9, sum(data.num_edges for data in chosen)),
        ("graph_mask", 5, len(chosen)),
    ):
        assert masks[name] == [True] * real + [False] * (size - real)
    return [data.y[0, 0].item() for data in chosen]


@pytest.fixture(scope="module")
def graphs():
    return [graph(n, n % 5 + 1, n % 4, f"n{n}") for n in range(1, 30)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, graphs):
    return write(tmp_path_factory.mktemp("padding"), graphs)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("shuffle", [False, True])
def test_filled_batches_are_pygs(dataset, graphs, num_workers, shuffle):
    loader = sg.GraphLoader(dataset, **SHAPE, pad=True, shuffle=shuffle, num_workers=num_workers)
    numbers = [number for batch in loader for number in check(graphs, batch)]
    assert sorted(numbers) == list(range(1, 30))
    assert len(loader.dataset.manifest.shards) > 2


def test_follow_batch_and_exclude_keys(dataset, graphs):
    options = {"follow_batch": ["y", "nested"], "exclude_keys": ["edge_attr", "half"]}
    for batch in sg.GraphLoader(dataset, **SHAPE, pad=True, **options):
        check(graphs, batch, **options)


def test_keys(dataset):
    for batch in sg.GraphLoader(
        sg.ShardedDataset(dataset.root, keys=["x", "y"]), **SHAPE, pad=True
    ):
        assert set(batch.keys()) == {"x", "y", "batch", "ptr", *MASKS}
        assert (batch.x.shape, batch.y.shape, batch.edge_mask.shape) == ((12, 2), (5, 2), (9,))


def test_padding_is_the_last_graph(dataset):
    for batch in sg.GraphLoader(dataset, **SHAPE, pad=True, shuffle=True):
        assert batch.num_graphs == int(batch.batch.max()) + 1 == 5
        assert batch.num_nodes == 12
        assert (batch.batch[~batch.node_mask] == 4).all()
        assert not batch.node_mask[batch.edge_index[:, ~batch.edge_mask]].any()
        assert batch.node_mask[batch.edge_index[:, batch.edge_mask]].all()
        assert (~batch.node_mask).any()
        assert (~batch.graph_mask).any()


def test_through_the_prefetcher_and_after_a_resume(dataset):
    def numbers(batches):
        return [batch.y[batch.graph_mask][:, 0].tolist() for batch in batches]

    options = {**SHAPE, "pad": True, "shuffle": True}
    expected = numbers(sg.GraphLoader(dataset, **options))
    loader = sg.GraphLoader(dataset, **options)
    with sg.DevicePrefetcher(loader, device="cpu") as prefetcher:
        assert numbers(prefetcher) == expected
    batches = iter(loader := sg.GraphLoader(dataset, **options))
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    again = sg.GraphLoader(dataset, **options)
    again.load_state_dict(state)
    assert numbers(again) == expected[1:]


def keep_real(batch):
    batch.num_real = int(batch.graph_mask.sum())
    return batch


def test_a_batch_transform_sees_the_masks(dataset):
    loader = sg.GraphLoader(dataset, **SHAPE, pad=True, batch_transform=keep_real, num_workers=1)
    assert sum(batch.num_real for batch in loader) == 29


def test_text_of_padding(tmp_path):
    graphs = [Data(x=torch.zeros(1, 1), name=f"n{n}", extra=[n, "a"]) for n in range(2)]
    (batch,) = sg.GraphLoader(write(tmp_path, graphs), **SHAPE, pad=True)
    assert batch.name == ["n0", "n1", "", "", ""]
    assert batch.extra == [[0, "a"], [1, "a"], None, None, None]
    assert batch[1].extra == [1, "a"]


# Where the lengths of a shard do not tell what a column counts ------------------------------------


def test_shards_of_single_nodes_and_of_rings(tmp_path):
    """Rows that count nodes may as well count graphs, or edges, in one shard of the dataset."""
    graphs = [graph(n, 1, 1) for n in range(1, 9)]
    graphs += [graph(n, 3, 3) for n in range(9, 17)]
    graphs += [graph(n, 2, n % 4) for n in range(17, 25)]
    dataset = write(tmp_path, graphs, shard_size=300)
    axes = {dataset._pool.shard(k).axis_of["x"] for k in range(len(dataset.manifest.shards))}
    assert axes == {"graph", "node"}
    for batch in sg.GraphLoader(dataset, **SHAPE, pad=True, shuffle=True):
        check(graphs, batch)


def test_graphs_of_one_node_and_one_edge(tmp_path):
    """All rows may as well count graphs; PyG counts nodes and edges by some names."""

    def single(number, nodes, edges):
        return Data(
            x=torch.full((nodes, 2), float(number)),
            edge_index=torch.zeros(2, edges, dtype=torch.int64),
            edge_attr=torch.full((edges, 1), number),
            y=torch.tensor([number]),
        )

    graphs = [single(number, 1, 1) for number in range(6)]
    batch, last = sg.GraphLoader(write(tmp_path, graphs), **SHAPE, pad=True)
    assert take_masks(batch)["node_mask"] == [True] * 4 + [False] * 8
    assert take_masks(last)["edge_mask"] == [True] * 2 + [False] * 7
    assert_same(filled(graphs[:4], **SHAPE, blank=single), batch)
    assert_same(filled(graphs[4:], **SHAPE, blank=single), last)


# Types -------------------------------------------------------------------------------------------

TYPED = {
    "max_nodes": {"a": 9, "b": 7},
    "max_edges": {("a", "to", "b"): 8, "b__to__b": 6},
    "max_graphs": 4,
}


def typed(number: int, sizes: tuple[int, int], edges: tuple[int, int]) -> HeteroData:
    data = HeteroData()
    data.y = number
    for key, size in zip("ab", sizes, strict=True):
        data[key].x = torch.full((size, 1), float(number))
    for key, count in zip((("a", "to", "b"), ("b", "to", "b")), edges, strict=True):
        ends = [0 if number == 0 else max(sizes["ab".index(key[i])] - 1, 0) for i in (0, 2)]
        data[key].edge_index = torch.tensor(ends).view(2, 1).repeat(1, count)
    return data


@pytest.mark.parametrize("num_workers", [0, 1])
def test_types(tmp_path, num_workers):
    # The first shards have no edge of the second type, and the last no node of the first.
    graphs = [typed(n, (n % 3 + 1, n % 4 + 1), (n % 3, 0)) for n in range(1, 12)]
    graphs += [typed(n, (n % 2, n % 3 + 1), (0, n % 4)) for n in range(12, 24)]
    dataset = write(tmp_path, graphs, 300)
    loader = sg.GraphLoader(dataset, **TYPED, pad=True, shuffle=True, num_workers=num_workers)
    seen = []
    for batch in loader:
        chosen = [graphs[n - 1] for n in batch.y[batch.graph_mask].tolist()]
        seen += [data.y for data in chosen]
        sizes = [
            limit - sum(data[key].num_nodes for data in chosen)
            for key, limit in TYPED["max_nodes"].items()
        ]
        edges = [
            8 - sum(data["a", "to", "b"].num_edges for data in chosen),
            6 - sum(data["b", "to", "b"].num_edges for data in chosen),
        ]
        empty = [typed(0, (0, 0), (0, 0)) for _ in range(4 - len(chosen) - 1)]
        expected = Batch.from_data_list([*chosen, *empty, typed(0, tuple(sizes), tuple(edges))])
        for key, size in TYPED["max_nodes"].items():
            real = sum(data[key].num_nodes for data in chosen)
            assert batch[key].node_mask.tolist() == [True] * real + [False] * (size - real)
            del batch[key].node_mask
        for key in (("a", "to", "b"), ("b", "to", "b")):
            real = sum(data[key].num_edges for data in chosen)
            mask = batch[key].edge_mask
            assert mask.tolist() == [True] * real + [False] * (len(mask) - real)
            del batch[key].edge_mask
        del batch.graph_mask
        assert_same(expected, batch)
    assert sorted(seen) == list(range(1, 24))


def test_a_shard_without_a_type_tells_its_rows_from_graphs(tmp_path):
    graphs = [typed(1, (1, 1), (1, 1)), typed(2, (1, 1), (1, 1))]
    graphs[0]["b", "to", "b"].weight = torch.ones(1)
    del graphs[1]["b", "to", "b"]
    dataset = write(tmp_path, graphs, shard_size=1)
    assert [dataset._pool.shard(number).num_graphs for number in range(2)] == [1, 1]
    (batch,) = sg.GraphLoader(dataset, **TYPED, pad=True)
    assert batch["b", "to", "b"].weight.tolist() == [1, 0, 0, 0, 0, 0]
    assert batch["b", "to", "b"].edge_mask.tolist() == [True] + [False] * 5


def test_types_need_a_budget_each(tmp_path):
    dataset = write(tmp_path, [typed(1, (1, 1), (1, 1))])
    for change, match in (
        ({"max_nodes": {"a": 9}}, "needs max_nodes for every type, as a dict; missing: b"),
        ({"max_nodes": 20}, "needs max_nodes for every type, as a dict; missing: a, b"),
        ({"max_edges": {"b__to__b": 3}}, "needs max_edges for every type.*missing: a__to__b"),
        ({"max_nodes": {"a": 9, "b": 1}}, "max_nodes must be at least 2, since pad=True .*, got 1"),
    ):
        with pytest.raises(ValueError, match=match):
            sg.GraphLoader(dataset, **{**TYPED, **change}, pad=True)


# Refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 4}, "give all three; missing: max_nodes, max_edges, max_graphs"),
        ({**SHAPE, "max_graphs": None}, "give all three; missing: max_graphs"),
        ({**SHAPE, "max_graphs": 1}, "max_graphs must be at least 2, since pad=True .*, got 1"),
        ({**SHAPE, "max_nodes": 1}, "max_nodes must be at least 2, since pad=True .*, got 1"),
        ({**SHAPE, "max_nodes": {"a": 3}}, "max_nodes is one number for graphs without types"),
        ({**SHAPE, "oversized": "alone"}, "cannot fill up a batch over budget"),
        ({**SHAPE, "batch_size": 4}, "got both"),
    ],
)
def test_refused_options(dataset, options, match):
    with pytest.raises(ValueError, match=match):
        sg.GraphLoader(dataset, **options, pad=True)


@pytest.mark.parametrize("value", [9.5, "9", True])
@pytest.mark.parametrize("name", ["max_nodes", "max_graphs"])
def test_refused_types_of_options(dataset, name, value):
    with pytest.raises(TypeError, match=rf"{name} must be an integer, got {value!r}"):
        sg.GraphLoader(dataset, **{**SHAPE, name: value}, pad=True)


def test_graphs_without_any_type_are_filled_up(tmp_path):
    data = HeteroData()
    data.y = torch.ones(1)
    shape = {"max_nodes": 5, "max_edges": 5, "max_graphs": 4}
    (batch,) = sg.GraphLoader(write(tmp_path, [data] * 3), **shape, pad=True)
    assert batch.y.tolist() == [1, 1, 1, 0]
    assert batch.graph_mask.tolist() == [True, True, True, False]


class Counting(Data):
    def __inc__(self, key, value, *args, **kwargs):
        return 7 if key == "link_index" else super().__inc__(key, value, *args, **kwargs)


@pytest.mark.parametrize(
    ("data", "key", "match"),
    [
        (Data(x=torch.zeros(4, 1), face=torch.zeros(3, 2, dtype=torch.long)), "face", "'face'"),
        (Data(x=torch.zeros(4, 1), node_mask=torch.ones(4)), "node_mask", "have already"),
        (Counting(x=torch.zeros(4, 1), link_index=torch.zeros(4).long()), "link_index", "__inc__"),
    ],
    ids=["own-axis", "mask", "counting"],
)
def test_refused_attributes(tmp_path, data, key, match):
    dataset = write(tmp_path, [data, data])
    with pytest.raises(ValueError, match=match) as error:
        sg.GraphLoader(dataset, **SHAPE, pad=True)
    assert "leave it out with exclude_keys" in str(error.value)
    (batch,) = sg.GraphLoader(dataset, **SHAPE, pad=True, exclude_keys=[key])
    assert batch.x.shape == (12, 1)


def test_refused_per_graph_batches(dataset):
    transformed = sg.ShardedDataset(dataset.root)
    loader = sg.GraphLoader(transformed, **SHAPE, pad=True)
    transformed.transform = keep_real
    with pytest.raises(ValueError, match=r"but the dataset has a transform, so .* batch_transform"):
        next(iter(loader))
    with pytest.raises(ValueError, match=r"but the dataset has a transform, so .* batch_transform"):
        sg.GraphLoader(transformed, **SHAPE, pad=True)


# Compilation -------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GraphConv(2, 4)
        self.out = torch.nn.Linear(4, 2)

    def forward(self, batch, graph_mask):
        x = self.conv(batch.x, batch.edge_index).relu()
        x = global_add_pool(x, batch.batch, batch.num_graphs)
        return ((self.out(x) - batch.y).square() * graph_mask[:, None]).sum()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_model_is_compiled_at_most_once_more(dataset):
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    torch.manual_seed(0)
    model, counter = Model(), CompileCounter()
    compiled = torch.compile(model, backend=counter)
    loader = sg.GraphLoader(dataset, **SHAPE, pad=True, shuffle=True)
    losses = [compiled(batch, batch.graph_mask).item() for _ in range(2) for batch in loader]
    torch._dynamo.reset()
    assert counter.frame_count <= 2  # torch before 2.5 takes one look more
    # Padding leaves the loss of the real graphs as it is.
    plain = sg.GraphLoader(dataset, max_nodes=11, max_edges=9, max_graphs=4, shuffle=True)
    batches = [batch for _ in range(2) for batch in plain]
    expected = [model(batch, torch.ones(batch.num_graphs)).item() for batch in batches]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert len({batch.num_nodes for batch in batches}) > 1
