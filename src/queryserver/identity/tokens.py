"""Own tokens: issuing, renewing, checking and ending them (Contract platform 3.3 to 3.6)."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import uuid4

import structlog
from jose import jwt
from jose.exceptions import JOSEError

from queryserver.errors.base import InvalidToken, NotAuthenticated
from queryserver.identity.callers import alive, bearer_of
from queryserver.identity.external_keys import algorithm_of
from queryserver.identity.external_tokens import ALGORITHM as EXTERNAL
from queryserver.identity.external_tokens import ExternalBearers
from queryserver.identity.keys import Keyring
from queryserver.identity.model import AuthRequest, User
from queryserver.identity.repository import CallerRepository, StoredLogin, TokenKey, TokenOwner
from queryserver.platform.limits import LruCache
from queryserver.platform.logs import AuditTrail
from queryserver.platform.metrics import Metrics
from queryserver.platform.settings.desktop import AuthSettings

log = structlog.get_logger(__name__)

ALGORITHM = "HS256"

_MOST_CHARACTERS = 4096
# A token of ours has 400 characters: four thousand people at work cost 4 MB.
_REMEMBERED = 4096

_HEX32 = re.compile(r"[0-9a-f]{32}")

# The library is asked for the signature and the form. Which claims there must be, and whether the time is over, is
# decided here: its `require_exp` would switch its own clock on, and an expired token could not be revoked.
_OPTIONS = {"verify_exp": False, "verify_iat": False, "verify_nbf": False, "verify_aud": False}

# A client that lost our answer, or sent the call twice, may present a token that it has exchanged just before.
_REUSE_GRACE = timedelta(seconds=30)
# Tokens that were issued when the lifetimes were longer must not outlive their revocation.
_KEEP_REVOCATIONS = timedelta(days=90)


class TokenType(StrEnum):
    ACCESS = "access"
    REFRESH = "refresh"


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """The content of an own token (Contract platform 3.3)."""

    token_type: TokenType
    user_id: int
    epoch: int
    family: str
    jti: str = field(repr=False)
    issued_at: int
    expires_at: int
    """Seconds since 1970."""

    @property
    def key(self) -> TokenKey:
        """What the state of the token depends on."""
        return TokenKey(self.user_id, self.family, self.jti)


class JwtCodec:
    """Own tokens as text."""

    def __init__(self, keyring: Keyring, *, clock: Callable[[], float] = time.time) -> None:
        self._keyring = keyring
        self._clock = clock
        # The same token comes with every call of a client: its signature is checked once, its time on each call.
        self._good = LruCache[str, TokenClaims](_REMEMBERED)

    def sign(self, claims: TokenClaims) -> str:
        content = {
            "token_type": claims.token_type.value,
            "exp": claims.expires_at,
            "iat": claims.issued_at,
            "jti": claims.jti,
            "user_id": claims.user_id,
            "epoch": claims.epoch,
            "family": claims.family,
        }
        key = self._keyring.present
        return jwt.encode(content, key.signing, algorithm=ALGORITHM, headers={"kid": key.id})

    def read(self, token: str, *, expired_too: bool = False) -> TokenClaims:
        """The content of a good token. Raises InvalidToken for a bad form, key, signature or time."""
        claims = self._good.get(token)
        if claims is None:
            claims = self._verified(token)
            self._good.put(token, claims)
        if claims.expires_at <= self._clock() and not expired_too:
            raise InvalidToken
        return claims

    def _verified(self, token: str) -> TokenClaims:
        if len(token) > _MOST_CHARACTERS or not token.isascii():
            raise InvalidToken
        try:
            header = jwt.get_unverified_header(token)
            key = self._keyring.find(str(header.get("kid")))
            if key is None or header.get("alg") != ALGORITHM:
                raise InvalidToken
            content = jwt.decode(token, key.signing, algorithms=[ALGORITHM], options=_OPTIONS)
        except (JOSEError, ValueError, TypeError, AttributeError, RecursionError):
            # The library answers some malformed headers with plain Python errors.
            raise InvalidToken from None
        return _claims(content)


def _claims(content: Mapping[str, Any]) -> TokenClaims:
    if "user_id" not in content:
        raise InvalidToken("Token contained no recognizable user identification")
    numbers = [content.get(name) for name in ("user_id", "epoch", "iat", "exp")]
    names = [content.get(name) for name in ("family", "jti")]
    kind = content.get("token_type")
    well_formed = (
        all(type(number) is int and 0 <= number < 2**63 for number in numbers)
        and all(isinstance(name, str) and _HEX32.fullmatch(name) for name in names)
        and kind in ("access", "refresh")
    )
    if not well_formed:
        raise InvalidToken
    return TokenClaims(
        token_type=TokenType(kind),
        user_id=content["user_id"],
        epoch=content["epoch"],
        family=content["family"],
        jti=content["jti"],
        issued_at=content["iat"],
        expires_at=content["exp"],
    )


async def bearer(claims: TokenClaims, wanted: TokenType, records: CallerRepository) -> User:
    """The user of a token of the wanted type.

    Raises InvalidToken, UserNotFound, UserInactive, DatabaseUnavailable.
    """
    if claims.token_type is not wanted:
        raise InvalidToken("Token has wrong type")
    owner = alive(await records.owner(claims.key), claims.epoch)
    return replace(owner.user, token_ids=(claims.family, claims.jti), token_epoch=claims.epoch)


@dataclass(frozen=True, slots=True)
class TokenPair:
    access: str
    refresh: str


@dataclass(frozen=True, slots=True)
class RenewedTokens:
    """What a refresh gives. `refresh` is None when the old one stays good."""

    access: str
    refresh: str | None = None


class Tokens:
    """Tokens of one login are a family: they end together. `are_bearers`: own tokens are taken as bearers here."""

    def __init__(
        self,
        codec: JwtCodec,
        records: CallerRepository,
        settings: AuthSettings,
        *,
        audit: AuditTrail,
        metrics: Metrics,
        external: ExternalBearers | None = None,
        are_bearers: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._codec = codec
        self._external = external
        self._are_bearers = are_bearers
        self._audit = audit
        self._metrics = metrics
        self._records = records
        self._settings = settings
        self._clock = clock

    def issue(self, login: StoredLogin) -> TokenPair:
        """The first tokens of a login; the refresh token gives the family its name."""
        family = uuid4().hex
        return self._pair(login.user_id, login.token_epoch, family, refresh_jti=family)

    async def caller(self, request: AuthRequest) -> User | None:
        """The authenticator `jwt`: None when the bearer, if there is one, is no own token.

        Each call reads the database: the end of a token is seen at once.
        Raises NotAuthenticated and its kinds, DatabaseUnavailable.
        """
        token = bearer_of(request.raw_headers)
        if token is None:
            return None
        try:
            claims = self._codec.read(token)
        except InvalidToken:
            if algorithm_of(token) == ALGORITHM:
                raise
            return None
        return await bearer(claims, TokenType.ACCESS, self._records)

    async def verify(self, token: str) -> None:
        """Nothing, when the token would be accepted as bearer.

        Raises InvalidToken, UserNotFound, UserInactive, KeyServerUnavailable.
        """
        try:
            if self._external and algorithm_of(token) == EXTERNAL:
                await self._external.verify(token)
            elif self._are_bearers:
                await bearer(self._codec.read(token), TokenType.ACCESS, self._records)
            else:
                raise InvalidToken  # noqa: TRY301 answered like the others
        except InvalidToken as error:
            raise _told(error, TokenType.ACCESS) from None

    async def refresh(self, token: str) -> RenewedTokens:
        """A new access token, with rotation a new refresh token too.

        Raises InvalidToken, UserNotFound, UserInactive.
        """
        try:
            claims = self._codec.read(token)
            user = await bearer(claims, TokenType.REFRESH, self._records)
            await self._require_unused(claims)
        except InvalidToken as error:
            raise _told(error, TokenType.REFRESH) from None
        if self._settings.rotate_refresh_tokens:
            pair = self._pair(user.id, claims.epoch, claims.family, refresh_jti=uuid4().hex)
            return RenewedTokens(pair.access, pair.refresh)
        return RenewedTokens(self._signed(TokenType.ACCESS, user.id, claims.epoch, claims.family, uuid4().hex))

    async def revoke(self, token: str, *, everything: bool) -> None:
        """End the family of a token, or all tokens of its user. A token that is no good changes nothing.

        An expired one still ends its family; only a live one ends everything. Raises KeyServerUnavailable.
        """
        if self._external and algorithm_of(token) == EXTERNAL:
            username = await self._external.revoke(token, everything=everything)
            if username is not None:
                self._audit.record(username, "token.revoke", facts={"all": "true"} if everything else {})
            return
        try:
            claims = self._codec.read(token, expired_too=True)
        except InvalidToken:
            return
        owner = await self._records.owner(claims.key)
        ends_all = everything and claims.expires_at > self._clock() and _is_alive(owner, claims.epoch)
        if ends_all:
            await self._records.end_all(claims.user_id, epoch=claims.epoch)
        await self._end_family(claims)
        if owner is not None:
            self._audit.record(owner.user.username, "token.revoke", facts={"all": "true"} if ends_all else {})

    async def _require_unused(self, claims: TokenClaims) -> None:
        """Raises InvalidToken for a refresh token that was exchanged long ago: it may be stolen (Rule T14)."""
        if self._settings.rotate_refresh_tokens:
            since = await self._records.exchange(claims.jti, expires_at=_moment(claims.expires_at))
        else:
            since = await self._records.exchanged_for(claims.jti)
        if since is not None and since > _REUSE_GRACE:
            log.warning("exchanged refresh token presented again; its family ends", user_id=claims.user_id)
            await self._end_family(claims)
            raise InvalidToken

    async def _end_family(self, claims: TokenClaims) -> None:
        now = datetime.now(UTC)
        lives_s = (self._settings.access_token_lifetime_s, self._settings.refresh_token_lifetime_s)
        longest = max(timedelta(seconds=max(lives_s)), _KEEP_REVOCATIONS)
        await self._records.revoke(claims.family, keep_until=max(now + longest, _moment(claims.expires_at)))

    def _pair(self, user_id: int, epoch: int, family: str, *, refresh_jti: str) -> TokenPair:
        return TokenPair(
            access=self._signed(TokenType.ACCESS, user_id, epoch, family, uuid4().hex),
            refresh=self._signed(TokenType.REFRESH, user_id, epoch, family, refresh_jti),
        )

    def _signed(self, kind: TokenType, user_id: int, epoch: int, family: str, jti: str) -> str:
        self._metrics.tokens_issued.labels(kind.value).inc()
        now = int(self._clock())
        is_access, settings = kind is TokenType.ACCESS, self._settings
        life_s = settings.access_token_lifetime_s if is_access else settings.refresh_token_lifetime_s
        return self._codec.sign(
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
        alive(owner, epoch)
    except NotAuthenticated:
        return False
    return True


def _told(error: InvalidToken, kind: TokenType) -> InvalidToken:
    """The token calls say in `detail` what is wrong (Contract platform 3.4, 3.5)."""
    return InvalidToken(error.message, token_type=kind.value, detail=error.message)


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
