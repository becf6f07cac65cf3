"""Tokens from an external issuer: JWTs signed with RS256 (Contract platform 3.9, Rule T12).

The algorithm is fixed here and never taken from the token. The keys come from the configured key server; the key
headers of a token (`jku`, `x5u`, `jwk`, `x5c`) are ignored. `cryptography` verifies the signature with an RSA key
object, so a public key cannot be misused as an HMAC secret.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import structlog

from queryserver import errors
from queryserver.identity import model
from queryserver.identity.callers import CallerRepository, bearer_of
from queryserver.identity.external_keys import KeyCache, VerifyingKey, algorithm_of, decoded, header_of, object_of
from queryserver.identity.provisioning import Provisioning
from queryserver.platform.caches import LruCache
from queryserver.platform.metrics import NO_METRICS, Metrics
from queryserver.platform.settings.desktop import JwtSettings

log = structlog.get_logger(__name__)

ALGORITHM = "RS256"
CHECKS = ("form", "alg", "kid", "signature", "times", "iss", "aud", "user")
"""The checks for an external token, in order."""

_MAX_CHARACTERS = 16 * 1024
_MAX_CACHED_TOKENS = 4096
_MAX_EXPIRY = 250_000_000_000  # in the year 9892; datetime ends with the year 9999
# Exceeds any clock difference between servers and database.
_KEEP_REVOCATION_FOR = timedelta(minutes=5)
_REVOKED = "the token was revoked"


class TokenRefused(errors.InvalidToken):
    """A token failed a check. The response is the same as for any invalid token."""

    def __init__(self, check: str, reason: str) -> None:
        super().__init__()
        self.check = check
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ExternalClaims:
    """The claims of a valid external token (Contract platform 3.9)."""

    identity: model.ExternalIdentity
    expires_at: int
    """The claim `exp`: seconds since 1970."""
    refused_from: float
    """`exp` plus the tolerated clock skew."""
    id: str = field(repr=False)
    """The revocation id: a digest of issuer and `jti`, or of the signed text if there is no `jti`."""


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """A token that passed all checks, with all its claims."""

    claims: ExternalClaims
    content: Mapping[str, Any] = field(repr=False)
    key: VerifyingKey


@dataclass(frozen=True, slots=True, eq=False)
class TokenChecks:
    """Checks tokens of the issuer, without a cache: form, algorithm, key, signature, times, issuer, audience, user."""

    keys: KeyCache
    rules: JwtSettings
    clock: Callable[[], float] = time.time

    async def verified(self, token: str, *, audience: str | None = None) -> VerifiedToken:
        """Return the claims of a valid token. `audience` replaces that of the settings.

        Raises TokenRefused, KeyServerUnavailable.
        """
        signed, signature = _split_token(token)
        header = header_of(token.partition(".")[0])
        if header.get("alg") != ALGORITHM:
            raise TokenRefused("alg", f"it is not {ALGORITHM}")
        key = await self._find_verifying_key(header, signed.encode("ascii"), signature)
        content = object_of(signed.partition(".")[2])
        if content is None:
            raise TokenRefused("form", "the claims are not a JSON object")
        expires_at = self._checked_expiry(content)
        found: object = content.get("iss")
        if self.rules.issuer not in (model.ANY, found):
            raise TokenRefused("iss", f"it is {_shown(found)}, not {self.rules.issuer}")
        found = content.get("aud")
        listed = cast("list[object]", found) if isinstance(found, list) else [found]
        expected = audience or self.rules.audience
        if expected != model.ANY and expected not in listed:
            raise TokenRefused("aud", f"it is {_shown(found)}, not {expected}")
        claims = ExternalClaims(
            identity=self._identity(content),
            expires_at=expires_at,
            refused_from=expires_at + self.rules.leeway_s,
            id=_id(content, signed),
        )
        return VerifiedToken(claims, content, key)

    async def _find_verifying_key(self, header: Mapping[str, Any], signed: bytes, signature: bytes) -> VerifyingKey:
        kid: object = header.get("kid")
        if not isinstance(kid, str | None):
            raise TokenRefused("kid", "it is not a string")
        keys = await self.keys.find(kid)
        if not keys:
            reason = (
                "it is missing, and the key server does not have exactly one key"
                if kid is None
                else "the key server has no such key"
            )
            raise TokenRefused("kid", reason)
        for key in keys:
            if key.has_signed(signed, signature):
                return key
        raise TokenRefused("signature", "it was not signed with this key")

    def _checked_expiry(self, content: Mapping[str, Any]) -> int:
        """Check `exp`, `nbf` and `iat`, and return `exp`. Raises TokenRefused."""
        now, leeway_s = self.clock(), self.rules.leeway_s
        expires_at = _moment(content, "exp")
        if expires_at is None:
            raise TokenRefused("times", "exp is missing")
        if expires_at + leeway_s <= now:
            raise TokenRefused("times", "it has expired")
        for name in ("nbf", "iat"):
            moment = _moment(content, name)
            if moment is not None and moment > now + leeway_s:
                raise TokenRefused("times", f"{name} is in the future")
        return int(expires_at)

    def _identity(self, content: Mapping[str, Any]) -> model.ExternalIdentity:
        """Return the token's identity exactly as the issuer spells it. Raises TokenRefused."""
        name = self.rules.username_header
        subject, issuer = content.get(name), content.get("iss", "")
        for claim, text in ((name, subject), ("iss", issuer)):
            # Rejects characters that cannot be stored, such as U+0000 and lone surrogates.
            if not isinstance(text, str) or len(text) > model.IDENTITIES_MAX_LENGTH or not text.isprintable():
                raise TokenRefused(
                    "user",
                    f"the claim {claim} is not a string of at most {model.IDENTITIES_MAX_LENGTH} printable characters",
                )
        if not str(subject).strip():
            raise TokenRefused("user", f"the claim {name} contains no name")
        return model.ExternalIdentity(model.jwt_issuer(str(issuer)), str(subject))


@dataclass(slots=True, eq=False)
class ExternalBearers:
    """Finds the users of external tokens by identity. Creates users on their first call if the settings allow it."""

    checks: TokenChecks
    provisioning: Provisioning
    records: CallerRepository
    metrics: Metrics = NO_METRICS
    # Keyed by digest, since tokens are long and secret.
    _good: LruCache[bytes, tuple[ExternalClaims, VerifyingKey]] = field(
        default_factory=lambda: LruCache[bytes, tuple[ExternalClaims, VerifyingKey]](_MAX_CACHED_TOKENS), init=False
    )

    async def caller(self, request: model.AuthRequest) -> model.User | None:
        """Implement the authenticator `custom_jwt`. Returns None if the call has no RS256 bearer token.

        Raises the same errors as `user`.
        """
        token = bearer_of(request.raw_headers)
        return await self.user(token) if token is not None and algorithm_of(token) == ALGORITHM else None

    async def user(self, token: str) -> model.User:
        """Return the user of a token; the token is attached as `external_token`.

        Raises InvalidToken, UserNotFound, UserInactive, KeyServerUnavailable, DatabaseUnavailable.
        """
        try:
            claims = await self._read(token)
            try:
                may_create = self.checks.rules.create_users
                user = await self.provisioning.user(claims.identity, token_id=claims.id, may_create=may_create)
            except errors.IdentityRefused as refused:
                _log_refused(refused.reason)
                raise errors.InvalidToken from None
            except errors.InvalidToken:
                _log_refused(_REVOKED)
                raise
        except errors.NotAuthenticated:
            self.metrics.external_tokens.labels("refused").inc()
            raise
        except errors.ServiceUnavailable:
            self.metrics.external_tokens.labels("unavailable").inc()
            raise
        self.metrics.external_tokens.labels("accepted").inc()
        return replace(user, external_token=model.ExternalToken(token, claims.expires_at), token_ids=("", claims.id))

    async def verify(self, token: str) -> None:
        """Check that `user` would succeed, without creating a user. Raises the same errors."""
        try:
            await self.verify_with_reason(token)
        except errors.IdentityRefused as refused:
            _log_refused(refused.reason)
            raise errors.InvalidToken from None

    async def verify_with_reason(self, token: str) -> None:
        """Check the token like `verify`, but raise IdentityRefused, with the reason, if the identity is refused."""
        claims = await self._read(token)
        known = await self.provisioning.known(claims.identity, token_id=claims.id)
        if known is None:
            if not self.checks.rules.create_users:
                raise errors.UserNotFound
        elif not known.is_active:
            raise errors.UserInactive
        elif known.is_revoked:
            _log_refused(_REVOKED)
            raise errors.InvalidToken

    async def revoke(self, token: str, *, everything: bool) -> str | None:
        """Revoke the token; if `everything` is set, also all own tokens of its user.

        Returns the user name, or the token's subject if there is no user. For an invalid token, does nothing and
        returns None. Raises KeyServerUnavailable, DatabaseUnavailable.
        """
        try:
            claims = await self._read(token)
        except errors.InvalidToken:
            return None
        try:
            known = await self.provisioning.known(claims.identity, token_id=claims.id)
        except errors.IdentityRefused:
            known = None  # the token stays revoked even if an administrator links the identity later
        if everything and known is not None and known.is_active and not known.is_revoked:
            await self.records.end_all(known.user.id, epoch=known.token_epoch)
        await self.records.revoke(
            claims.id, keep_until=datetime.fromtimestamp(claims.refused_from, UTC) + _KEEP_REVOCATION_FOR
        )
        return known.user.username if known else claims.identity.subject

    async def _read(self, token: str) -> ExternalClaims:
        """Return the claims of a valid token. Raises TokenRefused, KeyServerUnavailable."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        try:
            if (good := self._good.get(digest)) is None or not self.checks.keys.is_fresh(good[1]):
                self._good.pop(digest)
                verified = await self.checks.verified(token)
                good = verified.claims, verified.key
                self._good.put(digest, good)
            elif good[0].refused_from <= self.checks.clock():
                self._good.pop(digest)
                raise TokenRefused("times", "it has expired")  # noqa: TRY301 logged like the others
        except TokenRefused as refused:
            log.info("external token rejected", check=refused.check, reason=refused.reason)
            raise
        return good[0]


def _split_token(token: str) -> tuple[str, bytes]:
    """Split a token into the signed text and the signature. Raises TokenRefused."""
    if len(token) > _MAX_CHARACTERS or not token.isascii() or token.count(".") != 2:
        raise TokenRefused("form", f"it is not a signed token of at most {_MAX_CHARACTERS} characters")
    signed, _, signature = token.rpartition(".")
    header = header_of(signed.partition(".")[0])
    if not header:
        raise TokenRefused("form", "the header cannot be decoded")
    if "crit" in header:
        raise TokenRefused("form", "the crit header requires unknown extensions")
    try:
        return signed, decoded(signature)
    except ValueError:
        raise TokenRefused("form", "the signature cannot be decoded") from None


def _moment(content: Mapping[str, Any], name: str) -> float | None:
    value: object = content.get(name)
    if value is None and name not in content:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MAX_EXPIRY:
        raise TokenRefused("times", f"{name} is not a valid time")
    return value


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:100]


def _id(content: Mapping[str, Any], signed: str) -> str:
    """Compute the revocation id. It excludes the signature, because a signature has more than one valid encoding."""
    jti: object = content.get("jti")
    named = f"{content.get('iss')}\0{jti}" if isinstance(jti, str) and jti else signed
    return f"external:{hashlib.sha256(named.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _log_refused(reason: str) -> None:
    """Log a rejection in the same form as `_read` (Contract platform 3.9 rule 6)."""
    log.info("external token rejected", check="user", reason=reason)
