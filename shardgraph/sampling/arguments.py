"""Checks of a plan's arguments, whose errors name the argument, its value and what is allowed."""

import operator
from collections.abc import Iterator, Mapping
from typing import SupportsIndex

import numpy as np

from shardgraph.sampling.budget import Budget, Limit
from shardgraph.sampling.sizes import SizesByType, TypeName, type_name

_LARGEST = np.iinfo(np.int64).max


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


def make_budget(
    max_nodes: int | Mapping[TypeName, int] | None,
    max_edges: int | Mapping[TypeName, int] | None,
    max_graphs: int | None,
    num_nodes: SizesByType | None,
    num_edges: SizesByType | None,
) -> Budget:
    """Return the budgets that were given, with the sizes they need."""
    limits = [
        *_limits("max_nodes", max_nodes, "num_nodes", num_nodes),
        *_limits("max_edges", max_edges, "num_edges", num_edges),
    ]
    if max_graphs is not None:
        limits.append(Limit(name="max_graphs", maximum=_budget("max_graphs", max_graphs)))
    return Budget(tuple(limits))


def _limits(
    name: str,
    maximum: int | Mapping[TypeName, int] | None,
    needs: str,
    sizes: SizesByType | None,
) -> Iterator[Limit]:
    """Yield the budget of all types together, or one for each type that is named."""
    if maximum is None:
        return
    if sizes is None:
        raise ValueError(f"{name} needs the sizes of the graphs: give {needs}, one number a graph.")
    if not isinstance(maximum, Mapping):
        yield Limit(name=name, maximum=_budget(name, maximum), sizes=sizes.total)
        return
    if not maximum:
        raise ValueError(f"{name} must name at least one type, got {{}}.")
    for key, value in maximum.items():
        kind = type_name(key)
        if kind not in sizes.by_type:
            known = ", ".join(map(repr, sizes.by_type)) or "one kind only: give a number"
            raise ValueError(f"{name} names the type {key!r}; the graphs have {known}.")
        each = f"{name}[{kind!r}]"
        yield Limit(name=each, maximum=_budget(each, value), sizes=sizes.by_type[kind])


def _budget(name: str, value: SupportsIndex) -> int:
    return integer(name, value, 1, _LARGEST)


def refuse_oversized(budget: Budget) -> None:
    """Raise a ValueError that names the first graph over budget, if there is one."""
    count, graph = budget.find_oversized()
    if not count:
        return
    sizes = budget.sizes(np.array([graph]))[0].tolist()
    limit, size = next(
        (li, n) for li, n in zip(budget.limits, sizes, strict=True) if n > li.maximum
    )
    what = limit.name.removeprefix("max_").replace("[", " of type ").rstrip("]")
    raise ValueError(
        f"Graph {graph} has {size} {what}, over "
        f"{limit.name}={limit.maximum}; graphs over a budget: {count}. Raise the budget, or give "
        "oversized='alone' for a batch of its own or oversized='skip' to leave such graphs out."
    )
