"""What the words of a description mean: kind of table, file format, whether rows can be changed, statistics."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from queryserver.engines.catalog_queries import Row
from queryserver.engines.protocol import ForeignKey, TableColumn, TableKind
from queryserver.sql.types import SqlType

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_DATE = re.compile(r"\w{3} (\w{3} +\d{1,2} \d\d:\d\d:\d\d) ([\w:+-]+) (\d{4})")
_OFFSET = re.compile(r"GMT([+-])(\d\d):?(\d\d)")
_ZONES = {
    "UTC": 0, "GMT": 0, "Z": 0, "WET": 0, "CET": 1, "WEST": 1, "EET": 2, "CEST": 2, "EEST": 3, "JST": 9, "KST": 9,
    "EDT": -4, "EST": -5, "MDT": -6, "MST": -7, "PDT": -7, "PST": -8,
}  # fmt: skip
"""Hours east of Greenwich of the zone names that mean one zone only."""


def cell(value: Any) -> str:
    """A cell without the blanks that pad it; NULL is empty."""
    return "" if value is None else str(value).strip()


def unescaped(text: str) -> str:
    r"""What Hive wrote as in Java's source: `\"`, `\\`, `\n`, `\u00eb`."""
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(match: re.Match[str]) -> str:
    code = match.group(1)
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)


def utc_text(java_date: str) -> str:
    """`Sat Nov 21 22:48:19 UTC 2026` as `2026-11-21T22:48:19Z`; empty when it is no date, or its zone is ambiguous."""
    match = _DATE.fullmatch(java_date)
    zone = _zone(match.group(2)) if match else None
    if match is None or zone is None:
        return ""
    try:
        local = datetime.strptime(f"{match.group(1)} {match.group(3)}", "%b %d %H:%M:%S %Y").replace(tzinfo=zone)
    except ValueError:
        return ""
    return local.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _zone(name: str) -> timezone | None:
    if name in _ZONES:
        return timezone(timedelta(hours=_ZONES[name]))
    match = _OFFSET.fullmatch(name)
    if match is None:
        return None
    offset = timedelta(hours=int(match.group(2)), minutes=int(match.group(3)))
    return timezone(offset if match.group(1) == "+" else -offset)


def known(text: str) -> str | None:
    """A statistic; None where the engine has none: empty, `NULL`, or Impala's -1."""
    return None if text in {"", "NULL", "-1"} else text


def whole(text: str) -> int | None:
    """A count, None when unknown."""
    value = real(text)
    return None if value is None else int(value)


def real(text: str) -> float | None:
    """A number, None when unknown."""
    try:
        return float(text) if known(text) is not None else None
    except ValueError:
        return None


_KINDS = {
    "MANAGED_TABLE": TableKind.MANAGED,
    "MANAGED": TableKind.MANAGED,
    "EXTERNAL_TABLE": TableKind.EXTERNAL,
    "EXTERNAL": TableKind.EXTERNAL,
    "VIRTUAL_VIEW": TableKind.VIEW,
    "VIEW": TableKind.VIEW,
    "MATERIALIZED_VIEW": TableKind.MATERIALIZED_VIEW,
}
_BY_SERDE = {"opencsvserde": "csv", "jsonserde": "json", "jsonserdeutf8": "json", "regexserde": "text"}
_BY_INPUT = (
    ("parquet", "parquet"),
    ("orc", "orc"),
    ("avro", "avro"),
    ("rcfile", "rcfile"),
    ("sequencefile", "sequencefile"),
    ("json", "json"),
    ("kudu", "kudu"),
    ("iceberg", "iceberg"),
    ("text", "text"),
)
_STATISTICS = ("numRows", "totalSize", "numFiles", "rawDataSize")


def table_kind(word: str) -> TableKind:
    """The kind of a table; an unknown word is an ordinary table."""
    return _KINDS.get(word.upper(), TableKind.MANAGED)


def file_format(details: Mapping[str, str], parameters: Mapping[str, str]) -> str:
    """`parquet`, `orc`, `text`, `kudu`, `iceberg`, …; empty when nothing tells it."""
    handler = parameters.get("storage_handler", "").lower()
    if "kudu" in handler:
        return "kudu"
    if "iceberg" in handler or parameters.get("table_type", "").upper() == "ICEBERG":
        return "iceberg"
    serde = (details.get("SerDe Library") or details.get("Serde Library", "")).rpartition(".")[2].lower()
    if serde in _BY_SERDE:
        return _BY_SERDE[serde]
    input_format = details.get("InputFormat", "").rpartition(".")[2].lower()
    return next((name for part, name in _BY_INPUT if part in input_format), "")


def rows_can_change(format_name: str, parameters: Mapping[str, str]) -> bool:
    """Whether UPDATE and DELETE work: Kudu, Iceberg, Delta, and Hive's full ACID tables."""
    if format_name in {"kudu", "iceberg", "delta", "hudi"}:
        return True
    is_acid = parameters.get("transactional", "").lower() == "true"
    return is_acid and parameters.get("transactional_properties", "default").lower() != "insert_only"


def statistics(parameters: Mapping[str, str]) -> dict[str, str]:
    """Those that the engine has."""
    found = {name: known(parameters.get(name, "")) for name in _STATISTICS}
    return {name: value for name, value in found.items() if value is not None}


_LINE_BREAKS = re.compile(r"\s*\n\s*")


def one_line(text: str) -> str:
    """The text without the line breaks and indents that Impala writes into long type texts."""
    return _LINE_BREAKS.sub("", text.strip())


def is_complex(kind: SqlType) -> bool:
    """Whether it has parts."""
    return kind.item is not None or kind.key is not None or bool(kind.fields)


def has_map(kind: SqlType) -> bool:
    """Whether a map is anywhere in the type."""
    parts = [part for part in (kind.item, kind.value, *(field.type for field in kind.fields)) if part is not None]
    return kind.key is not None or any(has_map(part) for part in parts)


_PARTITIONS = "# partition information"
_PARAMETERS = "table parameters"
_STORAGE = "storage desc params"
_PRIMARY, _FOREIGN = "# primary key", "# foreign keys"
_NOT_NULL, _DEFAULTS = "# not null constraints", "# default constraints"
_COLUMN, _PARENT, _DEFAULT = "Column Name:", "Parent Column Name:", "Default Value:"


@dataclass(slots=True)
class Layout:
    """What a description holds. `details` are `Owner`, `Location`, … without the colon; `parameters` the table's."""

    columns: list[TableColumn] = field(default_factory=list[TableColumn])
    partitions: list[TableColumn] = field(default_factory=list[TableColumn])
    details: dict[str, str] = field(default_factory=dict[str, str])
    parameters: dict[str, str] = field(default_factory=dict[str, str])
    foreign_keys: list[ForeignKey] = field(default_factory=list[ForeignKey])
    primary: set[str] = field(default_factory=set[str])
    not_null: set[str] = field(default_factory=set[str])
    defaults: dict[str, str] = field(default_factory=dict[str, str])

    def all_columns(self, *, tells_constraints: bool) -> tuple[TableColumn, ...]:
        """Partition columns last. Without constraints nothing is known of keys and NULL."""
        columns = (*self.columns, *self.partitions)
        return tuple(self._constrained(column) for column in columns) if tells_constraints else columns

    def _constrained(self, column: TableColumn) -> TableColumn:
        return TableColumn(
            column.name,
            column.type,
            column.comment,
            nullable=column.name not in self.not_null | self.primary,
            default=self.defaults.get(column.name),
            primary_key=column.name in self.primary,
            partition_key=column.partition_key,
        )


def read_layout(rows: Iterable[Row], clean: Callable[[str], str] = str) -> Layout:
    """Take the rows apart. `clean` undoes the engine's escapes in texts that users wrote."""
    layout, section = Layout(), ""
    for row in rows:
        first, second, third = (cell(one) for one in row[:3])
        if first.startswith("#") and not second:
            section = first.lower()
        elif first == "# col_name" and second == "data_type":
            continue
        elif first.endswith(":") and not second:
            section = first.rstrip(":").lower()
        else:
            _put(layout, section, (first, second, third), clean)
    return layout


def _put(layout: Layout, section: str, row: tuple[str, str, str], clean: Callable[[str], str]) -> None:
    first, second, third = row
    if section in {"", _PARTITIONS}:
        if first:
            key = section == _PARTITIONS
            column = TableColumn(clean(first), one_line(clean(second)), clean(third), partition_key=key)
            (layout.partitions if key else layout.columns).append(column)
    elif section == _PARAMETERS and not first:
        if second:
            layout.parameters[clean(second)] = clean(third)
    elif section in _CONSTRAINTS:
        _CONSTRAINTS[section](layout, [clean(one) for one in row])
    elif first.endswith(":") and section != _STORAGE:
        layout.details.setdefault(first.rstrip(":"), clean(second))


def _put_primary(layout: Layout, row: Sequence[str]) -> None:
    if row[0].startswith(_COLUMN):
        layout.primary.add(row[1])


def _put_not_null(layout: Layout, row: Sequence[str]) -> None:
    if row[0].startswith(_COLUMN):
        layout.not_null.add(row[1])


def _put_default(layout: Layout, row: Sequence[str]) -> None:
    if row[0].startswith(_COLUMN) and row[1].startswith(_DEFAULT):
        layout.defaults[row[0].removeprefix(_COLUMN)] = row[1].removeprefix(_DEFAULT)


def _put_foreign(layout: Layout, row: Sequence[str]) -> None:
    if row[0].startswith(_PARENT) and row[1].startswith(_COLUMN):
        layout.foreign_keys.append(ForeignKey(row[1].removeprefix(_COLUMN), row[0].removeprefix(_PARENT)))


_CONSTRAINTS: Mapping[str, Callable[[Layout, Sequence[str]], None]] = {
    _PRIMARY: _put_primary,
    _FOREIGN: _put_foreign,
    _NOT_NULL: _put_not_null,
    _DEFAULTS: _put_default,
}
