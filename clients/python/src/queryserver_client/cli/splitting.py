"""Checks whether typed SQL is complete: its last character outside quotes and comments must be `;`."""

import re

_BACKSLASHES = frozenset({"mysql", "mariadb", "hive", "impala", "sparksql"})
"""Dialects in which a backslash inside quotes is an escape character."""
_DOLLAR = re.compile(r"\$(?:[A-Za-z_]\w*)?\$")
_WORD_COMMANDS = {"exit": "\\q", "quit": "\\q", "help": "\\?", "?": "\\?"}
_QUOTES = "'\"`"
_TABLES = re.compile(
    r"\b(?:from|join|update|into|table|describe)\s+([\w.\"`]+)(?:\s+(?:as\s+)?([A-Za-z_]\w*))?", re.IGNORECASE
)
_WORD = re.compile(r"[\w.\"`$]*\Z")
_NO_ALIASES = re.compile(
    r"where|on|using|join|left|right|inner|outer|full|cross|natural|group|order|limit|set|values|select|having|union",
    re.IGNORECASE,
)


def is_whole(text: str, connector: str = "") -> bool:
    """Return whether the input is complete. Blank input, backslash commands, `exit`, `quit` and `help` are complete."""
    stripped = text.strip()
    if not stripped or stripped.startswith("\\") or word_command(stripped) is not None:
        return True
    significant = _significant(text, has_escapes=connector.lower() in _BACKSLASHES).rstrip()
    if connector.lower() == "postgresql" and significant.count("(") > significant.count(")"):
        return False  # as in psql: `CREATE RULE … DO ALSO (…; …);`
    return significant.endswith(";")


def word_command(text: str) -> str | None:
    """Return the backslash command that a word such as `exit` stands for; None if the text is not such a word."""
    return _WORD_COMMANDS.get(text.strip().rstrip(";").rstrip().lower())


def word_before(text: str) -> str:
    """Return the (possibly qualified) name at the end of the text; empty if there is none."""
    found = _WORD.search(text)
    return found[0] if found else ""


def tables_in(text: str) -> "dict[str, str]":
    """Return the tables that a statement refers to, keyed by lower-case alias and lower-case unqualified name."""
    found: dict[str, str] = {}
    for table, alias in _TABLES.findall(text):
        name = unquoted(table)
        found[name.rpartition(".")[2].lower()] = name
        if alias and not _NO_ALIASES.fullmatch(alias):
            found[alias.lower()] = name
    return found


def unquoted(name: str) -> str:
    return name.replace('"', "").replace("`", "")


def _significant(text: str, *, has_escapes: bool) -> str:
    """Return the text without quoted parts and comments.

    An unterminated quote or comment and all text after it become `?`, so that the text does not end with `;`.
    """
    kept: list[str] = []
    place = 0
    while place < len(text):
        end, is_kept = _piece(text, place, has_escapes=has_escapes)
        if end is None:
            return "".join([*kept, "?"])
        kept.append(text[place:end] if is_kept else "")
        place = end
    return "".join(kept)


def _piece(text: str, place: int, *, has_escapes: bool) -> "tuple[int | None, bool]":
    """Return the end of the quoted text, comment or character at `place`, and whether to keep it.

    The end is None if a quote or comment is unterminated.
    """
    if text.startswith("--", place):
        end = text.find("\n", place)
        return (len(text) if end < 0 else end), False
    if text.startswith("/*", place):
        return _after(text.find("*/", place + 2), 2), False
    if text[place] in _QUOTES:
        return _quoted_end(text, place, has_escapes=has_escapes), False
    if found := _DOLLAR.match(text, place):
        return _after(text.find(found[0], found.end()), len(found[0])), False
    return place + 1, True


def _after(start: int, length: int) -> "int | None":
    return None if start < 0 else start + length


def _quoted_end(text: str, place: int, *, has_escapes: bool) -> "int | None":
    quote, place = text[place], place + 1
    while place < len(text):
        if has_escapes and text[place] == "\\":
            place += 2
        elif text[place] == quote:
            return place + 1  # a doubled quote ends this quoted text and starts another
        else:
            place += 1
    return None
