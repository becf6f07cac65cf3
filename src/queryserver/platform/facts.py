"""Named values that all servers of a deployment share, stored in the table `facts`."""

from queryserver.platform.database import Database

_KEEP = """
    with made as (insert into facts (name, value) values ($1, $2) on conflict do nothing returning value)
    select value from made union all select value from facts where name = $1 limit 1
"""


class FactRepository:
    """Named values that all servers share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, name: str, value: str) -> str:
        """The stored value of `name`, after storing `value` if there is none yet. Raises DatabaseUnavailable."""
        kept = await self._database.value(_KEEP, name, value)
        # No row: another server's insert committed after our snapshot was taken. A new query sees it.
        return kept or await self._database.value("select value from facts where name = $1", name)

    async def value(self, name: str) -> str | None:
        """The stored value of `name`, or None. Raises DatabaseUnavailable."""
        return await self._database.value("select value from facts where name = $1", name)

    async def replace(self, name: str, value: str) -> None:
        await self._database.execute(
            "insert into facts (name, value) values ($1, $2) on conflict (name) do update set value = excluded.value",
            name,
            value,
        )
