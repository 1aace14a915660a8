"""Exact equality of graphs, batches and everything they hold: one definition for all tests."""

import struct
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex, Index
from torch_geometric.data.data import BaseData

# What PyG's batch carries beside its attributes.
PRIVATE = ("_num_graphs", "_slice_dict", "_inc_dict", "_num_nodes")

COMPONENTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
}


def difference(expected: Any, found: Any, *, classes: bool = True) -> str | None:
    """Where and how two values first differ; None where they are equal in every respect.

    Compared are classes (of graphs only if ``classes``), stores, names and their order, dtypes,
    shapes, layouts, bits (NaN included), metadata and Python types; strides are not.
    """
    return next(_differences("", expected, found, classes), None)


def assert_same(expected: Any, found: Any, *, classes: bool = True) -> None:
    """Fails with the first difference."""
    found_difference = difference(expected, found, classes=classes)
    assert found_difference is None, f"{found_difference}\n expected {expected}\n found {found}"


def _differences(path: str, a: Any, b: Any, classes: bool):
    if isinstance(a, BaseData) and isinstance(b, BaseData):
        yield from _graphs(path, a, b, classes)
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        yield from _parts(path, a, b, classes)
    elif type(a) is not type(b):
        yield f"{path}: type {type(a)} != {type(b)}"
    elif isinstance(a, Tensor):
        yield from _tensors(path, a, b)
    elif isinstance(a, (list, tuple)):
        if len(a) != len(b):
            yield f"{path}: length {len(a)} != {len(b)}"
        for place, (one, other) in enumerate(zip(a, b, strict=False)):
            yield from _differences(f"{path}[{place}]", one, other, classes)
    elif isinstance(a, float):
        if struct.pack("d", a) != struct.pack("d", b):
            yield f"{path}: {a!r} != {b!r}"
    elif a != b:
        yield f"{path}: {a!r} != {b!r}"


def _parts(path, a, b, classes):
    if list(a) != list(b):
        yield f"{path}: keys {list(a)} != {list(b)}"
        return
    for key in a:
        yield from _differences(f"{path}.{key}", a[key], b[key], classes)


def _graphs(path, a, b, classes):
    if classes and type(a) is not type(b):
        yield f"{path}: class {type(a)} != {type(b)}"
    keys = [store._key for store in a.stores], [store._key for store in b.stores]
    if keys[0] != keys[1]:
        yield f"{path}: stores {keys[0]} != {keys[1]}"
        return
    for one, other in zip(a.stores, b.stores, strict=True):
        where = path if one._key is None else f"{path}<{one._key}>"
        if type(one) is not type(other):
            yield f"{where}: store {type(one)} != {type(other)}"
        yield from _parts(where, dict(one.items()), dict(other.items()), classes)
        for name in PRIVATE:
            one_has, other_has = name in one.__dict__, name in other.__dict__
            if one_has != other_has:
                yield f"{where}.{name}: only one has it"
            elif one_has:
                if type(one.__dict__[name]) is not type(other.__dict__[name]):
                    yield f"{where}.{name}: type {type(one.__dict__[name])} is not kept"
                yield from _differences(
                    f"{where}.{name}", one.__dict__[name], other.__dict__[name], classes
                )


def _tensors(path, a, b):
    facts = [(t.dtype, t.layout, tuple(t.shape), t.device) for t in (a, b)]
    if facts[0] != facts[1]:
        yield f"{path}: {facts[0]} != {facts[1]}"
        return
    metadata = _metadata(a), _metadata(b)
    if metadata[0] != metadata[1]:
        yield f"{path}: metadata {metadata[0]} != {metadata[1]}"
    if isinstance(a, (EdgeIndex, Index)):
        a, b = a.as_tensor(), b.as_tensor()
    if a.layout is torch.strided:
        if bits(a) != bits(b):
            yield f"{path}: values {a} != {b}"
        return
    for part in COMPONENTS[a.layout]:
        yield from _tensors(f"{path}.{part}", getattr(a, part)(), getattr(b, part)())


def _metadata(value: Tensor) -> Any:
    if isinstance(value, EdgeIndex):
        return value.sparse_size(), value.sort_order, value.is_undirected
    if isinstance(value, Index):
        return value.dim_size, value.is_sorted
    return value.is_coalesced() if value.layout is torch.sparse_coo else None


def bits(value: Tensor) -> bytes:
    """The bytes of a dense tensor, in C order."""
    flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
