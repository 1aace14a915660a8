"""A batch as one buffer: laid out and filled here, and taken out again as tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data.data import BaseData

from shardgraph.collate.buffer import ITEMSIZE, Allocate, tensors_over
from shardgraph.format.layout import COMPLEX, STORAGE
from shardgraph.format.packed import BufferLayout, Field
from shardgraph.shards.gather import Selection

_NUMPY = {name: np.dtype(storage) for name, storage in STORAGE.items()}


class Unpacker(Protocol):
    """Knows what the fields of a packed batch are."""

    def unpack(self, packed: PackedBatch) -> BaseData:
        """The PyG ``Batch`` of a packed one."""
        ...


class PackedBatch:
    """A batch as one buffer and a small layout record; what crosses between processes and devices.

    ``buffer`` is uint8 [nbytes]; its first ``device_nbytes`` bytes hold the tensors that move to a
    device, the rest what PyG keeps on the CPU (slices and increments).
    """

    __slots__ = ("_batcher", "_sent", "buffer", "device_nbytes", "host", "is_pinned", "record")

    def __init__(
        self,
        buffer: Tensor,
        record: Record,
        batcher: Unpacker | None = None,
        *,
        sent: Any = None,
        pinned: bool = False,
    ) -> None:
        self.buffer = buffer
        self.host = buffer
        self.is_pinned = pinned
        self._sent = buffer if sent is None else sent
        self.record = record
        self.device_nbytes = record.device_nbytes
        self._batcher = batcher

    @property
    def nbytes(self) -> int:
        """Size of the buffer."""
        return self.host.numel()

    def attach(self, batcher: Unpacker) -> PackedBatch:
        """Gives a batch that came from another process the batcher that can unpack it."""
        self._batcher = batcher
        return self

    def pin_memory(self) -> PackedBatch:
        """The same batch in page-locked memory: one block."""
        return PackedBatch(self.host.pin_memory(), self.record, self._batcher, pinned=True)

    def to(self, device: Any, non_blocking: bool = False) -> PackedBatch:
        """The same batch on a device: one transfer."""
        device_part = self.host[: self.device_nbytes]
        return self.moved(device_part.to(device, non_blocking=non_blocking))

    def moved(self, buffer: Tensor) -> PackedBatch:
        """The same batch whose first ``device_nbytes`` bytes have been copied to ``buffer``."""
        packed = PackedBatch(self.host, self.record, self._batcher, pinned=self.is_pinned)
        packed.buffer = buffer
        return packed

    def unpack(self) -> BaseData:
        """The PyG ``Batch``, its tensors views of the buffer.

        Graph-level attributes own their memory, so that keeping one does not keep the buffer. On a
        device or page-locked, the others share one storage: ``torch.save`` takes ``batch.clone()``.
        """
        if self._batcher is None:
            raise RuntimeError("this batch came from another process; call attach() first")
        return self._batcher.unpack(self)

    def __reduce__(self) -> Any:
        # Plain tuples pickle in a fraction of the time that named ones take.
        record = self.record
        fields = [tuple(field) for field in record.fields]
        kept = [tuple(field) for field in record.kept]
        rest = (record.numbers, record.objects, record.num_nodes)
        return _rebuilt, (self._sent, record.num_graphs, record.device_nbytes, fields, kept, *rest)


@dataclass(slots=True)
class Record:
    """What unpacking a buffer needs beside the schema."""

    num_graphs: int
    device_nbytes: int
    fields: list[Field]
    """Of the tensors that move with the batch."""
    kept: list[Field]
    """Of the int64 arrays that stay on the host."""
    numbers: list[int]
    """For each leaf in order: the field of its values, the kept field of its slices (-1: exactly
    one row a graph) and of its increments (-1: zeros)."""
    objects: list[list[Any]]
    """Values of the leaves that are lists of Python objects."""
    num_nodes: list[list[int]]


def _rebuilt(
    host: Tensor, num_graphs: int, device_nbytes: int, fields: Any, kept: Any, *rest: Any
) -> PackedBatch:
    return PackedBatch(
        host,
        Record(
            num_graphs,
            device_nbytes,
            [Field(*field) for field in fields],
            [Field(*field) for field in kept],
            *rest,
        ),
    )


class Packing:
    """One batch being laid out: first every field is placed, then the buffer is filled."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.device = BufferLayout()
        self.host = BufferLayout()
        self.numbers: list[int] = []
        self.objects: list[list[Any]] = []
        self.num_nodes: list[list[int]] = []
        self.fills: list[tuple[int, Callable[[Any], None]]] = []
        self._shared: dict[Any, int] = {}

    def add(self, dtype: str, shape: tuple[int, ...], fill: Callable[[Any], None]) -> int:
        """Places a tensor that moves with the batch; ``fill`` gets its storage array."""
        number = self.device.add(dtype, shape, ITEMSIZE[dtype])
        self.fills.append((number, fill))
        return number

    def keep(self, key: Any, values: NDArray[np.int64]) -> int:
        """Places an int64 array that stays on the host; the same ``key`` is placed once."""
        number = self._shared.get(key)
        if number is None:
            number = self._shared[key] = self.host.add("int64", values.shape, 8)
            self.fills.append((-1 - number, lambda out: np.copyto(out, values)))
        return number

    def finish(self, allocate: Allocate) -> PackedBatch:
        """Allocates the buffer and fills it."""
        start, device_fields = self.device.nbytes, self.device.fields
        buffer = allocate(start + self.host.nbytes)
        memory = buffer.tensor.numpy()
        host_fields = [Field(d, shape, offset + start) for d, shape, offset in self.host.fields]
        for number, fill in self.fills:
            field = device_fields[number] if number >= 0 else host_fields[-1 - number]
            fill(_array(memory, field))
        record = Record(
            num_graphs=self.selection.num_graphs,
            device_nbytes=start,
            fields=device_fields,
            kept=host_fields,
            numbers=self.numbers,
            objects=self.objects,
            num_nodes=self.num_nodes,
        )
        return PackedBatch(buffer.tensor, record, sent=buffer.sent)


def _array(memory: NDArray[np.uint8], field: Field) -> NDArray[Any]:
    dtype = _NUMPY[field.dtype]
    shape = (*field.shape, 2) if field.dtype in COMPLEX else field.shape
    array: NDArray[Any] = np.ndarray(shape, dtype, memory, field.offset)
    return array


@lru_cache(maxsize=8)
def _constants(num_graphs: int) -> tuple[Tensor, Tensor]:
    """Slices of attributes with one row a graph, and increments of none; shared by batches."""
    return torch.arange(num_graphs + 1), torch.zeros(num_graphs, dtype=torch.int64)


class Views:
    """Takes a buffer's fields out as tensors, in the order in which leaves were placed."""

    __slots__ = (
        "_kept",
        "_numbers",
        "_objects",
        "_on_host",
        "arange",
        "num_graphs",
        "record",
        "tensor_of",
        "zeros",
    )

    def __init__(self, packed: PackedBatch) -> None:
        record = packed.record
        self.record = record
        self.num_graphs = record.num_graphs
        self._on_host = tensors_over(packed.host, pinned=packed.is_pinned)
        self.tensor_of = tensors_over(packed.buffer, pinned=packed.is_pinned)
        self.arange, self.zeros = _constants(record.num_graphs)
        self._numbers = iter(record.numbers)
        self._objects = iter(record.objects)
        self._kept: dict[int, Tensor] = {}

    def number(self) -> int:
        """The next of the record's numbers."""
        return next(self._numbers)

    def objects(self) -> list[Any]:
        """The next leaf's Python objects."""
        return next(self._objects)

    def tensor(self, number: int) -> Tensor:
        """A tensor that moved with the batch. It has a version counter of its own."""
        return self.tensor_of(self.record.fields[number])

    def kept(self, number: int, default: Tensor) -> Tensor:
        """An int64 tensor that stays on the CPU; equal ones are shared."""
        if number < 0:
            return default
        if number not in self._kept:
            self._kept[number] = self._on_host(self.record.kept[number])
        return self._kept[number]
