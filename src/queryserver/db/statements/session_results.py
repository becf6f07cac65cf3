"""What statements have left in sessions."""

from collections.abc import Sequence
from uuid import UUID

from queryserver.db.database import Database

_CLOSE_ALL = """
with closed as (
    update statements set state = 'closed', message = 'The result was closed.', inline_result = null
    where user_id = $1 and state = 'available' and session_id in (
        select id from sessions
        where user_id = $1 and connector = $2 and named and ($3::bigint is null or id = $3)
    )
    returning id
), doomed as (
    insert into doomed_results (statement_id) select id from closed on conflict do nothing
)
select id from closed
"""


async def close_results_of_sessions(
    database: Database, user_id: int, connector: str, session_id: int | None
) -> Sequence[UUID]:
    """Turn `available` statements into `closed` ones, all or none; answers them.

    Those of one named session, open or closed, or of all that the user has at the connector.
    """
    return [row["id"] for row in await database.fetch(_CLOSE_ALL, user_id, connector, session_id)]
