"""Which Trino statements certainly only read, and which query of a statement can be planned without effects.

A read-only transaction refuses changes through Trino's own catalogs. It does not refuse statements that change the
session, a role or the list of catalogs, and it does not cover what a table function makes another system do:
`TABLE(postgresql.system.query(query => 'DELETE …'))`.
"""

import re
from collections.abc import Iterator

from queryserver.sql.classification import HARMLESS_TABLE_FUNCTIONS, MAX_TOKENIZED_CHARACTERS
from queryserver.sql.effects import TOO_LONG, refusal_by_keyword
from queryserver.sql.formatter import tokens
from queryserver.sql.scanner import first_keyword

_QUERIES = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN"})
_MENTIONS = re.compile(rb"\btable\b|\bexecute\b")
_COMMENTS = ("--", "/*")


def read_only_transaction_refusal(text: str, dialect: str) -> str | None:
    """Return why a statement must not run in a read-only transaction of Trino or Presto, or None if it may.

    `EXECUTE` is refused, because the text of a prepared statement is not known here.
    """
    if refusal := refusal_by_keyword(text, dialect, _QUERIES):
        return refusal
    if not _MENTIONS.search(text.encode(errors="surrogatepass").lower()):
        return None
    if len(text) > MAX_TOKENIZED_CHARACTERS:
        return TOO_LONG
    words = [token for token in tokens(text, dialect) if token and not token.startswith(_COMMENTS)]
    if first_keyword(text, dialect) == "EXPLAIN" and "EXECUTE" in map(str.upper, words):
        return "The statement is read-only, and EXPLAIN could run a prepared statement that is not known."
    for name in _table_functions(words):
        if name not in HARMLESS_TABLE_FUNCTIONS:
            return f"The statement is read-only, and the table function {name} may pass text to another system."
    return None


def _table_functions(words: list[str]) -> Iterator[str]:
    """Yield the last part of the name of each table function that is called, without quotes and in upper case."""
    for at, word in enumerate(words[:-2]):
        if word.upper() != "TABLE" or words[at + 1] != "(":
            continue
        last = at + 2
        while last + 2 < len(words) and words[last + 1] == ".":
            last += 2
        # TABLE(orders) and TABLE(VALUES (1)) are arguments of a table function.
        is_call = last + 1 < len(words) and words[last + 1] == "("
        if is_call and not (last == at + 2 and words[last].upper() in _QUERIES):
            yield words[last].strip('"').upper()


_SOURCES = frozenset({"SELECT", "WITH", "VALUES", "TABLE"})


def query_to_plan(text: str, dialect: str) -> str | None:
    """Return the query that reads what the statement reads, or None if there is none or the text is too long.

    Only queries can be planned without effects: EXPLAIN of CREATE TABLE … AS creates the table in some catalogs (Trino
    476, `memory`), because the planner already begins the change. The query has no comments, and blanks may be missing
    around parentheses and commas.
    """
    if len(text) > MAX_TOKENIZED_CHARACTERS:
        return text if first_keyword(text, dialect) in _SOURCES else None
    words = [" " if not token or token.startswith(_COMMENTS) else token for token in tokens(text, dialect)]
    at = _start(words, 0)
    if _upper(words, at) == "EXPLAIN":
        at = _start(words, at + 1)
        if _upper(words, at) != "ANALYZE":
            return None
        at = _start(words, at + 1)
        at = _start(words, at + 1) if _upper(words, at) == "VERBOSE" else at
    if _upper(words, at) == "INSERT":
        at = next((one for one in range(at, len(words)) if _begins_query(words, one)), len(words))
    elif _upper(words, at) == "CREATE":
        at = _after_as(words, at)
        words = _without_data_clause(words)
    return "".join(words[at:]) if at < len(words) and _begins_query(words, at) else None


def _start(words: list[str], at: int) -> int:
    """Return the index of the first word that is not blank, from `at` on."""
    return next((one for one in range(at, len(words)) if words[one] != " "), len(words))


def _upper(words: list[str], at: int) -> str:
    return words[at].upper() if at < len(words) else ""


def _begins_query(words: list[str], at: int) -> bool:
    while _upper(words, at) == "(":
        at = _start(words, at + 1)
    return _upper(words, at) in _SOURCES


def _after_as(words: list[str], at: int) -> int:
    """Return the index after the AS of a CREATE TABLE … AS statement, which is not within parentheses."""
    depth = 0
    for one in range(at, len(words)):
        depth += {"(": 1, ")": -1}.get(words[one], 0)
        if depth == 0 and words[one].upper() == "AS":
            return _start(words, one + 1)
    return len(words)


def _without_data_clause(words: list[str]) -> list[str]:
    """Remove a final WITH DATA or WITH NO DATA."""
    ends = [one for one, word in enumerate(words) if word != " "]
    for clause in (["WITH", "DATA"], ["WITH", "NO", "DATA"]):
        if [words[one].upper() for one in ends[-len(clause) :]] == clause:
            return words[: ends[-len(clause)]]
    return words
