"""The HTTP layer: addresses, credentials, timeouts, retries, and failures as exceptions.

Everything in this package calls the server through `Transport.call` (JSON in, JSON out), `Transport.send` (any
response, read completely) or `Transport.stream` (a response that is read while it arrives).
"""

import json
import logging
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import anyio
import httpx

from queryserver_client.credentials import Credentials, Secret
from queryserver_client.errors import (
    ApiError,
    AuthenticationError,
    ConfigurationError,
    ConnectionLost,
    QueryserverError,
    api_error,
)
from queryserver_client.retries import Attempts, Rest, Retries, may_repeat_answer, retry_after

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Answer = TypeVar("Answer", bound=Mapping[str, Any], default=dict[str, Any])
    """The generated model that declares what the caller reads: `body: StatResponse = await …call(…)`."""

API = "/api/v1/"
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_REVOKE_WITHIN_S = 5.0
_EVENTS_REST_S, _MAX_EVENTS_REST_S = 60.0, 3600.0
_LEAST_HELD_S = 5.0
"""If a call ends earlier than this, its duration was not the reason."""
_HELD_SHORTER_S = 300.0
"""How long calls are then held for a shorter time, because the connection may have broken by chance."""
_NO_PLACE = "too_many_streams"
_TIMED_OUT = 408
_GATEWAY_TIMED_OUT = 504
_BODY_SENT = "send_request_body.complete"
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"})
"""OpenSSL error reasons for bytes that are not TLS. They differ between OpenSSL releases."""
_LOGGED_FROM_TRY = 5
"""If the server has responded before, shorter outages of about a second are not logged."""

log = logging.getLogger("queryserver_client")


@dataclass(frozen=True)
class Call:
    """One request, which may be sent several times."""

    method: str
    path: str
    """The path below /api/v1/, with quoted segments (`segment`)."""
    json: Any = None
    params: Mapping[str, Any] | None = None
    headers: Mapping[str, str] | None = None
    content: Any = None
    data: Mapping[str, Any] | None = None
    files: Any = None
    is_repeatable: bool = False
    """Whether a second request is harmless if the first one may have been carried out."""
    wait_s: float = 0.0
    """How many seconds the server may hold its response."""
    is_optional: bool = False
    """Whether the caller can do without the response if the user's waiting calls are at their limit."""
    is_held: bool = False
    """Whether the field `wait` asks the server to hold the call for that long; `json` does not include it.

    The server is asked to hold it for less time if something in between has closed held calls, and not at all if the
    user's waiting calls are at their limit. An earlier response is then not a failure.
    """
    silence_s: float | None = None
    """Seconds without a byte after which the response counts as broken. The default is the client's timeout."""
    sent: "Sent | None" = None
    """Records whether a request may have reached the server, for callers that need to know after a cancellation."""


class Transport:
    """Calls one server as one user. Created by `connect`."""

    url = ""  # so that a traceback for a rejected address can show the object

    def __init__(
        self,
        url: str,
        credentials: Credentials,
        *,
        timeout_s: float = 30.0,
        retries: Retries | None = None,
        verify: Any = True,
        headers: "Mapping[str, str | Secret] | None" = None,
        http_transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = server_address(url)
        self.retries = retries or Retries()
        self.timeout_s = timeout_s
        self.rest_of_events = Rest(_EVENTS_REST_S, _MAX_EVENTS_REST_S)
        """Active while events are not tried, because a proxy in between held them back (`events.py`)."""
        self._is_reached = False
        self._max_held_wait_s, self._held_shorter_until = float("inf"), 0.0
        """How long a call may be held (half the duration after which one was closed in between), and until when this
        applies.
        """
        self._credentials = credentials
        self._http = httpx.AsyncClient(
            base_url=self.url + API,
            # Loading the CA certificates takes 20 ms, and http does not use them.
            verify=verify if self.url.startswith("https:") else False,
            headers={"User-Agent": "queryserver-client", "Accept": "application/json"} | _revealed(headers or {}),
            transport=http_transport,
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0)),
            limits=httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=30),
        )

    def __repr__(self) -> str:
        return f"Transport({self.url!r})"

    async def close(self) -> None:
        """Revoke the login and close all connections. Never fails, and takes at most 5 s."""
        with anyio.move_on_after(_REVOKE_WITHIN_S, shield=True):
            with suppress(httpx.HTTPError, QueryserverError):  # the tokens expire by themselves
                await self._credentials.forget(self._post_once)
        with anyio.CancelScope(shield=True):
            await self._http.aclose()

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> "Answer":
        """Return the response's JSON object. `more` are further fields of `Call`."""
        return cast("Answer", (await self.answered(method, path, body, **more))[0])

    async def answered(
        self, method: str, path: str, body: Any = None, **more: Any
    ) -> tuple[dict[str, Any], httpx.Headers]:
        """Like `call`, but also return the response headers."""
        more.setdefault("is_repeatable", method == "GET")
        response = await self.send(Call(method, path, json=body, **more))
        return _object_of(response), response.headers

    async def send(self, call: Call) -> httpx.Response:
        """Return the response, read completely. Raises ApiError and its subclasses, and ConnectionLost."""
        async with self.opened(call) as response:
            return response

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncGenerator[httpx.Response]:
        """Yield the response, whose body has not been read yet. Errors while reading it are httpx.TransportError."""
        async with self.opened(call, is_streamed=True) as response:
            yield response

    @asynccontextmanager
    async def opened(self, call: Call, *, is_streamed: bool = False) -> AsyncGenerator[httpx.Response]:
        """Yield the response after as many tries as allowed."""
        attempts, is_renewed = self.retries.begin(), False
        while True:
            token = await self._credentials.bearer(self._post)
            began = anyio.current_time()
            response = await self._tried(call, token, attempts, is_streamed=is_streamed)
            if response is None:
                continue
            if response.is_success or response.status_code == 304:
                break
            error = await _error_of(response)
            await response.aclose()
            if error.code == _NO_PLACE and call.is_held:
                call = replace(call, is_held=False)
                continue
            if error.code == _NO_PLACE and call.is_optional:
                raise error
            is_ours = bool(error.code)
            # The server never responds with 504. The proxies in `deploy/` add a code to their 504.
            if error.status == _GATEWAY_TIMED_OUT or (
                not is_ours and (error.status == _TIMED_OUT or error.status >= 500)
            ):
                self._note_end(call, began)
            if isinstance(error, AuthenticationError) and not is_renewed:
                is_renewed = True
                if await self._credentials.renewed(token, self._post):
                    continue
            again = may_repeat_answer(error.status, error.code, is_repeatable=call.is_repeatable, is_ours=is_ours)
            if not again or not await attempts.pause(error.retry_after):
                raise error
        try:
            yield response
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    async def _tried(
        self, call: Call, token: Secret | None, attempts: Attempts, *, is_streamed: bool
    ) -> httpx.Response | None:
        """Return the response to one try, or None if it failed and another may follow."""
        sent = call.sent or Sent()
        sent.begin()
        began = anyio.current_time()
        try:
            request = self._request(call, token, sent)
            response = await self._http.send(request, stream=True)
            self._is_reached = True
            if not is_streamed or not response.is_success:
                await _read(response)
        except (httpx.TransportError, httpx.DecodingError) as error:
            is_sent = not isinstance(error, _NOT_SENT) and sent.is_possible
            if is_sent:
                self._note_end(call, began)
            again = call.is_repeatable or not is_sent
            if isinstance(error, httpx.UnsupportedProtocol):
                raise ConfigurationError(f"{self.url} is not the address of a server") from error
            refusal = _tls_refusal(error) if isinstance(error, httpx.ConnectError) else None
            if refusal is not None:  # retrying does not help
                raise ConnectionLost(f"{self.url}: {refusal}", attempts=max(1, attempts.made)) from error
            what = str(error) or type(error).__name__
            if again:
                self._log_retry(what, attempts)
                if await attempts.pause(is_reached=self._is_reached):
                    return None
            tries = max(1, attempts.made)
            message = f"{self.url}: {call.method} {call.path}: {what} ({tries} {'try' if tries == 1 else 'tries'})"
            raise ConnectionLost(message, attempts=tries, is_sent=is_sent) from error
        return response

    def _log_retry(self, what: str, attempts: Attempts) -> None:
        """Log once per call, because a program that only waits appears to hang."""
        for_s = self.retries.for_s(is_reached=self._is_reached)
        if for_s > 0 and attempts.made == (_LOGGED_FROM_TRY if self._is_reached else 0):
            log.warning("%s: %s; retrying for up to %g s", self.url, what, for_s)

    def _note_end(self, call: Call, began: float) -> None:
        """Remember that a response held this long did not get through, because the next one would not either."""
        now = anyio.current_time()
        if call.is_held and now - began >= _LEAST_HELD_S:
            self._max_held_wait_s = min(self._current_max_held_wait_s(), (now - began) / 2)
            self._held_shorter_until = now + _HELD_SHORTER_S

    def _current_max_held_wait_s(self) -> float:
        return self._max_held_wait_s if anyio.current_time() < self._held_shorter_until else float("inf")

    def _request(self, call: Call, token: Secret | None, sent: "Sent") -> httpx.Request:
        body = call.json
        if call.is_held and (wait_s := min(call.wait_s, self._current_max_held_wait_s())) > 0:
            body = {**body, "wait": round(wait_s, 3)}
        timeout = httpx.Timeout(
            self.timeout_s,
            connect=min(self.timeout_s, 10.0),
            read=call.silence_s or self.timeout_s + call.wait_s,
            pool=None,  # waiting for this client's earlier calls is not a server failure
        )
        request = self._http.build_request(
            call.method,
            call.path,
            json=_revealed(body),
            params=call.params,
            headers=call.headers,
            content=call.content,
            data=call.data,
            files=call.files,
            timeout=timeout,
            extensions={"trace": sent.note},
        )
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token.reveal()}"
        return request

    async def _post(self, path: str, fields: Mapping[str, str | Secret]) -> dict[str, Any]:
        """Make a `token/` call. It is repeated like a read, because a second login or refresh is harmless."""
        attempts = self.retries.begin()
        call = Call("POST", path, json=fields, is_repeatable=True)
        while True:
            response = await self._tried(call, None, attempts, is_streamed=False)
            if response is None:
                continue
            if response.is_success:
                return _object_of(response)
            error = await _error_of(response)
            again = may_repeat_answer(error.status, error.code, is_repeatable=True, is_ours=bool(error.code))
            if not again or not await attempts.pause(error.retry_after):
                raise error

    async def _post_once(self, path: str, fields: Mapping[str, str | Secret]) -> dict[str, Any]:
        attempts = Retries(total_s=0).begin()
        response = await self._tried(Call("POST", path, json=fields), None, attempts, is_streamed=False)
        return _object_of(response) if response is not None else {}


class Sent:
    """Records whether a request's last byte was sent, because servers do not carry out incomplete requests."""

    def __init__(self) -> None:
        self._is_noted = self._is_complete = False
        self.is_ever_possible = False

    @property
    def is_possible(self) -> bool:
        """Whether the current try may have reached the server. Also True for a transport that does not report its
        progress.
        """
        return self._is_complete or not self._is_noted

    def begin(self) -> None:
        """Start another try."""
        self._is_noted = self._is_complete = False

    async def note(self, event: str, facts: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._is_noted = True
        if event.endswith(_BODY_SENT):
            self._is_complete = self.is_ever_possible = True


def _tls_refusal(error: httpx.ConnectError) -> str | None:
    """Return why TLS with this server cannot work, now or later, or None for failures that may be temporary."""
    causes = error.__cause__.args[:1] if error.__cause__ is not None else ()  # from httpcore, which wraps the failure
    cause = next((one for one in causes if isinstance(one, ssl.SSLError)), None)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {cause.verify_message}"
    if cause is not None and cause.reason in _NO_TLS:
        return "the server does not use TLS: begin the address with http:// (in a URL of SQLAlchemy: ?scheme=http)"
    return None


def segment(text: str) -> str:
    """Quote a name as one path segment (Contract editor 1.1)."""
    return quote(text, safe="")


def _revealed(value: Any) -> Any:
    """Return the request's values with the revealed secrets, which no variable has held before."""
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, dict):
        return {name: _revealed(member) for name, member in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_revealed(member) for member in cast("list[Any]", value)]
    return value


async def _read(response: httpx.Response) -> None:
    try:
        await response.aread()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await response.aclose()
        raise


async def _error_of(response: httpx.Response) -> ApiError:
    body: Mapping[str, Any] | str
    try:
        body = json.loads(response.content)
    except ValueError:
        body = response.text
    if not isinstance(body, Mapping):
        body = response.text
    if 300 <= response.status_code < 400:
        body = f"redirected to {response.headers.get('Location')}"
    return api_error(
        response.status_code,
        body,
        request_id=response.headers.get("X-Request-Id"),
        retry_after=retry_after(response.headers),
    )


def _object_of(response: httpx.Response) -> dict[str, Any]:
    """Return a successful response's JSON object. An array is returned as {"items": …}."""
    try:
        body = json.loads(response.content) if response.content else {}
    except ValueError as error:
        raise ApiError(
            "the answer is not JSON: is this the address of a queryserver?",
            status=response.status_code,
            request_id=response.headers.get("X-Request-Id"),
        ) from error
    return body if isinstance(body, dict) else {"items": body}


def server_address(url: str) -> str:
    """Return the normalized address without the API path. Raises ConfigurationError."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigurationError(f"the address is none: {error}") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ConfigurationError("the address must begin with http:// or https:// and name a host")
    if parsed.userinfo:
        raise ConfigurationError("the address must not hold credentials: give user=… and password=…")
    return url.rstrip("/").removesuffix("/api/v1")
