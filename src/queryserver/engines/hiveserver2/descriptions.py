"""Parses the DESCRIBE output of Hive, Spark and Impala: sections, table kinds, file formats, statistics and dates."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from queryserver.engines.catalog_queries import Row
from queryserver.engines.protocol import ForeignKey, TableColumn, TableKind
from queryserver.sql.types import SqlType

_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_ZONES = {  # UTC offsets in hours of unambiguous zone names
    "UTC": 0, "GMT": 0, "Z": 0, "WET": 0, "CET": 1, "WEST": 1, "EET": 2, "CEST": 2, "EEST": 3, "JST": 9, "KST": 9,
    "EDT": -4, "EST": -5, "MDT": -6, "MST": -7, "PDT": -7, "PST": -8,
}  # fmt: skip


def cell(value: Any) -> str:
    """Convert a cell to a string without surrounding whitespace; NULL becomes an empty string."""
    return "" if value is None else str(value).strip()


def unescaped(text: str) -> str:
    r"""Decode Hive's escape sequences, which follow Java string literals: `\"`, `\\`, `\n`, `\u00eb`."""

    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPED.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", character, text, flags=re.DOTALL) if "\\" in text else text


def utc_text(java_date: str) -> str:
    """Convert `Sat Nov 21 22:48:19 UTC 2026` to `2026-11-21T22:48:19Z`.

    Returns an empty string if the input is not a date or its zone is ambiguous.
    """
    match = re.fullmatch(r"\w{3} (\w{3} +\d{1,2} \d\d:\d\d:\d\d) ([\w:+-]+) (\d{4})", java_date)
    if match is None:
        return ""
    day, name, year = match.groups()
    if name in _ZONES:
        offset = timedelta(hours=_ZONES[name])
    elif custom := re.fullmatch(r"GMT([+-])(\d\d):?(\d\d)", name):
        offset = timedelta(hours=int(custom[2]), minutes=int(custom[3])) * (1 if custom[1] == "+" else -1)
    else:
        return ""
    try:
        local = datetime.strptime(f"{day} {year}", "%b %d %H:%M:%S %Y").replace(tzinfo=timezone(offset))
    except ValueError:
        return ""
    return local.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def known_text(text: str) -> str | None:
    """Return the text of a statistic; None if it is unknown, which engines write as an empty string, `NULL` or `-1`."""
    return None if text in {"", "NULL", "-1"} else text


def whole_number(text: str) -> int | None:
    value = real_number(text)
    return None if value is None else int(value)


def real_number(text: str) -> float | None:
    try:
        return float(text) if known_text(text) is not None else None
    except ValueError:
        return None


_KINDS = {
    "EXTERNAL_TABLE": TableKind.EXTERNAL,
    "EXTERNAL": TableKind.EXTERNAL,
    "VIRTUAL_VIEW": TableKind.VIEW,
    "VIEW": TableKind.VIEW,
    "MATERIALIZED_VIEW": TableKind.MATERIALIZED_VIEW,
}
_BY_SERDE = {"opencsvserde": "csv", "jsonserde": "json", "jsonserdeutf8": "json", "regexserde": "text"}
_BY_INPUT = ("parquet", "orc", "avro", "rcfile", "sequencefile", "json", "kudu", "iceberg", "text")


def table_kind(word: str) -> TableKind:
    """Return the table kind for a word in the description.

    For an unknown word, return the kind of an ordinary table.
    """
    return _KINDS.get(word.upper(), TableKind.MANAGED)


def file_format(details: Mapping[str, str], parameters: Mapping[str, str]) -> str:
    """Return the file format, such as `parquet`, `orc` or `kudu`; empty if the description does not mention it."""
    handler = parameters.get("storage_handler", "").lower()
    if "kudu" in handler:
        return "kudu"
    if "iceberg" in handler or parameters.get("table_type", "").upper() == "ICEBERG":
        return "iceberg"
    serde = (details.get("SerDe Library") or details.get("Serde Library", "")).rpartition(".")[2].lower()
    if serde in _BY_SERDE:
        return _BY_SERDE[serde]
    input_format = details.get("InputFormat", "").rpartition(".")[2].lower()
    return next((name for name in _BY_INPUT if name in input_format), "")


def rows_can_change(format_name: str, parameters: Mapping[str, str]) -> bool:
    """Whether UPDATE and DELETE work, which is the case only for Kudu, Iceberg, Delta, Hudi, and Hive's full ACID
    tables.
    """
    if format_name in {"kudu", "iceberg", "delta", "hudi"}:
        return True
    is_acid = parameters.get("transactional", "").lower() == "true"
    return is_acid and parameters.get("transactional_properties", "default").lower() != "insert_only"


def statistics(parameters: Mapping[str, str]) -> dict[str, str]:
    values = {
        name: known_text(parameters.get(name, "")) for name in ("numRows", "totalSize", "numFiles", "rawDataSize")
    }
    return {name: value for name, value in values.items() if value is not None}


def is_complex(kind: SqlType) -> bool:
    return kind.item is not None or kind.key is not None or bool(kind.fields)


def has_map(kind: SqlType) -> bool:
    parts = [part for part in (kind.item, kind.value, *(field.type for field in kind.fields)) if part is not None]
    return kind.key is not None or any(has_map(part) for part in parts)


@dataclass(slots=True)
class Layout:
    """A parsed description. Keys in `details`, such as `Owner` and `Location`, have no trailing colon."""

    columns: list[TableColumn] = field(default_factory=list[TableColumn])
    partitions: list[TableColumn] = field(default_factory=list[TableColumn])
    details: dict[str, str] = field(default_factory=dict[str, str])
    parameters: dict[str, str] = field(default_factory=dict[str, str])
    foreign_keys: list[ForeignKey] = field(default_factory=list[ForeignKey])
    primary: set[str] = field(default_factory=set[str])
    not_null: set[str] = field(default_factory=set[str])
    defaults: dict[str, str] = field(default_factory=dict[str, str])

    def all_columns(self, *, has_constraints: bool) -> tuple[TableColumn, ...]:
        """Return all columns, partition columns last.

        If `has_constraints` is False, keys and nullability are unknown.
        """
        columns = (*self.columns, *self.partitions)
        if not has_constraints:
            return columns
        return tuple(
            replace(
                column,
                nullable=column.name not in self.not_null | self.primary,
                default=self.defaults.get(column.name),
                primary_key=column.name in self.primary,
            )
            for column in columns
        )


def read_layout(rows: Iterable[Row], clean: Callable[[str], str] = str) -> Layout:
    """Parse the rows of a description. `clean` decodes the engine's escape sequences in user-written text."""
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
            _add_row(layout, section, (first, second, third), clean)
    return layout


def _add_row(layout: Layout, section: str, row: tuple[str, str, str], clean: Callable[[str], str]) -> None:
    first, second, third = row
    if section in {"", "# partition information"}:
        if first:
            is_key = section != ""
            # Impala wraps long types over several lines.
            kind = re.sub(r"\s*\n\s*", "", clean(second).strip())
            column = TableColumn(clean(first), kind, clean(third), partition_key=is_key)
            (layout.partitions if is_key else layout.columns).append(column)
    elif section == "table parameters" and not first:
        if second:
            layout.parameters[clean(second)] = clean(third)
    elif section in _CONSTRAINTS:
        _add_constraint(layout, section, clean(first), clean(second))
    elif first.endswith(":") and section != "storage desc params":
        layout.details.setdefault(first.rstrip(":"), clean(second))


_CONSTRAINTS = frozenset({"# primary key", "# foreign keys", "# not null constraints", "# default constraints"})
_COLUMN, _PARENT, _DEFAULT = "Column Name:", "Parent Column Name:", "Default Value:"


def _add_constraint(layout: Layout, section: str, first: str, second: str) -> None:
    if section == "# foreign keys":
        if first.startswith(_PARENT) and second.startswith(_COLUMN):
            layout.foreign_keys.append(ForeignKey(second.removeprefix(_COLUMN), first.removeprefix(_PARENT)))
    elif first.startswith(_COLUMN):
        if section == "# primary key":
            layout.primary.add(second)
        elif section == "# not null constraints":
            layout.not_null.add(second)
        elif second.startswith(_DEFAULT):
            layout.defaults[first.removeprefix(_COLUMN)] = second.removeprefix(_DEFAULT)
