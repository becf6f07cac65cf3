"""Exports of results into files in stores (Contract exports)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ExportFormat = Literal["csv", "tsv", "xlsx", "parquet", "arrow", "feather", "ndjson"]
Compression = Literal["none", "gzip", "zstd"]
IfExists = Literal["error", "replace"]


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
