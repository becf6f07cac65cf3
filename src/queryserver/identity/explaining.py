"""Which check takes or refuses a token: `queryserver auth explain` (Contract platform 12)."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from queryserver.errors.base import IdentityRefused, InvalidToken, KeyServerUnavailable, UserInactive, UserNotFound
from queryserver.identity.callers import TokenRepository, key_of
from queryserver.identity.external_keys import algorithm_of, header_of
from queryserver.identity.external_tokens import ALGORITHM as EXTERNAL
from queryserver.identity.external_tokens import CHECKS, ExternalBearers, ExternalTokens, TokenRefused
from queryserver.identity.keys import Keyring
from queryserver.identity.protocols import TokenClaims, TokenType
from queryserver.identity.tokens import ALGORITHM as OWN
from queryserver.identity.tokens import JwtCodec


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check says; `passed` is None for one that was not reached, or has nothing to look at."""

    check: str
    passed: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class ExplainParts:
    """What tokens are judged by. `reader` and `bearers` are None when `custom_jwt` is off."""

    keyring: Keyring
    records: TokenRepository
    takes_own: bool
    reader: ExternalTokens | None
    bearers: ExternalBearers | None


class Explainer:
    """Asks the checks one after the other, until one refuses."""

    def __init__(self, parts: ExplainParts, *, clock: Callable[[], float] = time.time) -> None:
        self._parts = parts
        self._clock = clock

    async def explain(self, token: str) -> list[Finding]:
        """A finding for each of CHECKS. Raises DatabaseUnavailable."""
        try:
            passed = await self._judge(token)
        except TokenRefused as refused:
            reached = CHECKS.index(refused.check)
            return [
                *(Finding(check, True, "") for check in CHECKS[:reached]),
                Finding(refused.check, False, refused.reason),
                *(Finding(check, None, "not looked at") for check in CHECKS[reached + 1 :]),
            ]
        skipped = () if passed == EXTERNAL else ("iss", "aud")
        return [
            Finding(check, None, "an own token has none") if check in skipped else Finding(check, True, "")
            for check in CHECKS
        ]

    async def _judge(self, token: str) -> str:
        """The algorithm of a good token. Raises TokenRefused."""
        algorithm = algorithm_of(token)
        if token.count(".") != 2 or not header_of(token.partition(".")[0]):
            raise TokenRefused("form", "it is no signed token, or its header cannot be read")
        if algorithm == OWN and self._parts.takes_own:
            await self._judge_own(token)
        elif algorithm == EXTERNAL and self._parts.reader and self._parts.bearers:
            await self._judge_external(token, self._parts.reader, self._parts.bearers)
        elif algorithm in (OWN, EXTERNAL):
            raise TokenRefused("alg", f"tokens with {algorithm} are switched off by desktop.auth.api_auth")
        else:
            raise TokenRefused("alg", f"it is neither {OWN} nor {EXTERNAL}")
        return str(algorithm)

    async def _judge_external(self, token: str, reader: ExternalTokens, bearers: ExternalBearers) -> None:
        try:
            await reader.read(token)
        except KeyServerUnavailable:
            raise TokenRefused("kid", "no key server gives keys; the log says why") from None
        try:
            await bearers.judge(token)
        except IdentityRefused as refused:
            raise TokenRefused("user", f"{refused.reason}; `queryserver link-user` can link it") from None
        except UserNotFound:
            raise TokenRefused("user", "it is unknown, and desktop.auth.jwt.create_users is false") from None
        except UserInactive:
            raise TokenRefused("user", "it is disabled") from None
        except InvalidToken:
            raise TokenRefused("user", "the token was revoked") from None

    async def _judge_own(self, token: str) -> None:
        if self._parts.keyring.find(str(header_of(token.partition(".")[0]).get("kid"))) is None:
            raise TokenRefused("kid", "no key of this server has that id")
        try:
            claims = JwtCodec(self._parts.keyring, clock=self._clock).read(token, expired_too=True)
        except InvalidToken:
            raise TokenRefused("signature", "it was not made by this server, or the claims are not its own") from None
        if claims.expires_at <= self._clock():
            raise TokenRefused("times", "it has expired")
        await self._judge_owner(claims)

    async def _judge_owner(self, claims: TokenClaims) -> None:
        if claims.token_type is not TokenType.ACCESS:
            raise TokenRefused("user", "it is a refresh token, good for token/refresh only")
        owner = await self._parts.records.owner(key_of(claims))
        if owner is None:
            raise TokenRefused("user", "it was deleted")
        if not owner.is_active:
            raise TokenRefused("user", "it is disabled")
        if owner.is_revoked:
            raise TokenRefused("user", "the login was ended by token/revoke")
        if owner.token_epoch != claims.epoch:
            raise TokenRefused("user", "all tokens of the user were ended, as by a new password")
