"""Summarizes statements as operations and tables, without values (OpenTelemetry, `db.query.summary`)."""

from collections.abc import Iterator
from dataclasses import dataclass

from queryserver.sql.formatter import tokens
from queryserver.sql.scanner import UNKNOWN, dialect_patterns, first_keyword, has_unclear_quotes

MAX_SUMMARY_CHARACTERS = 255
_READ_CHARACTERS = 8_000
"""Only the beginning of a long statement is read, which takes at most a few milliseconds."""
_COMMENTS = ("--", "/*", "#", "//")
_DEFINITIONS = frozenset({"CREATE", "DROP", "ALTER", "TRUNCATE"})
_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "UPSERT", "REPLACE", "COPY", "LOAD"})
_BEFORE_TABLES = frozenset({"FROM", "JOIN", "INTO", "TABLE", "VIEW"})
_BETWEEN = frozenset({"IF", "NOT", "EXISTS", "ONLY", "LATERAL", "TABLE", "OVERWRITE", "INTO"})
"""Words between such a word and the name of the table."""
_CLAUSES = frozenset("WHERE GROUP ORDER HAVING LIMIT WINDOW UNION EXCEPT INTERSECT SET VALUES ON SELECT".split())  # noqa: SIM905

_SIGNS_OF_LOCATIONS = frozenset("/?&=@:")
"""DuckDB opens files under quoted names. Their URLs may contain signatures, so they are no names of tables here."""


@dataclass(frozen=True, slots=True)
class QuerySummary:
    """The operation, and a summary such as `INSERT sales SELECT staging.sales`. Both are empty if unknown."""

    operation: str
    text: str


NO_SUMMARY = QuerySummary("", "")


def summarize(statement: str, dialect: str) -> QuerySummary:
    """Return the summary of a statement. It contains no literals, and at most `MAX_SUMMARY_CHARACTERS` characters."""
    operation = first_keyword(statement, dialect)
    if operation == UNKNOWN or not operation.isalpha():
        return NO_SUMMARY
    if has_unclear_quotes(statement[:_READ_CHARACTERS], dialect):  # names could be parts of literals
        return QuerySummary(operation, operation)
    words = list(_words(statement[:_READ_CHARACTERS], dialect, operation))
    if operation == "WITH":
        operation = next((word for word, depth in words if depth == 0 and word in _CHANGES | {"SELECT"}), operation)
    text = operation if not words or words[0][0] != operation else ""
    for word, _ in words:
        longer = f"{text} {word}" if text else word
        if len(longer) > MAX_SUMMARY_CHARACTERS:
            break
        text = longer
    return QuerySummary(operation, text)


@dataclass(slots=True)
class _Level:
    """A statement, or a pair of parentheses in it."""

    has_operation: bool = False
    """If not, FROM is not a clause: `extract(year FROM day)`."""
    lists_tables: bool = False
    """Whether a comma separates tables here."""


def _words(text: str, dialect: str, first: str) -> Iterator[tuple[str, int]]:
    """Yield operations and the names of tables, each with the number of parentheses around it."""
    name_quotes = ("`", "[") if dialect_patterns(dialect).rules.backslash else ("`", "[", '"')
    found = [one for one in tokens(text, dialect) if one and not one.startswith(_COMMENTS)]
    levels, expects_table, before = [_Level()], False, ""
    for at, token in enumerate(found):
        word, level, depth = token.upper(), levels[-1], len(levels) - 1
        if expects_table and word not in _BETWEEN:
            expects_table = False
            if _is_name(token, name_quotes):
                yield _dotted(found, at), depth
        elif not expects_table and before != ".":
            is_operation = word == "SELECT" or (depth == 0 and not level.has_operation and _begins(word, first))
            level.has_operation |= is_operation
            if is_operation or (word in {"TABLE", "VIEW"} and before in _DEFINITIONS):
                yield word, depth
            expects_table = level.has_operation and _precedes_table(word, before, level, is_operation=is_operation)
        if word in {"FROM", "JOIN"} or word in _CLAUSES:
            level.lists_tables = word not in _CLAUSES
        if token == "(":  # noqa: S105 not a password
            levels.append(_Level())
        elif token == ")" and depth:  # noqa: S105
            levels.pop()
        before = word


def _begins(word: str, first: str) -> bool:
    return word in _CHANGES if first == "WITH" else word == first


def _precedes_table(word: str, before: str, level: _Level, *, is_operation: bool) -> bool:
    if word == ",":
        return level.lists_tables
    return (word in _BEFORE_TABLES and before != "DISTINCT") or (word == "UPDATE" and is_operation)


def _is_name(token: str, quotes: tuple[str, ...]) -> bool:
    if token.startswith(quotes):
        return _SIGNS_OF_LOCATIONS.isdisjoint(token)
    return (
        token.replace("_", "a").replace("$", "a").isalnum() and not token[0].isdigit() and token.upper() not in _CLAUSES
    )


def _dotted(found: list[str], at: int) -> str:
    """Return the name that begins at a token, with all its parts."""
    name = found[at]
    while found[at + 1 : at + 2] == ["."] and at + 2 < len(found):
        at += 2
        name += f".{found[at]}"
    return name
