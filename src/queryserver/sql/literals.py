"""Formats parameter values as literals, for engines whose protocol cannot bind them in every statement (ADR 61).

A string is quoted only if none of its characters has a special meaning in the dialect. Otherwise it is written as
hexadecimal UTF-8, which does not depend on session settings.
"""

import datetime as dt
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from queryserver.sql.parameters import Parameter, ParameterSupport, ParameterType, precision_and_scale

T = ParameterType

# Matches strings that contain no quotes, backslashes, `$` (Hive and Spark replace `${…}` even in quotes), line breaks
# or ASCII control characters.
_PLAIN = re.compile(r"[^\x00-\x1f'\"\\$`\x7f\x85\u2028\u2029]*")
_INT = 2**31
_ENDING_ZEROS = re.compile(r"(\.\d*[1-9])0+(?=')")


@dataclass(frozen=True, slots=True)
class Literals:
    """Formats the literals of a dialect. Templates contain `{}`. A template is empty if the engine lacks the type.

    `text` formats any string, `binary` takes hexadecimal digits, `array` the comma-separated elements.
    """

    text: Callable[[str], str]
    binary: str
    types: Mapping[ParameterType, str]
    """Type names for CAST."""
    date: str = "DATE '{}'"
    time: str = ""
    timestamp: str = "TIMESTAMP '{}'"
    timestamp_tz: str = ""
    """Template for a timestamp in UTC."""
    double: str = "CAST('{}' AS DOUBLE)"
    not_finite: tuple[str, str, str] | None = None
    """The strings for NaN, infinity and minus infinity in `double`, or None if they are not supported."""
    decimal: str = "CAST('{}' AS DECIMAL({},{}))"
    array: str = ""
    decimal_digits: int = 38

    @property
    def support(self) -> ParameterSupport:
        """The values that can be formatted."""
        lacking = {T.TIME: self.time, T.TIMESTAMP_TZ: self.timestamp_tz, T.ARRAY: self.array}
        types = frozenset(kind for kind in T if lacking.get(kind) != "")
        return ParameterSupport(types, not_finite=self.not_finite is not None, decimal_digits=self.decimal_digits)

    def write(self, _number: int, parameter: Parameter) -> str:
        """Return the literal for a value that `support` permits."""
        value = parameter.value
        match value:
            case None:
                name = self.types.get(parameter.type) if parameter.type is not None else None
                return f"CAST(NULL AS {name})" if name else "NULL"
            case bool():
                return "TRUE" if value else "FALSE"
            case int():
                return self._integer(value, is_plain=parameter.is_plain)
            case float():
                return self._double(value)
            case Decimal():
                return self.decimal.format(format(value, "f"), *precision_and_scale(value))
            case str():
                return self.text(value)
            case dt.date() | dt.time():
                return self._format_temporal(value)
            case bytes():
                return self.binary.format(value.hex())
            case tuple():
                return self.array.format(", ".join(self.write(0, element) for element in value))

    def _format_temporal(self, value: dt.date | dt.time) -> str:
        if isinstance(value, dt.time):
            return self.time.format(value.isoformat())
        if not isinstance(value, dt.datetime):
            return self.date.format(value.isoformat())
        if value.tzinfo is None:
            return self.timestamp.format(value.isoformat(" "))
        return self.timestamp_tz.format(value.astimezone(dt.UTC).replace(tzinfo=None).isoformat(" "))

    def _integer(self, value: int, *, is_plain: bool) -> str:
        if is_plain and -_INT <= value < _INT:
            return str(value) if value >= 0 else f"({value})"
        name = self.types[T.BIGINT]
        return f"CAST('{value}' AS {name})"

    def _double(self, value: float) -> str:
        if math.isfinite(value):
            return self.double.format(repr(value))
        nan, infinity, minus_infinity = self.not_finite or ("NaN", "Infinity", "-Infinity")
        return self.double.format(nan if math.isnan(value) else infinity if value > 0 else minus_infinity)


def doubled_quotes(text: str) -> str:
    """Quote a string for engines whose literals have no escapes other than doubled quotes."""
    return "'" + text.replace("'", "''") + "'"


def _hexadecimal_text(template: str) -> Callable[[str], str]:
    def write(text: str) -> str:
        return f"'{text}'" if _PLAIN.fullmatch(text) else template.format(text.encode().hex())

    return write


_TYPES = MappingProxyType(
    {
        T.BOOLEAN: "BOOLEAN",
        T.BIGINT: "BIGINT",
        T.DOUBLE: "DOUBLE",
        T.DECIMAL: "DECIMAL(38,10)",
        T.VARCHAR: "STRING",
        T.DATE: "DATE",
        T.TIMESTAMP: "TIMESTAMP",
        T.BINARY: "BINARY",
    }
)
_JAVA_NOT_FINITE = ("NaN", "Infinity", "-Infinity")

HIVE = Literals(
    text=_hexadecimal_text("CAST(unhex('{}') AS STRING)"),
    binary="unhex('{}')",
    types=_TYPES,
    array="array({})",
    not_finite=_JAVA_NOT_FINITE,
)
SPARKSQL = Literals(
    text=HIVE.text,
    binary="unhex('{}')",
    types=_TYPES,
    timestamp_tz="TIMESTAMP '{}+00:00'",
    array="array({})",
    not_finite=_JAVA_NOT_FINITE,
)
IMPALA = Literals(
    text=_hexadecimal_text("unhex('{}')"),
    binary="unhex('{}')",
    types=_TYPES,
    timestamp="CAST('{}' AS TIMESTAMP)",
    not_finite=("nan", "inf", "-inf"),
)
DUCKDB = Literals(
    text=doubled_quotes,
    binary="unhex('{}')",
    types=MappingProxyType(
        {**_TYPES, T.VARCHAR: "VARCHAR", T.TIME: "TIME", T.TIMESTAMP_TZ: "TIMESTAMPTZ", T.BINARY: "BLOB"}
    ),
    time="TIME '{}'",
    timestamp_tz="TIMESTAMPTZ '{}+00'",
    array="[{}]",
    not_finite=("nan", "inf", "-inf"),
)
TRINO = Literals(
    text=doubled_quotes,
    binary="X'{}'",
    types=MappingProxyType({
        **_TYPES,
        T.VARCHAR: "VARCHAR",
        T.TIME: "TIME(6)",
        T.TIMESTAMP: "TIMESTAMP(6)",
        T.TIMESTAMP_TZ: "TIMESTAMP(6) WITH TIME ZONE",
        T.BINARY: "VARBINARY",
    }),
    time="TIME '{}'",
    timestamp_tz="TIMESTAMP '{} UTC'",
    array="ARRAY[{}]",
    not_finite=_JAVA_NOT_FINITE,
)  # fmt: skip


def mysql_text(text: str) -> str:
    """Return a hexadecimal string literal, which is independent of `sql_mode`."""
    return f"_utf8mb4 X'{text.encode().hex()}'" if text else "''"


class _MysqlLiterals(Literals):
    """Writes NULL without a type and numbers as digits, because MySQL's CAST does not accept column types."""

    def write(self, number: int, parameter: Parameter) -> str:
        if parameter.value is None:
            return "NULL"
        return Literals.write(self, number, parameter)

    def _integer(self, value: int, *, is_plain: bool) -> str:  # noqa: ARG002 plain digits are a BIGINT
        return str(value) if value >= 0 else f"({value})"

    def _format_temporal(self, value: dt.date | dt.time) -> str:
        """Write only the significant fractional digits, because they determine the type."""
        return _ENDING_ZEROS.sub(r"\1", super()._format_temporal(value))

    def _double(self, value: float) -> str:
        text = repr(value)
        text = text if "e" in text else f"{text}e0"  # without an exponent it would be a DECIMAL
        return f"({text})" if value < 0 else text


MYSQL = _MysqlLiterals(
    text=mysql_text,
    binary="_binary X'{}'",
    types=MappingProxyType({}),
    time="TIME'{}'",
    date="DATE'{}'",
    timestamp="TIMESTAMP'{}'",
    # Only newer servers accept a time zone offset in a literal.
    timestamp_tz="CONVERT_TZ(TIMESTAMP'{}', '+00:00', @@session.time_zone)",
    decimal="({})",
    decimal_digits=65,
)


def _phoenix_text(text: str) -> str:
    return doubled_quotes(text.replace("\\", "\\\\"))


class _PhoenixLiterals(Literals):
    """Converts all numbers in an array to the widest type, because the first element determines the array's type."""

    def write(self, number: int, parameter: Parameter) -> str:
        kinds = {element.type for element in parameter.elements}
        if T.DOUBLE in kinds:
            parameter = replace(
                parameter, value=tuple(_as_type(T.DOUBLE, element, float) for element in parameter.elements)
            )
        elif T.DECIMAL in kinds:
            parameter = replace(
                parameter, value=tuple(_as_type(T.DECIMAL, element, Decimal) for element in parameter.elements)
            )
        return Literals.write(self, number, parameter)

    def _integer(self, value: int, *, is_plain: bool) -> str:  # noqa: ARG002 the first element may be smaller than others
        return f"CAST({value} AS BIGINT)"


def _as_type(kind: ParameterType, parameter: Parameter, convert: Callable[[Any], float | Decimal]) -> Parameter:
    return replace(parameter, type=kind, value=convert(parameter.value))


PHOENIX = _PhoenixLiterals(
    text=_phoenix_text,
    binary="",
    types=MappingProxyType({T.VARCHAR: "VARCHAR"}),
    date="TO_DATE('{}')",
    time="TO_TIME('1970-01-01 {}')",
    timestamp="TO_TIMESTAMP('{}')",
    double="CAST({} AS DOUBLE)",
    decimal="CAST({} AS DECIMAL)",
    array="ARRAY[{}]",
)
