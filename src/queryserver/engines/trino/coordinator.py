"""The requests of the client protocol, on behalf of one session."""

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from queryserver.engines.connections import Retries
from queryserver.engines.statement_texts import without_token
from queryserver.engines.trino.protocol import (
    ClientState,
    Expired,
    Login,
    Page,
    Refused,
    Transient,
    TrinoAddress,
    TrinoRejected,
    Variant,
    check_status,
    engine_error,
    given_up,
    parse,
    request_headers,
    transport_errors,
)
from queryserver.errors.statements import EngineError, EngineUnavailable, OutcomeUnknown, RowTooLarge
from queryserver.formats.columns import ROW_CELLS

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


PAGE_BYTES = 1024 * 1024
"""What a page should weigh: larger ones save no time, and reading them as JSON would hold the event loop up."""

_STATEMENT = "/v1/statement"
_NO_QUERY = "/v1/query/20000101_000000_00000_aaaaa"
_STATEMENT_URI = re.compile(r"/v1/statement/[A-Za-z0-9_./\-]+(\?[A-Za-z0-9_.=&%\-]*)?")
_SMALL_BYTES = 64 * 1024
_GARBAGE_TRIES = 3


class Coordinator:
    """One session's way to the coordinator. `executor` reads large answers."""

    def __init__(
        self, http: HttpClient, address: TrinoAddress, variant: Variant, login: Login, state: ClientState,
        executor: Executor,
    ) -> None:  # fmt: skip
        self.state = state
        self.executor = executor
        self.address = address
        self.http = http
        self._variant = variant
        self._login = login
        self._origin = httpx.URL(address.url).copy_with(path="/", query=None, fragment=None, username="", password="")

    async def check(self) -> None:
        """A look at nothing, with the login of the session. Raises EngineUnavailable, CredentialsRequired."""
        try:
            await insist(
                partial(self._accepted, "GET", _NO_QUERY), for_s=self.address.patience.stop_s, only_if=_was_reached
            )
        except Transient as error:
            raise EngineUnavailable(error.message) from error
        except Expired:
            return  # as expected, there is no such query
        except TrinoRejected as error:
            if error.name == "HTTP_403":
                raise

    async def start(self, statement: str) -> Page:
        """The first page. Only an answer that tells so is tried again: what was sent once is not sent again.

        Raises EngineUnavailable, CredentialsRequired, StatementRejected, OutcomeUnknown.
        """
        try:
            answer = await insist(
                partial(self._accepted, "POST", _STATEMENT, statement.encode()),
                for_s=self.address.patience.retry_s,
                only_if=lambda error: isinstance(error, Refused),
            )
            return await self._page(answer, "")
        except Transient as error:
            raise given_up(error, sent=error.reached and not isinstance(error, Refused)) from error

    async def page(self, uri: str) -> Page:
        """The page of that path, which may be asked for again. Raises OutcomeUnknown, StatementRejected."""
        garbage = 0

        async def attempt() -> Page:
            nonlocal garbage
            answer = await self._asked(uri)
            try:
                return await self._page(answer, uri)
            except Transient as error:
                garbage += 1
                if garbage >= _GARBAGE_TRIES:
                    raise OutcomeUnknown(error.message) from error
                raise

        try:
            return await insist(attempt, for_s=self.address.patience.retry_s)
        except Transient as error:
            raise given_up(error, sent=True) from error

    async def _asked(self, uri: str) -> Answer:
        mark = "&" if "?" in uri else "?"
        try:
            return await self._accepted("GET", f"{uri}{mark}targetResultSize={PAGE_BYTES}B")
        except TrinoRejected as error:
            if error.name == "HTTP_500":  # so Trino answers when the page after this one has been asked for already
                raise Expired from error
            raise

    async def stop(self, uri: str) -> bool:
        """Stop the statement; True once the coordinator has taken the word. Limited in time."""
        try:
            async with asyncio.timeout(self.address.patience.stop_s):
                await insist(partial(self._accepted, "DELETE", uri), for_s=self.address.patience.stop_s)
        except Expired:
            return True
        except (EngineError, Transient, TimeoutError):
            return False
        return True

    async def finish(self, statement: str) -> None:
        """Run a statement to its end and leave its rows. Raises what `start` and `page` raise, and its failure."""
        page = await self.start(statement)
        while page.next_uri is not None and page.error is None:
            page = await self.page(page.next_uri)
        if page.error is not None:
            raise engine_error(page.error)

    def url(self, path: str) -> httpx.URL:
        """The configured coordinator with another path and query."""
        return self._origin.copy_with(raw_path=f"{self.address.path}{path}".encode())

    async def _accepted(self, method: str, path: str, content: bytes = b"") -> Answer:
        headers = request_headers(self.address, self._variant, self._login, self.state)
        answer = await self.http.send(method, self.url(path), headers, content)
        check_status(answer.status, answer.body)
        self.state.absorb(answer.headers, self._variant)
        return answer

    async def _page(self, answer: Answer, uri: str) -> Page:
        if len(answer.body) < _SMALL_BYTES:
            page = parse(answer.body, uri)
        else:
            loop = asyncio.get_running_loop()
            page = await loop.run_in_executor(self.executor, parse, answer.body, uri)
        if page.next_uri is None:
            return page
        return replace(page, next_uri=self.own_uri(page.next_uri))

    def own_uri(self, next_uri: str) -> str:
        """The path of a next URI, to be asked of the configured coordinator and nobody else.

        A coordinator behind a proxy may name itself by an address that only it knows; and a forged answer must not
        make us send the login to another host.
        """
        parts = urlsplit(next_uri)
        uri = parts.path + (f"?{parts.query}" if parts.query else "")
        own = uri[max(uri.find(_STATEMENT), 0) :]
        if not _STATEMENT_URI.fullmatch(own) or ".." in own:
            raise Transient("Trino's answer cannot be read.")
        return own


def _was_reached(error: Transient) -> bool:
    return error.reached
