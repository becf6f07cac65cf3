"""Configures logins to a Query Server, sends requests over HTTP, and opens Avatica connections."""

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import httpx

from queryserver import errors
from queryserver.engines.connections import cancel_tasks, client_tls, connect_first
from queryserver.engines.phoenix import protocol
from queryserver.engines.protocol import Credentials, SessionOptions
from queryserver.platform.addresses import AddressRules, HttpServer


class PhoenixAuthentication(StrEnum):
    NONE = "NONE"
    BASIC = "BASIC"
    SPNEGO = "SPNEGO"  # this process's Kerberos ticket


@dataclass(frozen=True, slots=True)
class PhoenixTimeouts:
    """Time limits in seconds."""

    connect_s: float = 10.0
    answer_s: float = 30.0  # for calls that do not wait for the database
    stop_s: float = 5.0  # for each cancel or close call
    beat_s: float = 20.0  # interval between heartbeats; the server drops connections after ten minutes of silence
    silence_s: float = 60.0  # the connection is lost after this time without a response to heartbeats


@dataclass(frozen=True, slots=True)
class PhoenixAddress(HttpServer):
    """A Query Server's address and login configuration (Contract platform 5.11: phoenix)."""

    username: str | None = ""  # None if callers must log in themselves through create_session
    password: str = field(default="", repr=False)
    authentication: PhoenixAuthentication = PhoenixAuthentication.NONE
    ssl_validate: bool = True
    ssl_ca: str = ""  # PEM text of the certificate authorities to trust instead of the system's
    timeouts: PhoenixTimeouts = field(default_factory=PhoenixTimeouts)
    cell_max_bytes: int = 16 * 1024 * 1024  # size limit of a value, which determines the size limit of a frame
    rules: AddressRules = field(default_factory=AddressRules)

    def login(self, options: SessionOptions) -> Credentials | None:
        """Return the user name and password for a session; None if it needs none.

        Raises CredentialsRequired if callers must log in themselves.
        """
        if options.credentials is not None:
            return options.credentials
        if self.username is None:
            raise errors.CredentialsRequired("This data source requires your own username and password.")
        if self.authentication is not PhoenixAuthentication.BASIC:
            return None
        return Credentials(self.username, self.password)


async def negotiate(host: str) -> str:
    """Create an SPNEGO token for the HTTP service on `host` from this process's Kerberos ticket.

    Raises CredentialsRequired if the `gssapi` package, the ticket or the service is missing, or on a timeout.
    """
    if find_spec("gssapi") is None:
        raise errors.CredentialsRequired("Kerberos logins require the `kerberos` extra on this server.")

    def token() -> str:
        gssapi: Any = import_module("gssapi")
        try:
            name = gssapi.Name(f"HTTP@{host}", gssapi.NameType.hostbased_service)
            token = gssapi.SecurityContext(name=name, usage="initiate").step()
        except gssapi.exceptions.GSSError as error:
            raise errors.CredentialsRequired("No Kerberos ticket for the Query Server is available.") from error
        return b64encode(token or b"").decode()

    try:
        async with asyncio.timeout(10.0):
            return await asyncio.to_thread(token)
    except TimeoutError:
        raise errors.CredentialsRequired("The Kerberos ticket server did not respond in time.") from None


FRAME_CELLS = 4  # size limit of a frame, as a multiple of the largest cell; the first frame has this many rows
# Detects a lost peer within a minute and a half.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)


@dataclass(slots=True)
class Route:
    """Identifies the server that holds an Avatica connection and must receive all requests for it.

    `cookies` come from a proxy that forwards requests to one of several servers.
    """

    ip: str
    login: Credentials | None
    cookies: dict[str, str] = field(default_factory=dict[str, str])


class PhoenixClient:
    """Sends requests to the Query Server. All sessions of an engine share one client."""

    def __init__(self, address: PhoenixAddress) -> None:
        self._address = address
        self._opening = asyncio.Lock()
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._is_closed = False

    async def addresses(self) -> Sequence[str]:
        """Resolve the server's addresses. Raises EngineUnavailable."""
        if self._is_closed:
            raise errors.EngineUnavailable("This connector is closed.")
        return await self._address.rules.resolve(self._address.host, self._address.port)

    async def post(self, route: Route, body: bytes, *, within_s: float | None) -> bytes:
        """Send a request and return the response body.

        If `within_s` is None, there is no time limit, and the caller must detect a dead server in another way. Raises
        TimeoutError, HttpRefusal, httpx.TransportError, RowTooLarge, and EngineUnavailable if the client is closed.
        """
        async with self._opening:
            if self._is_closed:
                raise errors.EngineUnavailable("This connector is closed.")
            if self._transport is None:
                verify: ssl.SSLContext | bool = False
                if self._address.is_tls:
                    validate, ca = self._address.ssl_validate, self._address.ssl_ca
                    # In a thread, because loading the system certificates takes tens of milliseconds.
                    verify = await asyncio.to_thread(client_tls, self._address.host, validate=validate, ca=ca)
                limits = httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=15.0)
                self._transport = httpx.AsyncHTTPTransport(
                    verify=verify, trust_env=False, limits=limits, socket_options=_KEEP_ALIVE
                )
            transport = self._transport
        request = await self._request(route, body)
        async with asyncio.timeout(within_s):
            response = await transport.handle_async_request(request)
            response.request = request
            return await _whole(response, route, FRAME_CELLS * self._address.cell_max_bytes)

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        self._is_closed = True
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def _request(self, route: Route, body: bytes) -> httpx.Request:
        parts = urlsplit(self._address.url)
        host = f"[{route.ip}]" if ":" in route.ip else route.ip
        headers = {"Host": parts.netloc.rpartition("@")[2], "Content-Type": "application/x-google-protobuf"}
        if self._address.authentication is PhoenixAuthentication.SPNEGO:
            headers["Authorization"] = f"Negotiate {await negotiate(self._address.host)}"
        elif route.login is not None:
            pair = f"{route.login.username}:{route.login.password}".encode()
            headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
        if route.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in route.cookies.items())
        connect_s = self._address.timeouts.connect_s
        return httpx.Request(
            "POST",
            f"{parts.scheme}://{host}:{self._address.port}{parts.path or '/'}",
            headers=headers,
            content=body,
            extensions={"timeout": {"connect": connect_s, "pool": connect_s}, "sni_hostname": self._address.host},
        )


async def _whole(response: httpx.Response, route: Route, max_bytes: int) -> bytes:
    pieces, size = list[bytes](), 0
    try:
        # Avatica reports its own errors with status 500. Any other status except 200 comes from a proxy.
        if response.status_code not in {200, 500}:
            raise protocol.HttpRefusal(response.status_code)
        async for piece in response.aiter_bytes():
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise errors.RowTooLarge(limit_bytes=max_bytes)
    finally:
        await response.aclose()
    for line in response.headers.get_list("set-cookie"):
        name, equals, value = line.partition(";")[0].partition("=")
        if equals:
            route.cookies[name.strip()] = value.strip()
    return b"".join(pieces)


ResultT = TypeVar("ResultT")


class EventOccurred(Exception):
    """The event occurred before the exchange completed."""


async def wait_unless(event: asyncio.Event, exchange: Coroutine[Any, Any, ResultT], *, grace_s: float = 0) -> ResultT:
    """Wait for the exchange's result. Raises EventOccurred if there is none within `grace_s` after the event."""
    request, waiting = asyncio.create_task(exchange, name="exchange"), asyncio.create_task(event.wait(), name="event")
    try:
        await asyncio.wait({request, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not request.done() and grace_s:
            await asyncio.wait({request}, timeout=grace_s)
        if request.done():
            return request.result()
        raise EventOccurred
    finally:
        await cancel_tasks(request, waiting)


class PhoenixConnection:
    """An Avatica connection. Use `connect` to open one.

    Requests that may take as long as their statement have no time limit. Instead, heartbeats check that the server
    responds and still knows the connection.
    """

    def __init__(
        self, http: PhoenixClient, route: Route, timeouts: PhoenixTimeouts, properties: Mapping[str, str]
    ) -> None:
        self.id = str(uuid4())
        self.schema = ""  # the schema that the engine selected for the session
        self._http = http
        self._route = route
        self._timeouts = timeouts
        self._properties = properties
        self._read_only = False
        self._schema = ""
        self._is_stopped = False
        self._lost: errors.EngineError | None = None
        self._lost_now = asyncio.Event()
        self._beat: asyncio.Task[None] | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the server is unreachable or no longer knows the connection."""
        return self._lost is not None

    async def open(self) -> None:
        """Open the connection on the server. Raises EngineUnavailable, CredentialsRequired, StatementRejected."""
        await self._open_at_server()
        self._beat = asyncio.create_task(self._send_heartbeats(), name="heartbeats")

    async def set_read_only(self, wanted: bool) -> None:
        """Make the connection read-only, which also forbids `USE`, or permit changes. Raises SessionLost."""
        if self._read_only == wanted:
            return
        if not self._is_stopped:  # otherwise the connection is opened again in the wanted mode
            body = protocol.encode_sync_request(self.id, read_only=wanted)
            await self._call(protocol.Phase.BEFORE, "ConnectionSync", body)
        self._read_only = wanted

    async def new_statement(self) -> int:
        """Create a statement and return its number. Raises SessionLost if the connection is lost."""
        if self._is_stopped:
            await self._open_again()
        return (await self._call(protocol.Phase.BEFORE, "CreateStatement", protocol.text(1, self.id))).number(2)

    async def stop(self) -> bool:
        """Cancel all work on the connection by closing it. The next statement reopens it in the same schema.

        Closing only the statement would not cancel a statement that the server has not started yet. Settings made by
        `ALTER SESSION` are lost. Returns False if the server does not confirm; the connection is then lost.
        """
        self._is_stopped, limit_s = True, self._timeouts.stop_s
        try:
            answer = await self._call(
                protocol.Phase.BEFORE, "ConnectionSync", protocol.encode_sync_request(self.id), within_s=limit_s
            )
            self._schema = answer.message(1).text(6)
            await self._call(protocol.Phase.BEFORE, "CloseConnection", protocol.text(1, self.id), within_s=limit_s)
        except errors.EngineError as error:
            self._lose(error)
            return False
        return True

    async def execute(self, statement: int, sql: str, *, rows: int) -> protocol.ExecuteResult:
        """Run a statement up to its first rows or its end. Raises StatementRejected, OutcomeUnknown, EngineTimeout."""
        body = protocol.text(1, self.id) + protocol.text(2, sql) + protocol.number(4, statement)
        # -1 means no row limit; `rows` is the size of the first frame.
        body += protocol.number(5, -1) + protocol.number(6, rows)
        return await self._call_while_connected("PrepareAndExecute", body, protocol.decode_execute_response)

    async def prepare(self, sql: str) -> int:
        """Prepare a statement with parameters and return its number. Raises SessionLost, StatementRejected."""
        return protocol.Message(await self.prepared(sql)).number(2)

    async def prepared(self, sql: str) -> bytes:
        """Prepare a statement with parameters and return its `StatementHandle`. Raises the same errors as `prepare`."""
        if self._is_stopped:
            await self._open_again()
        body = protocol.text(1, self.id) + protocol.text(2, sql) + protocol.number(4, -1)
        return (await self._call(protocol.Phase.BEFORE, "Prepare", body)).octets(1)

    async def execute_prepared(self, handle: bytes, values: Sequence[bytes], *, rows: int) -> protocol.ExecuteResult:
        """Run a prepared statement as `execute` does, with one `TypedValue` per parameter."""
        body = protocol.octets(1, handle) + b"".join(protocol.octets(2, value) for value in values)
        body += protocol.number(4, 1) + protocol.number(5, rows)
        return await self._call_while_connected("Execute", body, protocol.decode_execute_response)

    async def execute_batch(self, statement: int, rows: Sequence[bytes]) -> None:
        """Run a prepared statement once per row (UpdateBatch). Raises StatementRejected, OutcomeUnknown."""
        body = protocol.text(1, self.id) + protocol.number(2, statement)
        body += b"".join(protocol.octets(3, row) for row in rows)
        if await self._call_while_connected("ExecuteBatch", body, lambda answer: answer.number(4)):
            raise errors.OutcomeUnknown(protocol.GONE)

    async def fetch(self, statement: int, *, offset: int, rows: int) -> protocol.AvaticaFrame:
        """Fetch at most `rows` rows, starting at row index `offset`. Raises the same errors as `execute`."""
        body = protocol.text(1, self.id) + protocol.number(2, statement) + protocol.number(3, offset)
        # Avatica servers before 1.10 read the frame size from field 4.
        body += protocol.number(4, rows) + protocol.number(5, rows)
        return await self._call_while_connected("Fetch", body, protocol.decode_fetch_response)

    async def columns_of(self, schema: str, table: str) -> AsyncIterator[bytes]:
        """Yield the rows of java.sql.DatabaseMetaData.getColumns for all tables that match these LIKE patterns.

        Raises EngineUnavailable, StatementRejected.
        """
        body = protocol.text(2, schema) + protocol.text(3, table) + protocol.text(5, self.id)
        body += protocol.number(7, 1) + protocol.number(8, 1)
        answer = await self._call(protocol.Phase.OPENING, "Columns", body)
        with protocol.avatica_errors(protocol.Phase.OPENING):
            found = protocol.result_set(answer)
        frame, offset = found.frame, 0
        while True:
            for row in frame.rows:
                yield row
            offset += len(frame.rows)
            if frame.done or not frame.rows:
                break
            frame = await self.fetch(found.statement, offset=offset, rows=1000)
        await self.close_statement(found.statement)

    async def close_statement(self, statement: int) -> bool:
        """Cancel and close a statement. Return False if the server does not confirm this in time."""
        body = protocol.text(1, self.id) + protocol.number(2, statement)
        try:
            await self._call(protocol.Phase.SENT, "CloseStatement", body, within_s=self._timeouts.stop_s)
        except errors.EngineError:
            return False
        return True

    async def close(self) -> None:
        """Close the connection, and wait only a short time for the server to confirm this. Idempotent."""
        await cancel_tasks(self._beat)
        if self._lost is None:
            self._lose(errors.SessionLost("The Phoenix session is closed."))
            # Sent even after `stop`, because the connection may have been reopened for another statement.
            with suppress(errors.EngineError):
                await self._call(
                    protocol.Phase.BEFORE, "CloseConnection", protocol.text(1, self.id), within_s=self._timeouts.stop_s
                )

    async def _open_at_server(self) -> None:
        body = protocol.text(1, self.id) + protocol.pairs(2, self._properties)
        await self._call(protocol.Phase.OPENING, "OpenConnection", body)
        body = protocol.encode_sync_request(
            self.id, auto_commit=True, read_only=self._read_only or None, schema=self._schema
        )
        await self._call(protocol.Phase.OPENING, "ConnectionSync", body)

    async def _open_again(self) -> None:
        self.id = str(uuid4())
        try:
            await self._open_at_server()
        except errors.EngineError as error:
            await self.close()
            raise errors.SessionLost("The session could not be reopened; the statement was not started.") from error
        self._is_stopped = False

    async def _call(
        self, phase: protocol.Phase, name: str, body: bytes, *, within_s: float | None = 0
    ) -> protocol.Message:
        """Send a request and decode the response. `within_s=0` selects the default time limit."""
        limit_s = self._timeouts.answer_s if within_s == 0 else within_s
        request = protocol.request(name, body)
        try:
            with protocol.avatica_errors(phase):
                return protocol.response(name, await self._http.post(self._route, request, within_s=limit_s))
        except (errors.SessionLost, errors.OutcomeUnknown) as error:
            # After `stop`, an error does not mean that the connection is lost.
            if not self._is_stopped and not isinstance(error.__cause__, protocol.StatementMissing):
                self._lose(error)
            raise

    async def _call_while_connected(
        self, name: str, body: bytes, read: Callable[[protocol.Message], ResultT]
    ) -> ResultT:
        """Make a call without a time limit and decode the response with `read`.

        Raises OutcomeUnknown if the connection is lost.
        """
        exchange = self._call(protocol.Phase.SENT, name, body, within_s=None)
        try:
            answer = await wait_unless(self._lost_now, exchange)
            with protocol.avatica_errors(protocol.Phase.SENT):
                return read(answer)
        except EventOccurred:
            message = "The Query Server is not responding. The statement may or may not have taken effect."
            if self._lost is not None and isinstance(self._lost.__cause__, protocol.ServerError):
                message = "Results have expired: the session no longer exists on the Query Server."
            raise errors.OutcomeUnknown(message) from self._lost

    async def _send_heartbeats(self) -> None:
        """Keep the connection alive on the server, and detect when it is lost."""
        silent_since: float | None = None
        clock = asyncio.get_running_loop().time
        while self._lost is None:
            await asyncio.sleep(self._timeouts.beat_s)
            if self._is_stopped:
                continue
            sent_at, body = clock(), protocol.request("ConnectionSync", protocol.encode_sync_request(self.id))
            try:
                with protocol.avatica_errors(protocol.Phase.BEFORE):
                    answer = await self._http.post(self._route, body, within_s=self._timeouts.answer_s)
                    protocol.response("ConnectionSync", answer)
                silent_since = None
            except errors.EngineError as error:
                if self._is_stopped:
                    continue
                if isinstance(error.__cause__, protocol.ServerError):
                    self._lose(error)
                    return
                silent_since = silent_since or sent_at
                if clock() - silent_since >= self._timeouts.silence_s:
                    self._lose(errors.SessionLost("The Query Server is not responding."))

    def _lose(self, error: errors.EngineError) -> None:
        if self._lost is None:
            self._lost = error
            self._lost_now.set()


async def connect(
    http: PhoenixClient, address: PhoenixAddress, login: Credentials | None, properties: Mapping[str, str]
) -> PhoenixConnection:
    """Open a connection to the first of the server's addresses that responds.

    Raises EngineUnavailable, CredentialsRequired, StatementRejected.
    """

    async def opened(ip: str) -> PhoenixConnection:
        connection = PhoenixConnection(http, Route(ip, login), address.timeouts, properties)
        try:
            await connection.open()
        except BaseException:  # including cancellation: the connection must not stay open
            await connection.close()
            raise
        return connection

    return await connect_first(await http.addresses(), opened, failure=errors.EngineError)
