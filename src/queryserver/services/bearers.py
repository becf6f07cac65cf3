"""From the content of a token to the user behind it, as things stand now."""

from queryserver.domain.errors import InvalidToken, UserInactive, UserNotFound
from queryserver.domain.user import User
from queryserver.interfaces.accounts import TokenKey, TokenOwner, TokenRecords
from queryserver.interfaces.auth import TokenClaims, TokenType


async def bearer(claims: TokenClaims, wanted: TokenType, records: TokenRecords) -> User:
    """The user of a token of the wanted type.

    Raises InvalidToken, UserNotFound, UserInactive, DatabaseUnavailable.
    """
    if claims.token_type is not wanted:
        raise InvalidToken("Token has wrong type", token_type=wanted.value)
    return _alive(claims, await records.owner(key_of(claims)))


def key_of(claims: TokenClaims) -> TokenKey:
    """What the state of the token depends on."""
    return TokenKey(claims.user_id, claims.family, claims.jti)


def _alive(claims: TokenClaims, owner: TokenOwner | None) -> User:
    if owner is None:
        raise UserNotFound
    if not owner.is_active:
        raise UserInactive
    if owner.is_revoked or owner.token_epoch != claims.epoch:
        raise InvalidToken(token_type=claims.token_type.value)
    return owner.user
