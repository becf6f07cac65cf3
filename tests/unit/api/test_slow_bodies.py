"""A body that trickles in is not waited for (security T6)."""

import asyncio
import json

import pytest
from starlette.requests import Request
from starlette.types import Message
from tests.cases import each

from queryserver.api.bodies import read_body
from queryserver.api.errors import respond
from queryserver.errors.base import LateBody


async def one_byte() -> Message:
    await asyncio.sleep(0.01)
    return {"type": "http.request", "body": b"a", "more_body": True}


async def nothing() -> Message:
    await asyncio.sleep(0.01)
    return {"type": "http.request", "body": b"", "more_body": True}


def request(receive: object, content_type: bytes) -> Request:
    headers = [(b"content-type", content_type), (b"transfer-encoding", b"chunked")]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)  # type: ignore[arg-type]


@pytest.mark.security("T6")
@each(
    ("receive", "content_type"), (one_byte, b"application/json"), (nothing, b"application/json"), (nothing, b"text/x")
)
async def test_a_slow_body_is_given_up(receive: object, content_type: bytes):
    async with asyncio.timeout(5):
        with pytest.raises(LateBody):
            await read_body(request(receive, content_type), max_bytes=1_000_000, within_s=0.1)


async def test_the_connection_of_a_slow_body_is_closed():
    answer = respond(request(nothing, b"text/x"), LateBody())
    assert (answer.status_code, answer.headers["connection"]) == (400, "close")
    assert json.loads(bytes(answer.body)) == {
        "status": -1,
        "code": "invalid_body",
        "message": "The body did not arrive in time.",
    }
