"""Measures and shrinks the file of a DuckDB database."""

from contextlib import suppress
from uuid import uuid4

import duckdb

from queryserver.engines.catalog_queries import identifier

_USED_BYTES_QUERY = """
    SELECT coalesce(sum(used_blocks * block_size), 0)::BIGINT FROM pragma_database_size()
    WHERE database_name = current_database()
"""


def used_bytes(native: duckdb.DuckDBPyConnection) -> int:
    """Return the number of bytes in use. Free blocks inside the file do not count, because new rows fill them."""
    with native.cursor() as connection:
        with suppress(duckdb.Error):  # a checkpoint frees the blocks of dropped tables
            connection.execute("CHECKPOINT")
        ((blocks,),) = connection.execute(_USED_BYTES_QUERY).fetchall()
    return blocks


def shrink_file(native: duckdb.DuckDBPyConnection) -> None:
    """Shrink the file after an interrupted statement.

    The statement's blocks are free, but DuckDB truncates the file only after the next change.
    """
    name = identifier(f"queryserver_{uuid4().hex}")
    with suppress(duckdb.Error), native.cursor() as connection:
        connection.execute(f"CREATE SCHEMA {name}")
        connection.execute(f"DROP SCHEMA {name}")
        connection.execute("CHECKPOINT")  # refused during other writes; a later checkpoint then shrinks the file
