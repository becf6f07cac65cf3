"""Which Phoenix statements certainly only read. A read-only connection refuses all other statements but a few.

It does not refuse `TRACE ON`, which turns on tracing, and `NEXT VALUE FOR` in a query, which changes a sequence.
"""

import re

from queryserver.sql.classification import MAX_TOKENIZED_CHARACTERS
from queryserver.sql.effects import TOO_LONG, refusal_by_keyword
from queryserver.sql.formatter import tokens

_QUERIES = frozenset({"SELECT", "WITH", "EXPLAIN", "SHOW"})
_SEQUENCE_WORDS = frozenset({"VALUE", "VALUES"})
_MENTIONS = re.compile(rb"\bnext\b")
_COMMENTS = ("--", "//", "/*")


def read_only_refusal(text: str) -> str | None:
    """Return why a statement must not run on a read-only connection, or None if it may."""
    if refusal := refusal_by_keyword(text, "phoenix", _QUERIES):
        return refusal
    if not _MENTIONS.search(text.encode(errors="surrogatepass").lower()):
        return None
    if len(text) > MAX_TOKENIZED_CHARACTERS:
        return TOO_LONG
    words = [token.upper() for token in tokens(text, "phoenix") if token and not token.startswith(_COMMENTS)]
    for at, word in enumerate(words):
        # NEXT VALUE FOR s, NEXT 5 VALUES FOR s; a marker such as :1 may be several tokens.
        if word == "NEXT" and _SEQUENCE_WORDS.intersection(words[at + 1 : at + 4]):
            return "The statement is read-only, and NEXT VALUE FOR changes a sequence."
    return None
