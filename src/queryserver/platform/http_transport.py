"""HTTP over httpx, for `http_client.py`, which imports this module with the first request."""

import ssl
from pathlib import Path

import httpx

from queryserver.errors.statements import EngineUnavailable
from queryserver.platform.addresses import HttpServer
from queryserver.platform.http_messages import HttpRequest, HttpResponse, NotConnected

_LIMITS = httpx.Limits(max_connections=16, max_keepalive_connections=4, keepalive_expiry=15.0)


class HttpTransport:
    """A pool of connections. Creating it blocks, because it reads the system's certificates."""

    def __init__(self, *, authorities: Path | None, verify: bool) -> None:
        context = _tls(authorities) if verify else False
        self._transport = httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=_LIMITS)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def exchange(self, sent: HttpRequest, server: HttpServer, ip: str) -> HttpResponse:
        """Send a request to the server at address `ip`. Raises NotConnected, EngineUnavailable."""
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
            return await _whole(response, request, sent.max_bytes, server)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise NotConnected(_reason(server, error)) from error
        except httpx.TransportError as error:
            raise EngineUnavailable(_reason(server, error)) from error


def _tls(authorities: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if authorities is not None:
        context.load_verify_locations(cafile=authorities)
    return context


async def _whole(response: httpx.Response, request: httpx.Request, max_bytes: int, server: HttpServer) -> HttpResponse:
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
    """Describe a failure by only its kind and the host, which comes from the settings."""
    kind = "TLS failed" if isinstance(error.__cause__ or error.__context__, ssl.SSLError) else type(error).__name__
    return f"No answer of {server.host}: {kind}."
