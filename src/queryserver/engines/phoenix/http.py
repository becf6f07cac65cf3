"""HTTP to one Query Server: permitted addresses only, no redirects, no environment, a limit to everything."""

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

from queryserver.domain.errors.statements import EngineUnavailable, RowTooLarge
from queryserver.engines.phoenix.address import Authentication, Login, PhoenixAddress
from queryserver.engines.phoenix.errors import HttpRefusal, NotConnected, Silent
from queryserver.engines.phoenix.spnego import negotiate
from queryserver.engines.tls import client_tls

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
