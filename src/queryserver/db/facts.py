"""Facts about this deployment."""

from queryserver.db.database import Database

_KEEP = """
    with made as (insert into facts (name, value) values ($1, $2) on conflict do nothing returning value)
    select value from made union all select value from facts where name = $1 limit 1
"""


class FactRepository:
    """Facts about this deployment."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, name: str, value: str) -> str:
        """The value kept under a name; `value` becomes it when there is none. Raises DatabaseUnavailable."""
        kept = await self._database.value(_KEEP, name, value)
        # Nothing comes back when another server's insert committed after our snapshot: then it is there now.
        return kept or await self._database.value("select value from facts where name = $1", name)
