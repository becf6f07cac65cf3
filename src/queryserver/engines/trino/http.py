"""HTTP to one coordinator: addresses that are permitted, no redirects, no cookies, a limit to everything."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import httpx

from queryserver.domain.errors.statements import EngineUnavailable, RowTooLarge
from queryserver.domain.result import ROW_CELLS
from queryserver.engines.echoes import without_token
from queryserver.engines.retrying import Retries
from queryserver.engines.trino.address import TrinoAddress
from queryserver.engines.trino.errors import Transient, transport_errors

_BODY_ROWS = 2
"""A page has 1 MiB and one row more; the JSON of a row is not much more than twice as large as the row."""
_LEAST_BODY_BYTES = 64 * 1024 * 1024
"""Segments have 16 MiB in a coordinator that nobody has configured otherwise."""


def body_limit(cell_max_bytes: int) -> int:
    """The largest answer that is read."""
    return max(_BODY_ROWS * ROW_CELLS * cell_max_bytes, _LEAST_BODY_BYTES)


_EXCHANGES_PER_ANSWER = 4
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=15.0)

Answered = TypeVar("Answered")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: httpx.Headers
    body: bytes


class HttpClient:
    """Connections to the coordinator and to wherever it keeps segments; shared by all sessions of an engine."""

    def __init__(self, address: TrinoAddress) -> None:
        self._address = address
        self._opening = asyncio.Lock()
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._is_closed = False
        self._chosen: dict[tuple[str, int], str] = {}

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def send(self, method: str, url: httpx.URL, headers: httpx.Headers, content: bytes = b"") -> Answer:
        """One exchange. Raises Transient, EngineUnavailable (closed, a host that may not be connected to)."""
        transport = await self._opened()
        place = (url.host, url.port or (443 if url.scheme == "https" else 80))
        last = Transient("No connection to Trino could be made.", reached=False)
        for ip in await self._addresses(place):
            try:
                answer = await self._exchange(transport, method, url, headers, content, ip)
            except Transient as error:
                self._chosen.pop(place, None)
                if error.reached:
                    raise
                last = error
            else:
                self._chosen[place] = ip
                return answer
        raise last

    async def close(self) -> None:
        """Idempotent."""
        self._is_closed = True
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def _addresses(self, place: tuple[str, int]) -> Sequence[str]:
        """The address that answered last, or all that the name has."""
        if chosen := self._chosen.get(place):
            return (chosen,)
        return await self._address.rules.resolve(*place)

    async def _exchange(
        self, transport: httpx.AsyncHTTPTransport, method: str, url: httpx.URL, headers: httpx.Headers, content: bytes,
        ip: str,
    ) -> Answer:  # fmt: skip
        patience = self._address.patience
        waits = {"connect": patience.connect_s, "read": patience.answer_s, "write": patience.answer_s}
        request = httpx.Request(
            method,
            url.copy_with(host=ip),
            headers=[(b"Host", url.netloc), *headers.raw],
            content=content or None,
            extensions={"timeout": {**waits, "pool": patience.connect_s}, "sni_hostname": url.host},
        )
        try:
            # A peer that sends one byte now and then would keep the limit of single reads at bay for ever.
            async with asyncio.timeout(patience.connect_s + _EXCHANGES_PER_ANSWER * patience.answer_s):
                with transport_errors():
                    response = await transport.handle_async_request(request)
                    return await _whole(response, request, self._address.cell_max_bytes)
        except TimeoutError:
            raise Transient("Trino did not answer in time.") from None

    async def _opened(self) -> httpx.AsyncHTTPTransport:
        async with self._opening:
            if self._is_closed:
                raise EngineUnavailable("This connector is closed.")
            if self._transport is None:
                # Reading the system's certificates takes tens of milliseconds.
                context = await asyncio.to_thread(_tls_context, self._address)
                self._transport = httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=_LIMITS)
            return self._transport


async def insist(
    attempt: Callable[[], Awaitable[Answered]], *, for_s: float, only_if: Callable[[Transient], bool] = lambda _: True
) -> Answered:
    """What `attempt` gives, tried again after Transient, with growing pauses; the last Transient is raised."""
    retries = Retries(for_s)
    while True:
        try:
            return await attempt()
        except Transient as error:
            if not (only_if(error) and await retries.pause()):
                raise


async def _whole(response: httpx.Response, request: httpx.Request, cell_max_bytes: int) -> Answer:
    """Raises RowTooLarge."""
    response.request = request
    pieces, size = list[bytes](), 0
    try:
        async for piece in response.aiter_bytes():
            pieces.append(piece)
            size += len(piece)
            if size > body_limit(cell_max_bytes):
                raise RowTooLarge(limit_bytes=ROW_CELLS * cell_max_bytes)
    finally:
        await response.aclose()
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    body = without_token(b"".join(pieces), token if scheme == "Bearer" else None)
    return Answer(response.status_code, response.headers, body)


def _tls_context(address: TrinoAddress) -> ssl.SSLContext:
    """Also for a coordinator without TLS: segments may be kept elsewhere."""
    context = ssl.create_default_context(cadata=address.ssl_ca or None)
    if address.is_tls and not address.ssl_validate:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
