"""Reports which check accepts or rejects a token, for `queryserver auth explain` (Contract platform 12)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from queryserver import errors
from queryserver.identity.api_tokens import digest_of, is_api_token
from queryserver.identity.callers import ALGORITHM as OWN
from queryserver.identity.callers import CallerRepository, JwtCodec, TokenType
from queryserver.identity.external_keys import algorithm_of, header_of
from queryserver.identity.external_tokens import ALGORITHM as EXTERNAL
from queryserver.identity.external_tokens import CHECKS, ExternalBearers, TokenRefused
from queryserver.identity.keys import Keyring

API_TOKEN_CHECKS = ("form", "token", "times", "user", "rights")
"""The checks for an API token, in order. `rights` always passes; its text lists the token's current rights."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check. `passed` is None if the check was not reached or does not apply."""

    check: str
    passed: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class Explainer:
    """Runs the checks on a token in order until one fails."""

    keyring: Keyring
    records: CallerRepository
    takes_own: bool
    takes_api_tokens: bool
    external: ExternalBearers | None
    """None if `custom_jwt` is off."""

    async def explain(self, token: str) -> list[CheckResult]:
        """Return a result for each of CHECKS, or of API_TOKEN_CHECKS for an API token. Raises DatabaseUnavailable."""
        if is_api_token(token):
            return await self._explain_api_token(token)
        try:
            passed = await self._check(token)
        except TokenRefused as refused:
            return _refused(refused, CHECKS)
        skipped = () if passed == EXTERNAL else ("iss", "aud")
        return [
            CheckResult(check, None, "tokens of this server have none")
            if check in skipped
            else CheckResult(check, True, "")
            for check in CHECKS
        ]

    async def _explain_api_token(self, token: str) -> list[CheckResult]:
        texts: dict[str, str] = {}
        try:
            await self._check_api_token(token, texts)
        except TokenRefused as refused:
            return _refused(refused, API_TOKEN_CHECKS, texts)
        return [CheckResult(check, True, texts.get(check, "")) for check in API_TOKEN_CHECKS]

    async def _check_api_token(self, token: str, texts: dict[str, str]) -> None:
        """Run the checks and record facts about the token in `texts`. Raises TokenRefused."""
        if not self.takes_api_tokens:
            raise TokenRefused("form", "API tokens are disabled by desktop.auth.api_auth")
        digest = digest_of(token)
        if digest is None:
            raise TokenRefused("form", "it looks like an API token, but is malformed or was altered")
        owner = await self.records.api_token(digest)
        if owner is None or (limits := owner.user.api_token) is None:
            raise TokenRefused(
                "token", "there is no such API token, or it expired or was revoked more than 30 days ago"
            )
        texts["token"] = f"{limits.name} ({limits.id})"
        if owner.is_revoked:
            raise TokenRefused("token", f"{texts['token']} was revoked")
        texts["times"] = f"expires {owner.expires_at:%Y-%m-%dT%H:%M:%SZ}"
        if owner.is_expired:
            raise TokenRefused("times", f"it expired {owner.expires_at:%Y-%m-%dT%H:%M:%SZ}")
        name = texts["user"] = owner.user.username
        if not owner.is_active:
            raise TokenRefused("user", f"{name} is disabled")
        if owner.token_epoch != owner.made_in_epoch:
            raise TokenRefused("user", f"all tokens of {name} were revoked, for example by a password change")
        scopes = (
            ", ".join(sorted(limits.scopes))
            or "none: the user is not an administrator, so the scope admin has no effect"
        )
        connectors = (
            "all connectors of the user"
            if limits.connectors is None
            else ", ".join(sorted(limits.connectors)) or "none"
        )
        texts["rights"] = f"scopes {scopes}; connectors {connectors}"

    async def _check(self, token: str) -> str:
        """Check a JWT and return its algorithm. Raises TokenRefused."""
        algorithm = algorithm_of(token)
        if token.count(".") != 2 or not header_of(token.partition(".")[0]):
            raise TokenRefused("form", "it is not a signed token, or its header cannot be decoded")
        if algorithm == OWN and self.takes_own:
            await self._check_own(token)
        elif algorithm == EXTERNAL and self.external:
            await self._check_external(token, self.external)
        elif algorithm in (OWN, EXTERNAL):
            raise TokenRefused("alg", f"{algorithm} tokens are disabled by desktop.auth.api_auth")
        else:
            raise TokenRefused("alg", f"it is neither {OWN} nor {EXTERNAL}")
        return str(algorithm)

    async def _check_external(self, token: str, external: ExternalBearers) -> None:
        try:
            await external.verify_with_reason(token)
        except TokenRefused:
            raise
        except errors.KeyServerUnavailable:
            raise TokenRefused("kid", "no key server returned keys; see the log") from None
        except errors.IdentityRefused as refused:
            raise TokenRefused("user", f"{refused.reason}; `queryserver link-user` can link it") from None
        except errors.UserNotFound:
            raise TokenRefused("user", "the user does not exist, and desktop.auth.jwt.create_users is false") from None
        except errors.UserInactive:
            raise TokenRefused("user", "the user is disabled") from None
        except errors.InvalidToken:
            raise TokenRefused("user", "the token was revoked") from None

    async def _check_own(self, token: str) -> None:
        if self.keyring.find(str(header_of(token.partition(".")[0]).get("kid"))) is None:
            raise TokenRefused("kid", "this server has no key with this id")
        try:
            claims = JwtCodec(self.keyring).read(token, expired_too=True)
        except errors.InvalidToken:
            raise TokenRefused("signature", "it was not signed by this server, or its claims are invalid") from None
        if claims.expires_at <= time.time():
            raise TokenRefused("times", "it has expired")
        if claims.token_type is not TokenType.ACCESS:
            raise TokenRefused("user", "it is a refresh token, which only token/refresh accepts")
        owner = await self.records.owner(claims.key)
        if owner is None:
            raise TokenRefused("user", "the user was deleted")
        if not owner.is_active:
            raise TokenRefused("user", "the user is disabled")
        if owner.is_revoked:
            raise TokenRefused("user", "the login was revoked by token/revoke")
        if owner.token_epoch != claims.epoch:
            raise TokenRefused("user", "all tokens of the user were revoked, for example by a password change")


def _refused(refused: TokenRefused, checks: Sequence[str], texts: Mapping[str, str] | None = None) -> list[CheckResult]:
    """Return results for the passed checks, the failed check and the checks that were not reached."""
    reached = checks.index(refused.check)
    return [
        *(CheckResult(check, True, (texts or {}).get(check, "")) for check in checks[:reached]),
        CheckResult(refused.check, False, refused.reason),
        *(CheckResult(check, None, "not checked") for check in checks[reached + 1 :]),
    ]
