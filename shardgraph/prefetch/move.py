"""Moving one batch to the device: pinned staging, one copy a tensor, one event a batch."""

import copy
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from shardgraph.prefetch.structure import (
    dense_parts,
    leaves_of,
    num_bytes,
    replace_leaves,
)
from shardgraph.prefetch.transfer import Backend, Keepable

_ALIGNMENT = 64  # bytes; a multiple of every dtype's size, and a cache line


class PackedBatch(Protocol):
    """A batch whose tensors lie in one buffer, as the iterators of ``packed_batches()`` yield.

    Each object is used by one thread at a time and never changed by the prefetcher.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of the whole batch."""

    @property
    def device_nbytes(self) -> int:
        """Bytes at the start of the buffer that go to the device."""

    @property
    def buffer(self) -> Tensor:
        """The memory: uint8 [at least device_nbytes]."""

    def moved(self, buffer: Tensor) -> "PackedBatch":
        """Return the same batch whose first ``device_nbytes`` bytes lie in ``buffer``."""

    def unpack(self) -> Any:
        """Return the PyG batch whose tensors are views of the buffer."""


class PackedLoader(Protocol):
    """A loader that can yield its batches packed."""

    def packed_batches(self) -> Any:
        """Return an iterator over an epoch; the epoch's position is set by the call itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A batch on the device, and what the consumer's stream needs to take it over."""

    batch: Any
    parts: tuple[Keepable, ...]
    """One tensor per block of memory; empty where nothing is handed over."""
    event: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A host batch that has been looked at: its size, and which tensors to stage."""

    batch: Any
    nbytes: int
    packed: bool
    staged_nbytes: int
    staged: dict[int, Tensor]
    """The tensors to stage, by id; held here so that no id is used twice."""


@dataclass(slots=True)
class _Slot:
    """Page-locked memory, in use by the device until ``event`` is reached."""

    buffer: Tensor
    event: Any = None
    used: int = 0

    def place(self, tensor: Tensor) -> Tensor:
        """Return the tensor's bytes copied to the next free place, in its dtype and shape."""
        start, self.used = self.used, self.used + _aligned(tensor)
        span = self.buffer[start : start + tensor.numel() * tensor.element_size()]
        placed = span.view(tensor.dtype).view(tensor.shape)
        placed.copy_(tensor)
        return placed


@dataclass(slots=True)
class StagingRing:
    """A few pinned buffers in turn, grown as needed; reused only when their copies are done."""

    backend: Backend
    num_slots: int
    _slots: list[_Slot] = field(default_factory=list)

    def acquire(self, nbytes: int) -> _Slot:
        """Return a slot with room for ``nbytes``; waits for the copies that still read it."""
        if len(self._slots) < self.num_slots:
            slot = _Slot(self.backend.pinned_buffer(_rounded(nbytes)))
        else:
            slot = self._slots.pop(0)
            if slot.event is not None:
                self.backend.host_wait(slot.event)
                slot.event = None
            if slot.buffer.numel() < nbytes:
                slot.buffer = self.backend.pinned_buffer(_rounded(nbytes))
        slot.used = 0
        self._slots.append(slot)
        return slot


class Mover:
    """Moves batches to the device of a backend; used by one background thread at a time.

    The loader must not write into a batch after it has yielded it; the prefetcher does not either.
    """

    def __init__(self, backend: Backend, depth: int) -> None:
        self._backend = backend
        # One slot per batch ahead and one for the batch just handed over.
        self._ring = StagingRing(backend, num_slots=depth + 1)

    def inspect(self, batch: Any, *, may_be_packed: bool = False) -> Load:
        """Return the batch with its sizes.

        Args:
            batch: What the loader yielded.
            may_be_packed: Whether it comes from ``packed_batches()``.
        """
        if may_be_packed and callable(getattr(type(batch), "unpack", None)):
            stage = self._backend.asynchronous and not self._backend.is_pinned(batch.buffer)
            staged_nbytes = batch.device_nbytes if stage else 0
            return Load(
                batch=batch,
                nbytes=batch.nbytes,
                packed=True,
                staged_nbytes=staged_nbytes,
                staged={},
            )
        leaves = leaves_of(batch)
        staged = {id(leaf): leaf for leaf in leaves if self._needs_staging(leaf)}
        return Load(
            batch=batch,
            nbytes=sum(num_bytes(leaf) for leaf in leaves),
            packed=False,
            # Not from ``staged``: a tensor that the batch holds twice is copied twice.
            staged_nbytes=sum(_aligned(leaf) for leaf in leaves if id(leaf) in staged),
            staged=staged,
        )

    def move(self, load: Load) -> Moved:
        """Queue the copies of a batch and return it with the event that ends them."""
        slot = self._ring.acquire(load.staged_nbytes) if load.staged_nbytes else None
        try:
            batch = self._unpacked(load.batch, slot) if load.packed else self._replaced(load, slot)
        finally:
            # Also after an error: copies queued before it may still read the slot.
            event = self._backend.record()
            if slot is not None:
                slot.event = event
        parts = self._parts(batch) if self._backend.asynchronous else ()
        return Moved(batch=batch, parts=parts, event=event)

    def _unpacked(self, packed: PackedBatch, slot: _Slot | None) -> Any:
        backend = self._backend
        if backend.device.type != "cpu":
            host = packed.buffer[: packed.device_nbytes]
            placed = host if slot is None else slot.place(host)
            packed = packed.moved(backend.to_device(placed, non_blocking=backend.asynchronous))
        # On the copy stream and before the event, as unpacking may copy small tensors.
        return packed.unpack()

    def _replaced(self, load: Load, slot: _Slot | None) -> Any:
        return replace_leaves(load.batch, lambda leaf: self._moved_leaf(leaf, load, slot))

    def _moved_leaf(self, leaf: Any, load: Load, slot: _Slot | None) -> Any:
        backend = self._backend
        if not isinstance(leaf, Tensor):
            return self._moved_object(leaf)
        if backend.holds(leaf):
            return leaf
        if slot is not None and load.staged.get(id(leaf)) is leaf:
            return backend.to_device(slot.place(leaf), non_blocking=True)
        pinned = _is_plain(leaf) and backend.is_pinned(leaf)
        return backend.to_device(leaf, non_blocking=pinned)

    def _moved_object(self, leaf: Any) -> Any:
        """Move an object by its own ``to()``, on a shallow copy in case that works in place.

        One that cannot keep its memory for a stream is moved on the consumer's stream: slower, but
        its memory then is reused in that stream's order.
        """
        backend = self._backend
        if backend.device.type == "cpu":
            return leaf
        keeps = callable(getattr(type(leaf), "record_stream", None))
        with nullcontext() if keeps else backend.consumer_context():
            return copy.copy(leaf).to(backend.device)

    def _parts(self, batch: Any) -> tuple[Keepable, ...]:
        """Return one tensor per block of device memory, and the objects that keep their own."""
        parts: dict[int, Keepable] = {}
        for leaf in leaves_of(batch):
            if isinstance(leaf, Tensor):
                for part in dense_parts(leaf):
                    if self._backend.holds(part):
                        parts.setdefault(part.untyped_storage().data_ptr(), part)
            elif callable(getattr(type(leaf), "record_stream", None)):
                parts[id(leaf)] = leaf
        return tuple(parts.values())

    def _needs_staging(self, leaf: Any) -> bool:
        return (
            self._backend.asynchronous
            and isinstance(leaf, Tensor)
            and _is_plain(leaf)
            and not self._backend.holds(leaf)
            and leaf.is_contiguous()
            and leaf.numel() > 0
            and not leaf.requires_grad
            and not leaf.is_quantized
            and not self._backend.is_pinned(leaf)
        )


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.device.type == "cpu" and tensor.layout == torch.strided


def _aligned(tensor: Tensor) -> int:
    nbytes = tensor.numel() * tensor.element_size()
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _rounded(nbytes: int) -> int:
    """Return the next power of two, so that batches of varying size settle in a few steps."""
    return 1 << (nbytes - 1).bit_length()
