"""Calls under way by their user: beyond a share a user's calls wait for their own calls before them.

Each call takes milliseconds of the event loop, which all users share: a thousand at once would hold up everybody.
"""

import sys
from typing import cast

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from queryserver.domain.errors.base import TooManyRequests
from queryserver.services.places import FairPlaces

_SHARE = "queryserver.user_share"
_MAX_WAITING = 500
_WAIT_S = 30.0


class UserShare:
    """The place of one call."""

    def __init__(self, places: FairPlaces) -> None:
        self._places = places
        self._user_id: int | None = None

    async def enter(self, user_id: int) -> None:
        """Wait for the place of a call of this user; once per call. Raises TooManyRequests."""
        if self._user_id is not None:
            return
        try:
            await self._places.take(user_id)
        except TooManyRequests as error:
            raise TooManyRequests("Too many calls of yours are under way.", retry_after=error.retry_after) from None
        self._user_id = user_id

    def leave(self) -> None:
        """The call has ended."""
        if self._user_id is not None:
            self._places.give_back(self._user_id)


class SharedByUser:
    """An ASGI layer around calls: of one user at most `most` are answered at once in this process."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._places = FairPlaces(sys.maxsize, per_user=most, max_waiting=_MAX_WAITING, wait_s=_WAIT_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call; its user is known once it is authenticated."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        share = UserShare(self._places)
        try:
            scope[_SHARE] = share
            await self._app(scope, receive, send)
        finally:
            share.leave()


async def enter_share(request: Request, user_id: int) -> None:
    """Wait for the place of a call whose user is known. Raises TooManyRequests."""
    share = cast("UserShare | None", request.scope.get(_SHARE))
    if share is not None:
        await share.enter(user_id)
