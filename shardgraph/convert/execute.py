"""Running the tasks: here, in a pool of processes, or in an executor of the user's own."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from secrets import token_hex

from shardgraph.convert.function import dumps
from shardgraph.convert.job import Job, Task
from shardgraph.convert.journal import Journal
from shardgraph.convert.pool import process_pool
from shardgraph.convert.worker import run_task
from shardgraph.errors import ConversionError

_LOOK_SECONDS = 0.5  # a wait without end would not notice Ctrl-C on every system
_PATIENCE_SECONDS = 30.0  # for tasks in a foreign executor to notice that they are to stop

Advance = Callable[[int], None]


def run_tasks(
    job: Job, tasks: Sequence[Task], *, workers: int, executor: Executor | None, advance: Advance
) -> None:
    """Runs all tasks, in whatever order; on an error or an interrupt none is left running.

    Raises:
        ConversionError: if a task fails, or a worker process dies.
    """
    if executor is not None:
        _run_in_foreign(job, tasks, executor, advance)
    elif min(workers, len(tasks)) > 1:
        _run_in_processes(job, tasks, min(workers, len(tasks)), advance)
    else:
        for task in tasks:
            run_task(job, task, advance=advance)


def _run_in_foreign(job: Job, tasks: Sequence[Task], executor: Executor, advance: Advance) -> None:
    stop = Journal(job.out).directory / f"stop-{token_hex(8)}"
    futures: dict[Future[int], Task] = {}
    try:
        _submit(executor, replace(job, stop=stop), tasks, futures)
        _finish(futures, advance)
    except BaseException:
        stop.touch()
        for future in futures:
            future.cancel()
        wait(futures, timeout=_PATIENCE_SECONDS)
        raise


def _run_in_processes(job: Job, tasks: Sequence[Task], workers: int, advance: Advance) -> None:
    with process_pool(workers) as (pool, children):
        futures: dict[Future[int], Task] = {}
        started: set[BaseProcess] = set()
        try:
            _submit(pool, job, tasks, futures)
            started |= children()
            _finish(futures, advance)
        except BrokenProcessPool as error:
            # The pool's thread reads the exit codes; of two that read one, one gets it wrong.
            pool.shutdown()
            broken = [futures[future] for future in futures if _is_broken(future)]
            raise _died(job, broken, started) from error


def _submit(
    executor: Executor, job: Job, tasks: Sequence[Task], futures: dict[Future[int], Task]
) -> None:
    """Adds a future for each task, which may fail halfway: a worker may be dead already.

    Each gets its own copy of the source, also where threads share memory.
    """
    try:
        pickled = dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"the conversion cannot be sent to workers: {error}. Give functions by name, as "
            "'package.module:function', or define them at the top of a module; or use workers=1"
        ) from error
    for task in tasks:
        futures[executor.submit(run_pickled, pickled, task)] = task


def run_pickled(job: bytes, task: Task) -> int:
    """`run_task` in a worker, which says meanwhile what it works on."""
    found: Job = pickle.loads(job)
    mark = _mark(found, os.getpid())
    mark.write_text(str(task.number))
    try:
        return run_task(found, task)
    finally:
        mark.unlink(missing_ok=True)


def _mark(job: Job, pid: int) -> Path:
    return Journal(job.out).directory / f"running-{pid}-{threading.get_native_id()}"


def _finish(futures: dict[Future[int], Task], advance: Advance) -> None:
    """Waits for all futures; the first error is raised."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED)
        # The workers die of their own errors too: the reason goes before what it broke.
        for future in sorted(done, key=_is_broken):
            advance(future.result())


def _is_broken(future: Future[int]) -> bool:
    return (
        future.done()
        and not future.cancelled()
        and isinstance(future.exception(), BrokenProcessPool)
    )


def _died(job: Job, broken: list[Task], children: set[BaseProcess]) -> ConversionError:
    """The error that names what the worker that died was at."""
    # The pool ends the others, with SIGTERM.
    ended = (None, 0, -signal.SIGTERM)
    dead = [process for process in children if process.exitcode not in ended]
    directory = Journal(job.out).directory
    marks = [mark for p in dead for mark in directory.glob(f"running-{p.pid}-*")]
    numbers = {int(mark.read_text() or -1) for mark in marks or directory.glob("running-*")}
    places = "; or ".join(str(task) for task in broken if task.number in numbers)
    codes = ", ".join(f"exit code {process.exitcode}" for process in dead) or "ended by a signal"
    if not places:
        return ConversionError(
            f"a worker died before it began ({codes}). A program that converts with workers must "
            "guard its main part by `if __name__ == '__main__':`"
        )
    return ConversionError(
        f"a worker died ({codes}) at {places}. If it was short of memory, use fewer workers or a "
        "smaller shard_size"
    )
