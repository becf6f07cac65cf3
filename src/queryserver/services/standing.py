"""Whether a caller may go on with a call that lasts: rights are read again while it does (Rule T22)."""

from dataclasses import replace

import structlog

from queryserver.db.tokens import TokenRepository
from queryserver.domain.errors.base import DatabaseUnavailable, InvalidToken, UserInactive, UserNotFound
from queryserver.domain.user import User
from queryserver.interfaces.accounts import TokenKey

log = structlog.get_logger(__name__)


class Standing:
    """Reads users again whose calls last. Users that are read at once share a query."""

    def __init__(self, records: TokenRepository) -> None:
        self._records = records

    async def now(self, user: User) -> User:
        """The caller with the rights of this moment; unchanged while the database is out of reach.

        Raises UserNotFound, UserInactive, InvalidToken: the token of the call was ended.
        """
        try:
            owner = await self._records.owner(TokenKey(user.id, *user.token_ids))
        except DatabaseUnavailable:
            log.warning("rights of a lasting call not read: the database is out of reach", user_id=user.id)
            return user
        if owner is None:
            raise UserNotFound
        if not owner.is_active:
            raise UserInactive
        if owner.is_revoked or user.token_epoch not in (None, owner.token_epoch):
            raise InvalidToken
        return replace(
            owner.user,
            external_token=user.external_token,
            token_ids=user.token_ids,
            token_epoch=user.token_epoch,
        )
