"""Parses the type strings of all engines into trees (Contract editor 10.1).

array<struct<k:string,v:array<int>>>        hive, impala, sparksql
array(row(k varchar, "odd name" bigint))    trino
STRUCT(k VARCHAR, "a b" INTEGER[])[]        duckdb
character varying(20)[]                     postgresql
INTEGER ARRAY                               phoenix
enum('a,b','c)')                            mysql
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_DEPTH = 64
"""Types with deeper nesting are treated as scalars."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`)|(?P<text>'(?:[^']|'')*')|(?P<mark>[<>()\[\],:])"""
    r"""|(?P<word>[^\s<>()\[\],:"`']+))"""
)
_FIRST_WORD = re.compile(r'[\s"`]*([^\s<>()\[\],:"`\']*)')
_RAW_NAME = re.compile(r"\s*([^:<>,()\[\]`\"]*):")
_STRUCTS = frozenset({"struct", "row", "record"})
_CLOSING = {"<": ">", "(": ")", "[": "]"}
# Two words that form one type, not a name and a type.
_TWO_WORDS = frozenset({
    ("timestamp", "with"), ("timestamp", "without"), ("time", "with"), ("time", "without"), ("interval", "year"),
    ("interval", "day"), ("double", "precision"), ("character", "varying"), ("bit", "varying"),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class SqlType:
    """A type. `base` is its first word in lower case: `int`, `array`, `map`, `struct`, `row`.

    `text` is the original text. Arrays have an `item`, maps a `key` and a `value`, structs and rows have `fields`.
    Scalars have none of these.
    """

    base: str
    text: str
    item: "SqlType | None" = None
    key: "SqlType | None" = None
    value: "SqlType | None" = None
    fields: tuple["SqlField", ...] = ()

    def at(self, path: Sequence[str]) -> "SqlType | None":
        """Return the type at a path of `item`, `key`, `value` or field names, or None if the path does not exist."""
        part: SqlType | None = self
        for segment in path:
            if part is None:
                return None
            part = part.part(segment)
        return part

    def part(self, segment: str) -> "SqlType | None":
        """Return the type one segment below. Fields are matched by exact name, or else ignoring case."""
        if self.fields:
            exact = [field.type for field in self.fields if field.name == segment]
            folded = [field.type for field in self.fields if field.name.casefold() == segment.casefold()]
            return exact[0] if exact else folded[0] if len(folded) == 1 else None
        return {"item": self.item, "key": self.key, "value": self.value}.get(segment)


@dataclass(frozen=True, slots=True)
class SqlField:
    """A field of a struct or row. Unnamed fields are called `field0`, `field1`, …"""

    name: str
    type: SqlType


def parse_type(text: str) -> SqlType:
    """Parse a type string. A string that cannot be parsed becomes a scalar named after its first word."""
    try:
        return _Parser(text).whole()
    except _Unreadable:
        first = _FIRST_WORD.match(text)
        return SqlType(first[1].lower() if first else "", text.strip())


class _Unreadable(Exception):
    """The type string has an unknown format."""


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int

    @property
    def name(self) -> str:
        if self.kind != "quoted":
            return self.text
        mark = self.text[0]
        return self.text[1:-1].replace(mark * 2, mark)


_END = _Token("end", "", 0, 0)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._index = 0

    def whole(self) -> SqlType:
        parsed = self._type(0)
        if self._current.kind != "end":
            raise _Unreadable
        return parsed

    def _type(self, depth: int) -> SqlType:
        start = self._current
        if depth > MAX_DEPTH or start.kind not in ("word", "quoted"):
            raise _Unreadable
        self._index += 1
        parsed = self._with_parts(start, depth) or self._scalar(start)
        # Each `[]`, `[3]` or `ARRAY` that follows makes the type an array.
        while self._current.text == "[" or self._current.text.upper() == "ARRAY":
            depth += 1
            if depth > MAX_DEPTH:
                raise _Unreadable
            if self._current.text != "[":
                self._index += 1
            if self._current.text == "[":
                self._skip_brackets()
            parsed = SqlType("array", self._text_since(start), item=parsed)
        return parsed

    def _with_parts(self, start: _Token, depth: int) -> SqlType | None:
        """Parse an array, map or struct with its parts in brackets. Return None for other types."""
        word, opening = start.text.lower(), self._current.text
        if start.kind != "word" or opening not in ("<", "(") or word not in {"array", "map", *_STRUCTS}:
            return None
        self._index += 1
        if word in _STRUCTS:
            fields = self._fields(opening, depth)
            return SqlType(word, self._text_since(start), fields=fields)
        first, second = self._type(depth + 1), None
        if word == "map":
            self._take(",")
            second = self._type(depth + 1)
        self._take(_CLOSING[opening])
        if second is None:
            return SqlType(word, self._text_since(start), item=first)
        return SqlType(word, self._text_since(start), key=first, value=second)

    def _fields(self, opening: str, depth: int) -> tuple[SqlField, ...]:
        fields = list[SqlField]()
        while self._current.text != _CLOSING[opening]:
            if fields:
                self._take(",")
            name = self._raw_name() if opening == "<" else None
            if name is None:
                name = self._field_name()
            fields.append(SqlField(name or f"field{len(fields)}", self._type(depth + 1)))
            if self._current.text.upper() == "COMMENT" and self._peek(1).kind == "text":
                self._index += 2
        self._take(_CLOSING[opening])
        return tuple(fields)

    def _raw_name(self) -> str | None:
        """Read `name:` as written by Hive, which does not quote names even if they contain spaces."""
        match = _RAW_NAME.match(self._text, self._current.start)
        if match is None:
            return None
        while self._current.kind != "end" and self._current.start < match.end():
            self._index += 1
        return match[1].strip()

    def _field_name(self) -> str | None:
        """Read the field name before a type, with or without a colon. Return None if the field is unnamed."""
        now, following = self._current, self._peek(1)
        if now.kind not in ("word", "quoted"):
            raise _Unreadable
        if following.text == ":":
            self._index += 2
            return now.name
        is_name = following.kind in ("word", "quoted") and (now.text.lower(), following.text.lower()) not in _TWO_WORDS
        if not is_name or (following.text.upper() == "ARRAY" and self._peek(2).text not in ("(", "<")):
            return None
        self._index += 1
        return now.name

    def _scalar(self, start: _Token) -> SqlType:
        """Read a scalar type to its end, including lengths, `with time zone`, `unsigned` and enum values."""
        words = [start]
        while self._current.kind in ("word", "quoted") or self._current.text in ("(", "<"):
            if self._current.text.upper() in ("ARRAY", "COMMENT"):
                break
            if self._current.kind == "mark":
                self._skip_brackets()
            else:
                words.append(self._current)
                self._index += 1
        if [word.text.lower() for word in words[:2]] == ["character", "varying"]:
            base = "varchar"  # `character varying` is the long form
        else:
            # Of a schema-qualified name, only the last part counts.
            base = start.name if start.kind == "quoted" else start.text.rpartition(".")[2]
            if len(words) > 1 and (start.text.endswith(".") or words[1].text.startswith(".")):
                base = words[1].name.lstrip(".")
        return SqlType(base.lower(), self._text_since(start))

    def _skip_brackets(self) -> None:
        open_brackets = list[str]()
        while True:
            token = self._current
            if token.kind == "end":
                raise _Unreadable
            self._index += 1
            if token.text in _CLOSING:
                open_brackets.append(_CLOSING[token.text])
            elif token.kind == "mark" and token.text in ")>]" and open_brackets.pop() != token.text:
                raise _Unreadable
            if not open_brackets:
                return

    def _take(self, mark: str) -> None:
        if self._current.text != mark:
            raise _Unreadable
        self._index += 1

    def _text_since(self, start: _Token) -> str:
        return self._text[start.start : self._tokens[self._index - 1].end]

    def _peek(self, count: int) -> _Token:
        return self._tokens[min(self._index + count, len(self._tokens) - 1)]

    @property
    def _current(self) -> _Token:
        return self._tokens[self._index]


def _tokens(text: str) -> list[_Token]:
    tokens, position, end = list[_Token](), 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise _Unreadable
        kind = match.lastgroup
        tokens.append(_Token(kind, match[kind], match.start(kind), match.end()))
        position = match.end()
    tokens.append(_END)
    return tokens
