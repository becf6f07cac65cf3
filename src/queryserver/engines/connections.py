"""What connections to data sources share: a pool, pauses between attempts, TLS, and files of embedded databases."""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Generic, Protocol, TypeVar

from queryserver.errors.files import InvalidPath
from queryserver.errors.statements import EngineError, EngineUnavailable


class PooledConnection(Protocol):
    """What the pool needs of a connection. None of it raises."""

    def is_closed(self) -> bool:
        """Whether the connection is gone."""
        ...

    async def clean(self) -> bool:
        """Make the connection as it was after its login; False when there is any doubt. Limited in time."""
        ...

    async def shut(self) -> None:
        """Close the connection. Limited in time."""
        ...


LoginT = TypeVar("LoginT")
ConnectionT = TypeVar("ConnectionT", bound=PooledConnection)


@dataclass(frozen=True, slots=True)
class DatabaseLogin:
    """The user of a connection, and the database that it starts in where that is the connection's own."""

    user: str
    password: str = field(repr=False)
    database: str | None = None


class ConnectionPool(Generic[LoginT, ConnectionT]):
    """Idle connections by login, clean for the next session: a login costs several round trips.

    At most `max_idle` wait, each at most `idle_s`. Callers bound how many are in use at once.
    """

    def __init__(self, connect: Callable[[LoginT], Awaitable[ConnectionT]], *, max_idle: int, idle_s: float) -> None:
        self._connect = connect
        self._max_idle = max_idle
        self._idle_s = idle_s
        self._idle: deque[tuple[float, LoginT, ConnectionT]] = deque()
        self._reaper: asyncio.Task[None] | None = None
        self._closed = False

    async def take(self, login: LoginT) -> ConnectionT:
        """A clean connection, the one used last if there is one.

        Raises EngineUnavailable, CredentialsRequired, StatementRejected (unknown database).
        """
        if self._closed:
            raise EngineUnavailable("This connector is closed.")
        while (connection := self._pop(login)) is not None:
            if not connection.is_closed():
                return connection
            # The other side closed it: our end still has its socket.
            await connection.shut()
        return await self._connect(login)

    async def give_back(self, login: LoginT, connection: ConnectionT) -> None:
        """Keep the connection for the next session, or close it: when it is in doubt, or enough are idle."""
        is_kept = False
        try:
            # Checked again afterwards: cleaning may take round trips.
            is_kept = self._has_room and await connection.clean() and self._has_room
        finally:
            if not is_kept:
                await connection.shut()
        if is_kept:
            self._idle.append((time.monotonic(), login, connection))
            if self._reaper is None or self._reaper.done():
                self._reaper = asyncio.create_task(self._reap(), name="idle connections")

    @asynccontextmanager
    async def borrowed(self, login: LoginT) -> AsyncGenerator[ConnectionT]:
        """A clean connection for one call; any exception puts it in doubt. Raises as `take`."""
        connection = await self.take(login)
        try:
            yield connection
        except BaseException:  # a cancel too: the connection is in doubt
            await connection.shut()
            raise
        await self.give_back(login, connection)

    async def close(self) -> None:
        """Close all idle connections; those in use are closed when they come back. Idempotent."""
        self._closed = True
        await give_up(self._reaper)
        while self._idle:
            await self._idle.pop()[2].shut()

    @property
    def _has_room(self) -> bool:
        return not self._closed and len(self._idle) < self._max_idle

    def _pop(self, login: LoginT) -> ConnectionT | None:
        """The connection of `login` that was used last."""
        for position in reversed(range(len(self._idle))):
            _, owner, connection = self._idle[position]
            if owner == login:
                del self._idle[position]
                return connection
        return None

    async def _reap(self) -> None:
        """Close what was not taken for `idle_s`; ends when none is left."""
        while self._idle:
            rest_s = self._idle[0][0] + self._idle_s - time.monotonic()
            if rest_s > 0:
                await asyncio.sleep(rest_s)
            else:
                await self._idle.popleft()[2].shut()


PlaceT = TypeVar("PlaceT")
ReachedT = TypeVar("ReachedT")


async def first_reached(
    places: Sequence[PlaceT],
    connect: Callable[[PlaceT], Awaitable[ReachedT]],
    *,
    failure: type[EngineError] = EngineUnavailable,
) -> ReachedT:
    """What `connect` gives for the first place where it does not raise `failure`. Raises that of the last place."""
    *others, last = places
    for place in others:
        with suppress(failure):
            return await connect(place)
    return await connect(last)


async def give_up(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel the tasks that still run, once, and wait for their end. What any of them raised is dropped."""
    known = {task for task in tasks if task is not None}
    for task in known:
        task.cancel()
    if known:
        await asyncio.wait(known)
    for task in known:
        if not task.cancelled():
            task.exception()


RETRY_S = 60.0
"""How long a call about a statement at an engine is repeated without success, before its outcome counts as unknown."""

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Retries:
    """Growing pauses between the attempts of one call. They end `for_s` seconds after this object was created."""

    def __init__(self, for_s: float) -> None:
        self._until = asyncio.get_running_loop().time() + for_s
        self._pause_s = _FIRST_PAUSE_S

    async def pause(self, *, least_s: float = 0) -> bool:
        """Wait for the next attempt. False, without a wait, when no time is left for one."""
        pause_s = max(self._pause_s, least_s)
        if asyncio.get_running_loop().time() + pause_s > self._until:
            return False
        await asyncio.sleep(pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return True


_PLAIN_TEXT = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""OpenSSL's names, of 3.0 and from 3.2 on, for an answer that is no TLS at all."""


class _NamedContext(ssl.SSLContext):
    """Expects the certificate of `server_name`, whatever address the driver says it connects to."""

    server_name = ""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,  # noqa: ARG002 an address
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        name = self.server_name
        return super().wrap_bio(incoming, outgoing, server_side=server_side, server_hostname=name, session=session)

    def wrap_socket(self, sock: Any, *_: Any, server_hostname: Any = None, **options: Any) -> ssl.SSLSocket:  # noqa: ARG002 as above
        return super().wrap_socket(sock, server_hostname=self.server_name, **options)


def client_tls(server_name: str, *, validate: bool = True, check_name: bool = True, ca: str = "") -> ssl.SSLContext:
    """TLS of a client of `server_name`, for drivers that connect to an address.

    `ca` is PEM text of the authorities to trust, empty for those of the system. Without `validate` any certificate is
    accepted; without `check_name` one of any server of a trusted authority. Raises ValueError: `ca` is not PEM.
    """
    context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.server_name = server_name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = validate and check_name
    context.verify_mode = ssl.CERT_REQUIRED if validate else ssl.CERT_NONE
    if not validate:
        return context
    if not ca:
        context.load_default_certs()
        return context
    try:
        context.load_verify_locations(cadata=ca)
    except ssl.SSLError as error:
        message = "is not PEM text of certificates"
        raise ValueError(message) from error
    return context


_CAUSES = 10
NO_TLS = "it offers no TLS"


def no_connection(server: str, error: BaseException, *, reason: str = "") -> str:
    """The message about a connection that could not be made: with the reason where it is TLS, or a given `reason`."""
    reason = reason or _tls_reason(error)
    return f"No connection to {server} could be made{': ' if reason else ''}{reason}."


def _tls_reason(error: BaseException) -> str:
    """The message of the TLS library, which names neither files nor addresses but those of the certificate."""
    cause: BaseException | None = error
    for _ in range(_CAUSES):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate was not accepted ({cause.verify_message.rstrip('.')})"
        if isinstance(cause, ssl.SSLError):
            return NO_TLS if cause.reason in _PLAIN_TEXT else "TLS could not be agreed on"
        cause = cause and (cause.__cause__ or cause.__context__)
    return ""


MEMORY = ":memory:"


def database_file(root: Path | None, path: str) -> Path:
    """The file that `path` names below `root`. Raises InvalidPath: absolute, with `..`, odd, or without a root."""
    if root is None:
        raise InvalidPath("Only :memory: is allowed: local_database_dir is not set.")
    parts = PurePosixPath(path).parts
    if path.startswith("~"):
        raise InvalidPath("The path of a database must be relative to local_database_dir: there is no home directory.")
    is_odd = "\\" in path or ":" in path or any(ord(character) < ord(" ") for character in path)
    if not parts or path != "/".join(parts) or path.startswith("/") or ".." in parts or is_odd:
        raise InvalidPath("The path of a database must be relative to local_database_dir, without .. or links.")
    return root.resolve().joinpath(*parts)


def require_folder(root: Path | None, path: str) -> None:
    """Raises InvalidPath when the folder of the database is missing: engines create files, not folders. Blocks."""
    if path != MEMORY and not (folder := database_file(root, path).parent).is_dir():
        name = folder.name if root is not None and folder != root.resolve() else "local_database_dir"
        raise InvalidPath(f"The folder {name} of the database does not exist: create it first.")


def refuse_links(root: Path, file: Path) -> None:
    """Raises EngineUnavailable when a name on the way from `root` to `file` is a link. Blocks; for each open."""
    step = root.resolve()
    for name in file.relative_to(step).parts:
        step = step / name
        if step.is_symlink():
            raise EngineUnavailable("The database file is behind a link.")
