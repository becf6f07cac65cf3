"""What the outermost layer answers when a call does not end by itself."""

import asyncio
import json
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.types import Receive, Scope, Send

from queryserver.api.calls import Frame, RequestMetrics


async def test_a_call_that_is_cut_off_by_the_stop_is_answered_in_the_form_of_the_service():
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
    frame = Frame(endless, metrics=RequestMetrics(CollectorRegistry()), calls_per_user=8)
    call = asyncio.create_task(frame(scope, receive, send))
    await begun.wait()
    call.cancel()
    await call
    assert sent[0]["status"] == 500
    body = json.loads(sent[1]["body"])
    assert (body["status"], body["code"]) == (-1, "internal_error")
