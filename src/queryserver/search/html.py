"""Texts of results as HTML in which what matched is marked (Contract platform 8.2)."""

from collections.abc import Iterator, Sequence
from html import escape

from queryserver.search.model import Record
from queryserver.search.query_language import Term, folded

_MOST_CHARACTERS = 200
_BEFORE = 60  # characters that are shown before the place that matched


def highlighted(text: str, terms: Sequence[Term]) -> str:
    """Escaped, with `<em>` around everything that a term matches; there is no other markup in it."""
    pieces: list[str] = []
    end = 0
    for begin, until in _merged(_spans(folded(text), terms)):
        pieces += [escape(text[end:begin]), "<em>", escape(text[begin:until]), "</em>"]
        end = until
    return "".join([*pieces, escape(text[end:])])


def description_of(record: Record, terms: Sequence[Term]) -> str:
    """Matched tags, else the description, else the place in the text that matched; at most 200 characters of it."""
    tags = [tag for tag in record.tags if any(term.found_in(folded(tag)) for term in terms)]
    if tags:
        return f"tags:{highlighted(', '.join(tags)[:_MOST_CHARACTERS], terms)}"
    if record.description:
        return highlighted(_around(record.description, terms), terms)
    return highlighted(_around(record.text, terms), terms)


def _around(text: str, terms: Sequence[Term]) -> str:
    """At most 200 characters, with the first match in them."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    plain = folded(text)
    begin = min((found[0] for term in terms if (found := term.found_in(plain))), default=0)
    start = max(begin - _BEFORE, 0)
    return text[start : start + _MOST_CHARACTERS]


def _spans(plain: str, terms: Sequence[Term]) -> Iterator[tuple[int, int]]:
    for term in terms:
        at = 0
        while (found := term.found_in(plain, at)) is not None and found[1] > found[0]:
            yield found
            at = found[1]


def _merged(spans: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """In order; those that touch each other are one."""
    begin = end = -1
    for first, last in sorted(spans):
        if first > end:
            if end >= 0:
                yield begin, end
            begin, end = first, last
        else:
            end = max(end, last)
    if end >= 0:
        yield begin, end
