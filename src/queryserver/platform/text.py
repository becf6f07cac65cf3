r"""Parses booleans, byte amounts and strict JSON from clients, and builds natural sort keys (Contract platform 1.2).

Strict JSON has no duplicate keys, NaN, U+0000 or lone surrogates, and limits on depth and size apply.

Python's own parser is used only for short texts without `\u` escapes: it holds the interpreter lock until the whole
text is parsed (0.9 s for 16 MB of `[],`). Longer texts are parsed token by token.
"""

import json
import math
import re
from typing import Any, NoReturn, TypeGuard

from queryserver.errors.base import InvalidJson

MAX_DEPTH = 64
_SHORT_BYTES = 64 * 1024
_SAFE_DEPTH = 100  # far below the interpreter's recursion limit
# 16 MiB can contain 8 million values, which would occupy gigabytes as Python objects.
MAX_VALUES = 1_000_000
_MAX_DIGITS = 4300  # the default limit of int()

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

_HEX = "[0-9A-Fa-f]"
# Surrogates are allowed only in pairs, and U+0000 is not allowed.
_UNICODE_ESCAPE = (
    rf"u(?!0000)(?:[0-9A-CEFa-cef]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}"
    rf"|[dD][89ABab]{_HEX}{{2}}\\u[dD][C-Fc-f]{_HEX}{{2}})"
)
_STRING_PIECE = re.compile(rf'(?:[^"\\\x00-\x1f]{{1,4096}}+|\\(?:["\\/bfnrt]|{_UNICODE_ESCAPE})){{0,1024}}+')
_BLANKS = re.compile(r"[ \t\n\r]{0,65536}+")
_TOKEN = re.compile(
    r"[ \t\n\r]{0,64}+(?:"
    r"([\[\]{},:])"
    r'|("[^"\\\x00-\x1f]{0,4096}+")'
    rf"|(-?(?:0|[1-9][0-9]{{0,{_MAX_DIGITS - 1}}}+)(\.[0-9]{{1,65536}}+)?([eE][+-]?[0-9]{{1,65536}}+)?)"
    r"|(true|false|null)"
    r'|(")'
    r")"
)
_PUNCTUATION, _STRING, _NUMBER, _FRACTION, _EXPONENT, _WORD, _QUOTE = range(1, 8)
_WORDS = {"true": True, "false": False, "null": None}

_DIGITS = re.compile(r"([0-9]{1,18})")
_TRUE_WORDS = frozenset({"true", "1", "yes", "on", "y", "t", "yea"})
_FALSE_WORDS = frozenset({"false", "0", "no", "off", "n", "f", "nay"})


def parse_boolean(text: str) -> bool | None:
    """Parse a boolean word from a form, option or environment variable, ignoring case; None for other words.

    Whitespace is not stripped, and the empty string is not a boolean (forms treat it as false). Cells of files follow
    another rule (`formats/conversion`): there `1` is a number and `no` is text.
    """
    word = text.lower()
    return True if word in _TRUE_WORDS else False if word in _FALSE_WORDS else None


_AMOUNT = re.compile(r"(?P<number>\d{1,12}(\.\d{1,6})?)\s*(?P<prefix>[KMGT]i?)?B", re.IGNORECASE)


def parse_byte_amount(text: str) -> int | None:
    """Parse a number of bytes such as `512MB` or `1.5 GiB`; None if the text has another form."""
    if (found := _AMOUNT.fullmatch(text)) is None:
        return None
    prefix = (found["prefix"] or "").upper()
    base = 1024 if prefix.endswith("I") else 1000
    return int(float(found["number"]) * base ** ("KMGT".index(prefix[0]) + 1 if prefix else 0))


def parse_json(source: bytes | str, *, max_depth: int = MAX_DEPTH) -> object:
    """Parse JSON strictly. Raises InvalidJson.

    16 MiB take 10 ms as one long string but seconds as many small values, so parse more than a few KiB in a thread.
    """
    try:
        text = source.decode() if isinstance(source, bytes) else source
    except UnicodeDecodeError:
        raise InvalidJson("The JSON text is not valid UTF-8.") from None
    levels = text.count("[") + text.count("{")  # upper bound
    harmless = len(text) <= _SHORT_BYTES and "\\u" not in text and levels <= min(max_depth, _SAFE_DEPTH)
    if not harmless:
        return StepwiseParser(text, max_depth).parse()
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidJson(f"The JSON text does not parse: {error}.") from None
    except ValueError:  # an integer with too many digits
        raise InvalidJson("A JSON number is too large.") from None


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a parsed value is a JSON object. Its keys are strings."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Return whether a parsed value is a JSON array."""
    return isinstance(value, list)


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(members)
    if len(unique) != len(members):
        raise InvalidJson("A JSON object has a duplicate key.")
    return unique


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise InvalidJson("A JSON number is too large.")
    return number


def _no_constant(word: str) -> NoReturn:
    raise InvalidJson(f"{word} is not a JSON value.")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_no_constant)


class StepwiseParser:
    """Parses JSON token by token, so that it never holds the interpreter lock for more than a few milliseconds."""

    def __init__(self, text: str, max_depth: int) -> None:
        self._text = text
        self._max_depth = max_depth
        self._position = 0
        self._values = 0
        self._open: list[list[Any] | dict[str, Any]] = []
        self._keys: list[str] = []

    def parse(self) -> object:
        """Parse the text. Raises InvalidJson."""
        while True:
            token = self._token()
            if token[_PUNCTUATION]:
                value = self._open_container(token[_PUNCTUATION])
                if value is None:
                    continue
            else:
                value = self._scalar(token)
            value, is_root = self._place_value(value)
            if is_root:
                return value

    def _open_container(self, mark: str) -> list[Any] | dict[str, Any] | None:
        """Start an array or object. If it is empty, it is complete and is returned; otherwise returns None."""
        if mark not in "[{" or len(self._open) == self._max_depth:
            raise self._error("nested too deeply" if mark in "[{" else "missing value")
        self._count()
        container: list[Any] | dict[str, Any] = [] if mark == "[" else {}
        self._skip_blanks()
        if self._text.startswith("]" if mark == "[" else "}", self._position):
            self._position += 1
            return container
        self._open.append(container)
        if mark == "{":
            self._read_key({})
        return None

    def _place_value(self, value: object) -> tuple[object, bool]:
        """Add a complete value to its container and close the containers that end after it.

        Returns the root value and True when the root is complete, otherwise None and False.
        """
        while self._open:
            container = self._open[-1]
            if isinstance(container, list):
                container.append(value)
            else:
                container[self._keys.pop()] = value
            mark = self._token()[_PUNCTUATION]
            if mark == ",":
                if isinstance(container, dict):
                    self._read_key(container)
                return None, False
            if mark != ("]" if isinstance(container, list) else "}"):
                raise self._error("missing ',' or closing bracket")
            value = self._open.pop()
        self._skip_blanks()
        if self._position < len(self._text):
            raise self._error("more than one value")
        return value, True

    def _read_key(self, container: dict[str, Any]) -> None:
        token = self._token()
        if token.lastindex not in (_STRING, _QUOTE):
            raise self._error("missing key")
        key = self._string(token)
        if key in container:
            raise InvalidJson("A JSON object has a duplicate key.")
        if self._token()[_PUNCTUATION] != ":":
            raise self._error("missing ':'")
        self._keys.append(key)

    def _scalar(self, token: re.Match[str]) -> object:
        self._count()
        if token.lastindex in (_STRING, _QUOTE):
            return self._string(token)
        if token[_WORD]:
            return _WORDS[token[_WORD]]
        if token[_FRACTION] or token[_EXPONENT]:
            return _finite(token[_NUMBER])
        return int(token[_NUMBER])

    def _string(self, token: re.Match[str]) -> str:
        if token[_STRING]:
            return token[_STRING][1:-1]
        pieces: list[str] = []
        while piece := _take_text(_STRING_PIECE, self._text, self._position):
            self._position += len(piece)
            pieces.append(json.loads(f'"{piece}"') if "\\" in piece else piece)
        if not self._text.startswith('"', self._position):
            raise self._error("an unterminated string, an invalid escape, or an unescaped control character")
        self._position += 1
        return "".join(pieces)

    def _token(self) -> re.Match[str]:
        token = _TOKEN.match(self._text, self._position)
        if token is None:
            self._skip_blanks()
            token = _TOKEN.match(self._text, self._position)
            if token is None:
                raise self._error("invalid JSON")
        self._position = token.end()
        return token

    def _skip_blanks(self) -> None:
        while blanks := _take_text(_BLANKS, self._text, self._position):
            self._position += len(blanks)

    def _count(self) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise InvalidJson(f"The JSON text has more than {MAX_VALUES} values.")

    def _error(self, problem: str) -> InvalidJson:
        return InvalidJson(f"The JSON text does not parse: {problem} at character {self._position}.")


def _take_text(pattern: re.Pattern[str], text: str, start: int) -> str:
    match = pattern.match(text, start)
    return match[0] if match else ""


def natural_key(name: str) -> tuple[tuple[str | tuple[int, str], ...], str]:
    """Return a sort key that compares digit sequences as numbers. Names that differ only in case have a fixed order."""
    parts = _DIGITS.split(name.casefold())
    # Text is at even indexes and numbers are at odd indexes, so only values of the same type are compared.
    return tuple((int(part), part) if place % 2 else part for place, part in enumerate(parts)), name


def read_traceparent(text: str | None) -> str | None:
    """Return a header `traceparent` of version 00 (W3C Trace Context), or None if it is absent or invalid."""
    return text if text is not None and _TRACEPARENT.fullmatch(text) else None
