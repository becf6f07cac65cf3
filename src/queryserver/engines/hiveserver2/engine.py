"""A group of HiveServer2 members as an Engine."""

import asyncio
import itertools
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from queryserver.engines.connections import ConnectionPool, Retries
from queryserver.engines.hiveserver2.catalog_variants import catalog_of
from queryserver.engines.hiveserver2.connection import BackgroundTasks, Connection, Wire, connect
from queryserver.engines.hiveserver2.errors import CALL_FAILURES, EXPIRED, Purpose, WireLost, call_errors, check
from queryserver.engines.hiveserver2.loading import LOADING, Hs2Loader
from queryserver.engines.hiveserver2.operation import Operation
from queryserver.engines.hiveserver2.protocol.messages import (
    CLOSE_SESSION,
    EXECUTE_STATEMENT,
    GET_OPERATION_STATUS,
    OPEN_SESSION,
)
from queryserver.engines.hiveserver2.protocol.structs import (
    TCloseSessionReq,
    TExecuteStatementReq,
    TGetOperationStatusReq,
    THandleIdentifier,
    TOpenSessionReq,
    TOperationHandle,
    TOperationType,
    TProtocolVersion,
    TSessionHandle,
    TStatusCode,
)
from queryserver.engines.hiveserver2.variants import Hs2Address, Login, Mechanism, Member, Variant
from queryserver.engines.protocol import (
    Catalog,
    EngineCapabilities,
    EngineSession,
    OperationHandle,
    OperationStatus,
    SessionOptions,
)
from queryserver.errors.statements import (
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
    StatementDenied,
    StatementRejected,
)
from queryserver.formats.columns import Column
from queryserver.identity.model import User


@dataclass(frozen=True, slots=True)
class Mark:
    """A statement, its session, and the member that has both."""

    member: Member
    session: TSessionHandle
    operation: TOperationHandle

    def to_text(self) -> str:
        """JSON."""
        values = {
            "host": self.member.host,
            "port": self.member.port,
            "session": _hex(self.session.session_id),
            "operation": _hex(self.operation.operation_id),
            "has_result_set": self.operation.has_result_set,
        }
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_text(cls, token: str) -> "Mark":
        """Raises OutcomeUnknown for a text that is no mark."""
        try:
            values: dict[str, Any] = json.loads(token)
            return cls(
                Member(str(values["host"]), int(values["port"])),
                TSessionHandle(session_id=_identifier(values["session"])),
                TOperationHandle(
                    operation_id=_identifier(values["operation"]),
                    operation_type=TOperationType.EXECUTE_STATEMENT,
                    has_result_set=bool(values["has_result_set"]),
                ),
            )
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise OutcomeUnknown(EXPIRED) from error


def _hex(identifier: THandleIdentifier) -> list[str]:
    return [identifier.guid.hex(), identifier.secret.hex()]


def _identifier(texts: list[str]) -> THandleIdentifier:
    guid, secret = texts
    return THandleIdentifier(guid=bytes.fromhex(guid), secret=bytes.fromhex(secret))


class Hs2Session:
    """An EngineSession and ResumableSession. It knows its last statement only, because one runs at a time."""

    def __init__(self, wire: Wire, handle: TSessionHandle, member: Member, variant: Variant) -> None:
        self._wire = wire
        self._handle = handle
        self._member = member
        self._variant = variant
        self._token = ""
        self._operation: Operation | None = None
        self._lost = False
        self._left = False
        self.is_detached = False
        self.is_left_open = False
        """The session was left, but the server could not be reached to close it."""

    async def submit(self, statement: str) -> OperationHandle:
        """Start a statement; what is left of the one before is freed."""
        await self._close_operation()
        if not await self.is_alive():
            raise SessionLost("The engine session is gone; the statement was not started.")
        handle = await self._execute(statement)
        return self.adopt(handle, rows_read=None)

    def adopt(self, handle: TOperationHandle, *, rows_read: int | None) -> OperationHandle:
        """Follow an operation of this session; `rows_read`: rows that another process has read."""
        self._operation = Operation(self._wire, self._handle, handle, self._variant, rows_read=rows_read)
        self._token = Mark(self._member, self._handle, handle).to_text()
        return OperationHandle(self._token)

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        """The last known status; waits up to `wait_s` for a terminal one."""
        return await self._find(handle).status(wait_s)

    async def columns(self, handle: OperationHandle) -> tuple[Column, ...]:
        """Columns of the result, in order."""
        return self._find(handle).columns

    def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        """The rows, read once."""
        return self._find(handle).batches()

    async def logs(self, handle: OperationHandle, *, start: int) -> Sequence[str]:
        """The engine's log from line `start` on."""
        return await self._find(handle).logs(start)

    async def cancel(self, handle: OperationHandle) -> None:
        """Stop the statement at the engine. A handle of an earlier statement is harmless."""
        if self._operation is not None and handle.token == self._token:
            await self._operation.cancel()

    async def close(self, handle: OperationHandle) -> None:
        """Free what the engine holds for the statement. A handle of an earlier statement is harmless."""
        if handle.token == self._token:
            await self._close_operation()

    async def is_alive(self) -> bool:
        """Whether the session can take another statement."""
        is_free = self._operation is None or not self._operation.is_running
        return is_free and not self._left and not self._lost and self._wire.is_connected

    def resume_token(self, handle: OperationHandle) -> str:
        """The handle's own token: the server counts no rows for us."""
        return handle.token

    def detach(self) -> None:
        """Leave session and operation to the server from now on."""
        self.is_detached = True

    async def leave(self) -> bool:
        """End the session at the server unless it is detached; True when its connections can serve another one."""
        self._left = True
        if self.is_detached:
            if self._operation is not None:
                await self._operation.leave()
            return False
        await self._close_operation()
        return await self._close_session()

    async def close_over(self, connection: Connection) -> None:
        """Close the session, and what runs in it, over another connection. Raises as Connection.call."""
        request = TCloseSessionReq(session_handle=self._handle)
        await connection.call(CLOSE_SESSION, request, limit_s=self._wire.limits.end_s)

    async def _execute(self, statement: str) -> TOperationHandle:
        request = TExecuteStatementReq(
            session_handle=self._handle,
            statement=statement,
            conf_overlay=dict(self._variant.conf_overlay) if self._variant.conf_overlay else None,
            run_async=True,
        )
        try:
            with call_errors(Purpose.SUBMIT):
                reply = await self._wire.call_opener(EXECUTE_STATEMENT, request, limit_s=self._wire.limits.execute_s)
                check(reply.status)
        except SessionLost:
            self._lost = True
            raise
        if reply.operation_handle is None:
            raise StatementRejected("The engine accepted the statement without a handle for it.")
        return reply.operation_handle

    async def _close_operation(self) -> None:
        if self._operation is not None:
            await self._operation.close()

    async def _close_session(self) -> bool:
        """Over another connection where its own is lost or held: Hive's sessions outlive theirs."""
        request = TCloseSessionReq(session_handle=self._handle)
        for call in (self._wire.call_opener, self._wire.call):
            with suppress(*CALL_FAILURES):
                reply = await call(CLOSE_SESSION, request, limit_s=self._wire.limits.end_s)
                return reply.status.status_code == TStatusCode.SUCCESS
        self.is_left_open = True
        return False

    def _find(self, handle: OperationHandle) -> Operation:
        if self._operation is None or handle.token != self._token:
            raise OutcomeUnknown(EXPIRED)
        return self._operation


_DATABASE_KEY = "use:database"
_SETTING_NAME = re.compile(r"[A-Za-z_][\w.\-]{0,200}", re.ASCII)


async def open_session(
    connection: Connection, address: Hs2Address, variant: Variant, user: User, options: SessionOptions
) -> TSessionHandle:
    """A new session. Raises EngineUnavailable, CredentialsRequired, StatementRejected (database, setting)."""
    request = TOpenSessionReq(
        client_protocol=TProtocolVersion.V11,
        username=(options.credentials.username if options.credentials else address.username) or user.username,
        configuration=session_configuration(address, variant, user, options),
    )
    with call_errors(Purpose.OPEN):
        reply = await connection.call(OPEN_SESSION, request, limit_s=address.limits.execute_s)
        check(reply.status)
    if reply.session_handle is None:
        raise EngineUnavailable("The server opened a session without a handle for it.")
    if reply.server_protocol_version < TProtocolVersion.V6:
        with suppress(*CALL_FAILURES):
            farewell = TCloseSessionReq(session_handle=reply.session_handle)
            await connection.call(CLOSE_SESSION, farewell, limit_s=address.limits.end_s)
        raise EngineUnavailable("The server speaks a version of HiveServer2 that is too old.")
    return reply.session_handle


def session_configuration(address: Hs2Address, variant: Variant, user: User, options: SessionOptions) -> dict[str, str]:
    """What OpenSession is told; the settings of the session go before those of the address.

    Raises StatementRejected for a setting whose name cannot be one: servers would take it without a word.
    """
    chosen = {**address.session_conf, **options.settings}
    for name in chosen:
        if not _SETTING_NAME.fullmatch(name):
            raise StatementRejected(f'"{name[:100]}" is not the name of a setting.')
    configuration = {f"{variant.setting_prefix}{name}": value for name, value in chosen.items()}
    configuration.update(variant.session_conf)
    if variant.timeout_keys is not None:
        limits = zip(variant.timeout_keys, (address.query_timeout_s, address.session_timeout_s), strict=True)
        configuration.update({key: str(seconds) for key, seconds in limits if seconds})
    database = options.database or address.database
    if database:
        configuration[_DATABASE_KEY] = variant.database_name(database)
    if proxied := address.proxied(user, options):
        configuration[variant.proxy_user_key] = proxied
    return configuration


async def check_known(wire: Wire, handle: TOperationHandle) -> None:
    """Raises OutcomeUnknown when the server no longer knows the operation."""
    request = TGetOperationStatusReq(operation_handle=handle)
    with call_errors(Purpose.FOLLOW):
        reply = await wire.call_until_answered(GET_OPERATION_STATUS, request, limit_s=wire.limits.status_s)
        check(reply.status)


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
