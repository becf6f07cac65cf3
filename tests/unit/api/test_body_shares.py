"""Bodies that arrive slowly fill the share of their sender, and nobody else's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from starlette.requests import Request
from starlette.types import Message

from queryserver.api.bodies import BODY_SHARES, BodyShares, read_body
from queryserver.errors.base import ServiceUnavailable, TooManyRequests

_PIECE = 100


class Unfinished:
    """A body of one piece whose rest never comes."""

    def __init__(self) -> None:
        self.is_awaited = asyncio.Event()
        self._pieces = [b"a" * _PIECE]

    async def __call__(self) -> Message:
        if self._pieces:
            return {"type": "http.request", "body": self._pieces.pop(), "more_body": True}
        self.is_awaited.set()
        await asyncio.Event().wait()
        raise AssertionError


def request(receive: Any, shares: BodyShares) -> Request:
    headers = [(b"content-type", b"application/json"), (b"transfer-encoding", b"chunked")]
    return Request({"type": "http", "method": "POST", "headers": headers, BODY_SHARES: shares}, receive)


@asynccontextmanager
async def under_way(shares: BodyShares, *, user_id: int, number: int) -> AsyncIterator[None]:
    """So many unfinished bodies of a user."""
    bodies = [Unfinished() for _ in range(number)]
    calls = [
        asyncio.create_task(read_body(request(body, shares), max_bytes=_PIECE, user_id=user_id)) for body in bodies
    ]
    try:
        for body in bodies:
            await body.is_awaited.wait()
        yield
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def refused(shares: BodyShares, user_id: int) -> type[BaseException] | None:
    """Why one more body of the user is refused."""
    body = Unfinished()
    call = asyncio.create_task(read_body(request(body, shares), max_bytes=_PIECE, user_id=user_id))
    awaited = asyncio.create_task(body.is_awaited.wait())
    await asyncio.wait({call, awaited}, return_when=asyncio.FIRST_COMPLETED)
    awaited.cancel()
    call.cancel()
    (error,) = await asyncio.gather(call, return_exceptions=True)
    return None if isinstance(error, asyncio.CancelledError) else type(cast("BaseException", error))


async def test_a_user_has_the_share_of_four_bodies():
    shares = BodyShares()
    async with under_way(shares, user_id=7, number=4):
        assert await refused(shares, 7) is TooManyRequests
        assert await refused(shares, 8) is None
    assert await refused(shares, 7) is None


async def test_all_users_together_are_bounded():
    shares = BodyShares(of_users=2 * _PIECE)
    async with under_way(shares, user_id=7, number=2):
        assert await refused(shares, 8) is ServiceUnavailable
    assert await refused(shares, 8) is None


async def test_callers_without_credentials_leave_the_bytes_of_users_alone():
    shares = BodyShares(of_users=_PIECE, of_strangers=_PIECE)
    with shares.holding("192.0.2.1", _PIECE, is_user=False) as hold:
        hold(_PIECE)
        with pytest.raises(ServiceUnavailable), shares.holding("192.0.2.2", _PIECE, is_user=False) as other:
            other(1)
        assert await refused(shares, 7) is None
