"""Recognizes statements that certainly only read and may therefore be rerun (Contract editor 3.3 rule 3)."""

from queryserver.sql.formatting import tokens
from queryserver.sql.splitter_scan import first_keyword, has_unclear_quotes

_MAX_CHARACTERS = 100_000  # tokenizing longer texts would block the event loop
_COMMENTS = ("--", "/*", "#", "//")
_NAME_QUOTES = ('"', "`", "[")
_QUOTES = ("'", "$", *_NAME_QUOTES)

_QUERIES = frozenset({"SELECT", "VALUES", "WITH", "TABLE", "FROM", "SHOW", "DESCRIBE", "DESC", "SUMMARIZE", "EXPLAIN"})
# Searched in the whole text, even in column names, because not rerunning a statement is always safe.
_CHANGING = frozenset(
    """
    INSERT UPDATE DELETE MERGE UPSERT INTO CREATE DROP ALTER TRUNCATE RENAME GRANT REVOKE COMMENT
    CALL EXEC EXECUTE DO PERFORM PREPARE DEALLOCATE DECLARE BEGIN COMMIT ROLLBACK SAVEPOINT LOCK UNLOCK
    ANALYZE ANALYSE REOPTIMIZATION OPTIMIZE VACUUM REINDEX CLUSTER REFRESH MSCK REPAIR CACHE UNCACHE
    COPY LOAD UNLOAD EXPORT IMPORT ATTACH DETACH INSTALL PRAGMA SET RESET USE KILL NOTIFY LISTEN HANDLER PURGE
    """.split()  # noqa: SIM905 fifty lines otherwise
)
_EFFECTS = frozenset(
    """
    NEXTVAL SETVAL SET_CONFIG LASTVAL PG_NOTIFY PG_TERMINATE_BACKEND PG_CANCEL_BACKEND PG_RELOAD_CONF PG_ROTATE_LOGFILE
    PG_SWITCH_WAL PG_LOGICAL_EMIT_MESSAGE LO_CREATE LO_CREAT LO_IMPORT LO_EXPORT LO_UNLINK LO_PUT LO_FROM_BYTEA
    QUERY_TO_XML CURSOR_TO_XML DBLINK DBLINK_EXEC DBLINK_SEND_QUERY GET_LOCK RELEASE_LOCK RELEASE_ALL_LOCKS
    LOAD_EXTENSION
    """.split()  # noqa: SIM905 as above
)
_EFFECT_PREFIXES = ("PG_ADVISORY_", "PG_TRY_ADVISORY_")


def only_reads(text: str, dialect: str) -> bool:
    """Return whether the statement is a single query without words that may change something; False when in doubt.

    Functions with known effects count as such words; the effects of user-defined functions are unknown. Functions with
    quoted names count as having effects, since escapes can hide their names.
    """
    if len(text) > _MAX_CHARACTERS or has_unclear_quotes(text, dialect) or first_keyword(text, dialect) not in _QUERIES:
        return False
    # MySQL and MariaDB execute these comments.
    if "/*!" in text or "/*M!" in text:
        return False
    before, is_quoted_name = "", False
    for token in tokens(text, dialect):
        if not token or token.startswith(_COMMENTS):
            continue
        word = "" if token.startswith(_QUOTES) else token.upper()
        # `NEXT VALUE FOR s` changes a sequence; an inner `;` does not occur in any known query.
        if word in _CHANGING or word in _EFFECTS or word == ";" or (before, word) == ("NEXT", "VALUE"):
            return False
        if word.startswith(_EFFECT_PREFIXES) or (is_quoted_name and token.startswith("(")):
            return False
        before, is_quoted_name = word, token.startswith(_NAME_QUOTES)
    return True
