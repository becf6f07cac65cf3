"""Which check takes or refuses a token: `queryserver auth explain` (Contract platform 12)."""

import time
from dataclasses import dataclass

from queryserver import errors
from queryserver.identity.callers import ALGORITHM as OWN
from queryserver.identity.callers import JwtCodec, TokenType
from queryserver.identity.external_keys import algorithm_of, header_of
from queryserver.identity.external_tokens import ALGORITHM as EXTERNAL
from queryserver.identity.external_tokens import CHECKS, ExternalBearers, TokenRefused
from queryserver.identity.keys import Keyring
from queryserver.identity.repository import CallerRepository


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; `passed` is None for one that was not reached, or does not apply."""

    check: str
    passed: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class Explainer:
    """Runs the checks one after the other, until one refuses."""

    keyring: Keyring
    records: CallerRepository
    takes_own: bool
    external: ExternalBearers | None
    """None when `custom_jwt` is off."""

    async def explain(self, token: str) -> list[CheckResult]:
        """A result for each of CHECKS. Raises DatabaseUnavailable."""
        try:
            passed = await self._check(token)
        except TokenRefused as refused:
            reached = CHECKS.index(refused.check)
            return [
                *(CheckResult(check, True, "") for check in CHECKS[:reached]),
                CheckResult(refused.check, False, refused.reason),
                *(CheckResult(check, None, "not looked at") for check in CHECKS[reached + 1 :]),
            ]
        skipped = () if passed == EXTERNAL else ("iss", "aud")
        return [
            CheckResult(check, None, "an own token has none") if check in skipped else CheckResult(check, True, "")
            for check in CHECKS
        ]

    async def _check(self, token: str) -> str:
        """The algorithm of a good token. Raises TokenRefused."""
        algorithm = algorithm_of(token)
        if token.count(".") != 2 or not header_of(token.partition(".")[0]):
            raise TokenRefused("form", "it is no signed token, or its header cannot be read")
        if algorithm == OWN and self.takes_own:
            await self._check_own(token)
        elif algorithm == EXTERNAL and self.external:
            await self._check_external(token, self.external)
        elif algorithm in (OWN, EXTERNAL):
            raise TokenRefused("alg", f"tokens with {algorithm} are switched off by desktop.auth.api_auth")
        else:
            raise TokenRefused("alg", f"it is neither {OWN} nor {EXTERNAL}")
        return str(algorithm)

    async def _check_external(self, token: str, external: ExternalBearers) -> None:
        try:
            await external.judge(token)
        except TokenRefused:
            raise
        except errors.KeyServerUnavailable:
            raise TokenRefused("kid", "no key server gives keys; the log says why") from None
        except errors.IdentityRefused as refused:
            raise TokenRefused("user", f"{refused.reason}; `queryserver link-user` can link it") from None
        except errors.UserNotFound:
            raise TokenRefused("user", "it is unknown, and desktop.auth.jwt.create_users is false") from None
        except errors.UserInactive:
            raise TokenRefused("user", "it is disabled") from None
        except errors.InvalidToken:
            raise TokenRefused("user", "the token was revoked") from None

    async def _check_own(self, token: str) -> None:
        if self.keyring.find(str(header_of(token.partition(".")[0]).get("kid"))) is None:
            raise TokenRefused("kid", "no key of this server has that id")
        try:
            claims = JwtCodec(self.keyring).read(token, expired_too=True)
        except errors.InvalidToken:
            raise TokenRefused("signature", "it was not made by this server, or the claims are not its own") from None
        if claims.expires_at <= time.time():
            raise TokenRefused("times", "it has expired")
        if claims.token_type is not TokenType.ACCESS:
            raise TokenRefused("user", "it is a refresh token, good for token/refresh only")
        owner = await self.records.owner(claims.key)
        if owner is None:
            raise TokenRefused("user", "it was deleted")
        if not owner.is_active:
            raise TokenRefused("user", "it is disabled")
        if owner.is_revoked:
            raise TokenRefused("user", "the login was ended by token/revoke")
        if owner.token_epoch != claims.epoch:
            raise TokenRefused("user", "all tokens of the user were ended, as by a new password")
