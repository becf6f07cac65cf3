"""Who makes a call: the bearer of an own token (Contract platform 3.1)."""

from collections.abc import Iterable

from queryserver.domain.user import User
from queryserver.interfaces.accounts import TokenRecords
from queryserver.interfaces.auth import TokenCodec, TokenType
from queryserver.services.bearers import bearer, bearer_token


class BearerAuthenticator:
    """See `interfaces.auth.Authenticator`. Each call reads the database: the end of a token is seen at once."""

    def __init__(self, codec: TokenCodec, records: TokenRecords) -> None:
        self._codec = codec
        self._records = records

    async def authenticate(self, headers: Iterable[tuple[bytes, bytes]]) -> User:
        """The caller. Raises NotAuthenticated and its kinds, DatabaseUnavailable."""
        claims = self._codec.read(bearer_token(headers))
        return await bearer(claims, TokenType.ACCESS, self._records)
