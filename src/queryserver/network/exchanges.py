"""Single exchanges over HTTP with servers that are no SQL engines: key servers, catalogues.

The name is resolved once and the connection goes to a checked address (Contract platform 5.11: Hosts); certificates are
verified for the name. No redirects, no proxies of the environment, no cookies; an answer has a limit of bytes and time.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Self

import httpx

from queryserver.domain.errors.statements import EngineUnavailable
from queryserver.network.addresses import AddressRules, HttpServer

_LIMITS = httpx.Limits(max_connections=16, max_keepalive_connections=4, keepalive_expiry=15.0)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `url` holds no login; `max_bytes` bounds the answer, `within_s` the whole exchange."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    content: bytes = b""
    max_bytes: int = 1024 * 1024
    within_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer, whatever its status."""

    status: int
    content_type: str
    body: bytes


class Exchanges:
    """Connections that are kept for further exchanges, until the `async with` ends."""

    def __init__(self, rules: AddressRules, *, authorities: Path | None = None, verify: bool = True) -> None:
        self._rules = rules
        self._authorities = authorities
        self._verify = verify
        self._opening = asyncio.Lock()
        self._transport: httpx.AsyncHTTPTransport | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def send(self, asked: Asked) -> Answered:
        """The answer of the first permitted address that takes the connection.

        Raises EngineUnavailable: no permitted address, no connection, no whole answer within the limits.
        """
        server = HttpServer(asked.url)
        try:
            async with asyncio.timeout(asked.within_s):
                last = EngineUnavailable(f"No connection to {server.host} could be made.")
                for ip in await self._rules.resolve(server.host, server.port):
                    try:
                        return await self._exchange(asked, server, ip)
                    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                        last = EngineUnavailable(_reason(server, error))
                raise last
        except TimeoutError:
            raise EngineUnavailable(f"{server.host} did not answer in time.") from None

    async def _exchange(self, asked: Asked, server: HttpServer, ip: str) -> Answered:
        url = httpx.URL(asked.url)
        request = httpx.Request(
            asked.method,
            url.copy_with(host=ip),
            headers={"Host": url.netloc.decode("ascii"), "Accept-Encoding": "identity", **asked.headers},
            content=asked.content or None,
            extensions={"timeout": {"connect": asked.within_s, "pool": asked.within_s}, "sni_hostname": server.host},
        )
        try:
            response = await (await self._opened()).handle_async_request(request)
            return await _whole(response, request, asked.max_bytes, server)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
            raise
        except httpx.TransportError as error:
            raise EngineUnavailable(_reason(server, error)) from error

    async def _opened(self) -> httpx.AsyncHTTPTransport:
        async with self._opening:
            if self._transport is None:
                # Reading the system's certificates takes tens of milliseconds.
                verify = await asyncio.to_thread(self._tls) if self._verify else False
                self._transport = httpx.AsyncHTTPTransport(verify=verify, trust_env=False, limits=_LIMITS)
            return self._transport

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        if self._authorities is not None:
            context.load_verify_locations(cafile=self._authorities)
        return context


async def _whole(response: httpx.Response, request: httpx.Request, max_bytes: int, server: HttpServer) -> Answered:
    response.request = request
    pieces, size = list[bytes](), 0
    try:
        async for piece in response.aiter_bytes():
            size += len(piece)
            if size > max_bytes:
                raise EngineUnavailable(f"{server.host} sent more than {max_bytes} bytes.")
            pieces.append(piece)
    except httpx.DecodingError as error:
        raise EngineUnavailable(_reason(server, error)) from error
    finally:
        await response.aclose()
    return Answered(response.status_code, response.headers.get("content-type", ""), b"".join(pieces))


def _reason(server: HttpServer, error: Exception) -> str:
    """What is told: the host that the operator named, and the kind of the failure."""
    kind = "TLS failed" if isinstance(error.__cause__ or error.__context__, ssl.SSLError) else type(error).__name__
    return f"No answer of {server.host}: {kind}."
