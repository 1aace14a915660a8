"""Statistics: equal to the two-pass values however the rows are split into shards."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardgraph.errors import FormatError
from shardgraph.format import moments, statistics
from shardgraph.format.histogram import Histogram
from shardgraph.format.layout import STORAGE
from shardgraph.format.moments import ColumnStatistics
from shardgraph.format.schema import Attribute, Column, Schema, Store
from shardgraph.format.statistics import Statistics

MOMENTS = ("mean", "std", "min", "max")


def column(dtype="float64", row_shape=(), name="x", cat_dim=0):
    return Column(name=name, dtype=dtype, row_shape=row_shape, cat_dim=cat_dim)


def two_pass(rows):
    """Mean and population std, summed exactly."""
    table = rows.reshape(len(rows), -1).astype(np.float64)
    means, stds = [], []
    for feature in table.T:
        values = feature[~np.isnan(feature)].tolist()
        mean = math.fsum(values) / len(values)
        residuals = [value - mean for value in values]
        rest = math.fsum(residuals) / len(values)  # 1e15 + noise: the mean itself is rounded
        means.append(mean)
        stds.append(math.sqrt(math.fsum((r - rest) ** 2 for r in residuals) / len(values)))
    return np.array(means), np.array(stds)


def assert_equals_two_pass(found, rows):
    mean, std = two_pass(rows)
    assert (np.abs(found.mean - mean) <= 1e-12 * np.maximum(np.abs(mean), std)).all()
    np.testing.assert_allclose(found.std, std, rtol=1e-12, atol=0)
    table = rows.reshape(len(rows), -1)
    assert found.min.tolist() == np.nanmin(table, axis=0).tolist()
    assert found.max.tolist() == np.nanmax(table, axis=0).tolist()
    assert found.observed.tolist() == (~np.isnan(table)).sum(axis=0).tolist()
    assert found.count == rows.size
    assert found.nan == np.isnan(rows).sum()


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that a few hundred rows fill many of them, and rows are left over."""
    monkeypatch.setattr(moments, "BLOCK", 64)
    monkeypatch.setattr(statistics, "BLOCK", 64)
    monkeypatch.setattr(moments, "_WIDTH", 16)
    monkeypatch.setattr(moments, "_FAN_IN", 3)
    monkeypatch.setattr(statistics, "_RUN", 8)


# Columns


@pytest.mark.parametrize(
    ("dtype", "row_shape", "num_rows"),
    [
        ("float64", (), 1),
        ("float64", (), 70_001),
        ("float32", (3,), 40_003),
        ("float32", (2, 2), 20_000),
        ("float32", (256,), 301),
        ("float16", (5,), 1000),
        ("int8", (7,), 1000),
        ("int64", (2,), 33_333),
        ("uint32", (), 1000),
    ],
)
def test_column_equals_two_pass(dtype, row_shape, num_rows):
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(num_rows, *row_shape)) * 20 + 50).astype(dtype)
    found = ColumnStatistics.of(rows, column(dtype, row_shape))
    assert found.mean.shape == (math.prod(row_shape),)
    assert_equals_two_pass(found, rows)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1000),
    num_rows=st.integers(1, 400),
    features=st.integers(1, 5),
    offset=st.sampled_from([0.0, 1e8, -1e8, 1e15]),
    nan=st.sampled_from([0.0, 0.3]),
    cuts=st.lists(st.floats(0, 1), max_size=6),
)
def test_any_split_equals_two_pass(seed, num_rows, features, offset, nan, cuts):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(num_rows, features)) + offset
    rows[rng.random(rows.shape) < nan] = np.nan
    rows[0] = offset  # every feature has a value
    bounds = sorted({0, num_rows, *(int(cut * num_rows) for cut in cuts)})
    shards = [rows[:0], *(rows[a:b] for a, b in itertools.pairwise(bounds))]
    parts = [ColumnStatistics.of(shard, column(row_shape=(features,))) for shard in shards]
    one_by_one = parts[0]
    for part in parts[1:]:
        one_by_one = ColumnStatistics.merge(one_by_one, part)
    for found in (one_by_one, ColumnStatistics.merge(*parts)):
        assert_equals_two_pass(found, rows)


def test_shards_of_very_different_offsets_equal_two_pass():
    rng = np.random.default_rng(1)
    shards = [np.zeros(1), rng.normal(size=50_000) + 1e8, rng.normal(size=50_000) + 1e8 + 5]
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        parts = [ColumnStatistics.of(shards[i], column()) for i in order]
        found = ColumnStatistics.merge(ColumnStatistics.merge(parts[0], parts[1]), parts[2])
        assert_equals_two_pass(found, np.concatenate(shards))
        alone = ColumnStatistics.merge(*[p for p in parts if p.count > 1])
        assert_equals_two_pass(alone, np.concatenate(shards[1:]))


@pytest.mark.usefixtures("small_blocks")
def test_many_small_blocks_equal_two_pass():
    rows = np.random.default_rng(2).normal(size=(997, 3)) + 1e8
    rows[::7, 1] = np.nan
    assert_equals_two_pass(ColumnStatistics.of(rows, column(row_shape=(3,))), rows)


def test_a_constant_has_no_spread():
    rows = np.full((100_003, 2), [0.1, 1e8 / 3])
    half = ColumnStatistics.of(rows, column(row_shape=(2,)))
    found = ColumnStatistics.merge(half, half)
    assert found.mean.tolist() == [0.1, 1e8 / 3]
    assert found.std.tolist() == [0.0, 0.0]


def test_long_rows_and_varying_rows_count_as_one_feature():
    rows = np.arange(2 * 300.0).reshape(2, 300)
    for row_shape in ((300,), None):
        found = ColumnStatistics.of(rows, column(row_shape=row_shape))
        assert found.mean.tolist() == [299.5]
        assert found.std.tolist() == [rows.std()]
        assert (found.count, found.min.tolist(), found.max.tolist()) == (600, [0.0], [599.0])


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int64", [-(2**63), 2**63 - 1, 2**53 + 1]),
        ("int64", [2**53 + 1, 2**53 + 3, 2**53 + 1]),
        ("uint64", [2**64 - 1, 2**63 + 1, 2**64 - 3]),
    ],
)
def test_extremes_of_integers_are_exact(dtype, values):
    rows = np.array(values, dtype)
    parts = [ColumnStatistics.of(part, column(dtype)) for part in (rows[:1], rows[1:], rows[:0])]
    found = ColumnStatistics.from_json(
        json.loads(json.dumps(ColumnStatistics.merge(*parts).to_json()))
    )
    assert (found.min.tolist(), found.max.tolist()) == ([min(values)], [max(values)])
    assert found.min.dtype == dtype


@pytest.mark.parametrize("storage", ["uint8", "bool"])
def test_booleans_count_as_0_and_1(storage):
    found = ColumnStatistics.of(np.array([1, 0, 1, 1], storage), column("bool"))
    assert (found.mean.tolist(), found.std.tolist()) == ([0.75], [math.sqrt(0.1875)])
    assert (found.min.tolist(), found.max.tolist()) == ([0], [1])
    assert (found.min.dtype, found.nan, found.total.tolist()) == ("int64", 0, [3.0])


def test_bfloat16_is_read_from_its_bits():
    values = torch.tensor([[1.5, -2.0], [3.25, float("nan")]], dtype=torch.bfloat16)
    bits = values.view(torch.int16).numpy().view(np.uint16)
    found = ColumnStatistics.of(bits, column("bfloat16", (2,)))
    assert (found.mean.tolist(), found.std.tolist()) == ([2.375, -2.0], [0.875, 0.0])
    assert (found.min.tolist(), found.max.tolist()) == ([1.5, -2.0], [3.25, -2.0])
    assert (found.count, found.nan) == (4, 1)


def test_nan_are_left_out_and_counted():
    nan = np.nan
    rows = np.array([[1.0, nan, nan], [3.0, 5.0, nan]], np.float32)
    found = ColumnStatistics.of(rows, column("float32", (3,)))
    for name, expected in zip(
        MOMENTS, ([2.0, 5.0, nan], [1.0, 0.0, nan], [1.0, 5.0, nan], [3.0, 5.0, nan]), strict=True
    ):
        np.testing.assert_array_equal(getattr(found, name), expected)
    assert (found.count, found.nan, found.observed.tolist()) == (6, 3, [2, 1, 0])
    assert found.total.tolist() == [4.0, 5.0, 0.0]
    later = ColumnStatistics.of(np.array([[nan, nan, 7.0]], np.float32), column("float32", (3,)))
    both = ColumnStatistics.merge(found, later)
    assert (both.mean.tolist(), both.std.tolist()) == ([2.0, 5.0, 7.0], [1.0, 0.0, 0.0])
    assert both.nan == 5


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([1.0, math.inf], math.inf),
        ([-math.inf, 1.0, math.nan], -math.inf),
        ([math.inf, -math.inf, 2.0], math.nan),
        ([math.inf, math.inf], math.inf),
        ([1e308, 1e308, -1e308], 1e308 / 3),
    ],
)
def test_infinity_and_overflow_warn_of_nothing(values, mean):
    rows = np.array(values)
    split = [ColumnStatistics.of(rows[i : i + 1], column()) for i in range(len(rows))]
    for found in (ColumnStatistics.of(rows, column()), ColumnStatistics.merge(*split)):
        if math.isfinite(mean):
            assert math.isinf(found.mean[0]) or found.mean[0] == pytest.approx(mean)
        else:
            np.testing.assert_array_equal(found.mean, [mean])
            np.testing.assert_array_equal(found.std, [np.nan])
        assert found.min.tolist() == [np.nanmin(rows)]
        assert found.max.tolist() == [np.nanmax(rows)]
        assert ColumnStatistics.from_json(found.to_json()) == found


@pytest.mark.parametrize("row_shape", [(), (3,), (0,), None])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_no_rows(row_shape, dtype):
    rows = np.zeros((0, *(row_shape or ())), dtype)
    found = ColumnStatistics.of(rows, column(dtype, row_shape))
    features = 1 if row_shape is None else math.prod(row_shape)
    for name in MOMENTS:
        np.testing.assert_array_equal(getattr(found, name), np.full(features, np.nan))
    assert (found.count, found.nan, found.total.tolist()) == (0, 0, [0.0] * features)
    assert ColumnStatistics.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_rows_without_values():
    found = ColumnStatistics.of(np.zeros((5, 0), np.float32), column("float32", (0,)))
    assert (found.count, found.mean.tolist(), found.std.tolist()) == (0, [], [])


# Histograms


@settings(deadline=None, max_examples=60)
@given(
    data=st.lists(st.integers(0, 50) | st.integers(0, 10**6), min_size=1, max_size=60),
    cut=st.integers(0, 60),
    q=st.floats(0, 1),
)
def test_histogram_equals_the_expanded_data(data, cut, q):
    data = np.array(data, np.int64)
    whole = Histogram.of(data)
    assert Histogram.of(data[:cut]).merge(Histogram.of(data[cut:])) == whole
    assert np.repeat(whole.values, whole.counts).tolist() == sorted(data.tolist())
    assert (whole.total, whole.sum) == (len(data), data.sum())
    assert whole.mean == pytest.approx(data.mean(), rel=1e-15)
    assert whole.std == pytest.approx(data.std(), rel=1e-12)
    expected = torch.quantile(torch.from_numpy(data).double(), q).item()
    assert whole.quantile(q) == pytest.approx(expected, rel=1e-14, abs=1e-14)


def test_histogram_as_pna_degrees():
    deg = Histogram.of(np.array([2, 0, 2, 5])).dense()
    assert (deg.tolist(), deg.dtype) == ([1, 0, 2, 0, 0, 1], np.int64)


def test_histogram_of_a_huge_value_stays_small():
    huge = Histogram.of(np.array([2**62, 3]))
    assert (huge.values.tolist(), huge.counts.tolist()) == ([3, 2**62], [1, 1])


def test_empty_histogram():
    none = Histogram.of(np.zeros(0, np.int64))
    assert all(math.isnan(value) for value in (none.mean, none.std, none.quantile(0.5)))
    assert (none.total, none.dense().tolist()) == (0, [])
    assert none.merge(none) == none


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_quantile_refuses_what_is_no_probability(q):
    with pytest.raises(ValueError, match=r"q must be in \[0, 1\]"):
        Histogram.of(np.array([1])).quantile(q)


# Whole datasets


def leaf(name, dtype, row_shape, *, prefix="", kind="tensor", cat_dim=0):
    spec = Column(name=prefix + name, dtype=dtype, row_shape=row_shape, cat_dim=cat_dim)
    return Attribute(name=name, kind=kind, column=spec)


def homogeneous(*attributes):
    store = Store(key=None, attributes=attributes, counts_nodes=True)
    return Schema(data_class="torch_geometric.data.data:Data", is_hetero=False, stores=(store,))


EDGE_INDEX = leaf("edge_index", "int64", (2,), cat_dim=-1)


def of_graphs(schema, graphs):
    """Statistics of graphs given as dicts of rows by column name; "node" and "edge" are counts."""
    lengths = {a: np.array([g.get(a, 0) for g in graphs], np.int64) for a in schema.size_axes}
    arrays, rows = {}, {}
    for name, spec in schema.columns.items():
        shape = (-1, *(spec.row_shape or ()))
        parts = [np.asarray(g.get(name, []), "float64").reshape(shape) for g in graphs]
        none = np.zeros((0, *shape[1:]))
        arrays[name] = np.concatenate([none, *parts]).astype(STORAGE[spec.dtype])
        rows[name] = np.array([len(part) for part in parts], np.int64)
    return Statistics.of_shard(schema, arrays, lengths, rows)


def random_graphs(seed, count):
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        nodes, edges = int(rng.integers(0, 6)), int(rng.integers(0, 9))
        edges = edges if nodes else 0
        graphs.append(
            {
                "node": nodes,
                "edge": edges,
                "x": rng.normal(size=(nodes, 3)),
                "edge_index": rng.integers(0, max(nodes, 1), (edges, 2)),
                "y": rng.integers(0, 4, 1),
            }
        )
    return graphs


SCHEMA = homogeneous(leaf("x", "float32", (3,)), EDGE_INDEX, leaf("y", "int64", ()))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("bounds", [(0, 40), (0, 1, 2, 40), (0, 0, 13, 13, 29, 40)])
def test_dataset_of_shards_equals_direct_counts(bounds):
    graphs = random_graphs(3, 40)
    found = Statistics.empty()
    for a, b in itertools.pairwise(bounds):
        found = Statistics.merge(found, of_graphs(SCHEMA, graphs[a:b]))
    degrees = [np.bincount(g["edge_index"][:, 1], minlength=g["node"])[: g["node"]] for g in graphs]
    labels = sorted(int(g["y"][0]) for g in graphs)
    assert found.num_graphs == 40
    assert found.sizes == {
        axis: Histogram.of(np.array([g[axis] for g in graphs])) for axis in ("node", "edge")
    }
    assert found.in_degree == {"edge": Histogram.of(np.concatenate(degrees))}
    assert found.targets == {"edge": "node"}
    assert found.labels == {"y": {value: labels.count(value) for value in sorted(set(labels))}}
    assert list(found.columns) == ["x", "edge_index", "y"]
    assert_equals_two_pass(
        found.columns["x"], np.concatenate([g["x"] for g in graphs]).astype(np.float32)
    )
    text = json.dumps(found.to_json(), allow_nan=False)
    again = Statistics.from_json(json.loads(text))
    assert again == found
    assert json.dumps(again.to_json(), allow_nan=False) == text


@pytest.mark.usefixtures("small_blocks")
def test_ids_out_of_range_are_left_out_of_degrees():
    graphs = [
        {"node": 2, "edge": 4, "edge_index": [[0, 1], [0, -1], [0, 2], [0, 2**62]]},
        {"node": 3, "edge": 2, "edge_index": [[9, 2], [0, 2]]},
        {"node": 0, "edge": 1, "edge_index": [[0, 0]]},
    ]
    found = of_graphs(homogeneous(EDGE_INDEX), graphs)
    assert found.in_degree["edge"].dense().tolist() == [3, 1, 1]


def test_degrees_of_a_claimed_trillion_nodes_take_no_memory():
    found = of_graphs(
        homogeneous(EDGE_INDEX), [{"node": 10**12, "edge": 1, "edge_index": [[0, 10**12 - 1]]}]
    )
    assert found.in_degree["edge"].to_json() == {"values": [0, 1], "counts": [10**12 - 1, 1]}


def hetero(node_types, edge_types, *attributes):
    stores = [Store(key=None, attributes=attributes, counts_nodes=False)]
    for key in node_types:
        y = leaf("y", "float32", (), prefix=f"{key}/")
        stores.append(Store(key=key, attributes=(y,), counts_nodes=True))
    for key in edge_types:
        name = "__".join(key) + "/"
        index = leaf("edge_index", "int64", (2,), prefix=name, cat_dim=-1)
        y = leaf("y", "float32", (), prefix=name)
        stores.append(Store(key=key, attributes=(index, y), counts_nodes=False))
    return Schema(data_class="hetero:HeteroData", is_hetero=True, stores=tuple(stores))


def test_hetero_shard():
    schema = hetero(["a", "b"], [("a", "to", "b")], leaf("y", "int64", ()))
    graph = {
        "node/a": 2,
        "node/b": 3,
        "edge/a__to__b": 3,
        "y": [1],
        "a/y": [0.5, 0.5],
        "b/y": [np.nan, np.inf, 2.0],
        "a__to__b/edge_index": [[0, 2], [1, 2], [0, 0]],
        "a__to__b/y": [1.0, 2.0, 3.0],
    }
    found = of_graphs(schema, [graph])
    sizes = {axis: histogram.values.tolist() for axis, histogram in found.sizes.items()}
    assert sizes == {
        "node/a": [2],
        "node/b": [3],
        "edge/a__to__b": [3],
        "num_nodes": [5],
        "num_edges": [3],
    }
    assert found.labels == {"y": {1: 1}, "a/y": {0.5: 2}, "b/y": {2.0: 1}}
    degrees = {"target": "node/b", "values": [0, 1, 2], "counts": [1, 1, 1]}
    assert found.to_json()["in_degree"] == {"edge/a__to__b": degrees}


@pytest.mark.parametrize("late_first", [False, True])
def test_a_type_that_a_shard_lacks_counts_as_empty(late_first):
    early, late = hetero(["a"], []), hetero(["a", "b"], [("b", "to", "a")])
    without = [{"node/a": 2, "a/y": [1.0, 3.0]}, {"node/a": 1, "a/y": [2.0]}]
    edges = {"b__to__a/edge_index": [[0, 1], [0, 1]], "b__to__a/y": [1.0, 1.0]}
    having = [
        {"node/a": 2, "node/b": 1, "edge/b__to__a": 2, "a/y": [4.0, 5.0], "b/y": [1.0]} | edges
    ]
    parts = [of_graphs(early, without), of_graphs(late, having)]
    whole = of_graphs(late, without + having)
    if late_first:
        parts.reverse()
        whole = of_graphs(late, having + without)
    assert Statistics.merge(*parts) == whole
    assert whole.sizes["node/b"].dense().tolist() == [2, 1]
    assert whole.in_degree["edge/b__to__a"].dense().tolist() == [4, 0, 1]


def test_labels_over_the_cap_are_not_counted():
    schema = homogeneous(leaf("y", "float32", ()))
    shard = {value: of_graphs(schema, [{"y": np.arange(1000.0) + value}]) for value in (0, 1)}
    assert shard[0].labels == {"y": {float(value): 1 for value in range(1000)}}
    assert shard[0].merge(shard[0]).labels == {"y": {float(value): 2 for value in range(1000)}}
    over = shard[0].merge(shard[1])
    assert over.labels == {"y": None}
    assert over.merge(shard[0]).labels == shard[0].merge(over).labels == {"y": None}
    assert of_graphs(schema, [{"y": np.arange(1001.0)}]).labels == {"y": None}
    assert Statistics.from_json(json.loads(json.dumps(over.to_json()))) == over


def test_kinds_of_labels_keep_their_type():
    for dtype, kind in (("int64", int), ("uint8", int), ("bool", int), ("bfloat16", float)):
        found = of_graphs(homogeneous(leaf("y", dtype, (2,))), [{"y": [[1, 0], [1, 1]]}])
        again = Statistics.from_json(json.loads(json.dumps(found.to_json())))
        assert {type(value) for value in again.labels["y"]} == {kind}
        assert list(again.labels["y"].values()) == [1, 3]


def test_only_numbers_have_statistics():
    text = leaf("t", "uint8", (), kind="str")
    nested = Attribute(name="d", kind="dict", items=(leaf("n", "int64", (), kind="int"),))
    others = [leaf(dtype, dtype, ()) for dtype in ("complex64", "float8_e5m2")]
    schema = homogeneous(text, nested, *others, leaf("edge_index", "int64", (3,)))
    found = of_graphs(schema, [{"node": 1, "n": [4]}])
    assert list(found.columns) == ["n", "edge_index"]
    assert (found.labels, found.in_degree) == ({}, {})


def test_no_graphs():
    none = of_graphs(SCHEMA, [])
    assert none.columns["x"].count == 0
    assert none.labels == {"y": {}}
    assert none.in_degree["edge"].total == 0
    some = of_graphs(SCHEMA, random_graphs(4, 3))
    assert none.merge(some) == some == some.merge(none) == some.merge(Statistics.empty())
    assert Statistics.from_json(Statistics.empty().to_json()) == Statistics()


@pytest.mark.parametrize(
    ("path", "value", "error", "match"),
    [
        (("columns", "x", "mean"), [0.0], FormatError, "unequal lengths"),
        (("columns", "x", "mean"), ["nan", 0.0, 0.0], KeyError, "nan"),
        (("columns", "x", "mean"), [10**400, 0.0, 0.0], FormatError, "too large for float64"),
        (("columns", "x", "dtype"), "object", FormatError, "'object', not int64"),
        (("columns", "y", "min"), [2**63], FormatError, "too large for int64"),
        (("columns", "y", "observed"), [1.5], KeyError, "1.5"),
        (("columns", "y", "count"), "many", KeyError, "many"),
        (("sizes", "node", "counts"), [1], FormatError, "values with 1 counts"),
        (("sizes", "node", "values"), [-1, 2, 3, 4, 5, 6], FormatError, "must ascend from 0"),
        (("columns", "y", "count"), None, KeyError, "None"),
        (("columns", "y", "count"), 10**400, FormatError, "too large for int64"),
        (("columns", "y", "count"), 1, FormatError, "statistics of 1 values observe more"),
        (("columns", "y", "observed"), [-5], FormatError, "observe more, or fewer than 0"),
        (
            ("sizes", "node"),
            {"values": [1 << 62, -(1 << 62) - 1], "counts": [1, 1]},
            FormatError,
            "must ascend from 0",
        ),
        (("in_degree", "edge", "target"), ["node"], FormatError, r"must be text, got \['node'\]"),
        (("labels", "y"), [[10**400, 1]], FormatError, "too large for float64"),
        (("labels", "y"), [[1, "inf"]], KeyError, "inf"),
        (("labels", "y"), [["a", 1]], KeyError, "a"),
        (("labels", "y"), [[1, 2, 3]], ValueError, "length 3"),
    ],
)
def test_garbled_json_is_refused(path, value, error, match):
    doc = of_graphs(SCHEMA, random_graphs(5, 40)).to_json()
    target = doc
    for key in path[:-1]:
        target = target[key]
    assert path[-1] in target
    target[path[-1]] = value
    with pytest.raises(error, match=match):
        Statistics.from_json(doc)
