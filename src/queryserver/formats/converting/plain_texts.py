"""Typed values as texts in the plain forms that `columns` reads back (Contract importer 12.1)."""

import pyarrow as pa
from pyarrow import types

from queryserver.domain.result import Column, ResultType
from queryserver.formats.download.text import texts

_TYPES = (
    (types.is_boolean, ResultType.BOOLEAN),
    (types.is_decimal, ResultType.DECIMAL),
)


def plain_texts(values: pa.Array) -> pa.StringArray:
    """The text of each value, with all its digits; NULL stays NULL."""
    if types.is_string(values.type):
        return values
    if types.is_duration(values.type):
        return pa.array([None if value is None else _clock(value) for value in values.cast(pa.int64()).to_pylist()])
    kind = next((known for is_so, known in _TYPES if is_so(values.type)), ResultType.STRING)
    return texts(values, Column("", kind, "")).cast(pa.string())


def _clock(microseconds: int) -> str:
    """Hours, which may exceed 24, minutes, seconds and their fraction."""
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    shown = f".{fraction:06}" if fraction else ""
    return f"{'-' if microseconds < 0 else ''}{hours:02}:{minute:02}:{second:02}{shown}"
