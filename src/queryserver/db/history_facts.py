"""What the history of statements says as a whole."""

from collections.abc import Sequence

from queryserver.db.database import Database

# From one dialect to the next by the index: PostgreSQL's own `distinct` would read every entry of the user.
_DIALECTS = """
    with recursive found (dialect) as (
        (
            select dialect from statements where user_id = $1 and in_history order by dialect limit 1
        )
        union all
        select (
            select dialect from statements
            where user_id = $1 and in_history and dialect > found.dialect order by dialect limit 1
        )
        from found where found.dialect is not null
    )
    select dialect from found where dialect is not null
"""


class HistoryFacts:
    """Cheap whatever the length of the history. All raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def dialects(self, user_id: int) -> Sequence[str]:
        """The dialects in the history of a user, sorted."""
        return sorted(row["dialect"] for row in await self._database.fetch(_DIALECTS, user_id))
