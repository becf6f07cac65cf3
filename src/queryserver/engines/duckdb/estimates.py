"""Estimates the bytes that a statement would read, from its plan (docs/engines.md, "Estimates on DuckDB").

DuckDB's plan names tables, columns and kinds of file scans, but neither sizes nor paths. The sizes of tables come from
their storage, and those of files from the listings that planning has requested from the server.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import duckdb

from queryserver.engines.catalog_queries import literal
from queryserver.engines.duckdb.file_system import statement_path
from queryserver.engines.external_data import StoredFile

ESTIMATED_KINDS = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE_INTO", "CREATE", "COPY", "EXECUTE"})
"""Kinds of statements that EXPLAIN plans without running any part of them. It runs a part of a PIVOT (MULTI)."""

_FILE_FUNCTIONS = re.compile(r"(?:READ|PARQUET|SNIFF|GLOB)(?:_|\Z)")
_PARQUET_SCANS = frozenset({"PARQUET_SCAN", "READ_PARQUET"})
_PATTERN_SIGNS = frozenset("*?[")
_MAX_FOOTERS = 20
"""Maximum number of Parquet files whose column sizes are read; each stands for the files of one path."""

_COLUMN_BYTES = """
    SELECT split_part(path_in_schema, ', ', 1), sum(total_compressed_size)::BIGINT
    FROM parquet_metadata({}) GROUP BY ALL
"""
_COLUMNS = "SELECT name FROM pragma_table_info({})"
_TABLE_BYTES = """
    SELECT count(DISTINCT block_id) FILTER (persistent) * (SELECT max(block_size) FROM pragma_database_size())
        + coalesce(sum(count * CASE segment_type
            WHEN 'VALIDITY' THEN 0 WHEN 'BOOLEAN' THEN 1 WHEN 'TINYINT' THEN 1 WHEN 'UTINYINT' THEN 1
            WHEN 'SMALLINT' THEN 2 WHEN 'USMALLINT' THEN 2 WHEN 'INTEGER' THEN 4 WHEN 'UINTEGER' THEN 4
            WHEN 'FLOAT' THEN 4 WHEN 'DATE' THEN 4 WHEN 'VARCHAR' THEN 16 WHEN 'BLOB' THEN 16 WHEN 'UUID' THEN 16
            WHEN 'HUGEINT' THEN 16 WHEN 'UHUGEINT' THEN 16 WHEN 'INTERVAL' THEN 16 ELSE 8 END)
            FILTER (NOT persistent), 0)
    FROM pragma_storage_info({}) WHERE list_contains({}, column_name)
"""


@dataclass(frozen=True, slots=True)
class _Scan:
    """A leaf of a plan: of the table `table`, or by the table function `function`."""

    table: str
    function: str
    columns: Sequence[str] | None
    """The projected columns, such as `a` or, for a member of a struct, `s.x`; None if the plan does not list them."""
    filters: str
    file_share: float
    """The share of the files that remain after partitions were excluded."""

    @property
    def reads_files(self) -> bool:
        return _FILE_FUNCTIONS.match(self.function) is not None

    def needs(self, column: str) -> bool:
        if self.columns is None or any(one == column or one.startswith(f"{column}.") for one in self.columns):
            return True
        return re.search(rf"(?<!\w){re.escape(column)}(?!\w)", self.filters) is not None


def scanned_bytes(
    connection: duckdb.DuckDBPyConnection, query: str, listed: Mapping[str, Sequence[StoredFile]]
) -> int | None:
    """Return the bytes of tables and files that the query reads; None if it reads files of unknown size.

    `listed` are the files of each path that the statement names. Planning the query completes them. Raises DuckDB's
    errors.
    """
    ((_, plan),) = connection.execute(f"EXPLAIN (FORMAT json) {query}").fetchall()
    scans = list(_scans(json.loads(plan)))
    paths = [files for files in listed.values() if files]
    in_files = _bytes_in_files(connection, [scan for scan in scans if scan.reads_files], paths)
    return None if in_files is None else in_files + sum(_bytes_in_table(connection, scan) for scan in scans)


def _scans(nodes: Sequence[Mapping[str, Any]]) -> Iterator[_Scan]:
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        waiting.extend(node["children"])
        facts = node["extra_info"]
        if "Table" in facts or "Function" in facts:
            columns = facts.get("Projections")
            filters = facts.get("Filters", "")
            remaining, _, total = facts.get("Scanning Files", "1/1").partition("/")
            yield _Scan(
                table=facts.get("Table", ""),
                function=facts.get("Function", ""),
                columns=[columns] if isinstance(columns, str) else columns,
                filters=filters if isinstance(filters, str) else "\n".join(filters),
                file_share=int(remaining) / max(int(total), 1),
            )


def _bytes_in_table(connection: duckdb.DuckDBPyConnection, scan: _Scan) -> int:
    if not scan.table:
        return 0
    name = literal(scan.table)
    rows = connection.execute(_COLUMNS.format(name)).fetchall()
    columns = [column for (column,) in rows if scan.needs(column)]
    if not columns:
        return 0
    listed = f"[{', '.join(map(literal, columns))}]"
    ((size,),) = connection.execute(_TABLE_BYTES.format(name, listed)).fetchall()
    return int(size or 0)


def _bytes_in_files(
    connection: duckdb.DuckDBPyConnection, scans: Sequence[_Scan], paths: Sequence[Sequence[StoredFile]]
) -> int | None:
    """Return the bytes that file scans read; None if no path was listed, as for a statement prepared earlier.

    The plan does not show which scan reads which path. With one path, each scan reads it. With several, each path is
    counted once, with the columns that any scan reads.
    """
    if not scans:
        return 0
    if not paths:
        return None
    are_parquet = all(scan.function in _PARQUET_SCANS for scan in scans)
    total, footers = 0.0, dict[str, Mapping[str, int]]()
    for files in paths:
        size = sum(file.size for file in files)
        first = max(files, key=lambda file: file.size)
        if are_parquet and len(footers) < _MAX_FOOTERS and _PATTERN_SIGNS.isdisjoint(first.path):
            footers[first.path] = _column_bytes(connection, first)
        columns = footers.get(first.path, {})
        for together in [[scan] for scan in scans] if len(paths) == 1 else [scans]:
            total += size * max(scan.file_share for scan in together) * _column_share(together, columns)
    return round(total)


def _column_share(scans: Sequence[_Scan], columns: Mapping[str, int]) -> float:
    """Return the share of the columns that any of the scans reads; 1 if the sizes of the columns are unknown."""
    whole = sum(columns.values())
    if not whole:
        return 1.0
    return sum(size for name, size in columns.items() if any(scan.needs(name) for scan in scans)) / whole


def _column_bytes(connection: duckdb.DuckDBPyConnection, file: StoredFile) -> Mapping[str, int]:
    """Return the compressed size of each column of a Parquet file; empty if the file does not describe them."""
    with suppress(duckdb.Error):
        path = literal(statement_path(file.path))
        return dict(connection.execute(_COLUMN_BYTES.format(path)).fetchall())
    return {}
