"""Rewrites Impala SQL for DuckDB, which executes it in this server: quotes, escapes, and comments."""

import re

_TOKEN = re.compile(
    r"""(?P<single>'(?:\\.|''|[^'\\])*')|(?P<double>"(?:\\.|[^"\\])*")|(?P<name>`(?:\\.|[^`\\])*`)"""
    r"""|(?P<comment>--[^\n]*|/\*.*?\*/)|(?P<other>[^'"`\-/]+|.)""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)|''", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a"}


def for_duckdb(statement: str) -> str:
    """Rewrite the statement so that quotes in strings are doubled, names are in double quotes, and comments are
    removed.
    """
    return "".join(_rewritten(match) for match in _TOKEN.finditer(statement))


def text_of(literal: str) -> str:
    """Return the value of an Impala string literal."""
    return _ESCAPE.sub(_unescaped, literal[1:-1])


def name_of(word: str) -> str:
    """Normalize an identifier, with or without backticks, as Impala does."""
    return word.strip().strip("`").lower()


def _rewritten(match: re.Match[str]) -> str:
    if match.lastgroup in {"single", "double"}:
        return "'" + text_of(match.group()).replace("'", "''") + "'"
    if match.lastgroup == "name":
        return '"' + match.group()[1:-1].lower().replace('"', '""') + '"'
    return " " if match.lastgroup == "comment" else match.group()


def _unescaped(match: re.Match[str]) -> str:
    character = match.group(1)
    return "'" if character is None else _ESCAPED.get(character, character)
