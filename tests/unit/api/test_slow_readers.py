"""A client that takes nothing of a streamed answer does not hold its source for ever (security T6)."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from queryserver.api.answers import OwnedStream, stream


class Impatient(OwnedStream):
    """For tests that do not wait five minutes."""

    patience_s = 0.1


class Source:
    """Endless pieces, and whether they were closed."""

    def __init__(self) -> None:
        self.is_closed = False
        self.taken = 0

    async def pieces(self, *, size: int = 1024) -> AsyncGenerator[bytes]:
        try:
            while True:
                self.taken += 1
                yield b"x" * size
        finally:
            self.is_closed = True


async def stays() -> Message:
    """A client that does not leave."""
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


@pytest.mark.security("T6")
async def test_who_takes_nothing_is_given_up_and_the_source_is_closed() -> None:
    source, sent = Source(), list[Message]()

    async def send(message: Message) -> None:
        if len(sent) == 3:
            await asyncio.Event().wait()
        sent.append(message)

    answer = Impatient(source.pieces(), b"first", None, {})
    async with asyncio.timeout(20):
        await answer({"type": "http"}, stays, send)
    assert source.is_closed is True
    # The answer has no end, so the server breaks the connection.
    assert [message.get("more_body") for message in sent] == [None, True, True]


async def test_who_takes_a_large_piece_slowly_is_waited_for() -> None:
    source, sent = Source(), list[Message]()

    async def send(message: Message) -> None:
        if len(sent) == 3:
            # Longer than the patience, but not too slow for 1 KiB/s.
            await asyncio.sleep(0.3)
        sent.append(message)
        if len(sent) == 5:
            raise ConnectionError

    answer = Impatient(source.pieces(size=1024 * 1024), b"first", None, {})
    with pytest.raises(ConnectionError):
        await answer({"type": "http"}, stays, send)
    assert len(sent) == 5
    assert source.is_closed is True


async def test_the_patience_is_minutes() -> None:
    answer = await stream(Source().pieces())
    assert 60 <= answer.patience_s <= 600
    await answer({"type": "http", "queryserver.headers_only": True}, stays, _nothing)


async def _nothing(message: Message) -> None:
    del message
