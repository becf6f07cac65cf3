"""An empty catalogue, for trying clients out (Contract platform 8.5)."""

from queryserver.domain.searching import Search, SourceAnswer, SourceName


class EmptyCatalog:
    """See `interfaces.search.Catalog`."""

    async def page(self, search: Search, source: SourceName, *, offset: int, limit: int) -> SourceAnswer:
        """Nothing, whatever is asked."""
        del search, source, offset, limit
        return SourceAnswer()
