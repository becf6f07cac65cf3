"""Sends the requests of Trino's client protocol. Each session has a `Coordinator`, and all share an HTTP client."""

import asyncio
import copy
import re
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from queryserver.engines.connections import Retries
from queryserver.engines.engine_messages import redact_token
from queryserver.engines.protocol import NO_CONTEXT, StatementContext
from queryserver.engines.trino import protocol
from queryserver.errors.statements import EngineError, EngineUnavailable, OutcomeUnknown, RowTooLarge
from queryserver.formats.arrow import ROW_SIZE_FACTOR

_EXCHANGES_PER_ANSWER = 4


def body_limit(cell_max_bytes: int) -> int:
    """Return the maximum size of a response in bytes.

    A page contains 1 MiB plus up to one row, and the JSON text of a row takes at most about twice the row's size.
    Segments have 16 MiB by default.
    """
    return max(2 * ROW_SIZE_FACTOR * cell_max_bytes, 64 * 1024 * 1024)


ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class TrinoAnswer:
    status: int
    headers: httpx.Headers
    body: bytes


class TrinoClient:
    """Sends HTTP requests to the coordinator and to segment servers. All sessions of an engine share one client."""

    def __init__(self, address: protocol.TrinoAddress) -> None:
        self._address = address
        self._opening = asyncio.Lock()
        self._transport: httpx.AsyncHTTPTransport | None = None
        self.is_closed = False
        self._chosen: dict[tuple[str, int], str] = {}

    async def send(self, method: str, url: httpx.URL, headers: httpx.Headers, content: bytes = b"") -> TrinoAnswer:
        """Send one request.

        Raises TransientFailure, RowTooLarge, and EngineUnavailable if the client is closed or the host is not allowed.
        """
        async with self._opening:
            if self.is_closed:
                raise EngineUnavailable("This connector is closed.")
            if self._transport is None:
                # In a thread, because loading the system certificates takes tens of milliseconds.
                context = await asyncio.to_thread(_tls_context, self._address)
                limits = httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=15.0)
                self._transport = httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits)
            transport = self._transport
        endpoint = (url.host, url.port or (443 if url.scheme == "https" else 80))
        last = protocol.TransientFailure("Could not connect to Trino.", reached=False)
        chosen = self._chosen.get(endpoint)
        # Try the address that responded last; if there is none, try all addresses of the host.
        for ip in (chosen,) if chosen else await self._address.rules.resolve(*endpoint):
            try:
                answer = await self._exchange(transport, method, url, headers, content, ip)
            except protocol.TransientFailure as error:
                self._chosen.pop(endpoint, None)
                if error.reached:
                    raise
                last = error
            else:
                self._chosen[endpoint] = ip
                return answer
        raise last

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        self.is_closed = True
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def _exchange(
        self, transport: httpx.AsyncHTTPTransport, method: str, url: httpx.URL, headers: httpx.Headers, content: bytes,
        ip: str,
    ) -> TrinoAnswer:  # fmt: skip
        timeouts = self._address.timeouts
        waits = {"connect": timeouts.connect_s, "read": timeouts.answer_s, "write": timeouts.answer_s}
        request = httpx.Request(
            method,
            url.copy_with(host=ip),
            headers=[(b"Host", url.netloc), *headers.raw],
            content=content or None,
            extensions={"timeout": {**waits, "pool": timeouts.connect_s}, "sni_hostname": url.host},
        )
        try:
            # This limits the total time, because per-read timeouts do not stop a peer that sends one byte at a time.
            async with asyncio.timeout(timeouts.connect_s + _EXCHANGES_PER_ANSWER * timeouts.answer_s):
                with protocol.transport_errors():
                    response = await transport.handle_async_request(request)
                    return await _whole(response, request, self._address.cell_max_bytes)
        except TimeoutError:
            raise protocol.TransientFailure("Trino did not respond in time.") from None


async def retry_transient(
    attempt: Callable[[], Awaitable[ResultT]],
    *,
    for_s: float,
    only_if: Callable[[protocol.TransientFailure], bool] = lambda _: True,
) -> ResultT:
    """Call `attempt` and return its result. After a TransientFailure, pause and retry for up to `for_s` seconds.

    Raises the last failure. A failure for which `only_if` returns False is raised immediately.
    """
    retries = Retries(for_s)
    while True:
        try:
            return await attempt()
        except protocol.TransientFailure as error:
            if not (only_if(error) and await retries.pause()):
                raise


async def _whole(response: httpx.Response, request: httpx.Request, cell_max_bytes: int) -> TrinoAnswer:
    """Read the whole response. Raises RowTooLarge if it exceeds the limit."""
    response.request = request
    pieces, size = list[bytes](), 0
    try:
        async for piece in response.aiter_bytes():
            pieces.append(piece)
            size += len(piece)
            if size > body_limit(cell_max_bytes):
                raise RowTooLarge(limit_bytes=ROW_SIZE_FACTOR * cell_max_bytes)
    finally:
        await response.aclose()
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    body = redact_token(b"".join(pieces), token if scheme == "Bearer" else None)
    return TrinoAnswer(response.status_code, response.headers, body)


def _tls_context(address: protocol.TrinoAddress) -> ssl.SSLContext:
    """Create the TLS context.

    It is needed even if the coordinator has no TLS, because segments may be on another server.
    """
    context = ssl.create_default_context(cadata=address.ssl_ca or None)
    if address.is_tls and not address.ssl_validate:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


PAGE_BYTES = 1024 * 1024
"""Page size to request. Larger pages save no time, and parsing their JSON would block the event loop."""

_STATEMENT = "/v1/statement"
_STATEMENT_URI = re.compile(r"/v1/statement/[A-Za-z0-9_./\-]+(\?[A-Za-z0-9_.=&%\-]*)?")
_SMALL_BYTES = 64 * 1024
_GARBAGE_TRIES = 3


class Coordinator:
    """Calls the coordinator's API for one session. Large responses are parsed in `executor`."""

    def __init__(
        self,
        http: TrinoClient,
        address: protocol.TrinoAddress,
        variant: protocol.TrinoVariant,
        login: protocol.TrinoLogin,
        state: protocol.ClientState,
        executor: Executor,
    ) -> None:
        self.state = state
        self.executor = executor
        self.address = address
        self.http = http
        self._variant = variant
        self._login = login
        self._origin = httpx.URL(address.url).copy_with(path="/", query=None, fragment=None, username="", password="")

    async def check(self) -> None:
        """Check the session's login by requesting an unknown query.

        Raises EngineUnavailable, CredentialsRequired, and TrinoRejected for HTTP status 403.
        """
        unknown_query = "/v1/query/20000101_000000_00000_aaaaa"
        try:
            await retry_transient(
                partial(self._accepted, "GET", unknown_query),
                for_s=self.address.timeouts.stop_s,
                only_if=lambda error: error.reached,
            )
        except protocol.TransientFailure as error:
            raise EngineUnavailable(error.message) from error
        except protocol.Expired:
            return  # expected, because the query does not exist
        except protocol.TrinoRejected as error:
            if error.name == "HTTP_403":
                raise

    async def start(self, statement: str, context: StatementContext = NO_CONTEXT) -> protocol.TrinoPage:
        """Start a statement and return its first page.

        The request's headers name the caller and the operation of `context`. It is retried only after a
        `TransientRefusal`, so that a statement never runs twice.
        Raises EngineUnavailable, CredentialsRequired, StatementRejected, OutcomeUnknown.
        """
        try:
            answer = await retry_transient(
                partial(self._accepted, "POST", _STATEMENT, statement.encode(), context),
                for_s=self.address.timeouts.retry_s,
                only_if=lambda error: isinstance(error, protocol.TransientRefusal),
            )
            return await self._page(answer, "")
        except protocol.TransientFailure as error:
            raise protocol.final_error(
                error, sent=error.reached and not isinstance(error, protocol.TransientRefusal)
            ) from error

    async def page(self, uri: str) -> protocol.TrinoPage:
        """Fetch the page at a path. Raises OutcomeUnknown, StatementRejected."""
        garbage = 0

        async def attempt() -> protocol.TrinoPage:
            nonlocal garbage
            mark = "&" if "?" in uri else "?"
            try:
                answer = await self._accepted("GET", f"{uri}{mark}targetResultSize={PAGE_BYTES}B")
            except protocol.TrinoRejected as error:
                if error.name == "HTTP_500":  # Trino's response once the next page was requested
                    raise protocol.Expired from error
                raise
            try:
                return await self._page(answer, uri)
            except protocol.TransientFailure as error:
                garbage += 1
                if garbage >= _GARBAGE_TRIES:
                    raise OutcomeUnknown(error.message) from error
                raise

        try:
            return await retry_transient(attempt, for_s=self.address.timeouts.retry_s)
        except protocol.TransientFailure as error:
            raise protocol.final_error(error, sent=True) from error

    async def stop(self, uri: str) -> bool:
        """Cancel the statement. Return whether the coordinator accepted the request within `stop_s` seconds."""
        try:
            async with asyncio.timeout(self.address.timeouts.stop_s):
                await retry_transient(partial(self._accepted, "DELETE", uri), for_s=self.address.timeouts.stop_s)
        except protocol.Expired:
            return True
        except (EngineError, protocol.TransientFailure, TimeoutError):
            return False
        return True

    async def finish(
        self, statement: str, context: StatementContext = NO_CONTEXT, *, stops_if_canceled: bool = True
    ) -> None:
        """Run a statement to completion and ignore its rows.

        Cancellation of the calling task also cancels the statement, if `stops_if_canceled` is set. Raises the same
        errors as `start` and `page`, and the statement's own error.
        """
        page = await self.start(statement, context)
        try:
            while page.next_uri is not None and page.error is None:
                page = await self.page(page.next_uri)
        except asyncio.CancelledError:
            if stops_if_canceled and page.next_uri is not None:
                await asyncio.shield(self.stop(page.next_uri))
            raise
        if page.error is not None:
            raise protocol.engine_error(page.error)

    def aside(self) -> "Coordinator":
        """Return a coordinator with a copy of the session's state, outside an open transaction."""
        state = replace(copy.deepcopy(self.state), transaction=protocol.NO_TRANSACTION)
        return Coordinator(self.http, self.address, self._variant, self._login, state, self.executor)

    async def _accepted(
        self, method: str, path: str, content: bytes = b"", context: StatementContext = NO_CONTEXT
    ) -> TrinoAnswer:
        """Send one request to the configured coordinator, check the status, and apply the session changes it returns.

        `path` may include a query string.
        """
        headers = protocol.request_headers(self.address, self._variant, self._login, self.state, context)
        url = self._origin.copy_with(raw_path=f"{self.address.path}{path}".encode())
        answer = await self.http.send(method, url, headers, content)
        protocol.check_status(answer.status, answer.body)
        self.state.apply_headers(answer.headers, self._variant)
        return answer

    async def _page(self, answer: TrinoAnswer, uri: str) -> protocol.TrinoPage:
        if len(answer.body) < _SMALL_BYTES:
            page = protocol.parse(answer.body, uri)
        else:
            loop = asyncio.get_running_loop()
            page = await loop.run_in_executor(self.executor, protocol.parse, answer.body, uri)
        if page.next_uri is None:
            return page
        return replace(page, next_uri=self.own_uri(page.next_uri))

    def own_uri(self, next_uri: str) -> str:
        """Return the path of a next URI. Requests for it are sent only to the configured coordinator.

        A coordinator behind a proxy may return an internal address, and a forged response must not send the login to
        another host.
        """
        parts = urlsplit(next_uri)
        uri = parts.path + (f"?{parts.query}" if parts.query else "")
        own = uri[max(uri.find(_STATEMENT), 0) :]
        if not _STATEMENT_URI.fullmatch(own) or ".." in own:
            raise protocol.TransientFailure("Trino returned an invalid response.")
        return own
