"""Processes that end with the one that started them, however it ended."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """From here on this process ends at once when its parent is gone: for workers.

    Torch's workers look every 5 s; one whose parent is killed while it starts never notices, since
    it takes the parent's heir for its parent. A worker of an executor waits on a queue that it
    could write to itself.
    """
    threading.Thread(target=_end_with_parent, name="shardgraph-orphan", daemon=True).start()


def begin_worker(then: Callable[[int], None] | None, number: int) -> None:
    """A torch worker's initializer: `end_with_parent`, then the user's own."""
    end_with_parent()
    if then is not None:
        then(number)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
