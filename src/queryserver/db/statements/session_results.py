"""What statements have left in a session."""

from collections.abc import Sequence
from uuid import UUID

from queryserver.db.database import Database


async def results_of_session(database: Database, user_id: int, session_id: int) -> Sequence[UUID]:
    """The `available` statements of a session. Its user is told for the index: sessions have none."""
    found = await database.fetch(
        "select id from statements where user_id = $1 and session_id = $2 and state = 'available'", user_id, session_id
    )
    return [row["id"] for row in found]
