"""Where a metadata search looks (Contract platform 8.4, 8.5)."""

from typing import Protocol

from queryserver.domain.searching import Search, SourceAnswer, SourceName
from queryserver.domain.user import User


class SearchSource(Protocol):
    """One of the sources. A source that needs a store or a setting which is missing raises SourceNotConfigured."""

    async def search(self, user: User, search: Search) -> SourceAnswer:
        """What the user may find there; see `SourceAnswer` for the order.

        Raises PermissionDenied (the user may not search here), SourceNotConfigured (its message is told), and any other
        QueryServerError when it fails.
        """
        ...


class Catalog(Protocol):
    """An external catalogue that is asked instead of the sources sql, hdfs and s3."""

    async def page(self, search: Search, source: SourceName, *, offset: int, limit: int) -> SourceAnswer:
        """Matches [offset, offset + limit) of one source, in the catalogue's own order; a `limit` of 0 only counts.

        Those of `search` are of the merged answer and mean nothing here. Raises CatalogDenied (the catalogue refuses
        our login), CatalogUnavailable.
        """
        ...
