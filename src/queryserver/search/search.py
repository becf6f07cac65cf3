"""The metadata search: all sources at once, in one order (Contract platform 8.1)."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

from queryserver.errors.base import (
    DatabaseUnavailable,
    InvalidParameter,
    PermissionDenied,
    QueryServerError,
    configured,
)
from queryserver.errors.statements import (
    CatalogOutOfReach,
    CatalogUnavailable,
    SourceNotConfigured,
    catalog_not_configured,
    catalog_not_supported,
)
from queryserver.identity.model import METADATA, User
from queryserver.platform.metrics import UNMEASURED, SearchMetrics
from queryserver.platform.threads import FairThreads
from queryserver.search.model import (
    AGES,
    MAX_REACH,
    Catalog,
    FacetName,
    FoundDocument,
    Match,
    Record,
    Search,
    SearchSource,
    SourceAnswer,
    SourceName,
    age_limits,
)
from queryserver.search.query_language import Query, Term, folded, parse_query
from queryserver.search.repository import DocumentRecords

_SOURCE_S = 30.0
_SPARE_S = 10.0
"""For a source that ends by itself: it tells what it found until then, which a limit from outside would lose."""
_LOCAL = frozenset({"", "local"})
_DUMMY = "dummy"


@runtime_checkable
class BoundedSource(Protocol):
    """A source that ends a search by itself after a time of its settings, with what it found."""

    @property
    def longest_s(self) -> float:
        """That time."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """One call. `sources` empty: all; `interface` None: that of the settings; `facets` as written."""

    text: str = ""
    sources: tuple[SourceName, ...] = ()
    dialects: frozenset[str] = frozenset()
    facets: tuple[str, ...] = ()
    interface: str | None = None
    limit: int = 25
    offset: int = 0
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class SourceReport:
    """How a source answered."""

    ok: bool
    matched: int = 0
    truncated: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """One page of what was found; facets are highest first. `search` is what was asked, for marking matches."""

    search: Search
    records: Sequence[Record]
    facets: Mapping[FacetName, Mapping[str, int]]
    total: int
    sources: Mapping[SourceName, SourceReport]
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SearchParts:
    """`sources` that are missing are not configured. `catalogs`: by name; None: it lacks its settings."""

    sources: Mapping[SourceName, SearchSource]
    catalogs: Mapping[str, Catalog | None] = field(default_factory=dict[str, "Catalog | None"])
    interface: str = ""
    metrics: SearchMetrics = UNMEASURED


class MetadataSearch:
    """Asks all sources of a call side by side; one that fails leaves the others."""

    def __init__(self, parts: SearchParts) -> None:
        self._parts = parts

    async def search(self, user: User, asked: Asked) -> SearchResult:
        """Raises InvalidParameter, catalog_not_configured, catalog_not_supported; CatalogUnavailable when all sources
        failed, PermissionDenied when the caller may search none of them.
        """
        search, warnings = _search_of(asked)
        sources = asked.sources or tuple(SourceName)
        names = [name for name in SourceName if name in sources]
        interface = self._parts.interface if asked.interface is None else asked.interface.strip().lower()
        if interface in _LOCAL:
            answers = await self._local(user, search, names)
            records = _page(_merged(answers), search)
        else:
            answers, records = await self._by_catalog(user, search, names, interface)
        _require_one(answers)
        found = [answer for answer in answers.values() if isinstance(answer, SourceAnswer)]
        return SearchResult(
            search=search,
            records=records,
            facets=_facets(found, search, asked.prefix),
            total=sum(answer.total for answer in found),
            sources={name: _report(answer) for name, answer in answers.items()},
            warnings=warnings,
        )

    async def _local(self, user: User, search: Search, names: Sequence[SourceName]) -> "_Answers":
        async with asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(self._one(user, search, name)) for name in names}
        return {name: task.result() for name, task in tasks.items()}

    async def _one(self, user: User, search: Search, name: SourceName) -> SourceAnswer | QueryServerError:
        source = self._parts.sources.get(name)
        if source is None:
            return SourceNotConfigured()
        began = time.perf_counter()
        try:
            async with asyncio.timeout(limit_s(source)):
                return await source.search(user, search)
        except QueryServerError as error:
            return error
        except TimeoutError:
            return CatalogUnavailable("The source did not answer in time.")
        finally:
            self._parts.metrics.searched(name.value, time.perf_counter() - began)

    async def _by_catalog(
        self, user: User, search: Search, names: Sequence[SourceName], interface: str
    ) -> tuple["_Answers", Sequence[Record]]:
        """Sources one after the other, documents first: the order within each is the catalogue's own."""
        if interface not in self._parts.catalogs:
            known = configured(sorted({*_LOCAL, *self._parts.catalogs} - {""}), word="Known")
            raise catalog_not_supported(f"There is no adapter for the catalogue {interface[:40]}.{known}")
        catalog = self._parts.catalogs[interface]
        if catalog is None:
            raise catalog_not_configured("metadata.catalog.api_url is not set.")
        answers: dict[SourceName, SourceAnswer | QueryServerError] = {}
        records: list[Record] = []
        offset, left = search.offset, search.limit
        asking = _Asking(catalog, self._parts.metrics)
        for name in names:
            if name is SourceName.DOCUMENTS and interface != _DUMMY:
                answer = await self._one(user, search, name)
                if isinstance(answer, SourceAnswer):
                    answer = replace(answer, matches=answer.matches[offset : offset + left])
            elif interface != _DUMMY and not user.may(METADATA):
                answer = PermissionDenied("You may not search metadata.")
            else:
                answer = await asking.page(search, name, offset, left)
            answers[name] = answer
            if isinstance(answer, SourceAnswer):
                page = [match.record for match in answer.matches][:left]
                records += page
                offset, left = max(offset - answer.total, 0), left - len(page)
        return answers, records


class _Asking:
    """What one call asks of a catalogue, one source after the other."""

    def __init__(self, catalog: Catalog, metrics: SearchMetrics) -> None:
        self._catalog = catalog
        self._metrics = metrics
        self._missing: CatalogOutOfReach | None = None
        self._has_answered = False

    async def page(self, search: Search, name: SourceName, offset: int, limit: int) -> SourceAnswer | QueryServerError:
        """A page of a source. Where nobody answered once, nobody is waited for again."""
        if self._missing is not None:
            return self._missing
        if search.lists_tags and self._has_answered:
            return SourceAnswer()  # the list is of all sources
        began = time.perf_counter()
        try:
            answer = await self._catalog.page(search, name, offset=offset, limit=limit)
        except QueryServerError as error:
            self._missing = error if isinstance(error, CatalogOutOfReach) else None
            return error
        finally:
            self._metrics.searched(name.value, time.perf_counter() - began)
        self._has_answered = True
        return answer


def limit_s(source: SearchSource) -> float:
    """How long a source may take before it counts as failed."""
    return max(_SOURCE_S, source.longest_s + _SPARE_S) if isinstance(source, BoundedSource) else _SOURCE_S


_Answers = Mapping[SourceName, SourceAnswer | QueryServerError]


def _search_of(asked: Asked) -> tuple[Search, list[str]]:
    if asked.offset + asked.limit > MAX_REACH:
        raise InvalidParameter(f"offset and limit must add up to at most {MAX_REACH}.")
    known = {facet.value: facet for facet in FacetName}
    unknown = sorted({facet for facet in asked.facets if facet not in known})
    search = Search(
        query=parse_query(asked.text),
        now=datetime.now(UTC),
        offset=asked.offset,
        limit=asked.limit,
        facets=frozenset(known[facet] for facet in asked.facets if facet in known),
        dialects=asked.dialects,
    )
    return search, [f"There is no facet {facet[:100]}." for facet in unknown]


def _merged(answers: _Answers) -> Iterator[Record]:
    """By position, then by source; sources give theirs in order."""
    order = list(SourceName)
    ranked = [
        (match.position, order.index(name), place, match.record)
        for name, answer in answers.items()
        if isinstance(answer, SourceAnswer)
        for place, match in enumerate(answer.matches)
    ]
    ranked.sort(key=lambda one: one[:3])
    return (record for *_, record in ranked)


def _page(records: Iterator[Record], search: Search) -> Sequence[Record]:
    return list(records)[search.offset : search.reach]


def _facets(answers: Sequence[SourceAnswer], search: Search, prefix: str) -> Mapping[FacetName, Mapping[str, int]]:
    """Over all sources; values that begin with `prefix`, highest count first."""
    merged: dict[FacetName, dict[str, int]] = {facet: {} for facet in FacetName if facet in search.facets}
    for answer in answers:
        for facet, counts in answer.facets.items():
            if facet in merged:
                for value, number in counts.items():
                    merged[facet][value] = merged[facet].get(value, 0) + number
    begin = prefix.casefold()
    return {
        facet: dict(
            sorted(
                (
                    (value, number)
                    for value, number in counts.items()
                    if (number or search.lists_tags) and value.casefold().startswith(begin)
                ),
                key=lambda one: (-one[1], one[0]),
            )
        )
        for facet, counts in merged.items()
    }


def _require_one(answers: _Answers) -> None:
    """Raises when no source answered and none is merely missing."""
    failures = [one for one in answers.values() if isinstance(one, QueryServerError)]
    if len(failures) < len(answers) or any(isinstance(one, SourceNotConfigured) for one in failures):
        return
    for kind in (PermissionDenied, DatabaseUnavailable):
        if all(isinstance(one, kind) for one in failures):
            raise failures[-1]
    raise CatalogUnavailable(failures[-1].message)


def _report(answer: SourceAnswer | QueryServerError) -> SourceReport:
    if isinstance(answer, QueryServerError):
        return SourceReport(ok=False, message=answer.message)
    return SourceReport(True, answer.total, answer.truncated, answer.message)


_TYPE = "HUE"
_NAME_CHARACTERS = 100


class DocumentSource:
    """See `interfaces.search.SearchSource`. Needs no right: everybody may search what they sent."""

    def __init__(self, records: DocumentRecords, threads: FairThreads) -> None:
        self._records = records
        self._threads = threads

    async def search(self, user: User, search: Search) -> SourceAnswer:
        if not _passes(user, search.query):
            return SourceAnswer(facets={facet: {} for facet in search.facets})
        ages = age_limits(search.now)
        found = await self._records.search(user.id, search.query.terms, most=search.reach, ages=ages)
        facets = {
            FacetName.TYPE: {_TYPE: found.total},
            FacetName.OWNER: {user.username: found.total},
            FacetName.TAGS: {},
            FacetName.LAST_MODIFIED: _by_age(found.total, list(found.newer)),
        }
        return SourceAnswer(
            matches=await self._threads.run(user.id, lambda _: _matches(user, found.first)),
            total=found.total,
            facets={facet: facets[facet] for facet in search.facets},
        )


def _matches(user: User, found: Sequence[FoundDocument]) -> Sequence[Match]:
    """For a thread: there may be 10,000."""
    return [Match(one.position, _record(user, one)) for one in found]


def _passes(user: User, query: Query) -> bool:
    """Whether documents pass the filters; they have no tags and lie in no database."""
    values = {"type": [_TYPE], "owner": [user.username], "source": [_TYPE, "documents"]}
    return all(
        any(_is(term, value) for term in terms for value in values.get(name, ()))
        for name, terms in query.filters.items()
    )


def _is(term: Term, value: str) -> bool:
    return term.is_whole(folded(value))


def _by_age(total: int, newer: list[int]) -> dict[str, int]:
    """Each counts once: `newer` says how many are not older than each limit."""
    bounds = [0, *newer, total]
    return {age: bounds[place + 1] - bounds[place] for place, age in enumerate(AGES)}


def _record(user: User, found: FoundDocument) -> Record:
    name = " ".join(found.head.split())[:_NAME_CHARACTERS]
    return Record(
        original_name=name,
        name=name,
        type=_TYPE,
        source_type=_TYPE,
        identity=str(found.id),
        owner=user.username,
        created=found.recorded_at,
        last_modified=found.recorded_at,
        connector=found.connector,
        dialect=found.dialect,
        link=f"/editor?editor={found.history_id}",
        doc_type=f"query-{found.dialect}",
        uuid=str(found.id),
        parent_uuid=found.parent_uuid or None,
        text=found.excerpt,
    )
