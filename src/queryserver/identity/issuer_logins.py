"""Logins at the external issuer: the code flow with PKCE for browsers, and the device flow for programs.

Contract platform 3.12, 3.13; OpenID Connect Core 1.0, 3.1; RFC 7636; RFC 8628. What a login needs later is sealed and
given to the client, so that any instance can complete it and nothing is stored for logins that are never completed.
"""

import hashlib
import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import orjson
import structlog

from queryserver.errors.base import (
    IdentityRefused,
    IssuerLoginRefused,
    NotAuthenticated,
    UserInactive,
    device_code_expired,
    device_login_not_supported,
    login_state_invalid,
)
from queryserver.identity.callers import CallerRepository
from queryserver.identity.external_tokens import ExternalClaims, TokenChecks, TokenRefused
from queryserver.identity.issuer import Provider, ProviderError, text_of
from queryserver.identity.keys import Sealer
from queryserver.identity.model import RequestInfo, UsernameRule
from queryserver.identity.provisioning import Provisioning
from queryserver.identity.repository import AccountRepository, StoredLogin
from queryserver.identity.tokens import TokenPair, Tokens
from queryserver.platform.logs import AUDIT
from queryserver.platform.metrics import Metrics
from queryserver.platform.settings.desktop import AuthSettings

log = structlog.get_logger(__name__)

LOGIN_LIFE_S = 600
"""How long a login with a browser may take."""
BACK_END = "oidc"
"""The name of these logins in metrics and audit events."""

_FACTS = {"back_end": BACK_END}
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_DEFAULT_INTERVAL_S = 5
_MAX_INTERVAL_S = 300
_MAX_DEVICE_LIFE_S = 3600
_MAX_CHARACTERS = 8192


@dataclass(frozen=True, slots=True)
class BrowserLogin:
    """A login that a browser has begun. `sealed` belongs into a cookie of this browser."""

    url: str
    sealed: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Callback:
    """What the issuer's answer contains that the browser brings back (RFC 6749, 4.1.2; RFC 9207)."""

    code: str = field(repr=False)
    state: str = field(repr=False)
    issuer: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceLogin:
    """A login that a program has begun. `sealed` identifies it in polls."""

    user_code: str
    verification_uri: str
    verification_uri_complete: str | None
    expires_in_s: int
    interval_s: int
    sealed: str = field(repr=False)


class DeviceState(StrEnum):
    PENDING = "pending"
    SLOW_DOWN = "slow_down"
    """Polls come too fast: the client waits 5 s longer before each further poll (RFC 8628, 3.5)."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class DevicePoll:
    state: DeviceState
    pair: TokenPair | None = None
    """The tokens; only with `done`."""


@dataclass(frozen=True, slots=True)
class _BrowserState:
    """The sealed state of a login with a browser. `until` is in seconds since 1970."""

    state: str
    nonce: str
    verifier: str
    redirect_url: str
    until: float


@dataclass(frozen=True, slots=True)
class _DeviceState:
    """The sealed state of a login with a device code. `until` is in seconds since 1970."""

    device_code: str
    until: float


S = TypeVar("S", _BrowserState, _DeviceState)


@dataclass(eq=False, repr=False)
class IssuerLogins:
    """Logs users in who have a login at the issuer, and issues own tokens.

    All methods raise IssuerUnavailable; those that return tokens also IssuerLoginRefused, UserInactive,
    KeyServerUnavailable, DatabaseUnavailable.
    """

    auth: AuthSettings
    provider: Provider
    checks: TokenChecks
    sealer: Sealer
    callers: CallerRepository
    records: AccountRepository
    provisioning: Provisioning
    tokens: Tokens
    metrics: Metrics
    clock: Callable[[], float] = time.time

    @property
    def name(self) -> str:
        """The name of the issuer for people."""
        return self.auth.oidc.name or urlsplit(self.auth.jwt.issuer).hostname or self.auth.jwt.issuer

    @property
    def has_device_login(self) -> bool:
        return self.auth.oidc.device_login

    async def begin(self, redirect_url: str) -> BrowserLogin:
        """Begin a login with a browser, which the issuer sends back to `redirect_url`."""
        endpoints = await self.provider.endpoints()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self.auth.oidc.client_id,
                "redirect_uri": redirect_url,
                "scope": " ".join(self.auth.oidc.scopes),
                "state": state,
                "nonce": nonce,
                "code_challenge": challenge,
                "code_challenge_method": "S256",
            }
        )
        joint = "&" if urlsplit(endpoints.authorization).query else "?"
        kept = _BrowserState(state, nonce, verifier, redirect_url, self.clock() + LOGIN_LIFE_S)
        return BrowserLogin(f"{endpoints.authorization}{joint}{query}", self._sealed(kept))

    async def finish(self, sealed: str | None, callback: Callback, request: RequestInfo) -> TokenPair:
        """Complete the login of this browser, once. `sealed` is the cookie's value. Raises login_state_invalid."""
        kept = self._opened(_BrowserState, sealed or "")
        if kept is None or not hmac.compare_digest(kept.state.encode(), callback.state.encode()):
            raise login_state_invalid()
        endpoints = await self.provider.endpoints()
        if callback.issuer is None and endpoints.names_itself:
            raise login_state_invalid()
        if callback.issuer not in (None, self.auth.jwt.issuer):
            raise login_state_invalid()
        until = datetime.fromtimestamp(kept.until, UTC)
        if await self.callers.exchange(f"login:{kept.state}", expires_at=until) is not None:
            raise login_state_invalid()
        answer = await self.provider.post(
            endpoints.token,
            {
                "grant_type": "authorization_code",
                "code": callback.code,
                "redirect_uri": kept.redirect_url,
                "code_verifier": kept.verifier,
            },
        )
        if isinstance(answer, ProviderError):
            raise self._refused(answer)
        return await self._log_in(answer, request, nonce=kept.nonce)

    async def begin_device(self) -> DeviceLogin:
        """Begin a login of a program. Raises device_login_not_supported, IssuerLoginRefused."""
        endpoints = await self.provider.endpoints()
        if endpoints.device is None or not self.has_device_login:
            raise device_login_not_supported()
        answer = await self.provider.post(endpoints.device, {"scope": " ".join(self.auth.oidc.scopes)})
        if isinstance(answer, ProviderError):
            raise self._refused(answer)
        complete: object = answer.get("verification_uri_complete")
        life_s = _seconds(answer.get("expires_in"), LOGIN_LIFE_S, most=_MAX_DEVICE_LIFE_S)
        kept = _DeviceState(text_of(answer, "device_code"), self.clock() + life_s)
        return DeviceLogin(
            user_code=text_of(answer, "user_code"),
            verification_uri=text_of(answer, "verification_uri"),
            verification_uri_complete=complete if isinstance(complete, str) and complete else None,
            expires_in_s=life_s,
            interval_s=_seconds(answer.get("interval"), _DEFAULT_INTERVAL_S, most=_MAX_INTERVAL_S),
            sealed=self._sealed(kept),
        )

    async def poll_device(self, sealed: str, request: RequestInfo) -> DevicePoll:
        """Return whether the user has approved the login. Raises device_code_expired, also for unknown values."""
        kept = self._opened(_DeviceState, sealed)
        if kept is None:
            raise device_code_expired()
        endpoints = await self.provider.endpoints()
        answer = await self.provider.post(
            endpoints.token, {"grant_type": _DEVICE_GRANT, "device_code": kept.device_code}
        )
        if not isinstance(answer, ProviderError):
            return DevicePoll(DeviceState.DONE, await self._log_in(answer, request))
        match answer.code:
            case "authorization_pending":
                return DevicePoll(DeviceState.PENDING)
            case "slow_down":
                return DevicePoll(DeviceState.SLOW_DOWN)
            case "expired_token":
                raise device_code_expired()
            case _:
                raise self._refused(answer)

    async def _log_in(self, answer: Mapping[str, Any], request: RequestInfo, *, nonce: str | None = None) -> TokenPair:
        """Issue own tokens for the user of an ID token, which must contain `nonce` if there is one."""
        subject = "-"
        try:
            verified = await self.checks.verified(text_of(answer, "id_token"), audience=self.auth.oidc.client_id)
            subject = verified.claims.identity.subject
            _require_ours(verified.content, self.auth.oidc.client_id, nonce)
            login = await self._login_of(verified.claims)
        except NotAuthenticated as error:
            refusal = error if isinstance(error, IssuerLoginRefused | UserInactive) else IssuerLoginRefused()
            reason = error.reason if isinstance(error, IdentityRefused | TokenRefused) else error.message
            log.info("login at the issuer rejected", client=request.client, reason=reason)
            self.metrics.logins.labels("refused", "none").inc()
            AUDIT.record(subject, "login", outcome=refusal.code, client=request.client, facts=_FACTS)
            raise refusal from None
        pair = self.tokens.issue(login)
        await self.records.record_login(login.user_id)
        log.info("login", user_id=login.user_id, client=request.client)
        self.metrics.logins.labels("accepted", BACK_END).inc()
        AUDIT.record(login.username, "login", client=request.client, facts=_FACTS)
        return pair

    async def _login_of(self, claims: ExternalClaims) -> StoredLogin:
        """Return the user of an identity, created if the settings allow it. Raises NotAuthenticated."""
        may_create = self.auth.jwt.create_users
        user = await self.provisioning.user(claims.identity, token_id=claims.id, may_create=may_create)
        login = await self.records.login_of(UsernameRule.of(self.auth).read(user.username).key)
        if login is None or not login.is_active:
            raise UserInactive
        return login

    def _refused(self, error: ProviderError) -> IssuerLoginRefused:
        log.info("login refused by the issuer", error=error.code, description=error.description)
        self.metrics.logins.labels("refused", "none").inc()
        if error.code == "access_denied":
            return IssuerLoginRefused("The login was denied at the issuer.")
        return IssuerLoginRefused("The issuer refused the login.")

    def _sealed(self, kept: _BrowserState | _DeviceState) -> str:
        content = orjson.dumps({"kind": type(kept).__name__, **asdict(kept)})
        return urlsafe_b64encode(self.sealer.seal(content)).decode()

    def _opened(self, kind: type[S], sealed: str) -> S | None:
        """Return the state that was sealed; None if it is of another kind, was modified, or is too old."""
        if not 0 < len(sealed) <= _MAX_CHARACTERS or not sealed.isascii():
            return None
        try:
            content = orjson.loads(self.sealer.unseal(urlsafe_b64decode(sealed)))
        except ValueError:  # also if it is not base64
            return None
        if content.pop("kind", None) != kind.__name__:
            return None
        kept = kind(**content)
        return kept if kept.until > self.clock() else None


def _require_ours(content: Mapping[str, Any], client_id: str, nonce: str | None) -> None:
    """Check that an ID token was issued to this client for this login (OpenID Connect Core 1.0, 3.1.3.7).

    Raises IssuerLoginRefused.
    """
    if content.get("azp", client_id) != client_id:
        raise IssuerLoginRefused("The ID token was issued to another client.")
    found: object = content.get("nonce")
    if nonce is not None and not (isinstance(found, str) and hmac.compare_digest(found.encode(), nonce.encode())):
        raise IssuerLoginRefused("The ID token belongs to another login.")


def _seconds(value: object, default: int, *, most: int) -> int:
    """Return a number of seconds of a response, at least 1 and at most `most`."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return default
    return int(min(max(value, 1), most))
