"""The HTTP layer: addresses, credentials, timeouts, retries, and the conversion of failures to exceptions.

All other modules call the server with `Transport.call` (JSON in, JSON out), `Transport.send` (any response, read
completely) or `Transport.stream` (a response that is read as it arrives).
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
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
from queryserver_client.unreachable import TLS_REQUIRED, reason_of, requires_tls, tls_refusal

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Answer = TypeVar("Answer", bound=Mapping[str, Any], default=dict[str, Any])
    """The generated model that declares what the caller reads: `body: StatResponse = await …call(…)`."""

API = "/api/v1/"
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_REVOKE_WITHIN_S = 5.0
_EVENTS_REST_S, _MAX_EVENTS_REST_S = 60.0, 3600.0
_LEAST_HELD_S = 5.0
"""If a held call fails within this many seconds, the failure is not attributed to holding it too long."""
_HELD_SHORTER_S = 300.0
"""Seconds for which later calls are held for a shorter time. The period is limited, because the call may have failed by
chance."""
_NO_PLACE = "too_many_streams"
_BAD_REQUEST = 400
_TIMED_OUT = 408
_GATEWAY_TIMED_OUT = 504
_CONNECTING = "connection."
_BODY_SENT = "send_request_body.complete"
_LOGGED_FROM_TRY = 5
"""Attempt at which retries are logged if the server has responded before; outages of about a second are not logged."""
_CLEANUP_UNRESPONSIVE_S = 2.0
_SILENT_LOGGED_AFTER_S = 4.0
"""Seconds after which a call without connection or response is logged, so that a user sees it within 5 seconds."""

log = logging.getLogger("queryserver_client")


@dataclass(frozen=True)
class Call:
    """One request, which may be sent several times."""

    method: str
    path: str
    """Path below /api/v1/ with percent-encoded segments (`segment`)."""
    json: Any = None
    params: Mapping[str, Any] | None = None
    headers: Mapping[str, str] | None = None
    content: Any = None
    data: Mapping[str, Any] | None = None
    files: Any = None
    is_repeatable: bool = False
    """Whether a second request is harmless even if the first one was executed."""
    wait_s: float = 0.0
    """Seconds for which the server may hold the response."""
    is_optional: bool = False
    """Whether to raise the error immediately if the user's open streams are at their limit, instead of retrying."""
    is_held: bool = False
    """Whether to send `wait_s` as the field `wait`, so that the server holds the call; `json` must not contain it.

    A shorter time is sent if a proxy has recently broken held calls, and none if the user's waiting calls are at their
    limit. The caller must therefore expect an earlier response.
    """
    silence_s: float | None = None
    """Seconds without received data after which the response has failed; by default, the timeout of the client."""
    sent: "Sent | None" = None
    """Records whether a request may have reached the server, for callers that need this after a cancellation."""


class Transport:
    """Calls one server as one user. Created by `connect`."""

    url = ""  # used by `repr` in the traceback for an invalid address

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
        """Active while event streams are not tried because a proxy has held back events (`events.py`)."""
        self._is_reached = False
        self._is_unresponsive = self._is_outage_logged = False
        """Whether the last attempt failed or has had no response for 4 s, and whether this has been logged."""
        self._max_held_wait_s, self._held_shorter_until = float("inf"), 0.0
        """The maximum time for holding a call, and the moment until which it applies.

        The time is half the duration after which a proxy broke a held call.
        """
        self._credentials = credentials
        self.has_default_http_transport = http_transport is None
        """Whether httpx's own transport is used. The responses of others may only be read as httpx provides them."""
        self._http = httpx.AsyncClient(
            base_url=self.url + API,
            # Loading the CA certificates takes 20 ms, and http:// does not need them.
            verify=verify if self.url.startswith("https:") else False,
            headers={"User-Agent": "queryserver-client", "Accept": "application/json"} | _revealed(headers or {}),
            transport=http_transport,
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0)),
            limits=httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=30),
        )

    def __repr__(self) -> str:
        return f"Transport({self.url!r})"

    def cleanup_s(self, most_s: float) -> float:
        """Return for how many seconds to clean up on the server, as after Ctrl-C: at most 2 if it does not respond."""
        return min(most_s, _CLEANUP_UNRESPONSIVE_S) if self._is_unresponsive else most_s

    async def close(self) -> None:
        """Revoke the login and close all connections. Never raises; waits at most 5 s for the revocation."""
        with anyio.move_on_after(self.cleanup_s(_REVOKE_WITHIN_S), shield=True):
            with suppress(httpx.HTTPError, QueryserverError):  # the tokens expire by themselves
                await self._credentials.forget(self._post_once)
        with anyio.CancelScope(shield=True):
            await self._http.aclose()

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> "Answer":
        """Make a call and return the JSON object in the response. `more` are further attributes of `Call`.

        Raises the errors of `send`.
        """
        return cast("Answer", (await self.answered(method, path, body, **more))[0])

    async def answered(
        self, method: str, path: str, body: Any = None, **more: Any
    ) -> tuple[dict[str, Any], httpx.Headers]:
        """Make a call like `call`, and also return the response headers."""
        more.setdefault("is_repeatable", method == "GET")
        response = await self.send(Call(method, path, json=body, **more))
        return _object_of(response), response.headers

    async def send(self, call: Call) -> httpx.Response:
        """Make a call, read the response completely and return it. Raises ApiError and ConnectionLost."""
        async with self.opened(call) as response:
            return response

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncGenerator[httpx.Response]:
        """Yield the response, whose body has not been read yet. Errors while reading it are httpx.TransportError."""
        async with self.opened(call, is_streamed=True) as response:
            yield response

    @asynccontextmanager
    async def opened(self, call: Call, *, is_streamed: bool = False) -> AsyncGenerator[httpx.Response]:
        """Yield the response after retries and, if necessary, a renewal of the token."""
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
            await self._note_refusal(call, error, began)
            if isinstance(error, AuthenticationError) and not is_renewed:
                is_renewed = True
                if await self._credentials.renewed(token, self._post):
                    continue
            again = may_repeat_answer(
                error.status, error.code, is_repeatable=call.is_repeatable, is_ours=bool(error.code)
            )
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
        """Make one attempt. Return the response, or None if the attempt failed and another one should follow."""
        sent = call.sent or Sent()
        sent.begin()
        began = anyio.current_time()
        try:
            request = self._request(call, token, sent)
            with self._silence_logged(call, sent):
                response = await self._http.send(request, stream=True)
            self._is_reached, self._is_unresponsive, self._is_outage_logged = True, False, False
            if not is_streamed or not response.is_success:
                await _read(response)
        except (httpx.TransportError, httpx.DecodingError) as error:
            is_sent = not isinstance(error, _NOT_SENT) and sent.is_possible
            if is_sent:
                self._note_end(call, began)
            self._is_unresponsive = True
            await self._raise_if_permanent(error, attempts)
            what = reason_of(error)
            if call.is_repeatable or not is_sent:
                self._log_retry(what, attempts)
                if await attempts.pause(is_reached=self._is_reached):
                    return None
            tries = max(1, attempts.made)
            counted = "1 attempt" if tries == 1 else f"{tries} attempts in {attempts.elapsed_s:.0f} s"
            # Without the chain, because tracebacks of the HTTP library would repeat the reason twice.
            raise ConnectionLost(
                f"{self.url}: {call.method} {call.path}: {what} ({counted})", attempts=tries, is_sent=is_sent
            ) from None
        return response

    async def _raise_if_permanent(self, error: Exception, attempts: Attempts) -> None:
        """Raise the exception for a failure with which each retry would fail, such as a wrong scheme of the address."""
        if isinstance(error, httpx.UnsupportedProtocol):
            raise ConfigurationError(f"{self.url} is not a valid server address") from None
        refusal = tls_refusal(error) if isinstance(error, httpx.ConnectError) else None
        is_first = not self._is_reached and not attempts.made
        if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) and is_first and await self._requires_tls():
            refusal = TLS_REQUIRED
        if refusal is not None:
            raise ConnectionLost(f"{self.url}: {refusal}", attempts=max(1, attempts.made)) from None

    async def _note_refusal(self, call: Call, error: ApiError, began: float) -> None:
        """Record a proxy's time-out. Raises ConnectionLost if a TLS port has responded to a call without TLS."""
        is_ours = bool(error.code)
        if error.status == _BAD_REQUEST and not is_ours and await self._requires_tls():
            raise ConnectionLost(f"{self.url}: {TLS_REQUIRED}")
        # A 504 always comes from a proxy, even if it has a code, as those of the proxies in `deploy/` do.
        if error.status == _GATEWAY_TIMED_OUT or (not is_ours and (error.status == _TIMED_OUT or error.status >= 500)):
            self._note_end(call, began)

    async def _requires_tls(self) -> bool:
        """Return whether this http:// address is that of a TLS server."""
        return self.has_default_http_transport and self.url.startswith("http:") and await requires_tls(self.url)

    @contextmanager
    def _silence_logged(self, call: Call, sent: "Sent") -> Generator[None, None, None]:
        """Log if there is no connection, or no response to a call that the server does not hold, for 4 seconds."""

        def log_silence() -> None:
            for_s = self.retries.for_s(is_reached=self._is_reached)
            retried = (
                f", retrying for up to {for_s:g} s" if for_s > 0 and (call.is_repeatable or sent.is_connecting) else ""
            )
            level = logging.WARNING
            if sent.is_connecting:
                text = f"no connection after {_SILENT_LOGGED_AFTER_S:g} s"
            elif sent.is_complete and not call.wait_s and call.silence_s is None:
                text = f"no response after {_SILENT_LOGGED_AFTER_S:g} s, waiting for up to {self.timeout_s:g} s"
                level = logging.INFO if self._is_reached else level  # the server may just be slow
            else:
                return
            self._is_unresponsive = True
            self._log_outage(f"{text}{retried}", level)

        timer = asyncio.get_running_loop().call_later(_SILENT_LOGGED_AFTER_S, log_silence)
        try:
            yield
        finally:
            timer.cancel()

    def _log_retry(self, what: str, attempts: Attempts) -> None:
        """Log that the call is retried, because the waiting program would otherwise appear to hang."""
        for_s = self.retries.for_s(is_reached=self._is_reached)
        if for_s > 0 and attempts.made >= (_LOGGED_FROM_TRY if self._is_reached else 0):
            self._log_outage(f"{what}; retrying for up to {for_s:g} s")

    def _log_outage(self, text: str, level: int = logging.WARNING) -> None:
        """Log once, until the server has responded again, that it does not respond."""
        if not self._is_outage_logged:
            self._is_outage_logged = True
            log.log(level, "%s: %s", self.url, text)

    def _note_end(self, call: Call, began: float) -> None:
        """Record that a call that was held this long failed, so that the following calls are held for less time."""
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
            pool=None,  # waiting for earlier calls of this client must not count as a server failure
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
        """Make a `token/` call without credentials. It is retried, because a second login or refresh is harmless."""
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
    """Records whether the last byte of a request was sent, because servers do not execute incomplete requests."""

    def __init__(self) -> None:
        self._is_noted = self.is_complete = False
        self.is_connecting = False
        """Whether a new connection was begun and no request has been sent on it."""
        self.is_ever_possible = False

    @property
    def is_possible(self) -> bool:
        """Whether the current attempt may have reached the server. Also True if the transport reports no progress."""
        return self.is_complete or not self._is_noted

    def begin(self) -> None:
        """Start another attempt."""
        self._is_noted = self.is_complete = self.is_connecting = False

    async def note(self, event: str, facts: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._is_noted = True
        self.is_connecting = event.startswith(_CONNECTING)
        if event.endswith(_BODY_SENT):
            self.is_complete = self.is_ever_possible = True


def segment(text: str) -> str:
    """Percent-encode a name as one path segment (Contract editor 1.1)."""
    return quote(text, safe="")


def _revealed(value: Any) -> Any:
    """Return a copy of the value with all secrets revealed."""
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
        address=f"{response.url.scheme}://{response.url.netloc.decode()}",
    )


def _object_of(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object in a successful response. An array is returned as {"items": …}. Raises ApiError."""
    try:
        body = json.loads(response.content) if response.content else {}
    except ValueError as error:
        raise ApiError(
            "the response is not JSON; is this the address of a queryserver?",
            status=response.status_code,
            request_id=response.headers.get("X-Request-Id"),
        ) from error
    return body if isinstance(body, dict) else {"items": body}


def server_address(url: str) -> str:
    """Validate an address, and return it without the API path and trailing slash. Raises ConfigurationError."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigurationError(f"the address is invalid: {error}") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ConfigurationError("the address must start with http:// or https:// and contain a host name")
    if parsed.userinfo:
        raise ConfigurationError("the address must not contain credentials; pass user=… and password=…")
    return url.rstrip("/").removesuffix("/api/v1")
