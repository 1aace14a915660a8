"""Ranks: one global sequence of batches, dealt out so that all ranks take the same number of steps.

A step is ``world_size`` consecutive batches of the global sequence, one for each rank. The sequence
itself does not know the ranks. So the ranks' batches, taken step by step, are the same for any
world size, and a run can go on with another one.

Only the last step can be short. Its graphs are shared out: its batches are halved, the one with the
most graphs first, until there is one for each rank. A part of a batch never exceeds a budget that
the batch met. With fewer graphs left than ranks, those (at most ``world_size - 1``) are dropped,
or, with padding, each becomes a batch and the ranks without one get a graph from the start of the
epoch again.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray


def steps(
    batches: Iterable[NDArray[np.int64]], world_size: int
) -> Iterator[list[NDArray[np.int64]]]:
    """Yield lists of ``world_size`` consecutive batches; the last may be shorter."""
    step: list[NDArray[np.int64]] = []
    for batch in batches:
        step.append(batch)
        if len(step) == world_size:
            yield step
            step = []
    if step:
        yield step


def slot(cursor: int, rank: int, world_size: int, *, rotate: bool) -> int:
    """Return which batch of the step that starts at batch ``cursor`` is for ``rank``.

    With ``rotate`` the ranks take turns, so that in a sequence sorted by cost none always gets the
    heaviest batch.
    """
    return (rank + cursor // world_size) % world_size if rotate else rank


def batches_below(stop: int, start: int, rank: int, world_size: int, *, rotate: bool) -> int:
    """Return how many batches of ``rank``, in steps from batch ``start`` on, lie below ``stop``."""
    if stop <= start:
        return 0
    whole = (stop - start) // world_size
    cursor = start + whole * world_size
    return whole + (cursor + slot(cursor, rank, world_size, rotate=rotate) < stop)


def share_out(
    step: list[NDArray[np.int64]], world_size: int, padding: NDArray[np.int64] | None = None
) -> list[NDArray[np.int64]]:
    """Return the graphs of a short step as ``world_size`` batches, or none if they are too few.

    Args:
        step: Fewer than ``world_size`` batches, none empty.
        world_size: Number of ranks.
        padding: int64 [at least world_size], graphs to repeat when there are fewer graphs than
            ranks; None drops them.
    """
    parts = list(step)
    num_graphs = sum(map(len, parts))
    if num_graphs < world_size:
        if padding is None or not num_graphs:
            return []
        ids = np.concatenate((*parts, padding[: world_size - num_graphs]))
        return [ids[i : i + 1] for i in range(world_size)]
    while len(parts) < world_size:
        largest = max(range(len(parts)), key=lambda i: len(parts[i]))
        half = len(parts[largest]) // 2
        parts[largest : largest + 1] = [parts[largest][:-half], parts[largest][-half:]]
    return parts
