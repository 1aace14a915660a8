"""Any batch as one shared-memory block: what crosses from a worker when columns cannot be packed.

A batch made graph by graph, or changed by a ``batch_transform``, holds dozens of tensors; sent one
by one, each costs a descriptor in both processes. Here their bytes go into one block, and the rest
of the object travels as a pickle that names them by number. Both ends are one program's own.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor

from shardgraph.collate.buffer import TORCH, Allocate, tensors_over
from shardgraph.format.packed import BufferLayout, Field


class Crossing:
    """An object on its way to another process: one block of bytes and a pickle of the rest."""

    __slots__ = ("_buffer", "_fields", "_pickle", "_pinned", "_sent")

    def __init__(
        self,
        buffer: Tensor,
        fields: list[Any],
        rest: bytes,
        *,
        sent: Any = None,
        pinned: bool = False,
    ) -> None:
        self._buffer = buffer
        self._pinned = pinned
        self._sent = buffer if sent is None else sent
        self._fields = fields
        self._pickle = rest

    @classmethod
    def of(cls, value: Any, allocate: Allocate) -> Crossing:
        """Packs an object; ``allocate(nbytes)`` gives the block."""
        file = io.BytesIO()
        pickler = _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL)
        pickler.dump(value)
        memory = allocate(pickler.layout.nbytes)
        buffer = memory.tensor
        tensor_of = tensors_over(buffer)
        for tensor, field in zip(pickler.tensors, pickler.layout.fields, strict=False):
            tensor_of(field).copy_(tensor)
        fields = [tuple(field) for field in pickler.layout.fields]
        return cls(buffer, fields, file.getvalue(), sent=memory.sent)

    def unpack(self) -> Any:
        """The object again, its tensors views of the block."""
        tensor_of = tensors_over(self._buffer, pinned=self._pinned)
        tensors = [tensor_of(Field(*field)) for field in self._fields]
        return _Unpickler(io.BytesIO(self._pickle), tensors).load()

    def pin_memory(self) -> Any:
        """The object with its block in page-locked memory."""
        return Crossing(self._buffer.pin_memory(), self._fields, self._pickle, pinned=True)

    def __reduce__(self) -> Any:
        return Crossing, (self._sent, self._fields, self._pickle)


class _Pickler(pickle.Pickler):
    """Takes plain tensors out of an object, each once."""

    def __init__(self, file: Any, *, protocol: int) -> None:
        super().__init__(file, protocol=protocol)
        self.layout = BufferLayout()
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if type(value) is not Tensor or not _is_plain(value):
            return None
        number = self._numbers.get(id(value))
        if number is None:
            dtype = str(value.dtype).removeprefix("torch.")
            number = self.layout.add(dtype, tuple(value.shape), value.element_size())
            self._numbers[id(value)] = number
            self.tensors.append(value)  # also keeps the id from being used again
        return number


def _is_plain(value: Tensor) -> bool:
    return (
        value.layout is torch.strided
        and value.device.type == "cpu"
        and str(value.dtype).removeprefix("torch.") in TORCH
        and not (value.requires_grad or value.is_nested or value.is_quantized)
    )


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: Any) -> Tensor:
        found: Tensor = self._tensors[number]
        return found
