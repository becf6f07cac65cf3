"""Looks that another process takes."""

from uuid import UUID

from queryserver.db.database import Database
from queryserver.interfaces.forwarding import ForwardedLook

# What its asker could not delete, because it died, goes with the next look.
_ASK = """
with gone as (delete from forwarded_looks where asked_at < now() - interval '1 hour')
insert into forwarded_looks (id, target, user_id, request) values ($1, $2, $3, $4)
"""


class ForwardedLooks:
    """Each method is one transaction. All raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def holder(self, connector: str) -> str | None:
        """The living process that holds the data of this name (`EngineCapabilities.data_name`)."""
        return await self._database.value(
            "select owner from engine_owners where connector = $1 and lease_until > now()", connector
        )

    async def ask(self, look_id: UUID, look: ForwardedLook, *, of: str) -> None:
        """Leave a look for the process `of`."""
        await self._database.execute(_ASK, look_id, of, look.user_id, look.request)

    async def take(self, look_id: UUID, *, by: str) -> ForwardedLook | None:
        """The look, once, if it is for this process and still wanted."""
        row = await self._database.row(
            """update forwarded_looks set taken_at = now() where id = $1 and target = $2 and taken_at is null
            returning user_id, request""",
            look_id,
            by,
        )
        return ForwardedLook(row["user_id"], row["request"]) if row else None

    async def answer(self, look_id: UUID, answer: bytes) -> None:
        """Leave the answer for whoever asked; nothing happens when nobody waits any more."""
        await self._database.execute("update forwarded_looks set answer = $2 where id = $1", look_id, answer)

    async def read(self, look_id: UUID) -> bytes | None:
        """The answer, once it is there."""
        return await self._database.value("select answer from forwarded_looks where id = $1", look_id)

    async def forget(self, look_id: UUID) -> None:
        """Nobody waits any more."""
        await self._database.execute("delete from forwarded_looks where id = $1", look_id)
