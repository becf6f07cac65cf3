"""Which statements may stand behind an engine's EXPLAIN, so that nothing but a plan can come of it."""

import re

from queryserver.domain.errors.base import InvalidParameter
from queryserver.domain.splitter_keywords import first_keyword
from queryserver.domain.splitter_rules import lexis_of
from queryserver.domain.splitter_scan import content_start

_PLANNED = frozenset(
    "SELECT WITH VALUES TABLE FROM INSERT UPDATE DELETE MERGE REPLACE UPSERT CREATE".split()  # noqa: SIM905 a row of words
)
_IN_PARENTHESES = frozenset({"SELECT", "WITH", "VALUES", "TABLE", "FROM"})
# Behind EXPLAIN these are no statements but options, and some of them run what follows.
_OPTIONS = frozenset(
    "EXPLAIN ANALYZE ANALYSE VERBOSE FORMAT EXTENDED FORMATTED CBO COST JOINCOST AST LOCKS VECTORIZATION DEPENDENCY "  # noqa: SIM905
    "AUTHORIZATION DETAIL DDL CODEGEN REOPTIMIZATION LOGICAL PARTITIONS QUERY PLAN PIPELINE SYNTAX ESTIMATE FOR "
    "OPTIONS TYPE".split()
)
_RUNNING_WORD = re.compile(r"(?i)analy[sz]e|reoptimi[sz]ation")


def explainable(statement: str, dialect: str) -> str:
    """The statement as it may be put behind EXPLAIN: without comments before it, where options could hide.

    A first word that is no statement of any engine passes if nothing in the text could run it: the engine says best
    what is wrong with it. Raises InvalidParameter.
    """
    start = content_start(statement, lexis_of(dialect))
    text, keyword = statement[start:], first_keyword(statement, dialect)
    if keyword == "EXPLAIN":
        raise InvalidParameter("statement: must not begin with EXPLAIN, which is put before it.")
    # A word of its own first, or parentheses around a query: what stands between may be an executable comment.
    is_plain = text[: len(keyword)].upper() == keyword != ""
    is_wrapped = text.startswith("(") and keyword in _IN_PARENTHESES
    is_known = keyword in _PLANNED or (keyword not in _OPTIONS and not _RUNNING_WORD.search(text))
    if not (is_wrapped or (is_plain and is_known)):
        raise InvalidParameter("statement: queries and changes of data can be explained, nothing else.")
    return text
