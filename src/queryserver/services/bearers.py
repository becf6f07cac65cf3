"""From the header of a call to the user behind its token, as things stand now (Contract platform 3.1)."""

from collections.abc import Iterable
from dataclasses import replace

from queryserver.db.tokens import TokenRepository
from queryserver.domain.errors.base import (
    InvalidToken,
    NotAuthenticated,
    UserInactive,
    UserNotFound,
    bad_authorization_header,
)
from queryserver.domain.user import User
from queryserver.interfaces.accounts import TokenKey, TokenOwner
from queryserver.interfaces.auth import TokenClaims, TokenType

_SCHEME = b"bearer"


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The token of the `Authorization` header. Raises NotAuthenticated, bad_authorization_header, InvalidToken."""
    token = bearer_of(headers)
    if token is None:
        raise NotAuthenticated
    return token


def bearer_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The token of the `Authorization` header; None without one, or with another scheme.

    Raises bad_authorization_header, InvalidToken (not ASCII).
    """
    values = [value for name, value in headers if name == b"authorization"]
    if len(values) > 1:
        raise bad_authorization_header()
    parts = values[0].split() if values else []
    if not parts or parts[0].lower() != _SCHEME:
        return None
    if len(parts) != 2:
        raise bad_authorization_header()
    try:
        return parts[1].decode("ascii")
    except UnicodeDecodeError:
        raise InvalidToken from None


async def bearer(claims: TokenClaims, wanted: TokenType, records: TokenRepository) -> User:
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
    return replace(owner.user, token_ids=(claims.family, claims.jti), token_epoch=claims.epoch)
