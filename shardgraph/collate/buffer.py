"""Memory for a batch, and tensors over parts of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import Tensor

from shardgraph.collate.shared import SharedBlock, can_share
from shardgraph.format.layout import COMPLEX, STORAGE
from shardgraph.format.packed import Field

ITEMSIZE: Final = {
    name: np.dtype(storage).itemsize * (2 if name in COMPLEX else 1)
    for name, storage in STORAGE.items()
}
"""Bytes of one value, by logical dtype."""

TORCH: Final = {name: getattr(torch, name) for name in STORAGE if hasattr(torch, name)}
"""Torch's dtype, by logical dtype."""

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


def view(storage: Any, start: int, field: Field, device: torch.device) -> Tensor:
    """The tensor of a field, in a storage whose buffer starts at byte ``start``.

    It is no view in torch's sense: it has a version counter of its own, so writing to one tensor of
    a batch in place does not disturb autograd's use of another.
    """
    name, shape, offset = field
    strides: tuple[int, ...] = (1,)
    for extent in shape[:0:-1]:
        strides = (strides[0] * max(extent, 1), *strides)
    empty = torch.empty(0, dtype=TORCH[name], device=device)
    place = (start + offset) // ITEMSIZE[name]
    return empty.set_(storage, place, shape, strides[: len(shape)])
