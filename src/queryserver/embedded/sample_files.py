"""The sample as files for the engines that live in this process. All functions block."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa

from queryserver.embedded.files import sync
from queryserver.embedded.places import DUCKDB_FILE, SQLITE_FILE
from queryserver.embedded.sample import SampleTable, Value


def ensure_sample_files(directory: Path, tables: tuple[SampleTable, ...]) -> None:
    """Make the two database files if they are missing; what users changed in present ones stays. Idempotent."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _ensure(directory / DUCKDB_FILE, _write_duckdb, tables)
    _ensure(directory / SQLITE_FILE, _write_sqlite, tables)


def _ensure(
    target: Path, write: Callable[[Path, tuple[SampleTable, ...]], None], tables: tuple[SampleTable, ...]
) -> None:
    """Written under another name and then renamed: the file is there whole or not at all."""
    if target.exists():
        return
    partial = target.with_name(f"{target.name}.unfinished")
    for leftover in partial.parent.glob(f"{partial.name}*"):  # with the write-ahead logs of both engines
        leftover.unlink()
    write(partial, tables)
    partial.chmod(0o600)
    sync(partial)
    partial.rename(target)
    sync(target.parent)


def _write_duckdb(file: Path, tables: tuple[SampleTable, ...]) -> None:
    with duckdb.connect(str(file)) as connection:
        for table in tables:
            connection.execute(table.create_statement())
            columns = zip(*table.rows, strict=True)
            connection.register("loaded", pa.table(dict(zip(table.column_names, map(pa.array, columns), strict=True))))
            connection.execute(f"INSERT INTO {table.name} SELECT * FROM loaded")  # noqa: S608 our own table name
            connection.unregister("loaded")


def _write_sqlite(file: Path, tables: tuple[SampleTable, ...]) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        for table in tables:
            connection.execute(table.create_statement())
            marks = ", ".join("?" * len(table.columns))
            rows = (tuple(map(_for_sqlite, row)) for row in table.rows)
            connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", rows)  # noqa: S608 our own table name


def _for_sqlite(value: Value) -> int | float | str | None:
    """SQLite has no dates and no decimals: text in the form that its own functions read, and numbers."""
    match value:
        case datetime():
            return value.isoformat(sep=" ")
        case date():
            return value.isoformat()
        case Decimal():
            return float(value)
        case _:
            return value
