"""Graphs that do not fit are refused by name, and leave no trace."""

import enum
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import graph_cases as make
import numpy as np
import pytest
import torch
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Batch, Data, HeteroData, TemporalData

from shardgraph.collate import GraphEncoder
from shardgraph.errors import SchemaError


class Colour(enum.IntEnum):
    """An int that is more than an int."""

    RED = 1


class Point(NamedTuple):
    """A tuple that is more than a tuple."""

    x: Any


class Marked(torch.Tensor):
    """A tensor that is more than a tensor."""


def good(**changes: Any) -> Data:
    """A graph of the schema; a change to None takes one away, a function makes it."""
    values = {
        "x": torch.zeros(3, 2),
        "edge_index": torch.zeros(2, 4, dtype=torch.int64),
        "y": torch.zeros(1, 3),
        "scalar": torch.tensor(1.0),
        "count": 3,
        "ratio": 0.5,
        "flag": True,
        "name": "a",
        "words": ["a"],
        "parts": {"p": torch.zeros(2), "n": 1},
        "pieces": [torch.zeros(2, 2), torch.zeros(1)],
        "adj": torch.sparse_coo_tensor(torch.zeros(2, 1), torch.ones(1), (3, 3)).coalesce(),
        "place": Index([0, 1]),
    }
    values |= {name: value() if callable(value) else value for name, value in changes.items()}
    return Data(**{name: value for name, value in values.items() if value is not None})


@dataclass
class Refusal:
    """A change to a good graph, and what the error says beside graph and attribute."""

    id: str
    changes: dict[str, Any]
    attribute: str
    message: str


REFUSALS = [
    Refusal("missing", {"x": None}, "x", r"is missing; expected \['x', 'edge_index'"),
    Refusal("extra", {"z": 1}, "z", r"is not in the schema; expected \['x'"),
    Refusal("dtype", {"x": torch.zeros(3, 2).double()}, "x", "dtype float32, found dtype.*float64"),
    Refusal("row shape", {"x": torch.zeros(3, 3)}, "x", r"shape \[\*, 2\].*found shape \[3, 3\]"),
    Refusal("dimensions", {"x": torch.zeros(3)}, "x", r"shape \[\*, 2\].*found shape \[3\]"),
    Refusal(
        "last row shape",
        {"edge_index": torch.zeros(3, 4).long()},
        "edge_index",
        r"shape \[2, \*\].*found shape \[3, 4\]",
    ),
    Refusal("no rows", {"scalar": torch.zeros(1)}, "scalar", r"shape \[\], found shape \[1\]"),
    Refusal("number for tensor", {"y": 1}, "y", "a tensor of float32, found int"),
    Refusal("tensor for number", {"count": torch.tensor(1)}, "count", "int, found tensor"),
    Refusal("float for int", {"count": 1.0}, "count", "int, found float"),
    Refusal("bool for int", {"count": True}, "count", "int, found bool"),
    Refusal("int for bool", {"flag": 1}, "flag", "bool, found int"),
    Refusal("int for float", {"ratio": 1}, "ratio", "float, found int"),
    Refusal("too large", {"count": 2**63}, "count", f"an int of 64 bits, found {2**63}"),
    Refusal("list for text", {"name": ["a"]}, "name", "str, found json"),
    Refusal("text for list", {"words": "a"}, "words", "json, found str"),
    Refusal("keys", {"parts": {"p": torch.zeros(2)}}, "parts", r"\['p', 'n'\], found.*\['p'\]"),
    Refusal("inner", {"parts": {"p": torch.zeros(2, 1), "n": 1}}, "p", r"found shape \[2, 1\]"),
    Refusal("fewer", {"pieces": [torch.zeros(2, 2)]}, "pieces", r"\['0', '1'\], found.*\['0'\]"),
    Refusal("tuple", {"pieces": (torch.zeros(2, 2), torch.zeros(1))}, "pieces", "found tuple"),
    Refusal("dense", {"adj": torch.zeros(3, 3)}, "adj", "sparse_coo, found tensor"),
    Refusal(
        "layout",
        {"adj": lambda: torch.sparse_coo_tensor((3, 3)).to_sparse_csr()},
        "adj",
        "sparse_coo, found sparse_csr",
    ),
    Refusal("sparse", {"x": lambda: torch.sparse_coo_tensor((3, 2))}, "x", "found sparse_coo"),
    Refusal("plain", {"place": torch.zeros(2)}, "place", "index, found tensor"),
    Refusal("index dtype", {"place": Index([0, 1], dtype=torch.int32)}, "data", "int64, found"),
    Refusal(
        "EdgeIndex",
        {"edge_index": EdgeIndex([[0], [1]])},
        "edge_index",
        "a tensor of int64, found edge_index",
    ),
    Refusal("array", {"x": np.zeros((3, 2))}, "x", r"ndarray cannot be stored: use torch.from_num"),
    Refusal("NumPy number", {"ratio": np.float64(1)}, "ratio", r"float64 .*: use value\.item\(\)"),
    Refusal("tuple of text", {"words": ("a",)}, "words", "tuple cannot be stored: use a list"),
    Refusal("set", {"words": {"a"}}, "words", "set cannot be stored: use a list"),
    Refusal("bytes", {"name": b"a"}, "name", "bytes cannot be stored: store tensors, numbers"),
    Refusal("enum", {"count": Colour.RED}, "count", "Colour cannot be stored"),
    Refusal("named tuple", {"pieces": Point(torch.zeros(1))}, "pieces", "Point cannot be stored"),
    Refusal("OrderedDict", {"parts": OrderedDict(n=1)}, "parts", "OrderedDict.*: use a dict"),
    Refusal("keys of a dict", {"parts": {1: 2}}, "parts", "keys that are not text"),
    Refusal("dict in a list", {"words": [{1: 2}]}, "words", "list cannot be stored"),
    Refusal("tuple in a list", {"words": [("a",)]}, "words", "list cannot be stored"),
    Refusal("object", {"words": object()}, "words", "object cannot be stored"),
    Refusal(
        "subclass",
        {"x": torch.zeros(3, 2).as_subclass(Marked)},
        "x",
        r"Marked cannot be stored: use value\.as_subclass",
    ),
    Refusal("quantised", {"x": torch.zeros(3, 2).to_mkldnn()}, "x", "layout torch._mkldnn"),
]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.id)
def test_a_graph_that_does_not_fit_is_refused_by_name(case):
    encoder = GraphEncoder()
    first = encoder.encode(good(), 0)
    schema = encoder.schema
    with pytest.raises(SchemaError, match=rf"^graph 17: attribute '{case.attribute}'.*") as caught:
        encoder.encode(good(**case.changes), 17)
    assert caught.match(case.message)
    assert encoder.schema == schema
    assert encoder.encode(good(), 1) == first


def test_a_first_graph_that_cannot_be_stored_fixes_nothing():
    encoder = GraphEncoder()
    hetero = HeteroData(a={"x": torch.zeros(2)}, b={"x": np.zeros(2)})
    with pytest.raises(SchemaError, match=r"graph 0: attribute 'x' of type ndarray"):
        encoder.encode(hetero, 0)
    with pytest.raises(SchemaError, match=r"graph 0: attribute 'words' of type set"):
        encoder.encode(good(words=set()), 0)
    assert encoder.schema is None
    encoder.encode(Data(other=1), 0)
    assert [a.name for a in encoder.schema.stores[0].attributes] == ["other"]


def test_another_class_is_refused():
    encoder = GraphEncoder()
    encoder.encode(Data(y=1), 0)
    with pytest.raises(SchemaError, match=r"expected a torch_geo.*:Data, found a graph_cases:Pair"):
        encoder.encode(make.pair(np.random.default_rng(0)), 1)
    with pytest.raises(SchemaError, match=r"expected a torch_geo.*:Data, found a .*:HeteroData"):
        encoder.encode(HeteroData(), 1)
    with pytest.raises(TypeError, match="Data or HeteroData, got TemporalData"):
        encoder.encode(TemporalData(), 1)
    with pytest.raises(TypeError, match=r"got a Batch; write each of batch.to_data_list\(\)"):
        encoder.encode(Batch.from_data_list([Data(y=1)]), 1)
    with pytest.raises(TypeError, match="Data or HeteroData, got dict"):
        encoder.encode({}, 1)
    encoder.encode(Data(y=1), 1)


# Rules of a class --------------------------------------------------------------------------------


class Fickle(Data):
    """Its rules are what its graphs say."""

    def __cat_dim__(self, key, value, *args, **kwargs):
        return self.dim if key in {"t", "adj"} else super().__cat_dim__(key, value, *args, **kwargs)

    def __inc__(self, key, value, *args, **kwargs):
        return self.inc if key == "t" else super().__inc__(key, value, *args, **kwargs)


def fickle(*, dim: Any = 0, inc: Any = 0, **more: Any) -> Fickle:
    data = Fickle(t=torch.zeros(2, 2), num_nodes=1, **more)
    data.__dict__.update(dim=dim, inc=inc)
    return data


def test_the_dimension_that_is_joined_must_not_change():
    encoder = GraphEncoder()
    encoder.encode(fickle(), 0)
    with pytest.raises(SchemaError, match=r"graph 1: attribute 't': expected __cat_dim__ 0, found"):
        encoder.encode(fickle(dim=1), 1)
    with pytest.raises(SchemaError, match=r"graph 1: attribute 't': expected __cat_dim__ 0, found"):
        encoder.encode(fickle(dim=None), 1)
    for dim, what in ((2, "names dimension 2"), ((0, 1), r"gave \(0, 1\) for a dense tensor")):
        with pytest.raises(SchemaError, match=f"graph 0: attribute 't'.*{what}"):
            GraphEncoder().encode(fickle(dim=dim), 0)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_the_dimensions_of_a_sparse_tensor_must_not_change():
    encoder = GraphEncoder()
    adj = torch.sparse_coo_tensor((2, 2))
    encoder.encode(fickle(adj=adj), 0)
    bad = fickle(adj=adj, dim=(0, 1))
    bad.t = torch.zeros(2, 2)
    with pytest.raises(SchemaError, match=r"graph 1: attribute '(t|adj)': expected __cat_dim__ 0"):
        encoder.encode(bad, 1)


def test_the_shape_of_an_increment_must_not_change():
    encoder = GraphEncoder()
    encoder.encode(fickle(inc=torch.tensor([1, 2])), 0)
    with pytest.raises(
        SchemaError, match=r"attribute 't': expected __inc__ of shape \(2,\), found"
    ):
        encoder.encode(fickle(inc=1), 1)


@pytest.mark.parametrize(
    "inc", [0.5, True, torch.tensor(0.5), torch.tensor(1).int(), None, "1", np.array([0.5])]
)
def test_an_increment_must_be_an_integer_of_64_bits(inc):
    with pytest.raises(SchemaError, match="attribute 't': __inc__ must give an int or an int64 "):
        GraphEncoder().encode(fickle(inc=inc), 0)


@pytest.mark.parametrize("inc", [3, -1, np.int64(3), torch.tensor(3), np.array(3)])
def test_an_increment_may_be_any_integer(inc):
    record = GraphEncoder().encode(fickle(inc=inc), 0)
    assert record.cells["t"].inc == int(inc)


def test_an_increment_is_copied():
    inc = torch.tensor([1, 2])
    record = GraphEncoder().encode(fickle(inc=inc), 0)
    inc.zero_()
    assert record.cells["t"].inc.tolist() == [1, 2]


def test_an_error_inside_a_rule_passes_and_leaves_no_trace():
    encoder = GraphEncoder()
    with pytest.raises(AttributeError, match="object has no attribute 'x_t'"):
        encoder.encode(make.BipartiteData(torch.zeros(2, 1).long(), torch.zeros(2, 1)), 0)
    assert encoder.schema is None


def test_an_index_is_asked_about_as_itself():
    class Grouped(Data):
        pass  # not PyG's own class, so that the encoder must ask

    data = Grouped(my_batch=Index([0, 1], dim_size=9), num_nodes=2)
    Grouped.__inc__ = lambda self, key, value, *args: Data.__inc__(self, key, value, *args)
    record = GraphEncoder().encode(data, 0)
    assert record.cells["my_batch/data"].inc == 9


# Types -------------------------------------------------------------------------------------------


def typed(**stores: Any) -> HeteroData:
    return HeteroData({key: dict(value) for key, value in stores.items()})


def test_a_type_with_no_empty_form_must_be_everywhere():
    with_text = typed(a={"x": torch.zeros(2, 1)}, b={"x": torch.zeros(1, 1), "name": "b"})
    without = typed(a={"x": torch.zeros(2, 1)})
    encoder = GraphEncoder()
    encoder.encode(with_text, 0)
    with pytest.raises(
        SchemaError, match=r"graph 1: it lacks the type 'b', whose attribute 'name'"
    ):
        encoder.encode(without, 1)
    encoder = GraphEncoder()
    encoder.encode(without, 0)
    schema = encoder.schema
    with pytest.raises(
        SchemaError, match=r"graph 1: the graphs before it lack the type 'b', whose"
    ):
        encoder.encode(with_text, 1)
    assert encoder.schema == schema
    encoder.encode(typed(a={"x": torch.zeros(2, 1)}, b={"x": torch.zeros(1, 1)}), 1)


@pytest.mark.parametrize("value", [1, torch.tensor(1.0), {"t": torch.zeros(1)}])
def test_numbers_and_values_of_parts_have_no_empty_form(value):
    encoder = GraphEncoder()
    encoder.encode(typed(a={"num_nodes": 1}), 0)
    with pytest.raises(
        SchemaError, match="lack the type 'b', whose attribute 'v' has no empty form"
    ):
        encoder.encode(typed(a={"num_nodes": 1}, b={"num_nodes": 1, "v": value}), 1)


def test_schemas_of_two_parts_of_a_dataset_agree_on_what_may_lack():
    plain, more, text = GraphEncoder(), GraphEncoder(), GraphEncoder()
    plain.encode(typed(a={"num_nodes": 1}), 0)
    more.encode(typed(a={"num_nodes": 1}, b={"x": torch.zeros(1, 1)}), 0)
    text.encode(typed(a={"num_nodes": 1}, b={"name": "b"}), 0)
    keys = [store.key for store in plain.schema.merged(more.schema).stores]
    assert keys == [store.key for store in more.schema.merged(plain.schema).stores]
    for one, other in ((plain, text), (text, plain)):
        with pytest.raises(SchemaError, match="some graphs lack the type 'b', whose attribute 'na"):
            one.schema.merged(other.schema)
    assert text.schema.merged(text.schema) == text.schema


@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")
def test_edges_need_nodes_that_are_counted():
    data = typed(a={"x": torch.zeros(2, 1)}, b={"note": torch.zeros(2)})
    data["a", "to", "b"].edge_attr = torch.zeros(3)
    with pytest.raises(SchemaError, match=r"3 edges, but node type 'b' has no known number of nod"):
        GraphEncoder().encode(data, 0)


def test_a_number_of_nodes_must_be_an_int():
    for value in (torch.tensor(3), np.int64(3), -1, 2.0, 2**63):
        with pytest.raises(SchemaError, match="'num_nodes': expected a non-negative int of 64 b"):
            GraphEncoder().encode(Data(num_nodes=value), 0)
    data = HeteroData()
    data.num_nodes = 3
    with pytest.raises(SchemaError, match="num_nodes of a HeteroData belongs to a node type"):
        GraphEncoder().encode(data, 0)


def test_a_0d_tensor_with_edge_in_its_name_counts_no_edges():
    with pytest.raises(IndexError, match="Dimension specified as 0 but tensor has no dimensions"):
        _ = Data(num_nodes=1, edge_count=torch.tensor(3)).num_edges
    record = GraphEncoder().encode(Data(num_nodes=1, edge_count=torch.tensor(3)), 0)
    assert record.sizes == {"node": 1, "edge": 0}


def test_nothing_warns_where_nothing_could_tell_a_number_of_nodes():
    record = GraphEncoder().encode(Data(y=1), 0)
    assert record.sizes == {"node": 0, "edge": 0}
    record = GraphEncoder().encode(Data(feat=torch.zeros(4, 1)), 0)
    assert record.sizes == {"node": 4, "edge": 0}
    with pytest.warns(UserWarning, match="Unable to accurately infer 'num_nodes'"):
        record = GraphEncoder().encode(Data(edge_index=torch.tensor([[0], [6]])), 0)
    assert record.sizes == {"node": 7, "edge": 1}
