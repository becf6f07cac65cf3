"""A text of SQL as a sequence of tokens, blanks left out (Contract editor 5.1). Made for texts of some kilobytes."""

import re
from collections.abc import Iterator
from functools import cache

from queryserver.domain.splitter_rules import COMMENT_EDGE, Rules, lexis_of

_FREE = frozenset("(),;")
_COMMENTS = ("--", "/*", "#")
_WORD = r"[^\W]+(?:\$\w*)*"


def token_spans(text: str, dialect: str) -> Iterator[tuple[int, int]]:
    """Offsets of words, signs (each alone), quoted pieces and comments, in order.

    A quoted piece or comment without end reaches to the end of the text.
    """
    rules = lexis_of(dialect).rules
    pattern, at = _pattern(rules), 0
    while found := pattern.search(text, at):
        start, stop = found.span()
        if rules.nested_comments and text.startswith("/*", start):
            stop = _comment_end(text, start)
        yield start, stop
        at = stop


def tokens(text: str, dialect: str) -> list[str]:
    """The tokens as they are written, with an empty text wherever a blank parts two of them that it may not join.

    A blank next to a bracket, a comma, a semicolon or a comment means nothing; `X'00'`, `1.5` and `<=` it would break.
    """
    found, before = list[str](), 0
    for start, stop in token_spans(text, dialect):
        token = text[start:stop]
        if found and start > before and not (_is_free(token) or _is_free(found[-1])):
            found.append("")
        found.append(token)
        before = stop
    return found


def _is_free(token: str) -> bool:
    return token in _FREE or token.startswith(_COMMENTS)


@cache
def _pattern(rules: Rules) -> re.Pattern[str]:
    kinds = [r"--(?=[\x00-\x20\x7f]|\Z)[^\r\n]*" if rules.dashes_need_blank else r"--[^\r\n]*"]
    if rules.hash_comments:
        kinds.append(r"#[^\r\n]*")
    kinds.append(r"/\*.*?(?:\*/|\Z)")
    if rules.e_strings:
        kinds.append(r"[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)")
    inside = r"(?:[^{0}\\]|\\.|{0}{0})*" if rules.backslash else r"(?:[^{0}]|{0}{0})*"
    kinds += [f"{quote}{inside.format(quote)}(?:{quote}|\\Z)" for quote in "'\""]
    if rules.back_ticks:
        kinds.append(r"`[^`]*(?:`|\Z)")
    if rules.brackets:
        kinds.append(r"\[[^\]]*(?:\]|\Z)")
    if rules.dollar_quotes:
        kinds.append(r"(?P<tag>\$(?:[^\W\d]\w*)?\$).*?(?:(?P=tag)|\Z)")
    return re.compile("|".join([*kinds, _WORD, r"\S"]), re.DOTALL)


def _comment_end(text: str, start: int) -> int:
    depth = 0
    for edge in COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)
