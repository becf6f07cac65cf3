"""The HTTP client for an Azure storage account, with its credentials and error conversion.

The client limits connections, applies timeouts, and ignores redirects and cookies.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from math import inf
from time import monotonic
from typing import TypeVar
from urllib.parse import quote, urlencode

import httpx

from queryserver import errors
from queryserver.errors.base import ConfigurationError
from queryserver.errors.files import InvalidPath, StorageUnavailable
from queryserver.files.stores.transfer_blocks import call_with_retries

UNREACHABLE = "Unreachable"
"""The error code that this module assigns if the account does not respond."""

_BAD_LOGIN = frozenset({"AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation"})
_BY_STATUS: dict[int, tuple[type[errors.QueryServerError], str]] = {
    401: (errors.StorageError, "The store rejected the credentials of this service."),
    403: (errors.PermissionDenied, "The store denied access to {path}."),
    404: (errors.PathNotFound, "{path} does not exist."),
    412: (errors.EntryChanged, "{path} was modified concurrently."),
    429: (errors.StorageUnavailable, "The store is busy."),
    500: (errors.StorageUnavailable, "The store reported an internal error."),
    503: (errors.StorageUnavailable, "The store is busy."),
    504: (errors.StorageUnavailable, "The store did not respond in time."),
    507: (errors.StorageError, "The store has no space left."),
}
_TABLE: tuple[tuple[type[errors.QueryServerError], str, str], ...] = (
    (
        *(errors.PathNotFound, "{path} does not exist."),
        """BlobNotFound ContainerNotFound FilesystemNotFound PathNotFound ResourceNotFound SourcePathNotFound
        RenameDestinationParentPathNotFound""",
    ),
    (
        *(errors.PathExists, "{path} already exists."),
        "BlobAlreadyExists ContainerAlreadyExists FilesystemAlreadyExists PathAlreadyExists ResourceAlreadyExists",
    ),
    (errors.DirectoryNotEmpty, "{path} is not empty.", "DirectoryNotEmpty"),
    (
        *(errors.EntryChanged, "{path} was modified concurrently."),
        "ConditionNotMet TargetConditionNotMet SourceConditionNotMet InvalidBlockList",
    ),
    (errors.EntryChanged, "{path} is leased by another client.", "LeaseIdMissing"),
    (errors.StorageUnavailable, "{path} is being deleted.", "ContainerBeingDeleted FilesystemBeingDeleted"),
    (errors.NotAFile, "{path} is not a file.", "ResourceTypeMismatch"),
    (errors.NotADirectory, "A parent of {path} is a file.", "PathConflict"),
    (
        errors.VerificationFailed,
        "The stored bytes do not match the bytes that were sent.",
        "InvalidFlushPosition Md5Mismatch",
    ),
    (errors.InvalidName, "The store does not support the name {path}.", "InvalidResourceName"),
    # The credentials of queryserver are wrong, which is unrelated to the caller's permissions.
    (*_BY_STATUS[401], " ".join(_BAD_LOGIN)),
    (errors.StoreQuotaExceeded, "The quota of the account is exhausted.", "QuotaExceeded AccountCapacityExceeded"),
    (*_BY_STATUS[507], "InsufficientStorage"),
    (*_BY_STATUS[503], "ServerBusy"),
    (*_BY_STATUS[504], "OperationTimedOut"),
    (*_BY_STATUS[500], "InternalError"),
    (errors.StorageUnavailable, "The store cannot be reached.", UNREACHABLE),
)
_KINDS: Mapping[str, tuple[type[errors.QueryServerError], str]] = {
    code: (kind, text) for kind, text, codes in _TABLE for code in codes.split()
}
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})

_SIGNED = (
    *("content-encoding", "content-language", "content-length", "content-md5", "content-type", "date"),
    *("if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"),
)

API_VERSION = "2023-11-03"
_LIMITS = httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=15.0)
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
_TRIES = 3
_ERROR_CODE = re.compile(r"<Code>(\w+)</Code>")

T = TypeVar("T")


class AzureFailure(Exception):
    """An error response, or no response at all (code UNREACHABLE)."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code or str(status))
        self.status = status
        self.code = code
        self._kind = _KINDS.get(code, (None,))[0]

    @property
    def is_missing(self) -> bool:
        """Whether the requested object does not exist."""
        return self._kind is errors.PathNotFound or (self.status == 404 and not self.code)

    @property
    def is_denial(self) -> bool:
        """Whether the credentials are valid but lack a permission."""
        return self.status == 403 and self.code not in _BAD_LOGIN

    @property
    def is_taken(self) -> bool:
        """Whether the name is already taken, or another condition of the request was not met."""
        return self._kind is errors.PathExists or self.status == 412

    @property
    def is_retryable(self) -> bool:
        """Whether a read may succeed if it is retried."""
        return self.code == UNREACHABLE or self.status in _RETRIED


@contextmanager
def unless_missing() -> Generator[None]:
    """Suppress an AzureFailure that reports a missing object, and leave the block."""
    try:
        yield
    except AzureFailure as failure:
        if not failure.is_missing:
            raise


@contextmanager
def azure_errors(path: str) -> Generator[None]:
    """Convert AzureFailure to a domain error about `path`, which is relative to the root of the store."""
    try:
        yield
    except AzureFailure as failure:
        kind, text = _KINDS.get(failure.code) or _BY_STATUS.get(failure.status) or (errors.StorageError, "")
        # The messages from the service are not used, because they contain request ids and possibly the account name.
        text = text or f"The store rejected the request for {{path}} ({failure.code or failure.status})."
        raise kind(text.format(path=f"abfs://{path}")) from failure


def signature(
    key: bytes, account: str, method: str, path: str, query: Iterable[tuple[str, str]], headers: Mapping[str, str]
) -> str:
    """Return the signature of a request: an HMAC-SHA256 in base64. `path` is percent-encoded as sent, `query` is
    decoded, and header names are in lower case.
    """
    text = string_to_sign(account, method, path, query, headers)
    return base64.b64encode(hmac.digest(key, text.encode(), hashlib.sha256)).decode()


def string_to_sign(
    account: str, method: str, path: str, query: Iterable[tuple[str, str]], headers: Mapping[str, str]
) -> str:
    """Return the string to sign, with one item per line. A content length of 0 is signed as an empty string."""
    fixed = [headers.get(name, "") for name in _SIGNED]
    if headers.get("content-length") == "0":
        fixed[_SIGNED.index("content-length")] = ""
    own = sorted((name, value.strip()) for name, value in headers.items() if name.startswith("x-ms-"))
    values: dict[str, list[str]] = {}
    for name, value in query:
        values.setdefault(name.lower(), []).append(value)
    headed = [f"{name}:{value}" for name, value in own]
    parameters = [f"{name}:{','.join(sorted(values[name]))}" for name in sorted(values)]
    return "\n".join([method, *fixed, *headed, f"/{account}{path}", *parameters])


_SCOPE = "https://storage.azure.com/.default"
_REFRESH_BEFORE_S = 300.0
_MIN_LIFETIME_S = 30.0

FetchToken = Callable[[str, bytes], Awaitable[Mapping[str, object]]]
"""Posts a form to a URL and returns the JSON object in the response. Raises AzureFailure."""


@dataclass(frozen=True, slots=True)
class SharedKey:
    """The account key, which grants full access. Raises ConfigurationError if the key is not base64."""

    account: str
    key: str = field(repr=False)
    """The key in base64, as shown in the portal."""

    def __post_init__(self) -> None:
        try:
            base64.b64decode(self.key, validate=True)
        except binascii.Error:
            raise ConfigurationError(["azure.azure_accounts: account_key is not base64."]) from None

    async def authorize(self, method: str, url: httpx.URL, headers: dict[str, str]) -> httpx.URL:
        path, query = url.raw_path.decode().partition("?")[0], url.params.multi_items()
        signed = signature(base64.b64decode(self.key), self.account, method, path, query, headers)
        headers["authorization"] = f"SharedKey {self.account}:{signed}"
        return url


@dataclass(frozen=True, slots=True)
class SasToken:
    """A shared access signature (SAS). `token` consists of query parameters; a leading question mark is optional."""

    token: str = field(repr=False)

    async def authorize(self, method: str, url: httpx.URL, headers: dict[str, str]) -> httpx.URL:
        del method, headers
        query = url.query.decode()
        return url.copy_with(query=f"{query}&{self.token.strip().lstrip('?&')}".lstrip("&").encode())


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """The credentials of an application in a tenant (OAuth 2.0 client credentials)."""

    tenant_id: str
    client_id: str = field(repr=False)
    client_secret: str = field(repr=False)
    login_url: str = "https://login.microsoftonline.com"
    """The URL of the login service. Sovereign clouds have separate login services."""


class TokenAuthorizer:
    """Authorizes calls with an OAuth token, which it renews before expiry. Only one renewal runs at a time."""

    def __init__(
        self, credential: ClientCredentials, fetch: FetchToken, clock: Callable[[], float] = monotonic
    ) -> None:
        self._url = f"{credential.login_url.rstrip('/')}/{quote(credential.tenant_id, safe='')}/oauth2/v2.0/token"
        login = {"client_id": credential.client_id, "client_secret": credential.client_secret}
        self._form = urlencode({"grant_type": "client_credentials", **login, "scope": _SCOPE}).encode()
        self._fetch = fetch
        self._clock = clock
        self._renewal_lock = asyncio.Lock()
        self._token = ""
        self._renew_at = self._ends_at = -inf

    async def authorize(self, method: str, url: httpx.URL, headers: dict[str, str]) -> httpx.URL:
        """Add the authorization header, renewing the token if necessary. Return the URL unchanged. Raises
        AzureFailure.
        """
        del method
        async with self._renewal_lock:
            if self._clock() >= self._renew_at:
                try:
                    await self._renew()
                except AzureFailure:
                    # If renewal fails, the current token can still be used until it expires.
                    if self._clock() >= self._ends_at:
                        raise
            headers["authorization"] = f"Bearer {self._token}"
        return url

    async def _renew(self) -> None:
        asked_at = self._clock()
        answer = await self._fetch(self._url, self._form)
        token, life = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(token, str) or not isinstance(life, int | float | str):
            raise AzureFailure(502, "InvalidToken")
        try:
            life_s = max(float(life), _MIN_LIFETIME_S)
        except ValueError:
            raise AzureFailure(502, "InvalidToken") from None
        self._token = token
        self._ends_at = asked_at + life_s
        self._renew_at = asked_at + max(life_s - _REFRESH_BEFORE_S, life_s / 2)

    def discard(self) -> None:
        """Discard the token, because the account has rejected it."""
        self._renew_at = self._ends_at = -inf


@dataclass(frozen=True, slots=True)
class AzureTimeouts:
    """Timeouts in seconds for calls to an account."""

    connect_s: float = 10.0
    answer_s: float = 30.0
    """Timeout for reads until the first byte, including retries, and then between two chunks."""
    commit_s: float = 120.0
    """Timeout for changes, which may be extensive: committing blocks, renaming or deleting a tree."""
    first_retry_s: float = 0.2


@dataclass(frozen=True, slots=True)
class AzureAccount:
    """A storage account and its credentials. URLs have no trailing slash."""

    dfs_url: str
    """`https://<account>.dfs.core.windows.net`, used for hierarchical accounts."""
    blob_url: str
    """`https://<account>.blob.core.windows.net`, used for flat accounts."""
    credential: SharedKey | SasToken | ClientCredentials
    is_hierarchical: bool = True
    umask: int = 0o022
    """Permission bits to clear in new files and directories. Flat accounts have no permissions and ignore it."""
    allow_container_creation: bool = False
    block_bytes: int = 4 * 1024 * 1024
    """Size of upload blocks. Each upload keeps up to three blocks in memory."""
    timeouts: AzureTimeouts = field(default_factory=AzureTimeouts)

    @property
    def url(self) -> str:
        return self.dfs_url if self.is_hierarchical else self.blob_url


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
                # Runs in a thread, because loading the system certificates takes tens of milliseconds.
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
