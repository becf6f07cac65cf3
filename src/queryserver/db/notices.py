"""A word to the other instances by LISTEN and NOTIFY.

Only rare events go this way (a cancel, a statement for an engine that another process holds): a commit with a
notification takes a lock of the whole database, so the hot path must do without.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import structlog

from queryserver.db.database import Connection, Database, database_errors
from queryserver.domain.errors.base import DatabaseUnavailable

_CHANNEL = "queryserver"
_RECONNECT_S = 2.0

log = structlog.get_logger(__name__)


class Notices:
    """A word to the other instances. Lost ones do no harm: sweeps find what was not heard."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def publish(self, kind: str, subject: str) -> None:
        """Tell every instance, this one included. Never raises."""
        try:
            await self._database.execute("select pg_notify($1, $2)", _CHANNEL, f"{kind} {subject}")
        except DatabaseUnavailable:
            log.warning("notice not sent", kind=kind)


async def notify(connection: Connection, kind: str, subject: str) -> None:
    """Publish with the commit of the transaction that is under way."""
    await connection.execute("select pg_notify($1, $2)", _CHANNEL, f"{kind} {subject}")


@asynccontextmanager
async def listening(
    dsn: str, heard: Callable[[str, str], None], connected: Callable[[], None] = lambda: None
) -> AsyncGenerator[None]:
    """Call `heard(kind, subject)` for every notice while inside; reconnects by itself.

    `connected` is called whenever it begins to listen: what was said before was not heard.
    """
    listener = asyncio.create_task(_listen(dsn, heard, connected), name="notices")
    try:
        yield
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


async def _listen(dsn: str, heard: Callable[[str, str], None], connected: Callable[[], None]) -> None:
    def hear(_connection: Any, _pid: int, _channel: str, payload: object) -> None:
        kind, _, subject = str(payload).partition(" ")
        heard(kind, subject)

    while True:
        try:
            await _listen_until_lost(dsn, hear, connected)
        except DatabaseUnavailable:
            log.warning("not listening to other instances, trying again")
        await asyncio.sleep(_RECONNECT_S)


async def _listen_until_lost(
    dsn: str, hear: Callable[[Any, int, str, object], None], connected: Callable[[], None]
) -> None:
    lost = asyncio.Event()
    with database_errors():
        connection = await asyncpg.connect(dsn, timeout=10)
        try:
            connection.add_termination_listener(_setter_of(lost))
            await connection.add_listener(_CHANNEL, hear)
            connected()
            await lost.wait()
        finally:
            connection.terminate()


def _setter_of(event: asyncio.Event) -> Callable[[Any], None]:
    def set_it(_connection: Any) -> None:
        event.set()

    return set_it
