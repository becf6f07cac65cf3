"""Rows of any DBAPI driver as Arrow."""

import datetime as dt
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from queryserver.domain.errors.statements import StatementRejected
from queryserver.engines.sqlalchemy.types import DeclaredColumn

Values = Sequence[Any]
_MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError)


class RowReader:
    """Reads the rows of one result. A column whose first values do not fit its type is text for the whole result."""

    def __init__(self, declared: Sequence[DeclaredColumn]) -> None:
        self._names = [one.column.name for one in declared]
        self._types = [one.arrow for one in declared]
        self._is_decided = False

    def read(self, rows: Sequence[Values]) -> pa.RecordBatch:
        """The next rows as one batch. Raises StatementRejected for a value that what came before has no place for."""
        by_column = list(zip(*rows, strict=True)) or [()] * len(self._types)
        arrays = [self._array(place, values) for place, values in enumerate(by_column)]
        self._is_decided = True
        return pa.RecordBatch.from_arrays(arrays, names=self._names)

    def _array(self, place: int, values: Values) -> pa.Array:
        try:
            return _read(self._types[place], values)
        except _MISFITS as error:
            if self._is_decided:
                text = f"column {self._names[place]} holds a value unlike those before it: cast the column to text"
                raise StatementRejected(text) from error
        self._types[place] = pa.string()
        return _read(pa.string(), values)


def _read(wanted: pa.DataType, values: Values) -> pa.Array:
    if wanted == pa.string():
        return pa.array([None if value is None else _text(value) for value in values], wanted)
    if wanted == pa.binary():
        return pa.array([None if value is None else _bytes(value) for value in values], wanted)
    return pa.array(values, wanted)


def _bytes(value: object) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(type(value).__name__)


def _text(value: object) -> str:
    """The text form of Contract editor 6.3."""
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode(errors="replace")
    if isinstance(value, (list, tuple, dict, set)):
        plain: object = list(value) if isinstance(value, set) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return json.dumps(plain, default=_text, ensure_ascii=False)
    if isinstance(value, dt.timedelta):
        return _time(value)
    return str(value)


def _time(value: dt.timedelta) -> str:
    """A time of day, or more than a day: `-838:59:59`, with microseconds where there are some."""
    whole, micros = divmod(abs(value), dt.timedelta(seconds=1))
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" if value < dt.timedelta(0) else ""
    fraction = f".{micros.microseconds:06d}" if micros else ""
    return f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}{fraction}"
