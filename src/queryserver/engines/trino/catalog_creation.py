"""What SHOW CREATE tells: the properties of a table or schema, and who owns it."""

import re
from collections.abc import Mapping

_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[()\[\],=]|[^\s'"()\[\],=]+|\s+""")
_OPEN, _CLOSE = frozenset("(["), frozenset(")]")
_OWNER = re.compile(r'\bAUTHORIZATION\s+(USER|ROLE)?\s*("(?:[^"]|"")*"|[^\s"]+)')
_TEXT = re.compile(r"'((?:[^']|'')*)'")


def properties(statement: str) -> Mapping[str, str]:
    """The entries of `WITH (…)` behind everything else, as Trino writes them; texts without their quotes."""
    words = _TOKEN.findall(statement)
    depth, start = 0, None
    for place, word in enumerate(words):
        if word.upper() == "WITH" and depth == 0:
            start = place + 1
        elif word.upper() == "AS" and depth == 0:
            break
        depth += (word in _OPEN) - (word in _CLOSE)
    return {} if start is None else dict(_entries(words[start:]))


def owner(statement: str) -> tuple[str, str]:
    """Kind (`USER`, `ROLE`) and name behind AUTHORIZATION; empty texts without it."""
    match = _OWNER.search(statement)
    if match is None:
        return "", ""
    name = match[2]
    return match[1] or "USER", name[1:-1].replace('""', '"') if name.startswith('"') else name


def texts(value: str) -> list[str]:
    """The texts of `ARRAY['a','b']`."""
    return [text.replace("''", "'") for text in _TEXT.findall(value)]


def _entries(words: list[str]) -> list[tuple[str, str]]:
    """Pairs of name and value between the first bracket and the one that closes it."""
    entries, current, depth = list[tuple[str, str]](), list[str](), 0
    for word in words:
        depth += (word in _OPEN) - (word in _CLOSE)
        if depth == 1 and word == "(" and not current:
            continue
        if depth == 0 or (depth == 1 and word == ","):
            name, _, value = "".join(current).partition("=")
            if value:
                entries.append((name.strip().strip('"'), _plain(value.strip())))
            current = []
            if depth == 0 and word == ")":
                break
        else:
            current.append(word)
    return entries


def _plain(value: str) -> str:
    match = _TEXT.fullmatch(value)
    return match[1].replace("''", "'") if match else value
