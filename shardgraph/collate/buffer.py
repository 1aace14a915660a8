"""Memory for a batch, and tensors over parts of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shardgraph.collate.shared import SharedBlock, can_share
from shardgraph.format.layout import COMPLEX, RAW_BITS, STORAGE
from shardgraph.format.packed import Field

ITEMSIZE: Final = {
    name: np.dtype(storage).itemsize * (2 if name in COMPLEX else 1)
    for name, storage in STORAGE.items()
}
"""Bytes of one value, by logical dtype."""

TORCH: Final = {name: getattr(torch, name) for name in STORAGE if hasattr(torch, name)}
"""Torch's dtype, by logical dtype."""

_NUMPY: Final = {name: np.dtype(name) for name in STORAGE.keys() - RAW_BITS - {"complex32"}}
"""NumPy's dtype, by logical dtype, where it has one."""

CPU: Final = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Memory:
    """A buffer for a batch, and what to send of it to another process."""

    tensor: Tensor
    sent: Any
    """The tensor itself, or a `SharedBlock` of it; it arrives as a tensor."""


Allocate: TypeAlias = "Callable[[int], Memory]"


def ordinary_memory(nbytes: int) -> Memory:
    """A buffer of this process."""
    tensor = torch.empty(nbytes, dtype=torch.uint8)
    return Memory(tensor, tensor)


def shared_memory(nbytes: int, *, keep: int) -> Memory:
    """A buffer that another process can open; ``keep`` of them may be on their way to it."""
    if can_share():
        block = SharedBlock(nbytes, keep=keep)
        return Memory(block.tensor, block)
    storage = torch.UntypedStorage._new_shared(max(nbytes, 1))
    tensor = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (nbytes,), (1,))
    return Memory(tensor, tensor)


def tensors_over(buffer: Tensor, *, pinned: bool = False) -> Callable[[Field], Tensor]:
    """What gives the tensor of a field of a buffer: uint8 [nbytes], page-locked if ``pinned``.

    It is no view in torch's sense: it has a version counter of its own, so writing to one tensor of
    a batch in place does not disturb autograd's use of another. In ordinary memory it has a storage
    of its own, too, so that torch saves, pickles and resizes it by itself. Torch's allocators of
    device and page-locked memory tell by the storage what is in use; there the tensors share it.
    """
    if buffer.device.type == "cpu" and not pinned:
        return partial(_apart, buffer.numpy())
    return partial(_within, buffer.untyped_storage(), int(buffer.storage_offset()), buffer.device)


def _apart(memory: NDArray[np.uint8], field: Field) -> Tensor:
    name, shape, offset = field
    if 0 in shape:  # its place is that of the next field
        return torch.empty(shape, dtype=TORCH[name])
    dtype = _NUMPY.get(name)
    if dtype is not None:
        return torch.from_numpy(np.ndarray(shape, dtype, memory, offset))
    rest = memory[offset : offset + math.prod(shape) * ITEMSIZE[name]]
    return _within(torch.from_numpy(rest).untyped_storage(), 0, CPU, Field(name, shape, 0))


def _within(storage: Any, start: int, device: torch.device, field: Field) -> Tensor:
    name, shape, offset = field
    strides: tuple[int, ...] = (1,)
    for extent in shape[:0:-1]:
        strides = (strides[0] * max(extent, 1), *strides)
    empty = torch.empty(0, dtype=TORCH[name], device=device)
    place = (start + offset) // ITEMSIZE[name]
    return empty.set_(storage, place, shape, strides[: len(shape)])
