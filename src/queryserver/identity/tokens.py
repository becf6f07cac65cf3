"""Issues, renews, verifies and revokes own tokens, the JWTs of this service (Contract platform 3.3 to 3.6)."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import structlog

from queryserver.errors.base import InvalidToken, NotAuthenticated
from queryserver.identity.api_tokens import ApiTokenBearers, is_api_token
from queryserver.identity.callers import (
    CallerRepository,
    JwtCodec,
    TokenClaims,
    TokenOwner,
    TokenType,
    bearer,
    require_valid,
)
from queryserver.identity.external_keys import algorithm_of
from queryserver.identity.external_tokens import ALGORITHM as EXTERNAL
from queryserver.identity.external_tokens import ExternalBearers
from queryserver.identity.repository import StoredLogin
from queryserver.platform.logs import AUDIT
from queryserver.platform.metrics import Metrics
from queryserver.platform.settings.desktop import AuthSettings

log = structlog.get_logger(__name__)

# A client that lost the response, or sent the call twice, may present a refresh token that was just exchanged.
_REUSE_GRACE = timedelta(seconds=30)
# The minimum time for which revocations are kept. A token must not outlive its revocation, and it may have been issued
# when longer lifetimes were configured.
_KEEP_REVOCATIONS = timedelta(days=90)


@dataclass(frozen=True, slots=True)
class TokenPair:
    access: str
    refresh: str


@dataclass(frozen=True, slots=True)
class RenewedTokens:
    """The result of a refresh. `refresh` is None if the old refresh token remains valid."""

    access: str
    refresh: str | None = None


@dataclass(slots=True, eq=False)
class Tokens:
    """Issues and checks own tokens. The tokens of one login form a family and are revoked together.

    `are_bearers` states whether own tokens are accepted as bearer tokens.
    """

    codec: JwtCodec
    records: CallerRepository
    settings: AuthSettings
    metrics: Metrics
    external: ExternalBearers | None = None
    api_tokens: ApiTokenBearers | None = None
    """None if API tokens are not accepted as bearer tokens."""
    are_bearers: bool = True
    clock: Callable[[], float] = time.time

    def issue(self, login: StoredLogin) -> TokenPair:
        """Issue the first tokens of a login. The id of the refresh token becomes the family id."""
        family = uuid4().hex
        return self._pair(login.user_id, login.token_epoch, family, refresh_jti=family)

    async def verify(self, token: str, client: str) -> None:
        """Check that the token would be accepted as a bearer token from this client address.

        Raises InvalidToken, UserNotFound, UserInactive, KeyServerUnavailable, LoginThrottled.
        """
        try:
            if self.api_tokens and is_api_token(token):
                await self.api_tokens.user(token, client)
            elif self.external and algorithm_of(token) == EXTERNAL:
                await self.external.verify(token)
            elif self.are_bearers:
                await bearer(self.codec.read(token), TokenType.ACCESS, self.records)
            else:
                raise InvalidToken  # noqa: TRY301 answered like the others
        except InvalidToken as error:
            raise _detailed(error, TokenType.ACCESS) from None

    async def refresh(self, token: str) -> RenewedTokens:
        """Issue a new access token and, if rotation is enabled, a new refresh token.

        Raises InvalidToken, UserNotFound, UserInactive.
        """
        try:
            claims = self.codec.read(token)
            user = await bearer(claims, TokenType.REFRESH, self.records)
            await self._require_unused(claims)
        except InvalidToken as error:
            raise _detailed(error, TokenType.REFRESH) from None
        if self.settings.rotate_refresh_tokens:
            pair = self._pair(user.id, claims.epoch, claims.family, refresh_jti=uuid4().hex)
            return RenewedTokens(pair.access, pair.refresh)
        return RenewedTokens(self._signed(TokenType.ACCESS, user.id, claims.epoch, claims.family, uuid4().hex))

    async def revoke(self, token: str, *, everything: bool) -> None:
        """Revoke the family of a token or, with `everything`, all own tokens of its user. Ignores invalid tokens.

        An expired token still revokes its family, but only a valid token revokes everything. API tokens are unaffected,
        so that a logout does not disturb programs that use them. Raises KeyServerUnavailable.
        """
        if self.external and algorithm_of(token) == EXTERNAL:
            username = await self.external.revoke(token, everything=everything)
            if username is not None:
                AUDIT.record(username, "token.revoke", facts={"all": "true"} if everything else {})
            return
        try:
            claims = self.codec.read(token, expired_too=True)
        except InvalidToken:
            return
        owner = await self.records.owner(claims.key)
        ends_all = everything and claims.expires_at > self.clock() and _is_alive(owner, claims.epoch)
        if ends_all:
            await self.records.end_all(claims.user_id, epoch=claims.epoch)
        await self._end_family(claims)
        if owner is not None:
            AUDIT.record(owner.user.username, "token.revoke", facts={"all": "true"} if ends_all else {})

    async def _require_unused(self, claims: TokenClaims) -> None:
        """Raise InvalidToken, and revoke the family, if the refresh token was exchanged over 30 s ago (Rule T14).

        Such a token may be stolen.
        """
        if self.settings.rotate_refresh_tokens:
            since = await self.records.exchange(claims.jti, expires_at=_moment(claims.expires_at))
        else:
            since = await self.records.exchanged_for(claims.jti)
        if since is not None and since > _REUSE_GRACE:
            log.warning("refresh token reused; its token family is revoked", user_id=claims.user_id)
            await self._end_family(claims)
            raise InvalidToken

    async def _end_family(self, claims: TokenClaims) -> None:
        now = datetime.now(UTC)
        lives_s = (self.settings.access_token_lifetime_s, self.settings.refresh_token_lifetime_s)
        longest = max(timedelta(seconds=max(lives_s)), _KEEP_REVOCATIONS)
        await self.records.revoke(claims.family, keep_until=max(now + longest, _moment(claims.expires_at)))

    def _pair(self, user_id: int, epoch: int, family: str, *, refresh_jti: str) -> TokenPair:
        return TokenPair(
            access=self._signed(TokenType.ACCESS, user_id, epoch, family, uuid4().hex),
            refresh=self._signed(TokenType.REFRESH, user_id, epoch, family, refresh_jti),
        )

    def _signed(self, kind: TokenType, user_id: int, epoch: int, family: str, jti: str) -> str:
        self.metrics.tokens_issued.labels(kind.value).inc()
        now = int(self.clock())
        is_access, settings = kind is TokenType.ACCESS, self.settings
        life_s = settings.access_token_lifetime_s if is_access else settings.refresh_token_lifetime_s
        return self.codec.sign(
            TokenClaims(
                token_type=kind,
                user_id=user_id,
                epoch=epoch,
                family=family,
                jti=jti,
                issued_at=now,
                expires_at=now + life_s,
            )
        )


def _is_alive(owner: TokenOwner | None, epoch: int) -> bool:
    try:
        require_valid(owner, epoch)
    except NotAuthenticated:
        return False
    return True


def _detailed(error: InvalidToken, kind: TokenType) -> InvalidToken:
    """Add the `detail` that the token endpoints return (Contract platform 3.4, 3.5)."""
    return InvalidToken(error.message, token_type=kind.value, detail=error.message)


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
