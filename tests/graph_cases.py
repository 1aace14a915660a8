"""Graphs of every representable kind, and classes with rules of their own."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Data, HeteroData

DTYPES = [
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
        *("complex64", "complex128"),
    )
    if hasattr(torch, name)
]


def random_tensor(rng: np.random.Generator, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor of random bits: floats hold NaN, infinities and denormals, integers extremes."""
    if dtype is torch.bool:
        return torch.from_numpy(rng.integers(0, 2, shape).astype(bool))
    itemsize = torch.empty(0, dtype=dtype).element_size()
    raw = rng.integers(0, 256, (*shape, itemsize), dtype=np.uint8)
    if not dtype.is_floating_point and not dtype.is_complex and rng.random() < 0.5:
        raw[..., 1:] = 0  # small numbers, which are stored narrow
    if raw.size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(raw.reshape(-1).copy()).view(dtype).reshape(shape)


def random_edges(rng: np.random.Generator, n: int, e: int) -> Tensor:
    return torch.from_numpy(rng.integers(0, max(n, 1), (2, e)))


class PairData(Data):
    """Two graphs in one, as in PyG's documentation of batching."""

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        if key == "edge_index_s":
            return self.x_s.size(0)
        if key == "edge_index_t":
            return self.x_t.size(0)
        return super().__inc__(key, value, *args, **kwargs)


class BipartiteData(Data):
    """An edge_index between two sets: its increment is a tensor."""

    def __init__(self, edge_index: Any = None, x_s: Any = None, x_t: Any = None) -> None:
        super().__init__(edge_index=edge_index, x_s=x_s, x_t=x_t)

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        if key == "edge_index":
            return torch.tensor([[self.x_s.size(0)], [self.x_t.size(0)]])
        return super().__inc__(key, value, *args, **kwargs)


class RuledData(Data):
    """A new dimension, a join along another dimension, and increments that are plain numbers."""

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        if key == "stacked":
            return None
        if key == "wide":
            return 1
        return super().__cat_dim__(key, value, *args, **kwargs)

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        if key in {"counted", "number"}:
            return 7
        if key == "shifted":
            return torch.tensor([1, 10])
        if key == "negative":
            return -3
        return super().__inc__(key, value, *args, **kwargs)


class RuledHeteroData(HeteroData):
    """A HeteroData with a rule for one attribute of a node type."""

    def __inc__(self, key: str, value: Any, store: Any = None, *args: Any, **kwargs: Any) -> Any:
        if key == "group":
            return int(value.max()) + 1 if value.numel() else 0
        return super().__inc__(key, value, store, *args, **kwargs)

    def __cat_dim__(self, key: str, value: Any, store: Any = None, *args: Any, **kw: Any) -> Any:
        if key == "code":
            return None
        return super().__cat_dim__(key, value, store, *args, **kw)


def pair(rng: np.random.Generator) -> PairData:
    s, t, e = rng.integers(1, 5, 3).tolist()
    return PairData(
        x_s=random_tensor(rng, torch.float32, (s, 2)),
        edge_index_s=random_edges(rng, s, e),
        x_t=random_tensor(rng, torch.float32, (t, 3)),
        edge_index_t=random_edges(rng, t, e + 1),
    )


def bipartite(rng: np.random.Generator) -> BipartiteData:
    s, t, e = rng.integers(0, 5, 3).tolist()
    edges = random_edges(rng, min(s, t), e if s and t else 0)
    return BipartiteData(edges, torch.randn(s, 2), torch.randn(t, 3))


def ruled(rng: np.random.Generator) -> RuledData:
    n = int(rng.integers(0, 5))
    return RuledData(
        x=random_tensor(rng, torch.float32, (n, 2)),
        stacked=random_tensor(rng, torch.float32, (2, 3)),
        wide=random_tensor(rng, torch.int16, (2, n)),
        counted=torch.from_numpy(rng.integers(0, 100, n)).to(torch.int32),
        number=int(rng.integers(0, 100)),
        shifted=torch.from_numpy(rng.integers(0, 100, (n, 2))),
        negative=torch.from_numpy(rng.integers(-9, 9, n + 1)).to(torch.float32),
        num_nodes=n,
    )


def ruled_hetero(rng: np.random.Generator) -> RuledHeteroData:
    data = RuledHeteroData()
    a, b, e = rng.integers(1, 5, 3).tolist()
    data["a"].x = random_tensor(rng, torch.float32, (a, 2))
    data["a"].group = torch.from_numpy(rng.integers(0, 4, a))
    data["b"].x = random_tensor(rng, torch.float64, (b, 1))
    data["b"].code = random_tensor(rng, torch.int64, (3,))
    data["a", "to", "b"].edge_index = torch.stack(
        [torch.from_numpy(rng.integers(0, size, e)) for size in (a, b)]
    )
    return data


def every_dtype(rng: np.random.Generator, n: int) -> Data:
    """One attribute for each dtype, of several shapes."""
    data = Data()
    shapes = [(n,), (n, 3), (1, 2), (), (n, 2, 2), (2 * n,), (n, 0)]
    for place, dtype in enumerate(DTYPES):
        data[f"t_{place}"] = random_tensor(rng, dtype, shapes[place % len(shapes)])
    data.num_nodes = n
    return data


def nested(rng: np.random.Generator, n: int) -> Data:
    """Numbers, texts, and values of parts."""
    one = random_tensor(rng, torch.float32, (n, 2))
    return Data(
        x=one,
        a_bool=bool(n % 2),
        an_int=int(rng.integers(-(2**63), 2**63 - 1)),
        a_float=[0.5, -0.0, float("inf"), float("nan")][n % 4],
        text="grüße \udc80 \0" * n,
        words=[f"w{place}" for place in range(n)],
        document=[1, 2.5, None, {"key": [True, "z", -0.0]}],
        mapping={"x": one, "edge_index": random_edges(rng, n, 3), "deep": {"s": "t" * n, "n": n}},
        several=[random_tensor(rng, torch.int64, (n,)), random_tensor(rng, torch.bool, (2, 2))],
        a_tuple=(random_tensor(rng, torch.float64, (n, 1)), one),
        edge_index=random_edges(rng, n, 2 * n),
    )


def sparse(rng: np.random.Generator, n: int) -> Data:
    """Sparse tensors of each layout, coalesced and not."""
    indices = torch.from_numpy(rng.integers(0, max(n, 1), (2, 4 if n else 0)))
    values = random_tensor(rng, torch.float32, (indices.size(1),))
    loose = torch.sparse_coo_tensor(indices, values, (n, n))
    whole = torch.sparse_coo_tensor(indices, torch.ones_like(values), (n, n)).coalesce()
    return Data(
        x=random_tensor(rng, torch.float32, (n, 1)),
        adj=loose,
        adj_whole=whole,
        adj_t=whole.to_sparse_csr(),
        column_adj=whole.to_sparse_csc(),
    )


def indexed(rng: np.random.Generator, n: int) -> Data:
    """EdgeIndex and Index with their metadata."""
    edges = random_edges(rng, n, 2 * n)
    by_row = edges[:, edges[0].argsort()]
    return Data(
        x=random_tensor(rng, torch.float32, (n, 1)),
        edge_index=EdgeIndex(by_row, sparse_size=(n, n), sort_order="row"),
        other_edge_index=EdgeIndex(edges.to(torch.int32), sparse_size=(n, None)),
        both_edge_index=EdgeIndex(
            torch.cat([edges, edges.flip(0)], 1), sparse_size=(n, n), is_undirected=True
        ),
        place=Index(edges[0].sort().values, dim_size=n, is_sorted=True),
        any_place=Index(edges[1]),
    )


def hetero(rng: np.random.Generator, *, types: str = "abc", num: int | None = None) -> HeteroData:
    """Of node types a, b, c those in ``types``, with edge types between those that are there."""
    data = HeteroData()
    data.y = torch.from_numpy(rng.integers(0, 3, 1))
    data.name = "n" * int(rng.integers(0, 3))
    sizes = {}
    for place, key in enumerate(types):
        n = sizes[key] = int(rng.integers(0, 5)) if num is None else num
        if key == "c":
            data[key].num_nodes = n
        else:
            data[key].x = random_tensor(rng, torch.float32, (n, 2 + "abc".index(key)))
            data[key].tag = random_tensor(rng, torch.int16, (n,))
        if place:
            for relation in ("to", "back"):
                pair = (types[place - 1], key) if relation == "to" else (key, types[place - 1])
                e = int(rng.integers(0, 6)) if sizes[pair[0]] and sizes[pair[1]] else 0
                store = data[pair[0], relation, pair[1]]
                store.edge_index = torch.stack(
                    [torch.from_numpy(rng.integers(0, max(sizes[k], 1), e)) for k in pair]
                )
                store.edge_attr = random_tensor(rng, torch.float64, (e, 2))
    return data
