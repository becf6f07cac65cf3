"""Classifies statements by their text: changes of data or objects, read-only statements, row limits, EXPLAIN."""

import re

from queryserver.errors.base import InvalidParameter
from queryserver.sql.formatter import tokens
from queryserver.sql.scanner import UNKNOWN, content_start, dialect_patterns, first_keyword, has_unclear_quotes

_MAX_TOKENIZED_CHARACTERS = 100_000
"""Longer texts are not tokenized, because that would block the event loop for more than 50 ms."""

_READ_KEYWORDS = frozenset(
    {"SELECT", "VALUES", "TABLE", "FROM", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "PRAGMA", "SUMMARIZE", "WITH", ""}
)
_SEARCHED_KEYWORDS = frozenset({"WITH", "EXPLAIN"})
_MAX_SEARCHED_CHARACTERS = 1_000_000  # this length takes about 10 ms; longer texts would block the event loop
_CHANGING_WORD = re.compile(rb"\b(?:insert|update|delete|merge|replace)\b")


def changes_data(text: str, dialect: str) -> bool:
    """Return whether the statement may change data and must therefore be read to the end even if its result is
    truncated.

    Returns True when in doubt: WITH and EXPLAIN count as changing if the text is long or contains a changing word.
    """
    keyword = first_keyword(text, dialect)
    if keyword not in _READ_KEYWORDS:
        return True
    return keyword in _SEARCHED_KEYWORDS and (len(text) > _MAX_SEARCHED_CHARACTERS or _mentions(text, _CHANGING_WORD))


def read_only_refusal(text: str, dialect: str) -> str | None:
    """Return why a read-only connector refuses the statement; None if it may run."""
    if not changes_data(text, dialect):
        return None
    keyword = first_keyword(text, dialect)
    if keyword == UNKNOWN or (keyword in _SEARCHED_KEYWORDS and len(text) > _MAX_SEARCHED_CHARACTERS):
        return "This connector is read-only, and the statement is too long to be sure that it changes nothing."
    return "This connector is read-only."


_OBJECT_PRESERVING_KEYWORDS = _READ_KEYWORDS | {
    "INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "UPSERT", "SET", "RESET", "USE", "BEGIN", "START", "PIVOT",
    "UNPIVOT", "FETCH", "HELP", "LIST", "CHECK", "CHECKSUM", "COPY", "DECLARE", "CLOSE", "SAVEPOINT", "RELEASE",
}  # fmt: skip
_OBJECT_CREATING_WORDS = {
    **dict.fromkeys(("SELECT", "WITH", "FROM", "VALUES", "TABLE"), re.compile(rb"\binto\b")),
    "EXPLAIN": re.compile(rb"\b(?:analy[sz]e|reoptimization)\b"),
    "UPDATE": re.compile(rb"\bstatistics\b"),
}


_TRANSACTION_CONTROL = frozenset({"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE"})


def controls_transaction(text: str, dialect: str) -> bool:
    """Return whether the statement begins or ends a transaction or savepoint."""
    return first_keyword(text, dialect) in _TRANSACTION_CONTROL


def changes_objects(text: str, dialect: str) -> bool:
    """Return whether the statement may change databases, tables, functions or statistics, which makes metadata stale.

    Returns True when in doubt, which costs only a reread of the metadata. The end of a transaction counts, because it
    publishes changes.
    """
    keyword = first_keyword(text, dialect)
    if keyword not in _OBJECT_PRESERVING_KEYWORDS:
        return True
    making = _OBJECT_CREATING_WORDS.get(keyword)
    return making is not None and (len(text) > _MAX_SEARCHED_CHARACTERS or _mentions(text, making))


def _mentions(text: str, words: re.Pattern[bytes]) -> bool:
    """Return whether the text contains one of the words, ignoring case.

    Searching bytes is much faster than searching `str`.
    """
    return words.search(text.encode(errors="surrogatepass").lower()) is not None


_QUERY_KEYWORDS = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "FROM"})
_EDGE_CHARACTERS = 400
"""Texts that have no limit keyword this close to their end or start need not be tokenized."""
_TAIL_TOKENS = 12

_NUMBER = r"([0-9]+(?:_[0-9]+)*)"
_OFFSET = rf"OFFSET {_NUMBER}(?: ROWS?)?"
_FINAL_LIMITS = tuple(
    re.compile(rf"(?:^| ){form}$")
    for form in (
        rf"LIMIT (?P<limit>{_NUMBER})(?: {_OFFSET})?",
        rf"LIMIT {_NUMBER} , (?P<limit>{_NUMBER})",
        rf"FETCH (?:FIRST|NEXT) (?P<limit>{_NUMBER}) ROWS? ONLY(?: {_OFFSET})?",
    )
)
_INITIAL_LIMIT = re.compile(rf"^SELECT (?:(?:ALL|DISTINCT) )?TOP (?:\( )?(?P<limit>{_NUMBER})(?: \))? (?!PERCENT\b)")
_MAX_DIGITS = 18


def literal_limit(text: str, dialect: str) -> int | None:
    """Return the row limit: a final `LIMIT n`, `LIMIT m, n` or `FETCH FIRST n ROWS ONLY`, or an initial `SELECT TOP n`.

    Recognizes only literal numbers in the outermost query, because subqueries end with their brackets. Returns None if
    there is no limit or the limit is uncertain.
    """
    end = text[-_EDGE_CHARACTERS:].lower()
    may_have_limit = "limit" in end or "fetch" in end or "top" in text[:_EDGE_CHARACTERS].lower()
    if (
        len(text) > _MAX_TOKENIZED_CHARACTERS
        or not may_have_limit
        or first_keyword(text, dialect) not in _QUERY_KEYWORDS
    ):
        return None
    is_comment = re.compile(r"--|/\*|#.").match
    significant = [token for token in tokens(text, dialect) if token and not is_comment(token)]
    while significant and significant[-1] == ";":
        significant.pop()
    tail = " ".join(significant[-_TAIL_TOKENS:]).upper()
    for form in _FINAL_LIMITS:
        if match := form.search(tail):
            return _number(match["limit"])
    match = _INITIAL_LIMIT.search(" ".join(significant[:_TAIL_TOKENS]).upper() + " ")
    return _number(match["limit"]) if match else None


def _number(digits: str) -> int:
    digits = digits.replace("_", "").lstrip("0") or "0"
    return int(digits) if len(digits) <= _MAX_DIGITS else 10**_MAX_DIGITS


_EXPLAINABLE_KEYWORDS = frozenset(
    {"SELECT", "WITH", "VALUES", "TABLE", "FROM", "INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "UPSERT", "CREATE"}
)
_PARENTHESIZED_KEYWORDS = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "FROM"})
# After EXPLAIN these are options rather than statements, and some of them execute the statement that follows.
_EXPLAIN_OPTIONS = frozenset(
    "EXPLAIN ANALYZE ANALYSE VERBOSE FORMAT EXTENDED FORMATTED CBO COST JOINCOST AST LOCKS VECTORIZATION DEPENDENCY "  # noqa: SIM905
    "AUTHORIZATION DETAIL DDL CODEGEN REOPTIMIZATION LOGICAL PARTITIONS QUERY PLAN PIPELINE SYNTAX ESTIMATE FOR "
    "OPTIONS TYPE".split()
)
_EXECUTING_OPTION = re.compile(r"(?i)analy[sz]e|reoptimi[sz]ation")


def explainable(statement: str, dialect: str) -> str:
    """Return the statement as it may follow EXPLAIN, without leading comments, because they could hide options.

    A statement with an unknown first word passes if nothing in the text could execute it, because the engine describes
    the error best. Raises InvalidParameter.
    """
    start = content_start(statement, dialect_patterns(dialect))
    text, keyword = statement[start:], first_keyword(statement, dialect)
    if keyword == "EXPLAIN":
        raise InvalidParameter("statement: must not begin with EXPLAIN, which is put before it.")
    # Either a plain first word, or parentheses around a query. Anything before it may be an executable comment.
    is_plain = text[: len(keyword)].upper() == keyword != ""
    is_wrapped = text.startswith("(") and keyword in _PARENTHESIZED_KEYWORDS
    is_known = keyword in _EXPLAINABLE_KEYWORDS or (
        keyword not in _EXPLAIN_OPTIONS and not _EXECUTING_OPTION.search(text)
    )
    if not (is_wrapped or (is_plain and is_known)):
        raise InvalidParameter("statement: queries and changes of data can be explained, nothing else.")
    return text


_COMMENT_STARTS = ("--", "/*", "#", "//")
_NAME_QUOTES = ('"', "`", "[")
_QUOTES = ("'", "$", *_NAME_QUOTES)

_READ_ONLY_KEYWORDS = frozenset(
    {"SELECT", "VALUES", "WITH", "TABLE", "FROM", "SHOW", "DESCRIBE", "DESC", "SUMMARIZE", "EXPLAIN"}
)
# Searched in the whole text, even in column names, because not rerunning a statement is always safe.
_CHANGING_WORDS = frozenset(
    """
    INSERT UPDATE DELETE MERGE UPSERT INTO CREATE DROP ALTER TRUNCATE RENAME GRANT REVOKE COMMENT
    CALL EXEC EXECUTE DO PERFORM PREPARE DEALLOCATE DECLARE BEGIN COMMIT ROLLBACK SAVEPOINT LOCK UNLOCK
    ANALYZE ANALYSE REOPTIMIZATION OPTIMIZE VACUUM REINDEX CLUSTER REFRESH MSCK REPAIR CACHE UNCACHE
    COPY LOAD UNLOAD EXPORT IMPORT ATTACH DETACH INSTALL PRAGMA SET RESET USE KILL NOTIFY LISTEN HANDLER PURGE
    """.split()  # noqa: SIM905 fifty lines otherwise
)
_FUNCTIONS_WITH_EFFECTS = frozenset(
    """
    NEXTVAL SETVAL SET_CONFIG LASTVAL PG_NOTIFY PG_TERMINATE_BACKEND PG_CANCEL_BACKEND PG_RELOAD_CONF PG_ROTATE_LOGFILE
    PG_SWITCH_WAL PG_LOGICAL_EMIT_MESSAGE LO_CREATE LO_CREAT LO_IMPORT LO_EXPORT LO_UNLINK LO_PUT LO_FROM_BYTEA
    QUERY_TO_XML CURSOR_TO_XML DBLINK DBLINK_EXEC DBLINK_SEND_QUERY GET_LOCK RELEASE_LOCK RELEASE_ALL_LOCKS
    LOAD_EXTENSION
    """.split()  # noqa: SIM905 as above
)
_FUNCTION_PREFIXES_WITH_EFFECTS = ("PG_ADVISORY_", "PG_TRY_ADVISORY_")


def only_reads(text: str, dialect: str) -> bool:
    """Return whether the statement is a single query without words that may change something; False when in doubt.

    Functions with known effects count as such words; the effects of user-defined functions are unknown. Functions with
    quoted names count as having effects, because escapes can hide their names.
    """
    if (
        len(text) > _MAX_TOKENIZED_CHARACTERS
        or has_unclear_quotes(text, dialect)
        or first_keyword(text, dialect) not in _READ_ONLY_KEYWORDS
    ):
        return False
    # MySQL and MariaDB execute these comments.
    if "/*!" in text or "/*M!" in text:
        return False
    before, is_quoted_name = "", False
    for token in tokens(text, dialect):
        if not token or token.startswith(_COMMENT_STARTS):
            continue
        word = "" if token.startswith(_QUOTES) else token.upper()
        # `NEXT VALUE FOR s` changes a sequence; an inner `;` does not occur in any known query.
        if (
            word in _CHANGING_WORDS
            or word in _FUNCTIONS_WITH_EFFECTS
            or word == ";"
            or (before, word) == ("NEXT", "VALUE")
        ):
            return False
        if word.startswith(_FUNCTION_PREFIXES_WITH_EFFECTS) or (is_quoted_name and token.startswith("(")):
            return False
        before, is_quoted_name = word, token.startswith(_NAME_QUOTES)
    return True
