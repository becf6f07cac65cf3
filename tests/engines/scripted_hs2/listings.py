"""Results of SHOW and DESCRIBE in Impala's formats."""

import fnmatch
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.engines.scripted_hs2.sql_text import name_of, text_of
from tests.engines.scripted_hs2.warehouse import StatementRefusal, Table

if TYPE_CHECKING:
    from tests.engines.scripted_hs2.statements import Context

Rows = Iterator[tuple[object, ...]]
_INPUT = {
    "TEXT": ("org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe", "org.apache.hadoop.mapred.TextInputFormat"),
    "PARQUET": (
        "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe",
        "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
    ),
    "ORC": ("org.apache.hadoop.hive.ql.io.orc.OrcSerde", "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat"),
}
_SIZES = {"tinyint": 1, "boolean": 1, "smallint": 2, "int": 4, "float": 4, "date": 4, "bigint": 8, "double": 8,
          "timestamp": 16}  # fmt: skip
_BUILTINS = tuple(
    (returned, signature, "BUILTIN", "true")
    for returned, signatures in {
        "BIGINT": "abs(BIGINT);unix_timestamp();unix_timestamp(STRING);fnv_hash(STRING);bitand(BIGINT, BIGINT)",
        "DOUBLE": "abs(DOUBLE);acos(DOUBLE);asin(DOUBLE);atan(DOUBLE);cos(DOUBLE);exp(DOUBLE);ln(DOUBLE);sin(DOUBLE)",
        "INT": "abs(INT);ascii(STRING);char_length(STRING);day(TIMESTAMP);dayofweek(TIMESTAMP);hour(TIMESTAMP)",
        "STRING": "concat(STRING...);lower(STRING);ltrim(STRING);reverse(STRING);upper(STRING)",
        "TIMESTAMP": "adddate(TIMESTAMP, INT);now();utc_timestamp();trunc(TIMESTAMP, STRING)",
    }.items()
    for signature in signatures.split(";")
)


def databases(context: "Context", _: re.Match[str]) -> Rows:
    yield from ((name, one.comment) for name, one in sorted(context.warehouse.databases.items()))


def tables(context: "Context", match: re.Match[str]) -> Rows:
    yield from ((name,) for name in sorted(context.warehouse.database(name_of(match.group(1))).tables))


def views(context: "Context", match: re.Match[str]) -> Rows:
    found = context.warehouse.database(name_of(match.group(1))).tables
    yield from ((name,) for name, table in sorted(found.items()) if table.is_view)


def functions(context: "Context", match: re.Match[str]) -> Rows:
    name = name_of(match.group(1))
    if name != "_impala_builtins":
        context.warehouse.database(name)
        return
    pattern = text_of(match.group(2)) if match.group(2) else "*"
    wanted = [re.compile(fnmatch.translate(one), re.IGNORECASE) for one in pattern.split("|")]
    yield from (row for row in _BUILTINS if any(one.match(row[1].partition("(")[0]) for one in wanted))


def column_statistics(context: "Context", match: re.Match[str]) -> Rows:
    table = _found(context, match)
    if table.is_view:
        raise StatementRefusal("AnalysisException: SHOW COLUMN STATS not applicable to a view")
    for name, kind, _ in table.columns:
        distinct, nulls = table.column_statistics.get(name, (-1, -1))
        size = _SIZES.get(kind, -1 if distinct < 0 else 8)
        yield name, kind.upper(), distinct, nulls, size, float(size), -1, -1


def partitions(context: "Context", match: re.Match[str]) -> Rows:
    _found(context, match)
    raise StatementRefusal(f"AnalysisException: Table is not partitioned: {match.group(1)}.{match.group(2)}")
    yield


def database(context: "Context", match: re.Match[str]) -> Rows:
    name = name_of(match.group(1))
    found = context.warehouse.database(name)
    yield name, f"hdfs://namenode:8020/warehouse/{name}.db", found.comment
    yield "Owner: ", "", ""
    yield "", "impala", "USER"


def described(context: "Context", match: re.Match[str]) -> Rows:
    yield from _found(context, match).columns


def formatted(context: "Context", match: re.Match[str]) -> Rows:
    """Return the rows of DESCRIBE FORMATTED. Cells and property values are padded to 20 characters."""
    table = _found(context, match)
    kind = "VIRTUAL_VIEW" if table.is_view else "EXTERNAL_TABLE" if table.is_external else "MANAGED_TABLE"
    yield "# col_name            ", "data_type           ", "comment             "
    yield "", None, None
    yield from table.columns
    yield "", None, None
    yield "# Detailed Table Information", None, None
    place = f"{name_of(match.group(1) or context.database)}"
    location = None if table.is_view else f"hdfs://namenode:8020/warehouse/{place}.db/{name_of(match.group(2))}"
    for title, value in (
        ("Database:", place), ("OwnerType:", "USER"), ("Owner:", "impala"),
        ("CreateTime:", "Sat Nov 21 22:48:19 UTC 2026"),
        ("LastAccessTime:", "UNKNOWN"), ("Retention:", "0"), ("Location:", location), ("Table Type:", kind),
    ):  # fmt: skip
        yield f"{title:20}", "NULL" if value is None else f"{value:20}", None
    yield from _properties(table)
    yield "", None, None
    yield "# Storage Information", None, None
    serde, input_format = _INPUT[table.file_format]
    yield "SerDe Library:      ", "null" if table.is_view else serde, None
    yield "InputFormat:        ", input_format, None


def _properties(table: Table) -> Rows:
    yield "Table Parameters:", None, None
    comment = {"comment": table.comment} if table.comment else {}
    for name, value in {**comment, **table.properties, "transient_lastDdlTime": "1795301299"}.items():
        yield "", f"{name:20}", f"{value:20}"


def _found(context: "Context", match: re.Match[str]) -> Table:
    return context.warehouse.table(name_of(match.group(1) or context.database), name_of(match.group(2)))
