"""What the service database tells about all servers."""

from queryserver.db.database import Database
from queryserver.interfaces.metrics import ServiceFacts

_ACTIVE = """
select dialect, state, count(*) as statements from statements where state in ('waiting', 'running') group by 1, 2
"""

_RESULTS = "select coalesce(sum(size_bytes), 0)::bigint from statements where state = 'available'"


class ServiceFactsReader:
    """Asks the service database. Both read partial indexes and no more rows than there are active or stored."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self) -> ServiceFacts:
        """The facts of this moment. Raises DatabaseUnavailable."""
        active = await self._database.fetch(_ACTIVE)
        return ServiceFacts(
            results_bytes=await self._database.value(_RESULTS),
            statements={(row["dialect"], row["state"]): row["statements"] for row in active},
        )
