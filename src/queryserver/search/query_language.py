"""Parses and matches queries of the metadata search (Contract platform 8.3).

Matching and highlighting both compare texts in the form that `folded` returns, so that they agree.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import dropwhile, takewhile

from queryserver.errors.base import InvalidParameter

MAX_CHARACTERS = 1000
MAX_TERMS = 20
FILTERS = {
    "type": "type",
    "owner": "owner",
    "tag": "tag",
    "tags": "tag",
    "classification": "tag",
    "db": "db",
    "database": "db",
    "table": "table",
    "source": "source",
}
"""Accepted filter names and their canonical names."""

_ANY, _ONE = "*", "?"
_CHARACTER = re.compile(r'\\([*?"\\])|(.)', re.DOTALL)
"""An escaped or a plain character."""


def folded(text: str) -> str:
    """Fold case character by character, so that positions are the same as in `text`.

    Letters that do not fold to a single character (`ß`, `İ`) are kept. Non-ASCII letters never become ASCII.
    """
    if text.isascii():
        return text.lower()
    pairs = ((character, character.lower() if character.isascii() else character.casefold()) for character in text)
    return "".join(lower if one.isascii() or (len(lower) == 1 and not lower.isascii()) else one for one, lower in pairs)


def spaced(text: str) -> str:
    """Return `text` with every character except letters and digits replaced with a blank, which separates words."""
    return "".join(character if character.isalnum() else " " for character in text)


@dataclass(frozen=True, slots=True)
class _Wildcard:
    """An unescaped `*` or `?`."""

    sign: str


_Piece = str | _Wildcard


class NameFit:
    """How well a name matches a term. Lower values are better."""

    EXACT = 0
    STARTS = 1
    WORD_STARTS = 2
    INSIDE = 3
    NOT_IN_NAME = 4


@dataclass(frozen=True)
class Term:
    """A term to find in texts. `pieces` are folded literals and wildcards.

    `head` is the text before the first wildcard, in its original case.
    """

    pieces: tuple[_Piece, ...]
    head: str = field(default="", compare=False)

    @cached_property
    def literals(self) -> tuple[str, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, str))

    @property
    def is_literal(self) -> bool:
        return all(isinstance(piece, str) for piece in self.pieces)

    @cached_property
    def like(self) -> str:
        wildcards = {_ANY: "%", _ONE: "_"}
        return "".join(
            wildcards[piece.sign] if isinstance(piece, _Wildcard) else re.sub(r"([\\%_])", r"\\\1", piece)
            for piece in self.pieces
        )

    @cached_property
    def _segments(self) -> Sequence[tuple[re.Pattern[str], int]]:
        """The segments between `*`. Each is a pattern of fixed length, which rules out catastrophic backtracking."""
        runs: list[list[_Piece]] = [[]]
        for piece in self.pieces:
            if isinstance(piece, _Wildcard) and piece.sign == _ANY:
                runs.append([])
            else:
                runs[-1].append(piece)
        return [
            (
                re.compile("".join("." if isinstance(p, _Wildcard) else re.escape(p) for p in run), re.DOTALL),
                sum(1 if isinstance(p, _Wildcard) else len(p) for p in run),
            )
            for run in runs
        ]

    def find_in(self, folded_text: str, start: int = 0) -> tuple[int, int] | None:
        """Return the start and end of the first occurrence at or after `start`; None if there is none."""
        begin, at = None, start
        for pattern, _ in self._segments:
            match = pattern.search(folded_text, at)
            if match is None:
                return None
            begin, at = (match.start() if begin is None else begin), match.end()
        return (begin, at) if begin is not None else (start, start)

    def is_whole(self, folded_text: str) -> bool:
        end = self._end_of_start(folded_text)
        if end is None:
            return False
        if len(self._segments) == 1:
            return end == len(folded_text)
        last, length = self._segments[-1]
        start = len(folded_text) - length
        return start >= end and last.fullmatch(folded_text, start) is not None

    def position(self, folded_name: str) -> int:
        if self.is_whole(folded_name):
            return NameFit.EXACT
        if self._end_of_start(folded_name, whole=True) is not None:
            return NameFit.STARTS
        if self.find_in(folded_name) is None:
            return NameFit.NOT_IN_NAME
        starts_a_word = self.as_word.find_in(f" {spaced(folded_name)}") is not None
        return NameFit.WORD_STARTS if starts_a_word else NameFit.INSIDE

    @cached_property
    def as_word(self) -> "Term":
        """Return a term for searching in a blank followed by the `spaced` name.

        It occurs there if a word of the name starts with this term.
        """
        pieces = tuple(spaced(piece) if isinstance(piece, str) else piece for piece in self.pieces)
        if pieces and isinstance(pieces[0], str):
            return Term((f" {pieces[0]}", *pieces[1:]))
        return Term((" ", *pieces))

    def beginning_with(self, other: str, spelling: re.Pattern[str]) -> "Term":
        """Return the term with its beginning replaced with `other`, if the beginning matches `spelling`."""
        first, *rest = self.pieces
        if not isinstance(first, str):
            return self
        return Term((spelling.sub(other, first, count=1), *rest), self.head)

    def _end_of_start(self, text: str, *, whole: bool = False) -> int | None:
        """Return the end position if `text` starts with the segments, otherwise None.

        If `whole` is set, all segments are matched, otherwise all but the last.
        """
        segments = self._segments
        first = segments[0][0].match(text)
        if first is None:
            return None
        at = first.end()
        for pattern, _ in segments[1:] if whole else segments[1:-1]:
            match = pattern.search(text, at)
            if match is None:
                return None
            at = match.end()
        return at


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query. All terms must match. For each filter name, at least one value must match the whole attribute."""

    terms: tuple[Term, ...] = ()
    filters: dict[str, tuple[Term, ...]] = field(default_factory=dict[str, tuple[Term, ...]])
    """Filter values by canonical name. A Term without pieces matches only an empty attribute."""

    @property
    def is_empty(self) -> bool:
        return not self.terms and not self.filters


def parse_query(text: str) -> Query:
    """Parse a query. Raises InvalidParameter if it has more than 1000 characters or 20 terms and filters."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidParameter(f"query_s must have at most {MAX_CHARACTERS} characters.")
    words = [word for word in _words(text) if word.characters or word.quoted]
    if len(words) > MAX_TERMS:
        raise InvalidParameter(f"query_s must have at most {MAX_TERMS} terms.")
    terms: list[Term] = []
    filters: dict[str, tuple[Term, ...]] = {}
    for word in words:
        name, value = _filter_of(word)
        if name is not None:
            filters[name] = (*filters.get(name, ()), _term(value))
        else:
            # A term may match anywhere in a text, so stars at its ends have no effect.
            inner = list(dropwhile(_Character.is_star, word.characters))
            while inner and inner[-1].is_star():
                inner.pop()
            if (term := _term(inner)).pieces:
                terms.append(term)
    return Query(tuple(terms), filters)


@dataclass(frozen=True, slots=True)
class _Character:
    """One character of a word. `plain` means neither escaped nor quoted. Wildcards also work within quotes."""

    text: str
    plain: bool
    wild: bool = False

    def is_star(self) -> bool:
        return self.wild and self.text == _ANY


@dataclass(slots=True)
class _Word:
    characters: list[_Character] = field(default_factory=list[_Character])
    quoted: bool = False


def _words(text: str) -> Iterator[_Word]:
    """Split at blanks outside quotes. Also yields empty words."""
    word, inside = _Word(), False
    for escaped, character in _CHARACTER.findall(text):
        if escaped:
            word.characters.append(_Character(escaped, plain=False))
        elif character == '"':
            inside, word.quoted = not inside, True
        elif character.isspace() and not inside:
            yield word
            word = _Word()
        else:
            wild = character in (_ANY, _ONE)
            word.characters.append(_Character(character, plain=not inside and not wild, wild=wild))
    yield word


def _filter_of(word: _Word) -> tuple[str | None, list[_Character]]:
    """Return the name and value of a filter. The name is None if it is unknown or has no value."""
    text = "".join(character.text if character.plain else "\0" for character in word.characters)
    name, colon, rest = text.partition(":")
    filter_name = FILTERS.get(name.lower())
    if not colon or filter_name is None or not (rest or word.quoted):
        return None, []
    return filter_name, word.characters[len(name) + 1 :]


def _term(characters: Sequence[_Character]) -> Term:
    """Build a term: join adjacent literals, and collapse adjacent `*`."""
    pieces: list[_Piece] = []
    for character in characters:
        if character.wild:
            piece = _Wildcard(character.text)
            if not (pieces and character.text == _ANY and pieces[-1] == piece):
                pieces.append(piece)
        elif pieces and isinstance(pieces[-1], str):
            pieces[-1] += folded(character.text)
        else:
            pieces.append(folded(character.text))
    return Term(tuple(pieces), "".join(one.text for one in takewhile(lambda one: not one.wild, characters)))
