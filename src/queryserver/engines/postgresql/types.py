"""What PostgreSQL declares about the columns of a result: names and types of Contract editor 6.3."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

import asyncpg

from queryserver.engines.postgresql.connection import NO_MODIFIER, Connection, Field
from queryserver.errors.statements import StatementRejected
from queryserver.formats.columns import Column, ResultType


class Kind(Enum):
    """How the values of a type reach us, and what becomes of them."""

    BOOL = auto()
    INT2 = auto()
    INT4 = auto()
    INT8 = auto()
    OID = auto()
    FLOAT4 = auto()
    FLOAT8 = auto()
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
    """A type with its modifiers; `precision` is None for a numeric without bounds.

    `fields` are those of a composite type, `element` and `delimiter` those of an array.
    """

    kind: Kind
    result: ResultType
    name: str
    precision: int | None = None
    scale: int = 0
    element: "DeclaredType | None" = None
    delimiter: str = ","
    fields: tuple[tuple[str, "DeclaredType"], ...] = ()


def _is(kind: Kind, result: ResultType, name: str) -> DeclaredType:
    return DeclaredType(kind, result, name)


def _texts(names: Mapping[int, str], result: ResultType) -> dict[int, DeclaredType]:
    return {oid: DeclaredType(Kind.TEXT, result, name) for oid, name in names.items()}


_VARCHAR, _CHAR, _NUMERIC = 1043, 1042, 1700
_BUILTIN: Mapping[int, DeclaredType] = {
    16: _is(Kind.BOOL, ResultType.BOOLEAN, "boolean"),
    17: _is(Kind.BYTEA, ResultType.BINARY, "bytea"),
    20: _is(Kind.INT8, ResultType.BIGINT, "bigint"),
    21: _is(Kind.INT2, ResultType.SMALLINT, "smallint"),
    23: _is(Kind.INT4, ResultType.INT, "integer"),
    26: _is(Kind.OID, ResultType.BIGINT, "oid"),
    700: _is(Kind.FLOAT4, ResultType.FLOAT, "real"),
    701: _is(Kind.FLOAT8, ResultType.DOUBLE, "double precision"),
    1082: _is(Kind.DATE, ResultType.DATE, "date"),
    1114: _is(Kind.TIMESTAMP, ResultType.TIMESTAMP, "timestamp without time zone"),
    1184: _is(Kind.TIMESTAMPTZ, ResultType.TIMESTAMP_TZ, "timestamp with time zone"),
    1186: _is(Kind.TEXT, ResultType.INTERVAL_DAY_TIME, "interval"),
    _NUMERIC: _is(Kind.NUMERIC, ResultType.DECIMAL, "numeric"),
    2249: _is(Kind.RECORD, ResultType.STRUCT, "record"),
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
"""Types that need no question to the server: their oids are fixed."""

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


async def declare(connection: Connection, fields: Sequence[Field]) -> tuple[DeclaredType, ...]:
    """The declared type of each column. The server is asked only about types that are not built in."""
    types = _Types(connection)
    declared = [await types.resolve(field.type_oid, field.modifier) for field in fields]
    unnamed = [i for i, field in enumerate(fields) if not _is_named_here(field)]
    if unnamed:
        names = ", ".join(f"format_type({fields[i].type_oid:d}, {fields[i].modifier:d})" for i in unnamed)
        (row,) = await connection.fetch(f"SELECT {names}")
        for i, name in zip(unnamed, row, strict=True):
            declared[i] = replace(declared[i], name=name)
    return tuple(declared)


def columns(fields: Sequence[Field], declared: Sequence[DeclaredType]) -> tuple[Column, ...]:
    """The columns as the wire contract shows them."""
    return tuple(Column(f.name, d.result, d.name) for f, d in zip(fields, declared, strict=True))


def _is_named_here(field: Field) -> bool:
    element = _BUILTIN_ARRAYS.get(field.type_oid, field.type_oid)
    return element in _BUILTIN and (field.modifier == NO_MODIFIER or element in (_VARCHAR, _CHAR, _NUMERIC))


class _Types:
    """Reads the catalogue, each type once. Arrays, domains and composite types lead to further types."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: dict[int, asyncpg.Record] = {}

    async def resolve(self, oid: int, modifier: int) -> DeclaredType:
        """The type of that oid; `modifier` is the one of the column or field."""
        if oid in _BUILTIN:
            return _modified(oid, modifier)
        if oid in _BUILTIN_ARRAYS:
            return _array(_modified(_BUILTIN_ARRAYS[oid], modifier), ",")
        row = await self._row(oid)
        if row["is_array"]:
            return _array(await self.resolve(row["element"], modifier), row["delimiter"])
        if row["kind"] == "d":
            return await self.resolve(row["base"], row["base_modifier"])
        if row["kind"] == "c":
            return await self._composite(row)
        if row["typname"] == "hstore":
            return DeclaredType(Kind.HSTORE, ResultType.MAP, "hstore")
        is_text = row["kind"] in ("e", "r", "m") or row["category"] == "S"
        return DeclaredType(Kind.TEXT, ResultType.STRING if is_text else ResultType.USER_DEFINED, row["typname"])

    async def _composite(self, row: asyncpg.Record) -> DeclaredType:
        attributes = await self._connection.fetch(_ATTRIBUTES, row["relation"])
        fields = [(a["attname"], await self.resolve(a["atttypid"], a["atttypmod"])) for a in attributes]
        return DeclaredType(Kind.COMPOSITE, ResultType.STRUCT, row["typname"], fields=tuple(fields))

    async def _row(self, oid: int) -> asyncpg.Record:
        if oid not in self._rows:
            found = await self._connection.fetchrow(_TYPE, oid)
            if found is None:
                raise StatementRejected(f"type with OID {oid} does not exist")
            self._rows[oid] = found
        return self._rows[oid]


def _array(element: DeclaredType, delimiter: str) -> DeclaredType:
    return DeclaredType(Kind.ARRAY, ResultType.ARRAY, f"{element.name}[]", element=element, delimiter=delimiter)


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
    """Precision and scale: 16 bits each, the scale signed in its lower 11 bits (numeric.c: make_numeric_typmod)."""
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


def array(text: str, delimiter: str) -> list[Nested]:
    """`{1,NULL,"a b"}` as a list, inner arrays as lists; leaves are text or None."""
    body = _DIMENSIONS.sub("", text, count=1)
    if "{" not in body[1:] and '"' not in body and "\\" not in body:
        inner = body[1:-1]
        return [_bare(item) for item in inner.split(delimiter)] if inner else []
    return _quoted_array(body, delimiter)


def _quoted_array(body: str, delimiter: str) -> list[Nested]:
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


def attributes(text: str) -> list[str | None]:
    """`(1,,"a b")` as texts; an attribute without any character is NULL."""
    found: list[str | None] = []
    body, position = text[1:-1], 0
    while True:
        match = _ATTRIBUTE.match(body, position)
        if match is None:
            return found
        found.append(_attribute(match[1]))
        if not match[2]:
            return found
        position = match.end()


def _attribute(raw: str) -> str | None:
    if not raw:
        return None
    if '"' not in raw and "\\" not in raw:
        return raw
    parts = _QUOTED_PART.finditer(raw)
    return "".join(p[3] or p[2] or _IN_QUOTES.sub(lambda m: m[1] or m[2], p[1] or "") for p in parts)


def pairs(text: str) -> list[tuple[str, str | None]]:
    """`"a"=>"1", "b"=>NULL` as pairs."""
    return [(_ESCAPE.sub(r"\1", m[1]), None if m[3] else _ESCAPE.sub(r"\1", m[2])) for m in _PAIR.finditer(text)]
