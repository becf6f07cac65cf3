"""A query matched against a segment of the index: which rows, how many of what, and the first of them."""

import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

from queryserver.domain.search_terms import Position, Query, Term, folded
from queryserver.domain.searching import AGES, FacetName, Search, age_limits
from queryserver.interfaces.metadata_index import ObjectRow
from queryserver.services.search.index_segment import (
    FIELD,
    KINDS,
    Segment,
    contains,
    is_whole,
    newest,
    pc,
    positions,
)
from queryserver.services.threads import Stop


@dataclass(frozen=True, slots=True)
class View:
    """A segment as one data source has it. `alive`: which of its objects count still; None: all."""

    segment: Segment
    connector: str
    dialect: str
    alive: pa.Array | None = None


class Hit(NamedTuple):
    """A row that was found; hits sort in the order of results."""

    position: int
    is_undated: bool
    age: float
    database: str
    table: str
    column: str
    connector: str
    view: int
    row: ObjectRow
    comment: str


class Found:
    """What a query matches in one view. `stop` is checked between terms."""

    def __init__(self, view: View, search: Search, stop: Stop) -> None:
        self._view = view
        self._segment = view.segment
        self._search = search
        self.objects, self.columns = _matched(view, search.query, stop)

    @property
    def total(self) -> int:
        """How many rows."""
        return _count(self.objects) + _count(self.columns)

    def facet(self, facet: FacetName) -> dict[str, int]:
        """The counts of one facet; no indexed object has tags."""
        segment = self._segment
        if facet is FacetName.TYPE:
            counts = _counts(segment.kinds.filter(self.objects))
            return {KINDS[code]: number for code, number in counts.items()} | {FIELD: _count(self.columns)}
        if facet is FacetName.OWNER:
            names = segment.owners.dictionary.to_pylist()
            return {names[code]: number for code, number in self._by_object(segment.owners.indices) if names[code]}
        if facet is FacetName.LAST_MODIFIED:
            ages = _ages(segment.moments, self._search.now)
            return {AGES[code]: number for code, number in self._by_object(ages)}
        return {}

    def first(self, reach: int, number: int) -> Iterator[Hit]:
        """The first hits in their order; `number` is that of the view."""
        segment, terms = self._segment, self._search.query.terms
        found_objects, found_columns = pc.indices_nonzero(self.objects), pc.indices_nonzero(self.columns)
        of_objects = positions(segment.names, terms).take(found_objects)
        of_columns = positions(segment.columns, terms).take(segment.codes.take(found_columns))
        left = reach
        for position in range(Position.ELSEWHERE + 1):
            objects = _at(found_objects, of_objects, position, left)
            columns = _at(found_columns, of_columns, position, left)
            hits = heapq.merge(
                (self._hit(position, place, None, number) for place in objects),
                (self._hit(position, segment.parents[place].as_py(), place, number) for place in columns),
            )
            yield from (hit for hit, _ in zip(hits, range(left), strict=False))
            left -= min(len(objects) + len(columns), left)
            if not left:
                return

    def _hit(self, position: int, parent: int, column: int | None, number: int) -> Hit:
        segment, row = self._segment, self._segment.rows[parent]
        name, comment = "", row.comment
        if column is not None:
            name = segment.shown_columns[segment.codes[column].as_py()].as_py()
            comment = segment.shown_column_comments[segment.comment_codes[column].as_py()].as_py()
        undated, age = newest(row.modified_at)
        return Hit(position, undated, age, row.database, row.name, name, self._view.connector, number, row, comment)

    def _by_object(self, codes: pa.Array) -> Iterator[tuple[int, int]]:
        """Counts of what objects have, columns counted with their object."""
        counts = _counts(codes.filter(self.objects))
        for code, number in _counts(codes.take(self._segment.parents.filter(self.columns))).items():
            counts[code] = counts.get(code, 0) + number
        return iter(counts.items())


def _matched(view: View, query: Query, stop: Stop) -> tuple[pa.Array, pa.Array]:
    segment = view.segment
    objects = _all(len(segment.rows)) if view.alive is None else view.alive
    parents = _filtered(view, query.filters)
    parents = objects if parents is None else pc.and_(objects, parents)
    objects = pc.and_(parents, _of_type(segment.kinds, query.filters.get("type")))
    columns = _all(len(segment.codes))
    if parents is not objects or view.alive is not None or query.filters:
        columns = parents.take(segment.parents)
    if not _is_type(FIELD, query.filters.get("type")):
        columns = _all(len(segment.codes), value=False)
    for term in query.terms:
        stop.check()
        paths = contains(segment.paths, term)
        objects = pc.and_(objects, pc.or_(paths, contains(segment.comments, term)))
        columns = pc.and_(columns, _columns_with(segment, term, paths, columns))
    return objects, columns


def _columns_with(segment: Segment, term: Term, paths: pa.Array, candidates: pa.Array) -> pa.Array:
    """Which columns have the term in their path or comment; `paths`: which objects have it in theirs."""
    hits = contains(segment.columns, term).take(segment.codes)
    for found, codes in ((contains(segment.column_comments, term), segment.comment_codes), (paths, segment.parents)):
        if pc.any(found).as_py():
            hits = pc.or_(hits, found.take(codes))
    if term.is_literal and "." not in "".join(term.literals):
        return hits
    return _with_spanning(segment, term, hits, candidates)


def _with_spanning(segment: Segment, term: Term, hits: pa.Array, candidates: pa.Array) -> pa.Array:
    """Hits, and columns where the term begins in the name of the table and ends in that of the column."""
    left = pc.and_not(candidates, hits)
    for literal in term.literals:
        for part in re.split(r"\.", literal):
            if part:
                piece = Term((part,))
                in_path = contains(segment.paths, piece).take(segment.parents)
                left = pc.and_(left, pc.or_(in_path, contains(segment.columns, piece).take(segment.codes)))
    places = pc.indices_nonzero(left)
    if not len(places):
        return hits
    paths = segment.paths.take(segment.parents.take(places))
    names = segment.columns.take(segment.codes.take(places))
    spanning = contains(pc.binary_join_element_wise(paths, names, "."), term)
    return pc.replace_with_mask(hits, left, spanning)


def _filtered(view: View, filters: dict[str, tuple[Term, ...]]) -> pa.Array | None:
    """Which objects pass all filters but that of the type; None: all do."""
    segment, passed = view.segment, None
    for name, terms in filters.items():
        if name == "db":
            one = _any_whole(segment.databases, terms)
        elif name == "table":
            tables = pc.not_equal(segment.kinds, 0)
            one = pc.and_(tables, _any_whole(segment.names, terms))
        elif name == "owner":
            owners = _any_whole(_folded_owners(segment), terms)
            one = owners.take(segment.owners.indices)
        elif name == "source":
            words = [word for word in (folded(view.dialect), "sql") if any(term.is_whole(word) for term in terms)]
            one = _all(len(segment.rows), value=bool(words))
        elif name == "tag":
            one = _all(len(segment.rows), value=False)
        else:
            continue
        passed = one if passed is None else pc.and_(passed, one)
    return passed


def _folded_owners(segment: Segment) -> pa.Array:
    return pa.array([folded(owner) for owner in segment.owners.dictionary.to_pylist()], pa.string())


def _any_whole(texts: pa.Array, terms: Sequence[Term]) -> pa.Array:
    passed = is_whole(texts, terms[0])
    for term in terms[1:]:
        passed = pc.or_(passed, is_whole(texts, term))
    return passed


def _is_type(kind: str, terms: Sequence[Term] | None) -> bool:
    return terms is None or any(term.is_whole(folded(kind)) for term in terms)


def _of_type(kinds: pa.Array, terms: Sequence[Term] | None) -> pa.Array:
    wanted = pa.array([code for code, kind in enumerate(KINDS) if _is_type(kind, terms)], pa.int8())
    return pc.is_in(kinds, value_set=wanted)


def _ages(moments: pa.Array, now: datetime) -> pa.Array:
    """Codes in `AGES`."""
    codes = pa.repeat(pa.scalar(len(AGES) - 1, pa.int8()), len(moments))
    for code, limit in reversed(list(enumerate(age_limits(now)))):
        younger = pc.fill_null(pc.greater_equal(moments, pa.scalar(limit, pa.timestamp("us", tz="UTC"))), False)
        codes = pc.if_else(younger, pa.scalar(code, pa.int8()), codes)
    return codes


def _at(places: pa.Array, of_places: pa.Array, position: int, most: int) -> list[int]:
    """The first places that have this position."""
    return places.filter(pc.equal(of_places, position)).slice(0, most).to_pylist()


def _counts(codes: pa.Array) -> dict[int, int]:
    counted = pc.value_counts(codes)
    return {one["values"]: one["counts"] for one in counted.to_pylist()}


def _count(mask: pa.Array) -> int:
    return pc.sum(mask).as_py() or 0


def _all(rows: int, *, value: bool = True) -> pa.Array:
    return pa.repeat(pa.scalar(value), rows)
