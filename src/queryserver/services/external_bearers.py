"""From the token of another issuer to the user behind it, and how such a token ends (Contract platform 3.9, 3.6)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import structlog

from queryserver.db.tokens import TokenRepository
from queryserver.domain.errors.base import (
    IdentityRefused,
    InvalidToken,
    NotAuthenticated,
    ServiceUnavailable,
    UserInactive,
    UserNotFound,
)
from queryserver.domain.user import ExternalToken, User
from queryserver.interfaces.auth import ExternalTokenReader
from queryserver.interfaces.metrics import UNMEASURED, AccountMetrics
from queryserver.services.arrivals import Arrivals

log = structlog.get_logger(__name__)

# The clocks of the servers and of the database differ by less.
_KEEP_BEYOND = timedelta(minutes=5)
_REVOKED = "the token was revoked"


class ExternalBearers:
    """Users of external tokens are found by identity, and made at first sight where the settings say so."""

    def __init__(
        self,
        reader: ExternalTokenReader,
        arrivals: Arrivals,
        records: TokenRepository,
        *,
        create_users: bool,
        metrics: AccountMetrics = UNMEASURED,
    ) -> None:
        self._metrics = metrics
        self._reader = reader
        self._arrivals = arrivals
        self._records = records
        self._create_users = create_users

    def recognises(self, token: str) -> bool:
        """Whether a token is of this kind, be it good or not."""
        return self._reader.recognises(token)

    async def user(self, token: str) -> User:
        """The bearer of a token, with the token.

        Raises InvalidToken, UserNotFound, UserInactive, KeyServerUnavailable, DatabaseUnavailable.
        """
        try:
            claims = await self._reader.read(token)
            try:
                user = await self._arrivals.user(claims.identity, token_id=claims.id, may_create=self._create_users)
            except IdentityRefused as refused:
                _log_refused(refused.reason)
                raise InvalidToken from None
            except InvalidToken:
                _log_refused(_REVOKED)
                raise
        except NotAuthenticated:
            self._metrics.external_token("refused")
            raise
        except ServiceUnavailable:
            self._metrics.external_token("unavailable")
            raise
        self._metrics.external_token("accepted")
        return replace(user, external_token=ExternalToken(token, claims.expires_at), token_ids=("", claims.id))

    async def verify(self, token: str) -> None:
        """Nothing, when `user` would give a user; none is made. Raises as `user`."""
        try:
            await self.judge(token)
        except IdentityRefused as refused:
            _log_refused(refused.reason)
            raise InvalidToken from None

    async def judge(self, token: str) -> None:
        """As `verify`, with the reason of a refused identity. Raises IdentityRefused, else as `user`."""
        claims = await self._reader.read(token)
        known = await self._arrivals.known(claims.identity, token_id=claims.id)
        if known is None:
            if not self._create_users:
                raise UserNotFound
        elif not known.is_active:
            raise UserInactive
        elif known.is_revoked:
            _log_refused(_REVOKED)
            raise InvalidToken

    async def revoke(self, token: str, *, everything: bool) -> str | None:
        """Refuse the token until it expires; with `everything` also end all own tokens of its user.

        The name of its user, else its subject. A token that is no good changes nothing: None.
        Raises KeyServerUnavailable, DatabaseUnavailable.
        """
        try:
            claims = await self._reader.read(token)
        except InvalidToken:
            return None
        try:
            known = await self._arrivals.known(claims.identity, token_id=claims.id)
        except IdentityRefused:
            known = None  # the token stays ended when an administrator links the identity later
        if everything and known is not None and known.is_active and not known.is_revoked:
            await self._records.end_all(known.user.id, epoch=known.token_epoch)
        await self._records.revoke(
            claims.id, keep_until=datetime.fromtimestamp(claims.refused_from, UTC) + _KEEP_BEYOND
        )
        return known.user.username if known else claims.identity.subject


def _log_refused(reason: str) -> None:
    """As the reader does for what it refuses itself (Contract platform 3.9 rule 6)."""
    log.info("external bearer refused", check="user", reason=reason)
