"""What the stores share: how much is read and written at a time, and how harmless calls are tried again.

Few readers take much, for speed; many take little, for memory.
"""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import httpcore
import httpx

_KIB = 1024
_MOST_BYTES = 1024 * _KIB
LEAST_BYTES = 64 * _KIB
"""What a reader may take in any case."""
_TOGETHER_BYTES = 8 * 1024 * _KIB


T = TypeVar("T")
Failure = TypeVar("Failure", bound=Exception)


async def retried(
    attempt: Callable[[], Awaitable[T]],
    failure: type[Failure],
    *,
    tries: int,
    first_pause_s: float,
    may_pass: Callable[[Failure], bool] = lambda _: True,
) -> T:
    """The outcome of a call that may be repeated. Pauses grow, and are random to spread the callers."""
    for number in range(1, tries):
        try:
            return await attempt()
        except failure as error:
            if not may_pass(error):
                raise
        await asyncio.sleep(random.uniform(0.5, 1) * first_pause_s * 2**number)  # noqa: S311 no secret
    return await attempt()


class Blocks:
    """Takes blocks from a body. Holds what is left of one piece."""

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self._rest = memoryview(b"")

    async def take(self, size_bytes: int) -> bytearray:
        """The next `size_bytes`; fewer only at the end."""
        block = bytearray()
        while len(block) < size_bytes:
            if not self._rest:
                piece = await anext(self._body, None)
                if piece is None:
                    break
                self._rest = memoryview(piece)
            wanted = size_bytes - len(block)
            block += self._rest[:wanted]
            self._rest = self._rest[wanted:]
        return block


class ReadSizes:
    """Shares out to the readers of one store what they may hold in pieces."""

    def __init__(self, *, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._readers = 0

    @contextmanager
    def reader(self) -> Generator[None]:
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    @property
    def piece_bytes(self) -> int:
        """What one reader may take now: a multiple of 64 KiB, 1 MiB at most."""
        share = _TOGETHER_BYTES // max(1, self._readers)
        return max(LEAST_BYTES, min(self._most_bytes, share - share % LEAST_BYTES))


_KEEPALIVE_S = 5.0


class WideReadsTransport(httpx.AsyncHTTPTransport):
    """As its base, HTTP/1.1 without proxies, with pieces as large as `sizes` says."""

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
        # Its type is left open where anyio is not installed; httpx itself needs it.
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
