"""A device in slow motion: two streams, an allocator that reuses memory at once, and a log.

Copies and reads are queued and run as late, or as early, as the order of streams and events
allows. So a missing wait, a missing keep or a staging buffer reused too soon gives wrong values
here as it does on a device, and does so every time.
"""

import threading
import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch


@dataclass(eq=False)
class Block:
    """Device memory; ``memory`` does not count as a use, the tensors made from it do."""

    memory: np.ndarray
    kept_until: int = 0


@dataclass
class SimulatedBackend:
    """See the module. ``slow`` is the stream that runs only when something waits for it."""

    slow: str = "consumer"
    waits: bool = True
    keeps: bool = True
    host_waits: bool = True

    device: torch.device = torch.device("cuda", 0)  # noqa: RUF009  # immutable
    asynchronous: bool = True
    log: list = field(default_factory=list)
    pinned: dict = field(default_factory=dict)
    _queues: dict = field(default_factory=lambda: {"copy": [], "consumer": []})
    _done: dict = field(default_factory=lambda: {"copy": 0, "consumer": 0})
    _live: dict = field(default_factory=dict)
    _free: list = field(default_factory=list)
    _dropped: list = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _num_events: int = 0

    # What the prefetcher calls.

    def begin_epoch(self):
        self.log.append(("begin_epoch", threading.current_thread().name))

    @contextmanager
    def thread_context(self):
        self.log.append(("thread_context", threading.current_thread().name))
        yield

    def consumer_context(self):
        self.log.append(("consumer_context",))
        return nullcontext()

    def pinned_buffer(self, nbytes):
        buffer = torch.empty(nbytes, dtype=torch.uint8)
        self.pinned[buffer.untyped_storage().data_ptr()] = buffer
        self.log.append(("pinned_buffer", nbytes))
        return buffer

    def is_pinned(self, tensor):
        return tensor.untyped_storage().data_ptr() in self.pinned

    def holds(self, tensor):
        return tensor.untyped_storage().data_ptr() in self._live

    def to_device(self, tensor, *, non_blocking):
        source = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        with self._lock:
            block, target = self._allocate(source.nbytes)
            self.log.append(("copy", source.nbytes, self.is_pinned(tensor), non_blocking))
            memory = block.memory[: source.nbytes]
            self._queue("copy", lambda: np.copyto(memory, source))
            if not non_blocking:
                self._run("copy")
        return target.view(tensor.dtype).view(tensor.shape)

    def record(self):
        with self._lock:
            self._num_events += 1
            event = (self._num_events, self._end("copy"))
            self.log.append(("record", event[0]))
            return event

    def host_wait(self, event):
        with self._lock:
            self.log.append(("host_wait", event[0]))
            if self.host_waits:
                self._run("copy", event[1])

    def wait(self, event):
        with self._lock:
            self.log.append(("wait", event[0]))
            if self.waits:
                self._queue("consumer", lambda: self._run("copy", event[1]))
        return event

    def keep(self, parts):
        with self._lock:
            pointers = [part.untyped_storage().data_ptr() for part in parts]
            self.log.append(("keep", len(pointers)))
            if self.keeps:
                for pointer in pointers:
                    # All that is queued when the tensor is dropped, like the allocator's event.
                    self._live[pointer].kept_until = -1

    def stalled_seconds(self, probe):
        return 0.25 if probe[1] <= self._done["copy"] else None

    def synchronize(self):
        self.log.append(("synchronize",))
        self.finish()

    # What a test calls.

    def launch_read(self, tensor, out):
        """Queue a kernel that reads the tensor's memory, whoever owns it by then, into ``out``."""
        with self._lock:
            block = self._live[tensor.untyped_storage().data_ptr()]
            start = tensor.storage_offset() * tensor.element_size()
            memory = block.memory[start : start + tensor.numel() * tensor.element_size()]
            dtype, shape = tensor.dtype, tensor.shape

            def read():
                out.append(torch.from_numpy(memory.copy()).view(dtype).view(shape))

            self._queue("consumer", read)

    def finish(self):
        with self._lock:
            self._run("copy")
            self._run("consumer")

    def names(self):
        return [entry[0] for entry in self.log]

    # The device.

    def _end(self, stream):
        return self._done[stream] + len(self._queues[stream])

    def _queue(self, stream, work):
        self._queues[stream].append(work)
        if stream != self.slow:
            self._run(stream)

    def _run(self, stream, until=None):
        queue = self._queues[stream]
        while queue and (until is None or self._done[stream] < until):
            work = queue.pop(0)
            self._done[stream] += 1
            work()

    def _allocate(self, nbytes):
        self._collect()
        fitting = [block for block in self._free if block.memory.nbytes >= nbytes]
        if fitting:
            block = fitting[-1]
            self._free.remove(block)
        else:
            block = Block(np.full(max(nbytes, 64), 0xAB, dtype=np.uint8))
        block.kept_until = 0
        owner = block.memory[:nbytes] if nbytes else block.memory
        tensor = torch.from_numpy(owner)[:nbytes]
        pointer = tensor.untyped_storage().data_ptr()
        self._live[pointer] = block
        # The storage holds the array, so this runs when the last tensor and view are gone.
        weakref.finalize(owner, self._drop, pointer, block)
        return block, tensor

    def _drop(self, pointer, block):
        with self._lock:
            del self._live[pointer]
            if block.kept_until:
                block.kept_until = self._end("consumer")
            self._dropped.append(block)

    def _collect(self):
        ready = [block for block in self._dropped if block.kept_until <= self._done["consumer"]]
        self._dropped = [b for b in self._dropped if b.kept_until > self._done["consumer"]]
        self._free += ready


class PackedList:
    """A packed batch of int64 tensors, as small as the protocol allows."""

    def __init__(self, buffer, lengths, host_note=None):
        self.buffer = buffer
        self.lengths = lengths
        self.device_nbytes = 8 * sum(lengths)
        self.host_note = host_note

    @classmethod
    def of(cls, *values, note=None):
        flat = torch.cat([torch.as_tensor(value, dtype=torch.int64) for value in values])
        host = torch.cat([flat.view(torch.uint8), torch.tensor([7] * 5, dtype=torch.uint8)])
        return cls(host, [len(value) for value in values], note)

    @property
    def nbytes(self):
        return self.device_nbytes + 5

    def moved(self, buffer):
        return PackedList(buffer, self.lengths, self.host_note)

    def unpack(self):
        flat = self.buffer[: self.device_nbytes].view(torch.int64)
        return {"values": list(flat.split(self.lengths)), "note": self.host_note}
