"""HTTP calls to name nodes and gateways: caller identity, choice of the active name node, retries, and redirects to
data nodes.
"""

import asyncio
import base64
import importlib
import json
import re
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import httpcore
import httpx

from queryserver import errors
from queryserver.files.stores.transfer_blocks import ReadSizes, call_with_retries
from queryserver.files.stores.webhdfs.statuses import BAD_TOKEN, TRY_NEXT_NODE, RemoteFailure, transport_errors
from queryserver.platform.caches import LruCache

_KEEPALIVE_S = 5.0


class WideReadsTransport(httpx.AsyncHTTPTransport):
    """An HTTP/1.1 transport that ignores proxy settings and requests at least `sizes.piece_bytes` in each socket
    read.
    """

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
        # The cast allows type checking in environments where anyio, a dependency of httpx, is not installed.
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


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds. `silence_s` limits each wait for data, `call_s` a whole call including its retries."""

    connect_s: float = 5.0
    silence_s: float = 30.0
    call_s: float = 30.0


@dataclass(frozen=True, slots=True)
class WebHdfsAddress:
    """The address of a cluster or gateway, and how to connect to it."""

    urls: Sequence[str]
    """One URL per name node, each ending in `/webhdfs/v1`. The URLs are tried in turn."""
    service_user: str
    """The store user of queryserver, which acts on behalf of the callers."""
    tls: ssl.SSLContext | bool = True
    """How server certificates are verified; False disables verification."""
    uses_tokens: bool = False
    """Whether delegation tokens identify the callers. They are obtained with the Kerberos ticket of queryserver."""
    redirect_hosts: Sequence[str] = ()
    """Hosts, in addition to those in `urls`, to which reads and writes may be redirected. `*.domain` allows a whole
    domain.
    """
    umask: int = 0o022
    timeouts: Timeouts = Timeouts()


_RENEWED_AFTER_S = 8 * 3600.0
"""The time after which tokens are renewed. By default, they expire a day after each renewal
(dfs.namenode.delegation.token.renew-interval).
"""
_REPLACED_AFTER_S = 5 * 24 * 3600.0
"""The age at which tokens are replaced. By default, they cannot be renewed for more than seven days
(dfs.namenode.delegation.token.max-lifetime).
"""
_MAX_TOKENS = 10_000

# Hadoop shortens `name/host@REALM` to `name`, so a user name with these characters would denote another user.
_PRINCIPAL = re.compile(r"[/@\x00-\x1f\x7f]")


def acting_name(name: str) -> str:
    """Return the user name to send to the store. Raises PermissionDenied if the store would map it to another user."""
    if not name or _PRINCIPAL.search(name):
        raise errors.PermissionDenied("Users with this name do not have access to the store.")
    return name


@dataclass(slots=True)
class _Token:
    text: str = field(repr=False)
    made_at: float
    renewed_at: float


class Tokens:
    """Caches the delegation tokens of callers. They are obtained and renewed with the login of queryserver."""

    def __init__(
        self,
        obtain: Callable[[str], Awaitable[str]],
        renew: Callable[[str], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._obtain = obtain
        self._renew = renew
        self._clock = clock
        self._tokens = LruCache[str, _Token](_MAX_TOKENS)
        self._lock = asyncio.Lock()

    async def get(self, user: str) -> str:
        async with self._lock:
            now = self._clock()
            token = self._tokens.get(user)
            if token is None or now - token.made_at > _REPLACED_AFTER_S:
                token = _Token(await self._obtain(user), now, now)
                self._tokens.put(user, token)
            elif now - token.renewed_at > _RENEWED_AFTER_S:
                await self._renew(token.text)
                token.renewed_at = now
        return token.text

    def discard(self, user: str) -> bool:
        """Discard a token that the store has rejected. Return whether there was one, so that a retry with a new token
        makes sense.
        """
        return self._tokens.pop(user) is not None


_TRIES = 3
_FIRST_PAUSE_S = 0.1
_MAX_ANSWER_BYTES = 1024 * 1024
_MAX_CONNECTIONS = 100
_READ_BYTES = 256 * 1024
_DATA_ROOT = "/webhdfs/v1/"
_BODY_HEADERS = {"Content-Type": "application/octet-stream"}
_REDIRECTED = 307
_OK = frozenset({200, 201})

T = TypeVar("T")
ErrorTranslator = Callable[[RemoteFailure, str], errors.QueryServerError]


@dataclass(frozen=True, slots=True)
class WebHdfsCall:
    """One WebHDFS operation. `path` is relative to the root."""

    method: str
    op: str
    path: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])
    is_repeatable: bool = False
    """Whether the call may be repeated if the store has not responded."""


def encoded(path: str) -> str:
    return "/".join(quote(name, safe="") for name in path.split("/"))


class Gateway:
    """Calls the name nodes of a cluster, or its gateway. Must be closed."""

    def __init__(
        self,
        address: WebHdfsAddress,
        tokens: Tokens | None = None,
        *,
        auth: httpx.Auth | None = None,
        translate_error: ErrorTranslator = RemoteFailure.error,
    ) -> None:
        """If `tokens` is None, calls send the names of the service user and of the caller instead of a token."""
        self._service_user = address.service_user
        self._urls = [url.rstrip("/") for url in address.urls]
        self._active = 0
        self._tokens = tokens
        self._error_of = translate_error
        self._call_s = address.timeouts.call_s
        hosts = [urlsplit(url).hostname or "" for url in self._urls]
        names = [host.strip().lower() for host in (*hosts, *address.redirect_hosts)]
        self._redirect_hosts = frozenset(name for name in names if not name.startswith("*"))
        self._redirect_domains = tuple(name[1:] for name in names if name.startswith("*."))
        self.read_sizes = ReadSizes(max_bytes=_READ_BYTES)
        self._client = httpx.AsyncClient(
            auth=auth,
            headers={"Accept": "*/*", "Accept-Encoding": "identity"},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            transport=WideReadsTransport(address.tls, self.read_sizes, max_connections=_MAX_CONNECTIONS),
            timeout=httpx.Timeout(address.timeouts.silence_s, connect=address.timeouts.connect_s),
            follow_redirects=False,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def request(self, user: str, call: WebHdfsCall) -> bytes:
        """Make a call and return the response body, at most 1 MiB. Raises the domain error if the store reports a
        failure.
        """

        async def once() -> bytes:
            response = await self._first_response(user, call)
            body = await _read_body(response)
            if response.status_code == _REDIRECTED:
                raise errors.StorageError("The store sent an unexpected redirect.")
            return body

        return await self._with_retries(call, once)

    async def request_value(self, user: str, call: WebHdfsCall, *keys: str) -> Any:
        """Make a call and return the value under `keys` in the JSON response."""
        return json_value(await self.request(user, call), *keys)

    @asynccontextmanager
    async def open_read(self, user: str, call: WebHdfsCall) -> AsyncGenerator[httpx.Response]:
        """Yield the open response to a read, after following the redirect to a data node."""

        async def once() -> httpx.Response:
            response = await self._first_response(user, call)
            if response.status_code != _REDIRECTED:
                return response
            await response.aclose()
            url = self._data_url(response.headers.get("location", ""), response.request.url, call)
            return await self._checked(self._client.build_request("GET", url), call)

        response = await self._with_retries(call, once)
        try:
            with transport_errors():
                yield response
        finally:
            await response.aclose()

    async def upload(self, user: str, call: WebHdfsCall, body: AsyncIterator[bytes]) -> None:
        """Send a body to the data node that the store selects. If the node cannot be reached, try another one."""
        for tries_left in reversed(range(_TRIES)):
            url = await self._with_retries(
                replace(call, is_repeatable=True), lambda request=call: self._target(user, request)
            )
            request = self._client.build_request("PUT", url, content=body, headers=_BODY_HEADERS)
            try:
                await _read_body(await self._checked(request, call))
            except _StoreFailed as error:
                raise error.failure from error
            except _ConnectionFailed as error:
                # Retrying is safe: the body is read only after connecting, so nothing has been consumed yet.
                if not tries_left:
                    raise errors.StorageUnavailable("A data node of the store is not responding.") from error
                node = url.netloc.decode()
                call = replace(call, parameters={**call.parameters, "excludedatanodes": node})
            else:
                return

    async def _target(self, user: str, call: WebHdfsCall) -> httpx.URL:
        target_call = replace(call, parameters={**call.parameters, "noredirect": "true"})
        response = await self._first_response(user, target_call)
        location = response.headers.get("location", "")
        body = await _read_body(response)
        if response.status_code != _REDIRECTED:
            try:
                location = json.loads(body)["Location"]
            except (ValueError, LookupError, TypeError) as error:
                raise errors.StorageError("The store did not return an upload address.") from error
        return self._data_url(location, response.request.url, call)

    async def _first_response(self, user: str, call: WebHdfsCall) -> httpx.Response:
        """Return the open response of the first name node that is active."""
        failure: errors.QueryServerError = errors.StorageUnavailable("No address is configured for the store.")
        count = len(self._urls)
        for index in [(self._active + step) % count for step in range(count)]:
            for _ in range(2):
                if self._tokens:
                    identity = {"delegation": await self._tokens.get(user)}
                else:
                    # `doas` is omitted for the service user, which would need permission to act on behalf of itself.
                    acting = {} if user == self._service_user else {"doas": user}
                    identity = {"user.name": self._service_user, **acting}
                parameters = {"op": call.op, **call.parameters, **identity}
                url = f"{self._urls[index]}/{encoded(call.path)}?{urlencode(parameters, quote_via=quote)}"
                try:
                    response = await self._checked(self._client.build_request(call.method, url), call)
                except _ConnectionFailed:
                    failure = errors.StorageUnavailable("The store cannot be reached.")
                    break
                except _StoreFailed as error:
                    if error.name in TRY_NEXT_NODE:
                        failure = error.failure
                        break
                    if error.name not in BAD_TOKEN or not (self._tokens and self._tokens.discard(user)):
                        raise error.failure from error
                else:
                    self._active = index
                    return response
            else:
                raise errors.StorageError("The store rejected the login of this service.")
        raise failure

    async def _checked(self, request: httpx.Request, call: WebHdfsCall) -> httpx.Response:
        with transport_errors():
            try:
                response = await self._client.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                raise _ConnectionFailed from error
            if response.status_code in _OK or response.status_code == _REDIRECTED:
                return response
            remote = RemoteFailure.parse(response.status_code, await _read_body(response))
        raise _StoreFailed(remote.name, self._error_of(remote, call.path))

    def _data_url(self, location: str, origin: httpx.URL, call: WebHdfsCall) -> httpx.URL:
        """Check the target of a redirect and return it as a URL (Contract storage 12, S12). A redirect from https to
        http is rejected.

        The path is rebuilt, because WebHDFS leaves some characters unencoded. Raises StorageError.
        """
        try:
            parts = urlsplit(location)
            host = parts.hostname or ""
            authority = (f"[{host}]" if ":" in host else host) + (f":{parts.port}" if parts.port else "")
            # Other paths belong to a gateway and are left unchanged.
            path = _DATA_ROOT + encoded(call.path) if parts.path.startswith(_DATA_ROOT) else parts.path
            url = httpx.URL(f"{parts.scheme}://{authority}{path}?{parts.query}")
        except (ValueError, httpx.InvalidURL) as error:
            raise errors.StorageError("The store sent a redirect without a valid address.") from error
        is_known = host in self._redirect_hosts or host.endswith(self._redirect_domains)
        if not is_known or parts.scheme not in {origin.scheme, "https"}:
            raise errors.StorageError("The store redirected to a host that is not in its redirect_hosts setting.")
        return url

    async def _with_retries(self, call: WebHdfsCall, once: Callable[[], Awaitable[T]]) -> T:
        """Make a call and return its result. Retry within the timeout if the call is repeatable."""

        async def attempt() -> T:
            try:
                return await once()
            except _StoreFailed as error:
                raise error.failure from error
            except _ConnectionFailed as error:
                raise errors.StorageUnavailable("A data node of the store is not responding.") from error

        tries = _TRIES if call.is_repeatable else 1
        try:
            async with asyncio.timeout(self._call_s):
                return await call_with_retries(
                    attempt, errors.StorageUnavailable, tries=tries, first_pause_s=_FIRST_PAUSE_S
                )
        except TimeoutError as error:
            raise errors.StorageUnavailable("The store did not respond in time.") from error


class _ConnectionFailed(Exception):
    """The connection could not be established, so the call had no effect."""


class _StoreFailed(Exception):
    """The store reported a failure."""

    def __init__(self, name: str, failure: errors.QueryServerError) -> None:
        super().__init__()
        self.name = name
        self.failure = failure


def json_value(body: bytes, *keys: str) -> Any:
    """Parse a JSON body and return the value under `keys`. Raises StorageError."""
    try:
        found = json.loads(body)
        for key in keys:
            found = found[key]
    except (ValueError, LookupError, TypeError) as error:
        raise errors.StorageError("The store sent an invalid response.") from error
    return found


async def _read_body(response: httpx.Response) -> bytes:
    body = bytearray()
    try:
        with transport_errors():
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > _MAX_ANSWER_BYTES:
                    raise errors.StorageError("The response of the store is too large.")
    finally:
        await response.aclose()
    return bytes(body)


class Negotiate(httpx.Auth):
    """Answers a Negotiate challenge with a Kerberos ticket for `HTTP@host`, which is obtained in a thread."""

    def __init__(self) -> None:
        """Prepare Kerberos authentication. Raises ConfigurationError if gssapi is not installed."""
        try:
            self._gssapi: Any = importlib.import_module("gssapi")
        except ImportError:
            text = "Kerberos for file stores requires the extra queryserver[kerberos]."
            raise errors.ConfigurationError([text]) from None

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        response = yield request
        offered = response.headers.get("www-authenticate", "").lower()
        if response.status_code != 401 or "negotiate" not in offered:
            return
        try:
            token = await asyncio.to_thread(self._first_token, request.url.host)
        except self._gssapi.exceptions.GSSError as error:
            raise errors.StorageError("The Kerberos login to the store failed.") from error
        request.headers["Authorization"] = f"Negotiate {base64.b64encode(token).decode()}"
        yield request

    def _first_token(self, host: str) -> bytes:
        name = self._gssapi.Name(f"HTTP@{host}", self._gssapi.NameType.hostbased_service)
        return self._gssapi.SecurityContext(name=name, usage="initiate").step() or b""
