"""Implements the engine for a group of HiveServer2 servers. Opens sessions, and reattaches to running statements."""

import asyncio
import itertools
import re
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import cast

from pydantic import BaseModel, ConfigDict, ValidationError

from queryserver import errors
from queryserver.engines.connections import ConnectionPool, Retries, connect_first
from queryserver.engines.estimates import CostEstimate
from queryserver.engines.hiveserver2 import messages, structs
from queryserver.engines.hiveserver2.catalog import HiveFamilyCatalog
from queryserver.engines.hiveserver2.catalog_variants import HiveCatalog, ImpalaCatalog, SparkCatalog
from queryserver.engines.hiveserver2.connection import Hs2Connection, Wire, connect
from queryserver.engines.hiveserver2.errors import (
    CALL_FAILURES,
    EXPIRED,
    ConnectionLost,
    Purpose,
    ServerRefused,
    call_errors,
)
from queryserver.engines.hiveserver2.estimates import MAX_PLAN_BYTES, MAX_PLAN_ROWS
from queryserver.engines.hiveserver2.loader import LOADER_DIALECTS, Hs2Loader
from queryserver.engines.hiveserver2.operation import Hs2Operation
from queryserver.engines.hiveserver2.variants import Hs2Address, Hs2Login, Hs2Variant, Mechanism, Member
from queryserver.engines.protocol import Catalog, EngineSession, OperationHandle, SessionOptions, StatementContext
from queryserver.engines.sessions import OperationSession, answer
from queryserver.engines.statement_tags import MAX_TAG_BYTES, short_tag, trailing_comment
from queryserver.identity.model import User
from queryserver.platform.threads import Tasks
from queryserver.sql.classification import is_quick, read_only_refusal
from queryserver.sql.markers import BoundStatement
from queryserver.sql.parameters import NO_PARAMETERS

_DATABASE_KEY = "use:database"
_SETTING_NAME = re.compile(r"[A-Za-z_][\w.\-]{0,200}", re.ASCII)
_CATALOGS: Mapping[str, type[HiveFamilyCatalog]] = {"impala": ImpalaCatalog, "sparksql": SparkCatalog}
_WRITER_THREADS = 2
_MAX_IDLE, _IDLE_S = 16, 60.0
_PING_USER = User(id=0, username="anonymous")


class ResumeToken(BaseModel):
    """Identifies a statement, its session, and the member that runs them. Each handle is a pair of GUID and secret."""

    model_config = ConfigDict(frozen=True, ser_json_bytes="hex", val_json_bytes="hex")

    host: str
    port: int
    session: tuple[bytes, bytes]
    operation: tuple[bytes, bytes]
    has_result_set: bool

    @classmethod
    def from_text(cls, token: str) -> "ResumeToken":
        """Parse a token. Raises OutcomeUnknown if it is invalid."""
        try:
            return cls.model_validate_json(token)
        except ValidationError as error:
            raise errors.OutcomeUnknown(EXPIRED) from error

    @property
    def session_handle(self) -> structs.TSessionHandle:
        guid, secret = self.session
        return structs.TSessionHandle(session_id=structs.THandleIdentifier(guid=guid, secret=secret))

    @property
    def operation_handle(self) -> structs.TOperationHandle:
        guid, secret = self.operation
        return structs.TOperationHandle(
            operation_id=structs.THandleIdentifier(guid=guid, secret=secret),
            operation_type=structs.EXECUTE_STATEMENT,
            has_result_set=self.has_result_set,
        )


class Hs2Session(OperationSession[Hs2Operation]):
    """Implements `ResumableSession`.

    An operation handle's token is also the resume token; it contains no row position.
    """

    gone = "The engine session no longer exists; the statement was not started."
    unknown = EXPIRED

    def __init__(
        self,
        wire: Wire,
        handle: structs.TSessionHandle,
        member: Member,
        variant: Hs2Variant,
        *,
        tags_statements: bool = True,
        scan_limit: int | None = None,
    ) -> None:
        super().__init__()
        self._wire = wire
        self.handle = handle
        self._member = member
        self._variant = variant
        self._tags_statements = tags_statements
        self._scan_limit = scan_limit
        self._lost = False
        self._is_detached = False
        self.is_left_open = False  # the session could not be closed because the server was unreachable

    def adopt(self, handle: structs.TOperationHandle, *, rows_read: int) -> OperationHandle:
        """Make `handle` the current operation. Another process has already read `rows_read` of its rows."""
        return self.follow(Hs2Operation(self._wire, self.handle, handle, self._variant, rows_read=rows_read))

    def resume_token(self, handle: OperationHandle) -> str:
        return handle.token

    def detach(self) -> None:
        self._is_detached = True

    async def leave(self) -> bool:
        """Close the session unless it is detached. Return whether its connections can serve another session."""
        self._left = True
        if self._is_detached:
            if self._operation is not None:
                await self._operation.leave()
            return False
        await self._close_operation()
        # Hive sessions outlive their connection, so another connection is tried if the original is lost or busy.
        request = structs.TCloseSessionReq(session_handle=self.handle)
        for call in (self._wire.call_opener, self._wire.call):
            try:
                await call(messages.CLOSE_SESSION, request, limit_s=self._wire.limits.end_s)
            except ServerRefused:
                return False
            except CALL_FAILURES:
                continue
            return True
        self.is_left_open = True
        return False

    def written(self, statement: BoundStatement) -> str:
        """Render the statement with its parameters as literals.

        Raises StatementRejected if the engine does not support parameters.
        """
        if self._variant.literals is None:
            raise errors.StatementRejected("This engine does not support statement parameters.")
        return statement.render(self._variant.literals.write)

    async def estimate(self, statement: str | BoundStatement) -> CostEstimate | None:
        explain = self._variant.explain
        if explain is None:
            return None
        text = self.written(statement) if isinstance(statement, BoundStatement) else statement
        explained = explain.of(text, self._variant.dialect)
        if explained is None:
            return None
        await self._close_operation()
        handle = self.follow(await self._execute(explained, explain.conf_overlay))
        plan = await answer(self, handle, max_rows=MAX_PLAN_ROWS, max_bytes=MAX_PLAN_BYTES)
        lines = [line for batch in plan.rows for line in cast("list[str | None]", batch.column(0).to_pylist())]
        return explain.read("\n".join(filter(None, lines)))

    async def _start(self, statement: str | BoundStatement, context: StatementContext) -> Hs2Operation:
        if context.read_only:
            await self._check_reads(statement if isinstance(statement, str) else statement.statement)
        text = self.written(statement) if isinstance(statement, BoundStatement) else statement
        variant, overlay, comment = self._variant, dict(self._variant.conf_overlay or {}), ""
        if self._tags_statements:
            if variant.tag_setting and (tag := short_tag(context, MAX_TAG_BYTES)):
                overlay[variant.tag_setting] = tag
            if variant.tags_by_comment:
                comment = trailing_comment(text, variant.dialect, context)
        if variant.scan_limit_setting and context.max_scanned_bytes is not None:
            most = min(context.max_scanned_bytes, self._scan_limit or context.max_scanned_bytes)
            overlay[variant.scan_limit_setting] = str(max(most, 1))  # 0 is no limit
        return await self._execute(text, overlay, comment)

    async def _check_reads(self, text: str) -> None:
        """Raise StatementRejected unless the text is known to read, because these servers have no read-only mode."""
        rule = "This call must only read"
        refusal = partial(read_only_refusal, text, self._variant.dialect, strict=True, rule=rule)
        if found := refusal() if is_quick(text) else await asyncio.to_thread(refusal):
            raise errors.StatementRejected(found)

    async def _execute(self, text: str, conf_overlay: Mapping[str, str], comment: str = "") -> Hs2Operation:
        """Start a statement, followed by `comment`, which errors do not quote."""
        request = structs.TExecuteStatementReq(
            session_handle=self.handle,
            statement=text + comment,
            conf_overlay=dict(conf_overlay) or None,
            run_async=True,
        )
        try:
            with call_errors(Purpose.SUBMIT, hidden=comment):
                reply = await self._wire.call_opener(
                    messages.EXECUTE_STATEMENT, request, limit_s=self._wire.limits.execute_s
                )
        except errors.SessionLost:
            self._lost = True
            raise
        if reply.operation_handle is None:
            raise errors.StatementRejected("The engine accepted the statement but returned no operation handle.")
        return Hs2Operation(self._wire, self.handle, reply.operation_handle, self._variant, hidden=comment)

    def _token(self, operation: Hs2Operation) -> str:
        session, statement = self.handle.session_id, operation.handle.operation_id
        return ResumeToken(
            host=self._member.host,
            port=self._member.port,
            session=(session.guid, session.secret),
            operation=(statement.guid, statement.secret),
            has_result_set=operation.handle.has_result_set,
        ).model_dump_json()

    def _is_connected(self) -> bool:
        return not self._lost and self._wire.is_connected


async def _open_session(
    connection: Hs2Connection, address: Hs2Address, variant: Hs2Variant, user: User, options: SessionOptions
) -> structs.TSessionHandle:
    """Open a session.

    Raises EngineUnavailable, CredentialsRequired, and StatementRejected if the database or a setting is refused.
    """
    request = structs.TOpenSessionReq(
        client_protocol=structs.TProtocolVersion.V11,
        username=(options.credentials.username if options.credentials else address.username) or user.username,
        configuration=session_configuration(address, variant, user, options),
    )
    with call_errors(Purpose.OPEN):
        reply = await connection.call(messages.OPEN_SESSION, request, limit_s=address.limits.execute_s)
    if reply.session_handle is None:
        raise errors.EngineUnavailable("The engine opened a session but returned no session handle.")
    if reply.server_protocol_version < structs.TProtocolVersion.V6:
        with suppress(*CALL_FAILURES):
            request_end = structs.TCloseSessionReq(session_handle=reply.session_handle)
            await connection.call(messages.CLOSE_SESSION, request_end, limit_s=address.limits.end_s)
        raise errors.EngineUnavailable("The engine's HiveServer2 protocol version is too old.")
    return reply.session_handle


def session_configuration(
    address: Hs2Address, variant: Hs2Variant, user: User, options: SessionOptions
) -> dict[str, str]:
    """Build the configuration for OpenSession. Session settings override the address's settings.

    Raises StatementRejected for an invalid setting name, which servers would silently accept.
    """
    chosen = {**address.session_conf, **options.settings}
    for name in chosen:
        if not _SETTING_NAME.fullmatch(name):
            raise errors.StatementRejected(f'"{name[:100]}" is not a valid setting name.')
    configuration = {f"{variant.setting_prefix}{name}": value for name, value in chosen.items()}
    configuration.update(variant.session_conf)
    if variant.timeout_keys is not None:
        limits = zip(variant.timeout_keys, (address.query_timeout_s, address.session_timeout_s), strict=True)
        configuration.update({key: str(seconds) for key, seconds in limits if seconds})
    database = options.database or address.database
    if database:
        configuration[_DATABASE_KEY] = variant.database_name(database)
    if proxy_user := address.proxy_user(user, options):
        configuration[variant.proxy_user_key] = proxy_user
    return configuration


class Hs2Engine:
    """Runs statements on one group of servers. Later sessions with the same login reuse idle connections."""

    lists_functions = True

    def __init__(self, address: Hs2Address, variant: Hs2Variant, *, read_only: bool = False) -> None:
        self._address = address
        self._read_only = read_only
        self._variant = variant
        self.dialect = variant.dialect
        self.capabilities = replace(
            variant.capabilities,
            wants_credentials=address.wants_credentials,
            wants_external_token=address.mechanism is Mechanism.JWT,
            acts_as_caller=address.impersonation or not address.username,
            endpoints=tuple((member.host, member.port) for member in address.members),
            parameters=variant.literals.support if variant.literals else NO_PARAMETERS,
        )
        self._pool = ConnectionPool(partial(connect, address), max_idle=_MAX_IDLE, idle_s=_IDLE_S)
        self._turns = itertools.count()
        self._background = Tasks()
        self._closing_later = Tasks()
        self._is_closed = False
        self._executor = ThreadPoolExecutor(_WRITER_THREADS, thread_name_prefix=variant.dialect)

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[Hs2Session]:
        """Open a session on a reachable member. Leaving the context cancels its running statement.

        If the caller is canceled while the server opens the session, the session is closed once it is open.
        """
        login, connection = await self._connect(user, options)
        wire = self._wire(login, connection)

        async def open_session() -> Hs2Session:
            handle = await _open_session(connection, self._address, self._variant, user, options)
            return self._new_session(wire, handle, login.member, options)

        opening = asyncio.create_task(open_session(), name="open session")
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
        """Attach to a statement that another process started.

        Works only if the server keeps a session after its connection has closed. Raises OutcomeUnknown if the statement
        no longer exists there.
        """
        resumed = ResumeToken.from_text(token)
        member = Member(resumed.host, resumed.port)
        if member not in self._address.members:
            raise errors.OutcomeUnknown("Results have expired: their server is no longer configured.")
        login = self._address.login(member, user, options)
        connection = await self._pool.take(login)
        wire = self._wire(login, connection)
        session: Hs2Session | None = None
        try:
            request = structs.TGetOperationStatusReq(operation_handle=resumed.operation_handle)
            with call_errors(Purpose.FOLLOW):  # OutcomeUnknown if the server no longer knows the operation
                await wire.call_with_retries(messages.GET_OPERATION_STATUS, request, limit_s=wire.limits.status_s)
            session = self._new_session(wire, resumed.session_handle, member, options)
            yield session, session.adopt(resumed.operation_handle, rows_read=rows_read)
        finally:
            await asyncio.shield(self._background.start(self._leave(login, wire, session), name="leave session"))

    @asynccontextmanager
    async def catalog(self, user: User, options: SessionOptions) -> AsyncGenerator[Catalog]:
        async with self.session(user, options) as session:
            yield _CATALOGS.get(self._variant.dialect, HiveCatalog)(session)

    @asynccontextmanager
    async def loader(self, user: User, options: SessionOptions) -> AsyncGenerator[Hs2Loader]:
        """Open a session for imports. Raises StatementDenied if the engine does not support them."""
        dialect = LOADER_DIALECTS.get(self._variant.dialect)
        if dialect is None:
            raise errors.StatementDenied(f"Tables cannot be created from files in {self._variant.dialect}.")
        database = options.database or self._address.database
        async with self.session(user, options) as session:
            yield Hs2Loader(session, self._executor, dialect, database, read_only=self._read_only)

    async def ping(self) -> None:
        """Check that a member is available by opening a session as the service.

        If only callers can log in, check instead that a member's host name can be resolved.
        """
        if self._address.needs_caller:
            rules = self._address.rules
            await connect_first(self._address.members, lambda member: rules.resolve(member.host, member.port))
            return
        async with self.session(_PING_USER, SessionOptions()):
            return

    async def close(self) -> None:
        """Close all connections, after waiting up to `limits.end_s` for sessions to close."""
        self._is_closed = True
        await self._background.aclose(grace_s=self._address.limits.end_s)
        await self._closing_later.aclose()
        await self._pool.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _new_session(
        self, wire: Wire, handle: structs.TSessionHandle, member: Member, options: SessionOptions
    ) -> Hs2Session:
        address, variant = self._address, self._variant
        return Hs2Session(
            wire,
            handle,
            member,
            variant,
            tags_statements=address.tags_statements,
            scan_limit=address.scan_limit(variant, options),
        )

    async def _connect(self, user: User, options: SessionOptions) -> tuple[Hs2Login, Hs2Connection]:
        """Connect to a reachable member, starting with the next one in rotation."""
        members = self._address.members
        first = next(self._turns) % len(members)

        async def take(member: Member) -> tuple[Hs2Login, Hs2Connection]:
            login = self._address.login(member, user, options)
            return login, await self._pool.take(login)

        return await connect_first(members[first:] + members[:first], take)

    def _wire(self, login: Hs2Login, opener: Hs2Connection) -> Wire:
        opener.opened_session = True
        return Wire(opener, partial(self._pool.take, login), self._address.limits, self._address.cell_max_bytes)

    async def _leave_once_open(self, login: Hs2Login, wire: Wire, opening: asyncio.Task[Hs2Session]) -> None:
        """Close a session once it is open.

        Closing the connection before that would leave the session open: Hive keeps it until its handle is closed.
        """
        session: Hs2Session | None = None
        try:
            with suppress(errors.EngineError):  # already raised to the caller
                session = await opening
        finally:
            await self._leave(login, wire, session)

    async def _leave(self, login: Hs2Login, wire: Wire, session: Hs2Session | None) -> None:
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

    async def _close_later(self, login: Hs2Login, session: Hs2Session) -> None:
        """Retry closing a session after a network failure. Otherwise its statement would keep running."""
        retries = Retries(self._address.limits.retry_s)
        while await retries.pause():
            try:
                async with self._pool.borrowed(login) as connection:
                    request = structs.TCloseSessionReq(session_handle=session.handle)
                    with suppress(ServerRefused):  # the session no longer exists, but the connection is usable
                        await connection.call(messages.CLOSE_SESSION, request, limit_s=self._address.limits.end_s)
            except (errors.EngineUnavailable, ConnectionLost):
                continue
            except (errors.EngineError, *CALL_FAILURES):
                return  # the server was reached, so there is nothing left to do
            return
