"""Defines the parameter types of statements, and reads parameter values from JSON.

Clients send a JSON list for `?` markers, or a JSON object for `:name` markers. A value is plain JSON, or `{"type": …,
"value": …}`. Error messages name the parameter but never quote its value.
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

MAX_VALUES = 10_000
MAX_BYTES = 1024 * 1024
"""Limit on the JSON text of all values in a call, in bytes."""
MAX_WRITTEN_BYTES = 16 * 1024 * 1024
"""Limit on the JSON text of all values, counting each value once per marker, because engines may receive each copy."""
MAX_ROWS = 10_000
MAX_ROWS_VALUES = 200_000
MAX_ROWS_BYTES = 4 * 1024 * 1024
"""Limits on `parameter_rows`: number of rows, total number of values, and bytes of JSON text."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

MORE_ROWS = "Send the other rows in further calls, or import them from a file."
_MAX_NAME_CHARACTERS = 128
_MAX_DIGITS = 1_000
_MAX_DEPTH = 8
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
    """A parameter value. `type` is None for a plain null, which adopts the type of its context.

    A value with `is_plain` was sent without a type, and behaves like the same digits or string in the statement.
    `value` is a `bool`, `int`, `float`, `Decimal`, `str`, `date`, `time`, `datetime` (with a zone for `timestamp_tz`),
    `bytes`, or a tuple of parameters for an array; None is NULL.
    """

    type: ParameterType | None
    value: Value = field(repr=False)
    is_plain: bool = False

    @property
    def elements(self) -> "tuple[Parameter, ...]":
        """The elements of an array. Empty for other values."""
        return self.value if isinstance(self.value, tuple) else ()

    @property
    def leaves(self) -> "Iterator[Parameter]":
        """The typed elements of an array and of all nested arrays."""
        for element in self.elements:
            if element.type is ParameterType.ARRAY:
                yield from element.leaves
            elif element.type is not None:
                yield element


NULL = Parameter(None, None, is_plain=True)


@dataclass(frozen=True, slots=True)
class Parameters:
    """The values of a call, by position or by name. `original` is the JSON as sent."""

    original: Sequence[Any] | Mapping[str, Any] = field(repr=False)
    by_position: tuple[Parameter, ...] = field(default=(), repr=False)
    by_name: Mapping[str, Parameter] | None = field(default=None, repr=False)
    """None if the values were sent as a list."""
    rows: "tuple[Parameters, ...]" = field(default=(), repr=False)
    """The rows, if the statement runs once per row of values. The other fields then contain the first row."""

    @property
    def are_named(self) -> bool:
        return self.by_name is not None

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        """Yield the name that messages use for each value, and the value."""
        if self.by_name is not None:
            yield from ((f":{name}", value) for name, value in self.by_name.items())
        else:
            yield from ((str(number), one) for number, one in enumerate(self.by_position, 1))


@dataclass(frozen=True, slots=True)
class ParameterSupport:
    """The parameter values that an engine accepts. By default, it accepts none."""

    types: Collection[ParameterType] = ()
    not_finite: bool = False
    """Whether NaN and infinities are accepted as doubles."""
    not_finite_decimals: bool = False
    """Whether NaN and infinities are accepted as decimals."""
    decimal_digits: int = 38
    even_arrays: bool = False
    """Whether nested arrays must have equal lengths."""
    refusal_reason: "Callable[[Parameter], str | None]" = field(default=lambda _: None, repr=False)
    """Returns why the engine cannot store a value of a supported type, such as `its time is finer than
    milliseconds`.
    """

    def require(self, parameters: Parameters) -> None:
        """Raise InvalidParameter for the first value that the engine does not accept."""
        if not self.types:
            raise InvalidParameter("parameters: this connector does not support parameters.")
        for number, row in enumerate(parameters.rows, 1):
            with row_errors(number):
                self.require(row)
        for name, parameter in parameters:
            if problem := self._problem(parameter):
                raise InvalidParameter(f"parameters: {name} {problem}")

    def _problem(self, parameter: Parameter) -> str | None:
        if parameter.type is not None and parameter.type not in self.types:
            return f"has the type {parameter.type}, which this connector does not support."
        if isinstance(parameter.value, float) and not (self.not_finite or math.isfinite(parameter.value)):
            return "is NaN or infinite, which this connector does not support."
        if isinstance(parameter.value, Decimal) and not parameter.value.is_finite():
            return None if self.not_finite_decimals else "is NaN or infinite, which this connector does not support."
        if isinstance(parameter.value, Decimal) and max(precision_and_scale(parameter.value)) > self.decimal_digits:
            return f"has more than {self.decimal_digits} digits, the maximum for decimals of this connector."
        if self.even_arrays and _array_shape(parameter) is None:
            return "contains nested arrays of different lengths, which this connector does not support."
        if reason := self.refusal_reason(parameter):
            return f"has a value that this connector cannot represent: {reason}."
        return next((problem for element in parameter.elements if (problem := self._problem(element))), None)


NO_PARAMETERS = ParameterSupport()


def _array_shape(parameter: Parameter) -> tuple[int, ...] | None:
    """Return an array's lengths by nesting level, or None if nested arrays differ in length.

    Other values have an empty shape.
    """
    if not parameter.elements:
        return (0,) if isinstance(parameter.value, tuple) else ()
    inner, *others = {_array_shape(element) for element in parameter.elements}
    return None if others or inner is None else (len(parameter.elements), *inner)


def read_parameters(content: object) -> Parameters:
    """Read the values of a JSON list or object. Raises InvalidParameter, which names the parameter."""
    if isinstance(content, Mapping):
        named = cast("Mapping[str, Any]", content)
        _require_max_values(len(named))
        for name in named:
            if len(name) > _MAX_NAME_CHARACTERS or not NAME.fullmatch(name):
                raise InvalidParameter(
                    "parameters: names must consist of letters, digits and _, and must not begin with a digit."
                )
        by_name = {name: _parameter(f":{name}", value) for name, value in named.items()}
        return Parameters(named, by_name=by_name)
    if isinstance(content, list):
        values = cast("list[Any]", content)
        _require_max_values(len(values))
        return Parameters(values, tuple(_parameter(str(number), value) for number, value in enumerate(values, 1)))
    raise InvalidParameter("parameters must be a JSON list or a JSON object.")


def read_parameter_rows(content: object) -> Parameters:
    """Read the values of a JSON list of lists or of objects. Raises InvalidParameter, which names the row."""
    if not isinstance(content, list) or not content:
        raise InvalidParameter("parameter_rows must be a JSON list of at least one row.")
    rows, parsed, values = cast("list[Any]", content), list[Parameters](), 0
    if len(rows) > MAX_ROWS:
        raise InvalidParameter(f"parameter_rows: at most {MAX_ROWS} rows. {MORE_ROWS}")
    for number, row in enumerate(rows, 1):
        with row_errors(number):
            parsed.append(read_parameters(row))
            if parsed[-1].are_named != parsed[0].are_named:
                raise InvalidParameter("parameters must be lists in all rows or objects in all rows.")
        values += len(row)
        if values > MAX_ROWS_VALUES:
            raise InvalidParameter(f"parameter_rows: at most {MAX_ROWS_VALUES} values. {MORE_ROWS}")
    return Parameters(rows, parsed[0].by_position, parsed[0].by_name, tuple(parsed))


@contextmanager
def row_errors(number: int) -> Generator[None]:
    """Add the row number, counted from 1, to InvalidParameter errors in the block."""
    try:
        yield
    except InvalidParameter as error:
        raise InvalidParameter(f"parameter_rows: row {number}: {error.message.removeprefix('parameters: ')}") from None


def precision_and_scale(number: Decimal) -> tuple[int, int]:
    """Return the precision and scale of the smallest DECIMAL type for the number."""
    _, digits, exponent = number.as_tuple()
    shift = int(exponent)
    scale = max(-shift, 0)
    return max(len(digits) + max(shift, 0), scale, 1), scale


def _require_max_values(count: int) -> None:
    if count > MAX_VALUES:
        raise InvalidParameter(f"parameters: at most {MAX_VALUES} values. Import longer lists into a table.")


def _parameter(name: str, value: Any, depth: int = 0) -> Parameter:
    match value:
        case None:
            return NULL
        case bool():
            return Parameter(ParameterType.BOOLEAN, value, is_plain=True)
        case int():
            return Parameter(ParameterType.BIGINT, _bigint(name, value), is_plain=True)
        case float():
            if not math.isfinite(value):
                raise InvalidParameter(f"parameters: {name} must be a finite number.")
            return Parameter(ParameterType.DOUBLE, value, is_plain=True)
        case str():
            return Parameter(ParameterType.VARCHAR, _text(name, value), is_plain=True)
        case list():
            return Parameter(ParameterType.ARRAY, _elements(name, cast("list[Any]", value), depth), is_plain=True)
        case Mapping():
            return _typed(name, cast("Mapping[str, Any]", value), depth)
        case _:
            raise InvalidParameter(f"parameters: {name} is not a JSON value.")


def _typed(name: str, typed: Mapping[str, Any], depth: int) -> Parameter:
    try:
        kind = ParameterType(typed.get("type", ""))
    except ValueError:
        known = ", ".join(ParameterType)
        raise InvalidParameter(f"parameters: {name} must have a `type`, one of {known}.") from None
    if set(typed) != {"type", "value"}:
        raise InvalidParameter(f"parameters: {name} must have exactly the members `type` and `value`.")
    value = typed["value"]
    if value is None:
        return Parameter(kind, None)
    try:
        parsed = _elements(name, value, depth) if kind is ParameterType.ARRAY else _READERS[kind](name, value)
    except (ValueError, ArithmeticError, TypeError):
        raise InvalidParameter(f"parameters: {name} has a value that is not valid for its type {kind}.") from None
    return Parameter(kind, parsed)


def _elements(name: str, given: Any, depth: int) -> tuple[Parameter, ...]:
    if depth >= _MAX_DEPTH:
        raise InvalidParameter(f"parameters: {name} nests arrays more than {_MAX_DEPTH} levels deep.")
    if not isinstance(given, list):
        raise TypeError
    values = cast("list[Any]", given)
    _require_max_values(len(values))
    elements = tuple(_parameter(name, value, depth + 1) for value in values)
    kinds = {element.type for element in elements if element.type is not None}
    if kinds == {ParameterType.ARRAY}:
        kinds = {one.type for one in Parameter(ParameterType.ARRAY, elements).leaves}
    if len(kinds) > 1 and not kinds <= {ParameterType.BIGINT, ParameterType.DOUBLE, ParameterType.DECIMAL}:
        raise InvalidParameter(f"parameters: {name} is an array whose elements have different types.")
    return elements


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidParameter(f"parameters: {name} must not contain lone surrogates.") from None
    if "\0" in value:
        raise InvalidParameter(f"parameters: {name} must not contain U+0000.")
    return value


def _boolean(_name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _bigint(name: str, value: Any) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is not int:
        raise TypeError
    if not -_BIGINT <= value < _BIGINT:
        raise InvalidParameter(f"parameters: {name} must be a 64-bit integer; send larger numbers as decimal.")
    return value


def _double(_name: str, value: Any) -> float:
    if isinstance(value, str):
        if value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if not _DECIMAL.fullmatch(value):
            raise ValueError
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _decimal(name: str, value: Any) -> Decimal:
    if isinstance(value, float) or (type(value) is int and not -_BIGINT <= value < _BIGINT):
        # JSON readers round floats, and writers may not support integers above 64 bits.
        raise InvalidParameter(f"parameters: {name}: send decimals as strings or as 64-bit integers.")
    if value in _NOT_FINITE:
        return Decimal(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    text = str(value)
    if len(text) > _MAX_DIGITS or not _DECIMAL.fullmatch(text):
        raise ValueError
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError from None


def _matched(pattern: re.Pattern[str], value: Any) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError
    return value


def _date(_name: str, value: Any) -> date:
    return date.fromisoformat(_matched(_DATE, value))


def _time(_name: str, value: Any) -> time:
    return time.fromisoformat(_matched(_TIME, value))


def _timestamp(_name: str, value: Any) -> datetime:
    return datetime.fromisoformat(_matched(_TIMESTAMP, value))


def _timestamp_tz(_name: str, value: Any) -> datetime:
    moment = datetime.fromisoformat(_matched(_TIMESTAMP_TZ, value).replace(" +", "+").replace(" -", "-").upper())
    moment.astimezone(UTC)  # raises OverflowError if UTC is outside of years 1 to 9999, since engines are sent UTC
    return moment


def _binary(_name: str, value: Any) -> bytes:
    return b64decode(_matched(_BASE64, value))


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
