"""Implements the metadata search: queries all sources concurrently and merges the results (Contract platform 8.1)."""

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from queryserver import errors
from queryserver.identity.model import METADATA, User
from queryserver.platform.metrics import NO_METRICS, Metrics
from queryserver.search import model
from queryserver.search.query_language import parse_query

if TYPE_CHECKING:
    from queryserver.search.atlas import AtlasCatalog

_SOURCE_S = 30.0
_SPARE_S = 10.0  # added to a source's own time limit, because a source that is canceled loses its matches
_LOCAL = frozenset({"", "local"})
_ATLAS = "atlas"
_DUMMY = "dummy"  # the setting for a catalog without content

_Answers = Mapping[model.SourceName, model.SourceAnswer | errors.QueryServerError]


@runtime_checkable
class BoundedSource(Protocol):
    """A source that ends a search by itself after `time_limit_s` and returns the matches found until then."""

    @property
    def time_limit_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class SearchParameters:
    """The parameters of a search call.

    Empty `sources` means all sources. `interface=None` uses the interface from the settings. `facets` are unvalidated
    names.
    """

    text: str = ""
    sources: tuple[model.SourceName, ...] = ()
    dialects: frozenset[str] = frozenset()
    connectors: frozenset[str] = frozenset()
    facets: tuple[str, ...] = ()
    interface: str | None = None
    limit: int = 25
    offset: int = 0
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class SourceReport:
    ok: bool
    matched: int = 0
    truncated: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A page of matches. Facet values with the highest counts come first. `search` contains the terms to highlight."""

    search: model.Search
    records: Sequence[model.Record]
    facets: Mapping[model.FacetName, Mapping[str, int]]
    total: int
    sources: Mapping[model.SourceName, SourceReport]
    warnings: Sequence[str] = ()


@dataclass(slots=True, eq=False)
class MetadataSearch:
    """Searches all sources of a call concurrently. The failure of one source does not affect the others.

    Sources missing in `sources` are not configured. `atlas` is None if it is not configured.
    """

    sources: Mapping[model.SourceName, model.SearchSource]
    atlas: "AtlasCatalog | None" = None
    interface: str = ""
    metrics: Metrics = NO_METRICS

    async def search(self, user: User, parameters: SearchParameters) -> SearchResult:
        """Search all sources.

        Raises InvalidParameter, catalog_not_configured, catalog_not_supported. If all sources failed, raises
        CatalogUnavailable, DatabaseUnavailable, or PermissionDenied if the caller may not search any of them.
        """
        search, warnings = _search_of(parameters)
        names = [name for name in model.SourceName if not parameters.sources or name in parameters.sources]
        interface = self.interface if parameters.interface is None else parameters.interface.strip().lower()
        if interface in _LOCAL:
            async with asyncio.TaskGroup() as group:
                tasks = {name: group.create_task(self._source(user, search, name)) for name in names}
            answers: _Answers = {name: task.result() for name, task in tasks.items()}
            records = _merge(answers)[search.offset : search.reach]
        elif interface == _DUMMY:
            answers, records = dict.fromkeys(names, model.SourceAnswer()), []
        else:
            answers, records = await self._by_catalog(user, search, names, interface)
        _require_one(answers)
        successful = [answer for answer in answers.values() if isinstance(answer, model.SourceAnswer)]
        return SearchResult(
            search=search,
            records=records,
            facets=_facets(successful, search, parameters.prefix),
            total=sum(answer.total for answer in successful),
            sources={
                name: SourceReport(True, one.total, one.truncated, one.message)
                if isinstance(one, model.SourceAnswer)
                else SourceReport(ok=False, message=one.message)
                for name, one in answers.items()
            },
            warnings=warnings,
        )

    async def _source(
        self, user: User, search: model.Search, name: model.SourceName
    ) -> model.SourceAnswer | errors.QueryServerError:
        source = self.sources.get(name)
        if source is None:
            return errors.SourceNotConfigured()
        return await self._answered(name, source.search(user, search), limit_s(source))

    async def _answered(
        self, name: model.SourceName, searching: Awaitable[model.SourceAnswer], within_s: float | None
    ) -> model.SourceAnswer | errors.QueryServerError:
        started_at = time.perf_counter()
        try:
            async with asyncio.timeout(within_s):
                return await searching
        except errors.QueryServerError as error:
            return error
        except TimeoutError:
            return errors.CatalogUnavailable("The source did not respond in time.")
        finally:
            self.metrics.searches.labels(name.value).observe(time.perf_counter() - started_at)

    async def _by_catalog(
        self, user: User, search: model.Search, names: Sequence[model.SourceName], interface: str
    ) -> tuple[_Answers, Sequence[model.Record]]:
        """Search the sources one after another, and keep the order of their matches.

        Once the catalog is unreachable, skip the remaining sources that it serves.
        """
        if interface != _ATLAS:
            configured = errors.known_names([_ATLAS, _DUMMY, "local"], word="Supported")
            raise errors.catalog_not_supported(f"The catalog {interface[:40]} is not supported.{configured}")
        if self.atlas is None:
            raise errors.catalog_not_configured("metadata.catalog.api_url is not set.")
        answers: dict[model.SourceName, model.SourceAnswer | errors.QueryServerError] = {}
        records: list[model.Record] = []
        offset, remaining = search.offset, search.limit
        out_of_reach: errors.CatalogUnreachable | None = None
        has_answered = False
        for name in names:
            if name is model.SourceName.DOCUMENTS:
                answer = await self._source(user, search, name)
                if isinstance(answer, model.SourceAnswer):
                    answer = replace(answer, matches=answer.matches[offset : offset + remaining])
            elif not user.may(METADATA):
                answer = errors.PermissionDenied("You may not search metadata.")
            elif out_of_reach is not None:
                answer = out_of_reach
            elif search.lists_tags and has_answered:
                answer = model.SourceAnswer()  # the first list of tags already covers all sources
            else:
                answer = await self._answered(name, self.atlas.page(search, name, offset=offset, limit=remaining), None)
                out_of_reach = answer if isinstance(answer, errors.CatalogUnreachable) else None
                has_answered = has_answered or isinstance(answer, model.SourceAnswer)
            answers[name] = answer
            if isinstance(answer, model.SourceAnswer):
                page = [match.record for match in answer.matches][:remaining]
                records += page
                offset, remaining = max(offset - answer.total, 0), remaining - len(page)
        return answers, records


def limit_s(source: model.SearchSource) -> float:
    return max(_SOURCE_S, source.time_limit_s + _SPARE_S) if isinstance(source, BoundedSource) else _SOURCE_S


def _search_of(parameters: SearchParameters) -> tuple[model.Search, list[str]]:
    """Return the search, and a warning for each unknown facet."""
    if parameters.offset + parameters.limit > model.MAX_REACH:
        raise errors.InvalidParameter(f"offset must be below {model.MAX_REACH}.")
    known = {facet.value: facet for facet in model.FacetName}
    search = model.Search(
        query=parse_query(parameters.text),
        now=datetime.now(UTC),
        offset=parameters.offset,
        limit=parameters.limit,
        facets=frozenset(known[facet] for facet in parameters.facets if facet in known),
        dialects=parameters.dialects,
        connectors=parameters.connectors,
    )
    return search, [f"Facet {facet[:100]} does not exist." for facet in sorted(set(parameters.facets) - known.keys())]


def _merge(answers: _Answers) -> Sequence[model.Record]:
    """Merge by position, then by source. The matches of each source are already in order."""
    order = list(model.SourceName)
    ranked = [
        (match.position, order.index(name), number, match.record)
        for name, answer in answers.items()
        if isinstance(answer, model.SourceAnswer)
        for number, match in enumerate(answer.matches)
    ]
    return [record for *_, record in sorted(ranked, key=lambda one: one[:3])]


def _facets(
    answers: Sequence[model.SourceAnswer], search: model.Search, prefix: str
) -> Mapping[model.FacetName, Mapping[str, int]]:
    """Return the facets of all sources: only values that start with `prefix`, highest count first."""
    begin = prefix.casefold()
    merged: dict[model.FacetName, dict[str, int]] = {facet: {} for facet in model.FacetName if facet in search.facets}
    for facet, sums in merged.items():
        for answer in answers:
            for value, number in answer.facets.get(facet, {}).items():
                if value.casefold().startswith(begin):
                    sums[value] = sums.get(value, 0) + number
        ordered = sorted(sums.items(), key=lambda one: (-one[1], one[0]))
        merged[facet] = {value: number for value, number in ordered if number or search.lists_tags}
    return merged


def _require_one(answers: _Answers) -> None:
    """Raise an error if all sources failed. Does nothing if one of them is merely not configured."""
    failures = [answer for answer in answers.values() if isinstance(answer, errors.QueryServerError)]
    if len(failures) < len(answers) or any(isinstance(one, errors.SourceNotConfigured) for one in failures):
        return
    for kind in (errors.PermissionDenied, errors.DatabaseUnavailable):
        if all(isinstance(one, kind) for one in failures):
            raise failures[-1]
    raise errors.CatalogUnavailable(failures[-1].message)
