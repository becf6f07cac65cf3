"""Arrow's compute kernels under the names and types that downloads use them by."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute

# pyarrow makes these functions when it is imported, where no type checker sees them.
_kernels: Any = pyarrow.compute


def matching(texts: pa.Array, regex: str) -> pa.Array:
    """Which texts hold a match of an RE2 expression."""
    return _kernels.match_substring_regex(texts, regex)


def count_matches(texts: pa.Array, regex: str) -> int:
    """How many matches all texts hold together."""
    return total(_kernels.count_substring_regex(texts, regex))


def substituted(texts: pa.Array, old: str, new: str) -> pa.Array:
    """Texts with every `old` replaced."""
    return _kernels.replace_substring(texts, old, new)


def byte_lengths(texts: pa.Array) -> pa.Array:
    """Bytes of each text or binary value."""
    return _kernels.binary_length(texts)


def character_lengths(texts: pa.Array) -> pa.Array:
    """Code points of each text."""
    return _kernels.utf8_length(texts)


def present(array: pa.Array) -> pa.Array:
    """Which values are not NULL."""
    return _kernels.is_valid(array)


def only(where: pa.Array, array: pa.Array) -> pa.Array:
    """The values where the mask is true, NULL at the others."""
    return _kernels.if_else(where, array, None)


def within(array: pa.Array, first: float, beyond: float) -> pa.Array:
    """Which numbers are in [first, beyond)."""
    return _kernels.and_(_kernels.greater_equal(array, first), _kernels.less(array, beyond))


def scaled(array: pa.Array, divisor: float, offset: float) -> pa.Array:
    """Numbers divided, then moved, as doubles."""
    return _kernels.add(_kernels.divide(array.cast(pa.float64(), safe=False), divisor), offset)


def some(mask: pa.Array) -> bool:
    """Whether any value is true; NULL is not."""
    return bool(_kernels.any(mask).as_py())


def every(mask: pa.Array) -> bool:
    """Whether all values but NULLs are true."""
    return _kernels.all(mask).as_py() is not False


def both(first: pa.Array, second: pa.Array) -> pa.Array:
    """Logical and."""
    return _kernels.and_(first, second)


def either(first: pa.Array, second: pa.Array) -> pa.Array:
    """Logical or."""
    return _kernels.or_(first, second)


def negated(mask: pa.Array) -> pa.Array:
    """Logical not."""
    return _kernels.invert(mask)


def chosen(mask: pa.Array, yes: pa.Array, no: pa.Array) -> pa.Array:
    """For each row the value of `yes` or of `no`; NULL where the mask is."""
    return _kernels.if_else(mask, yes, no)


def equal_to(array: pa.Array, value: float) -> pa.Array:
    """Which numbers are `value`."""
    return _kernels.equal(array, value)


def above(array: pa.Array, value: int) -> pa.Array:
    """Which numbers are larger than `value`."""
    return _kernels.greater(array, value)


def finite(array: pa.Array) -> pa.Array:
    """Which numbers are neither NaN nor infinite."""
    return _kernels.is_finite(array)


def largest(array: pa.Array) -> int:
    """The largest number; 0 when there is none."""
    return _kernels.max(array).as_py() or 0


def total(array: pa.Array) -> int:
    """The sum; 0 when there is none."""
    return _kernels.sum(array).as_py() or 0


def fractions_of_second(times: pa.Array) -> pa.Array:
    """What is left of times and timestamps without their whole seconds."""
    return _kernels.subsecond(times)


def joined(*pieces: pa.Array | str, separator: str = "", null: str | None = None) -> pa.Array:
    """The pieces of each row as one text; a NULL counts as `null`, or without that makes the row NULL."""
    handling = "emit_null" if null is None else "replace"
    return _kernels.binary_join_element_wise(*pieces, separator, null_handling=handling, null_replacement=null or "")


def row_bytes(*pieces: pa.Array | str, separator: str = "", null: str = "") -> bytes:
    """The pieces of each row, joined, one row after the other."""
    rows = joined(*pieces, separator=separator, null=null)
    _, offsets, characters = rows.buffers()
    if offsets is None or characters is None:
        return b""
    return characters.slice(0, memoryview(offsets).cast("i")[len(rows)]).to_pybytes()


def changed(texts: pa.Array, where: pa.Array, change: Callable[[Any], str], *, of: pa.Array | None = None) -> pa.Array:
    """Texts, but where the mask is true `change` of the value there, of the texts or of another array.

    `change` is Python and slow; it is called once for each different value.
    """
    if not some(where):
        return texts
    found = (texts if of is None else of).filter(where).dictionary_encode()
    spelled = pa.array([change(value) for value in found.dictionary.to_pylist()], pa.string())
    return _kernels.replace_with_mask(texts, _kernels.fill_null(where, False), spelled.take(found.indices))
