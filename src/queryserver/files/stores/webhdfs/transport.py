"""The transport of WebHDFS: HTTP/1.1 by httpx, with read sizes that depend on the number of readers."""

import ssl
from typing import Any, cast

import httpcore
import httpx

from queryserver.files.stores.block_sizes import ReadSizes

_KEEPALIVE_S = 5.0


class WideReadsTransport(httpx.AsyncHTTPTransport):
    """HTTP/1.1 without proxies, with read sizes determined by `sizes`."""

    def __init__(self, tls: ssl.SSLContext | bool, sizes: ReadSizes, *, max_connections: int) -> None:
        super().__init__(trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(verify=tls, trust_env=False),
            max_connections=max_connections,
            max_keepalive_connections=max_connections,
            keepalive_expiry=_KEEPALIVE_S,
            network_backend=_Network(sizes),
        )


class _Network(httpcore.AsyncNetworkBackend):
    def __init__(self, sizes: ReadSizes) -> None:
        self._sizes = sizes
        # The cast is needed for type checking without anyio, which httpx itself requires.
        self._network = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(self, *place: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._network.connect_tcp(*place, **options), self._sizes)

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream, sizes: ReadSizes) -> None:
        self._stream = stream
        self._sizes = sizes

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max(max_bytes, self._sizes.piece_bytes), timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._sizes)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
