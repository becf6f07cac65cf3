"""What quotes, comments and blocks look like in each dialect (Contract editor 5.1), as compiled patterns.

Every pattern matches a bounded piece of text: `re` keeps the interpreter lock during a match, and the other threads
of the process must get their turn while a script of 10 MB is scanned. Whatever does not fit into a piece (a literal
of a megabyte) is left where it starts, for the scanner to finish with `str.find`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import cast

# (script, start[, limit]) -> the piece taken from `start` on; it may be empty.
Take = Callable[..., re.Match[str]]

_WORD_START = r"[^\x00-@\[-^`{-\x7f]"  # letters, `_` and everything beyond ASCII, as PostgreSQL and SQLite have it
_WORD_REST = r"[^\x00-#%-/:-@\[-^`{-\x7f]"  # the same, digits and `$`
_TAG_REST = r"[^\x00-/:-@\[-^`{-\x7f]"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"

WORD = re.compile(_WORD_START + _WORD_REST + "*+")
DOLLAR_TAG = re.compile(rf"\$(?:{_WORD_START}{_TAG_REST}*+)?\$")
LINE_END = re.compile(r"[\r\n]")
COMMENT_EDGE = re.compile(r"/\*|\*/")


@dataclass(frozen=True, slots=True)
class Rules:
    """One row of switches per dialect; the defaults are the rules marked "all"."""

    backslash: bool = False
    e_strings: bool = False
    back_ticks: bool = False
    brackets: bool = False
    dollar_quotes: bool = False
    dashes_need_blank: bool = False
    hash_comments: bool = False
    nested_comments: bool = False
    executable_comments: bool = False
    delimiter_lines: bool = False
    triggers: bool = False
    atomic_bodies: bool = False
    one_statement: bool = False


_HIVE = Rules(backslash=True, back_ticks=True)
_RULES = {
    "hive": _HIVE,
    "impala": _HIVE,
    "sparksql": Rules(backslash=True, back_ticks=True, nested_comments=True),
    "mysql": Rules(
        backslash=True,
        back_ticks=True,
        dashes_need_blank=True,
        hash_comments=True,
        executable_comments=True,
        delimiter_lines=True,
    ),
    "phoenix": Rules(backslash=True),
    "sqlite": Rules(back_ticks=True, brackets=True, triggers=True),
    "postgresql": Rules(e_strings=True, dollar_quotes=True, nested_comments=True, atomic_bodies=True),
    "duckdb": Rules(e_strings=True, dollar_quotes=True, nested_comments=True),
    "hplsql": Rules(one_statement=True),
}


@dataclass(frozen=True, slots=True)
class Lexis:
    """The patterns of one dialect.

    `gap` takes blanks and comments; `text` takes statement text up to a `;`, `text_and_semicolons` takes `;` too.
    `block_head` also stops before the word BEGIN, `block_body` before CASE and END, but not at `;`.
    `quoted` takes the inside of a literal with backslash escapes.
    """

    rules: Rules
    gap: Take
    text: Take
    text_and_semicolons: Take
    block_head: Take
    block_body: Take
    quoted: dict[str, Take]
    line_comment: re.Pattern[str]
    block_comment: re.Pattern[str]


@cache
def _lexis(rules: Rules) -> Lexis:
    return Lexis(
        rules=rules,
        gap=_pieces([r"\s{1,4096}+", *_comments(rules)]),
        text=_pieces(_text(rules, stops=";")),
        text_and_semicolons=_pieces(_text(rules, stops="")),
        block_head=_pieces(_text(rules, stops=";", words="BEGIN")),
        block_body=_pieces(_text(rules, stops="", words="CASE|END")),
        line_comment=re.compile(_line_comment_start(rules)),
        block_comment=re.compile(_block_comment_start(rules)),
        quoted={quote: take(rf"(?:[^{quote}\\]{{1,4096}}+|\\.){{0,4096}}+") for quote in "'\""},
    )


def lexis_of(dialect: str) -> Lexis:
    """The patterns of `dialect`; a dialect that is not in the table has the rules marked "all"."""
    return _lexis(_RULES.get(dialect.lower(), Rules()))


def take(pattern: str) -> Take:
    """`match` of a pattern that may match nothing, and so matches everywhere."""
    return cast("Take", re.compile(pattern, re.DOTALL).match)


def _pieces(alternatives: list[str]) -> Take:
    # Possessive, so that a match keeps no stack of the pieces it has passed.
    return take(rf"(?:{'|'.join(alternatives)}){{0,512}}+")


def _text(rules: Rules, *, stops: str, words: str = "") -> list[str]:
    """Alternatives for one token of statement text. `words` are keywords to stop at."""
    special = stops + "'\"-/" + _own_specials(rules)
    tokens = _short_literals(rules) + _comments(rules) + _lone_specials(rules)
    if not (words or rules.dollar_quotes):
        return [rf"[^{re.escape(special)}]{{1,4096}}+", *tokens]
    # `a$b$` is a name and opens no dollar quote, so names have to be taken whole.
    plain = "".join(chr(code) for code in range(128) if chr(code) not in special + _LETTERS)
    escape_string = "(?![eE]')" if rules.e_strings else ""
    word = escape_string + _WORD_START + _WORD_REST + "*+"
    if words:
        # After AS and after a dot every keyword is a name: SELECT 1 AS end, t.end.
        names = rf"(?:(?i:AS)\s{{1,256}}+|\.\s{{0,256}}+){word}"
        tokens = [*tokens, names, rf"(?!(?i:{words})(?!{_WORD_REST}))" + word]
        plain = plain.replace(".", "")
        return [rf"[{re.escape(plain)}]{{1,4096}}+", *tokens, r"\."]
    return [rf"[{re.escape(plain)}]{{1,4096}}+", *tokens, word]


def _own_specials(rules: Rules) -> str:
    marks = (
        (rules.back_ticks, "`"),
        (rules.brackets, "["),
        (rules.dollar_quotes, "$"),
        (rules.hash_comments, "#"),
    )
    return "".join(mark for wanted, mark in marks if wanted)


def _short_literals(rules: Rules) -> list[str]:
    if rules.backslash:
        literals = [rf"{quote}(?:[^{quote}\\]{{1,1024}}+|\\.){{0,64}}+{quote}" for quote in "'\""]
    else:
        literals = ["'[^']{0,4096}+'", '"[^"]{0,4096}+"']
    if rules.back_ticks:
        literals.append("`[^`]{0,4096}+`")
    if rules.brackets:
        literals.append(r"\[[^\]]{0,4096}+\]")
    if rules.e_strings:
        # A literal may go on in the next line (see _NEXT_PART in splitter_scan), which is not decided here.
        literals.append(r"[eE]'(?:[^'\\]{1,1024}+|\\.|''){0,64}+'(?!\s*+['-])")
    return literals


def _lone_specials(rules: Rules) -> list[str]:
    """Characters that open a token only together with the next ones."""
    tokens = [rf"-(?!{_line_comment_start(rules)[1:]})", rf"/(?!{_block_comment_start(rules)[1:]})"]
    if rules.dollar_quotes:
        tokens.append(rf"(?!{DOLLAR_TAG.pattern})\$")
    return tokens


def _line_comment_start(rules: Rules) -> str:
    # MySQL: "--" is a comment only before a blank or a control character; `5--3` is 8.
    return r"--(?=[\x00-\x20\x7f]|\Z)" if rules.dashes_need_blank else "--"


def _block_comment_start(rules: Rules) -> str:
    return r"/\*(?!!)" if rules.executable_comments else r"/\*"


def _comments(rules: Rules) -> list[str]:
    """Comments that fit into a piece. The line's end must be seen: the end of the searched part may not be it."""
    inside = r"[^*/]{1,1024}+|\*(?!/)|/(?!\*)" if rules.nested_comments else r"[^*]{1,1024}+|\*(?!/)"
    comments = [
        _line_comment_start(rules) + r"[^\r\n]{0,4096}+(?=[\r\n])",
        rf"{_block_comment_start(rules)}(?:{inside}){{0,256}}+\*/",
    ]
    if rules.hash_comments:
        comments.append(r"#[^\r\n]{0,4096}+(?=[\r\n])")
    return comments
