"""The external issuer as an OpenID provider: its endpoints, found by discovery, and the requests to them.

OpenID Connect Discovery 1.0, RFC 6749, RFC 8628. Requests carry codes and a client secret: they go to https, or to http
on loopback addresses, and only to addresses that the rules for outbound connections permit.
"""

import asyncio
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import quote_plus, urlencode, urlsplit

import orjson
import structlog

from queryserver.errors.base import IssuerLoginRefused, IssuerUnavailable
from queryserver.errors.statements import EngineUnavailable
from queryserver.identity.issuer_http import IssuerHttp
from queryserver.platform.http_client import HttpRequest, HttpResponse
from queryserver.platform.settings.desktop import JwtSettings, OidcSettings
from queryserver.platform.settings.tree import protects_secrets

log = structlog.get_logger(__name__)

DISCOVERY_PATH = "/.well-known/openid-configuration"

_MAX_BYTES = 1024 * 1024
_MAX_REQUESTS = 16
"""Requests to the issuer at the same time, per process. Anyone can start a login, so further ones are refused."""
_MAX_SHOWN_CHARACTERS = 200
# A server whose issuer is down must not wait for it at each call.
_PAUSE_AFTER_FAILURE_S = 5.0


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What the discovery document says."""

    authorization: str
    token: str
    device: str | None
    """None if the issuer has no device flow."""
    names_itself: bool
    """Whether the issuer adds `iss` to the answer that the browser brings back (RFC 9207)."""
    takes_basic: bool
    """Whether the client secret is sent in the header `Authorization`; else it is a field of the request."""


@dataclass(frozen=True, slots=True)
class ProviderError:
    """The error response of a token endpoint (RFC 6749, 5.2; RFC 8628, 3.5)."""

    code: str
    description: str


@dataclass(eq=False, repr=False)
class Provider:
    """Sends requests to the issuer of `jwt`. Close it after use."""

    jwt: JwtSettings
    oidc: OidcSettings
    http: IssuerHttp
    clock: Callable[[], float] = time.monotonic
    _endpoints: Endpoints | None = field(default=None, init=False)
    _fetched_at: float = field(default=0.0, init=False)
    _failed_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._fetching = asyncio.Lock()
        self._slots = asyncio.Semaphore(_MAX_REQUESTS)

    async def aclose(self) -> None:
        await self.http.aclose()

    async def endpoints(self) -> Endpoints:
        """Return the endpoints, which are cached for `cache_s`, and for longer while the issuer does not respond.

        Raises IssuerUnavailable.
        """
        async with self._fetching:
            now = self.clock()
            if self._endpoints is not None and now - self._fetched_at < self.jwt.cache_s:
                return self._endpoints
            if self._failed_at is None or now - self._failed_at >= _PAUSE_AFTER_FAILURE_S:
                await self._fetch()
            if self._endpoints is None:
                raise IssuerUnavailable
            return self._endpoints

    async def post(self, url: str, fields: Mapping[str, str]) -> Mapping[str, Any] | ProviderError:
        """Send a form with the client's id and secret. Returns the JSON object of the response, or its error.

        Raises IssuerUnavailable, also for responses that are not of RFC 6749.
        """
        endpoints = await self.endpoints()
        secret = self.oidc.client_secret.get_secret_value()
        form = {**fields, "client_id": self.oidc.client_id}
        headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
        if secret and endpoints.takes_basic:
            headers["Authorization"] = _basic(self.oidc.client_id, secret)
        elif secret:
            form["client_secret"] = secret
        response = await self._send(
            HttpRequest(
                url,
                method="POST",
                headers=headers,
                content=urlencode(form).encode(),
                max_bytes=_MAX_BYTES,
                within_s=self.jwt.timeout_s,
            )
        )
        content = _object(response.body)
        if response.status == 200 and content is not None:
            return content
        code = content.get("error") if content is not None and 400 <= response.status < 500 else None
        if not isinstance(code, str):
            self._warn(url, f"HTTP status {response.status}")
            raise IssuerUnavailable
        return ProviderError(code, str(content.get("error_description", ""))[:_MAX_SHOWN_CHARACTERS] if content else "")

    async def _fetch(self) -> None:
        """Fetch the discovery document. A failure is logged, and keeps the known endpoints."""
        url = self.jwt.issuer.rstrip("/") + DISCOVERY_PATH
        request = HttpRequest(
            url, headers={"Accept": "application/json"}, max_bytes=_MAX_BYTES, within_s=self.jwt.timeout_s
        )
        try:
            response = await self._send(request)
            if response.status != 200:
                raise ValueError(f"HTTP status {response.status}")  # noqa: TRY301 logged like the others
            self._endpoints = endpoints_of(_object(response.body) or {}, self.jwt.issuer)
        except IssuerUnavailable:
            self._failed_at = self.clock()
        except ValueError as error:
            self._warn(url, str(error))
            self._failed_at = self.clock()
        else:
            self._fetched_at, self._failed_at = self.clock(), None

    async def _send(self, request: HttpRequest) -> HttpResponse:
        if self._slots.locked():
            raise IssuerUnavailable("Too many logins at the issuer are in progress. Try again later.")
        async with self._slots:
            try:
                return await self.http.send(request)
            except (EngineUnavailable, OSError) as error:
                self._warn(request.url, error.message if isinstance(error, EngineUnavailable) else str(error))
                raise IssuerUnavailable from error

    def _warn(self, url: str, reason: str) -> None:
        log.warning("issuer request failed", host=urlsplit(url).hostname, path=urlsplit(url).path, reason=reason)


def endpoints_of(document: Mapping[str, Any], issuer: str) -> Endpoints:
    """Read a discovery document of this issuer. Raises ValueError."""
    if document.get("issuer") != issuer:
        raise ValueError("the discovery document is of another issuer")
    methods: object = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    device = document.get("device_authorization_endpoint")
    return Endpoints(
        authorization=_endpoint(document, "authorization_endpoint"),
        token=_endpoint(document, "token_endpoint"),
        device=None if device is None else _endpoint(document, "device_authorization_endpoint"),
        names_itself=document.get("authorization_response_iss_parameter_supported") is True,
        takes_basic=isinstance(methods, list) and "client_secret_basic" in cast("list[object]", methods),
    )


def text_of(content: Mapping[str, Any], name: str) -> str:
    """Return a string of a response. Raises IssuerLoginRefused if it is missing, or not a string."""
    value: object = content.get(name)
    if not isinstance(value, str) or not value:
        raise IssuerLoginRefused(f"The issuer's response has no {name}.")
    return value


def _endpoint(document: Mapping[str, Any], name: str) -> str:
    value: object = document.get(name)
    if not isinstance(value, str) or not protects_secrets(value) or "#" in value:
        raise ValueError(f"{name} is missing, or not an https URL")
    return value


def _object(body: bytes) -> Mapping[str, Any] | None:
    try:
        content: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return cast("Mapping[str, Any]", content) if isinstance(content, dict) else None


def _basic(client_id: str, secret: str) -> str:
    """Return the header of RFC 6749, 2.3.1, in which id and secret are form-encoded before they are joined."""
    pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
    return f"Basic {b64encode(pair.encode()).decode()}"
