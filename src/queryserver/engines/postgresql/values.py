"""Converts PostgreSQL types and values to Arrow: declared types, nested values in text format, dates of any year."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

import asyncpg
import pyarrow as pa
import pyarrow.compute as pc

from queryserver.engines.postgresql.wire import NO_MODIFIER, Field
from queryserver.engines.record_batches import calendar_date, clock_text, nulls, offsets
from queryserver.errors.statements import StatementRejected
from queryserver.formats.arrow import PLAIN_TYPES, Column, ResultType, text_union


class ValueKind(Enum):
    """How the values of a type are encoded."""

    BOOL = auto()
    NUMBER = auto()
    NUMERIC = auto()
    DATE = auto()
    TIMESTAMP = auto()
    TIMESTAMPTZ = auto()
    BYTEA = auto()
    TEXT = auto()
    ARRAY = auto()
    HSTORE = auto()
    COMPOSITE = auto()
    RECORD = auto()


@dataclass(frozen=True, slots=True)
class DeclaredType:
    """A type with its modifiers. `precision` is None for an unbounded numeric.

    `fields` is set for a composite type, `element` and `delimiter` for an array.
    """

    kind: ValueKind
    result: ResultType
    name: str
    precision: int | None = None
    scale: int = 0
    element: "DeclaredType | None" = None
    delimiter: str = ","
    fields: tuple[tuple[str, "DeclaredType"], ...] = ()


def _texts(names: Mapping[int, str], result: ResultType) -> dict[int, DeclaredType]:
    return {oid: DeclaredType(ValueKind.TEXT, result, name) for oid, name in names.items()}


_VARCHAR, _CHAR, _NUMERIC = 1043, 1042, 1700
_BUILTIN: Mapping[int, DeclaredType] = {
    16: DeclaredType(ValueKind.BOOL, ResultType.BOOLEAN, "boolean"),
    17: DeclaredType(ValueKind.BYTEA, ResultType.BINARY, "bytea"),
    20: DeclaredType(ValueKind.NUMBER, ResultType.BIGINT, "bigint"),
    21: DeclaredType(ValueKind.NUMBER, ResultType.SMALLINT, "smallint"),
    23: DeclaredType(ValueKind.NUMBER, ResultType.INT, "integer"),
    26: DeclaredType(ValueKind.NUMBER, ResultType.BIGINT, "oid"),
    700: DeclaredType(ValueKind.NUMBER, ResultType.FLOAT, "real"),
    701: DeclaredType(ValueKind.NUMBER, ResultType.DOUBLE, "double precision"),
    1082: DeclaredType(ValueKind.DATE, ResultType.DATE, "date"),
    1114: DeclaredType(ValueKind.TIMESTAMP, ResultType.TIMESTAMP, "timestamp without time zone"),
    1184: DeclaredType(ValueKind.TIMESTAMPTZ, ResultType.TIMESTAMP_TZ, "timestamp with time zone"),
    1186: DeclaredType(ValueKind.TEXT, ResultType.INTERVAL_DAY_TIME, "interval"),
    _NUMERIC: DeclaredType(ValueKind.NUMERIC, ResultType.DECIMAL, "numeric"),
    2249: DeclaredType(ValueKind.RECORD, ResultType.STRUCT, "record"),
    **_texts(
        {
            18: '"char"', 19: "name", 25: "text", 114: "json", 142: "xml", 650: "cidr", 705: "unknown", 790: "money",
            869: "inet", 1083: "time without time zone", 1266: "time with time zone", 1560: "bit", 1562: "bit varying",
            _CHAR: "char", _VARCHAR: "varchar", 2950: "uuid", 3802: "jsonb", 3904: "int4range", 3906: "numrange",
            3908: "tsrange", 3910: "tstzrange", 3912: "daterange", 3926: "int8range",
        },
        ResultType.STRING,
    ),
    **_texts({28: "xid", 600: "point", 829: "macaddr", 2205: "regclass", 2278: "void"}, ResultType.USER_DEFINED),
}  # fmt: skip
"""Types with fixed OIDs, which can be resolved without a query."""

_BUILTIN_ARRAYS: Mapping[int, int] = {
    1000: 16, 1001: 17, 1005: 21, 1007: 23, 1009: 25, 1014: 1042, 1015: 1043, 1016: 20, 1021: 700, 1022: 701,
    1028: 26, 1115: 1114, 1182: 1082, 1185: 1184, 1187: 1186, 1231: 1700, 199: 114, 2951: 2950, 3807: 3802,
}  # fmt: skip

_MODIFIER_OFFSET = 4
_TYPE = """
SELECT t.oid, t.typname, t.typtype::text AS kind, t.typcategory::text AS category, t.typelem AS element,
       t.typdelim::text AS delimiter, t.typbasetype AS base, t.typtypmod AS base_modifier, t.typrelid AS relation,
       t.typelem <> 0 AND t.typlen = -1 AND t.oid NOT IN (22, 30) AS is_array
  FROM pg_catalog.pg_type t WHERE t.oid = $1"""
_ATTRIBUTES = """
SELECT a.attname, a.atttypid, a.atttypmod
  FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum"""


def builtin_type(oid: int) -> DeclaredType | None:
    return _BUILTIN.get(oid)


def element_oid(oid: int) -> int | None:
    """Return the element type's OID for a built-in array type; None for any other type."""
    return _BUILTIN_ARRAYS.get(oid)


async def declare(connection: asyncpg.Connection, fields: Sequence[Field]) -> tuple[DeclaredType, ...]:
    """Return each column's declared type. Only types that are not built in require catalog queries."""
    types = _Types(connection)
    declared = [await types.resolve(field.type_oid, field.modifier) for field in fields]
    unnamed = list[int]()
    for i, field in enumerate(fields):
        element = _BUILTIN_ARRAYS.get(field.type_oid, field.type_oid)
        has_known_modifier = field.modifier == NO_MODIFIER or element in (_VARCHAR, _CHAR, _NUMERIC)
        if element not in _BUILTIN or not has_known_modifier:
            unnamed.append(i)
    if unnamed:
        names = ", ".join(f"format_type({fields[i].type_oid:d}, {fields[i].modifier:d})" for i in unnamed)
        (row,) = await connection.fetch(f"SELECT {names}")
        for i, name in zip(unnamed, row, strict=True):
            declared[i] = replace(declared[i], name=name)
    return tuple(declared)


def columns(fields: Sequence[Field], declared: Sequence[DeclaredType]) -> tuple[Column, ...]:
    """Build the result columns from names and declared types."""
    return tuple(Column(f.name, d.result, d.name) for f, d in zip(fields, declared, strict=True))


class _Types:
    """Reads each type from the catalog once, and resolves array elements, domain bases and composite attributes."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._rows: dict[int, asyncpg.Record] = {}

    async def resolve(self, oid: int, modifier: int) -> DeclaredType:
        """Return the type with this OID and the modifier of the column or field."""
        if oid in _BUILTIN:
            return _modified(oid, modifier)
        if oid in _BUILTIN_ARRAYS:
            return _array(_modified(_BUILTIN_ARRAYS[oid], modifier), ",")
        if oid not in self._rows:
            found = await self._connection.fetchrow(_TYPE, oid)
            if found is None:
                raise StatementRejected(f"type with OID {oid} does not exist")
            self._rows[oid] = found
        row = self._rows[oid]
        if row["is_array"]:
            return _array(await self.resolve(row["element"], modifier), row["delimiter"])
        if row["kind"] == "d":
            return await self.resolve(row["base"], row["base_modifier"])
        if row["kind"] == "c":
            attributes = await self._connection.fetch(_ATTRIBUTES, row["relation"])
            fields = [(a["attname"], await self.resolve(a["atttypid"], a["atttypmod"])) for a in attributes]
            return DeclaredType(ValueKind.COMPOSITE, ResultType.STRUCT, row["typname"], fields=tuple(fields))
        if row["typname"] == "hstore":
            return DeclaredType(ValueKind.HSTORE, ResultType.MAP, "hstore")
        is_text = row["kind"] in ("e", "r", "m") or row["category"] == "S"
        return DeclaredType(ValueKind.TEXT, ResultType.STRING if is_text else ResultType.USER_DEFINED, row["typname"])


def _array(element: DeclaredType, delimiter: str) -> DeclaredType:
    return DeclaredType(ValueKind.ARRAY, ResultType.ARRAY, f"{element.name}[]", element=element, delimiter=delimiter)


def _modified(oid: int, modifier: int) -> DeclaredType:
    plain = _BUILTIN[oid]
    if modifier == NO_MODIFIER:
        return plain
    if oid in (_VARCHAR, _CHAR):
        result = ResultType.VARCHAR if oid == _VARCHAR else ResultType.CHAR
        return replace(plain, result=result, name=f"{plain.name}({modifier - _MODIFIER_OFFSET})")
    if oid == _NUMERIC:
        precision, scale = numeric_shape(modifier)
        return replace(plain, name=f"numeric({precision},{scale})", precision=precision, scale=scale)
    return plain


def numeric_shape(modifier: int) -> tuple[int, int]:
    """Decode precision (16 bits) and scale (signed, lower 11 bits) (numeric.c: make_numeric_typmod)."""
    packed = modifier - _MODIFIER_OFFSET
    return packed >> 16 & 0xFFFF, (packed & 0x7FF ^ 0x400) - 0x400


Nested = str | list["Nested"] | None

_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_DIMENSIONS = re.compile(r"(?:\[[-+\d]+:[-+\d]+\])+=")
_ATTRIBUTE = re.compile(r'((?:"(?:[^"\\]|\\.|"")*"|\\.|[^",\\])*)(,|$)', re.DOTALL)
_QUOTED_PART = re.compile(r'"((?:[^"\\]|\\.|"")*)"|\\(.)|([^"\\]+)', re.DOTALL)
_IN_QUOTES = re.compile(r'\\(.)|"(")', re.DOTALL)
_PAIR = re.compile(rf"{_QUOTED}=>(?:{_QUOTED}|(NULL))(?:, |$)", re.DOTALL)


def array_literal(text: str, delimiter: str) -> list[Nested]:
    """Parse `{1,NULL,"a b"}` into a list. Inner arrays become lists; other elements become strings or None."""
    body = _DIMENSIONS.sub("", text, count=1)
    if "{" not in body[1:] and '"' not in body and "\\" not in body:
        items = body[1:-1]
        return [_bare(item) for item in items.split(delimiter)] if items else []
    mark = re.escape(delimiter)
    token = re.compile(rf'{_QUOTED}|([{{}}])|((?:[^"{{}}\\{mark}]|\\.)+)', re.DOTALL)
    enclosing: list[list[Nested]] = [[]]
    for match in token.finditer(body):
        quoted, bracket, bare = match.groups()
        if bracket == "{":
            inner: list[Nested] = []
            enclosing[-1].append(inner)
            enclosing.append(inner)
        elif bracket == "}":
            enclosing.pop()
        else:
            enclosing[-1].append(_bare(bare) if quoted is None else _ESCAPE.sub(r"\1", quoted))
    outermost = enclosing[0][0]
    return outermost if isinstance(outermost, list) else []


def _bare(item: str) -> str | None:
    return None if item.upper() == "NULL" else _ESCAPE.sub(r"\1", item)


def composite_attributes(text: str) -> list[str | None]:
    """Parse `(1,,"a b")` into strings; an empty attribute becomes None."""
    found: list[str | None] = []
    body, position = text[1:-1], 0
    while match := _ATTRIBUTE.match(body, position):
        raw = match[1]
        if '"' in raw or "\\" in raw:
            parts = _QUOTED_PART.finditer(raw)
            found.append("".join(p[3] or p[2] or _IN_QUOTES.sub(lambda m: m[1] or m[2], p[1] or "") for p in parts))
        else:
            found.append(raw or None)
        if not match[2]:
            break
        position = match.end()
    return found


def hstore_pairs(text: str) -> list[tuple[str, str | None]]:
    """Parse `"a"=>"1", "b"=>NULL` into pairs."""
    return [(_ESCAPE.sub(r"\1", m[1]), None if m[3] else _ESCAPE.sub(r"\1", m[2])) for m in _PAIR.finditer(text)]


DATE_INFINITY = 2**31 - 1
TIMESTAMP_INFINITY = 2**63 - 1


def date_text(days: int) -> str:
    """Format days since 2000-01-01 as an ISO date.

    `infinity`, `-infinity`, years after 9999 and `BC` are written as the server writes them.
    """
    if days == DATE_INFINITY:
        return "infinity"
    if days == -DATE_INFINITY - 1:
        return "-infinity"
    day, is_bc = calendar_date(days + _DAYS_1970_TO_2000)
    return f"{day} BC" if is_bc else day


def timestamp_text(microseconds: int, zone: str = "") -> str:
    """Format microseconds since 2000-01-01 as ISO text, with `zone` after the time. A zero fraction is omitted."""
    if microseconds == TIMESTAMP_INFINITY:
        return "infinity"
    if microseconds == -TIMESTAMP_INFINITY - 1:
        return "-infinity"
    days, in_day = divmod(microseconds, 86_400_000_000)
    seconds, fraction = divmod(in_day, 1_000_000)
    day, is_bc = calendar_date(days + _DAYS_1970_TO_2000)
    return f"{day} {clock_text(seconds)}{f'.{fraction:06}' if fraction else ''}{zone}{' BC' if is_bc else ''}"


_DAYS_1970_TO_2000 = 10_957
_US_1970_TO_2000 = 946_684_800_000_000
_CALENDAR_DAYS = (-719_162 - _DAYS_1970_TO_2000, 2_932_896 - _DAYS_1970_TO_2000)
_CALENDAR_US = (-62_135_596_800_000_000 - _US_1970_TO_2000, 253_402_300_799_999_999 - _US_1970_TO_2000)
_DECIMAL128_DIGITS = 38


_DAY = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?"
_REPRESENTABLE = {
    ValueKind.DATE: f"^{_DAY}$",
    ValueKind.TIMESTAMP: f"^{_DAY} {_CLOCK}$",
    ValueKind.TIMESTAMPTZ: rf"^{_DAY} {_CLOCK}[+-][0-9:]+$",
    ValueKind.NUMERIC: r"^-?[0-9.]+$",
}
"""Patterns for values that fit their Arrow types; infinities, out-of-range years and NaN do not match."""


class UnrepresentableValue(Exception):
    """A value does not fit its column's Arrow type."""


def arrow_type(declared: DeclaredType) -> pa.DataType:
    """Return the Arrow type for scalar values; the string type if no other type represents them exactly."""
    if declared.kind is ValueKind.NUMERIC and declared.precision is not None:
        digits = max(declared.precision, declared.scale)
        if declared.scale >= 0 and digits <= _DECIMAL128_DIGITS:
            return pa.decimal128(digits, declared.scale)
    if declared.kind is ValueKind.TIMESTAMPTZ:
        return pa.timestamp("us", tz="UTC")
    return PLAIN_TYPES.get(declared.result, pa.string())


def read_native(declared: DeclaredType, values: pa.Array) -> pa.Array:
    """Convert values as they arrive: dates and timestamps are integers, `numeric` values are text.

    The result is a text union if some values do not fit the Arrow type.
    """
    wanted = arrow_type(declared)
    if declared.kind is ValueKind.DATE:
        return _shifted(declared, values, _CALENDAR_DAYS, _DAYS_1970_TO_2000)
    if declared.kind in (ValueKind.TIMESTAMP, ValueKind.TIMESTAMPTZ):
        return _shifted(declared, values, _CALENDAR_US, _US_1970_TO_2000)
    if declared.kind is ValueKind.NUMERIC:
        return read_text(declared, values)
    return values if values.type == wanted else values.cast(wanted)


def read_text(declared: DeclaredType, texts: pa.Array) -> pa.Array:
    """Convert values in text format. Raises UnrepresentableValue."""
    wanted = arrow_type(declared)
    if declared.kind is ValueKind.BYTEA:
        values = texts.to_pylist()
        return pa.array([None if v is None else bytes.fromhex(v.removeprefix("\\x")) for v in values], wanted)
    if declared.kind is ValueKind.BOOL:
        return pc.call_function("equal", [texts, pa.scalar("t")])
    try:
        return texts.cast(wanted)
    except pa.ArrowInvalid as error:
        usual = _REPRESENTABLE.get(declared.kind)
        if usual is None:
            raise UnrepresentableValue from error
    is_usual = pc.call_function("coalesce", [_matches(texts, usual), pa.scalar(value=True)])
    try:
        inside = pc.call_function("if_else", [is_usual, texts, pa.scalar(None, pa.string())]).cast(wanted)
    except pa.ArrowInvalid as error:
        raise UnrepresentableValue from error
    return text_union(inside, pc.call_function("if_else", [is_usual, pa.scalar(None, pa.string()), texts]))


def _matches(texts: pa.Array, pattern: str) -> pa.Array:
    return pc.call_function("match_substring_regex", [texts], pc.MatchSubstringOptions(pattern))


def native_as_text(declared: DeclaredType, values: pa.Array) -> pa.Array:
    """Convert the values of a column to text, because one of them does not fit the column's type."""
    write = _WRITERS.get(declared.kind)
    if write is None:
        return values.cast(pa.string())
    return pa.array([None if value is None else write(value) for value in values.to_pylist()], pa.string())


_WRITERS: dict[ValueKind, Callable[[int], str]] = {
    ValueKind.DATE: date_text,
    ValueKind.TIMESTAMP: timestamp_text,
    ValueKind.TIMESTAMPTZ: lambda microseconds: timestamp_text(microseconds, "+00:00"),
}


def _shifted(declared: DeclaredType, numbers: pa.Array, limits: tuple[int, int], offset: int) -> pa.Array:
    """Add `offset` to the values. Values outside `limits` become the text members of a text union."""
    wanted, storage = arrow_type(declared), numbers.type
    extremes = pc.call_function("min_max", [numbers])
    lowest, highest = extremes["min"].as_py(), extremes["max"].as_py()
    if lowest is None or (lowest >= limits[0] and highest <= limits[1]):
        return pc.call_function("add", [numbers, pa.scalar(offset, storage)]).cast(wanted)
    write, values = _WRITERS[declared.kind], numbers.to_pylist()
    texts = [None if one is None or limits[0] <= one <= limits[1] else write(one) for one in values]
    inside = pa.array([one if text is None else None for one, text in zip(values, texts, strict=True)], storage)
    moved = pc.call_function("add", [inside, pa.scalar(offset, storage)])
    return text_union(moved.cast(wanted), pa.array(texts, pa.string()))


NESTED = frozenset({ValueKind.ARRAY, ValueKind.COMPOSITE, ValueKind.HSTORE})


def read_nested(declared: DeclaredType, texts: Sequence[str | None], *, dimensions: int = 1) -> pa.Array:
    """Convert values in the server's text format. Arrays have `dimensions` dimensions. Raises UnrepresentableValue."""
    if declared.kind is ValueKind.ARRAY:
        arrays = [None if text is None else array_literal(text, declared.delimiter) for text in texts]
        return _lists(declared, arrays, dimensions)
    if declared.kind is ValueKind.COMPOSITE:
        return _structs(declared, [None if text is None else composite_attributes(text) for text in texts])
    if declared.kind is ValueKind.HSTORE:
        pairs = [None if text is None else hstore_pairs(text) for text in texts]
        return pa.array(pairs, pa.map_(pa.string(), pa.string()))
    return read_text(declared, pa.array(texts, pa.string()))


def dimensions_of(declared: DeclaredType, texts: Sequence[str | None]) -> int:
    """Return the maximum number of dimensions of these arrays, which their declared type does not determine."""
    most = 1
    for text in texts:
        value: Nested = None if text is None else array_literal(text, declared.delimiter)
        depth = 0
        while isinstance(value, list):
            depth += 1
            value = value[0] if value else None
        most = max(most, depth)
    return most


def _lists(declared: DeclaredType, arrays: Sequence[Nested], dimensions: int) -> pa.Array:
    if any(isinstance(array, str) for array in arrays):
        raise UnrepresentableValue
    items = [item for array in arrays if isinstance(array, list) for item in array]
    if dimensions > 1:
        inner = _lists(declared, items, dimensions - 1)
    else:
        leaves = [item for item in items if not isinstance(item, list)]
        if len(leaves) < len(items) or declared.element is None:
            raise UnrepresentableValue
        inner = read_nested(declared.element, leaves)
    return pa.ListArray.from_arrays(offsets(arrays), inner, mask=nulls(arrays))


def _structs(declared: DeclaredType, values: Sequence[list[str | None] | None]) -> pa.Array:
    count = len(declared.fields)
    if any(value is not None and len(value) != count for value in values):
        raise UnrepresentableValue
    children = [
        read_nested(field, [None if value is None else value[i] for value in values])
        for i, (_, field) in enumerate(declared.fields)
    ]
    fields = [pa.field(name, child.type) for (name, _), child in zip(declared.fields, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=nulls(values))
