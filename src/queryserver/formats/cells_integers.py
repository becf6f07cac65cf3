"""Integers as JSON numbers, and as text where readers keep only the digits of a double (Contract editor 6.3)."""

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from queryserver.formats.cells_kernels import kernels

EXACT_IN_A_DOUBLE = 2**53 - 1
"""The largest integer that no other one is read as (JavaScript: Number.MAX_SAFE_INTEGER)."""

Integers: TypeAlias = Callable[[pa.Array], list[object]]
"""The cells of an array of integers."""


def as_numbers(array: pa.Array) -> list[object]:
    """All of them as numbers."""
    return array.to_pylist()


def as_texts(array: pa.Array) -> list[object]:
    """Those of a type of 64 bits as text, whatever their values: a column has one form."""
    return array.cast(pa.string()).to_pylist() if array.type.bit_width == 64 else array.to_pylist()


def as_texts_where_needed(array: pa.Array) -> list[object]:
    """Those that a double does not keep as text."""
    values = array.to_pylist()
    if array.type.bit_width < 64 or not len(array):
        return values
    bounds = kernels.min_max(array).as_py()
    if max(-(bounds["min"] or 0), bounds["max"] or 0) <= EXACT_IN_A_DOUBLE:
        return values
    return [str(value) if value is not None and abs(value) > EXACT_IN_A_DOUBLE else value for value in values]
