"""Trino's declared types: names of Contract editor 6.3, and how values of a type reach us in JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from queryserver.domain.result import Column, ResultType


class Kind(Enum):
    """How the values of a type stand in JSON."""

    BOOLEAN = auto()
    TINYINT = auto()
    SMALLINT = auto()
    INTEGER = auto()
    BIGINT = auto()
    REAL = auto()
    DOUBLE = auto()
    DECIMAL = auto()
    TEXT = auto()
    TIME = auto()
    DATE = auto()
    TIMESTAMP = auto()
    BINARY = auto()
    ARRAY = auto()
    MAP = auto()
    ROW = auto()
    UNKNOWN = auto()
    OTHER = auto()
    """Text, or JSON of any shape."""


@dataclass(frozen=True, slots=True)
class DeclaredType:
    """A type. `numbers` are its parameters, `parts` the element, key and value, or fields; `names` those of fields."""

    kind: Kind
    result: ResultType
    numbers: tuple[int, ...] = ()
    parts: tuple["DeclaredType", ...] = ()
    names: tuple[str, ...] = ()


_SIMPLE: Mapping[str, tuple[Kind, ResultType]] = {
    "boolean": (Kind.BOOLEAN, ResultType.BOOLEAN),
    "tinyint": (Kind.TINYINT, ResultType.TINYINT),
    "smallint": (Kind.SMALLINT, ResultType.SMALLINT),
    "integer": (Kind.INTEGER, ResultType.INT),
    "bigint": (Kind.BIGINT, ResultType.BIGINT),
    "real": (Kind.REAL, ResultType.FLOAT),
    "double": (Kind.DOUBLE, ResultType.DOUBLE),
    "decimal": (Kind.DECIMAL, ResultType.DECIMAL),
    "char": (Kind.TEXT, ResultType.CHAR),
    "json": (Kind.TEXT, ResultType.STRING),
    "uuid": (Kind.TEXT, ResultType.STRING),
    "ipaddress": (Kind.TEXT, ResultType.STRING),
    "time": (Kind.TIME, ResultType.STRING),
    "time with time zone": (Kind.TEXT, ResultType.STRING),
    "date": (Kind.DATE, ResultType.DATE),
    "timestamp": (Kind.TIMESTAMP, ResultType.TIMESTAMP),
    "timestamp with time zone": (Kind.TEXT, ResultType.TIMESTAMP_TZ),
    "interval year to month": (Kind.TEXT, ResultType.INTERVAL_YEAR_MONTH),
    "interval day to second": (Kind.TEXT, ResultType.INTERVAL_DAY_TIME),
    "array": (Kind.ARRAY, ResultType.ARRAY),
    "map": (Kind.MAP, ResultType.MAP),
    "row": (Kind.ROW, ResultType.STRUCT),
    "unknown": (Kind.UNKNOWN, ResultType.NULL),
    **dict.fromkeys(
        ("varbinary", "hyperloglog", "p4hyperloglog", "qdigest", "tdigest", "setdigest", "kllsketch", "khyperloglog",
         "thetasketch", "sfmsketch", "bloomfilter"),
        (Kind.BINARY, ResultType.BINARY),
    ),
}  # fmt: skip
_UNBOUNDED = 2**31 - 1
_MAX_DEPTH = 100


def declare(columns: Sequence[Mapping[str, Any]]) -> tuple[DeclaredType, ...]:
    """The types of the member `columns` of an answer. Raises KeyError, TypeError for what is no answer of Trino's."""
    return tuple(_of_signature(column["typeSignature"]) for column in columns)


def result_columns(columns: Sequence[Mapping[str, Any]], declared: Sequence[DeclaredType]) -> tuple[Column, ...]:
    """The columns as clients see them."""
    pairs = zip(columns, declared, strict=True)
    return tuple(Column(str(column["name"]), kind.result, _native(str(column["type"]))) for column, kind in pairs)


def _native(text: str) -> str:
    """Trino writes interval types in capitals here and nowhere else."""
    return text.lower() if text.startswith("INTERVAL ") else text


def _of_signature(signature: Mapping[str, Any], depth: int = 0) -> DeclaredType:
    if depth > _MAX_DEPTH:
        raise TypeError("a type is nested too deeply")
    raw = str(signature["rawType"]).lower()
    arguments: Sequence[Mapping[str, Any]] = signature.get("arguments") or ()
    numbers = tuple(int(one["value"]) for one in arguments if one.get("kind") in {"LONG", "LONG_LITERAL"})
    if raw == "varchar":
        bounded = bool(numbers) and numbers[0] < _UNBOUNDED
        return DeclaredType(Kind.TEXT, ResultType.VARCHAR if bounded else ResultType.STRING, numbers)
    kind, result = _SIMPLE.get(raw, (Kind.OTHER, ResultType.USER_DEFINED))
    if kind not in {Kind.ARRAY, Kind.MAP, Kind.ROW}:
        return DeclaredType(kind, result, numbers)
    members = [_member(one) for one in arguments]
    return DeclaredType(
        kind,
        result,
        parts=tuple(_of_signature(inner, depth + 1) for _, inner in members),
        names=tuple(name for name, _ in members),
    )


def _member(argument: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Name and type signature of an element, a key, a value or a field; only fields may have names."""
    value = argument["value"]
    if argument.get("kind") in {"NAMED_TYPE", "NAMED_TYPE_SIGNATURE"}:
        name = value.get("fieldName") or {}
        return str(name.get("name") or ""), value["typeSignature"]
    return "", value
