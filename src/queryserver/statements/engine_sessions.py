"""The engine sessions of this process, which of them a statement runs in, and credentials (Contract editor 9)."""

import asyncio
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID
from weakref import WeakValueDictionary

import structlog

from queryserver import errors
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.connectors.secrets import masked
from queryserver.engines.protocol import Credentials, Engine, EngineSession, ResumableEngine, SessionOptions
from queryserver.errors.statements import CredentialsRequired, EngineJwtRequired
from queryserver.identity.model import ExternalToken, SealedToken, User
from queryserver.platform.fair_queue import Slots
from queryserver.platform.sealing import Sealer
from queryserver.statements.execution import Attached
from queryserver.statements.model import Assignment
from queryserver.statements.session_reach import NO_REACH, NOTHING_REACHED, Reach, SessionReach
from queryserver.statements.session_repository import SessionRecord, SessionRecords

log = structlog.get_logger(__name__)

_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})

ImportOpener: TypeAlias = Callable[
    [Assignment, User, Engine, SessionOptions], AbstractAsyncContextManager[EngineSession]
]
"""Opens what makes a table of a file, in place of a session with the engine."""

_NO_SERVER = "Results have expired: no server can go on with this statement."


class CredentialBook:
    """Keeps credentials sealed in the record of the session that brought them, until that session is closed.

    Tokens of other issuers are not kept here: they come with the call, or sealed with the statement that needs them.
    `passes_tokens` False: no engine ever gets one.
    """

    def __init__(
        self,
        sessions: SessionRecords,
        connectors: Connectors,
        sealer: Sealer,
        *,
        passes_tokens: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sessions = sessions
        self._connectors = connectors
        self._sealer = sealer
        self._passes_tokens = passes_tokens
        self._clock = clock

    async def options(
        self,
        user: User,
        connector: Connector,
        *,
        database: str | None = None,
        settings: Mapping[str, str] = _NO_SETTINGS,
        token: SealedToken | None = None,
    ) -> SessionOptions:
        """The options of a session; `token` replaces that of the call. Raises CredentialsRequired."""
        external = None
        if self._wants_token(connector):
            # The token of the statement comes first: it says as whom the statement was sent.
            external = user.external_token
            if token:
                try:
                    external = ExternalToken(self._sealer.unseal(token.content).decode(), token.expires_at)
                except ValueError:  # its key is gone
                    message = "The token that came with the statement cannot be read any more."
                    raise CredentialsRequired(message) from None
        if external is not None and external.expires_at <= self._clock():
            raise CredentialsRequired("Your token has expired before the data source could be asked.")
        return SessionOptions(
            database=database,
            settings=settings,
            credentials=await self.of(user, connector),
            external_token=external.text if external else None,
            token_expires_at=external.expires_at if external else None,
        )

    def require_token(self, user: User, connector: Connector) -> None:
        """Raises EngineJwtRequired when the engine takes the tokens of callers and this call came with none to pass."""
        if not self._connectors.engine(connector).capabilities.wants_external_token:
            return
        if not self._passes_tokens:
            raise EngineJwtRequired("This server passes no tokens on: desktop.use_thrift_http_jwt is off.")
        if user.external_token is None:
            raise EngineJwtRequired(f"The connector {connector.nice_name} needs a token of your identity provider.")

    def sealed_token(self, user: User, connector: Connector) -> SealedToken | None:
        """For the record of a statement; None where the engine takes none."""
        token = user.external_token
        if token is None or not self._wants_token(connector):
            return None
        return SealedToken(self._sealer.seal(token.text.encode()), token.expires_at)

    async def of(self, user: User, connector: Connector) -> Credentials | None:
        """What the caller gave last for this connector; no query where the connector has its own login."""
        if not self._connectors.engine(connector).capabilities.wants_credentials:
            return None
        sealed = await self._sessions.credentials(user.id, connector.key)
        if sealed is None:
            return None
        try:
            username, password, *places = json.loads(self._sealer.unseal(sealed))
        except ValueError as error:  # their key is gone: the caller can give them again
            log.warning("credentials cannot be read", connector=connector.key, reason=str(error))
            return None
        # What was given for one address never goes to another.
        return Credentials(username, password) if places == self._places(connector) else None

    async def required(self, user: User, connector: Connector) -> Credentials | None:
        """The same; None only where the connector has its own login. Raises CredentialsRequired."""
        given = await self.of(user, connector)
        if given is None and self._connectors.engine(connector).capabilities.wants_credentials:
            raise CredentialsRequired("The data source wants credentials: call create_session with user and password.")
        return given

    def seal(self, credentials: Credentials, connector: Connector) -> bytes:
        """For the record of a session."""
        known = [credentials.username, credentials.password, *self._places(connector)]
        return self._sealer.seal(json.dumps(known).encode())

    def _places(self, connector: Connector) -> list[str]:
        """The addresses of its connections; if only the driver knows them, a digest of all options."""
        places = self._connectors.engine(connector).capabilities.endpoints
        if places:
            return [f"{host}:{port}" for host, port in places]
        options = json.dumps(masked(connector.options), sort_keys=True, default=str)
        return [hashlib.sha256(options.encode()).hexdigest()]

    def _wants_token(self, connector: Connector) -> bool:
        return self._passes_tokens and self._connectors.engine(connector).capabilities.wants_external_token


class HeldSession:
    """One open engine session with the task that keeps it open. Statements take turns in the order of their calls."""

    def __init__(
        self,
        session_id: int,
        connector: str,
        user: User,
        *,
        named: bool,
        idle: timedelta,
        reach: SessionReach = NOTHING_REACHED,
    ) -> None:
        """`idle`: how long it is kept without use. `reach`: what its options give it."""
        self.id = session_id
        self.connector = connector
        self.user_id = user.id
        self.named = named
        self.reach = reach
        self._user = user
        self._token_expires_at: int | None = None
        self.is_recorded = False
        self.scripts: set[UUID] = set()
        """Operations that run in it: between two statements of a script it is in use as well."""
        self.place = AsyncExitStack()
        """The place of the script that it was opened for, among those of its user."""
        self.turn = asyncio.Lock()
        self._idle_s = idle.total_seconds()
        self._last_used = time.monotonic()
        self._opened: asyncio.Future[EngineSession] = asyncio.get_running_loop().create_future()
        self._released = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def open(self, use: AbstractAsyncContextManager[Engine], options: SessionOptions) -> None:
        """Open the engine session; `use` keeps its engine open. Raises what the engine raises."""
        self._token_expires_at = options.token_expires_at
        self._keeper = asyncio.create_task(self._keep(use, options), name=f"session-{self.id}")
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, self._opened, return_exceptions=True)
            raise

    async def close(self) -> None:
        """Close it; work of the engine in it ends."""
        await self.place.aclose()
        self._released.set()
        if self._keeper is not None:
            await asyncio.gather(self._keeper, return_exceptions=True)

    @property
    def engine_session(self) -> EngineSession:
        return self._opened.result()

    def touch(self) -> None:
        """Note a use by its user."""
        self._last_used = time.monotonic()

    @property
    def is_in_use(self) -> bool:
        """A statement or a script runs in it."""
        return bool(self.scripts) or self.turn.locked()

    @property
    def unused_s(self) -> float:
        """Time since its last use; 0 while a statement or a script runs in it."""
        return 0 if self.is_in_use else time.monotonic() - self._last_used

    @property
    def is_idle(self) -> bool:
        """Nothing runs in it, and its idle time is over or its login has expired."""
        return not self.is_in_use and (self.unused_s >= self._idle_s or self.is_expired)

    @property
    def is_expired(self) -> bool:
        """The token that it was opened with has expired."""
        return self._token_expires_at is not None and self._token_expires_at <= time.time()

    async def _keep(self, use: AbstractAsyncContextManager[Engine], options: SessionOptions) -> None:
        try:
            async with use as engine, engine.session(self._user, options) as session:
                self._opened.set_result(session)
                await self._released.wait()
        except errors.EngineError as error:
            if not self._opened.done():
                self._opened.set_exception(error)
            else:
                log.warning("engine session did not close cleanly", session=self.id, code=error.code)
        except BaseException as error:  # a cancel too: the task that waits for the opening must end
            if not self._opened.done():
                self._opened.set_exception(error if isinstance(error, Exception) else errors.SessionLost("Closed."))
            raise


class HeldSessions:
    """The sessions of this process by id. `forget` closes the record of one that is gone."""

    def __init__(self, forget: Callable[[int], Awaitable[object]]) -> None:
        self._forget = forget
        self._sessions: dict[int, HeldSession] = {}

    def get(self, session_id: int) -> HeldSession | None:
        return self._sessions.get(session_id)

    def ids(self) -> Sequence[int]:
        return list(self._sessions)

    async def open(self, held: HeldSession, use: AbstractAsyncContextManager[Engine], options: SessionOptions) -> None:
        """Open and hold it. Raises what the engine raises; then nothing is held."""
        await held.open(use, options)
        self._sessions[held.id] = held

    @asynccontextmanager
    async def turn(self, held: HeldSession, user: User, *, operation_id: str = "") -> AsyncGenerator[EngineSession]:
        """Wait for the turn in this session. Raises SessionLost when it is dead or expired; it is dropped then.

        `user` is the one that it was opened for, with the rights of this turn.
        """
        async with held.turn:
            if self._sessions.get(held.id) is not held or held.is_expired or not await held.engine_session.is_alive():
                if self._sessions.get(held.id) is held:
                    await self.drop(held.id)
                raise errors.SessionLost(f"Invalid session Id {held.id}: the session is gone.")
            held.touch()
            try:
                async with held.reach.acting(user, operation_id=operation_id):
                    yield held.engine_session
            finally:
                held.touch()

    async def drop(self, session_id: int) -> bool:
        """Close one; False when this process does not hold it."""
        held = self._sessions.pop(session_id, None)
        if held is None:
            return False
        await held.close()
        try:
            await self._forget(session_id)
        except errors.DatabaseUnavailable:
            log.warning("record of a closed session stays open until the next heartbeat", session=session_id)
        return True

    async def _drop_all(self, sessions: Iterable[HeldSession], is_due: Callable[[HeldSession], bool]) -> None:
        """One by one: while one closes, a statement may come for the next, or another task may drop it."""
        for held in list(sessions):
            if is_due(held) and self._sessions.get(held.id) is held:
                await self.drop(held.id)

    async def drop_of(self, gone: Callable[[str], bool]) -> None:
        """Close those whose connectors are gone; statements that run in them end."""
        await self._drop_all(self._sessions.values(), lambda held: gone(held.connector))

    async def drop_owned_by(self, users: Collection[int]) -> None:
        """Close the sessions of these users, all at once; statements that run in them end."""
        theirs = [held.id for held in self._sessions.values() if held.user_id in users]
        await asyncio.gather(*(self.drop(session_id) for session_id in theirs))

    async def drop_idle(self) -> None:
        await self._drop_all(self._sessions.values(), lambda held: held.is_idle)

    async def end_script(self, session_id: int, script: UUID, *, closes: bool) -> None:
        """No further statement of a script runs in the session; `closes`: it was opened for the script."""
        held = self._sessions.get(session_id)
        if held is not None:
            held.scripts.discard(script)
            if not held.scripts:
                await held.place.aclose()
        if closes:
            await self.drop(session_id)

    async def make_room(self, user_id: int, *, keep: int) -> None:
        """Close those sessions between statements of scripts that are unused longest, until `keep` are open."""
        kept = [one for one in self._sessions.values() if one.user_id == user_id and not one.named]
        unused = sorted((one for one in kept if one.unused_s > 0), key=lambda one: one.unused_s)
        oldest = unused[max(keep - (len(kept) - len(unused)), 0) :]
        await self._drop_all(oldest, lambda held: not held.is_in_use)

    async def aclose(self) -> None:
        await asyncio.gather(*(self.drop(session_id) for session_id in list(self._sessions)))

    def owners(self) -> set[int]:
        return {held.user_id for held in self._sessions.values()}

    def named(self) -> Counter[tuple[str, int]]:
        """The number of open and recorded named sessions by connector and user."""
        return Counter(
            (held.connector, held.user_id) for held in self._sessions.values() if held.named and held.is_recorded
        )

    def recorded(self) -> Sequence[int]:
        """The sessions whose records name this process."""
        return [held.id for held in self._sessions.values() if held.is_recorded]

    async def reconcile(self, recorded: Sequence[int], renewed: Sequence[int]) -> None:
        """Close the sessions among `recorded` whose records were not renewed, and renewed records without a session."""
        for session_id in set(recorded) - set(renewed):
            await self.drop(session_id)
        for session_id in set(renewed) - set(self._sessions):
            await self._forget(session_id)


class SessionShares:
    """`per_connector` named sessions of one process, at most half of them of one user.

    Of the last quarter a user gets no more than the share that each would have if one more user came.
    """

    def __init__(self, held: HeldSessions, *, per_connector: int) -> None:
        self._held = held
        self._per_connector = per_connector
        self._opening: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def opening(self, connector: str, user_id: int, *, max_open: int) -> Generator[None]:
        """Around the opening of one more session of a user, who may have `max_open` in all.

        Sessions that are being opened count: a connection exists before its record. Raises too_many_sessions.
        """
        open_here = self._opening + self._held.named()
        own = sum(count for (_, owner), count in open_here.items() if owner == user_id)
        if own >= max_open:
            raise errors.too_many_sessions(f"{max_open} sessions of yours are open. Close some of them.")
        by_user = {owner: count for (key, owner), count in open_here.items() if key == connector}
        taken, most = sum(by_user.values()), self._per_connector
        if taken >= most:
            raise errors.too_many_sessions(f"All {most} sessions of this connector are in use.")
        share = most // 2 if taken < most - most // 4 else most // (len(by_user.keys() | {user_id}) + 1)
        if by_user.get(user_id, 0) >= max(share, 1):
            raise errors.too_many_sessions(
                f"{by_user[user_id]} sessions of yours are open on this connector, the share of one user."
                " Close some of them."
            )
        key = (connector, user_id)
        self._opening[key] += 1
        try:
            yield
        finally:
            self._opening[key] -= 1
            if not self._opening[key]:
                del self._opening[key]


@dataclass(eq=False, kw_only=True)
class SessionOpener:
    """Finds, opens and keeps engine sessions for the statements of one process."""

    owner: str
    held: HeldSessions
    slots: Slots
    records: SessionRecords
    connectors: Connectors
    credentials: CredentialBook
    lease: timedelta
    max_kept: int
    max_named: int
    imports: ImportOpener | None = None
    reach: Reach = NO_REACH
    # A lock exists as long as a task holds it or waits for it.
    _openings: WeakValueDictionary[int, asyncio.Lock] = field(default_factory=WeakValueDictionary, init=False)

    def __post_init__(self) -> None:
        self._shares = SessionShares(self.held, per_connector=self.max_named)
        # Statements that open a session to be kept: it is a connection to the data source, also while they wait to run.
        self._first_statements = Slots(per_connector=sys.maxsize, per_user=self.max_kept)

    @asynccontextmanager
    async def session(self, assignment: Assignment, user: User) -> AsyncGenerator[EngineSession]:
        """The session for one statement, within the limits. Raises SessionLost when its named session is gone."""
        held = self.held.get(assignment.session_id)
        # An open session continues with what it was opened with, also when its connector, as it is now, does not run.
        connector = (self.connectors.known if held else self.connectors.find)(assignment.connector)
        if connector is None:
            raise errors.SessionLost(f"The connector {assignment.connector} is no longer configured.")
        async with AsyncExitStack() as stack:
            if assignment.import_plan is not None:
                if self.imports is None:
                    raise errors.rejected_by_rule("This server imports no files.")
                options = await self.credentials.options(user, connector, token=assignment.token)
                await stack.enter_async_context(self.slots.slot(connector.key, user.id))
                engine = await stack.enter_async_context(self.connectors.using(connector))
                yield await stack.enter_async_context(self.imports(assignment, user, engine, options))
                return
            # Never replaced silently: the effects of USE and SET are lost.
            if held is None and (assignment.in_named_session or assignment.needs_session):
                raise errors.SessionLost(f"Invalid session Id {assignment.session_id}: the session is gone.")
            if held is None and assignment.keeps_session:
                held = await self._kept(assignment, connector, user, stack)
            if held is None:
                wanted = self.connectors.engine(connector).capabilities
                options = (
                    await self._options(assignment, connector, user)
                    if wanted.wants_credentials or wanted.wants_external_token
                    else SessionOptions(database=assignment.database, settings=assignment.settings)
                )
                reach = self._reach(connector)
                await stack.enter_async_context(self.slots.slot(connector.key, user.id))
                engine = await stack.enter_async_context(self.connectors.using(connector))
                await stack.enter_async_context(reach.acting(user, operation_id=_operation_id(assignment)))
                yield await stack.enter_async_context(engine.session(user, reach.given_to(options)))
                return
            if not (held.named or assignment.keeps_session):
                stack.push_async_callback(self.held.drop, held.id)
            turn = self.held.turn(held, user, operation_id=_operation_id(assignment))
            session = await stack.enter_async_context(turn)
            if (script := assignment.lease.operation_id) is not None:
                held.scripts.add(script)
            await stack.enter_async_context(self.slots.slot(connector.key, user.id))
            yield session

    @asynccontextmanager
    async def reattached(self, assignment: Assignment, user: User) -> AsyncGenerator[Attached]:
        """The statement that another runner has left at the engine, within the limits of its connector.

        Raises OutcomeUnknown when it cannot be followed, EngineUnavailable.
        """
        connector = self.connectors.find(assignment.connector)
        left = assignment.resumption
        if connector is None or left is None:
            raise errors.OutcomeUnknown(_NO_SERVER)
        try:
            options = await self._options(assignment, connector, user)
        except errors.CredentialsRequired as error:
            # The engine may have done it all: the message must not suggest to send it again.
            raise errors.OutcomeUnknown(f"Results have expired: {error.message}") from error
        async with self.slots.slot(connector.key, user.id), self.connectors.using(connector) as engine:
            if not isinstance(engine, ResumableEngine):
                raise errors.OutcomeUnknown(_NO_SERVER)
            async with engine.reattach(user, options, left.mark.token, rows_read=left.rows) as attached:
                yield attached

    async def open_named(
        self, record: SessionRecord, connector: Connector, user: User, options: SessionOptions, *, max_open: int
    ) -> bool:
        """Open and record the session of create_session; False when the user has `max_open` already.

        Raises too_many_sessions beyond the share of one user, what the engine raises, DatabaseUnavailable; then nothing
        is open.
        """
        with self._shares.opening(connector.key, user.id, max_open=max_open):
            return await self._open(record, connector, user, options, max_open=max_open)

    async def _kept(
        self, assignment: Assignment, connector: Connector, user: User, stack: AsyncExitStack
    ) -> HeldSession | None:
        """A session for the statements of one script: recorded, so that the next one is sent to this process.

        Of several statements that continue one script at once, the first opens it and the others find it.
        """
        async with self._openings.setdefault(assignment.session_id, asyncio.Lock()):
            held = self.held.get(assignment.session_id)
            if held is not None:
                return held
            script, place = assignment.lease.operation_id, AsyncExitStack()
            # The session of a script is open for all its statements, and so holds its place as long.
            slot = self._first_statements.slot(connector.key, user.id)
            await (stack if script is None else place).enter_async_context(slot)
            stack.push_async_callback(self._leave, place, assignment.session_id)
            await self.held.make_room(user.id, keep=self.max_kept - 1)
            record = SessionRecord(
                id=assignment.session_id,
                guid="",
                user_id=user.id,
                connector=connector.key,
                dialect=connector.dialect,
                named=False,
                properties=(),
                settings=assignment.settings,
                sealed_credentials=None,
                owner=self.owner,
                is_live=True,
                idle=connector.limits.session_idle,
                last_used_at=datetime.now(UTC),
            )
            options = await self._options(assignment, connector, user)
            await self._open(record, connector, user, options, max_open=0, script=script, place=place)
            return self.held.get(record.id)

    async def _leave(self, place: AsyncExitStack, session_id: int) -> None:
        """Give back the place of a script whose session was not opened."""
        held = self.held.get(session_id)
        if held is None or held.place is not place:
            await place.aclose()

    async def _open(
        self,
        record: SessionRecord,
        connector: Connector,
        user: User,
        options: SessionOptions,
        *,
        max_open: int,
        script: UUID | None = None,
        place: AsyncExitStack | None = None,
    ) -> bool:
        reach = self._reach(connector)
        held = HeldSession(record.id, connector.key, user, named=record.named, idle=record.idle, reach=reach)
        if script is not None and place is not None:
            held.scripts.add(script)
            held.place = place
        await self.held.open(held, self.connectors.using(connector), reach.given_to(options))
        try:
            held.is_recorded = await self.records.open(record, lease=self.lease, max_open=max_open)
        finally:
            if not held.is_recorded:
                await self.held.drop(record.id)
        return held.is_recorded

    def _reach(self, connector: Connector) -> SessionReach:
        capabilities = self.connectors.engine(connector).capabilities
        return self.reach.of_session(capabilities, read_only=connector.read_only)

    async def _options(self, assignment: Assignment, connector: Connector, user: User) -> SessionOptions:
        return await self.credentials.options(
            user, connector, database=assignment.database, settings=assignment.settings, token=assignment.token
        )


def _operation_id(assignment: Assignment) -> str:
    """The id that the caller knows: of the script, where the statement is one of several."""
    return str(assignment.lease.operation_id or assignment.lease.statement_id)
