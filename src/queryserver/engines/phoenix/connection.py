"""Which Query Server, and as whom."""

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import httpx

from queryserver.engines.connections import client_tls
from queryserver.engines.phoenix import protocol as messages
from queryserver.engines.phoenix.protocol import HttpRefusal, Message, NotConnected, Phase, Silent, avatica_errors
from queryserver.engines.protocol import SessionOptions
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    RowTooLarge,
    SessionLost,
)
from queryserver.platform.addresses import AddressRules, HttpServer


class Authentication(StrEnum):
    """How the Query Server knows who logs in."""

    NONE = "NONE"
    BASIC = "BASIC"
    SPNEGO = "SPNEGO"
    """By the Kerberos ticket of this process."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds."""

    connect_s: float = 10.0
    answer_s: float = 30.0
    """For an answer that needs no work of the database."""
    stop_s: float = 5.0
    """For each of the calls that end something."""
    beat_s: float = 20.0
    """Between two signs of life; the server forgets connections that are silent for ten minutes."""
    silence_s: float = 60.0
    """A server that gives no sign of life for so long is taken for dead, whatever it was asked."""


@dataclass(frozen=True, slots=True)
class Login:
    """As whom requests are sent; the password is never shown."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PhoenixAddress(HttpServer):
    """A Query Server and what its connector says about logins (Contract platform 5.11: phoenix)."""

    username: str | None = ""
    """None: callers give theirs through create_session."""
    password: str = field(default="", repr=False)
    authentication: Authentication = Authentication.NONE
    ssl_validate: bool = True
    ssl_ca: str = ""
    """PEM text of the authorities to trust instead of the system's."""
    patience: Patience = field(default_factory=Patience)
    cell_max_bytes: int = 16 * 1024 * 1024
    """Largest value of a result; frames that hold larger ones are not read to their end."""
    rules: AddressRules = field(default_factory=AddressRules)

    def login(self, options: SessionOptions) -> Login | None:
        """The login of a session; None where the server wants none. Raises CredentialsRequired."""
        if options.credentials is not None:
            return Login(options.credentials.username, options.credentials.password)
        if self.username is None:
            raise CredentialsRequired("This data source wants your own user name and password.")
        if self.authentication is not Authentication.BASIC:
            return None
        return Login(self.username, self.password)


_TICKET_S = 10.0


def is_installed() -> bool:
    """Whether logins by Kerberos are possible here."""
    return find_spec("gssapi") is not None


async def negotiate(host: str) -> str:
    """The token that opens the service HTTP at `host` to whoever this process has a ticket of.

    Raises CredentialsRequired: no package, no ticket, no such service, no answer in time.
    """
    if not is_installed():
        raise CredentialsRequired("Logins by Kerberos need the extra `kerberos` of this server.")
    try:
        async with asyncio.timeout(_TICKET_S):
            return await asyncio.to_thread(_token, host)
    except TimeoutError:
        raise CredentialsRequired("The Kerberos ticket server did not answer in time.") from None


def _token(host: str) -> str:
    gssapi: Any = import_module("gssapi")
    try:
        name = gssapi.Name(f"HTTP@{host}", gssapi.NameType.hostbased_service)
        token = gssapi.SecurityContext(name=name, usage="initiate").step()
    except gssapi.exceptions.GSSError as error:
        raise CredentialsRequired("There is no Kerberos ticket for the Query Server.") from error
    return b64encode(token or b"").decode()


FRAME_CELLS = 4
"""A frame may be as large as so many of the largest cells: the first one has as many rows, others as fit."""

_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=15.0)
_ERROR_STATUS = 500
# A peer that vanished without a word is found out in a minute and a half.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)


@dataclass(slots=True)
class Route:
    """The one way by which all requests of an Avatica connection go: it lives in one server, not behind a name.

    `cookies` are those of a proxy that leads to one of several servers.
    """

    ip: str
    login: Login | None
    cookies: dict[str, str] = field(default_factory=dict[str, str])


class HttpClient:
    """Connections to the Query Server, shared by all sessions of an engine."""

    def __init__(self, address: PhoenixAddress) -> None:
        self._address = address
        self._opening = asyncio.Lock()
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._is_closed = False

    async def addresses(self) -> Sequence[str]:
        """Where the server may be. Raises EngineUnavailable."""
        if self._is_closed:
            raise EngineUnavailable("This connector is closed.")
        return await self._address.rules.resolve(self._address.host, self._address.port)

    async def post(self, route: Route, body: bytes, *, within_s: float | None) -> bytes:
        """The body of the answer. None: its sender watches over the server in another way.

        Raises NotConnected, Silent, HttpRefusal, httpx.TransportError, EngineUnavailable (closed).
        """
        transport = await self._opened()
        request = await self._request(route, body)
        try:
            async with asyncio.timeout(within_s):
                response = await self._sent(transport, request)
                return await _whole(response, route, FRAME_CELLS * self._address.cell_max_bytes)
        except TimeoutError:
            raise Silent from None

    async def close(self) -> None:
        """Idempotent."""
        self._is_closed = True
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def _request(self, route: Route, body: bytes) -> httpx.Request:
        parts = urlsplit(self._address.url)
        place = f"[{route.ip}]" if ":" in route.ip else route.ip
        headers = {
            "Host": parts.netloc.rpartition("@")[2],
            "Content-Type": "application/x-google-protobuf",
            **await self._authorization(route),
        }
        if route.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in route.cookies.items())
        waits = {"connect": self._address.patience.connect_s, "pool": self._address.patience.connect_s}
        return httpx.Request(
            "POST",
            f"{parts.scheme}://{place}:{self._address.port}{parts.path or '/'}",
            headers=headers,
            content=body,
            extensions={"timeout": waits, "sni_hostname": self._address.host},
        )

    async def _authorization(self, route: Route) -> Mapping[str, str]:
        if self._address.authentication is Authentication.SPNEGO:
            return {"Authorization": f"Negotiate {await negotiate(self._address.host)}"}
        if route.login is None:
            return {}
        pair = f"{route.login.username}:{route.login.password}".encode()
        return {"Authorization": f"Basic {b64encode(pair).decode()}"}

    async def _sent(self, transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        try:
            response = await transport.handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise NotConnected from error
        response.request = request
        return response

    async def _opened(self) -> httpx.AsyncHTTPTransport:
        async with self._opening:
            if self._is_closed:
                raise EngineUnavailable("This connector is closed.")
            if self._transport is None:
                # Reading the system's certificates takes tens of milliseconds.
                verify = await asyncio.to_thread(_tls, self._address) if self._address.is_tls else False
                self._transport = httpx.AsyncHTTPTransport(
                    verify=verify, trust_env=False, limits=_LIMITS, socket_options=_KEEP_ALIVE
                )
            return self._transport


async def _whole(response: httpx.Response, route: Route, max_bytes: int) -> bytes:
    pieces, size = list[bytes](), 0
    try:
        # 500 carries Avatica's own errors; whatever else is not 200 comes from something in between.
        if response.status_code not in {200, _ERROR_STATUS}:
            raise HttpRefusal(response.status_code)
        async for piece in response.aiter_bytes():
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise RowTooLarge(limit_bytes=max_bytes)
    finally:
        await response.aclose()
    for line in response.headers.get_list("set-cookie"):
        name, equals, value = line.partition(";")[0].partition("=")
        if equals:
            route.cookies[name.strip()] = value.strip()
    return b"".join(pieces)


def _tls(address: PhoenixAddress) -> ssl.SSLContext:
    return client_tls(address.host, validate=address.ssl_validate, ca=address.ssl_ca)


_METADATA_ROWS = 1000

Answered = TypeVar("Answered")


class Connection:
    """Made by `connect`. A request that may take as long as the statement has no time limit of its own: instead a
    second request asks now and then whether the server is still there and still knows the connection.
    """

    def __init__(self, http: HttpClient, route: Route, patience: Patience, properties: Mapping[str, str]) -> None:
        self.id = str(uuid4())
        self.schema = ""
        """The one that was chosen when it was opened."""
        self._http = http
        self._route = route
        self._patience = patience
        self._properties = properties
        self._read_only = False
        self._schema = ""
        self._is_stopped = False
        self._lost: EngineError | None = None
        self._lost_now = asyncio.Event()
        self._beat: asyncio.Task[None] | None = None

    @property
    def is_lost(self) -> bool:
        """The server is out of reach, or no longer knows the connection."""
        return self._lost is not None

    async def open(self) -> None:
        """Raises EngineUnavailable, CredentialsRequired, StatementRejected."""
        await self._introduce()
        self._beat = asyncio.create_task(self._give_signs(), name="signs of life")

    async def forbid_changes(self) -> None:
        """From now on the server refuses whatever changes something, `USE` included. Raises EngineUnavailable."""
        await self._call(Phase.OPENING, "ConnectionSync", messages.synchronize(self.id, read_only=True))
        self._read_only = True

    async def new_statement(self) -> int:
        """The number of a new statement. Raises SessionLost when the connection is gone."""
        if self._is_stopped:
            await self._open_again()
        body = messages.of_connection(self.id)
        answer = await self._call(Phase.BEFORE, "CreateStatement", body)
        return messages.statement_id(answer)

    async def stop(self) -> bool:
        """End whatever the server does for the connection; the next statement finds it open again, in its schema.

        A statement that is closed alone goes on to its end when the server had not begun with it. What `ALTER SESSION`
        has set is gone. False when the server did not confirm: then the connection is lost.
        """
        self._is_stopped, limit_s = True, self._patience.stop_s
        try:
            answer = await self._call(Phase.BEFORE, "ConnectionSync", messages.synchronize(self.id), within_s=limit_s)
            self._schema = messages.schema_of(answer)
            await self._call(Phase.BEFORE, "CloseConnection", messages.of_connection(self.id), within_s=limit_s)
        except EngineError as error:
            self._lose(error)
            return False
        return True

    async def execute(self, statement: int, sql: str, *, rows: int) -> messages.Executed:
        """Run a statement up to its first rows or its end. Raises StatementRejected, OutcomeUnknown, EngineTimeout."""
        body = messages.prepare_and_execute(self.id, statement, sql, rows=rows)
        answer = await self._watched(self._call(Phase.SENT, "PrepareAndExecute", body, within_s=None))
        with avatica_errors(Phase.SENT):
            return messages.executed(answer)

    async def prepare(self, sql: str) -> int:
        """The number of a new statement with parameters. Raises SessionLost, StatementRejected."""
        if self._is_stopped:
            await self._open_again()
        answer = await self._call(Phase.BEFORE, "Prepare", messages.prepare(self.id, sql))
        return messages.prepared(answer)

    async def execute_batch(self, statement: int, rows: Sequence[bytes]) -> None:
        """Run a prepared statement once for each row of parameters. Raises StatementRejected, OutcomeUnknown."""
        body = messages.execute_batch(self.id, statement, rows)
        answer = await self._watched(self._call(Phase.SENT, "ExecuteBatch", body, within_s=None))
        with avatica_errors(Phase.SENT):
            messages.check_batch(answer)

    async def fetch(self, statement: int, *, offset: int, rows: int) -> messages.Frame:
        """The rows from number `offset` on, at most `rows`. Raises as `execute`."""
        body = messages.fetch(self.id, statement, offset=offset, rows=rows)
        answer = await self._watched(self._call(Phase.SENT, "Fetch", body, within_s=None))
        with avatica_errors(Phase.SENT):
            return messages.fetched(answer)

    async def columns_of(self, schema: str, table: str) -> AsyncIterator[bytes]:
        """Rows of java.sql.DatabaseMetaData.getColumns for all tables whose names are like those.

        Raises EngineUnavailable, StatementRejected.
        """
        body = messages.columns(self.id, schema, table)
        answer = await self._call(Phase.OPENING, "Columns", body)
        with avatica_errors(Phase.OPENING):
            found = messages.result_set(answer)
        frame, offset = found.frame, 0
        while True:
            for row in frame.rows:
                yield row
            offset += len(frame.rows)
            if frame.done or not frame.rows:
                break
            frame = await self.fetch(found.statement, offset=offset, rows=_METADATA_ROWS)
        await self.close_statement(found.statement)

    async def close_statement(self, statement: int) -> bool:
        """Free a statement; one that runs is stopped. False when the server did not confirm. Limited in time."""
        body = messages.of_statement(self.id, statement)
        try:
            await self._call(Phase.SENT, "CloseStatement", body, within_s=self._patience.stop_s)
        except EngineError:
            return False
        return True

    async def close(self) -> None:
        """Idempotent, limited in time."""
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.wait({self._beat})
        if self._lost is None:
            self._lose(SessionLost("The Phoenix session is closed."))
            # After a stop too: the connection may have been on its way to be opened again.
            with suppress(EngineError):
                body = messages.of_connection(self.id)
                await self._call(Phase.BEFORE, "CloseConnection", body, within_s=self._patience.stop_s)

    async def _introduce(self) -> None:
        await self._call(Phase.OPENING, "OpenConnection", messages.open_connection(self.id, self._properties))
        body = messages.synchronize(self.id, auto_commit=True, read_only=self._read_only or None, schema=self._schema)
        await self._call(Phase.OPENING, "ConnectionSync", body)

    async def _open_again(self) -> None:
        self.id = str(uuid4())
        try:
            await self._introduce()
        except EngineError as error:
            await self.close()
            raise SessionLost("The session could not be opened again; the statement was not started.") from error
        self._is_stopped = False

    async def _call(self, phase: Phase, name: str, body: bytes, *, within_s: float | None = 0) -> Message:
        """One exchange; 0 means the usual limit."""
        limit_s = self._patience.answer_s if within_s == 0 else within_s
        request = messages.request(name, body)
        try:
            with avatica_errors(phase):
                return messages.response(name, await self._http.post(self._route, request, within_s=limit_s))
        except (SessionLost, OutcomeUnknown) as error:
            # Whoever is answered after a stop is told so; that is no loss.
            if not self._is_stopped and not isinstance(error.__cause__, messages.Missing):
                self._lose(error)
            raise

    async def _watched(self, exchange: Coroutine[Any, Any, Answered]) -> Answered:
        """What the exchange gives; the loss of the connection when that is found out first."""
        request = asyncio.create_task(exchange, name="exchange")
        loss = asyncio.create_task(self._lost_now.wait(), name="loss")
        try:
            await asyncio.wait({request, loss}, return_when=asyncio.FIRST_COMPLETED)
            if request.done():
                return request.result()
            raise OutcomeUnknown(_after_sending(self._lost)) from self._lost
        finally:
            for task in (request, loss):
                task.cancel()
            await asyncio.wait({request, loss})
            if not request.cancelled():
                request.exception()

    async def _give_signs(self) -> None:
        """Keep the connection known, and find out when it no longer is."""
        silent_since: float | None = None
        clock = asyncio.get_running_loop().time
        while self._lost is None:
            await asyncio.sleep(self._patience.beat_s)
            if self._is_stopped:
                continue
            asked, body = clock(), messages.request("ConnectionSync", messages.synchronize(self.id))
            try:
                with avatica_errors(Phase.BEFORE):
                    answer = await self._http.post(self._route, body, within_s=self._patience.answer_s)
                    messages.response("ConnectionSync", answer)
                silent_since = None
            except EngineError as error:
                if self._is_stopped:
                    continue
                if isinstance(error.__cause__, messages.ServerError):
                    self._lose(error)
                    return
                silent_since = silent_since or asked
                if clock() - silent_since >= self._patience.silence_s:
                    self._lose(SessionLost("The Query Server gives no sign of life."))

    def _lose(self, error: EngineError) -> None:
        if self._lost is None:
            self._lost = error
            self._lost_now.set()


async def connect(
    http: HttpClient, address: PhoenixAddress, login: Login | None, properties: Mapping[str, str]
) -> Connection:
    """A new connection, at the first of the server's addresses that answers.

    Raises EngineUnavailable, CredentialsRequired, StatementRejected.
    """
    *others, last = await http.addresses()
    for ip in others:
        connection = Connection(http, Route(ip, login), address.patience, properties)
        with suppress(EngineError):
            await _open(connection)
            return connection
    connection = Connection(http, Route(last, login), address.patience, properties)
    await _open(connection)
    return connection


async def _open(connection: Connection) -> None:
    try:
        await connection.open()
    except BaseException:  # a cancel too: the connection must not stay open
        await connection.close()
        raise


def _after_sending(error: EngineError | None) -> str:
    cause = error.__cause__ if error is not None else None
    if isinstance(cause, messages.ServerError):
        return "Results have expired: the Query Server no longer knows this session."
    return "The Query Server gives no sign of life. The statement may or may not have taken effect."
