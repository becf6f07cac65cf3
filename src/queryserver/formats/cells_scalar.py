"""Text, floats, decimals and bytes as raw cells (Contract editor 6.3)."""

import math
from base64 import b64encode
from decimal import Decimal

import pyarrow as pa
from pyarrow import types

from queryserver.formats.cells_kernels import kernels

# Arrow writes decimals below 10^-6 with an exponent, as Java does.
_PLAIN_SCALES = range(7)


def is_text(kind: pa.DataType) -> bool:
    """Whether values are text."""
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def is_binary(kind: pa.DataType) -> bool:
    """Whether values are bytes."""
    plain = types.is_binary(kind) or types.is_large_binary(kind)
    return plain or types.is_fixed_size_binary(kind) or types.is_binary_view(kind)


def text_values(array: pa.Array) -> list[object]:
    """Text unchanged. Arrow does not check what a driver gives: bytes that are no UTF-8 become U+FFFD."""
    try:
        return array.to_pylist()
    except UnicodeDecodeError:
        values = array.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode(errors="replace") for value in values]


def float_values(array: pa.Array) -> list[object]:
    """Floats; NaN and the infinities as text."""
    if types.is_float32(array.type):
        # Through text: 0.1 as a float of 32 bits is 0.1, and not the 0.10000000149011612 of a mere widening.
        array = array.cast(pa.string()).cast(pa.float64())
    elif types.is_float16(array.type):
        array = array.cast(pa.float64())
    values = array.to_pylist()
    if kernels.all(kernels.is_finite(array), min_count=0).as_py():
        return values
    return [value if value is None or math.isfinite(value) else _odd_float(value) for value in values]


def _odd_float(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def decimal_texts(array: pa.Array) -> list[object]:
    """Decimals with the digits of their scale, never with an exponent."""
    texts = array.cast(pa.string()).to_pylist()
    if array.type.scale in _PLAIN_SCALES:
        return texts
    return [format(Decimal(text), "f") if text and "E" in text else text for text in texts]


def binary_values(array: pa.Array) -> list[object]:
    """Bytes as base64."""
    return [None if value is None else b64encode(value).decode() for value in array.to_pylist()]
