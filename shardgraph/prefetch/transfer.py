"""The seam: every stream, event, pinning and copy call of the prefetcher goes through a Backend.

Two kinds exist. ``StreamBackend`` (cuda, xpu) copies on a stream of its own and hands over by an
event. ``BlockingBackend`` (cpu, mps) has finished when ``to_device`` returns, so it hands over
nothing. Tests put a recording backend in their place.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor


class Keepable(Protocol):
    """What can keep its memory for a stream: a tensor, or an object made of tensors."""

    def record_stream(self, stream: Any, /) -> Any:
        """Keep the memory until the work now queued on ``stream`` is done."""


class Backend(Protocol):
    """The device calls of one prefetcher; one instance lives as long as the prefetcher.

    The consumer's thread calls ``begin_epoch``, ``wait``, ``keep``, ``stalled_seconds`` and
    ``synchronize``; the background thread calls the rest, inside ``thread_context``. Events and
    probes are the backend's own and opaque to its caller.
    """

    device: torch.device
    """The target, with its index where the device type has one."""

    asynchronous: bool
    """Whether copies run on a stream of their own, which needs pinned memory and a hand-over."""

    def begin_epoch(self) -> None:
        """Order the copies of the coming epoch after what the consumer has queued so far."""

    def thread_context(self) -> AbstractContextManager[Any]:
        """Return the context of the background thread: target device and copy stream current."""

    def consumer_context(self) -> AbstractContextManager[Any]:
        """Return a context in which work is queued on the stream seen by ``begin_epoch``."""

    def pinned_buffer(self, nbytes: int) -> Tensor:
        """Return new page-locked host memory, uint8 [nbytes]."""

    def is_pinned(self, tensor: Tensor) -> bool:
        """Return whether a host tensor lies in page-locked memory."""

    def holds(self, tensor: Tensor) -> bool:
        """Return whether the tensor lies on the device already."""

    def to_device(self, tensor: Tensor, *, non_blocking: bool) -> Tensor:
        """Return a copy of ``tensor`` on the device, queued on the copy stream."""

    def record(self) -> Any:
        """Return an event that is reached when all copies queued so far are done."""

    def host_wait(self, event: Any) -> None:
        """Block this thread until ``event`` is reached."""

    def wait(self, event: Any) -> Any:
        """Make the consumer's current stream wait for ``event``; return a probe of that wait."""

    def keep(self, parts: Iterable[Keepable]) -> None:
        """Keep the memory of ``parts`` until the consumer's stream is done with it."""

    def stalled_seconds(self, probe: Any) -> float | None:
        """Return how long the device stood in that wait, in seconds; None while not yet known."""

    def synchronize(self) -> None:
        """Block until the device has done all that the consumer's current stream was given."""


class BlockingBackend:
    """Copies that are done when they return: the CPU, and MPS with its single queue."""

    asynchronous = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def begin_epoch(self) -> None:
        """Do nothing: there is one queue."""

    def thread_context(self) -> AbstractContextManager[None]:
        """Return an empty context."""
        return nullcontext()

    def consumer_context(self) -> AbstractContextManager[None]:
        """Return an empty context."""
        return nullcontext()

    def pinned_buffer(self, nbytes: int) -> Tensor:
        """Return ordinary memory: a blocking copy gains nothing from pinning."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def is_pinned(self, tensor: Tensor) -> bool:  # noqa: ARG002
        """Return False, so that no copy is left pending."""
        return False

    def holds(self, tensor: Tensor) -> bool:
        """Return whether the tensor lies on the device already."""
        return tensor.device == self.device

    def to_device(self, tensor: Tensor, *, non_blocking: bool) -> Tensor:  # noqa: ARG002
        """Return the tensor on the device, complete."""
        return tensor.to(self.device)

    def record(self) -> None:
        """Return no event: every copy is done."""

    def host_wait(self, event: Any) -> None:
        """Return at once."""

    def wait(self, event: Any) -> None:
        """Return no probe: the batch is complete."""

    def keep(self, parts: Iterable[Keepable]) -> None:
        """Do nothing: memory is reused in the order of the one queue."""

    def stalled_seconds(self, probe: Any) -> float | None:  # noqa: ARG002
        """Return 0: the device never waits for a copy that the host has not waited for."""
        return 0.0

    def synchronize(self) -> None:
        """Block until the MPS queue is empty; the CPU has none."""
        if self.device.type == "mps":
            torch.mps.synchronize()


class StreamBackend:
    """Copies on one stream of the target device, kept for the life of the prefetcher (cuda, xpu).

    A stream per epoch would give each epoch an allocator pool of its own, and reserved memory
    would grow until the runtime's streams come round again (timm#2781).
    """

    asynchronous = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: ModuleType = getattr(torch, device.type)
        # A blocking event lets host_wait sleep; the default spins on a core the loader could use.
        # XPU events offer no such choice, and time only on recent drivers.
        timed = device.type == "cuda"
        self._event_options = {"enable_timing": True, "blocking": True} if timed else {}
        self._timed = timed
        self._copy_stream: Any = None
        self._consumer_stream: Any = None

    def begin_epoch(self) -> None:
        """Let the copy stream wait for the consumer's stream, and make it on first use.

        A loader may yield tensors that the consumer queued on the device before this epoch.
        """
        if self._copy_stream is None:
            self._copy_stream = self._module.Stream(device=self.device)
        self._consumer_stream = self._module.current_stream(self.device)
        self._copy_stream.wait_stream(self._consumer_stream)

    def thread_context(self) -> AbstractContextManager[Any]:
        """Return the context of the background thread: target device and copy stream current."""
        stack = ExitStack()
        stack.enter_context(self._module.device(self.device))
        stack.enter_context(self._module.stream(self._copy_stream))
        return stack

    def consumer_context(self) -> AbstractContextManager[Any]:
        """Return a context in which work is queued on the stream seen by ``begin_epoch``."""
        context: AbstractContextManager[Any] = self._module.stream(self._consumer_stream)
        return context

    def pinned_buffer(self, nbytes: int) -> Tensor:
        """Return new page-locked host memory, uint8 [nbytes]."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def is_pinned(self, tensor: Tensor) -> bool:
        """Return whether a host tensor lies in page-locked memory."""
        return tensor.is_pinned()

    def holds(self, tensor: Tensor) -> bool:
        """Return whether the tensor lies on the device already."""
        return tensor.device == self.device

    def to_device(self, tensor: Tensor, *, non_blocking: bool) -> Tensor:
        """Return a copy of ``tensor`` on the device, queued on the copy stream."""
        return tensor.to(self.device, non_blocking=non_blocking)

    def record(self) -> Any:
        """Return an event on the copy stream after all that is queued there."""
        event = self._module.Event(**self._event_options)
        event.record(self._copy_stream)
        return event

    def host_wait(self, event: Any) -> None:
        """Block this thread until ``event`` is reached."""
        event.synchronize()

    def wait(self, event: Any) -> Any:
        """Make the consumer's current stream wait for ``event``; return a probe of that wait."""
        stream = self._module.current_stream(self.device)
        asked = None
        if self._timed:
            asked = self._module.Event(**self._event_options)
            asked.record(stream)
        stream.wait_event(event)
        return (asked, event)

    def keep(self, parts: Iterable[Keepable]) -> None:
        """Mark the memory as in use by the consumer's current stream.

        The memory was allocated on the copy stream. Without the mark the allocator hands it to the
        next copy as soon as the consumer drops the batch, though kernels that read it are still
        queued. An event in its stead (copy stream waits for the consumer before every copy) is as
        safe, but makes the copy of the next batch wait for the step it should overlap.
        """
        stream = self._module.current_stream(self.device)
        for part in parts:
            part.record_stream(stream)

    def stalled_seconds(self, probe: Any) -> float | None:
        """Return how long the consumer's stream stood waiting for the copy, in seconds."""
        asked, copied = probe
        if asked is None:
            return 0.0
        if not (asked.query() and copied.query()):
            return None
        milliseconds: float = asked.elapsed_time(copied)
        return max(0.0, milliseconds / 1e3)

    def synchronize(self) -> None:
        """Block until the device has done all that the consumer's current stream was given."""
        self._module.current_stream(self.device).synchronize()


def available_devices() -> list[torch.device]:
    """Return the devices this process can use, the CPU last."""
    found = []
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            found += [torch.device(kind, index) for index in range(module.device_count())]
    if torch.backends.mps.is_available():
        found.append(torch.device("mps", 0))
    return [*found, torch.device("cpu")]


def resolve_device(device: torch.device | str | None) -> torch.device:
    """Return the device meant, with its index; None is the current accelerator, or else the CPU.

    Raises:
        ValueError: The device is not there or is of a kind that no backend knows; never a silent
            fallback to another.
    """
    present = available_devices()
    if device is None:
        # The kinds never meet in one build of torch, so the first one there is the accelerator.
        device = present[0].type
    wanted = torch.device(device)
    if wanted.type == "cpu":
        return torch.device("cpu")
    if ":" not in str(wanted) and any(found.type == wanted.type for found in present):
        index = 0 if wanted.type == "mps" else getattr(torch, wanted.type).current_device()
        wanted = torch.device(wanted.type, index)
    if wanted not in present:
        names = ", ".join(str(found) for found in present)
        raise ValueError(
            f"device '{wanted}' is not there: this process can use {names}. "
            "Pass one of these, or device=None for the accelerator if there is one, else the CPU"
        )
    return wanted


def backend_for(device: torch.device) -> Backend:
    """Return the backend of a device that ``resolve_device`` returned."""
    return StreamBackend(device) if device.type in ("cuda", "xpu") else BlockingBackend(device)
