"""Builds PyG objects from NumPy arrays; the one place where plain-array sources meet torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch_geometric.data import Data


def make_data(**attributes: Any) -> Data:
    """Builds a `Data` of the attributes that are not None.

    Arrays and nested lists of numbers become tensors of the same dtype (lists of floats
    float32, of ints int64); tensors, str, int, float and bool stay. ``edge_index`` may be given
    as [2, E] array or as a list of E pairs, also an empty one.
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
            data[key] = torch.tensor(value)
        else:
            data[key] = value
    return data


def edge_index_array(value: Any) -> NDArray[np.int64]:
    """An int64 [2, E] array of its own memory from a [2, E] array or a list of pairs."""
    found = np.array(value, dtype=np.int64)
    return found.reshape(2, -1) if isinstance(value, np.ndarray) else found.reshape(-1, 2).T.copy()
