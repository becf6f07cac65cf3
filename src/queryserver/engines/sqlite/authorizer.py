"""What statements may do: anything within the database, nothing beyond it (Contract platform 5.11, security T7).

SQLite asks at preparation, for every piece of a statement, so nothing hides inside views, triggers or functions.
"""

from typing import Final

import apsw

# Pragmas that tell about this database or act in this session; `database_list` would tell the server's path.
_PRAGMAS: Final = frozenset(
    {
        "analysis_limit",
        "application_id",
        "case_sensitive_like",
        "collation_list",
        "compile_options",
        "count_changes",
        "data_version",
        "defer_foreign_keys",
        "encoding",
        "foreign_key_check",
        "foreign_key_list",
        "foreign_keys",
        "freelist_count",
        "full_column_names",
        "function_list",
        "ignore_check_constraints",
        "index_info",
        "index_list",
        "index_xinfo",
        "integrity_check",
        "legacy_alter_table",
        "module_list",
        "optimize",
        "page_count",
        "pragma_list",
        "quick_check",
        "read_uncommitted",
        "recursive_triggers",
        "reverse_unordered_selects",
        "short_column_names",
        "table_info",
        "table_list",
        "table_xinfo",
        "user_version",
    }
)
# Their value may be read, not changed: it is the server's business.
_READ_ONLY_PRAGMAS: Final = frozenset(
    {
        "auto_vacuum",
        "automatic_index",
        "busy_timeout",
        "cache_size",
        "journal_mode",
        "max_page_count",
        "page_size",
        "query_only",
        "schema_version",
        "synchronous",
        "temp_store",
    }
)
REFUSED_FUNCTIONS: Final = frozenset({"load_extension", "fts3_tokenizer"})
_CHANGES: Final = frozenset({apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE})
_DEFINITIONS: Final = frozenset(
    code
    for name, code in apsw.mapping_authorizer_function.items()
    if isinstance(name, str)
    and isinstance(code, int)
    and name.startswith(("SQLITE_CREATE_", "SQLITE_DROP_", "SQLITE_ALTER_"))
)


class Authorizer:
    """Answers SQLite's questions and remembers what kind of statement they were about."""

    def __init__(self) -> None:
        self._changes_rows = False
        self._defines = False

    @property
    def counts_rows(self) -> bool:
        """Whether the last statement inserts, updates or deletes rows of tables, and defines nothing."""
        return self._changes_rows and not self._defines

    def next_statement(self) -> None:
        """Forget the last statement."""
        self._changes_rows = self._defines = False

    def __call__(
        self, action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        """SQLITE_OK or SQLITE_DENY."""
        if action in _CHANGES and first is not None and not first.startswith("sqlite_"):
            self._changes_rows = True
        if action in _DEFINITIONS:
            self._defines = True
        return apsw.SQLITE_OK if _may(action, first, second) else apsw.SQLITE_DENY


def _may(action: int, first: str | None, second: str | None) -> bool:
    if action == apsw.SQLITE_ATTACH:
        return first == ""  # VACUUM attaches a nameless database of its own, which ends with the connection
    if action == apsw.SQLITE_DETACH:
        return False
    if action == apsw.SQLITE_PRAGMA:
        name = (first or "").lower()
        return name in _PRAGMAS or (name in _READ_ONLY_PRAGMAS and second is None)
    if action == apsw.SQLITE_FUNCTION:
        return (second or "").lower() not in REFUSED_FUNCTIONS
    return True
