"""Hypothesis strategies: whole datasets of random graphs of every representable kind."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from graph_cases import DTYPES, random_edges, random_tensor
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Data, HeteroData


class Scene(NamedTuple):
    """The graph whose values are being made: its numbers of nodes and edges."""

    rng: np.random.Generator
    n: int
    e: int


Make: TypeAlias = Callable[[Scene], Any]

TRAILING = st.sampled_from([(), (1,), (3,), (2, 2), (0,)])
ROWS: dict[str, Make] = {
    "node": lambda scene: scene.n,
    "edge": lambda scene: scene.e,
    "graph": lambda _: 1,
    "own": lambda scene: int(scene.rng.integers(0, 4)),
}
INCREMENTED = [
    torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
]  # fmt: skip
TEXTS = ["", "plain", "grüße", "a\0b", "\udc80", "x" * 300]


@dataclass
class Case:
    """A dataset, how to write it and how to batch it."""

    graphs: list[Any]
    shard_size: int
    follow_batch: list[str] = field(default_factory=list)
    exclude_keys: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    """Of the graphs of a batch, repeats allowed."""
    complete: list[Any] = field(default_factory=list)
    """What the graphs read back as: with empty stores for the types that they lack."""

    def __repr__(self) -> str:
        return (
            f"Case({self.graphs}, shard_size={self.shard_size}, follow_batch={self.follow_batch}, "
            f"exclude_keys={self.exclude_keys}, ids={self.ids})"
        )


@st.composite
def dense(draw: st.DrawFn, name: str) -> Make:
    """A dense tensor; ``name`` decides along which dimension its rows run."""
    joins_last = "index" in name
    dtype = draw(st.sampled_from(INCREMENTED if joins_last else DTYPES))
    kind = draw(st.sampled_from([*ROWS, "scalar"]))
    trailing = draw(TRAILING)

    def make(scene: Scene) -> Tensor:
        if kind == "scalar":
            return random_tensor(scene.rng, dtype, ())
        rows = ROWS[kind](scene)
        shape = (*trailing, rows) if joins_last else (rows, *trailing)
        return random_tensor(scene.rng, dtype, shape)

    return make


@st.composite
def batch_like(draw: st.DrawFn) -> Make:
    """A tensor with "batch" in its name, incremented by its maximum."""
    dtype = draw(st.sampled_from([torch.int64, torch.int32]))
    return lambda scene: torch.from_numpy(scene.rng.integers(0, 4, 1 + scene.n)).to(dtype)


@st.composite
def numbers(draw: st.DrawFn, name: str) -> Make:
    kind = draw(st.sampled_from(["int", "float", "bool"]))
    if kind == "float":
        return lambda scene: float(scene.rng.choice([0.5, -0.0, np.inf, np.nan, 1e-300, scene.n]))
    if kind == "bool" and "index" not in name:
        return lambda scene: bool(scene.rng.integers(0, 2))
    return lambda scene: int(scene.rng.choice([0, -1, 2**62, -(2**63), scene.e]))


@st.composite
def documents(draw: st.DrawFn) -> Make:
    text, kind = draw(st.sampled_from(TEXTS)), draw(st.sampled_from(["str", "words", "json"]))
    if kind == "str":
        return lambda scene: text * (scene.n % 3)
    if kind == "words":
        return lambda scene: [text] * scene.n
    return lambda scene: [scene.n, -0.5, None, True, {"k": [text, {}]}, []]


@st.composite
def composed(draw: st.DrawFn, name: str) -> Make:
    """A dict, list or tuple of dense tensors and, in a dict, of other things."""
    kind = draw(st.sampled_from(["dict", "list", "tuple", "list of dict"]))
    names = draw(st.lists(st.sampled_from(["p", "q_index", "a/b", "."]), min_size=1, unique=True))
    if kind == "dict":
        makers = {key: draw(st.one_of(dense(key), documents(), numbers(key))) for key in names}
        return lambda scene: {key: make(scene) for key, make in makers.items()}
    parts = [draw(dense("t" if kind == "list of dict" else name)) for _ in names]
    if kind == "list of dict":
        return lambda scene: [{"t": make(scene)} for make in parts]
    convert = list if kind == "list" else tuple
    return lambda scene: convert(make(scene) for make in parts)


@st.composite
def sparse(draw: st.DrawFn) -> Make:
    layout, coalesced = draw(st.sampled_from(["coo", "csr", "csc"])), draw(st.booleans())
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.int64]))

    def make(scene: Scene) -> Tensor:
        edges = random_edges(scene.rng, scene.n, scene.e if scene.n else 0)
        ones = torch.from_numpy(scene.rng.integers(1, 9, edges.size(1))).to(dtype)
        value = torch.sparse_coo_tensor(edges, ones, (scene.n, scene.n))
        if layout == "coo":
            return value.coalesce() if coalesced else value
        return value.to_sparse_csr() if layout == "csr" else value.to_sparse_csc()

    return make


@st.composite
def indexed(draw: st.DrawFn, name: str) -> Make:
    """An EdgeIndex where the name says so, else an Index."""
    dtype = draw(st.sampled_from([torch.int64, torch.int32]))
    order = draw(st.sampled_from([None, "row", "col"]))
    known, undirected = draw(st.booleans()), draw(st.booleans())

    def make(scene: Scene) -> Tensor:
        if name != "edge_index":  # two at least: PyG cannot batch a sorted Index of one
            place = random_edges(scene.rng, scene.n, scene.e + 2)[0].to(dtype)
            place = place.sort().values if order else place
            size = max(scene.n, 1) if known else None
            return Index(place, dim_size=size, is_sorted=order is not None)
        edges = random_edges(scene.rng, scene.n, scene.e if scene.n else 0).to(dtype)
        if undirected:
            edges = torch.cat([edges, edges.flip(0)], dim=1)
        if order is not None:
            edges = edges[:, edges[0 if order == "row" else 1].argsort(stable=True)]
        size = (scene.n, scene.n) if known else (None, None)
        return EdgeIndex(edges, sparse_size=size, sort_order=order, is_undirected=undirected)

    return make


@st.composite
def attributes(draw: st.DrawFn) -> dict[str, Make]:
    """Attributes of a ``Data``, in order; the number of nodes can always be told."""
    made: dict[str, Make] = {}
    if draw(st.booleans()):
        made["num_nodes"] = lambda scene: scene.n
    else:
        dtype = draw(st.sampled_from(DTYPES))
        made["x"] = lambda scene: random_tensor(scene.rng, dtype, (scene.n, 2))
    edges = draw(st.sampled_from(["tensor", "EdgeIndex", "none"]))
    if edges == "tensor":
        made["edge_index"] = lambda scene: random_edges(scene.rng, scene.n, scene.e)
    elif edges == "EdgeIndex":
        made["edge_index"] = draw(indexed("edge_index"))
    for place in range(draw(st.integers(0, 5))):
        name = draw(st.sampled_from(["a", "b_index", "edge", "face", "__c", "d/e"])) + str(place)
        kind = draw(st.sampled_from(["dense", "dense", "number", "document", "composed", "rare"]))
        if kind == "dense":
            made[name] = draw(dense(name))
        elif kind == "number":
            made[name] = draw(numbers(name))
        elif kind == "document":
            made[name] = draw(documents())
        elif kind == "composed":
            made[name] = draw(composed(name))
        elif draw(st.booleans()):
            made[f"adj{place}"] = draw(sparse())
        elif draw(st.booleans()):
            made[f"batch{place}"] = draw(batch_like())
        else:
            made[f"place{place}"] = draw(indexed(f"place{place}"))
    order = draw(st.permutations(list(made)))
    return {name: made[name] for name in order}


@st.composite
def cases(draw: st.DrawFn, graphs: st.SearchStrategy[list[Any]]) -> Case:
    made = draw(graphs)
    names = sorted({key for store in made[0].stores for key in store})
    some = st.lists(st.sampled_from([*names, "unknown"]), max_size=3, unique=True)
    return Case(
        graphs=made,
        shard_size=draw(st.sampled_from([1, 100, 400, 10**6])),
        follow_batch=draw(some),
        exclude_keys=draw(st.one_of(st.just([]), some)),
        ids=draw(st.lists(st.integers(0, len(made) - 1), min_size=1, max_size=6)),
    )


@st.composite
def homogeneous_graphs(draw: st.DrawFn) -> list[Data]:
    makers = draw(attributes())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), min_size=1, max_size=6))
    graphs = []
    for n, e in sizes:
        data = Data()
        for name, make in makers.items():
            data[name] = make(Scene(rng, n, e if n else 0))
        graphs.append(data)
    return graphs


HETERO_TYPES = ["a", "b/c", "d__e"]


@st.composite
def typed_plan(draw: st.DrawFn) -> dict[Any, dict[str, Make]]:
    """Attributes of node and edge types; the last node type is in every graph."""
    plan: dict[Any, dict[str, Make]] = {}
    types = draw(st.permutations(HETERO_TYPES).map(lambda order: order[:2]))
    for key in types:
        if draw(st.booleans()):
            plan[key] = {"num_nodes": lambda scene: scene.n}
        else:
            plan[key] = {"x": lambda scene: random_tensor(scene.rng, torch.float32, (scene.n, 2))}
        for place in range(draw(st.integers(0, 2))):
            plan[key][f"t{place}"] = draw(rows(f"t{place}", "node"))
    for source, target in draw(
        st.lists(st.tuples(*[st.sampled_from(types)] * 2), max_size=3, unique=True)
    ):
        edges: dict[str, Make] = {
            "edge_index": lambda scene: random_edges(scene.rng, scene.n, scene.e)
        }
        for name in draw(st.lists(st.sampled_from(["w", "own_index"]), unique=True)):
            edges[name] = draw(rows(name, "edge"))
        plan[source, "to", target] = edges
    plan[types[-1]]["note"] = draw(documents())
    plan[types[-1]]["z"] = draw(numbers("z"))
    return plan


@st.composite
def rows(draw: st.DrawFn, name: str, axis: str) -> Make:
    """A tensor of the rows of an axis, which has an empty form."""
    dtype = draw(st.sampled_from([torch.int64, torch.int32] if "index" in name else DTYPES))
    trailing = (2,) if "index" in name else draw(TRAILING)

    def make(scene: Scene) -> Tensor:
        count = scene.n if axis == "node" else scene.e
        if "index" in name:
            return torch.from_numpy(scene.rng.integers(0, 9, (*trailing, count))).to(dtype)
        return random_tensor(scene.rng, dtype, (count, *trailing))

    return make


@st.composite
def typed_graphs(draw: st.DrawFn) -> list[HeteroData]:
    """Graphs of which each may lack some node and edge types."""
    plan = draw(typed_plan())
    top = draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    always = [key for key, makers in plan.items() if "note" in makers]
    graphs = []
    for _ in range(draw(st.integers(1, 5))):
        lacking = draw(st.sets(st.sampled_from(list(plan)), max_size=2)) - set(always)
        data = HeteroData()
        if top:
            data.y = random_tensor(rng, torch.float32, (1, 2))
            data.title = "t" * int(rng.integers(0, 3))
        sizes = {key: int(rng.integers(0, 5)) for key in plan if isinstance(key, str)}
        for key, makers in plan.items():
            ends = {key[0], key[2]} if isinstance(key, tuple) else {key}
            if (ends | {key}) & lacking:
                continue
            n, e = min(sizes[end] for end in ends), int(rng.integers(0, 6))
            for name, make in makers.items():
                data[key][name] = make(Scene(rng, n, e if n else 0))
        graphs.append(data)
    return graphs


def complete(graphs: list[HeteroData]) -> list[HeteroData]:
    """The graphs with an empty store for each type that others have, in the order met."""
    examples: dict[Any, Any] = {}
    for data in graphs:
        for store in data.stores:
            if store._key is not None and len(store):
                examples.setdefault(store._key, store)
    keys = sorted(examples, key=lambda key: isinstance(key, tuple))
    out = []
    for data in graphs:
        full = type(data)()
        for name, value in data._global_store.items():
            full[name] = value
        present = {store._key: store for store in data.stores if len(store)}
        for key in keys:
            for name, value in examples[key].items():
                full[key][name] = present[key][name] if key in present else _empty(name, value)
        out.append(full)
    return out


def _empty(name: str, value: Any) -> Any:
    if name == "num_nodes":
        return 0
    return value.narrow(-1 if "index" in name else 0, 0, 0)
