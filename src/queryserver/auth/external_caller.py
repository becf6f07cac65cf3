"""The entry `custom_jwt` of `desktop.auth.api_auth`: bearers of tokens of another issuer (Contract platform 3.9)."""

from queryserver.domain.user import User
from queryserver.interfaces.auth import AuthRequest
from queryserver.services.bearers import bearer_of
from queryserver.services.external_bearers import ExternalBearers


class ExternalCaller:
    """See `interfaces.auth.CallerSource`."""

    def __init__(self, bearers: ExternalBearers) -> None:
        self._bearers = bearers

    async def caller(self, request: AuthRequest) -> User | None:
        """The user of a token of the other issuer; None when the bearer, if there is one, is of another kind.

        Raises NotAuthenticated and its kinds, KeyServerUnavailable, DatabaseUnavailable.
        """
        token = bearer_of(request.raw_headers)
        if token is None or not self._bearers.recognises(token):
            return None
        return await self._bearers.user(token)

    async def challenge(self, request: AuthRequest) -> str | None:
        """None: every 401 asks for a bearer anyway."""
        del request
        return None
