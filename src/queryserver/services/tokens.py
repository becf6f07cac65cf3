"""Own tokens: issuing, renewing, checking and ending them (Contract platform 3.3 to 3.6)."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import structlog

from queryserver.db.tokens import TokenRepository
from queryserver.domain.errors.base import InvalidToken
from queryserver.interfaces.accounts import StoredLogin, TokenOwner
from queryserver.interfaces.auth import TokenClaims, TokenCodec, TokenType
from queryserver.services.account_notes import AccountNotes
from queryserver.services.bearers import bearer, key_of
from queryserver.services.external_bearers import ExternalBearers

log = structlog.get_logger(__name__)

# A client that lost our answer, or sent the call twice, may present a token that it has exchanged just before.
_REUSE_GRACE = timedelta(seconds=30)
# Tokens that were issued when the lifetimes were longer must not outlive their revocation.
_KEEP_REVOCATIONS = timedelta(days=90)


@dataclass(frozen=True, slots=True)
class TokenPair:
    """What a login gives."""

    access: str
    refresh: str


@dataclass(frozen=True, slots=True)
class RenewedTokens:
    """What a refresh gives. `refresh` is None when the old one stays good."""

    access: str
    refresh: str | None = None


@dataclass(frozen=True, slots=True)
class TokenLives:
    """How long tokens live, and whether a refresh exchanges both."""

    access: timedelta
    refresh: timedelta
    rotate: bool = False


class Tokens:
    """Tokens of one login are a family: they end together. `are_bearers`: own tokens are taken as bearers here."""

    def __init__(
        self,
        codec: TokenCodec,
        records: TokenRepository,
        lives: TokenLives,
        *,
        notes: AccountNotes,
        external: ExternalBearers | None = None,
        are_bearers: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._codec = codec
        self._external = external
        self._are_bearers = are_bearers
        self._notes = notes
        self._records = records
        self._lives = lives
        self._clock = clock

    def issue(self, login: StoredLogin) -> TokenPair:
        """The first tokens of a login; the refresh token gives the family its name."""
        family = uuid4().hex
        return self._pair(login.user_id, login.token_epoch, family, refresh_jti=family)

    async def verify(self, token: str) -> None:
        """Nothing, when the token would be accepted as bearer.

        Raises InvalidToken, UserNotFound, UserInactive, KeyServerUnavailable.
        """
        try:
            if self._external and self._external.recognises(token):
                await self._external.verify(token)
            else:
                await self._require_own(token)
        except InvalidToken as error:
            raise _told(error, TokenType.ACCESS) from None

    async def refresh(self, token: str) -> RenewedTokens:
        """A new access token, with rotation a new refresh token too.

        Raises InvalidToken, UserNotFound, UserInactive.
        """
        try:
            return await self._refreshed(self._codec.read(token))
        except InvalidToken as error:
            raise _told(error, TokenType.REFRESH) from None

    async def revoke(self, token: str, *, everything: bool) -> None:
        """End the family of a token, or all tokens of its user. A token that is no good changes nothing.

        An expired one still ends its family; only a live one ends everything. Raises KeyServerUnavailable.
        """
        if self._external and self._external.recognises(token):
            username = await self._external.revoke(token, everything=everything)
            if username is not None:
                self._notes.revoked(username, everything=everything)
            return
        try:
            claims = self._codec.read(token, expired_too=True)
        except InvalidToken:
            return
        owner = await self._records.owner(key_of(claims))
        ends_all = everything and self._is_alive(claims, owner)
        if ends_all:
            await self._records.end_all(claims.user_id, epoch=claims.epoch)
        await self._end_family(claims)
        if owner is not None:
            self._notes.revoked(owner.user.username, everything=ends_all)

    async def _require_own(self, token: str) -> None:
        if not self._are_bearers:
            raise InvalidToken
        await bearer(self._codec.read(token), TokenType.ACCESS, self._records)

    async def _refreshed(self, claims: TokenClaims) -> RenewedTokens:
        user = await bearer(claims, TokenType.REFRESH, self._records)
        await self._require_unused(claims)
        if self._lives.rotate:
            pair = self._pair(user.id, claims.epoch, claims.family, refresh_jti=uuid4().hex)
            return RenewedTokens(pair.access, pair.refresh)
        return RenewedTokens(self._signed(TokenType.ACCESS, user.id, claims.epoch, claims.family, uuid4().hex))

    async def _require_unused(self, claims: TokenClaims) -> None:
        """Raises InvalidToken for a refresh token that was exchanged long ago: somebody else may hold it (Rule T14)."""
        if self._lives.rotate:
            since = await self._records.exchange(claims.jti, expires_at=_moment(claims.expires_at))
        else:
            since = await self._records.exchanged_for(claims.jti)
        if since is not None and since > _REUSE_GRACE:
            log.warning("exchanged refresh token presented again; its family ends", user_id=claims.user_id)
            await self._end_family(claims)
            raise InvalidToken

    async def _end_family(self, claims: TokenClaims) -> None:
        now = datetime.now(UTC)
        longest = max(self._lives.access, self._lives.refresh, _KEEP_REVOCATIONS)
        await self._records.revoke(claims.family, keep_until=max(now + longest, _moment(claims.expires_at)))

    def _is_alive(self, claims: TokenClaims, owner: TokenOwner | None) -> bool:
        return (
            owner is not None
            and owner.is_active
            and not owner.is_revoked
            and owner.token_epoch == claims.epoch
            and claims.expires_at > self._clock()
        )

    def _pair(self, user_id: int, epoch: int, family: str, *, refresh_jti: str) -> TokenPair:
        return TokenPair(
            access=self._signed(TokenType.ACCESS, user_id, epoch, family, uuid4().hex),
            refresh=self._signed(TokenType.REFRESH, user_id, epoch, family, refresh_jti),
        )

    def _signed(self, kind: TokenType, user_id: int, epoch: int, family: str, jti: str) -> str:
        self._notes.metrics.token_issued(kind.value)
        now = int(self._clock())
        life = self._lives.access if kind is TokenType.ACCESS else self._lives.refresh
        return self._codec.sign(
            TokenClaims(
                token_type=kind,
                user_id=user_id,
                epoch=epoch,
                family=family,
                jti=jti,
                issued_at=now,
                expires_at=now + int(life.total_seconds()),
            )
        )


def _told(error: InvalidToken, kind: TokenType) -> InvalidToken:
    """The token calls say in `detail` what is wrong (Contract platform 3.4, 3.5)."""
    return InvalidToken(error.message, token_type=kind.value, detail=error.message)


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
