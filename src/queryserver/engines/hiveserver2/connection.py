"""Opens authenticated connections to a HiveServer2 member and makes a session's calls on them."""

import asyncio
import base64
import importlib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import httpx

from queryserver.engines.connections import Retries, cancel_tasks, client_tls, connect_first
from queryserver.engines.engine_messages import redact_token
from queryserver.engines.hiveserver2 import transports
from queryserver.engines.hiveserver2.errors import (
    LOST_IN_TRANSIT,
    NOT_SENT,
    ConnectionLost,
    LoginRefused,
    check,
    connect_errors,
)
from queryserver.engines.hiveserver2.messages import (
    MalformedMessage,
    Method,
    ReplyT,
    RequestT,
    ServerException,
    decode_reply,
    encode_call,
)
from queryserver.engines.hiveserver2.variants import CELL_BYTES, Hs2Address, Hs2Login, Limits, Mechanism
from queryserver.errors.statements import EngineError, EngineUnavailable

_MAX_CONNECTIONS = 3
_OK = 200


class Hs2Connection:
    """Implements `PooledConnection` and makes one call at a time. Replies longer than `max_bytes` are discarded.

    If a caller is canceled, the connection still waits for the reply and discards it, because closing the connection
    would end the session that was opened on it.
    """

    def __init__(self, transport: transports.Transport, *, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._transport = transport
        self._max_bytes = max_bytes
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._sequence = 0
        self._exchange: asyncio.Task[object] | None = None
        self._broken = False
        self.opened_session = False  # an open session may depend on this connection

    def is_closed(self) -> bool:
        return self._broken or self._transport.is_closed()

    @property
    def is_busy(self) -> bool:
        return self._waiting > 0 or self._turn.locked()

    async def call(
        self, method: Method[RequestT, ReplyT], request: RequestT, *, limit_s: float, largest_cell: int | None = None
    ) -> ReplyT:
        """Send a call and wait for its reply.

        `largest_cell` is the maximum cell size in bytes. If a reply is too large because it contains a larger cell,
        CellTooLarge is raised instead of ReplyTooLarge, and the connection is no longer usable. Also raises
        ConnectionLost, LoginRefused, ServerRefused, ServerException.
        """
        self._waiting += 1
        try:
            async with asyncio.timeout(limit_s):
                await self._turn.acquire()
        except TimeoutError:
            raise ConnectionLost(sent=False) from None
        finally:
            self._waiting -= 1
        task = asyncio.create_task(self._perform(method, request, limit_s, largest_cell), name=method.name)
        self._exchange = task
        task.add_done_callback(self._finish_exchange)
        # Unlike `await`, `wait` distinguishes a task canceled by `disconnect` from a canceled caller.
        await asyncio.wait({task})
        if task.cancelled():
            raise ConnectionLost(sent=True)
        reply = task.result()
        check(reply.status)
        return reply

    async def clean(self) -> bool:
        """Return whether another session may use the connection."""
        return not (self.is_closed() or self.is_busy or self.opened_session)

    async def disconnect(self) -> None:
        """Close the connection and abort any call in progress."""
        self._broken = True
        await cancel_tasks(self._exchange)
        await self._transport.close()

    async def _perform(
        self, method: Method[RequestT, ReplyT], request: RequestT, limit_s: float, largest_cell: int | None
    ) -> ReplyT:
        if self.is_closed():
            raise ConnectionLost(sent=False)
        self._sequence = self._sequence % 0x7FFFFFFF + 1
        raw = encode_call(method, request, self._sequence)
        decode = partial(decode_reply, method, sequence=self._sequence)
        try:
            async with asyncio.timeout(limit_s):
                return await self._transport.exchange(raw, transports.ReplySpec(decode, self._max_bytes, largest_cell))
        except (LoginRefused, ServerException, transports.ReplyTooLarge):
            raise
        except LOST_IN_TRANSIT as error:
            self._broken = True
            is_sent = not isinstance(error, NOT_SENT)
            raise ConnectionLost(sent=is_sent, timed_out=isinstance(error, TimeoutError)) from error
        except BaseException:  # including cancellation, because part of the reply is unread
            self._broken = True
            raise

    def _finish_exchange(self, task: asyncio.Task[ReplyT]) -> None:
        self._turn.release()
        if self._exchange is task:
            # An idle connection must not keep the reply in memory, which may take 40 MiB.
            self._exchange = None
        if not task.cancelled():
            task.exception()


class Wire:
    """Makes a session's calls on up to three connections.

    `more` opens another connection to the same member with the same login.
    """

    def __init__(
        self,
        opener: Hs2Connection,
        more: Callable[[], Awaitable[Hs2Connection]],
        limits: Limits,
        cell_max_bytes: int = CELL_BYTES,
    ) -> None:
        self.limits = limits
        self.cell_max_bytes = cell_max_bytes
        self._opener = opener
        self._more = more
        self._connections = [opener]
        self._growing = asyncio.Lock()
        self.is_released = False  # once set, every call raises ConnectionLost

    @property
    def is_connected(self) -> bool:
        return not self._opener.is_closed()

    async def call(
        self, method: Method[RequestT, ReplyT], request: RequestT, *, limit_s: float, largest_cell: int | None = None
    ) -> ReplyT:
        """Make a call, on an idle connection if there is one. Raises the same errors as Hs2Connection.call.

        `limit_s` applies separately to each of three steps: opening a connection, waiting until it is idle, and
        waiting for the reply.
        """
        try:
            async with asyncio.timeout(limit_s):
                connection = self._idle() or await self._open_another()
        except TimeoutError:
            raise ConnectionLost(sent=False) from None
        self._check_not_released()
        return await connection.call(method, request, limit_s=limit_s, largest_cell=largest_cell)

    async def call_with_retries(self, method: Method[RequestT, ReplyT], request: RequestT, *, limit_s: float) -> ReplyT:
        """Make an idempotent call. After network failures, retry it on new connections for at most `limits.retry_s`."""
        retries: Retries | None = None
        while True:
            try:
                return await self.call(method, request, limit_s=limit_s)
            except ConnectionLost as error:
                retries = retries or Retries(self.limits.retry_s)
                if error.is_refused or self.is_released or not await retries.pause():
                    raise

    async def call_opener(self, method: Method[RequestT, ReplyT], request: RequestT, *, limit_s: float) -> ReplyT:
        """Make a call that must use the connection on which the session was opened."""
        self._check_not_released()
        return await self._opener.call(method, request, limit_s=limit_s)

    def release(self) -> list[Hs2Connection]:
        """Return all connections to the caller. No further calls are possible afterward."""
        self.is_released = True
        connections, self._connections = self._connections, []
        return connections

    def _idle(self) -> Hs2Connection | None:
        return next((one for one in self._connections if not one.is_busy and not one.is_closed()), None)

    async def _open_another(self) -> Hs2Connection:
        """Open a new connection. Return an existing one if the connection limit is reached or opening fails."""
        async with self._growing:
            self._check_not_released()
            if idle := self._idle():
                return idle
            living = [one for one in self._connections if not one.is_closed()]
            if len(living) >= _MAX_CONNECTIONS:
                return living[-1]
            try:
                connection = await self._more()
            except EngineError as error:
                if not living:
                    is_refused = not isinstance(error, EngineUnavailable)
                    raise ConnectionLost(sent=False, is_refused=is_refused) from None
                return living[-1]
            if self.is_released:
                await connection.disconnect()
                raise ConnectionLost(sent=False)
            self._connections.append(connection)
            # A broken connection keeps its socket open until it is disconnected.
            for broken in [one for one in self._connections if one is not self._opener and one.is_closed()]:
                await broken.disconnect()
                self._connections = [one for one in self._connections if one is not broken]
            return connection

    def _check_not_released(self) -> None:
        """Raise ConnectionLost once the connections were released, because they may already serve another session."""
        if self.is_released:
            raise ConnectionLost(sent=False)


class HttpTransport:
    """Connects to one member over HTTP with one login. `resolved` is the IP address of the member's host."""

    def __init__(self, address: Hs2Address, login: Hs2Login, resolved: str, tls: ssl.SSLContext | None) -> None:
        host = f"[{resolved}]" if ":" in resolved else resolved
        self._url = f"{'https' if tls else 'http'}://{host}:{login.member.port}/{(address.http_path or '').lstrip('/')}"
        self._closed = False
        self._token = login.password if address.mechanism is Mechanism.JWT else None
        pair = f"{login.user}:{login.password or 'none'}".encode()
        basic = f"Basic {base64.b64encode(pair).decode()}"
        self._client = httpx.AsyncClient(
            headers={
                "Host": str(login.member),
                "Content-Type": "application/x-thrift",
                "Accept": "application/x-thrift",
                # Compressed data could expand to a thousand times its size.
                "Accept-Encoding": "identity",
                "Authorization": basic if self._token is None else f"Bearer {self._token}",
                # Hive requires this header if its CSRF filter is on.
                "X-XSRF-HEADER": "true",
            },
            verify=tls or False,
            timeout=httpx.Timeout(600.0, connect=address.limits.connect_s),
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
            follow_redirects=False,
            trust_env=False,
        )

    def is_closed(self) -> bool:
        return self._closed

    async def exchange(self, call: bytes, expected: transports.ReplySpec[transports.AnswerT]) -> transports.AnswerT:
        async with self._client.stream("POST", self._url, content=call) as response:
            if response.status_code in {401, 403}:
                raise LoginRefused
            if response.status_code in {502, 503, 504}:
                raise httpx.ReadError(f"status {response.status_code}")
            if response.status_code != _OK:
                raise MalformedMessage(f"HTTP status {response.status_code}")
            body = await _body(response, expected)
        return expected.decode(redact_token(body, self._token))

    async def close(self) -> None:
        self._closed = True
        with suppress(httpx.HTTPError, OSError):
            await self._client.aclose()


async def _body(response: httpx.Response, expected: transports.ReplySpec[transports.AnswerT]) -> bytes:
    """Read the whole response body. Raises ReplyTooLarge, CellTooLarge, MalformedMessage."""
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise MalformedMessage("unexpected compressed response")
    body, skimmer = bytearray(), None
    async for piece in response.aiter_raw():
        if skimmer is not None:
            await transports.skip_in_steps(skimmer, piece)
            continue
        body += piece
        if len(body) > expected.max_bytes:
            skimmer = transports.MessageSkipper(expected.largest_cell)
            await transports.skip_in_steps(skimmer, body)
            body.clear()
    if skimmer is not None:
        raise transports.ReplyTooLarge(skimmer.size)
    return bytes(body)


_HEADER = struct.Struct(">BI")
_START, _SASL_OK, _BAD, _ERROR, _COMPLETE = range(1, 6)
_MAX_BODY_BYTES = 1024 * 1024
_MAX_STEPS = 20


SaslStep = Callable[[bytes | None], Awaitable[bytes]]
"""Computes the response to the server's challenge (None before the first message). Raises LoginRefused."""


def plain(user: str, password: str) -> SaslStep:
    """Return the login step for SASL PLAIN. Servers without authentication accept any user name and password."""
    # Hive rejects an empty password even if it does not check passwords.
    login = b"\0" + user.encode() + b"\0" + (password or "none").encode()

    async def step(challenge: bytes | None) -> bytes:
        return b"" if challenge else login

    return step


async def negotiate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mechanism: str, step: SaslStep) -> None:
    """Log in with a SASL mechanism. Raises LoginRefused, MalformedMessage, and stream errors."""
    _send(writer, _START, mechanism.encode())
    _send(writer, _SASL_OK, await step(None))
    for _ in range(_MAX_STEPS):
        await writer.drain()
        status, length = _HEADER.unpack(await reader.readexactly(_HEADER.size))
        if length > _MAX_BODY_BYTES:
            raise MalformedMessage("invalid SASL message")
        body = await reader.readexactly(length)
        if status == _COMPLETE:
            return
        if status in {_BAD, _ERROR}:
            raise LoginRefused(body.decode("utf-8", "replace"))
        if status != _SASL_OK:
            raise MalformedMessage("invalid SASL message")
        _send(writer, _SASL_OK, await step(body))
    raise MalformedMessage("too many SASL steps")


def _send(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    writer.write(_HEADER.pack(status, len(body)) + body)


class Gssapi:
    """Logs in to `service/host` with this process's Kerberos ticket."""

    def __init__(self, service: str, host: str) -> None:
        self._gssapi: Any = importlib.import_module("gssapi")
        self._target = f"{service}@{host}"
        self._context: Any = None

    async def step(self, challenge: bytes | None) -> bytes:
        """Compute the next token in a thread, because requests to the KDC block."""
        try:
            return await asyncio.to_thread(self._step, challenge)
        except self._gssapi.exceptions.GSSError as error:
            raise LoginRefused("The Kerberos login failed.") from error

    def _step(self, challenge: bytes | None) -> bytes:
        if self._context is None:
            name = self._gssapi.Name(self._target, self._gssapi.NameType.hostbased_service)
            self._context = self._gssapi.SecurityContext(name=name, usage="initiate")
        if not self._context.complete:
            return self._context.step(challenge) or b""
        # The server offers security layers; decline them all.
        self._context.unwrap(challenge or b"")
        return self._context.wrap(b"\x01\0\0\0", encrypt=False).message


async def connect(address: Hs2Address, login: Hs2Login) -> Hs2Connection:
    """Open a connection to the member of `login`. Raises EngineUnavailable, CredentialsRequired."""
    resolved = await address.rules.resolve(login.member.host, login.member.port)
    limit_s = address.limits.connect_s / len(resolved)
    return await connect_first(resolved, lambda one: _connect_to(address, login, one, limit_s))


async def _connect_to(address: Hs2Address, login: Hs2Login, resolved: str, limit_s: float) -> Hs2Connection:
    member, tls = login.member, None
    with connect_errors():
        if address.tls is not None:
            validate, ca = address.tls.validate, address.tls.ca
            # This runs in a thread because loading the system certificates takes tens of milliseconds.
            tls = await asyncio.to_thread(client_tls, member.host, validate=validate, ca=ca)
        if address.http_path is not None:
            # Nothing is sent yet; the login is verified by the first call, OpenSession.
            return Hs2Connection(HttpTransport(address, login, resolved, tls), max_bytes=address.reply_max_bytes)
        async with asyncio.timeout(limit_s):
            reader, writer = await asyncio.open_connection(
                resolved,
                member.port,
                limit=transports.READ_BYTES,
                ssl=tls,
                server_hostname=member.host if tls else None,
            )
            connection: socket.socket = writer.get_extra_info("socket")
            # Keepalive detects an unreachable server while the connection is idle.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            try:
                transport = await _logged_in(address, login, reader, writer)
            except BaseException:  # including cancellation: the connection must not stay open
                writer.transport.abort()
                raise
            return Hs2Connection(transport, max_bytes=address.reply_max_bytes)


async def _logged_in(
    address: Hs2Address, login: Hs2Login, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> transports.Transport:
    if address.mechanism is Mechanism.NOSASL:
        return transports.UnframedTransport(reader, writer)
    if address.mechanism is Mechanism.GSSAPI:
        ticket = Gssapi(address.kerberos_service, address.kerberos_host or login.member.host)
        await negotiate(reader, writer, "GSSAPI", ticket.step)
    else:
        await negotiate(reader, writer, "PLAIN", plain(login.user, login.password))
    return transports.FramedTransport(reader, writer)
