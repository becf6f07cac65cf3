"""SQLite in separate processes, through apsw. The server uses the constants below without importing apsw."""

from typing import Final

from queryserver.sql.parameters import ParameterSupport, ParameterType

PARAMETERS: Final = ParameterSupport(
    frozenset(ParameterType) - {ParameterType.ARRAY}, not_finite=True, not_finite_decimals=True, decimal_digits=1000
)
"""NaN is accepted, although SQLite stores it as NULL."""

REFUSED_FUNCTIONS: Final = frozenset({"load_extension", "fts3_tokenizer"})

TEMPORARY_DIRECTORY = ".sqlite-temporary"
"""A subdirectory of the database directory. SQLite unlinks its temporary files as soon as they are open."""

HEAP_BYTES = 160 * 1024 * 1024
"""Limit on SQLite's memory in one process, including in-memory databases.

This is the only limit on the total size of a row, which may have 2,000 columns.
"""
