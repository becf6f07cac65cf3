"""HTTP to one coordinator: addresses that are permitted, no redirects, no cookies, a limit to everything."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import httpx

from queryserver.domain.errors import EngineUnavailable, OutcomeUnknown
from queryserver.engines.echoes import without_token
from queryserver.engines.trino.address import TrinoAddress
from queryserver.engines.trino.errors import Transient, transport_errors

MAX_BODY_BYTES = 256 * 1024 * 1024
"""One row may be large; nothing that the coordinator sends is larger."""

_EXCHANGES_PER_ANSWER = 4
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 1.0
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
                    return await _whole(await transport.handle_async_request(request), request)
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
    loop = asyncio.get_running_loop()
    give_up, wait_s = loop.time() + for_s, _FIRST_WAIT_S
    while True:
        try:
            return await attempt()
        except Transient as error:
            if not only_if(error) or loop.time() + wait_s > give_up:
                raise
        await asyncio.sleep(wait_s)
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


async def _whole(response: httpx.Response, request: httpx.Request) -> Answer:
    response.request = request
    pieces, size = list[bytes](), 0
    try:
        async for piece in response.aiter_bytes():
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise OutcomeUnknown("Trino's answer is too large.")
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
