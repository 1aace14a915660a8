"""What is written is read back exactly, and batched exactly as PyG would batch it."""

import copy
import shutil
from pathlib import Path

import graph_cases as make
import numpy as np
import pytest
import torch
from graph_equality import assert_same, difference
from graph_strategies import Case, cases, complete, homogeneous_graphs, typed_graphs
from hypothesis import HealthCheck, event, given, settings
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData

import shardgraph as sg

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC) tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:There exist type names in the 'HeteroData'"),
]

SIZES = (3, 0, 1, 5, 2)


def graphs_of(name: str) -> list:
    rng = np.random.default_rng(7)
    if name in {"pair", "bipartite", "ruled", "ruled_hetero", "hetero"}:
        return [getattr(make, name)(rng) for _ in range(6)]
    return [getattr(make, name)(rng, n) for n in SIZES]


KINDS = [
    "every_dtype", "nested", "sparse", "indexed", "pair", "bipartite", "ruled", "ruled_hetero",
    "hetero",
]  # fmt: skip


def written(path: Path, graphs: list, shard_size: int = 300, **options) -> sg.ShardedDataset:
    with sg.DatasetWriter(path, shard_size=shard_size, **options) as writer:
        for data in graphs:
            writer.write(data)
    return sg.ShardedDataset(path)


def loaded(dataset: sg.ShardedDataset, **options):
    (batch,) = sg.GraphLoader(dataset, batch_size=len(dataset), **options)
    return batch


@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")
@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_and_batches_as_in_pyg(tmp_path, kind, compression):
    graphs = graphs_of(kind)
    dataset = written(tmp_path, graphs, 150, compression=compression)
    assert len(dataset.manifest.shards) > 1
    together = dataset.__getitems__(range(len(graphs)))
    for place, data in enumerate(graphs):
        assert_same(data, dataset[place])
        assert_same(data, together[place])
    assert_same(Batch.from_data_list(graphs), loaded(dataset))


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_plugin_compressions_come_back(tmp_path, compression):
    pytest.importorskip("hdf5plugin")
    graphs = [*graphs_of("every_dtype"), *graphs_of("every_dtype")]
    dataset = written(tmp_path, graphs, compression=compression)
    for data, found in zip(graphs, dataset.__getitems__(range(len(graphs))), strict=True):
        assert_same(data, found)
    assert_same(Batch.from_data_list(graphs), loaded(dataset))


@pytest.mark.parametrize("compression", ["gzip", "zstd", "lz4"])
def test_a_column_of_nothing_but_zeros_compresses_and_reads(tmp_path, compression):
    if compression != "gzip":
        pytest.importorskip("hdf5plugin")
    graphs = [Data(x=torch.zeros(1000, 300)) for _ in range(4)]
    dataset = written(tmp_path, graphs, shard_size="1GB", compression=compression)
    assert_same(graphs[3], dataset[3])


def test_writing_leaves_the_graphs_as_they_were(tmp_path):
    before, after = graphs_of("nested"), graphs_of("nested")
    written(tmp_path, after)
    for one, other in zip(before, after, strict=True):
        assert_same(one, other)


def test_trailing_shapes_may_vary_where_declared(tmp_path):
    rng = np.random.default_rng(0)
    shapes = [(2, 3), (0, 4), (1, 0), (5,), (), (2, 1, 2), (2, 3)]
    graphs = [
        Data(
            v=make.random_tensor(rng, torch.float32, shape),
            c=make.random_tensor(rng, torch.complex64, shape),
            parts={"v": make.random_tensor(rng, torch.int16, shape)},
            num_nodes=1,
        )
        for shape in shapes
    ]
    for size in (1, 60, 10**6):
        path = tmp_path / str(size)
        dataset = written(path, graphs, size, varying=["v", "c"])
        ids = [6, 0, 3, 4, 5, 5, 1, 2]
        for place, found in zip(ids, dataset.__getitems__(ids), strict=True):
            assert_same(graphs[place], found)
            assert_same(graphs[place], dataset[place])


def test_varying_shapes_batch_as_in_pyg(tmp_path):
    graphs = [Data(v=torch.rand(n, 2), num_nodes=1) for n in (1, 0, 4)]
    dataset = written(tmp_path, graphs, varying=["v"])
    assert_same(Batch.from_data_list(graphs), loaded(dataset))


@pytest.fixture
def default_dtype():
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
def test_floats_batch_in_the_default_dtype(tmp_path, default_dtype, name):
    graphs = [Data(z=z, z_index=z, num_nodes=2) for z in (0.1, 1e300, -1e39, 70000.0, 0.0)]
    default_dtype(getattr(torch, name))
    assert_same(Batch.from_data_list(graphs), loaded(written(tmp_path, graphs)))


class Numbered(Data):
    """Increments that differ from row to row, or give an attribute another shape."""

    def __inc__(self, key, value, *args, **kwargs):
        if key == "pair":
            return torch.tensor([self.num_nodes, 10 * self.num_nodes])
        if key == "grows":
            return torch.tensor([[1], [self.num_nodes]])
        return super().__inc__(key, value, *args, **kwargs)


def test_increments_of_another_shape_than_rows_batch_as_in_pyg(tmp_path):
    homogeneous = [
        Numbered(pair=torch.tensor([0, 1]), grows=torch.zeros(1, 2, dtype=torch.int64), num_nodes=n)
        for n in (3, 0, 2)
    ]
    typed = []
    for n in (3, 1, 2):
        data = HeteroData({"a": {"num_nodes": n}, "b": {"num_nodes": n + 1}})
        data["a", "to", "b"].edge_index = torch.stack([torch.arange(n), torch.arange(n) + 1])
        data["a", "to", "b"].one_index = torch.arange(n)
        data["a", "to", "b"].row_index = torch.arange(n).view(1, n)
        typed.append(data)
    for place, graphs in enumerate((homogeneous, typed)):
        dataset = written(tmp_path / str(place), graphs)
        assert_same(Batch.from_data_list(graphs), loaded(dataset))


def test_sparse_tensors_with_dense_dimensions(tmp_path):
    graphs = []
    for n in SIZES:
        indices = torch.arange(n).view(1, -1)
        value = torch.sparse_coo_tensor(indices, torch.rand(n, 2), (n + 1, 2), is_coalesced=True)
        graphs.append(Data(hybrid=value, num_nodes=n))
    dataset = written(tmp_path, graphs)
    for place, data in enumerate(graphs):
        assert_same(data, dataset[place])


def test_edge_index_reads_back_usable(tmp_path):
    edges = EdgeIndex([[0, 0, 1], [1, 2, 2]], sparse_size=(4, 4), sort_order="row")
    data = written(tmp_path, [Data(edge_index=edges)])[0]
    assert data.num_nodes == 4
    assert data.edge_index.validate().is_sorted_by_row


def test_views_are_stored_by_value(tmp_path):
    big = torch.arange(60.0).view(6, 10)
    graphs = [
        Data(x=big[::2, 1::3], t=big.t(), e=big[0, :1].expand(4), c=torch.complex(big, big).conj()),
        Data(x=big[:2, :3], t=big.t()[:, :6], e=big[1, :2], c=torch.complex(big, -big)),
    ]
    graphs[0].n, graphs[1].n = graphs[0].c.imag, torch._neg_view(big)
    graphs[0].p, graphs[1].p = torch.nn.Parameter(big), big.clone().requires_grad_()
    dataset = written(tmp_path, graphs)
    for place, data in enumerate(graphs):
        assert difference(data.x, dataset[place].x) is None
        for key in ("t", "e", "c", "n"):
            assert_same(data[key].resolve_conj().resolve_neg().clone(), dataset[place][key])
        assert_same(data.p.detach(), dataset[place].p)
    assert sum(entry.raw_nbytes for entry in dataset.manifest.shards) < 5000


class Eager(Data):
    """Sets attributes when it is made."""

    def __init__(self, x=None):
        super().__init__(x=x)
        self.extra = torch.zeros(1)
        self.tag = "t"


def test_what_a_constructor_sets_is_replaced(tmp_path):
    graphs = [Eager(torch.rand(n, 2)) for n in SIZES]
    for n, data in enumerate(graphs):
        data.extra = torch.tensor([n])
        del data.tag
    dataset = written(tmp_path, graphs)
    assert_same(graphs, list(dataset))
    assert_same(graphs, dataset.__getitems__(range(len(graphs))))
    assert_same(Batch.from_data_list(graphs), loaded(dataset))
    assert list(sg.ShardedDataset(tmp_path, keys=["x"])[0].keys()) == ["x"]


def test_a_graph_owns_writable_tensors(tmp_path):
    graphs = graphs_of("every_dtype")
    dataset = written(tmp_path, graphs)
    first = dataset[0]
    for value in first.to_dict().values():
        if isinstance(value, torch.Tensor):
            assert value.untyped_storage().nbytes() == value.numel() * value.element_size()
            value.zero_()
    assert_same(graphs[0], dataset[0])
    twice = dataset.__getitems__([1, 1, 0])
    for value in twice[0].to_dict().values():
        if isinstance(value, torch.Tensor):
            value.zero_()
    assert_same(graphs[1], twice[1])
    assert_same(graphs[1], dataset[1])


def test_kept_graph_attributes_do_not_keep_the_batch(tmp_path):
    dataset = written(tmp_path, [Data(x=torch.rand(100, 9), y=torch.rand(1, 2)) for _ in range(9)])
    batch = loaded(dataset)
    assert batch.y.untyped_storage().nbytes() == 9 * 2 * 4
    addresses = [batch[name].data_ptr() for name in ("x", "y", "batch", "ptr")]
    in_one_buffer = [0 < address - addresses[0] < 2 * 9 * 100 * 9 * 4 for address in addresses[1:]]
    assert in_one_buffer[1:] == [True, True]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("transform", [None, copy.copy], ids=["columns", "graph_by_graph"])
def test_a_batch_can_be_saved_whole_and_in_parts(tmp_path, num_workers, transform):
    graphs = graphs_of("every_dtype")
    dataset = written(tmp_path, graphs)
    dataset.transform = transform
    batch = loaded(dataset, num_workers=num_workers)
    torch.save(batch, tmp_path / "batch.pt")
    assert_same(batch, torch.load(tmp_path / "batch.pt", weights_only=False))
    for value in batch.to_dict().values():
        if isinstance(value, torch.Tensor) and value.data_ptr():
            assert value.untyped_storage().nbytes() == value.numel() * value.element_size()


# Types that some graphs lack ---------------------------------------------------------------------


def check_completed(tmp_path: Path, graphs: list[HeteroData]) -> None:
    expected = complete(graphs)
    for size in (1, 10**6):
        dataset = written(tmp_path / str(size), graphs, size)
        for place, data in enumerate(expected):
            assert_same(data, dataset[place])
        assert_same(expected[::-1], dataset.__getitems__(list(range(len(graphs)))[::-1]))
        assert_same(Batch.from_data_list(expected), loaded(dataset))
        assert_same(Batch.from_data_list(expected[-1:]), loaded(dataset[-1:]))


@pytest.mark.parametrize(
    "types",
    [["abc", "ab", "a", "abc"], ["a", "ab", "abc"], ["c", "bc", "ab"], ["abc", "abc"]],
    ids=lambda types: ",".join(types),
)
def test_types_that_a_graph_lacks_come_back_empty(tmp_path, types):
    rng = np.random.default_rng(1)
    check_completed(tmp_path, [make.hetero(rng, types=some) for some in types])


def test_an_empty_store_counts_as_lacking(tmp_path):
    graphs = [make.hetero(np.random.default_rng(2), types=types) for types in ("ab", "a", "a")]
    graphs[1]["b"]  # PyG makes the store when it is asked for
    check_completed(tmp_path, graphs)


def test_graphs_of_types_without_nodes(tmp_path):
    check_completed(tmp_path, [make.hetero(np.random.default_rng(3), num=num) for num in (0, 2, 0)])


# Random datasets ---------------------------------------------------------------------------------


def check_case(path: Path, case: Case) -> None:
    shutil.rmtree(path, ignore_errors=True)
    dataset = written(path, case.graphs, case.shard_size)
    for place, data in enumerate(case.complete):
        assert_same(data, dataset[place])
    chosen = [case.complete[place] for place in case.ids]
    assert_same(chosen, dataset.__getitems__(case.ids))
    options = {"follow_batch": case.follow_batch, "exclude_keys": case.exclude_keys}
    try:
        expected = Batch.from_data_list(chosen, **options)
    except ValueError as error:  # PyG cannot batch a sorted EdgeIndex if it has one edge
        event(f"PyG cannot batch this: {error}")
        with pytest.raises(ValueError, match="only one element tensors can be converted"):
            loaded(dataset[case.ids], **options)
        return
    found = loaded(dataset[case.ids], **options)
    assert_same(expected, found)
    assert found.num_graphs == expected.num_graphs
    if can_be_taken_apart(expected):
        assert_same(expected.to_data_list(), found.to_data_list())


def can_be_taken_apart(batch) -> bool:
    """Not PyG's batches of sparse tensors, nor those with a type that has nothing but num_nodes."""
    return not any(
        isinstance(value, torch.Tensor) and value.layout is not torch.strided
        for store in batch.stores
        for value in store.values()
    ) and all(store._key is None or store._key in batch._slice_dict for store in batch.stores)


RANDOM = settings(
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@RANDOM
@given(case=cases(homogeneous_graphs()))
def test_random_graphs(tmp_path, case):
    case.complete = case.graphs
    check_case(tmp_path / "dataset", case)


@RANDOM
@given(case=cases(typed_graphs()))
def test_random_typed_graphs(tmp_path, case):
    case.complete = complete(case.graphs)
    check_case(tmp_path / "dataset", case)
