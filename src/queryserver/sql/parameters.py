"""Parameter values of statements: their types, and how they are read from JSON.

Clients send a JSON list for `?` places, or a JSON object for `:name` places. A value is plain JSON, or `{"type": …,
"value": …}`. Messages name the parameter, but never quote its value.
"""

import math
import re
from base64 import b64decode
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, TypeAlias, cast

from queryserver.errors.base import InvalidParameter

MOST_VALUES = 10_000
MOST_BYTES = 1024 * 1024
"""Limit on the JSON text of all values of a call."""
MOST_WRITTEN_BYTES = 16 * 1024 * 1024
"""Limit on the JSON text of all values, counting each once per occurrence, which is what engines may be sent."""
MOST_ROWS = 10_000
MOST_ROWS_VALUES = 200_000
MOST_ROWS_BYTES = 4 * 1024 * 1024
"""Limits of `parameter_rows`: rows, their total number of values, and the JSON text of the values."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_LONGEST_NAME = 128
_MOST_DIGITS = 1_000
_MOST_DEPTH = 8
_BIGINT = 2**63
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
_TIME = re.compile(_CLOCK)
_TIMESTAMP = re.compile(rf"{_DATE.pattern}[T ]{_CLOCK}")
_TIMESTAMP_TZ = re.compile(rf"{_TIMESTAMP.pattern} ?(?:[Zz]|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)")
_BASE64 = re.compile(r"[A-Za-z0-9+/\r\n]*={0,2}[\r\n]*")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class ParameterType(StrEnum):
    """Parameter types, named as in the API."""

    BOOLEAN = "boolean"
    BIGINT = "bigint"
    DOUBLE = "double"
    DECIMAL = "decimal"
    VARCHAR = "varchar"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMP_TZ = "timestamp_tz"
    BINARY = "binary"
    ARRAY = "array"


Value: TypeAlias = "bool | int | float | Decimal | str | date | time | datetime | bytes | tuple[Parameter, ...] | None"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value. `type` is None for a plain null, which adopts the type of its context.

    `is_plain` values were sent without a type, and behave like the same digits or text in the statement. `value` is a
    `bool`, `int`, `float`, `Decimal`, `str`, `date`, `time`, `datetime` (with a zone for `timestamp_tz`), `bytes`, or a
    tuple of parameters for an array; None is NULL.
    """

    type: ParameterType | None
    value: Value = field(repr=False)
    is_plain: bool = False

    @property
    def elements(self) -> "tuple[Parameter, ...]":
        """The elements of an array; empty for anything else."""
        return self.value if isinstance(self.value, tuple) else ()

    @property
    def leaves(self) -> "Iterator[Parameter]":
        """The typed elements of an array and of all nested arrays."""
        for one in self.elements:
            if one.type is ParameterType.ARRAY:
                yield from one.leaves
            elif one.type is not None:
                yield one


NULL = Parameter(None, None, is_plain=True)


@dataclass(frozen=True, slots=True)
class Parameters:
    """The values of a call, by position or by name; `given` is their original JSON."""

    given: Sequence[Any] | Mapping[str, Any] = field(repr=False)
    by_position: tuple[Parameter, ...] = field(default=(), repr=False)
    by_name: Mapping[str, Parameter] | None = field(default=None, repr=False)
    """None if sent as a list."""
    rows: "tuple[Parameters, ...]" = field(default=(), repr=False)
    """All rows, for a statement that runs once per row of values; the other fields then hold the first row."""

    @property
    def are_named(self) -> bool:
        return self.by_name is not None

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        """The values with their names in messages."""
        if self.by_name is not None:
            yield from ((f":{name}", one) for name, one in self.by_name.items())
        else:
            yield from ((str(number), one) for number, one in enumerate(self.by_position, 1))


@dataclass(frozen=True, slots=True)
class ParameterSupport:
    """The values that an engine accepts as parameters; none by default."""

    types: Collection[ParameterType] = ()
    not_finite: bool = False
    """Accepts NaN and infinities as doubles."""
    not_finite_decimals: bool = False
    """Accepts NaN and infinities as decimals."""
    decimal_digits: int = 38
    even_arrays: bool = False
    """Whether nested arrays must have equal lengths."""
    unfit: "Callable[[Parameter], str | None]" = field(default=lambda _: None, repr=False)
    """Why the engine cannot represent a value of a supported type, such as `its time is finer than milliseconds`."""

    def require(self, parameters: Parameters) -> None:
        """Raises InvalidParameter for the first value that the engine does not accept."""
        if not self.types:
            raise InvalidParameter("parameters: this connector takes no parameters.")
        for number, row in enumerate(parameters.rows, 1):
            with of_row(number):
                self.require(row)
        for name, one in parameters:
            if problem := self._problem(one):
                raise InvalidParameter(f"parameters: {name} {problem}")

    def _problem(self, one: Parameter) -> str | None:
        if one.type is not None and one.type not in self.types:
            return f"is of type {one.type}, which this connector cannot take."
        if isinstance(one.value, float) and not (self.not_finite or math.isfinite(one.value)):
            return "is NaN or infinite, which this connector cannot take."
        if isinstance(one.value, Decimal) and not one.value.is_finite():
            return None if self.not_finite_decimals else "is NaN or infinite, which this connector cannot take."
        if isinstance(one.value, Decimal) and max(digits_of(one.value)) > self.decimal_digits:
            return f"has more than the {self.decimal_digits} digits that decimals of this connector have."
        if self.even_arrays and _shape(one) is None:
            return "has arrays of different lengths in an array, which this connector cannot take."
        if reason := self.unfit(one):
            return f"has a value that this connector cannot hold: {reason}."
        return next((problem for element in one.elements if (problem := self._problem(element))), None)


NO_PARAMETERS = ParameterSupport()


def _shape(one: Parameter) -> tuple[int, ...] | None:
    """The lengths of an array by nesting level, empty for other values; None if nested arrays differ in length."""
    if not one.elements:
        return (0,) if isinstance(one.value, tuple) else ()
    inner, *others = {_shape(element) for element in one.elements}
    return None if others or inner is None else (len(one.elements), *inner)


def read_parameters(given: object) -> Parameters:
    """Read the values of a JSON list or object. Raises InvalidParameter, which names the parameter."""
    if isinstance(given, Mapping):
        named = cast("Mapping[str, Any]", given)
        _require_few(len(named))
        for name in named:
            if len(name) > _LONGEST_NAME or not NAME.fullmatch(name):
                raise InvalidParameter("parameters: names are of letters, digits and _, and begin with no digit.")
        by_name = {name: _read(f":{name}", value) for name, value in named.items()}
        return Parameters(named, by_name=by_name)
    if isinstance(given, list):
        values = cast("list[Any]", given)
        _require_few(len(values))
        return Parameters(values, tuple(_read(str(number), value) for number, value in enumerate(values, 1)))
    raise InvalidParameter("parameters must be a JSON list or a JSON object.")


def read_parameter_rows(given: object) -> Parameters:
    """Read the values of a JSON list of lists or of objects. Raises InvalidParameter, which names the row."""
    if not isinstance(given, list) or not given:
        raise InvalidParameter("parameter_rows must be a JSON list of at least one row.")
    rows, read, values = cast("list[Any]", given), list[Parameters](), 0
    if len(rows) > MOST_ROWS:
        raise InvalidParameter(f"parameter_rows: at most {MOST_ROWS} rows.")
    for number, row in enumerate(rows, 1):
        with of_row(number):
            read.append(read_parameters(row))
            if read[-1].are_named != read[0].are_named:
                raise InvalidParameter("parameters are a list in one row, and an object in another.")
        values += len(row)
        if values > MOST_ROWS_VALUES:
            raise InvalidParameter(f"parameter_rows: at most {MOST_ROWS_VALUES} values.")
    return Parameters(rows, read[0].by_position, read[0].by_name, tuple(read))


@contextmanager
def of_row(number: int) -> Generator[None]:
    """Make InvalidParameter name the row, counted from 1."""
    try:
        yield
    except InvalidParameter as error:
        raise InvalidParameter(f"parameter_rows: row {number}: {error.message.removeprefix('parameters: ')}") from None


def digits_of(number: Decimal) -> tuple[int, int]:
    """Precision and scale of the smallest DECIMAL type for the number."""
    _, digits, exponent = number.as_tuple()
    places = int(exponent)
    scale = max(-places, 0)
    return max(len(digits) + max(places, 0), scale, 1), scale


def _require_few(count: int) -> None:
    if count > MOST_VALUES:
        raise InvalidParameter(f"parameters: at most {MOST_VALUES} values.")


def _read(name: str, given: Any, depth: int = 0) -> Parameter:
    match given:
        case None:
            return NULL
        case bool():
            return Parameter(ParameterType.BOOLEAN, given, is_plain=True)
        case int():
            return Parameter(ParameterType.BIGINT, _bigint(name, given), is_plain=True)
        case float():
            if not math.isfinite(given):
                raise InvalidParameter(f"parameters: {name} must be a finite number.")
            return Parameter(ParameterType.DOUBLE, given, is_plain=True)
        case str():
            return Parameter(ParameterType.VARCHAR, _text(name, given), is_plain=True)
        case list():
            return Parameter(ParameterType.ARRAY, _elements(name, cast("list[Any]", given), depth), is_plain=True)
        case Mapping():
            return _typed(name, cast("Mapping[str, Any]", given), depth)
        case _:
            raise InvalidParameter(f"parameters: {name} is no JSON value.")


def _typed(name: str, given: Mapping[str, Any], depth: int) -> Parameter:
    try:
        kind = ParameterType(given.get("type", ""))
    except ValueError:
        known = ", ".join(ParameterType)
        raise InvalidParameter(f"parameters: {name} must have a `type`, one of {known}.") from None
    if set(given) != {"type", "value"}:
        raise InvalidParameter(f"parameters: {name} must have the members `type` and `value` and no other.")
    value = given["value"]
    if value is None:
        return Parameter(kind, None)
    try:
        read = _elements(name, value, depth) if kind is ParameterType.ARRAY else _READERS[kind](name, value)
    except (ValueError, ArithmeticError, TypeError):
        raise InvalidParameter(f"parameters: {name} has a value that is not of its type {kind}.") from None
    return Parameter(kind, read)


def _elements(name: str, given: Any, depth: int) -> tuple[Parameter, ...]:
    if depth >= _MOST_DEPTH:
        raise InvalidParameter(f"parameters: {name} nests arrays more than {_MOST_DEPTH} deep.")
    if not isinstance(given, list):
        raise TypeError
    values = cast("list[Any]", given)
    _require_few(len(values))
    elements = tuple(_read(name, value, depth + 1) for value in values)
    kinds = {one.type for one in elements if one.type is not None}
    if kinds == {ParameterType.ARRAY}:
        kinds = {one.type for one in Parameter(ParameterType.ARRAY, elements).leaves}
    if len(kinds) > 1 and not kinds <= {ParameterType.BIGINT, ParameterType.DOUBLE, ParameterType.DECIMAL}:
        raise InvalidParameter(f"parameters: {name} is an array whose elements have different types.")
    return elements


def _text(name: str, given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    try:
        given.encode()
    except UnicodeEncodeError:
        raise InvalidParameter(f"parameters: {name} must be free of lone surrogates.") from None
    if "\0" in given:
        raise InvalidParameter(f"parameters: {name} must be free of U+0000.")
    return given


def _boolean(_name: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise TypeError
    return given


def _bigint(name: str, given: Any) -> int:
    if isinstance(given, str) and _INTEGER.fullmatch(given):
        given = int(given)
    if type(given) is not int:
        raise TypeError
    if not -_BIGINT <= given < _BIGINT:
        raise InvalidParameter(f"parameters: {name} must be an integer of 64 bits; larger numbers go as decimal.")
    return given


def _double(_name: str, given: Any) -> float:
    if isinstance(given, str):
        if given in _NOT_FINITE:
            return _NOT_FINITE[given]
        if not _DECIMAL.fullmatch(given):
            raise ValueError
    elif isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError
    number = float(given)
    if not math.isfinite(number):
        raise ValueError
    return number


def _decimal(name: str, given: Any) -> Decimal:
    if isinstance(given, float) or (type(given) is int and not -_BIGINT <= given < _BIGINT):
        # JSON readers round floats, and writers may not support larger integers.
        raise InvalidParameter(f"parameters: {name}: send a decimal as text, or as an integer of 64 bits.")
    if given in _NOT_FINITE:
        return Decimal(given)
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise TypeError
    text = str(given)
    if len(text) > _MOST_DIGITS or not _DECIMAL.fullmatch(text):
        raise ValueError
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError from None


def _matched(pattern: re.Pattern[str], given: Any) -> str:
    if not isinstance(given, str) or not pattern.fullmatch(given):
        raise ValueError
    return given


def _date(_name: str, given: Any) -> date:
    return date.fromisoformat(_matched(_DATE, given))


def _time(_name: str, given: Any) -> time:
    return time.fromisoformat(_matched(_TIME, given))


def _timestamp(_name: str, given: Any) -> datetime:
    return datetime.fromisoformat(_matched(_TIMESTAMP, given))


def _timestamp_tz(_name: str, given: Any) -> datetime:
    read = datetime.fromisoformat(_matched(_TIMESTAMP_TZ, given).replace(" +", "+").replace(" -", "-").upper())
    read.astimezone(UTC)  # raises OverflowError if UTC is outside of years 1 to 9999, since engines are sent UTC
    return read


def _binary(_name: str, given: Any) -> bytes:
    return b64decode(_matched(_BASE64, given))


_READERS: Mapping[ParameterType, Any] = {
    ParameterType.BOOLEAN: _boolean,
    ParameterType.BIGINT: _bigint,
    ParameterType.DOUBLE: _double,
    ParameterType.DECIMAL: _decimal,
    ParameterType.VARCHAR: _text,
    ParameterType.DATE: _date,
    ParameterType.TIME: _time,
    ParameterType.TIMESTAMP: _timestamp,
    ParameterType.TIMESTAMP_TZ: _timestamp_tz,
    ParameterType.BINARY: _binary,
}
