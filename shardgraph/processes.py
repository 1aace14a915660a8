"""Worker processes: they start undisturbed by Ctrl-C, leave it to their parent, and end with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from typing import Any

from shardgraph.interrupt import interrupt_waits


@contextmanager
def starting_workers(loader: Any) -> Iterator[None]:
    """While a torch ``DataLoader`` starts the workers of an epoch: they begin by `begin_worker`."""
    given = loader.worker_init_fn
    loader.worker_init_fn = partial(begin_worker, given)
    try:
        with interrupt_waits():
            yield
    finally:
        loader.worker_init_fn = given


def begin_worker(then: Callable[..., None] | None = None, *args: Any) -> None:
    """What a worker process does first; the rest is ``then(*args)``.

    Ctrl-C, which a terminal sends to workers as well, is left to the parent. An interrupted worker
    can end with a lock that its parent shares with it, and waits for.

    It ends at once when its parent is gone, however that went. Torch's workers look every 5 s; one
    whose parent is killed while it starts never notices, since it takes the parent's heir for its
    parent. A worker of an executor waits on a queue that it could write to itself.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="shardgraph-orphan", daemon=True).start()
    if then is not None:
        then(*args)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
