"""Implements the source `documents`: saved queries beside history entries (Contract platform 8.4, documents 9).

A search scans the texts of the documents that the caller may see. If only few documents contain the trigrams of the
terms, it scans only those (ADR 93).
"""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from queryserver.documents.lists import PLAN_FOR_VALUES, candidates
from queryserver.documents.model import type_of
from queryserver.documents.repository import GRANTED
from queryserver.identity.model import User
from queryserver.platform.database import Database
from queryserver.platform.threads import FairThreads
from queryserver.search.model import (
    AGES,
    FacetName,
    Match,
    Record,
    Search,
    SearchSource,
    SourceAnswer,
    age_limits,
    best_first,
)
from queryserver.search.query_language import folded
from queryserver.search.sources import HistorySource, matching, search_arguments

_TYPE = "HUE"
_VALUES = {"type": (_TYPE,), "source": (_TYPE, "documents")}
"""Values of the filters that are the same for all documents."""
_TEXT = "(d.name || E'\\n' || d.description || E'\\n' || array_to_string(d.tags, E'\\n') || E'\\n' || d.statement)"
_FILTERS = {
    "owner": "lower(u.username) like {}",
    "tag": "exists (select from unnest(d.tags) as tag where lower(tag) like {})",
}

# `offset 0` keeps the conditions out of `visible`, so that only texts that the user may see are searched.
_SEARCH = f"""
with visible as (
    select * from (
        select d.* from documents d where d.owner_id = $1 and d.trashed_at is null{{among}}
        union all
        select d.* from ({GRANTED}) granted (id) join documents d using (id)
        where d.owner_id <> $1 and d.trashed_at is null{{among}}
    ) one offset 0
),
ranked as materialized (
    select d.id, d.modified_at, u.username, d.tags, {{position}} as position
    from visible d join users u on u.id = d.owner_id
    where ($7::text[] is null or d.connector = any($7)){{filters}}{{fits}}
),
counted as (
    select count(*) as total, array[{{newer}}]::bigint[] as newer, {{owners}} as owners, {{tags}} as tags from ranked
),
page as materialized (
    select * from ranked order by position, modified_at desc, id desc limit $3
)
select d.uuid, d.name, d.description, d.connector, d.dialect, d.tags, d.created_at, d.modified_at, page.username,
    page.position, counted.total, counted.newer, counted.owners, counted.tags as tag_counts,
    substr({_TEXT}, greatest(strpos(translate(lower({_TEXT} collate "C"), $5, $6), $2) - 60, 1), 400) as excerpt
from counted
left join (page join documents d using (id)) on true
order by page.position, page.modified_at desc, page.id desc
"""
_NONE = "'{}'::jsonb"
_OWNERS = """coalesce((
    select jsonb_object_agg(username, number) from (select username, count(*) as number from ranked group by 1) as one
), '{}')"""
_TAGS = """coalesce((
    select jsonb_object_agg(tag, number)
    from (select tag, count(*) as number from ranked, unnest(tags) as tag group by 1) as one
), '{}')"""


class SavedQuerySource:
    """Searches the documents that the caller owns or that are shared with the caller. Raises DatabaseUnavailable."""

    def __init__(self, database: Database, threads: FairThreads) -> None:
        self._database = database
        self._threads = threads

    async def search(self, user: User, search: Search) -> SourceAnswer:
        filters = search.query.filters
        if not filters.keys() <= _VALUES.keys() | _FILTERS.keys() or not all(
            any(term.is_whole(folded(value)) for term in filters.get(name, ()) for value in values)
            for name, values in _VALUES.items()
            if name in filters
        ):
            return SourceAnswer(facets={facet: {} for facet in search.facets})
        literals = [literal for term in search.query.terms for literal in term.literals]
        async with self._database.transaction() as connection:
            await connection.execute(PLAN_FOR_VALUES)
            ids = await candidates(connection, literals)
            rows = await connection.fetch(*_query(user, search, ids))
        total = rows[0]["total"]
        bounds = [0, *rows[0]["newer"], total]
        facets: dict[FacetName, Mapping[str, int]] = {
            FacetName.TYPE: {_TYPE: total},
            FacetName.OWNER: rows[0]["owners"],
            FacetName.TAGS: rows[0]["tag_counts"],
            FacetName.LAST_MODIFIED: {age: bounds[at + 1] - bounds[at] for at, age in enumerate(AGES)},
        }
        return SourceAnswer(
            # In a thread, because there may be 10,000 matches.
            matches=await self._threads.run(
                user.id, lambda _: [Match(row["position"], _record(row)) for row in rows if row["uuid"] is not None]
            ),
            total=total,
            facets={facet: facets[facet] for facet in search.facets},
        )


def _query(user: User, search: Search, ids: Sequence[int] | None) -> Sequence[Any]:
    """Return the SQL of a search and its arguments. Only the documents `ids` can match; None stands for all."""
    ages = age_limits(search.now)
    arguments = search_arguments(user, search, ages)
    filters = among = ""
    if ids is not None:
        arguments.append(ids)
        among = f" and d.id = any(${len(arguments)}::bigint[])"
    for name in sorted(search.query.filters.keys() & _FILTERS.keys()):
        choices: list[str] = []
        for term in search.query.filters[name]:
            arguments.append(term.like)
            choices.append(_FILTERS[name].format(f"${len(arguments)}::text"))
        filters += f" and ({' or '.join(choices)})"
    fits, position = matching(search.query.terms, arguments, text=_TEXT)
    newer = (f"count(*) filter (where modified_at >= ($4::timestamptz[])[{one + 1}])" for one in range(len(ages)))
    statement = _SEARCH.format(
        fits=fits,
        position=position,
        filters=filters,
        among=among,
        newer=", ".join(newer),
        owners=_OWNERS if FacetName.OWNER in search.facets else _NONE,
        tags=_TAGS if FacetName.TAGS in search.facets else _NONE,
    )
    return statement, *arguments


def _record(row: Any) -> Record:
    return Record(
        original_name=row["name"],
        name=row["name"],
        type=_TYPE,
        source_type=_TYPE,
        identity=str(row["uuid"]),
        description=row["description"],
        owner=row["username"],
        tags=tuple(row["tags"]),
        created=row["created_at"],
        last_modified=row["modified_at"],
        connector=row["connector"],
        dialect=row["dialect"],
        link=f"/editor?editor={row['uuid']}",
        doc_type=type_of(row["dialect"]),
        uuid=str(row["uuid"]),
        text=row["excerpt"],
    )


class DocumentSource:
    """Searches history entries and saved queries as one source. Raises DatabaseUnavailable."""

    def __init__(self, database: Database, threads: FairThreads) -> None:
        self._sources: Sequence[SearchSource] = (SavedQuerySource(database, threads), HistorySource(database, threads))

    async def search(self, user: User, search: Search) -> SourceAnswer:
        answers = [await source.search(user, search) for source in self._sources]
        facets = {
            facet: dict(sum((Counter(answer.facets[facet]) for answer in answers), Counter[str]()))
            for facet in search.facets
        }
        # The matches of each source are in order. Among equals, saved queries come first.
        merged = heapq.merge(*(answer.matches for answer in answers), key=lambda match: best_first(match)[:3])
        return SourceAnswer(
            matches=[match for match, _ in zip(merged, range(search.reach), strict=False)],
            total=sum(answer.total for answer in answers),
            facets=facets,
        )
