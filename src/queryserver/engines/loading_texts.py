"""Values as texts, for engines that have no type of their own for them (Contract importer 12.2)."""

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
