from collections import OrderedDict, UserDict, defaultdict, namedtuple
from types import MappingProxyType

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData, TemporalData

from shardgraph.prefetch.structure import dense_parts, leaves_of, num_bytes, replace_leaves

Pair = namedtuple("Pair", ["left", "right"])


class Tagged(dict):
    tag = "none"


class Stack(list):
    pass


def plus_one(leaf):
    return leaf + 1


def one():
    return torch.tensor([1])


CONTAINERS = [
    pytest.param(lambda leaf: leaf, id="tensor"),
    pytest.param(lambda leaf: [leaf, "a", 3, None], id="list"),
    pytest.param(lambda leaf: (leaf, 2.5), id="tuple"),
    pytest.param(lambda leaf: Pair(leaf, {"deep": [leaf]}), id="namedtuple"),
    pytest.param(lambda leaf: {"a": leaf, 5: b"bytes"}, id="dict"),
    pytest.param(lambda leaf: OrderedDict(b=leaf, a=1), id="OrderedDict"),
    pytest.param(lambda leaf: defaultdict(list, {"a": leaf}), id="defaultdict"),
    pytest.param(lambda leaf: UserDict(a=leaf), id="UserDict"),
    pytest.param(lambda leaf: MappingProxyType({"a": leaf}), id="immutable_mapping"),
    pytest.param(lambda leaf: Stack([leaf]), id="list_subclass"),
]


@pytest.mark.parametrize("make", CONTAINERS)
def test_containers_keep_their_type_and_their_leaves(make):
    given = make(one())
    new = replace_leaves(given, plus_one)
    assert type(new) is type(given)
    assert new == make(torch.tensor([2]))
    assert given == make(one())


@pytest.mark.parametrize("make", CONTAINERS)
def test_nothing_replaced_gives_the_same_object(make):
    given = make(one())
    assert replace_leaves(given, lambda leaf: leaf) is given


@pytest.mark.parametrize(
    "leaf",
    ["text", b"bytes", 1, 2.5, None, True, range(3), {1, 2}, object, torch.float32],
    ids=repr,
)
def test_foreign_leaves_are_left_alone(leaf):
    assert replace_leaves(leaf, plus_one) is leaf


def test_what_a_subclass_holds_besides_its_items_survives():
    given = Tagged(a=one())
    given.tag = "kept"
    assert replace_leaves(given, plus_one).tag == "kept"


def test_a_default_factory_survives():
    new = replace_leaves(defaultdict(list, {"a": one()}), plus_one)
    assert new["missing"] == []


def data():
    return Data(x=torch.zeros(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), name="a")


def hetero():
    graph = HeteroData()
    graph["user"].x = torch.zeros(2, 1)
    graph["user", "likes", "item"].edge_index = torch.tensor([[0], [0]])
    graph["item"].num_nodes = 1
    return graph


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(data, id="Data"),
        pytest.param(hetero, id="HeteroData"),
        pytest.param(lambda: Batch.from_data_list([data(), data()]), id="Batch"),
        pytest.param(lambda: Batch.from_data_list([hetero(), hetero()]), id="hetero_batch"),
        pytest.param(
            lambda: TemporalData(src=torch.tensor([0]), dst=torch.tensor([1]), t=torch.tensor([5])),
            id="TemporalData",
        ),
    ],
)
def test_pyg_objects_equal_their_own_apply_and_stay_as_they_were(make):
    given, untouched = make(), make()
    new = replace_leaves(given, plus_one)
    expected = make().apply(lambda leaf: leaf + 1 if isinstance(leaf, torch.Tensor) else leaf)
    assert type(new) is type(given)
    assert _as_lists(new) == _as_lists(expected)
    assert _as_lists(given) == _as_lists(untouched)
    if isinstance(given, Batch):
        assert new.num_graphs == given.num_graphs
        assert new._slice_dict is given._slice_dict


def _as_lists(graph):
    return repr(graph.to_dict())


def test_an_error_below_a_pyg_attribute_is_not_swallowed():
    class Holder:
        def to(self, device):
            raise RuntimeError(f"cannot be moved to {device}")

        def pin_memory(self):
            return self

    def move(leaf):
        if isinstance(leaf, Holder):
            leaf.to("there")
        return leaf

    graph = data()
    graph.holder = Holder()
    with pytest.raises(RuntimeError, match="cannot be moved to there"):
        replace_leaves(graph, move)


def test_a_packed_sequence_keeps_its_sizes_where_torch_wants_them():
    given = pack_sequence([torch.ones(2), torch.ones(3)], enforce_sorted=False)
    new = replace_leaves(given, plus_one)
    assert isinstance(new, PackedSequence)
    assert new.batch_sizes is given.batch_sizes
    assert torch.equal(new.data, given.data + 1)
    assert torch.equal(new.sorted_indices, given.sorted_indices + 1)
    assert replace_leaves(given, lambda leaf: leaf) is given


def test_leaves_come_in_order():
    first, second, third = (torch.tensor([k]) for k in range(3))
    leaves = leaves_of({"a": [first, "x"], "b": Pair(second, (third,))})
    assert len(leaves) == 3
    assert all(a is b for a, b in zip(leaves, (first, second, third), strict=True))


def _filled_edge_index():
    edge_index = EdgeIndex([[0, 1, 1], [1, 0, 2]], sparse_size=(3, 3), sort_order="row")
    return edge_index.fill_cache_()


DENSE = torch.tensor([[0.0, 2.0], [3.0, 0.0]])


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    ("make", "nbytes"),
    [
        pytest.param(lambda: DENSE, 16, id="strided"),
        pytest.param(lambda: DENSE.to_sparse_coo(), 4 * 8 + 2 * 4, id="coo"),
        pytest.param(lambda: DENSE.to_sparse_csr(), 3 * 8 + 2 * 8 + 2 * 4, id="csr"),
        pytest.param(lambda: DENSE.to_sparse_csc(), 3 * 8 + 2 * 8 + 2 * 4, id="csc"),
        pytest.param(lambda: torch.empty(0), 0, id="empty"),
    ],
)
def test_bytes_of_a_tensor_are_those_of_its_parts(make, nbytes):
    assert num_bytes(make()) == nbytes


def test_parts_of_an_edge_index_include_its_caches():
    edge_index = _filled_edge_index()
    pointers = {part.untyped_storage().data_ptr() for part in dense_parts(edge_index)}
    cached = [edge_index._data, edge_index._indptr, edge_index._T_perm, edge_index._T_index[0]]
    held = [tensor for tensor in cached if tensor is not None]
    assert len(held) >= 3
    assert {tensor.untyped_storage().data_ptr() for tensor in held} <= pointers
