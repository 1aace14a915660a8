"""Names, sizes and the schema: text to and from, and what does not fit."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardgraph.errors import FormatError, SchemaError
from shardgraph.format.layout import INTEGERS, STORAGE, narrowest, parse_size, quote
from shardgraph.format.schema import Attribute, Column, Schema, Store, canonical, edge_axis

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.text(
    "._/%_a", max_size=6
)


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("x", "x"),
        ("", "%"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("...", "..."),
        (".x", ".x"),
        ("a/b", "a%2Fb"),
        ("%", "%25"),
        ("a__b", "a%5F%5Fb"),
        ("___", "%5F%5F_"),
        ("_a_", "_a_"),
        ("a\0b", "a%00b"),
        ("größe 1", "größe 1"),
    ],
)
def test_quote(name: str, quoted: str) -> None:
    assert quote(name) == quoted


@given(NAMES, NAMES)
def test_quoted_names_are_different_and_fit_hdf5(a: str, b: str) -> None:
    text = quote(a)
    assert text
    assert text not in {".", ".."}
    assert not {"/", "\0"} & set(text)
    assert "__" not in text
    assert (quote(b) == text) == (a == b)


@pytest.mark.parametrize(
    ("key", "axis"),
    [
        (("user", "buys", "item"), "edge/user__buys__item"),
        (("a_", "b", "_c"), "edge/a%5F__b__%5Fc"),
        (("a__b", "", "c/d"), "edge/a%5F%5Fb__%__c%2Fd"),
        (("_", "_", "_"), "edge/%5F__%5F__%5F"),
    ],
)
def test_edge_axis(key: tuple[str, str, str], axis: str) -> None:
    assert edge_axis(key) == axis


@given(st.tuples(NAMES, NAMES, NAMES), st.tuples(NAMES, NAMES, NAMES))
def test_edge_axes_are_different(a: tuple[str, str, str], b: tuple[str, str, str]) -> None:
    assert (edge_axis(a) == edge_axis(b)) == (a == b)
    assert edge_axis(a).removeprefix("edge/").count("__") == 2
    assert "/" not in edge_axis(a).removeprefix("edge/")


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [
        ("128MB", 128_000_000),
        ("1.5 GiB", 3 << 29),
        ("2kb", 2000),
        ("1KiB", 1024),
        ("7", 7),
        ("7 b", 7),
        (9, 9),
        ("0.001TB", 10**9),
    ],
)
def test_parse_size(size: str | int, nbytes: int) -> None:
    assert parse_size(size) == nbytes


@pytest.mark.parametrize("size", [1e8, None])
def test_a_size_is_text_or_a_whole_number(size: object) -> None:
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        parse_size(size)  # type: ignore[arg-type]
    assert parse_size(np.int64(5)) == 5


@pytest.mark.parametrize("size", ["", "MB", "1 XB", "-1", "1e3", "nan", "1,5MB"])
def test_what_is_no_size(size: str) -> None:
    with pytest.raises(ValueError, match="write for example '128MB' or '1GiB'"):
        parse_size(size)


@pytest.mark.parametrize("size", [0, -5, "0", "0.1"])
def test_sizes_are_positive(size: str | int) -> None:
    with pytest.raises(ValueError, match="a size must be positive, got"):
        parse_size(size)


@pytest.mark.parametrize(
    ("low", "high", "logical", "stored"),
    [
        (0, 255, "int64", "uint8"),
        (0, 256, "int64", "uint16"),
        (-1, 127, "int64", "int8"),
        (-1, 128, "int64", "int16"),
        (0, 65536, "int64", "uint32"),
        (-(1 << 31), 0, "int64", "int32"),
        (0, 1 << 32, "int64", "int64"),
        (-(1 << 63), (1 << 63) - 1, "int64", "int64"),
        (0, (1 << 64) - 1, "uint64", "uint64"),
        (0, 1 << 63, "uint64", "uint64"),
        (0, 127, "int8", "uint8"),
        (-5, 5, "int8", "int8"),
        (0, 300, "int16", "uint16"),
        (0, 300, "uint16", "uint16"),
    ],
)
def test_narrowest(low: int, high: int, logical: str, stored: str) -> None:
    assert narrowest(low, high, logical) == stored


@given(st.sampled_from(sorted(INTEGERS)), st.data())
def test_narrowest_is_lossless(logical: str, data: st.DataObject) -> None:
    info = np.iinfo(logical)
    ends = st.integers(int(info.min), int(info.max))
    low, high = sorted([data.draw(ends), data.draw(ends)])
    stored = np.dtype(narrowest(low, high, logical))
    values = np.array([low, high], logical)
    assert values.astype(stored).astype(logical).tolist() == [low, high]
    assert stored.itemsize <= np.dtype(logical).itemsize


# Schema ------------------------------------------------------------------------------------------


def column(name: str, dtype: str = "float32", **more: Any) -> Column:
    return Column(name=name, dtype=dtype, row_shape=more.pop("row_shape", ()), **more)


def leaf(name: str, path: str, kind: str = "tensor", **more: Any) -> Attribute:
    return Attribute(name=name, kind=kind, column=column(path, **more))


INDEX = {"dtype": "int64", "row_shape": (2,), "cat_dim": -1, "inc_shape": (2, 1)}
USER = Store(key="user", attributes=(leaf("x", "node/user/x"),), counts_nodes=True)
ITEM = Store(
    key="item",
    attributes=(Attribute(name="num_nodes", kind="num_nodes"),),
    counts_nodes=True,
)
BUYS_KEY = ("user", "buys", "item")
BUYS = Store(
    key=BUYS_KEY,
    attributes=(leaf("edge_index", "edge/user__buys__item/edge_index", **INDEX),),
    counts_nodes=False,
)
GLOBAL = Store(
    key=None,
    attributes=(
        leaf("y", "graph/y", kind="float", dtype="float64", cat_dim=None, per_graph=True),
        Attribute(
            name="parts",
            kind="dict",
            items=(
                leaf("v", "graph/parts/v", row_shape=None),
                Attribute(name="none", kind="list"),
            ),
        ),
        Attribute(
            name="a",
            kind="sparse_csr",
            items=tuple(
                leaf(part, f"graph/a/{part}", dtype="int64")
                for part in ("crow_indices", "col_indices", "values", "size")
            ),
            cat_dim=(0, 1),
        ),
    ),
    counts_nodes=False,
)
HETERO = "torch_geometric.data.hetero_data:HeteroData"
SCHEMA = Schema(data_class=HETERO, is_hetero=True, stores=(GLOBAL, USER, ITEM, BUYS))


def test_json_round_trip() -> None:
    text = json.dumps(SCHEMA.to_json())
    assert Schema.from_json(json.loads(text)) == SCHEMA


def test_axes_and_columns() -> None:
    assert SCHEMA.size_axes == ("node/user", "node/item", "edge/user__buys__item")
    assert SCHEMA.node_stores == (USER, ITEM)
    assert SCHEMA.edge_stores == (BUYS,)
    assert BUYS.endpoint_axes == ("node/user", "node/item")
    assert USER.endpoint_axes == GLOBAL.endpoint_axes == ()
    assert list(SCHEMA.columns) == [
        *("graph/y", "graph/parts/v"),
        *(f"graph/a/{part}" for part in ("crow_indices", "col_indices", "values", "size")),
        *("node/user/x", "edge/user__buys__item/edge_index"),
    ]
    assert SCHEMA.store(BUYS_KEY) is BUYS
    assert SCHEMA.store("nobody") is None


def test_recorded() -> None:
    assert column("v", row_shape=None, cat_dim=None).recorded() == {
        "dtype": "float32",
        "row_shape": "varies",
        "cat_dim": "None",
    }
    assert next(BUYS.attributes[0].columns()).recorded() == {
        "dtype": "int64",
        "row_shape": "[2]",
        "cat_dim": "-1",
    }


def test_canonical_order() -> None:
    assert canonical((BUYS, USER, GLOBAL, ITEM)) == (GLOBAL, USER, ITEM, BUYS)


def test_merged_adds_types() -> None:
    first = Schema(data_class=HETERO, is_hetero=True, stores=(GLOBAL, USER))
    second = Schema(data_class=HETERO, is_hetero=True, stores=(USER, ITEM, BUYS))
    assert first.merged(second) == SCHEMA
    assert first.merged(first) is first
    assert second.merged(first) == SCHEMA


def test_merged_refuses_what_differs() -> None:
    other = Store(key="user", attributes=(leaf("z", "node/user/z"),), counts_nodes=False)
    with pytest.raises(SchemaError, match="the store 'user' has other attributes"):
        SCHEMA.merged(Schema(data_class=HETERO, is_hetero=True, stores=(other,)))
    with pytest.raises(SchemaError, match=r"class 'm:C' where .* was expected"):
        SCHEMA.merged(Schema(data_class="m:C", is_hetero=True, stores=()))


def test_select() -> None:
    found = SCHEMA.select(frozenset({"edge_index"}))
    count = Attribute(name="num_nodes", kind="num_nodes")
    user = Store(key="user", attributes=(count,), counts_nodes=True)
    empty = Store(key=None, attributes=(), counts_nodes=False)
    assert found == Schema(data_class=HETERO, is_hetero=True, stores=(empty, user, ITEM, BUYS))
    assert found.size_axes == SCHEMA.size_axes
    assert SCHEMA.select(None) is SCHEMA
    assert SCHEMA.select(frozenset({"x", "y", "parts", "a", "edge_index"})) == SCHEMA
    with pytest.raises(ValueError, match=r"no attribute \['z'\]; the dataset has \['a', 'edge_in"):
        SCHEMA.select(frozenset({"x", "z"}))


def test_a_column_belongs_to_one_attribute() -> None:
    twice = Store(key="user", attributes=(leaf("x", "c"), leaf("z", "c")), counts_nodes=False)
    with pytest.raises(SchemaError, match="two attributes would share the column 'c'"):
        Schema(data_class=HETERO, is_hetero=True, stores=(twice,))


def test_every_dtype_has_a_place_on_disk() -> None:
    for dtype, stored in STORAGE.items():
        assert column("x", dtype).dtype == dtype
        assert np.dtype(stored).kind in "iuf"
    with pytest.raises(FormatError, match="column 'x' has unknown dtype 'quint8'"):
        column("x", "quint8")
