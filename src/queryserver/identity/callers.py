"""Who makes a call: the entries of `desktop.auth.api_auth` in their order (Contract platform 4.2)."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from queryserver.errors.base import (
    AuthenticationFailed,
    InvalidToken,
    NotAuthenticated,
    UserInactive,
    UserNotFound,
    bad_authorization_header,
)
from queryserver.identity.model import User
from queryserver.identity.protocols import AuthRequest, CallerSource, TokenClaims, TokenCodec, TokenType
from queryserver.identity.repository import TokenKey, TokenOwner
from queryserver.identity.token_repository import TokenRepository

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


class Callers:
    """See `identity.protocols.Authenticator`: the first entry that knows the caller wins."""

    def __init__(self, sources: Sequence[CallerSource]) -> None:
        self._sources = sources

    async def authenticate(self, request: AuthRequest) -> User:
        """The caller. Raises NotAuthenticated and its kinds, KeyServerUnavailable, DatabaseUnavailable."""
        try:
            for source in self._sources:
                user = await source.caller(request)
                if user is not None:
                    return user
            raise _refusal(request)
        except AuthenticationFailed:
            # An entry that refuses the caller at once says all there is to say.
            raise
        except NotAuthenticated as refusal:
            refusal.challenges = await self._challenges(request)
            raise

    async def _challenges(self, request: AuthRequest) -> tuple[str, ...]:
        """In the order of the entries, which are asked side by side: one that is slow adds nothing to another."""
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(source.challenge(request)) for source in self._sources]
        return tuple(challenge for one in asked if (challenge := one.result()))


def _refusal(request: AuthRequest) -> NotAuthenticated:
    """Nobody knew the caller: there was no bearer, or one that is no good."""
    try:
        bearer_token(request.raw_headers)
    except NotAuthenticated as error:
        return error
    return InvalidToken()


class BearerAuthenticator:
    """See `identity.protocols.CallerSource`. Each call reads the database: the end of a token is seen at once."""

    def __init__(self, codec: TokenCodec, records: TokenRepository) -> None:
        self._codec = codec
        self._records = records

    async def caller(self, request: AuthRequest) -> User | None:
        """The user of an own token; None when the bearer, if there is one, is no own token.

        Raises NotAuthenticated and its kinds, DatabaseUnavailable.
        """
        token = bearer_of(request.raw_headers)
        if token is None:
            return None
        try:
            claims = self._codec.read(token)
        except InvalidToken:
            if self._codec.recognises(token):
                raise
            return None
        return await bearer(claims, TokenType.ACCESS, self._records)

    async def challenge(self, request: AuthRequest) -> str | None:
        """None: every 401 asks for a bearer anyway."""
        del request
        return None
