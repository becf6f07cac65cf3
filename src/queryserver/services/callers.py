"""Who makes a call: the entries of `desktop.auth.api_auth` in their order (Contract platform 4.2)."""

import asyncio
from collections.abc import Sequence

from queryserver.domain.errors.base import AuthenticationFailed, InvalidToken, NotAuthenticated
from queryserver.domain.user import User
from queryserver.interfaces.auth import AuthRequest, CallerSource
from queryserver.services.bearers import bearer_token


class Callers:
    """See `interfaces.auth.Authenticator`: the first entry that knows the caller wins."""

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
