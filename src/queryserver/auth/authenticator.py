"""The entry `jwt` of `desktop.auth.api_auth`: bearers of own tokens (Contract platform 3.1)."""

from queryserver.db.tokens import TokenRepository
from queryserver.domain.errors.base import InvalidToken
from queryserver.domain.user import User
from queryserver.interfaces.auth import AuthRequest, TokenCodec, TokenType
from queryserver.services.bearers import bearer, bearer_of


class BearerAuthenticator:
    """See `interfaces.auth.CallerSource`. Each call reads the database: the end of a token is seen at once."""

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
