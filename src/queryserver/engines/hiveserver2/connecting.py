"""From an address to a connection that is logged in: http, SASL, Kerberos."""

import asyncio
import base64
import importlib.util
import socket
import ssl
import struct
from contextlib import suppress
from typing import Any, Protocol

import httpx

from queryserver.engines.connections import client_tls
from queryserver.engines.hiveserver2.connection import Connection
from queryserver.engines.hiveserver2.errors import LoginRefused, connect_errors
from queryserver.engines.hiveserver2.protocol.messages import MalformedMessage
from queryserver.engines.hiveserver2.transports import (
    READ_BYTES,
    AnswerT,
    BareTransport,
    Expected,
    FramedTransport,
    Overlong,
    Transport,
    read_past,
)
from queryserver.engines.hiveserver2.variants import Hs2Address, Login, Mechanism, Member
from queryserver.engines.statement_texts import without_token
from queryserver.errors.statements import EngineUnavailable

_REFUSED = frozenset({401, 403})
_UNAVAILABLE = frozenset({502, 503, 504})
_OK = 200
_LONGEST_SILENCE_S = 600.0


class HttpTransport:
    """One caller's way to one member. `address` is what the member's name was resolved to."""

    def __init__(self, address: Hs2Address, login: Login, resolved: str, tls: ssl.SSLContext | None) -> None:
        host = f"[{resolved}]" if ":" in resolved else resolved
        self._url = f"{'https' if tls else 'http'}://{host}:{login.member.port}/{(address.http_path or '').lstrip('/')}"
        self._closed = False
        self._token = login.password if address.mechanism is Mechanism.JWT else None
        self._client = httpx.AsyncClient(
            headers={
                "Host": str(login.member),
                "Content-Type": "application/x-thrift",
                "Accept": "application/x-thrift",
                # One packed piece may hold a thousand times its size.
                "Accept-Encoding": "identity",
                "Authorization": _authorization(address, login),
                # Hive asks for it where its filter against forged requests is on.
                "X-XSRF-HEADER": "true",
            },
            verify=tls or False,
            timeout=httpx.Timeout(_LONGEST_SILENCE_S, connect=address.limits.connect_s),
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
            follow_redirects=False,
            trust_env=False,
        )

    def is_closed(self) -> bool:
        return self._closed

    async def exchange(self, call: bytes, expected: Expected[AnswerT]) -> AnswerT:
        async with self._client.stream("POST", self._url, content=call) as response:
            if response.status_code in _REFUSED:
                raise LoginRefused
            if response.status_code in _UNAVAILABLE:
                raise httpx.ReadError(f"status {response.status_code}")
            if response.status_code != _OK:
                raise MalformedMessage(f"http status {response.status_code}")
            body = await _body(response, expected)
        return expected.decode(without_token(body, self._token))

    async def close(self) -> None:
        self._closed = True
        with suppress(httpx.HTTPError, OSError):
            await self._client.aclose()


async def _body(response: httpx.Response, expected: Expected[AnswerT]) -> bytes:
    """The whole body. Raises Overlong, CellFound, MalformedMessage."""
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise MalformedMessage("the answer is packed, which was not accepted")
    body, skimmer = bytearray(), None
    async for piece in response.aiter_raw():
        if skimmer is not None:
            await read_past(skimmer, piece)
            continue
        body += piece
        if len(body) > expected.most_bytes:
            skimmer = expected.skimmer()
            await read_past(skimmer, body)
            body.clear()
    if skimmer is not None:
        raise Overlong(skimmer.size)
    return bytes(body)


def _authorization(address: Hs2Address, login: Login) -> str:
    if address.mechanism is Mechanism.JWT:
        return f"Bearer {login.password}"
    pair = f"{login.user}:{login.password or 'none'}".encode()
    return "Basic " + base64.b64encode(pair).decode()


_HEADER = struct.Struct(">BI")
_START, _SASL_OK, _BAD, _ERROR, _COMPLETE = range(1, 6)
_LONGEST = 1024 * 1024
_MOST_STEPS = 20


class SaslMechanism(Protocol):
    """One way to log in."""

    @property
    def name(self) -> str:
        """As SASL registers it."""
        ...

    async def step(self, challenge: bytes | None) -> bytes:
        """The answer to the server's challenge; None: the first word. Raises LoginRefused."""
        ...


class Plain:
    """User name and password; servers without authentication take any."""

    name = "PLAIN"

    def __init__(self, user: str, password: str) -> None:
        # Hive refuses an empty password even where it asks for none.
        self._answer = b"\0" + user.encode() + b"\0" + (password or "none").encode()

    async def step(self, challenge: bytes | None) -> bytes:
        """There is only one step."""
        return b"" if challenge else self._answer


async def negotiate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mechanism: SaslMechanism) -> None:
    """Log in. Raises LoginRefused; what streams raise; MalformedMessage."""
    _send(writer, _START, mechanism.name.encode())
    _send(writer, _SASL_OK, await mechanism.step(None))
    for _ in range(_MOST_STEPS):
        await writer.drain()
        status, body = await _receive(reader)
        if status == _COMPLETE:
            return
        if status in {_BAD, _ERROR}:
            raise LoginRefused(body.decode("utf-8", "replace"))
        if status != _SASL_OK:
            raise MalformedMessage("no SASL message")
        _send(writer, _SASL_OK, await mechanism.step(body))
    raise MalformedMessage("the login does not end")


def _send(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    writer.write(_HEADER.pack(status, len(body)) + body)


async def _receive(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status, length = _HEADER.unpack(await reader.readexactly(_HEADER.size))
    if length > _LONGEST:
        raise MalformedMessage("no SASL message")
    return status, await reader.readexactly(length)


_NO_PROTECTION = b"\x01\0\0\0"


class Gssapi:
    """The login of the process's own ticket to `service/host`."""

    name = "GSSAPI"

    def __init__(self, service: str, host: str) -> None:
        self._gssapi: Any = importlib.import_module("gssapi")
        self._target = f"{service}@{host}"
        self._context: Any = None

    async def step(self, challenge: bytes | None) -> bytes:
        """The next token; ticket servers are asked in a thread."""
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
        # The server offers layers of protection in one byte; thrift's frames need none.
        self._context.unwrap(challenge or b"")
        return self._context.wrap(_NO_PROTECTION, encrypt=False).message


def is_installed() -> bool:
    """Whether the extra `kerberos` is there."""
    return importlib.util.find_spec("gssapi") is not None


async def connect(address: Hs2Address, login: Login) -> Connection:
    """A connection to the member of `login`. Raises EngineUnavailable, CredentialsRequired."""
    member = login.member
    resolved = await address.rules.resolve(member.host, member.port)
    *others, last = resolved
    for one in others:
        try:
            return await _connect_to(address, login, one, address.limits.connect_s / len(resolved))
        except EngineUnavailable:
            continue
    return await _connect_to(address, login, last, address.limits.connect_s / len(resolved))


async def _connect_to(address: Hs2Address, login: Login, resolved: str, limit_s: float) -> Connection:
    with connect_errors():
        tls = await _tls(address, login.member)
        if address.http_path is not None:
            # Nothing is sent before the first call: the session's OpenSession proves the login.
            return Connection(HttpTransport(address, login, resolved, tls), most_bytes=address.reply_max_bytes)
        async with asyncio.timeout(limit_s):
            transport = await _stream_transport(address, login, resolved, tls)
            return Connection(transport, most_bytes=address.reply_max_bytes)


async def _stream_transport(address: Hs2Address, login: Login, resolved: str, tls: ssl.SSLContext | None) -> Transport:
    reader, writer = await asyncio.open_connection(
        resolved,
        login.member.port,
        limit=READ_BYTES,
        ssl=tls,
        server_hostname=login.member.host if tls else None,
    )
    _keep_alive(writer)
    try:
        if address.mechanism is Mechanism.NOSASL:
            return BareTransport(reader, writer)
        await negotiate(reader, writer, _mechanism(address, login))
    except BaseException:  # a cancel too: the connection must not stay open
        writer.transport.abort()
        raise
    return FramedTransport(reader, writer)


async def _tls(address: Hs2Address, member: Member) -> ssl.SSLContext | None:
    if address.tls is None:
        return None
    # Reading the system's certificates takes tens of milliseconds.
    return await asyncio.to_thread(client_tls, member.host, validate=address.tls.validate, ca=address.tls.ca)


def _mechanism(address: Hs2Address, login: Login) -> SaslMechanism:
    if address.mechanism is Mechanism.GSSAPI:
        return Gssapi(address.kerberos.service, address.kerberos.host or login.member.host)
    return Plain(login.user, login.password)


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Have the system notice a server that is gone while nothing is sent."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
