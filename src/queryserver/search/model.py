"""Defines the model of the metadata search: requests, records, sources and index objects (Contract platform 8)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from queryserver.identity.model import User
from queryserver.search.query_language import NameFit, Query, Term, folded

MAX_REACH = 10_000
"""Maximum value of `offset + limit`."""


class SourceName(StrEnum):
    """Search sources. Their order ranks results that match equally well."""

    DOCUMENTS = "documents"
    SQL = "sql"
    HDFS = "hdfs"
    S3 = "s3"


class FacetName(StrEnum):
    TYPE = "type"
    OWNER = "owner"
    TAGS = "tags"
    LAST_MODIFIED = "lastModified"


@dataclass(frozen=True, slots=True)
class Record:
    """A search result (Contract platform 8.2), without the two HTML texts that are derived from it.

    `text` is searched in addition to name, description and tags; only an excerpt around a match is shown. For a
    document, it contains the statement. `further` contains additional response keys from an external catalog. `path` is
    the names of the database, the table and the column of an indexed object, as far as it has them.
    """

    original_name: str
    name: str
    type: str
    source_type: str
    identity: str
    parent_path: str = ""
    description: str = ""
    owner: str = ""
    tags: tuple[str, ...] = ()
    created: datetime | None = None
    last_modified: datetime | None = None
    connector: str | None = None
    dialect: str | None = None
    properties: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    custom_properties: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    link: str = ""
    doc_type: str | None = None
    uuid: str | None = None
    parent_uuid: str | None = None
    text: str = ""
    further: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Match:
    """A record and how well it matches: the worst `NameFit` of all terms, or EXACT if there are no terms."""

    position: int
    record: Record


Facets = Mapping[FacetName, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """The result of one source.

    `matches` are the first matches, as many as requested, in the order of Contract platform 8.3: by position, then
    `last_modified` (newest first, null last), then `original_name`. The order is stable while nothing changes. `total`
    and `facets` count all matches. If `truncated` is set, a limit ended the search; `message` may explain which.
    """

    matches: Sequence[Match] = ()
    total: int = 0
    facets: Facets = field(default_factory=lambda: MappingProxyType({}))
    truncated: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True)
class Search:
    """A search. Each source returns its first `offset + limit` matches; the page is selected from them later.

    `facets` names the facets to count. `dialects` and `connectors` (keys) restrict the source sql; empty means all.
    Ages are relative to `now`.
    """

    query: Query
    now: datetime
    offset: int = 0
    limit: int = 25
    facets: frozenset[FacetName] = frozenset()
    dialects: frozenset[str] = frozenset()
    connectors: frozenset[str] = frozenset()

    @property
    def reach(self) -> int:
        return self.offset + self.limit

    @property
    def lists_tags(self) -> bool:
        """Whether all classifications of the catalog are requested (Contract platform 8.5)."""
        return self.query.is_empty and self.facets == frozenset({FacetName.TAGS})


AGES = ("today", "week", "month", "year", "older")
"""The values of the facet lastModified."""


def age_limits(now: datetime) -> tuple[datetime, ...]:
    """Return the start times of `today` (midnight UTC), `week`, `month` and `year`."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight, *(now - timedelta(days=days) for days in (7, 30, 365))


def age(moment: datetime | None, now: datetime) -> str:
    """Return the lastModified facet value of a time. None counts as `older`."""
    if moment is None:
        return AGES[-1]
    return next((word for word, limit in zip(AGES, age_limits(now), strict=False) if moment >= limit), AGES[-1])


def position_of(terms: Sequence[Term], name: str) -> int:
    """Return the worst `NameFit` of all terms for a name."""
    plain = folded(name)
    return max((term.position(plain) for term in terms), default=NameFit.EXACT)


def best_first(match: Match) -> tuple[int, bool, float, str, str]:
    """Return the sort key for the matches of one source (order of Contract platform 8.3). The identity breaks ties."""
    moment = match.record.last_modified
    newest = -moment.timestamp() if moment else 0.0
    return match.position, moment is None, newest, match.record.original_name, match.record.identity


def count_facets(records: Sequence[Record], search: Search) -> dict[FacetName, dict[str, int]]:
    """Count the requested facets over all records. Empty values are not counted."""
    counted: dict[FacetName, dict[str, int]] = {facet: {} for facet in search.facets}
    for record in records:
        values = {
            FacetName.TYPE: (record.type,),
            FacetName.OWNER: (record.owner,),
            FacetName.TAGS: record.tags,
            FacetName.LAST_MODIFIED: (age(record.last_modified, search.now),),
        }
        for facet, counts in counted.items():
            for value in values[facet]:
                if value:
                    counts[value] = counts.get(value, 0) + 1
    return counted


class SearchSource(Protocol):
    """A source of search results, such as the metadata index or a file store."""

    async def search(self, user: User, search: Search) -> SourceAnswer:
        """Return the first matches that the user may see.

        Raises PermissionDenied if the user may not search this source. Raises SourceNotConfigured if a store or setting
        that the source needs is missing; the response contains its message. Raises other QueryServerErrors on failure.
        """
        ...


_KEPT_SCHEMES = frozenset({"s3a", "s3", "s3n", "gs", "abfs", "abfss", "ofs", "o3fs"})


def storage_path(location: str) -> str:
    """Return the storage path of a location, or an empty string if the location is not in a supported store.

    For HDFS, this is the path alone: `/warehouse/x` for `hdfs://nn/warehouse/x`. For other stores, scheme and bucket
    are kept.
    """
    scheme, separator, rest = location.partition("://")
    if separator and scheme.lower() in _KEPT_SCHEMES:
        return f"{scheme.lower()}://{rest}"
    if scheme.lower() in {"hdfs", "webhdfs", "viewfs"} and separator:
        return urlsplit(location).path or "/"
    # HDFS paths are also written as `hdfs:/x`, or without a scheme.
    path = location.removeprefix("hdfs:")
    return path if path.startswith("/") and not path.startswith("//") else ""


DATABASE, TABLE, VIEW = "DATABASE", "TABLE", "VIEW"
UNIT, RECORD = "\x1f", "\x1e"
"""Separators: UNIT between the name and comment of a column, RECORD between columns."""


@dataclass(frozen=True, slots=True)
class ScopeKey:
    """A data source as seen by one user, or by all users if `user_id` is None.

    `address` is a digest of the data source's address. Rows that were read from a different address are ignored.
    """

    connector: str
    user_id: int | None
    address: bytes
    is_stored: bool


@dataclass(frozen=True, slots=True)
class Scope:
    """An indexed data source as seen by one or all users. `version` counts object changes, `epoch` removals."""

    id: int
    key: ScopeKey
    version: int
    epoch: int
    truncated: bool


class ScopeClaim(NamedTuple):
    """The claim of one process on a scope. It becomes invalid as soon as another process claims the scope."""

    scope_id: int
    owner: str
    fence: int


@dataclass(frozen=True, slots=True)
class IndexedColumn:
    name: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class IndexedObject:
    """A database (with an empty `name`), table or view. A value of None is unknown and leaves the index unchanged."""

    kind: str
    database: str
    name: str
    comment: str | None = None
    owner: str | None = None
    modified_at: datetime | None = None
    columns: Sequence[IndexedColumn] | None = None
    columns_cut: bool = False


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """A stored object.

    `columns` contains one entry `name U+001F comment` per column, sorted and joined by U+001E; it is None if unknown.
    """

    id: int
    kind: str
    database: str
    name: str
    comment: str
    owner: str
    modified_at: datetime | None
    columns: str | None
