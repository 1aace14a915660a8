"""Ctrl-C waits where Python would lose it, or leave something half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_waits() -> Iterator[None]:
    """Ctrl-C comes after the block. Pressed twice it comes at once.

    At a fork Python and others take locks, logging's for one, and give them back. An exception in
    between is swallowed and leaves them taken, for which all other threads wait for ever; in the
    child it would go on as a second parent. When h5py drops an object it runs a callback, of which
    Python swallows all exceptions.

    Other threads than the main one are never interrupted, so there it does nothing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    presses = 0

    def count(number: int, frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, count)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if presses == 1:
            signal.raise_signal(signal.SIGINT)
