"""Numbers as JSON, NaN and infinities included, and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardgraph.errors import FormatError

_SPECIAL = {None: math.nan, "inf": math.inf, "-inf": -math.inf}


def numbers_to_json(numbers: list[Any]) -> list[float | str | None]:
    """Numbers as JSON has them: NaN as null, infinities as text."""
    return [
        value if math.isfinite(value) else None if math.isnan(value) else str(value)
        for value in numbers
    ]


def numbers_of(values: list[Any], dtype: str) -> list[Any]:
    """Numbers from JSON: any for float64, else integers.

    Raises:
        FormatError: if an integer is too large for any dtype.
        KeyError, TypeError: if a value is none of these.
    """
    special, kinds = (_SPECIAL, {int, float}) if dtype == "float64" else ({}, {int})
    numbers = [value if type(value) in kinds else special[value] for value in values]
    if any(type(value) is int and not -(1 << 63) <= value < 1 << 64 for value in numbers):
        raise FormatError(f"a number is too large for {dtype}")
    return numbers


def array_of(values: list[Any], dtype: str) -> NDArray[Any]:
    """An array from JSON.

    Raises:
        FormatError: if a number is too large for the dtype.
    """
    try:
        return np.array(numbers_of(values, dtype), dtype)
    except OverflowError as error:
        raise FormatError(f"a number is too large for {dtype}: {error}") from error
