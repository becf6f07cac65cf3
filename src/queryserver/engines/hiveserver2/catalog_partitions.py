"""Samples of partitioned tables: the newest partitions first, then all others."""

import re
from collections.abc import Sequence
from urllib.parse import unquote

from queryserver.domain.catalog import SAMPLE_ROWS, TableColumn
from queryserver.engines.hiveserver2.catalog_quoting import literal, quoted

NEWEST = 3
"""So many partitions are read one after the other before the rest."""

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_NUMERIC = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
_TEXTS = ("string", "varchar", "char")
_NO_VALUE = frozenset({"__HIVE_DEFAULT_PARTITION__", "NULL"})

Partition = tuple[str, ...]
"""Values in the order of the partition columns; what follows them is of no interest here."""


def read_partition(path: str) -> Partition:
    """`dt=2024-01-10/name=a%2Fb` as Hive and Spark write it."""
    return tuple(unquote(part.partition("=")[2]) for part in path.split("/"))


def newest(partitions: Sequence[Partition], columns: Sequence[TableColumn]) -> list[Partition]:
    """The greatest values, greatest first; numbers compare as numbers. Those that lack a value are left out."""
    cut = [one[: len(columns)] for one in partitions if len(one) >= len(columns)]
    whole = [one for one in cut if not _NO_VALUE.intersection(one)]
    whole.sort(key=lambda one: [_order(*pair) for pair in zip(one, columns, strict=True)], reverse=True)
    return whole[:NEWEST]


def newest_first(table: str, names: Sequence[str], columns: Sequence[TableColumn], wanted: Sequence[Partition]) -> str:
    """The statement: each branch is cut at the sample's size, so that no partition is read further than needed."""
    selected = ", ".join(quoted(name) for name in names)
    conditions = [_holds(partition, columns) for partition in wanted]
    rank = "sample_rank"
    while rank in {name.lower() for name in names}:
        rank += "_"
    branches = [
        f"SELECT {number} AS {rank}, b{number}.* FROM"
        f" (SELECT {selected} FROM {table} WHERE {condition} LIMIT {SAMPLE_ROWS}) b{number}"
        for number, condition in enumerate([*conditions, _holds_none(conditions, columns)])
    ]
    union = "\nUNION ALL ".join(branches)
    return f"SELECT {selected} FROM (\n{union}\n) q ORDER BY {rank} LIMIT {SAMPLE_ROWS}"


def _order(value: str, column: TableColumn) -> tuple[float, str]:
    is_number = column.type.lower().startswith(_NUMERIC) and _NUMBER.fullmatch(value)
    return (float(value), "") if is_number else (0.0, value)


def _holds(partition: Partition, columns: Sequence[TableColumn]) -> str:
    pairs = zip(partition, columns, strict=True)
    tests = (f"{quoted(column.name)} = {_constant(value, column)}" for value, column in pairs)
    return "(" + " AND ".join(tests) + ")"


def _holds_none(conditions: Sequence[str], columns: Sequence[TableColumn]) -> str:
    """A partition without a value is compared with nothing: it must be asked for by itself."""
    absent = " OR ".join(f"{quoted(column.name)} IS NULL" for column in columns)
    return f"NOT ({' OR '.join(conditions)}) OR {absent}"


def _constant(value: str, column: TableColumn) -> str:
    kind = column.type.lower()
    if kind.startswith(_NUMERIC) and _NUMBER.fullmatch(value):
        return value
    return literal(value) if kind.startswith(_TEXTS) else f"CAST({literal(value)} AS {column.type})"
