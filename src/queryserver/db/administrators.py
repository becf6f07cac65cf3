"""That there is always an active administrator, once there was one."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from queryserver.db.database import Connection
from queryserver.domain.errors import last_administrator

TAKE_TURNS = "select pg_advisory_xact_lock(1902341490)"
"""Held to the end of a transaction by whoever makes or unmakes administrators: what it counts stays true until then."""

IS_ADMINISTRATOR = """
    (u.is_admin or exists (
        select from group_members m join group_rights r using (group_id)
        where m.user_id = u.id and r."right" = 'admin'))
"""
"""Of a row `u` of users: by its own flag, or by a group."""

ANY_ADMINISTRATOR = f"select exists (select from users u where u.is_active and {IS_ADMINISTRATOR})"


@asynccontextmanager
async def administrator_kept(connection: Connection) -> AsyncGenerator[None]:
    """Around a change, inside a transaction: raises last_administrator at the end when it has left nobody."""
    await connection.execute(TAKE_TURNS)
    was_any = await connection.fetchval(ANY_ADMINISTRATOR)
    yield
    if was_any and not await connection.fetchval(ANY_ADMINISTRATOR):
        raise last_administrator("The last active administrator cannot be disabled or stop being one.")
