"""The Hue form of cells: HTML-escaped text (Contract editor 6.3, `isEscaped: true`)."""

import html

import orjson
import pyarrow as pa
from pyarrow import types

from queryserver.formats.cells_scalar import is_binary


def escaped_values(values: list[object], array: pa.Array) -> list[object]:
    """Raw cells as Hue's clients expect them. `array` is what they were made of."""
    if is_binary(array.type):
        return ["NULL" if value is None else _escaped(value.decode(errors="replace")) for value in array.to_pylist()]
    if types.is_floating(array.type):
        # repr() of a float is the shortest text that reads back; it also has Hue's words nan, inf and -inf.
        return ["NULL" if value is None else repr(float(value)) for value in values]  # type: ignore[arg-type]
    return [_escaped_value(value) for value in values]


def _escaped_value(value: object) -> object:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return _escaped(value)
    return _escaped(orjson.dumps(value).decode()) if isinstance(value, list | dict) else value


def _escaped(text: str) -> str:
    return html.escape(text, quote=True).replace(" ", "&nbsp;")
