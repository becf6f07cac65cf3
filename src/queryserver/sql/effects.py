"""What a statement may do that a read-only transaction of PostgreSQL or MySQL does not prevent.

The words are searched in whole texts, quotes and comments included: a function that runs a text as SQL could contain
them, and a refused query can be written in another way.
"""

import re
from collections.abc import Collection

from queryserver.sql.scanner import UNKNOWN, first_keyword

POSTGRESQL_FUNCTIONS = frozenset(
    """
    set_config pg_notify pg_terminate_backend pg_cancel_backend pg_reload_conf pg_rotate_logfile pg_logfile_rotate
    pg_switch_wal pg_promote pg_file_write pg_file_rename pg_file_unlink pg_file_sync pg_import_system_collations
    lo_create lo_creat lo_import lo_export lo_unlink lo_put lo_from_bytea lo_truncate lo_truncate64 lowrite
    query_to_xml query_to_xmlschema query_to_xml_and_xmlschema cursor_to_xml xpath_table ts_stat ts_rewrite
    crosstab crosstab2 crosstab3 crosstab4 crosstab_hash connectby pg_background_launch
    dblink dblink_exec dblink_connect dblink_connect_u dblink_open dblink_send_query
    gin_clean_pending_list pg_truncate_visibility_map
    """.split()  # noqa: SIM905 twenty lines otherwise
)
"""Those of the server and of its extensions, in lower case. Some run a text, which may be computed, as SQL."""
POSTGRESQL_FUNCTION_PREFIXES = (
    "pg_advisory_", "pg_try_advisory_", "pg_stat_reset", "pg_stat_statements_reset", "pg_logical_", "pg_create_",
    "pg_drop_", "pg_copy_", "pg_sync_", "pg_replication_origin_", "pg_replication_slot_", "pg_backup_",
    "pg_wal_replay_", "pg_clear_", "pg_restore_", "pg_log_", "brin_summarize_", "brin_desummarize_", "heap_force_",
)  # fmt: skip
MYSQL_FUNCTIONS = frozenset({"get_lock", "release_lock", "release_all_locks", "sys_exec", "sys_eval", "sys_set"})
_POSTGRESQL = "|".join([*sorted(POSTGRESQL_FUNCTIONS), *(rf"{prefix}\w*" for prefix in POSTGRESQL_FUNCTION_PREFIXES)])
_QUERIES = {
    "postgresql": frozenset({"SELECT", "WITH", "VALUES", "TABLE", "SHOW", "EXPLAIN"}),
    "mysql": frozenset({"SELECT", "WITH", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN"}),
}
_EFFECTS = {
    # Escapes in a quoted name, U&"…", could hide the name of a function.
    "postgresql": re.compile(rf"\b(?:{_POSTGRESQL})\b|\bu&\"".encode()),
    # These comments are executed. OUTFILE and DUMPFILE write files.
    "mysql": re.compile(rf"\b(?:{'|'.join(sorted(MYSQL_FUNCTIONS))}|outfile|dumpfile)\b|/\*m?!".encode()),
}
_MAX_CHARACTERS = 1_000_000
"""Searching a text of this length takes about 50 ms on the event loop."""
TOO_LONG = "The statement is read-only, and it is too long to verify that it does not change anything."


def refusal_by_keyword(text: str, dialect: str, queries: Collection[str]) -> str | None:
    """Return why a statement that must only read may not even be searched, or None if its first word is in `queries`.

    `queries` are in upper case. A text that is too long to search is refused, too.
    """
    keyword = first_keyword(text, dialect)
    if keyword == UNKNOWN or len(text) > _MAX_CHARACTERS:
        return TOO_LONG
    return None if keyword in queries else f"The statement is read-only, and {keyword or 'it'} is not a query."


def read_only_transaction_refusal(text: str, dialect: str) -> str | None:
    """Return why a statement must not run in a read-only transaction of PostgreSQL or MySQL, or None if it may.

    Such a transaction prevents changes of rows and objects, also within functions. It does not prevent commands that
    end it, change the session or run programs (`COPY … TO PROGRAM`), and functions that act on files, locks, other
    sessions or other servers.
    """
    if refusal := refusal_by_keyword(text, dialect, _QUERIES[dialect]):
        return refusal
    found = _EFFECTS[dialect].search(text.encode(errors="surrogatepass").lower())
    if found is None:
        return None
    return f"The statement is read-only, and {found[0].decode()} may change something that no transaction protects."
