"""What statements have left in a session."""

from collections.abc import Sequence
from uuid import UUID

from queryserver.db.database import Database

_CLOSE_ALL = """
with closed as (
    update statements set state = 'closed', message = 'The result was closed.', inline_result = null
    where user_id = $1 and session_id = $2 and state = 'available' returning id
), doomed as (
    insert into doomed_results (statement_id) select id from closed on conflict do nothing
)
select id from closed
"""


async def close_results_of_session(database: Database, user_id: int, session_id: int) -> Sequence[UUID]:
    """Turn the `available` statements of a session into `closed` ones, all or none; answers them.

    Its user is told for the index: sessions have none.
    """
    return [row["id"] for row in await database.fetch(_CLOSE_ALL, user_id, session_id)]
