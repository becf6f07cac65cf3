"""An HTTP client for key servers, catalogs and webhooks.

The host name is resolved once, and the client connects to an address that was checked (Contract platform 5.11: Hosts).
Certificates are verified against the host name. The client follows no redirects, ignores cookies and proxy environment
variables, and limits the size and duration of responses. httpx is imported with the first request, because loading it
takes 40 ms of CPU time and 2 MiB, and most servers never send a request.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from queryserver.errors.statements import EngineUnavailable
from queryserver.platform.addresses import AddressRules, HttpServer

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. `url` must not contain credentials. `max_bytes` limits the response, `within_s` the whole exchange."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    content: bytes = b""
    max_bytes: int = 1024 * 1024
    within_s: float = 10.0


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete response with any status code."""

    status: int
    content_type: str
    body: bytes


class NotConnected(EngineUnavailable):
    """This address did not accept the connection. Another address of the host may accept it."""


class HttpClient:
    """An HTTP client with pooled connections. Use it as an async context manager, which closes the connections."""

    def __init__(self, rules: AddressRules, *, authorities: Path | None = None, verify: bool = True) -> None:
        self._rules = rules
        self._authorities = authorities
        self._verify = verify
        self._opening = asyncio.Lock()
        self._transport: _HttpTransport | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def send(self, sent: HttpRequest) -> HttpResponse:
        """Send the request to the first permitted address that accepts a connection.

        Raises EngineUnavailable if no address is permitted, none accepts a connection, or no complete response arrives
        within the limits.
        """
        server = HttpServer(sent.url)
        try:
            async with asyncio.timeout(sent.within_s):
                last = EngineUnavailable(f"Could not connect to {server.host}.")
                for ip in await self._rules.resolve(server.host, server.port):
                    try:
                        return await (await self._opened()).exchange(sent, server, ip)
                    except NotConnected as error:
                        last = error
                raise last
        except TimeoutError:
            raise EngineUnavailable(f"{server.host} did not respond in time.") from None

    async def _opened(self) -> "_HttpTransport":
        async with self._opening:
            if self._transport is None:
                self._transport = await asyncio.to_thread(
                    _HttpTransport, authorities=self._authorities, verify=self._verify
                )
            return self._transport


class _HttpTransport:
    """A connection pool. Creating it blocks, because it reads the system's certificates."""

    def __init__(self, *, authorities: Path | None, verify: bool) -> None:
        import httpx  # noqa: PLC0415 see the module's docstring

        context = _tls(authorities) if verify else False
        limits = httpx.Limits(max_connections=16, max_keepalive_connections=4, keepalive_expiry=15.0)
        self._transport = httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def exchange(self, sent: HttpRequest, server: HttpServer, ip: str) -> HttpResponse:
        """Send a request to the server at the address `ip`. Raises NotConnected, EngineUnavailable."""
        import httpx  # noqa: PLC0415 see the module's docstring

        url = httpx.URL(sent.url)
        request = httpx.Request(
            sent.method,
            url.copy_with(host=ip),
            headers={"Host": url.netloc.decode("ascii"), "Accept-Encoding": "identity", **sent.headers},
            content=sent.content or None,
            extensions={"timeout": {"connect": sent.within_s, "pool": sent.within_s}, "sni_hostname": server.host},
        )
        try:
            response = await self._transport.handle_async_request(request)
            return await _read_response(response, request, sent.max_bytes, server)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise NotConnected(_reason(server, error)) from error
        except httpx.TransportError as error:
            raise EngineUnavailable(_reason(server, error)) from error


def _tls(authorities: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if authorities is not None:
        context.load_verify_locations(cafile=authorities)
    return context


async def _read_response(
    response: "httpx.Response", request: "httpx.Request", max_bytes: int, server: HttpServer
) -> HttpResponse:
    import httpx  # noqa: PLC0415 see the module's docstring

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
    return HttpResponse(response.status_code, response.headers.get("content-type", ""), b"".join(pieces))


def _reason(server: HttpServer, error: Exception) -> str:
    """Describe a failure by its kind and the host name only, because these are safe to show to users."""
    kind = "TLS failed" if isinstance(error.__cause__ or error.__context__, ssl.SSLError) else type(error).__name__
    return f"No response from {server.host}: {kind}."
