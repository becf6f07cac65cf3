"""Decides which actions a SQLite statement may take (sqlite.org/c3ref/set_authorizer.html).

A read-only statement is checked twice. Its compiled form must not write (sqlite3_stmt_readonly), wherever the text has
the change: after WITH, in RETURNING, or in a trigger. The authorizer denies what that function does not report:
transactions, other databases, and PRAGMAs that change a setting.
"""

from typing import Final

import apsw

from queryserver import errors
from queryserver.engines.sqlite import REFUSED_FUNCTIONS

# Pragmas that describe this database or affect only this session. `database_list` is missing because it would reveal
# the server's path.
_PRAGMAS: Final = frozenset({
    "analysis_limit", "application_id", "case_sensitive_like", "collation_list", "compile_options", "count_changes",
    "data_version", "defer_foreign_keys", "encoding", "foreign_key_check", "foreign_key_list", "foreign_keys",
    "freelist_count", "full_column_names", "function_list", "ignore_check_constraints", "index_info", "index_list",
    "index_xinfo", "integrity_check", "legacy_alter_table", "module_list", "optimize", "page_count", "pragma_list",
    "quick_check", "read_uncommitted", "recursive_triggers", "reverse_unordered_selects", "short_column_names",
    "table_info", "table_list", "table_xinfo", "user_version",
})  # fmt: skip
# Pragmas that statements may read but not change.
_READ_ONLY_PRAGMAS: Final = frozenset({
    "auto_vacuum", "automatic_index", "busy_timeout", "cache_size", "journal_mode", "max_page_count", "page_size",
    "query_only", "schema_version", "synchronous", "temp_store",
})  # fmt: skip
# Pragmas whose argument selects what they describe.
_DESCRIBING_PRAGMAS: Final = frozenset({
    "foreign_key_check", "foreign_key_list", "index_info", "index_list", "index_xinfo", "integrity_check",
    "quick_check", "table_info", "table_list", "table_xinfo",
})  # fmt: skip
_DROPS: Final = frozenset(
    code
    for name, code in apsw.mapping_authorizer_function.items()
    if isinstance(name, str) and isinstance(code, int) and name.startswith("SQLITE_DROP_")
)
_CHANGES: Final = frozenset({apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE})
_DEFINITIONS: Final = frozenset(
    code
    for name, code in apsw.mapping_authorizer_function.items()
    if isinstance(name, str)
    and isinstance(code, int)
    and name.startswith(("SQLITE_CREATE_", "SQLITE_DROP_", "SQLITE_ALTER_"))
)


# What sqlite3_stmt_readonly does not report, because it does not change the database file at once.
_UNREPORTED_CHANGES: Final = frozenset(
    {apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT, apsw.SQLITE_ATTACH, apsw.SQLITE_REINDEX, apsw.SQLITE_ANALYZE}
)


class SqliteAuthorizer:
    """Permits or denies a statement's actions, and records what kind of statement it was."""

    def __init__(self) -> None:
        self.read_only = False
        """Whether the statement may only read. Its compiled form is checked too (`SqliteAnswer`)."""
        self.refuses_change = False
        """Whether the statement was denied an action because it may only read."""
        self._changes_rows = False
        self._defines = False
        self.grows = False
        """Whether the last statement needs more storage.

        Statements that only delete or drop do not need any, and are permitted on a full disk.
        """

    @property
    def counts_rows(self) -> bool:
        """Whether the last statement inserts, updates or deletes rows, and is not DDL."""
        return self._changes_rows and not self._defines

    def next_statement(self, *, read_only: bool) -> None:
        self.read_only = read_only
        self._changes_rows = self._defines = self.grows = self.refuses_change = False

    def __call__(
        self, action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        """Return SQLITE_OK to permit an action, or SQLITE_DENY to refuse it."""
        if action in _CHANGES and first is not None and not first.startswith("sqlite_"):
            self._changes_rows = True
            self.grows = self.grows or action != apsw.SQLITE_DELETE
        if action in _DEFINITIONS:
            self._defines = True
            self.grows = self.grows or action not in _DROPS
        may = True
        if action == apsw.SQLITE_ATTACH:
            may = first == ""  # VACUUM attaches a nameless temporary database
        elif action == apsw.SQLITE_DETACH:
            may = False
        elif action == apsw.SQLITE_PRAGMA:
            name = (first or "").lower()
            may = name in _PRAGMAS or (name in _READ_ONLY_PRAGMAS and second is None)
        elif action == apsw.SQLITE_FUNCTION:
            may = (second or "").lower() not in REFUSED_FUNCTIONS
        if may and self.read_only and _has_unreported_effect(action, first, second):
            may, self.refuses_change = False, True
        return apsw.SQLITE_OK if may else apsw.SQLITE_DENY


def _has_unreported_effect(action: int, first: str | None, second: str | None) -> bool:
    """Return whether an action changes a transaction, a setting or statistics.

    SQLite compiles some PRAGMAs into nothing, because they take effect when they are prepared, even after EXPLAIN.
    """
    if action == apsw.SQLITE_PRAGMA:
        name = (first or "").lower()
        return name == "optimize" or (second is not None and name not in _DESCRIBING_PRAGMAS)
    return action in _UNREPORTED_CHANGES


def read_only_error() -> errors.StatementRejected:
    known = errors.StatementRejected("attempt to write a readonly database: the statement is read-only")
    known.with_sqlstate("25006")
    return known
