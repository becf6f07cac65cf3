"""The middlewares that wrap each call: cancellation at shutdown, and request slots per user."""

import asyncio
import json
from typing import Any

import pytest
import structlog
from starlette.types import Message, Receive, Scope, Send

from queryserver.api.errors import internal_error
from queryserver.api.middlewares import CALL, CallRecord, InternalErrors, RequestIds, UserSlots
from queryserver.errors.base import TooManyRequests


async def test_call_canceled_at_shutdown_returns_an_internal_error():
    begun = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await asyncio.Event().wait()

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/v1/banners",
        "raw_path": b"/api/v1/banners",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    call = asyncio.create_task(RequestIds(InternalErrors(endless, internal_error))(scope, receive, send))
    await begun.wait()
    call.cancel()
    await call
    assert sent[0]["status"] == 500
    body = json.loads(sent[1]["body"])
    assert (body["status"], body["code"]) == (-1, "internal_error")


ANA, EVE = 1, 2


class Application:
    """An application whose calls last until `go` is set; `under_way` lists the users of the running calls."""

    def __init__(self, most: int) -> None:
        self.under_way = list[int]()
        self.go = asyncio.Event()
        self.refused = list[TooManyRequests]()
        self.slots = UserSlots(self, most)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await scope[CALL].take_slot(scope["user"])
        except TooManyRequests as refused:
            self.refused.append(refused)
            return
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
        scope: Scope = {"type": "http", CALL: CallRecord({}), "user": user}

        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            del message

        await self.slots(scope, receive, send)


async def test_finished_failed_and_canceled_calls_release_their_slots() -> None:
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
    assert not application.slots.calls


async def test_full_queue_rejects_calls_of_its_user_only() -> None:
    application = Application(1)
    tasks = await application.begin(*[ANA] * 501)
    await application._call(ANA)
    assert [error.message for error in application.refused] == [
        "Too many of your calls are in progress (`limits.calls_per_user`). Send fewer calls at the same time."
    ]
    tasks += await application.begin(EVE)
    assert application.under_way == [ANA, EVE]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not application.slots.calls


@pytest.mark.parametrize(
    ("sent", "bound"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "0af7651916cd43dd8448eb211c80319c"),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", None),
        ("forged\n", None),
        (None, None),
    ],
)
async def test_log_lines_of_a_call_with_a_valid_trace_name_it(sent: str | None, bound: str | None) -> None:
    found: list[object] = []

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        found.append(structlog.contextvars.get_contextvars().get("trace_id"))

    async def unused(*_: Message) -> Message:
        raise AssertionError

    headers = [] if sent is None else [(b"traceparent", sent.encode())]
    scope: Scope = {"type": "http", "path": "/", "headers": headers}
    await asyncio.create_task(RequestIds(app)(scope, unused, unused))
    assert found == [bound]
