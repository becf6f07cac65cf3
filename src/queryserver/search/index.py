"""Matches a query against a segment of the index: finds matching rows, counts them, and yields them in result order.

Implements the source `sql`: databases, tables, views and columns of the connectors that the caller may use.
"""

import asyncio
import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute

from queryserver import errors
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.identity.model import METADATA, User
from queryserver.platform.caches import LruCache
from queryserver.platform.threads import FairThreads, Stop
from queryserver.search import model
from queryserver.search.model import AGES, DATABASE, RECORD, TABLE, UNIT, VIEW, FacetName, ObjectRow, Search, age_limits
from queryserver.search.query_language import NameFit, Query, Term, folded
from queryserver.search.refresh import IndexRefresh, scope_key
from queryserver.search.repository import MetadataIndexRecords

# The functions of pyarrow.compute are generated at import time, so type checkers do not know them.
pc: Any = pyarrow.compute

FIELD = "FIELD"
KINDS = (DATABASE, TABLE, VIEW)
_CHUNK = 4000  # number of objects whose column lists are split in one step

_MAX_BYTES = 256 * 1024 * 1024
_OVERLAY_ROWS = 1000  # if more rows than this and more than a tenth of all rows have changed, the scope is reread


@dataclass(frozen=True, slots=True)
class IndexSegment:
    """Indexed objects in columnar form.

    `parents`, `codes` and `comment_codes` contain the indexes of each table column's object, name and comment.
    """

    rows: Sequence[ObjectRow]
    """The objects, without the text that lists their columns."""
    kinds: pa.Array
    databases: pa.Array
    owners: pa.Array
    moments: pa.Array
    names: pa.Array
    paths: pa.Array
    comments: pa.Array
    shown_columns: pa.Array
    columns: pa.Array
    """Distinct column names, folded. `shown_columns` contains their original spelling.

    Column comments are stored in the same way.
    """
    shown_column_comments: pa.Array
    column_comments: pa.Array
    codes: pa.Array
    comment_codes: pa.Array
    parents: pa.Array
    row_numbers: dict[int, int] = field(repr=False)
    """Row numbers by object id."""

    @property
    def size_bytes(self) -> int:
        texts = (self.columns, self.shown_columns, self.column_comments, self.shown_column_comments, self.comments)
        arrays = (self.codes, self.comment_codes, self.parents, self.names, self.paths, *texts)
        return sum(array.nbytes for array in arrays) + 600 * len(self.rows)


def build(rows: Sequence[ObjectRow]) -> IndexSegment:
    ordered = sorted(rows, key=order_of)
    parents, names, comments = _columns(ordered)
    light = [replace(row, columns=None) for row in ordered]
    return IndexSegment(
        rows=light,
        kinds=pa.array([KINDS.index(row.kind) for row in light], pa.int8()),
        databases=fold(_strings(row.database for row in light)),
        owners=_strings(row.owner for row in light).dictionary_encode(),
        moments=pa.array([row.modified_at for row in light], pa.timestamp("us", tz="UTC")),
        names=fold(_strings(row.name or row.database for row in light)),
        paths=fold(_strings(".".join(part for part in (row.database, row.name) if part) for row in light)),
        comments=fold(_strings(row.comment for row in light)),
        shown_columns=names.dictionary,
        columns=fold(names.dictionary),
        shown_column_comments=comments.dictionary,
        column_comments=fold(comments.dictionary),
        codes=names.indices,
        comment_codes=comments.indices,
        parents=parents,
        row_numbers={row.id: number for number, row in enumerate(light)},
    )


def order_of(row: ObjectRow) -> tuple[bool, float, str, str]:
    """Return the sort key: newest first, rows without a time last, then by name."""
    return (*newest(row.modified_at), row.database, row.name)


def newest(moment: datetime | None) -> tuple[bool, float]:
    return moment is None, -moment.timestamp() if moment else 0.0


def fold(texts: pa.Array) -> pa.Array:
    """Fold texts as `query_language.folded` does, which is called only for texts with non-ASCII characters."""
    lowered = pc.ascii_lower(texts)
    foreign = pc.indices_nonzero(pc.invert(pc.string_is_ascii(texts)))
    if not len(foreign):
        return lowered
    replaced = lowered.to_pylist()
    for index in foreign.to_pylist():
        replaced[index] = folded(texts[index].as_py())
    return _strings(replaced)


def contains(texts: pa.Array, term: Term) -> pa.Array:
    if term.is_literal:
        return pc.match_substring(texts, "".join(term.literals))
    return pc.match_like(texts, f"%{term.like}%")


def is_whole(texts: pa.Array, term: Term) -> pa.Array:
    return pc.equal(texts, "".join(term.literals)) if term.is_literal else pc.match_like(texts, term.like)


def positions(names: pa.Array, terms: Sequence[Term]) -> pa.Array:
    """Return the worst `NameFit` of all terms for each folded name."""
    inside = pa.repeat(pa.scalar(True), len(names))
    for term in terms:
        inside = pc.and_(inside, contains(names, term))
    some = names.filter(inside)
    worst = pa.repeat(_number(NameFit.EXACT), len(some))
    words = _in_blanks(some) if terms else some
    for term in terms:
        worst = pc.max_element_wise(worst, _positions(some, words, term))
    return pc.replace_with_mask(pa.repeat(_number(NameFit.NOT_IN_NAME), len(names)), inside, worst)


def _in_blanks(names: pa.Array) -> pa.Array:
    """Return the names with a blank before each word."""
    spaced = pc.replace_substring_regex(names, pattern=r"[^\pL\pN]", replacement=" ")
    return pc.binary_join_element_wise("", spaced, " ")


def _positions(names: pa.Array, words: pa.Array, term: Term) -> pa.Array:
    """Return the `NameFit` of names that are known to contain the term."""
    literal = "".join(term.literals)
    starts = pc.starts_with(names, literal) if term.is_literal else pc.match_like(names, f"{term.like}%")
    in_words = contains(words, term.as_word)
    inside = pc.if_else(in_words, _number(NameFit.WORD_STARTS), _number(NameFit.INSIDE))
    inside = pc.if_else(starts, _number(NameFit.STARTS), inside)
    return pc.if_else(is_whole(names, term), _number(NameFit.EXACT), inside)


def _number(value: int) -> pa.Scalar:
    return pa.scalar(value, pa.int8())


def _columns(rows: Sequence[ObjectRow]) -> tuple[pa.Array, pa.DictionaryArray, pa.DictionaryArray]:
    """Return the index of the object, the name and the comment of each column, as three arrays."""
    parents: list[pa.Array] = [pa.array([], pa.int32())]
    names: list[pa.Array] = [_strings([]).dictionary_encode()]
    comments: list[pa.Array] = [_strings([]).dictionary_encode()]
    for start in range(0, len(rows), _CHUNK):
        joined = pa.array([row.columns or None for row in rows[start : start + _CHUNK]], pa.string())
        lists = pc.split_pattern(joined, RECORD)
        parents.append(pc.add(pc.list_parent_indices(lists).cast(pa.int32()), pa.scalar(start, pa.int32())))
        pairs = pc.split_pattern(pc.list_flatten(lists), UNIT, max_splits=1)
        names.append(pc.list_element(pairs, 0).dictionary_encode())
        comments.append(pc.list_element(pairs, 1).dictionary_encode())
    return pa.concat_arrays(parents), _unified(names), _unified(comments)


def _unified(parts: Sequence[pa.Array]) -> pa.DictionaryArray:
    unified: Any = pa.chunked_array(parts).unify_dictionaries().combine_chunks()
    return unified


def _strings(texts: Iterable[str]) -> pa.Array:
    return pa.array(list(texts), pa.string())


@dataclass(frozen=True, slots=True)
class View:
    """A segment of one data source. `alive` marks the objects that still exist; None means all of them."""

    segment: IndexSegment
    connector: str
    dialect: str
    alive: pa.Array | None = None


class Hit(NamedTuple):
    """A matching row. Sorting hits as tuples gives the order of the result."""

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


class ViewMatches:
    """The matches of a query in one view. `stop` is checked before each term."""

    def __init__(self, view: View, search: Search, stop: Stop) -> None:
        self._view = view
        self._segment = view.segment
        self._search = search
        self.objects, self.columns = _matched(view, search.query, stop)

    @property
    def total(self) -> int:
        return _count(self.objects) + _count(self.columns)

    def facet(self, facet: FacetName) -> dict[str, int]:
        """Return the counts of a facet. For tags, which indexed objects do not have, return an empty dict."""
        segment = self._segment
        if facet is FacetName.TYPE:
            counts = _counts(segment.kinds.filter(self.objects))
            return {KINDS[code]: number for code, number in counts.items()} | {FIELD: _count(self.columns)}
        if facet is FacetName.OWNER:
            names = segment.owners.dictionary.to_pylist()
            return {names[code]: number for code, number in self._by_object(segment.owners.indices) if names[code]}
        if facet is FacetName.LAST_MODIFIED:
            ages = pa.repeat(pa.scalar(len(AGES) - 1, pa.int8()), len(segment.moments))
            for code, limit in reversed(list(enumerate(age_limits(self._search.now)))):
                younger = pc.greater_equal(segment.moments, pa.scalar(limit, pa.timestamp("us", tz="UTC")))
                ages = pc.if_else(pc.fill_null(younger, False), pa.scalar(code, pa.int8()), ages)
            return {AGES[code]: number for code, number in self._by_object(ages)}
        return {}

    def first(self, reach: int, number: int) -> Iterator[Hit]:
        """Yield up to `reach` hits in result order. `number` is the index of this view."""
        segment, terms = self._segment, self._search.query.terms
        found_objects, found_columns = pc.indices_nonzero(self.objects), pc.indices_nonzero(self.columns)
        of_objects = positions(segment.names, terms).take(found_objects)
        of_columns = positions(segment.columns, terms).take(segment.codes.take(found_columns))
        remaining = reach
        for position in range(NameFit.NOT_IN_NAME + 1):
            objects = _at(found_objects, of_objects, position, remaining)
            columns = _at(found_columns, of_columns, position, remaining)
            hits = heapq.merge(
                (self._hit(position, row, None, number) for row in objects),
                (self._hit(position, segment.parents[place].as_py(), place, number) for place in columns),
            )
            yield from (hit for hit, _ in zip(hits, range(remaining), strict=False))
            remaining -= min(len(objects) + len(columns), remaining)
            if not remaining:
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
        """Yield counts by a property of the objects. A matching column counts with its object's value."""
        counts = _counts(codes.filter(self.objects))
        for code, number in _counts(codes.take(self._segment.parents.filter(self.columns))).items():
            counts[code] = counts.get(code, 0) + number
        return iter(counts.items())


def _matched(view: View, query: Query, stop: Stop) -> tuple[pa.Array, pa.Array]:
    segment = view.segment
    objects = _all(len(segment.rows)) if view.alive is None else view.alive
    parents = _filtered(view, query.filters)
    parents = objects if parents is None else pc.and_(objects, parents)
    types = query.filters.get("type")
    kind_codes = pa.array([code for code, kind in enumerate(KINDS) if _is_type(kind, types)], pa.int8())
    objects = pc.and_(parents, pc.is_in(segment.kinds, value_set=kind_codes))
    is_whole_view = view.alive is None and not query.filters
    columns = _all(len(segment.codes)) if is_whole_view else parents.take(segment.parents)
    if not _is_type(FIELD, types):
        columns = _all(len(segment.codes), value=False)
    for term in query.terms:
        stop.check()
        paths = contains(segment.paths, term)
        objects = pc.and_(objects, pc.or_(paths, contains(segment.comments, term)))
        columns = pc.and_(columns, _columns_with(segment, term, paths, columns))
    return objects, columns


def _columns_with(segment: IndexSegment, term: Term, paths: pa.Array, candidates: pa.Array) -> pa.Array:
    """Return a mask of the columns that contain the term in their path or comment.

    `paths` is a mask of the objects that contain the term in their path.
    """
    hits = contains(segment.columns, term).take(segment.codes)
    for mask, codes in ((contains(segment.column_comments, term), segment.comment_codes), (paths, segment.parents)):
        if pc.any(mask).as_py():
            hits = pc.or_(hits, mask.take(codes))
    if term.is_literal and "." not in "".join(term.literals):
        return hits
    return _with_spanning(segment, term, hits, candidates)


def _with_spanning(segment: IndexSegment, term: Term, hits: pa.Array, candidates: pa.Array) -> pa.Array:
    """Add columns for which the term starts in the table's path and ends in the column name."""
    remaining = pc.and_not(candidates, hits)
    for literal in term.literals:
        for part in re.split(r"\.", literal):
            if part:
                piece = Term((part,))
                in_path = contains(segment.paths, piece).take(segment.parents)
                remaining = pc.and_(remaining, pc.or_(in_path, contains(segment.columns, piece).take(segment.codes)))
    indices = pc.indices_nonzero(remaining)
    if not len(indices):
        return hits
    paths = segment.paths.take(segment.parents.take(indices))
    names = segment.columns.take(segment.codes.take(indices))
    spanning = contains(pc.binary_join_element_wise(paths, names, "."), term)
    return pc.replace_with_mask(hits, remaining, spanning)


def _filtered(view: View, filters: dict[str, tuple[Term, ...]]) -> pa.Array | None:
    """Return a mask of the objects that pass all filters except the type filter; None if there are no such filters."""
    segment, passed = view.segment, None
    for name, terms in filters.items():
        if name == "db":
            matches = _any_whole(segment.databases, terms)
        elif name == "table":
            tables = pc.not_equal(segment.kinds, 0)
            matches = pc.and_(tables, _any_whole(segment.names, terms))
        elif name == "owner":
            owners = pa.array(map(folded, segment.owners.dictionary.to_pylist()), pa.string())
            matches = _any_whole(owners, terms).take(segment.owners.indices)
        elif name == "source":
            words = [word for word in (folded(view.dialect), "sql") if any(term.is_whole(word) for term in terms)]
            matches = _all(len(segment.rows), value=bool(words))
        elif name == "tag":
            matches = _all(len(segment.rows), value=False)
        else:
            continue
        passed = matches if passed is None else pc.and_(passed, matches)
    return passed


def _any_whole(texts: pa.Array, terms: Sequence[Term]) -> pa.Array:
    passed = is_whole(texts, terms[0])
    for term in terms[1:]:
        passed = pc.or_(passed, is_whole(texts, term))
    return passed


def _is_type(kind: str, terms: Sequence[Term] | None) -> bool:
    return terms is None or any(term.is_whole(folded(kind)) for term in terms)


def _at(indices: pa.Array, of_places: pa.Array, position: int, most: int) -> list[int]:
    return indices.filter(pc.equal(of_places, position)).slice(0, most).to_pylist()


def _counts(codes: pa.Array) -> dict[int, int]:
    counted = pc.value_counts(codes)
    return {entry["values"]: entry["counts"] for entry in counted.to_pylist()}


def _count(mask: pa.Array) -> int:
    return pc.sum(mask).as_py() or 0


def _all(rows: int, *, value: bool = True) -> pa.Array:
    return pa.repeat(pa.scalar(value), rows)


@dataclass(slots=True)
class _LoadedScope:
    """A scope in memory: the rows as first read (`base`), and the rows changed since then (`overlay`)."""

    epoch: int
    version: int
    base: IndexSegment
    changed: dict[int, model.ObjectRow] = field(default_factory=dict[int, model.ObjectRow])
    overlay: IndexSegment | None = None
    alive: pa.Array | None = None

    @property
    def size_bytes(self) -> int:
        overlay = self.overlay.size_bytes if self.overlay else 0
        return self.base.size_bytes + overlay + sum(600 + len(row.columns or "") for row in self.changed.values())


class IndexViews:
    """Caches the views of scopes. Above 256 MiB, evicts the least recently used views."""

    def __init__(self, records: MetadataIndexRecords, threads: Executor) -> None:
        self._records = records
        self._threads = threads
        self._loaded = LruCache[int, _LoadedScope](_MAX_BYTES, weigh=lambda loaded: loaded.size_bytes, min_values=1)
        self._reading: dict[int, asyncio.Lock] = {}

    async def of(self, scope: model.Scope, dialect: str) -> Sequence[View]:
        """Return views of a scope that are at least as recent as `scope`. Raises DatabaseUnavailable."""
        async with self._reading.setdefault(scope.id, asyncio.Lock()):
            loaded = self._loaded.get(scope.id)
            if loaded is None or loaded.epoch != scope.epoch:
                loaded = await self._read(scope)
            elif loaded.version < scope.version:
                loaded = await self._catch_up(loaded, scope)
            for dropped in self._loaded.put(scope.id, loaded):
                self._reading.pop(dropped, None)
        connector = scope.key.connector
        views = [View(loaded.base, connector, dialect, loaded.alive)]
        return [*views, View(loaded.overlay, connector, dialect)] if loaded.overlay else views

    async def _read(self, scope: model.Scope) -> _LoadedScope:
        rows = [row async for portion in self._records.read(scope.id, after_version=-1) for row in portion]
        segment = await asyncio.get_running_loop().run_in_executor(self._threads, build, rows)
        return _LoadedScope(scope.epoch, scope.version, segment)

    async def _catch_up(self, loaded: _LoadedScope, scope: model.Scope) -> _LoadedScope:
        changed = dict(loaded.changed)
        async for portion in self._records.read(scope.id, after_version=loaded.version):
            changed.update({row.id: row for row in portion})
            if len(changed) > max(_OVERLAY_ROWS, len(loaded.base.rows) // 10):
                return await self._read(scope)
        return await asyncio.get_running_loop().run_in_executor(self._threads, _with_overlay, loaded, scope, changed)


def _with_overlay(loaded: _LoadedScope, scope: model.Scope, changed: dict[int, model.ObjectRow]) -> _LoadedScope:
    dead = {row for one in changed if (row := loaded.base.row_numbers.get(one)) is not None}
    alive = pa.array([place not in dead for place in range(len(loaded.base.rows))], pa.bool_())
    return _LoadedScope(loaded.epoch, scope.version, loaded.base, changed, build(list(changed.values())), alive)


@dataclass(frozen=True, slots=True, eq=False)
class IndexSource:
    """Searches the index. `refresh` is None if the index is disabled."""

    records: MetadataIndexRecords
    connectors: Connectors
    views: IndexViews
    refresh: IndexRefresh | None
    threads: FairThreads

    async def search(self, user: User, search: model.Search) -> model.SourceAnswer:
        """Search the rows of all connectors that the caller may currently use.

        Raises PermissionDenied, SourceNotConfigured, DatabaseUnavailable.
        """
        if not user.may(METADATA):
            raise errors.PermissionDenied("You may not search metadata.")
        if self.refresh is None:
            raise errors.SourceNotConfigured("The metadata index is disabled.")
        connectors_by_key: dict[model.ScopeKey, Connector] = {}
        for connector in self.connectors.visible(user):
            if search.dialects and connector.dialect not in search.dialects:
                continue
            if search.connectors and connector.key not in search.connectors:
                continue
            key = scope_key(self.connectors, user, connector)
            if key is not None:
                connectors_by_key[key] = connector
                if key.user_id is not None:
                    self.refresh.start(user, connector, key)
        scopes = await self.records.scopes(list(connectors_by_key))
        views: list[View] = []
        for scope in scopes:
            views += await self.views.of(scope, connectors_by_key[scope.key].dialect)
        truncated = any(scope.truncated for scope in scopes)
        return await self.threads.run(user.id, partial(_search, search, views, truncated))


def _search(search: model.Search, views: Sequence[View], truncated: bool, stop: Stop) -> model.SourceAnswer:
    view_matches = [ViewMatches(view, search, stop) for view in views]
    facets: dict[model.FacetName, dict[str, int]] = {facet: {} for facet in search.facets}
    for facet, counts in facets.items():
        for one in view_matches:
            stop.check()
            for value, number in one.facet(facet).items():
                counts[value] = counts.get(value, 0) + number
    firsts = heapq.merge(*(one.first(search.reach, number) for number, one in enumerate(view_matches)))
    hits = [hit for hit, _ in zip(firsts, range(search.reach), strict=False)]
    return model.SourceAnswer(
        matches=[model.Match(hit.position, _record(hit, views[hit.view].dialect)) for hit in hits],
        total=sum(one.total for one in view_matches),
        facets=facets,
        truncated=truncated,
        message="Some data sources contain more objects than are indexed." if truncated else "",
    )


def _record(hit: Hit, dialect: str) -> model.Record:
    row = hit.row
    parts = [part for part in (row.database, row.name, hit.column) if part]
    path, name = ".".join(parts), parts[-1] if parts else ""
    is_database = row.kind == model.DATABASE
    return model.Record(
        original_name=path,
        name=name,
        type=FIELD if hit.column else row.kind,
        source_type=dialect.upper(),
        identity=f"{hit.connector}:{path}",
        parent_path="" if is_database else "/" + "/".join(parts[:-1]),
        description=hit.comment,
        owner=row.owner,
        last_modified=row.modified_at,
        connector=hit.connector,
        dialect=dialect,
        path=tuple(parts),
    )
