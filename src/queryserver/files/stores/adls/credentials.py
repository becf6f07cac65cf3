"""Authorizes calls to an Azure storage account: account key, shared access signature, or application (OAuth)."""

import asyncio
import base64
import binascii
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from urllib.parse import quote, urlencode

import httpx

from queryserver.errors.base import ConfigurationError
from queryserver.files.stores.adls.errors import AzureFailure

_SIGNED = (
    *("content-encoding", "content-language", "content-length", "content-md5", "content-type", "date"),
    *("if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"),
)


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
    """A shared access signature (SAS): query parameters, with or without a leading question mark."""

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
    """The URL of the login service. Sovereign clouds have their own."""


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
    """Permission bits that new files and directories do not get, if the account has permissions."""
    allow_container_creation: bool = False
    block_bytes: int = 4 * 1024 * 1024
    """Size of upload blocks. Each upload keeps up to three blocks in memory."""
    timeouts: AzureTimeouts = field(default_factory=AzureTimeouts)

    @property
    def url(self) -> str:
        return self.dfs_url if self.is_hierarchical else self.blob_url
