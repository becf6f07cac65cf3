"""Calls under way by their user, around an application that is a script."""

import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Scope

from queryserver.api.auth import UserShares, enter_share
from queryserver.errors.base import TooManyRequests

ANA, EVE = 1, 2


class Application:
    """Calls that last until `go` is set; `under_way` are their users."""

    def __init__(self, most: int) -> None:
        self.under_way = list[int]()
        self.go = asyncio.Event()
        self.shared = UserShares(most)

    async def _answer(self, scope: Scope) -> None:
        request = Request(scope)
        for _ in range(2):  # a call may be authenticated more than once
            await enter_share(request, scope["user"])
        self.under_way.append(scope["user"])
        try:
            await self.go.wait()
            if scope["user"] == EVE:
                raise RuntimeError
        finally:
            self.under_way.remove(scope["user"])

    async def begin(self, *users: int) -> list["asyncio.Task[None]"]:
        tasks = [asyncio.create_task(self._call(user)) for user in users]
        for _ in range(10):
            await asyncio.sleep(0)
        return tasks

    async def _call(self, user: int) -> None:
        scope: Scope = {"type": "http", "user": user}
        with self.shared.around(scope):
            await self._answer(scope)


async def test_calls_that_end_in_whatever_way_leave_their_places() -> None:
    application = Application(2)
    held = await application.begin(EVE, EVE)
    waiting = await application.begin(EVE, EVE, ANA)
    assert sorted(application.under_way) == [ANA, EVE, EVE]
    for task in (held[0], waiting[0]):
        task.cancel()
    await asyncio.gather(held[0], waiting[0], return_exceptions=True)
    await application.begin()
    assert sorted(application.under_way) == [ANA, EVE, EVE]
    application.go.set()
    await asyncio.gather(*held, *waiting, return_exceptions=True)
    assert application.under_way == []
    assert application.shared._places.is_unused


async def test_a_long_line_is_refused_to_its_user() -> None:
    application = Application(1)
    tasks = await application.begin(*[ANA] * 501)
    with pytest.raises(TooManyRequests, match="Too many calls of yours are under way"):
        await application._call(ANA)
    tasks += await application.begin(EVE)
    assert application.under_way == [ANA, EVE]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert application.shared._places.is_unused
