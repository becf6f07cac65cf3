"""The types inside of arrays, maps and structs, read from the text of the engine's type.

Typed JSON names the type of a column, but not those of its elements; the engine's own text does:
`STRUCT(a DECIMAL(10,2), b DATE[])` (duckdb), `numeric[]` (postgresql), `array(row(a decimal(10,2)))` (trino),
`map<string,array<decimal(10,2)>>` (hive). What cannot be read stays as it came: text with all digits.
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
_MOST_CHARACTERS = 100_000


class _Unreadable(Exception):
    """The text is not of a form that is known here."""


def nested_decoder(native_type: str) -> Cell | None:
    """What converts the elements of a column; None when they are values already, or the text cannot be read."""
    reader = _Reader(native_type)
    try:
        decode = reader.type()
    except (_Unreadable, RecursionError):
        return None
    return decode if reader.is_at_end else None


class _Reader:
    """Recursive descent over the words of a type."""

    def __init__(self, text: str) -> None:
        self._words = _TOKEN.findall(text) if len(text) <= _MOST_CHARACTERS else []
        self._place = 0

    @property
    def is_at_end(self) -> bool:
        return self._place == len(self._words)

    def type(self) -> Cell | None:
        """A type with everything that belongs to it, `[]` behind it included."""
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
        """A type of one or more words, with its numbers: `timestamp(3) with time zone`."""
        words = [word]
        while (peeked := self._peek()) not in {"", ",", ")", ">", "["}:
            if peeked == "(":
                self._skip()
            else:
                words.append(self._next().lower())
        return scalars.decoder_of_words(tuple(words))

    def _field(self) -> tuple[str, Cell | None]:
        """`name type` or `name: type`."""
        name = self._next()
        if name[0] in '"`':
            name = name[1:-1].replace(name[0] * 2, name[0])
        if self._peek() == ":":
            self._next()
        return name, self.type()

    def _between(self, read: Callable[[], Any]) -> list[Any]:
        """What stands between brackets, separated by commas."""
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
    """Keys are text in JSON, whatever they are at the engine, and stay text."""
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
