"""The HTTP client for one storage account. It limits connections, has timeouts, and ignores redirects and cookies."""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import TypeVar
from urllib.parse import quote, urlencode

import httpx

from queryserver.errors.files import InvalidPath, StorageUnavailable
from queryserver.files.stores.adls.credentials import AzureAccount, ClientCredentials, TokenAuthorizer
from queryserver.files.stores.adls.errors import UNREACHABLE, AzureFailure
from queryserver.files.stores.transfer_blocks import call_with_retries

API_VERSION = "2023-11-03"
_LIMITS = httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=15.0)
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_TRIES = 3
_ERROR_CODE = re.compile(r"<Code>(\w+)</Code>")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AzureCall:
    """One request. `names` are the names in the URL path, not percent-encoded."""

    method: str
    names: tuple[str, ...] = ()
    query: Mapping[str, str | int] = field(default_factory=dict[str, str | int])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bytes | AsyncIterator[bytes] = b""
    length: int | None = None


@dataclass(frozen=True, slots=True)
class AzureAnswer:
    """A complete 2xx response."""

    status: int
    headers: httpx.Headers
    body: bytes


class AzureClient:
    """Sends requests to one account. All methods raise AzureFailure. Errors of streamed content are passed on
    unchanged.
    """

    def __init__(self, account: AzureAccount) -> None:
        self._base = httpx.URL(account.url)
        self._timeouts = account.timeouts
        login = account.credential
        # Account keys and SAS tokens authorize requests directly, but an application must obtain tokens.
        self._authorizer = TokenAuthorizer(login, self._fetch_token) if isinstance(login, ClientCredentials) else login
        self._opening = asyncio.Lock()
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._is_closed = False

    async def read(self, call: AzureCall) -> AzureAnswer:
        """Send a request without side effects. It is retried if the account is busy or unavailable."""
        async with self._time_limited(self._timeouts.answer_s):
            return await self._with_retries(lambda: self.send(call))

    async def repeat(self, call: AzureCall) -> AzureAnswer:
        """Send an idempotent change. It is retried like `read`."""
        async with self._time_limited(self._timeouts.commit_s):
            return await self._with_retries(lambda: self.send(call))

    async def change(self, call: AzureCall) -> AzureAnswer:
        """Send a change, without retries. If there is no response, it is unknown whether the change has taken
        effect.
        """
        async with self._time_limited(self._timeouts.commit_s):
            return await self.send(call)

    async def send(self, call: AzureCall) -> AzureAnswer:
        """Like `change`, but without a timeout for the whole call, because sending the content may take arbitrarily
        long.
        """
        response = await self._begin(call)
        return AzureAnswer(response.status_code, response.headers, await _read_body(response))

    @asynccontextmanager
    async def stream(self, call: AzureCall) -> AsyncGenerator[httpx.Response]:
        """Yield a response whose body has not been read yet. Until the headers arrive, the request is retried like
        `read`.
        """
        async with self._time_limited(self._timeouts.answer_s):
            response = await self._with_retries(lambda: self._begin(call))
        try:
            yield response
        except httpx.TransportError:
            raise _unreachable() from None
        finally:
            await response.aclose()

    async def close(self) -> None:
        self._is_closed = True
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    async def _with_retries(self, attempt: Callable[[], Awaitable[T]]) -> T:
        pause_s = self._timeouts.first_retry_s
        return await call_with_retries(
            attempt, AzureFailure, tries=_TRIES, first_pause_s=pause_s, is_retryable=lambda error: error.is_retryable
        )

    @asynccontextmanager
    async def _time_limited(self, limit_s: float) -> AsyncGenerator[None]:
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                yield
        except TimeoutError:
            if limit.expired():
                raise _unreachable() from None
            raise

    async def _begin(self, call: AzureCall) -> httpx.Response:
        """Send a request, and return the response without its body. Raises AzureFailure unless the status is 2xx."""
        length = len(call.content) if isinstance(call.content, bytes) else call.length or 0
        headers = {
            **call.headers,
            "content-length": str(length),
            "x-ms-date": format_datetime(datetime.now(UTC), usegmt=True),
            "x-ms-version": API_VERSION,
        }
        url = await self._authorizer.authorize(call.method, self._url(call), headers)
        response = await self._send_request(call.method, url, headers, call.content)
        if response.is_success:
            return response
        failure = _failure(response, await _read_body(response))
        if failure.status == 401 and isinstance(self._authorizer, TokenAuthorizer):
            self._authorizer.discard()
        raise failure

    def _url(self, call: AzureCall) -> httpx.URL:
        if not {".", ".."}.isdisjoint(call.names):
            # A proxy could normalize the URL, which would then denote another entry.
            raise InvalidPath("The path contains a relative name.")
        path = "/".join(quote(name, safe="") for name in call.names)
        query = urlencode(call.query, quote_via=quote, safe="")
        raw = f"{self._base.raw_path.decode().rstrip('/')}/{path}"
        return self._base.copy_with(raw_path=(f"{raw}?{query}" if query else raw).encode())

    async def _send_request(
        self, method: str, url: httpx.URL, headers: Mapping[str, str], content: bytes | AsyncIterator[bytes]
    ) -> httpx.Response:
        transport, timeouts = await self._open_transport(), self._timeouts
        waits = {"connect": timeouts.connect_s, "read": timeouts.answer_s, "write": timeouts.answer_s}
        request = httpx.Request(
            method, url, headers=headers, content=content, extensions={"timeout": {**waits, "pool": timeouts.answer_s}}
        )
        try:
            response = await transport.handle_async_request(request)
        except httpx.TransportError:
            raise _unreachable() from None
        response.request = request
        return response

    async def _fetch_token(self, url: str, form: bytes) -> Mapping[str, object]:
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        async with self._time_limited(self._timeouts.answer_s):
            response = await self._send_request("POST", httpx.URL(url), headers, form)
            body = await _read_body(response)
        if not response.is_success:
            status = response.status_code
            # A wrong secret causes 400 or 401. The message is not used, because it contains ids of the tenant.
            raise AzureFailure(status, "AuthenticationFailed" if 400 <= status < 429 else UNREACHABLE)
        return _json_object(body)

    async def _open_transport(self) -> httpx.AsyncHTTPTransport:
        async with self._opening:
            if self._is_closed:
                raise StorageUnavailable("The store is closed.")
            if self._transport is None:
                # In a thread, because loading the system certificates takes tens of milliseconds.
                context = await asyncio.to_thread(ssl.create_default_context)
                self._transport = httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=_LIMITS)
            return self._transport


def _unreachable() -> AzureFailure:
    return AzureFailure(0, UNREACHABLE)


async def _read_body(response: httpx.Response) -> bytes:
    """Read the body and close the response."""
    pieces, size = list[bytes](), 0
    try:
        async for piece in response.aiter_raw():
            pieces.append(piece)
            size += len(piece)
            if size > _MAX_ANSWER_BYTES:
                raise AzureFailure(response.status_code, "AnswerTooLarge")
    except httpx.TransportError:
        raise _unreachable() from None
    finally:
        await response.aclose()
    return b"".join(pieces)


def _failure(response: httpx.Response, body: bytes) -> AzureFailure:
    """Convert an error response. The error code is in the header, or else in the body, which is XML for Blob and JSON
    for DFS.
    """
    code = response.headers.get("x-ms-error-code", "")
    if not code:
        text = body[:4096].decode(errors="replace")
        if match := _ERROR_CODE.search(text):
            code = match[1]
        elif text.startswith("{"):
            inner = _json_object(body).get("error")
            code = str(inner.get("code", "")) if isinstance(inner, dict) else ""  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return AzureFailure(response.status_code, re.sub(r"\W", "", code)[:60])


def _json_object(body: bytes) -> Mapping[str, object]:
    try:
        decoded: object = json.loads(body)
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}  # pyright: ignore[reportUnknownVariableType]
