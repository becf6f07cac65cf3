"""The source documents: the caller's own history."""

from collections.abc import Sequence

from queryserver.db.search import DocumentRecords
from queryserver.domain.search_terms import Query, Term, folded
from queryserver.domain.searching import AGES, FacetName, Match, Record, Search, SourceAnswer, age_limits
from queryserver.domain.user import User
from queryserver.interfaces.search_documents import FoundDocument
from queryserver.services.threads import FairThreads

_TYPE = "HUE"
_NAME_CHARACTERS = 100


class DocumentSource:
    """See `interfaces.search.SearchSource`. Needs no right: everybody may search what they sent."""

    def __init__(self, records: DocumentRecords, threads: FairThreads) -> None:
        self._records = records
        self._threads = threads

    async def search(self, user: User, search: Search) -> SourceAnswer:
        """See the Protocol."""
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
