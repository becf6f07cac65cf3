"""Records the tables of unfinished imports, and drops the tables that interrupted imports have left."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from uuid import UUID

import structlog

from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.engines.protocol import LoadingEngine, TableName
from queryserver.errors.base import DatabaseUnavailable
from queryserver.errors.statements import EngineError, EngineUnavailable
from queryserver.identity.model import User
from queryserver.identity.users import UserDirectory
from queryserver.platform.database import Database
from queryserver.platform.ownership import OwnedTable, Ownership
from queryserver.platform.threads import background
from queryserver.statements.session_options import SessionCredentials


@dataclass(frozen=True, slots=True)
class UnfinishedTable:
    """A table that must be dropped if its import is interrupted, with the user and connector needed to drop it."""

    statement_id: UUID
    user_id: int
    connector: str
    table: TableName


ORPHANS = OwnedTable("import_leftovers", key=("statement_id", '"table"'), lease="claimed_until")

_ABANDONED = f"""
select statement_id, user_id, connector, database, "table" from import_leftovers as unfinished
where connector = any($1) and {ORPHANS.claimable("unfinished")} and not exists (
    select from statements where id = unfinished.statement_id and state in ('waiting', 'running')
)
order by made_at limit $2
"""

_CLAIM = f"""
update import_leftovers set {ORPHANS.claimed("$3")}
where statement_id = $1 and "table" = $2 and {ORPHANS.may_claim("$3")}
returning fence
"""
_RELEASE = f"update import_leftovers set {ORPHANS.released} where {ORPHANS.fenced}"
_REMOVE = f"delete from import_leftovers where {ORPHANS.fenced}"


class UnfinishedTables:
    """Records of the unfinished tables of all instances. Each method runs one transaction and may raise
    DatabaseUnavailable.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, unfinished: UnfinishedTable) -> None:
        """Record a table. Has no effect if it is already recorded."""
        await self._database.execute(
            """insert into import_leftovers (statement_id, user_id, connector, database, "table")
            values ($1, $2, $3, $4, $5) on conflict do nothing""",
            unfinished.statement_id,
            unfinished.user_id,
            unfinished.connector,
            unfinished.table.database,
            unfinished.table.name,
        )

    async def remove(self, statement_id: UUID, table: TableName) -> None:
        await self._database.execute(
            'delete from import_leftovers where statement_id = $1 and "table" = $2', statement_id, table.name
        )

    async def of_statement(self, statement_id: UUID) -> Sequence[TableName]:
        """Return the recorded tables of one statement."""
        rows = await self._database.fetch(
            'select database, "table" from import_leftovers where statement_id = $1', statement_id
        )
        return [TableName(database, table) for database, table in rows]

    async def find_abandoned(self, connectors: Collection[str], *, limit: int) -> Sequence[UnfinishedTable]:
        """Return tables whose import has ended or been deleted and that no process has claimed, oldest first."""
        rows = await self._database.fetch(_ABANDONED, list(connectors), limit)
        return [
            UnfinishedTable(statement_id, user_id, connector, TableName(database, table))
            for statement_id, user_id, connector, database, table in rows
        ]

    async def claim(self, unfinished: UnfinishedTable, *, owner: str) -> int | None:
        """Claim the table, so that only this process drops it, and return the fence. Return None if another process
        has claimed it, or if it is no longer recorded.
        """
        return await self._database.value(_CLAIM, unfinished.statement_id, unfinished.table.name, owner)


@dataclass(frozen=True, slots=True)
class StatementLedger:
    """Implements `engines.protocol.LoadLedger` for one import."""

    unfinished: UnfinishedTables
    statement_id: UUID
    user_id: int
    connector: str

    async def add(self, table: TableName) -> None:
        await self.unfinished.add(UnfinishedTable(self.statement_id, self.user_id, self.connector, table))

    async def remove(self, table: TableName) -> None:
        await self.unfinished.remove(self.statement_id, table)


log = structlog.get_logger(__name__)

_BATCH = 500
_SEARCH_EVERY_S = 30.0
_DROP_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class ImportJanitor:
    """Drops the tables of interrupted imports. All processes search for them; the process that claims a table drops
    it.

    `try_acquire` acquires the named data, such as an embedded database, for this process if possible, and returns
    whether this process holds them. `search_requested` is set when an import is lost because its server has crashed.
    """

    ownership: Ownership
    unfinished: UnfinishedTables
    users: UserDirectory
    connectors: Connectors
    credentials: SessionCredentials
    try_acquire: Callable[[str], Awaitable[bool]]
    search_requested: asyncio.Event

    def __post_init__(self) -> None:
        self.ownership.watch(ORPHANS)

    def running(self) -> AbstractAsyncContextManager[None]:
        """Search on entry, every 30 s, and whenever `search_requested` is set, until the context exits."""
        self.search_requested.set()
        return background(self._search_repeatedly(), name="import-janitor")

    async def clean_up(self, *, dry_run: bool = False) -> Mapping[str, int]:
        if not (dry_run or self.ownership.may_take_over):
            return {"tables of broken imports": 0}
        data_names = [data for data in self.connectors.data_to_hold() if await self.try_acquire(data)]
        tables = await self.unfinished.find_abandoned(list(self.connectors.runnable_by(data_names)), limit=_BATCH)
        count = len(tables) if dry_run else sum([await self._drop(table) for table in tables])
        return {"tables of broken imports": count}

    async def _search_repeatedly(self) -> None:
        while True:
            # Every process must search: only the process that holds an engine's data can drop its tables.
            with suppress(TimeoutError):
                async with asyncio.timeout(_SEARCH_EVERY_S):
                    await self.search_requested.wait()
            self.search_requested.clear()
            try:
                await self.clean_up()
            except DatabaseUnavailable:
                log.warning("unfinished tables not searched: database unreachable")
            except Exception:  # last resort of a task: the next search may succeed
                log.exception("search for unfinished tables failed")

    async def _drop(self, unfinished: UnfinishedTable) -> bool:
        """Drop the table. Return False if another process has claimed it, or if it must be retried later."""
        user = await self.users.user(unfinished.user_id)
        connector = self.connectors.find(unfinished.connector)
        if user is None or connector is None:
            return False
        await self.ownership.require_current()
        lapses = self.ownership.lapses
        fence = await self.unfinished.claim(unfinished, owner=self.ownership.id)
        if fence is None:
            return False
        statement_id, name, end = unfinished.statement_id, unfinished.table.name, _RELEASE
        with self.ownership.holding(ORPHANS, f"{statement_id} {name}", fence):
            try:
                async with asyncio.timeout(_DROP_WITHIN_S):
                    await self._drop_claimed(unfinished, user, connector, lapses)
                end = _REMOVE
            except (EngineError, TimeoutError) as error:
                code = error.code if isinstance(error, EngineError) else "engine_timeout"
                log.warning("unfinished table not dropped", connector=connector.key, code=code)
            finally:
                await self.ownership.release(end, statement_id, name, self.ownership.id, fence)
        if end is _REMOVE:
            log.info("unfinished table dropped", connector=connector.key, operation_id=str(statement_id))
        return end is _REMOVE

    async def _drop_claimed(self, unfinished: UnfinishedTable, user: User, connector: Connector, lapses: int) -> None:
        """Drop a table that was claimed when `Ownership.lapses` had the given value. Raises EngineError."""
        options = await self.credentials.options(user, connector)
        async with self.connectors.using(connector) as engine:
            if not isinstance(engine, LoadingEngine):
                raise EngineUnavailable("The engine of this connector does not support dropping tables.")
            async with engine.loader(user, options) as loader:
                if self.ownership.has_lapsed(lapses):
                    raise EngineUnavailable("This process was paused, so another one may have claimed the table.")
                await loader.drop(unfinished.table)
