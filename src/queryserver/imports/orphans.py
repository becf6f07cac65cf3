"""Drops tables that imports have left when their server died (Contract importer 13.4, platform 12.2)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import structlog

from queryserver.connectors.engines import Connectors
from queryserver.connectors.model import Connector
from queryserver.engines.protocol import LoadingEngine
from queryserver.errors.base import DatabaseUnavailable
from queryserver.errors.statements import EngineError, EngineUnavailable
from queryserver.identity.model import User
from queryserver.identity.users import UserDirectory
from queryserver.imports.repository import ImportLeftover, ImportLeftovers
from queryserver.statements.credentials import CredentialBook

log = structlog.get_logger(__name__)

_BATCH = 500
_LOOK_EVERY_S = 30.0
_LEASE = timedelta(minutes=2)
_DROP_WITHIN_S = _LEASE.total_seconds() / 2


@dataclass(frozen=True, slots=True)
class JanitorParts:
    """What the janitor works with.

    `may_hold` tells whether this process has, or can get hold of, the data of that name; `wanted` is set by whoever
    finds that an import has lost its server.
    """

    leftovers: ImportLeftovers
    users: UserDirectory
    connectors: Connectors
    credentials: CredentialBook
    may_hold: Callable[[str], Awaitable[bool]]
    wanted: asyncio.Event


class ImportJanitor:
    """Each process looks; who claims a table drops it. One that cannot be dropped now is tried again later."""

    def __init__(self, parts: JanitorParts) -> None:
        self._parts = parts

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Look at the beginning, twice a minute, and at once when it is wanted, while inside."""
        self._parts.wanted.set()
        keeper = asyncio.create_task(self._keep_looking(), name="import-janitor")
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def clean_up(self, *, dry_run: bool = False) -> Mapping[str, int]:
        """Drop what is left over; kind to number."""
        found = await self._parts.leftovers.abandoned(await self._reachable(), limit=_BATCH)
        if dry_run:
            return {"tables of broken imports": len(found)}
        return {"tables of broken imports": sum([await self._dropped(leftover) for leftover in found])}

    async def _keep_looking(self) -> None:
        while True:
            # Another process may have found out, and may not reach the data that this one holds.
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._parts.wanted.wait()
            self._parts.wanted.clear()
            try:
                await self.clean_up()
            except DatabaseUnavailable:
                log.warning("left over tables not looked for: the database is out of reach")
            except Exception:  # the outer wall of a task: the next look is not to blame
                log.exception("look for left over tables failed")

    async def _reachable(self) -> list[str]:
        held = [data for data in self._parts.connectors.data_to_hold() if await self._parts.may_hold(data)]
        return list(self._parts.connectors.runnable_by(held))

    async def _dropped(self, leftover: ImportLeftover) -> bool:
        """Whether the table is gone."""
        user = await self._parts.users.user(leftover.user_id)
        connector = self._parts.connectors.find(leftover.connector)
        if user is None or connector is None or not await self._parts.leftovers.claim(leftover, lease=_LEASE):
            return False
        try:
            async with asyncio.timeout(_DROP_WITHIN_S):
                await self._drop(leftover, connector, user)
        except (EngineError, TimeoutError) as error:
            code = error.code if isinstance(error, EngineError) else "engine_timeout"
            log.warning("left over table not dropped", connector=connector.key, code=code)
            await self._parts.leftovers.release(leftover)
            return False
        await self._parts.leftovers.settled(leftover.statement_id, leftover.table)
        log.info("left over table dropped", connector=connector.key, operation_id=str(leftover.statement_id))
        return True

    async def _drop(self, leftover: ImportLeftover, connector: Connector, user: User) -> None:
        options = await self._parts.credentials.options(user, connector)
        async with self._parts.connectors.using(connector) as engine:
            if not isinstance(engine, LoadingEngine):
                raise EngineUnavailable("The engine of this connector drops no tables.")
            async with engine.loader(user, options) as loader:
                await loader.drop(leftover.table)
