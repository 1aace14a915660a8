"""The pool of worker processes: how they start, and that none outlives its use."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from shardgraph.processes import begin_worker


def prepare() -> None:
    """Starts importing torch and PyG for the workers, while this process does something else.

    Loads neither here.
    """
    context = _context()
    if context.get_start_method() == "forkserver":
        from multiprocessing.forkserver import ensure_running

        ensure_running()


def _context() -> BaseContext:
    """How workers start.

    Not by fork: torch's threads may hold locks, which a forked child would wait for in vain. A fork
    server imports torch and PyG once (2 to 4 s) and forks each worker from there in milliseconds;
    spawn pays the import in each worker.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["shardgraph.convert.execute"])
    return context


@contextmanager
def process_pool(
    workers: int,
) -> Iterator[tuple[ProcessPoolExecutor, Callable[[], set[BaseProcess]]]]:
    """A pool, and a function that gives the processes it has had so far.

    An exception in the block ends them at once.
    """
    others = set(multiprocessing.active_children())
    children: set[BaseProcess] = set()

    def seen() -> set[BaseProcess]:
        children.update(set(multiprocessing.active_children()) - others)
        return children

    pool = ProcessPoolExecutor(
        workers, mp_context=_context(), initializer=begin_worker, initargs=(_use_one_thread,)
    )
    try:
        yield pool, seen
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in seen():
            process.terminate()
        raise
    finally:
        pool.shutdown()


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)
