"""Values as texts, for engines that have no type of their own for them (Contract importer 12.2)."""

from base64 import b64encode
from typing import Any

import pyarrow as pa
import pyarrow.compute

# The kernels are made when the package is loaded, so its stubs know only some of them.
_kernels: Any = pyarrow.compute

_HOUR_US = 3_600_000_000


def duration_text(durations: pa.Array) -> pa.Array:
    """Durations in microseconds as `30:00:00`, `-00:00:00.500000`: hours, which may exceed 24; a fraction if any."""
    microseconds = durations.cast(pa.int64())
    size = _kernels.abs(microseconds)
    hours = _kernels.divide(size, _HOUR_US)
    rest = _kernels.subtract(size, _kernels.multiply(hours, _HOUR_US)).cast(pa.time64("us"))
    minutes = _kernels.utf8_slice_codeunits(without_zero_fraction(rest.cast(pa.string())), 2)
    sign = _kernels.if_else(_kernels.less(microseconds, 0), "-", "")
    padded = _kernels.utf8_lpad(hours.cast(pa.string()), 2, "0")
    return _kernels.binary_join_element_wise(sign, padded, minutes, "")


def without_zero_fraction(texts: pa.Array) -> pa.Array:
    """Times as Arrow writes them, `10:20:30.000000`, without a fraction of zeros."""
    cut = _kernels.utf8_slice_codeunits(texts, 0, -7)
    return _kernels.if_else(_kernels.ends_with(texts, ".000000"), cut, texts)


def cell_texts(values: pa.Array) -> pa.Array:
    """Values of any imported type as texts that a cast reads back: `true`, `1.5e-07`, `NaN`, `2024-01-31 10:20:30`.

    Those of bytes are base64, which an engine has a function for.
    """
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_duration(kind):
        return duration_text(values)
    if pa.types.is_binary(kind):
        return base64_texts(values)
    if pa.types.is_floating(kind):
        return _float_texts(values)
    if pa.types.is_decimal(kind):
        # Arrow writes small ones with an exponent.
        return pa.array([None if value is None else format(value, "f") for value in values.to_pylist()], pa.string())
    texts = values.cast(pa.string())
    is_clock = pa.types.is_time(kind) or pa.types.is_timestamp(kind)
    return without_zero_fraction(texts) if is_clock else texts


def base64_texts(values: pa.Array) -> pa.Array:
    """Bytes in base64."""
    return pa.array([None if value is None else b64encode(value).decode() for value in values.to_pylist()], pa.string())


def hex_texts(values: pa.Array, before: str = "", behind: str = "") -> pa.Array:
    """Bytes in hexadecimal digits, between two texts."""
    found = (None if value is None else f"{before}{value.hex()}{behind}" for value in values.to_pylist())
    return pa.array(found, pa.string())


def _float_texts(values: pa.Array) -> pa.Array:
    """As Java reads them."""
    texts = values.cast(pa.string())
    for arrow, java in (("nan", "NaN"), ("-nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        texts = _kernels.if_else(_kernels.equal(texts, arrow), java, texts)
    return texts


def plain_decimals(decimals: pa.Array) -> pa.Array:
    """Decimal numbers with all their digits and without an exponent, which Arrow writes for the smallest."""
    texts = decimals.cast(pa.string())
    if not _kernels.any(_kernels.match_substring(texts, "E")).as_py():
        return texts
    return pa.array([None if value is None else f"{value:f}" for value in decimals.to_pylist()], pa.string())
