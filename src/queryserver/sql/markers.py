"""Finds the parameter markers of a statement, and renders the statement with its values.

If the values are a list, `?` is a marker and `??` a literal `?`, as in JDBC. If they are an object, `:name` is a
marker, unless it directly follows a word, a number, a closing bracket, a quote or another colon: `x::int`, `a[1:n]`,
`{'a':b}`. Quotes and comments are skipped. A statement that has no values is not searched.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from queryserver.errors.base import InvalidParameter
from queryserver.errors.statements import ErrorLocation
from queryserver.sql.parameters import (
    MAX_VALUES,
    NAME,
    Parameter,
    Parameters,
    read_parameter_rows,
    read_parameters,
    row_errors,
)
from queryserver.sql.positions import Position, line_start, position_at, position_of
from queryserver.sql.scanner import dialect_patterns, has_unclear_quotes, parameter_marks

_MAX_REPR_CHARACTERS = 60
_MIN_MASKED_CHARACTERS = 8
_MAX_MASKED_VALUES = 300
_MAX_PATTERN_CHARACTERS = 100
_BEHIND_WORDS = frozenset("_$)]}'\"`:")


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker in the character range [start, stop).

    `name` is empty for `?`. `is_literal` is set for `??`, which stands for a literal `?`.
    """

    start: int
    stop: int
    name: str = ""
    is_literal: bool = False


def find_markers(statement: str, dialect: str, *, named: bool) -> Iterator[Marker]:
    """Yield the markers of a statement in order. Takes linear time."""
    end = 0
    for start in parameter_marks(statement, dialect_patterns(dialect)):
        if start < end or (statement[start] == ":") != named:
            continue
        if not named:
            end = start + 2 if statement.startswith("?", start + 1) else start + 1
            yield Marker(start, end, is_literal=end > start + 1)
        elif statement.startswith(":", start + 1):
            end = start + 2
        elif (name := NAME.match(statement, start + 1)) and not _follows_word(statement, start):
            end = name.end()
            yield Marker(start, end, name[0])


def _follows_word(statement: str, at: int) -> bool:
    before = statement[at - 1] if at else " "
    return before.isalnum() or before in _BEHIND_WORDS


@dataclass(frozen=True, slots=True)
class ScriptMarkers:
    """Marker counts of a script: in total, before the chosen statement, and in the chosen statement (`own`).

    `names` are the distinct names, `occurrences` counts the uses of each. If `has_unclear_quotes` is set, the counts
    may be wrong, because the end of a quoted string is ambiguous.
    """

    total: int = 0
    before: int = 0
    own: int = 0
    names: tuple[str, ...] = ()
    occurrences: tuple[int, ...] = ()
    has_unclear_quotes: bool = False

    def require(self, parameters: Parameters) -> None:
        """Raise InvalidParameter unless markers and values match and are within the limits."""
        for number, row in enumerate(parameters.rows, 1):
            with row_errors(number):
                self.require(row)
        if self.has_unclear_quotes:
            raise InvalidParameter(
                "parameters: the end of a quoted string is ambiguous for this connector; double the quote instead"
                " of escaping it with a backslash, or send the string as a value."
            )
        if self.total > MAX_VALUES:
            raise InvalidParameter(
                f"parameters: the statement has {self.total} parameter markers; at most {MAX_VALUES} are allowed."
            )
        if parameters.by_name is None:
            if self.total != (count := len(parameters.by_position)):
                raise InvalidParameter(
                    f"parameters: the number of values ({count}) does not match the number of parameter markers"
                    f" ({self.total})."
                )
            return
        names = set(self.names)
        for name in self.names:
            if name not in parameters.by_name:
                raise InvalidParameter(f"parameters: the parameter marker :{name[:_MAX_REPR_CHARACTERS]} has no value.")
        for name in parameters.by_name:
            if name not in names:
                raise InvalidParameter(
                    f"parameters: the statement has no parameter marker :{name[:_MAX_REPR_CHARACTERS]}."
                )


NO_MARKERS = ScriptMarkers()


def count_markers(statements: Sequence[str], dialect: str, index: int, *, named: bool) -> ScriptMarkers:
    """Count the markers of all statements in a script. `index`, from 0, selects the chosen statement."""
    counts, names = list[int](), Counter[str]()
    for statement in statements:
        markers = [marker for marker in find_markers(statement, dialect, named=named) if not marker.is_literal]
        counts.append(len(markers))
        names.update(marker.name for marker in markers if named)
    own = counts[index] if counts else 0
    unclear = any(has_unclear_quotes(statement, dialect) for statement in statements)
    return ScriptMarkers(sum(counts), sum(counts[:index]), own, tuple(names), tuple(names.values()), unclear)


@dataclass(frozen=True, slots=True)
class StatementParameters:
    """The values for a whole script, as stored with one of its statements.

    The first `before` values belong to earlier statements.
    """

    values: Parameters
    before: int = 0

    def stored(self) -> Mapping[str, Any]:
        """Return the values as JSON, which must be encrypted before it is stored or sent."""
        if self.values.rows:
            # A separate key, so that processes of older versions do not mistake rows for values.
            return {"rows": self.values.original, "before": self.before}
        return {"given": self.values.original, "before": self.before}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> "StatementParameters":
        """Read stored values. Raises InvalidParameter, KeyError."""
        if "rows" in stored:
            return cls(read_parameter_rows(stored["rows"]), int(stored["before"]))
        return cls(read_parameters(stored["given"]), int(stored["before"]))


RenderValue = Callable[[int, Parameter], str]
"""Renders the value with the given number, counted from 0."""


def sql_text(statement: "str | BoundStatement", render_value: RenderValue) -> str:
    """Render the SQL text to send. A statement without values is returned unchanged."""
    return statement if isinstance(statement, str) else statement.render(render_value)


class _Mask:
    """Masks quoted values in engine messages, unless there are too many values."""

    def __init__(self, values: Sequence[Parameter]) -> None:
        texts = {parameter.value for parameter in values if isinstance(parameter.value, str) and parameter.value}
        if len(texts) > _MAX_MASKED_VALUES:
            texts = set[str]()
        # Quotes within literals are doubled.
        forms = {form for text in texts for form in (text, text.replace("'", "''"), text.replace('"', '""'))}
        self._long = tuple(form for form in forms if len(form) > _MAX_PATTERN_CHARACTERS)
        self._short = sorted(forms.difference(self._long), key=len, reverse=True)
        self._pattern: re.Pattern[str] | None = None

    def apply(self, text: str) -> str:
        for form in self._long:
            if len(form) < len(text):
                for quote in "'\"":
                    text = text.replace(f"{quote}{form}{quote}", f"{quote}…{quote}")
        if not self._short:
            return text
        if self._pattern is None:
            self._pattern = re.compile(rf"(['\"])(?:{'|'.join(map(re.escape, self._short))})\1")
        return self._pattern.sub(r"\1…\1", text)


class BoundStatement:
    """A statement with the values of its markers. Each engine renders the statement in its own syntax.

    Positions and lines that the engine then reports refer to the last rendered text.
    """

    def __init__(self, statement: str, dialect: str, parameters: StatementParameters) -> None:
        """Bind the values to the markers. Raises InvalidParameter if a marker has no value."""
        self.statement = statement
        self.dialect = dialect
        self._markers = list(find_markers(statement, dialect, named=parameters.values.are_named))
        self._set_values(parameters)
        self.rows: Sequence[BoundStatement] = [self._with_values(row) for row in parameters.values.rows]
        """A copy of the statement for each row of values, to be run in order. Empty if the statement runs only once."""
        self.row = 0
        """The current row, counted from 0."""

    def _with_values(self, parameters: Parameters) -> "BoundStatement":
        """Return a copy of this statement with other values."""
        other = copy(self)
        other._set_values(StatementParameters(parameters))  # noqa: SLF001 an instance of this class
        other.rows = ()
        return other

    def _set_values(self, parameters: StatementParameters) -> None:
        values_sent = parameters.values
        self._numbers = list[int]()
        """The value number of each marker that is not a literal."""
        values = list[Parameter]()
        numbers = dict[str, int]()
        for marker in self._markers:
            if marker.is_literal:
                continue
            if values_sent.by_name is None:
                at = parameters.before + len(values)
                if at >= len(values_sent.by_position):
                    raise InvalidParameter("parameters: the statement has more parameter markers than values.")
                number = len(values)
                values.append(values_sent.by_position[at])
            else:
                number = numbers.setdefault(marker.name, len(values))
                if number == len(values):
                    if marker.name not in values_sent.by_name:
                        raise InvalidParameter(
                            f"parameters: the parameter marker :{marker.name[:_MAX_REPR_CHARACTERS]} has no value."
                        )
                    values.append(values_sent.by_name[marker.name])
            self._numbers.append(number)
        self.values = tuple(values)
        self._rendered = self.statement
        self._mask = _Mask(self.values)
        self._pieces: list[tuple[int, int, int]] = []
        """The statement offset, rendered offset and rendered length of each marker."""

    def __repr__(self) -> str:
        return f"Bound({len(self.values)} values)"

    @property
    def values_in_order(self) -> tuple[Parameter, ...]:
        """The value of each marker, in marker order."""
        return tuple(self.values[number] for number in self._numbers)

    def render(self, render_value: RenderValue, outside: Callable[[str], str] = str) -> str:
        """Return the statement with rendered values in place of the markers. `outside` escapes the text in between."""
        statement, parts, at, size = self.statement, list[str](), 0, 0
        self._pieces = []
        numbers = iter(self._numbers)
        for marker in self._markers:
            if marker.is_literal:
                text = "?"
            else:
                number = next(numbers)
                text = render_value(number, self.values[number])
                # `IN?` and `?AND` are valid, but need whitespace once a number or name replaces `?`.
                if marker.start and statement[marker.start - 1] == "-":
                    text = f"({text})"  # in MySQL, `5--?` subtracts a negation, but `5-- 3` starts a comment
                elif marker.start and not statement[marker.start - 1].isspace():
                    text = f" {text}"
                if marker.stop < len(statement) and not statement[marker.stop].isspace():
                    text = f"{text} "
            before = outside(statement[at : marker.start])
            parts += [before, text]
            size += len(before)
            self._pieces.append((marker.start, size, len(text)))
            size += len(text)
            at = marker.stop
        self._rendered = "".join([*parts, outside(statement[at:])])
        return self._rendered

    @property
    def last_rendered(self) -> tuple[str, list[tuple[int, int, int]]]:
        """The last rendered text, and the statement offset, text offset and text length of each marker.

        For `adopt_rendered` in another process.
        """
        return self._rendered, self._pieces

    def adopt_rendered(self, text: str, pieces: list[tuple[int, int, int]]) -> None:
        """Adopt the text that another process has rendered, so that positions and masking refer to it."""
        self._rendered, self._pieces = text, pieces

    def value_spans(self) -> list[tuple[int, int]]:
        """Return the positions of the values in the last rendered text, as [start, stop) in UTF-8 bytes."""
        spans, at, size = list[tuple[int, int]](), 0, 0
        for _, start, length in self._pieces:
            first = size + len(self._rendered[at:start].encode(errors="surrogatepass"))
            at = start + length
            size = first + len(self._rendered[start:at].encode(errors="surrogatepass"))
            spans.append((first, size))
        return spans

    def position(self, location: ErrorLocation | None) -> Position | None:
        """Convert a position in the last rendered text to the line and column in the statement."""
        if self.rows:
            return self.rows[self.row].position(location)
        position = position_of(location, self._rendered)
        if position is None:
            return None
        start = line_start(self._rendered, position.line)
        original = position_at(self.statement, self._original_offset(start + (position.column or 1) - 1))
        return original if original is None or position.column is not None else Position(original.line, None)

    def mask_values(self, text: str) -> str:
        """Restore the original lines of the statement in a log line or message, and mask quoted values."""
        if self.rows:
            return self.rows[self.row].mask_values(text)
        rendered, original = self._rendered.split("\n"), self.statement.split("\n")
        if len(rendered) != len(original):
            rendered, original = [self._rendered], [self.statement]
        for line, replacement in zip(rendered, original, strict=True):
            # A short line such as `1` also occurs in unrelated log lines.
            if line != replacement and len(line.strip()) >= _MIN_MASKED_CHARACTERS:
                text = text.replace(line, replacement).replace(line.strip(), replacement.strip())
        return self._mask.apply(text)

    def _original_offset(self, offset: int) -> int:
        """Convert an offset in the rendered text to an offset in the statement."""
        before = shift = 0
        for (start, written, size), marker in zip(self._pieces, self._markers, strict=False):
            if offset < written:
                break
            if offset < written + size:
                return start
            before, shift = marker.stop, written + size
        return before + offset - shift
