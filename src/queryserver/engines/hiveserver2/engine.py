"""A group of HiveServer2 members as an Engine."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

from queryserver.engines.connections import ConnectionPool, Retries
from queryserver.engines.hiveserver2.catalog_variants import catalog_of
from queryserver.engines.hiveserver2.connecting import connect
from queryserver.engines.hiveserver2.connection import BackgroundTasks, Connection, Wire
from queryserver.engines.hiveserver2.errors import CALL_FAILURES, WireLost
from queryserver.engines.hiveserver2.loading import LOADING, Hs2Loader
from queryserver.engines.hiveserver2.session import Hs2Session, Mark, check_known, open_session
from queryserver.engines.hiveserver2.variants import Hs2Address, Login, Mechanism, Variant
from queryserver.engines.protocol import Catalog, EngineCapabilities, EngineSession, OperationHandle, SessionOptions
from queryserver.errors.statements import EngineError, EngineUnavailable, OutcomeUnknown, StatementDenied
from queryserver.identity.model import User

_WRITER_THREADS = 2
_PING_USER = User(id=0, username="anonymous")


class Hs2Engine:
    """Statements on one group of servers. Idle connections are kept for the next session of the same login."""

    def __init__(self, address: Hs2Address, variant: Variant, *, read_only: bool = False) -> None:
        self._address = address
        self._read_only = read_only
        self._variant = variant
        self._capabilities = replace(
            variant.capabilities,
            wants_credentials=address.wants_credentials,
            wants_external_token=address.mechanism is Mechanism.JWT,
            acts_as_caller=address.impersonation or not address.username,
            places=tuple((member.host, member.port) for member in address.members),
        )
        self._pool = ConnectionPool(partial(connect, address), max_idle=address.max_idle, idle_s=address.idle_s)
        self._turns = itertools.count()
        self._background = BackgroundTasks()
        self._closing_later = BackgroundTasks()
        self._is_closed = False
        self._executor = ThreadPoolExecutor(_WRITER_THREADS, thread_name_prefix=variant.dialect)

    @property
    def dialect(self) -> str:
        return self._variant.dialect

    @property
    def capabilities(self) -> EngineCapabilities:
        return self._capabilities

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[Hs2Session]:
        """A session on a member that can be reached; leaving it ends what still runs in it.

        A caller who is cancelled while the server opens the session does not wait for it; it is ended once it is there.
        """
        login, connection = await self._connect(user, options)
        wire = self._wire(login, connection)
        opening = asyncio.create_task(self._open(login, connection, wire, user, options), name="open session")
        try:
            yield await asyncio.shield(opening)
        finally:
            leaving = self._background.start(self._leave_once_open(login, wire, opening), name="leave session")
            if opening.done():
                await asyncio.shield(leaving)

    @asynccontextmanager
    async def reattach(
        self, user: User, options: SessionOptions, token: str, *, rows_read: int
    ) -> AsyncGenerator[tuple[EngineSession, OperationHandle]]:
        """See ResumableEngine. Works where the server keeps sessions whose connection is gone."""
        mark = Mark.from_text(token)
        if mark.member not in self._address.members:
            raise OutcomeUnknown("Results have expired: the server that had them is no longer configured.")
        login = self._address.login(mark.member, user, options)
        connection = await self._pool.take(login)
        wire = self._wire(login, connection)
        session: Hs2Session | None = None
        try:
            await check_known(wire, mark.operation)
            session = Hs2Session(wire, mark.session, mark.member, self._variant)
            yield session, session.adopt(mark.operation, rows_read=rows_read)
        finally:
            await asyncio.shield(self._background.start(self._leave(login, wire, session), name="leave session"))

    @property
    def lists_functions(self) -> bool:
        return True

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        async with self.session(user, options) as session:
            yield catalog_of(self._variant.dialect, session)

    @asynccontextmanager
    async def loader(self, user: User, options: SessionOptions) -> AsyncGenerator[Hs2Loader]:
        """See LoadingEngine. Raises StatementDenied for engines that cannot be loaded."""
        dialect = LOADING.get(self._variant.dialect)
        if dialect is None:
            raise StatementDenied(f"No table can be made from a file in {self._variant.dialect}.")
        database = options.database or self._address.database
        async with self.session(user, options) as session:
            yield Hs2Loader(session, self._executor, dialect, database, read_only=self._read_only)

    async def ping(self) -> None:
        """Opens a session of the service; where callers log in themselves only a connection is tried."""
        if self._address.needs_caller:
            await self._reach()
            return
        async with self.session(_PING_USER, SessionOptions()):
            return

    async def close(self) -> None:
        """Sessions that are on their way are waited for as long as for any other end, then lost."""
        self._is_closed = True
        await self._background.close(grace_s=self._address.limits.end_s)
        await self._closing_later.close(grace_s=0)
        await self._pool.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _connect(self, user: User, options: SessionOptions) -> tuple[Login, Connection]:
        """A connection to the member whose turn it is, or to the next one that can be reached."""
        members = self._address.members
        first = next(self._turns) % len(members)
        failure = EngineUnavailable("No server is configured.")
        for member in members[first:] + members[:first]:
            login = self._address.login(member, user, options)
            try:
                return login, await self._pool.take(login)
            except EngineUnavailable as error:
                failure = error
        raise failure

    async def _reach(self) -> None:
        failure = EngineUnavailable("No server is configured.")
        for member in self._address.members:
            try:
                await self._address.rules.resolve(member.host, member.port)
            except EngineUnavailable as error:
                failure = error
            else:
                return
        raise failure

    def _wire(self, login: Login, opener: Connection) -> Wire:
        opener.opened_session = True
        return Wire(opener, partial(self._pool.take, login), self._address.limits, self._address.cell_max_bytes)

    async def _open(
        self, login: Login, connection: Connection, wire: Wire, user: User, options: SessionOptions
    ) -> Hs2Session:
        handle = await open_session(connection, self._address, self._variant, user, options)
        return Hs2Session(wire, handle, login.member, self._variant)

    async def _leave_once_open(self, login: Login, wire: Wire, opening: asyncio.Task[Hs2Session]) -> None:
        """Hive keeps a session whose connection is closed before it answers: only its handle ends it."""
        session: Hs2Session | None = None
        try:
            with suppress(EngineError):  # the caller was told
                session = await opening
        finally:
            await self._leave(login, wire, session)

    async def _leave(self, login: Login, wire: Wire, session: Hs2Session | None) -> None:
        is_closed = False
        try:
            is_closed = session is not None and await session.leave()
        finally:
            for connection in wire.release():
                if connection.opened_session:
                    connection.opened_session = not is_closed
                await self._pool.give_back(login, connection)
            if session is not None and session.is_left_open and not self._is_closed:
                self._closing_later.start(self._close_later(login, session), name="close session")

    async def _close_later(self, login: Login, session: Hs2Session) -> None:
        """Close a session that was left while the network was broken: its statement would go on for nobody."""
        retries = Retries(self._address.limits.retry_s)
        while await retries.pause():
            try:
                async with self._pool.borrowed(login) as connection:
                    await session.close_over(connection)
            except (EngineUnavailable, WireLost):
                continue
            except (EngineError, *CALL_FAILURES):
                return  # the server was reached: there is nothing more to do
            return
