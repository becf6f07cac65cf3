"""Search terms, compared with a slow matcher, in Python, in the in-memory index, and in PostgreSQL."""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import unescape

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from queryserver.api.v1.metadata import highlighted
from queryserver.platform.threads import Stop
from queryserver.search.index import FIELD, View, ViewMatches, build, contains, fold, is_whole, positions
from queryserver.search.model import RECORD, UNIT, FacetName, ObjectRow, Search
from queryserver.search.query_language import Query, Term, folded, parse_query

TEXTS = st.text("abAB_ .-%\\*?äÄßİıSſK", max_size=12)
PATTERNS = st.text("abAB_ .-%\\*?äÄßſ", min_size=1, max_size=8)
NOW = datetime(2026, 1, 5, tzinfo=UTC)


def reads(term: Term, text: str) -> bool:
    """Return whether the term matches the whole text. Slow, because it tries every length for each wildcard."""
    return _reads(list(term.pieces), folded(text))


def _reads(pieces: Sequence[object], text: str) -> bool:
    if not pieces:
        return not text
    first, *rest = pieces
    if isinstance(first, str):
        return text.startswith(first) and _reads(rest, text[len(first) :])
    if getattr(first, "sign", "") == "?":
        return bool(text) and _reads(rest, text[1:])
    return any(_reads(rest, text[start:]) for start in range(len(text) + 1))


def somewhere(term: Term, text: str) -> bool:
    """Return whether the term matches any part of the text."""
    return any(reads(term, text[start:end]) for start in range(len(text) + 1) for end in range(start, len(text) + 1))


def term_of(pattern: str) -> Term | None:
    quoted = pattern.replace("\\", "\\\\")
    terms = parse_query(f'"{quoted}"').terms
    return terms[0] if terms else None


@given(PATTERNS, TEXTS)
@examples(150)
def test_terms_match_like_the_slow_matcher(pattern: str, text: str) -> None:
    if (term := term_of(pattern)) is None:
        return
    texts = pa.array([text], pa.string())
    assert (term.find_in(folded(text)) is not None) == somewhere(term, text)
    assert term.is_whole(folded(text)) == reads(term, text)
    assert fold(texts).to_pylist() == [folded(text)]
    assert contains(fold(texts), term).to_pylist() == [somewhere(term, text)]
    assert is_whole(fold(texts), term).to_pylist() == [reads(term, text)]
    assert positions(fold(texts), [term]).to_pylist() == [term.position(folded(text))]


@given(PATTERNS, st.text("ab<>&\"'A", max_size=20))
@examples(120)
def test_highlighting_keeps_all_text(pattern: str, text: str) -> None:
    term = term_of(pattern)
    shown = highlighted(text, [term] if term else [])
    bare = shown.replace("<em>", "").replace("</em>", "")
    assert unescape(bare) == text
    assert "<" not in bare
    if term is not None and any(term.literals):
        assert ("<em>" in shown) == somewhere(term, text)


NAMES = st.text("ab_.", min_size=1, max_size=5)
TABLES = st.dictionaries(NAMES, st.lists(st.tuples(NAMES, st.sampled_from(["", "ab", "b a"])), max_size=4), max_size=5)


@given(TABLES, st.lists(st.text("ab_.?*", min_size=1, max_size=4), max_size=2))
@examples(120)
def test_index_matches_like_the_slow_matcher(tables: dict[str, list[tuple[str, str]]], patterns: list[str]) -> None:
    terms = tuple(term for pattern in patterns if (term := term_of(pattern)) is not None)
    rows = [
        ObjectRow(
            number, "TABLE", "a", name, "", "", None, RECORD.join(sorted(f"{one}{UNIT}{said}" for one, said in columns))
        )
        for number, (name, columns) in enumerate(tables.items())
    ]
    paths = [(f"a.{name}", "") for name in tables]
    paths += [(f"a.{name}.{one}", said) for name, columns in tables.items() for one, said in columns]
    wanted = sorted(
        path for path, said in paths if all(somewhere(term, path) or somewhere(term, said) for term in terms)
    )
    found = ViewMatches(View(build(rows), "c", "d"), Search(Query(terms), NOW, facets=frozenset(FacetName)), Stop())
    hits = list(found.first(1000, 0))
    assert sorted(f"a.{hit.table}.{hit.column}" if hit.column else f"a.{hit.table}" for hit in hits) == wanted
    assert found.total == len(wanted) == sum(found.facet(FacetName.TYPE).values())
    assert found.facet(FacetName.TYPE).get(FIELD, 0) == sum(bool(hit.column) for hit in hits)
    assert [hit[:6] for hit in hits] == sorted(hit[:6] for hit in hits)
    assert list(found.first(2, 0)) == hits[:2]


@pytest.mark.parametrize("text", ["a" * 30, '"a b"', "\\", "a:b"])
def test_single_term_queries_yield_one_term(text: str) -> None:
    assert len(parse_query(text).terms) == 1
