"""Exports of results into files in stores and tables of connectors (Contract exports)."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

ExportFormat = Literal["csv", "tsv", "xlsx", "parquet", "arrow", "feather", "ndjson"]
Compression = Literal["none", "gzip", "zstd"]
IfExists = Literal["error", "replace"]
CopyIfExists = Literal["error", "append", "replace"]
_PATH = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]+:)?/")


@dataclass(frozen=True)
class Export:
    """A successful export."""

    rows: int
    bytes: int | None
    """Size of all files; None for a table."""
    files: int | None
    """Number of files; None for a table."""
    path: str | None
    """The file, or the folder of the part files; None for a table."""
    table: str | None
    """The table, as `database.table`; None for files."""
    schema: tuple[tuple[str, str], ...]
    """Name and type of each column."""
    operation_id: str

    @classmethod
    def of(cls, row: Mapping[str, Any], operation_id: str) -> "Export":
        """Return the export that the result row of its operation describes."""
        schema = tuple((column["name"], column["type"]) for column in json.loads(row["schema"]))
        return cls(row["rows"], row["bytes"], row["files"], row["path"], row["table"], schema, operation_id)


def file_target(path: str, **options: Any) -> dict[str, Any]:
    """Return the fields of a destination in files. Options that are None or False are left to the server."""
    header = {} if options.pop("header", True) else {"header": False}
    chosen = {name: value for name, value in options.items() if value is not None and value is not False}
    return {"path": path, **header, **chosen}


def destination(into: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a destination; `into` is a path, or these fields."""
    return {"path": into} if isinstance(into, str) else dict(into)


def copy_target(
    target: str | Sequence[str], if_exists: CopyIfExists, columns: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the fields of a destination: a table, or a path in a store. Raises ValueError for anything else."""
    if isinstance(target, str) and _PATH.match(target):
        return {"path": target, "if_exists": if_exists}
    connector, database, table = parts_of(target)
    given = {"database": database, "columns": None if columns is None else list(columns)}
    chosen = {name: value for name, value in given.items() if value is not None}
    return {"connector": connector, "table": table, "if_exists": if_exists, **chosen}


def parts_of(target: str | Sequence[str]) -> tuple[str, str | None, str]:
    """Return the connector, database and table of a target. The database may contain dots (trino: `catalog.schema`).

    Raises ValueError.
    """
    parts = target.split(".") if isinstance(target, str) else list(target)
    if len(parts) < 2 or not all(parts):
        message = f"{target!r} is not a table name; use connector.table or connector.database.table"
        raise ValueError(message)
    return parts[0], ".".join(parts[1:-1]) or None, parts[-1]
