"""Decodes values in arrays, maps and structs, whose types are parsed from the engine's own type name.

Typed JSON specifies the type of a column, but not the types of nested elements. The engine's type name does:
`STRUCT(a DECIMAL(10,2), b DATE[])` (duckdb), `numeric[]` (postgresql), `array(row(a decimal(10,2)))` (trino),
`map<string,array<decimal(10,2)>>` (hive). Values of unknown types are returned unchanged, as in the JSON.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from queryserver_client import scalars

Cell = Callable[[Any], Any]

_TOKEN = re.compile(r"""\s*("(?:[^"]|"")*"|`(?:[^`]|``)*`|[^\s()<>\[\],:"`]+|[()<>\[\],:])""")
_CLOSES = {"(": ")", "<": ">"}
_ARRAYS = frozenset({"array", "list"})
_STRUCTS = frozenset({"struct", "row"})
_MAX_CHARACTERS = 100_000


class _Unreadable(Exception):
    """The type name has an unknown syntax."""


def nested_decoder(native_type: str) -> Cell | None:
    """Return the function that decodes cells of a nested type.

    None if no conversion is necessary, or if the type name cannot be parsed.
    """
    reader = _Reader(native_type)
    try:
        decode = reader.type()
    except (_Unreadable, RecursionError):
        return None
    return decode if reader.is_at_end else None


class _Reader:
    """A recursive descent parser for type names, which returns decoders."""

    def __init__(self, text: str) -> None:
        self._words = _TOKEN.findall(text) if len(text) <= _MAX_CHARACTERS else []
        self._place = 0

    @property
    def is_at_end(self) -> bool:
        return self._place == len(self._words)

    def type(self) -> Cell | None:
        """Parse a complete type, including a trailing `[]`."""
        word = self._next().lower()
        if word in _ARRAYS and self._peek() in _CLOSES:
            decode = _array(self._between(self.type)[0])
        elif word == "map" and self._peek() in _CLOSES:
            parts = self._between(self.type)
            decode = _map(parts[-1]) if len(parts) == 2 else None
        elif word in _STRUCTS and self._peek() in _CLOSES:
            decode = _struct(dict(self._between(self._field)))
        else:
            decode = self._scalar(word)
        while self._peek() == "[":
            while self._next() != "]":
                pass
            decode = _array(decode)
        return decode

    def _scalar(self, word: str) -> Cell | None:
        """Parse the rest of a scalar type, which may have several words and numbers: `timestamp(3) with time zone`."""
        words = [word]
        while (peeked := self._peek()) not in {"", ",", ")", ">", "["}:
            if peeked == "(":
                self._skip()
            else:
                words.append(self._next().lower())
        return scalars.decoder_of_words(tuple(words))

    def _field(self) -> tuple[str, Cell | None]:
        """Parse a struct field: `name type` or `name: type`."""
        name = self._next()
        if name[0] in '"`':
            name = name[1:-1].replace(name[0] * 2, name[0])
        if self._peek() == ":":
            self._next()
        return name, self.type()

    def _between(self, read: Callable[[], Any]) -> list[Any]:
        """Parse a comma-separated list in brackets."""
        closing = _CLOSES[self._next()]
        items = [read()]
        while (word := self._next()) != closing:
            if word != ",":
                raise _Unreadable
            items.append(read())
        return items

    def _skip(self) -> None:
        depth = 0
        while True:
            word = self._next()
            depth += (word == "(") - (word == ")")
            if not depth:
                return

    def _next(self) -> str:
        word = self._peek()
        if not word:
            raise _Unreadable
        self._place += 1
        return word

    def _peek(self) -> str:
        return "" if self.is_at_end else self._words[self._place]


def _array(item: Cell | None) -> Cell | None:
    if item is None:
        return None

    def decode(cell: Any) -> Any:
        if not isinstance(cell, list):
            return cell
        return [_decoded(item, element) for element in cast("list[Any]", cell)]

    return decode


def _map(value: Cell | None) -> Cell | None:
    """Return the decoder of a map. Keys stay strings, as in JSON, whatever their type on the engine."""
    if value is None:
        return None

    def decode(cell: Any) -> Any:
        if not isinstance(cell, dict):
            return cell
        return {key: _decoded(value, element) for key, element in cast("dict[str, Any]", cell).items()}

    return decode


def _struct(fields: Mapping[str, Cell | None]) -> Cell | None:
    known = {name: decode for name, decode in fields.items() if decode is not None}
    if not known:
        return None

    def decode(cell: Any) -> Any:
        if not isinstance(cell, dict):
            return cell
        return {name: _decoded(known.get(name), item) for name, item in cast("dict[str, Any]", cell).items()}

    return decode


def _decoded(decode: Cell | None, cell: Any) -> Any:
    return cell if cell is None or decode is None else decode(cell)
