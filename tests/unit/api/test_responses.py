"""Responses: work that is canceled if the client disconnects, and chunk sources that are always closed."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from queryserver.api.responses import OwnedStream, stream, while_connected


class Client:
    """The client side of a request, which sends the messages and then waits until it disconnects."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self._messages = list(messages)
        self.left = asyncio.Event()
        self.is_watched = False

    @property
    def request(self) -> Request:
        return Request({"type": "http", "method": "GET", "headers": []}, self._receive)

    async def _receive(self) -> dict[str, Any]:
        self.is_watched = True
        try:
            if self._messages:
                return self._messages.pop(0)
            await self.left.wait()
            return {"type": "http.disconnect"}
        finally:
            self.is_watched = False


class Work:
    """A task that lasts until `may_end` is set."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.is_cleaned_up = False

    async def run(self) -> str:
        self.begun.set()
        try:
            await self.may_end.wait()
            return "done"
        finally:
            await asyncio.sleep(0)
            self.is_cleaned_up = True


@pytest.fixture
async def work() -> AsyncIterator[Work]:
    made = Work()
    yield made
    assert made.is_cleaned_up


async def test_result_is_returned_and_the_client_is_no_longer_watched(work: Work):
    client = Client({"type": "http.request", "body": b"unread", "more_body": True})
    work.may_end.set()
    assert await while_connected(client.request, work.run()) == "done"
    assert not client.is_watched


async def test_client_disconnect_cancels_the_work(work: Work):
    client = Client()
    call = asyncio.create_task(while_connected(client.request, work.run()))
    await work.begun.wait()
    client.left.set()
    with pytest.raises(ClientDisconnect):
        await call


async def test_canceled_call_cancels_the_work(work: Work):
    client = Client()
    call = asyncio.create_task(while_connected(client.request, work.run()))
    await work.begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not client.is_watched


async def test_errors_of_the_work_propagate():
    async def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 has no message
        await while_connected(Client().request, fail())


class Source:
    """An endless iterator of chunks that records whether it was closed."""

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


@pytest.mark.security("T6")
async def test_disconnect_closes_the_source() -> None:
    source, client, sent = Source(), Client(), list[Message]()

    async def send(message: Message) -> None:
        if len(sent) == 3:
            client.left.set()
            await asyncio.Event().wait()
        sent.append(message)

    answer = OwnedStream(source.pieces(), b"first", None, {})
    async with asyncio.timeout(20):
        await answer({"type": "http"}, client._receive, send)
    assert source.is_closed is True
    # The response is incomplete, so the server closes the connection.
    assert [message.get("more_body") for message in sent] == [None, True, True]


async def test_head_request_closes_the_source_after_the_first_chunk() -> None:
    source = Source()
    answer = await stream(source.pieces())
    await answer({"type": "http", "queryserver.headers_only": True}, Client()._receive, _nothing)
    assert (source.is_closed, source.taken) == (True, 1)


async def _nothing(message: Message) -> None:
    del message
