"""Statements that the engine's own lock-down lets through although they reach past the data.

With `enable_external_access=false` DuckDB still lets its own files be written: COPY … TO '<database>.wal' would
destroy them. ATTACH ':memory:' is seen by all sessions, and then DETACH can take the database away from everybody.
"""

import re

import duckdb

from queryserver.domain.errors import StatementRejected

_REFUSED = frozenset({"ATTACH", "DETACH", "COPY", "COPY_DATABASE", "EXPORT", "LOAD", "EXTENSION"})
# These hold another statement; its text is a suffix of theirs. A PIVOT inside COPY makes it MULTI.
_WRAPPERS = frozenset({"EXPLAIN", "PREPARE", "MULTI", "CREATE_FUNC", "LOGICAL_PLAN", "RELATION"})
_INNER = re.compile(r"\b(?:copy|export|attach|detach|load|install)\b", re.IGNORECASE)
_SETTINGS = frozenset({"SET", "VARIABLE_SET", "PRAGMA"})
# Sessions need these settings themselves, so they are not locked; printing would write to the server's output.
_OWN_SETTING = re.compile(r"progress_bar", re.IGNORECASE)


def refuse_reach(connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement) -> None:
    """Raises StatementRejected for what would reach other files or databases, or the server's own settings."""
    kind, text = statement.type.name, statement.query
    if kind in _REFUSED:
        raise _refusal(kind)
    if kind in _WRAPPERS:
        for word in _INNER.finditer(text):
            if (inner := _kind_of(connection, text[word.start() :])) in _REFUSED or (
                inner == "MULTI" and word[0].upper() == "COPY"
            ):
                raise _refusal(word[0].upper())
    if kind in _SETTINGS and _OWN_SETTING.search(text):
        raise StatementRejected("Permission Error: this setting is locked on this server.")


def _kind_of(connection: duckdb.DuckDBPyConnection, text: str) -> str | None:
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error:
        return None
    return statements[0].type.name if statements else None


def _refusal(kind: str) -> StatementRejected:
    words = kind.replace("_", " ")
    return StatementRejected(f"Permission Error: {words} is switched off: statements reach this database only.")
