"""Who makes a call: the bearer of an own token (Contract platform 3.1)."""

from collections.abc import Iterable

from queryserver.domain.errors import BadAuthorizationHeader, InvalidToken, NotAuthenticated
from queryserver.domain.user import User
from queryserver.interfaces.accounts import TokenRecords
from queryserver.interfaces.auth import TokenCodec, TokenType
from queryserver.services.bearers import bearer

_SCHEME = b"bearer"


class BearerAuthenticator:
    """See `interfaces.auth.Authenticator`. Each call reads the database: the end of a token is seen at once."""

    def __init__(self, codec: TokenCodec, records: TokenRecords) -> None:
        self._codec = codec
        self._records = records

    async def authenticate(self, headers: Iterable[tuple[bytes, bytes]]) -> User:
        """The caller. Raises NotAuthenticated and its kinds, DatabaseUnavailable."""
        claims = self._codec.read(bearer_token(headers))
        return await bearer(claims, TokenType.ACCESS, self._records)


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The token of the `Authorization` header. Raises NotAuthenticated, BadAuthorizationHeader."""
    values = [value for name, value in headers if name == b"authorization"]
    if len(values) > 1:
        raise BadAuthorizationHeader
    parts = values[0].split() if values else []
    if not parts or parts[0].lower() != _SCHEME:
        raise NotAuthenticated
    if len(parts) != 2:
        raise BadAuthorizationHeader
    try:
        return parts[1].decode("ascii")
    except UnicodeDecodeError:
        raise InvalidToken from None
