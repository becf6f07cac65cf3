"""Shared code for data source connections: a pool, retries with backoff, TLS, and embedded database files."""

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
    """A connection that a pool can keep. Its methods never raise."""

    def is_closed(self) -> bool:
        """Return whether the connection is closed or lost."""
        ...

    async def clean(self) -> bool:
        """Reset the connection to its state just after login. Return False if this may have failed. Limited in time."""
        ...

    async def disconnect(self) -> None:
        """Close the connection. Limited in time."""
        ...


LoginT = TypeVar("LoginT")
ConnectionT = TypeVar("ConnectionT", bound=PooledConnection)


@dataclass(frozen=True, slots=True)
class DatabaseLogin:
    """The login of a connection, with the initial database if the engine binds each connection to one database."""

    user: str
    password: str = field(repr=False)
    database: str | None = None


class ConnectionPool(Generic[LoginT, ConnectionT]):
    """A pool of idle connections by login, which saves the round trips of a new login.

    Connections are reset before they are reused. The pool keeps at most `max_idle` idle connections, each for at most
    `idle_s`, and `max_spare` more for 5 s, which a busy server uses again within milliseconds. It does not limit the
    number of connections in use; its callers do.
    """

    def __init__(
        self,
        connect: Callable[[LoginT], Awaitable[ConnectionT]],
        *,
        max_idle: int,
        idle_s: float,
        max_spare: int = 0,
        spare_s: float = 5.0,
    ) -> None:
        self._connect = connect
        self._max_idle = max_idle
        self._idle_s = idle_s
        self._max_spare = max_spare
        self._spare_s = min(spare_s, idle_s)
        self._idle: deque[tuple[float, LoginT, ConnectionT]] = deque()
        self._reaper: asyncio.Task[None] | None = None
        self._closed = False

    async def take(self, login: LoginT) -> ConnectionT:
        """Return a clean connection: the most recently used idle connection, or else a new one.

        Raises EngineUnavailable, CredentialsRequired, StatementRejected (unknown database).
        """
        if self._closed:
            raise EngineUnavailable("This connector is closed.")
        while (connection := self._pop_idle(login)) is not None:
            if not connection.is_closed():
                return connection
            # The server closed the connection, but our socket is still open.
            await connection.disconnect()
        return await self._connect(login)

    async def give_back(self, login: LoginT, connection: ConnectionT) -> None:
        """Reset a connection and keep it for a later session.

        Close it instead if the reset may have failed, or if the pool is full or closed.
        """
        is_kept = False
        try:
            # The limit is checked again afterward, because the pool may fill up while the connection is reset.
            is_kept = self._has_room and await connection.clean() and self._has_room
        finally:
            if not is_kept:
                await connection.disconnect()
        if is_kept:
            self._idle.append((time.monotonic(), login, connection))
            if self._reaper is None or self._reaper.done():
                self._reaper = asyncio.create_task(self._close_idle(), name="idle connections")

    @asynccontextmanager
    async def borrowed(self, login: LoginT) -> AsyncGenerator[ConnectionT]:
        """Lend a clean connection for one call, and close it if the block raises. Raises the same errors as `take`."""
        connection = await self.take(login)
        try:
            yield connection
        except BaseException:  # includes cancellation: the connection's state is unknown
            await connection.disconnect()
            raise
        await self.give_back(login, connection)

    async def close(self) -> None:
        """Close all idle connections. Connections in use are closed when returned. Idempotent."""
        self._closed = True
        await cancel_tasks(self._reaper)
        while self._idle:
            await self._idle.pop()[2].disconnect()

    @property
    def _has_room(self) -> bool:
        return not self._closed and len(self._idle) < self._max_idle + self._max_spare

    def _pop_idle(self, login: LoginT) -> ConnectionT | None:
        """Remove and return the login's most recently used idle connection."""
        for position in reversed(range(len(self._idle))):
            _, owner, connection = self._idle[position]
            if owner == login:
                del self._idle[position]
                return connection
        return None

    async def _close_idle(self) -> None:
        """Close connections once they have been idle for too long. Returns when the pool is empty."""
        while self._idle:
            keep_s = self._idle_s if len(self._idle) <= self._max_idle else self._spare_s
            rest_s = self._idle[0][0] + keep_s - time.monotonic()
            if rest_s > 0:
                # In the meantime, spare connections may be given back.
                await asyncio.sleep(min(rest_s, self._spare_s) if self._max_spare else rest_s)
            else:
                await self._idle.popleft()[2].disconnect()


AddressT = TypeVar("AddressT")
ConnectedT = TypeVar("ConnectedT")


async def connect_first(
    addresses: Sequence[AddressT],
    connect: Callable[[AddressT], Awaitable[ConnectedT]],
    *,
    failure: type[EngineError] = EngineUnavailable,
) -> ConnectedT:
    """Try `connect` on each address in turn and return the first success.

    If every attempt fails, raises the error for the last address.
    """
    *earlier, last = addresses
    for address in earlier:
        with suppress(failure):
            return await connect(address)
    return await connect(last)


async def cancel_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel unfinished tasks and wait until they have ended. Discard their exceptions."""
    known = {task for task in tasks if task is not None}
    for task in known:
        task.cancel()
    if known:
        await asyncio.wait(known)
    for task in known:
        if not task.cancelled():
            task.exception()


RETRY_S = 60.0
"""How long a failing call is retried before the outcome of its statement is considered unknown."""

_INITIAL_PAUSE_S = 0.05
_MAX_PAUSE_S = 1.0


class Retries:
    """Exponential backoff between the attempts of one call.

    No attempt starts later than `for_s` seconds after this object's creation.
    """

    def __init__(self, for_s: float) -> None:
        self._until = asyncio.get_running_loop().time() + for_s
        self._pause_s = _INITIAL_PAUSE_S

    async def pause(self, *, min_s: float = 0) -> bool:
        """Wait before the next attempt. Return False immediately if the wait would exceed the time limit."""
        pause_s = max(self._pause_s, min_s)
        if asyncio.get_running_loop().time() + pause_s > self._until:
            return False
        await asyncio.sleep(pause_s)
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
        return True


_NOT_TLS_REASONS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
"""The error reasons of OpenSSL 3.0, and of 3.2 or later, for a peer that does not speak TLS."""


class _NamedContext(ssl.SSLContext):
    """An SSL context that verifies certificates against `server_name` instead of the address that the driver passes."""

    server_name = ""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,  # noqa: ARG002 this is an address
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        name = self.server_name
        return super().wrap_bio(incoming, outgoing, server_side=server_side, server_hostname=name, session=session)

    def wrap_socket(self, sock: Any, *_: Any, server_hostname: Any = None, **options: Any) -> ssl.SSLSocket:  # noqa: ARG002 this is an address
        return super().wrap_socket(sock, server_hostname=self.server_name, **options)


def client_tls(server_name: str, *, validate: bool = True, check_name: bool = True, ca: str = "") -> ssl.SSLContext:
    """Create a client TLS context that verifies `server_name`, for drivers that connect by IP address.

    `ca` contains the trusted certificate authorities in PEM format. If it is empty, the system's authorities are
    trusted. If `validate` is False, any certificate is accepted. If only `check_name` is False, a certificate from a
    trusted authority is accepted for any server name. Raises ValueError if `ca` is not in PEM format.
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
        message = "must contain certificates in PEM format"
        raise ValueError(message) from error
    return context


_MAX_CAUSES = 10
NO_TLS = "the server does not support TLS"


def connection_failure_message(server: str, error: BaseException, *, reason: str = "") -> str:
    """Return the message for a failed connection. It includes `reason`, or else the underlying TLS failure, if any."""
    reason = reason or _tls_reason(error)
    return f"Could not connect to {server}{': ' if reason else ''}{reason}."


def _tls_reason(error: BaseException) -> str:
    """Describe the TLS failure that caused `error`; empty if there was none.

    The TLS library's messages contain no file names, and no addresses other than those in the certificate.
    """
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"certificate verification failed ({cause.verify_message.rstrip('.')})"
        if isinstance(cause, ssl.SSLError):
            return NO_TLS if cause.reason in _NOT_TLS_REASONS else "the TLS handshake failed"
        cause = cause and (cause.__cause__ or cause.__context__)
    return ""


MEMORY = ":memory:"


def database_file(root: Path | None, path: str) -> Path:
    """Return the absolute path of the database file at `path` below `root`.

    Raises InvalidPath if `path` is absolute, is not normalized, starts with `~`, or contains `..`, a backslash, a colon
    or a control character, or if `root` is None.
    """
    if root is None:
        raise InvalidPath("Only :memory: is allowed: local_database_dir is not set.")
    parts = PurePosixPath(path).parts
    if path.startswith("~"):
        raise InvalidPath("The database path must be relative to local_database_dir and must not start with ~.")
    is_odd = "\\" in path or ":" in path or any(ord(character) < ord(" ") for character in path)
    if not parts or path != "/".join(parts) or path.startswith("/") or ".." in parts or is_odd:
        raise InvalidPath("The database path must be relative to local_database_dir, without .. or special characters.")
    return root.resolve().joinpath(*parts)


def require_folder(root: Path | None, path: str) -> None:
    """Raise InvalidPath if the database's folder does not exist, because engines create files but not folders.

    This call blocks.
    """
    if path != MEMORY and not (folder := database_file(root, path).parent).is_dir():
        name = folder.name if root is not None and folder != root.resolve() else "local_database_dir"
        raise InvalidPath(f"The database folder {name} does not exist. Create it first.")


def refuse_links(root: Path, file: Path) -> None:
    """Raise EngineUnavailable if any part of the path from `root` to `file` is a symbolic link.

    Must be called each time before the file is opened. This call blocks.
    """
    step = root.resolve()
    for name in file.relative_to(step).parts:
        step = step / name
        if step.is_symlink():
            raise EngineUnavailable("The database path contains a symbolic link.")
