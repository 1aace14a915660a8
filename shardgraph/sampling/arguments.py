"""Checks of a plan's arguments, whose errors name the argument, its value and what is allowed."""

import operator
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardgraph.sampling.budget import Budget, Limit


def integer(
    name: str, value: SupportsIndex, low: int, high: int | None = None, *, because: str = ""
) -> int:
    """Return ``value`` as an int within [low, high]."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}.")

    if number < low or (high is not None and number > high):
        allowed = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be {allowed}{because}, got {number}.")
    return number


def size_array(name: str, sizes: ArrayLike | None, num_graphs: int) -> NDArray[np.integer] | None:
    """Return sizes as an integer array [num_graphs], without a copy where they are one."""
    if sizes is None:
        return None
    array = np.asarray(sizes)
    if not array.size:
        array = array.astype(np.int64)
    if array.shape != (num_graphs,):
        raise ValueError(
            f"{name} must have one number for each of {num_graphs} graphs, got shape {array.shape}."
        )
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got dtype {array.dtype}.")
    if num_graphs and array.min() < 0:
        raise ValueError(
            f"{name} must not be negative, got {array.min()} for graph {int(array.argmin())}."
        )
    return array


def make_budget(
    max_nodes: int | None,
    max_edges: int | None,
    max_graphs: int | None,
    num_nodes: NDArray[np.integer] | None,
    num_edges: NDArray[np.integer] | None,
) -> Budget:
    """Return the budgets that were given, with the sizes they need."""
    limits = []
    for name, maximum, needs, sizes in (
        ("max_nodes", max_nodes, "num_nodes", num_nodes),
        ("max_edges", max_edges, "num_edges", num_edges),
        ("max_graphs", max_graphs, None, None),
    ):
        if maximum is None:
            continue
        if needs and sizes is None:
            raise ValueError(
                f"{name} needs the sizes of the graphs: give {needs}, one number a graph."
            )
        limits.append(Limit(name=name, maximum=integer(name, maximum, 1), sizes=sizes))
    return Budget(tuple(limits))


def refuse_oversized(budget: Budget) -> None:
    """Raise a ValueError that names the first graph over budget, if there is one."""
    count, graph = budget.find_oversized()
    if not count:
        return
    sizes = budget.sizes(np.array([graph]))[0].tolist()
    limit, size = next(
        (li, n) for li, n in zip(budget.limits, sizes, strict=True) if n > li.maximum
    )
    raise ValueError(
        f"Graph {graph} has {size} {limit.name.removeprefix('max_')}, over "
        f"{limit.name}={limit.maximum}; graphs over a budget: {count}. Raise the budget, or give "
        "oversized='single' for a batch of its own or oversized='skip' to leave such graphs out."
    )
