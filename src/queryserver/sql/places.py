"""Finds the parameter places in a statement, and writes the statement with its values.

With a list of values, `?` is a place and `??` a literal `?`, as in JDBC. With an object, `:name` is a place, unless it
directly follows a word, a number, a closing bracket, a quote or another colon: `x::int`, `a[1:n]`, `{'a':b}`. Quotes
and comments are skipped. Without values, texts are not searched at all.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from queryserver.errors.base import InvalidParameter
from queryserver.errors.statements import ErrorPlace
from queryserver.sql.parameters import (
    MOST_VALUES,
    NAME,
    Parameter,
    Parameters,
    of_row,
    read_parameter_rows,
    read_parameters,
)
from queryserver.sql.positions import Position, line_start, position_at, position_of
from queryserver.sql.splitter_scan import has_unclear_quotes, lexis_of, parameter_marks

_LONGEST_SHOWN = 60
_SHORTEST_REPLACED = 8
_MOST_MASKED = 300
_LONGEST_MASKED_BY_PATTERN = 100
_BEHIND_WORDS = frozenset("_$)]}'\"`:")


@dataclass(frozen=True, slots=True)
class Place:
    """Characters [start, stop). `name` is empty for `?`; `is_literal` marks `??`, which stands for `?`."""

    start: int
    stop: int
    name: str = ""
    is_literal: bool = False


def places_in(statement: str, dialect: str, *, named: bool) -> Iterator[Place]:
    """The places of a statement, in order; takes linear time."""
    done = 0
    for at in parameter_marks(statement, lexis_of(dialect)):
        if at < done or (statement[at] == ":") != named:
            continue
        if not named:
            done = at + 2 if statement.startswith("?", at + 1) else at + 1
            yield Place(at, done, is_literal=done > at + 1)
        elif statement.startswith(":", at + 1):
            done = at + 2
        elif (name := NAME.match(statement, at + 1)) and not _follows_word(statement, at):
            done = name.end()
            yield Place(at, done, name[0])


def _follows_word(statement: str, at: int) -> bool:
    before = statement[at - 1] if at else " "
    return before.isalnum() or before in _BEHIND_WORDS


@dataclass(frozen=True, slots=True)
class ScriptPlaces:
    """Numbers of places in a script: in total, before the chosen statement, and in it (`own`).

    `names` are the distinct names, `times` their numbers of occurrences. `unclear` if quotes may end elsewhere.
    """

    total: int = 0
    before: int = 0
    own: int = 0
    names: tuple[str, ...] = ()
    times: tuple[int, ...] = ()
    unclear: bool = False

    def require(self, parameters: Parameters) -> None:
        """Raises InvalidParameter unless places and values match and are within the limits."""
        for number, row in enumerate(parameters.rows, 1):
            with of_row(number):
                self.require(row)
        if self.unclear:
            raise InvalidParameter(
                "parameters: where a quote of the text ends is not known for this connector; double the quote instead"
                " of a backslash before it, or send that text as a value."
            )
        if self.total > MOST_VALUES:
            raise InvalidParameter(f"parameters: the text has {self.total} places; at most {MOST_VALUES} are allowed.")
        if parameters.by_name is None:
            if self.total != (count := len(parameters.by_position)):
                raise InvalidParameter(f"parameters: the text has {self.total} places, and {count} values came.")
            return
        names = set(self.names)
        for name in self.names:
            if name not in parameters.by_name:
                raise InvalidParameter(f"parameters: the place :{name[:_LONGEST_SHOWN]} has no value.")
        for name in parameters.by_name:
            if name not in names:
                raise InvalidParameter(f"parameters: the text has no place :{name[:_LONGEST_SHOWN]}.")


NO_PLACES = ScriptPlaces()


def script_places(statements: Sequence[str], dialect: str, index: int, *, named: bool) -> ScriptPlaces:
    """The places of all statements of a script; `index`, from 0, is the chosen one."""
    counts, names = list[int](), Counter[str]()
    for statement in statements:
        found = [place for place in places_in(statement, dialect, named=named) if not place.is_literal]
        counts.append(len(found))
        names.update(place.name for place in found if named)
    own = counts[index] if counts else 0
    unclear = any(has_unclear_quotes(statement, dialect) for statement in statements)
    return ScriptPlaces(sum(counts), sum(counts[:index]), own, tuple(names), tuple(names.values()), unclear)


@dataclass(frozen=True, slots=True)
class StatementParameters:
    """The values of a whole script, as stored with one statement of it; `before` values belong to earlier
    statements.
    """

    given: Parameters
    before: int = 0

    def stored(self) -> Mapping[str, Any]:
        """As JSON; must be sealed before it is stored or sent."""
        if self.given.rows:
            # A separate key, so that processes of older versions do not mistake rows for values.
            return {"rows": self.given.given, "before": self.before}
        return {"given": self.given.given, "before": self.before}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> "StatementParameters":
        """Raises InvalidParameter, KeyError."""
        if "rows" in stored:
            return cls(read_parameter_rows(stored["rows"]), int(stored["before"]))
        return cls(read_parameters(stored["given"]), int(stored["before"]))


Write = Callable[[int, Parameter], str]
"""Writes the text for a place, given the number of the value, from 0, and the value."""


def written(statement: "str | Bound", write: Write) -> str:
    """The text to send; a statement without values is returned unchanged."""
    return statement if isinstance(statement, str) else statement.written(write)


class _Mask:
    """Masks quoted values in messages of engines; with very many values, only the whole statement is masked."""

    def __init__(self, values: Sequence[Parameter]) -> None:
        texts = {one.value for one in values if isinstance(one.value, str) and one.value}
        if len(texts) > _MOST_MASKED:
            texts = set[str]()
        # Quotes within literals are doubled.
        forms = {form for text in texts for form in (text, text.replace("'", "''"), text.replace('"', '""'))}
        self._long = tuple(form for form in forms if len(form) > _LONGEST_MASKED_BY_PATTERN)
        self._short = sorted(forms.difference(self._long), key=len, reverse=True)
        self._pattern: re.Pattern[str] | None = None

    def applied(self, text: str) -> str:
        for form in self._long:
            if len(form) < len(text):
                for quote in "'\"":
                    text = text.replace(f"{quote}{form}{quote}", f"{quote}…{quote}")
        if not self._short:
            return text
        if self._pattern is None:
            self._pattern = re.compile(rf"(['\"])(?:{'|'.join(map(re.escape, self._short))})\1")
        return self._pattern.sub(r"\1…\1", text)


class Bound:
    """A statement and the distinct values of its places; engines write it in their own syntax.

    Positions and lines reported by the engine afterwards refer to the text written last.
    """

    def __init__(self, statement: str, dialect: str, parameters: StatementParameters) -> None:
        """Raises InvalidParameter if a place has no value."""
        self.statement = statement
        self.dialect = dialect
        self._places = list(places_in(statement, dialect, named=parameters.given.are_named))
        self._take(parameters)
        self.rows: Sequence[Bound] = [self._with_values(row) for row in parameters.given.rows]
        """The statement with each row of values, run in turn; empty if it runs once."""
        self.row = 0
        """The current row, counted from 0."""

    def _with_values(self, given: Parameters) -> "Bound":
        """The same statement with other values."""
        other = copy(self)
        other._take(StatementParameters(given))  # noqa: SLF001 another of this class
        other.rows = ()
        return other

    def _take(self, parameters: StatementParameters) -> None:
        given = parameters.given
        self._numbers = list[int]()
        """The value number of each place that is not a literal."""
        values = list[Parameter]()
        numbers = dict[str, int]()
        for place in self._places:
            if place.is_literal:
                continue
            if given.by_name is None:
                at = parameters.before + len(values)
                if at >= len(given.by_position):
                    raise InvalidParameter("parameters: the text has more places than values came.")
                number = len(values)
                values.append(given.by_position[at])
            else:
                number = numbers.setdefault(place.name, len(values))
                if number == len(values):
                    if place.name not in given.by_name:
                        raise InvalidParameter(f"parameters: the place :{place.name[:_LONGEST_SHOWN]} has no value.")
                    values.append(given.by_name[place.name])
            self._numbers.append(number)
        self.values = tuple(values)
        self._written = self.statement
        self._mask = _Mask(self.values)
        self._pieces: list[tuple[int, int, int]] = []
        """For each place: its offset in the statement, and the offset and length of its written text."""

    def __repr__(self) -> str:
        return f"Bound({len(self.values)} values)"

    @property
    def order(self) -> tuple[Parameter, ...]:
        """The values in order of the places, repeated for each of their places."""
        return tuple(self.values[number] for number in self._numbers)

    def written(self, write: Write, outside: Callable[[str], str] = str) -> str:
        """The statement with each place replaced by `write`; `outside` escapes the text in between."""
        statement, parts, at, size = self.statement, list[str](), 0, 0
        self._pieces = []
        numbers = iter(self._numbers)
        for place in self._places:
            if place.is_literal:
                text = "?"
            else:
                number = next(numbers)
                text = write(number, self.values[number])
                # `IN?` and `?AND` are valid, but need a blank once a number or name takes the place of `?`.
                if place.start and statement[place.start - 1] == "-":
                    text = f"({text})"  # for MySQL `5--?` is 5 minus a negation, `5-- 3` a comment
                elif place.start and not statement[place.start - 1].isspace():
                    text = f" {text}"
                if place.stop < len(statement) and not statement[place.stop].isspace():
                    text = f"{text} "
            before = outside(statement[at : place.start])
            parts += [before, text]
            size += len(before)
            self._pieces.append((place.start, size, len(text)))
            size += len(text)
            at = place.stop
        self._written = "".join([*parts, outside(statement[at:])])
        return self._written

    @property
    def last_written(self) -> tuple[str, list[tuple[int, int, int]]]:
        """The text written last, and for each place its offset in the statement, and the offset and length of its
        written text. For `note_written` in another process.
        """
        return self._written, self._pieces

    def note_written(self, text: str, pieces: list[tuple[int, int, int]]) -> None:
        """Adopt the text that another process has written."""
        self._written, self._pieces = text, pieces

    def spans(self) -> list[tuple[int, int]]:
        """The positions of the values in the text written last, as [start, stop) in UTF-8 bytes."""
        found, at, size = list[tuple[int, int]](), 0, 0
        for _, start, length in self._pieces:
            first = size + len(self._written[at:start].encode(errors="surrogatepass"))
            at = start + length
            size = first + len(self._written[start:at].encode(errors="surrogatepass"))
            found.append((first, size))
        return found

    def position(self, place: ErrorPlace | None) -> Position | None:
        """Convert a position in the text written last to line and column of the statement."""
        if self.rows:
            return self.rows[self.row].position(place)
        found = position_of(place, self._written)
        if found is None:
            return None
        start = line_start(self._written, found.line)
        own = position_at(self.statement, self._original(start + (found.column or 1) - 1))
        return own if own is None or found.column is not None else Position(own.line, None)

    def without_values(self, text: str) -> str:
        """Restore the original lines of the statement in a log line or message, and mask quoted values."""
        if self.rows:
            return self.rows[self.row].without_values(text)
        written, own = self._written.split("\n"), self.statement.split("\n")
        if len(written) != len(own):
            written, own = [self._written], [self.statement]
        for line, shown in zip(written, own, strict=True):
            # A short line such as `1` occurs in logs for other reasons, too.
            if line != shown and len(line.strip()) >= _SHORTEST_REPLACED:
                text = text.replace(line, shown).replace(line.strip(), shown.strip())
        return self._mask.applied(text)

    def _original(self, offset: int) -> int:
        """Convert an offset in the written text to one in the statement."""
        before = shift = 0
        for (start, written, size), place in zip(self._pieces, self._places, strict=False):
            if offset < written:
                break
            if offset < written + size:
                return start
            before, shift = place.stop, written + size
        return before + offset - shift
