"""Where in a statement an error is, as engines say it. `sql.positions` makes lines and columns of it."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias


class Unit(Enum):
    """What an engine counts its columns in."""

    CHARACTER = auto()
    UTF16 = auto()
    SCREEN = auto()
    """Columns of a terminal: wide characters count two, control characters none."""


@dataclass(frozen=True, slots=True)
class Character:
    """The number of a character, from 0."""

    offset: int


@dataclass(frozen=True, slots=True)
class Octet:
    """The number of a byte of the UTF-8 text, from 0."""

    offset: int


@dataclass(frozen=True, slots=True)
class LineColumn:
    """A line from 1, ended by a line feed, and a column from 1, as far as it is known."""

    line: int
    column: int | None = None
    unit: Unit = Unit.CHARACTER


@dataclass(frozen=True, slots=True)
class ErrorExcerpt:
    """A line from 1, the part of it that is shown with `...` for what is left out, and a mark below it, from 0."""

    line: int
    shown: str
    mark: int
    unit: Unit = Unit.CHARACTER


@dataclass(frozen=True, slots=True)
class Rest:
    """The text from the error on, which may be cut, and a line from 1."""

    line: int
    text: str


ErrorPlace: TypeAlias = Character | Octet | LineColumn | ErrorExcerpt | Rest
"""As an engine says it."""
