"""Builds PyG objects from NumPy arrays; the one place where plain-array sources meet torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.errors import SchemaError

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data


def make_data(**attributes: Any) -> Data:
    """Builds a `Data` of the attributes that are not None.

    Arrays and nested lists of numbers become tensors of the same dtype (lists of floats
    float32, of ints int64); tensors, str, int, float and bool stay. ``edge_index`` may be given
    as [2, E] array or as a list of E pairs, also an empty one.

    Raises:
        SchemaError: a number in a list is beyond the dtype that it gets.
    """
    import torch
    from torch_geometric.data import Data

    data = Data()
    for key, value in attributes.items():
        if value is None:
            continue
        if key == "edge_index" and not torch.is_tensor(value):
            data.edge_index = torch.from_numpy(edge_index_array(value))
        elif isinstance(value, np.ndarray):
            data[key] = torch.from_numpy(np.ascontiguousarray(value))
        elif isinstance(value, list):
            data[key] = _list_tensor(value, key)
        else:
            data[key] = value
    return data


def edge_index_array(value: Any) -> NDArray[np.int64]:
    """An int64 [2, E] array of its own memory from a [2, E] array or a list of pairs."""
    found = np.array(as_dtype(value, np.int64, "edge_index"))
    return found.reshape(2, -1) if isinstance(value, np.ndarray) else found.reshape(-1, 2).T.copy()


def _list_tensor(value: list[Any], name: str) -> Tensor:
    import torch

    try:
        tensor = torch.tensor(value)
    except (OverflowError, RuntimeError, ValueError) as error:
        if "verflow" in str(error):
            as_dtype(value, np.int64, name)  # says which is too large
        raise
    if tensor.dtype == torch.float32 and not torch.isfinite(tensor).all():
        as_dtype(value, np.float32, name)
    return tensor


def as_dtype(value: Any, dtype: type[np.generic], name: str) -> NDArray[Any]:
    """Numbers in another dtype, which may round them but no more.

    Infinite values and NaN stay what they are, and None becomes NaN.

    Args:
        value: An array, or nested lists.
        dtype: Of floating point, complex or of integers.
        name: What the values are, for the error.

    Raises:
        SchemaError: a finite value would become infinite, or is none of those integers.
    """
    array, target = np.asarray(value), np.dtype(dtype)
    if array.dtype == target:
        return array
    if array.dtype.kind not in "biufc":
        array = _parsed(array, target, name)
    elif array.dtype.kind == "c" != target.kind:
        raise SchemaError(f"attribute {name!r} holds complex numbers, expected {target}")
    with np.errstate(over="ignore", invalid="ignore"):
        found = array.astype(target)
    if target.kind in "fc":
        lost = np.isfinite(array) & ~np.isfinite(found)
    elif array.dtype.kind == "f":
        # As floats, the limits are powers of two, and the upper one is not reached.
        low, high = -(2.0 ** (8 * target.itemsize - 1)), 2.0 ** (8 * target.itemsize - 1)
        lost = ~((array >= low) & (array < high) & (array == np.floor(array)))
    else:
        lost = (found != array) | ((found < 0) != (array < 0))
    if lost.any():
        raise _too_large(array[lost].flat[0].item(), target, name)
    return found


def _parsed(array: NDArray[Any], target: np.dtype[Any], name: str) -> NDArray[Any]:
    """Numbers from objects, such as integers beyond 64 bits, or None."""
    try:
        return array.astype(np.float64 if target.kind == "f" else np.int64)
    except OverflowError as error:
        largest = max((item for item in array.flat if isinstance(item, int)), key=abs)
        raise _too_large(largest, target, name) from error


def _too_large(value: Any, target: np.dtype[Any], name: str) -> SchemaError:
    return SchemaError(f"attribute {name!r} holds {value!r}, which {target} cannot hold")
