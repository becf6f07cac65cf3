"""Large or malicious input is not processed on the event loop, so other callers wait at most 200 ms."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from tests.api.driving import Caller
from tests.timing import Stopwatch

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
# The required limit is 0.2 s, which `make bench` measures. This limit is higher, because the machine may be slow and
# shared.
MAX_S = 1.0
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}

Send = Callable[[Caller], Awaitable[httpx.Response]]


def execute(statement: str, *, dialect: str = "mysql", **fields: object) -> Send:
    return lambda ana: ana.post_json(f"editor/execute/{dialect}", statement=statement, **fields)


def raw(body: bytes, kind: dict[str, str]) -> Send:
    return lambda ana: ana.send("POST", "editor/execute/mysql", content=body, headers=kind)


CALLS: dict[str, Send] = {
    "ten mebibytes of one statement": execute("text " + "x" * (10 * MIB - 5), wait=10),
    "ten mebibytes outside of ASCII": execute("text " + "é" * (5 * MIB - 3), wait=10, client_request_id="k"),
    "ten mebibytes of quotes": execute("SELECT 1;" + "';" * (5 * MIB - 5), dialect="postgresql"),
    "ten thousand statements": execute("SELECT 1;\n" * 10_000, dialect="duckdb", wait=10),
    "a million terminators": execute("x;" * MIB),
    "arrays in arrays": raw(b'{"a":' + b"[" * (16 * MIB - 10), JSON),
    "many empty arrays": raw(b'{"a":[' + b"[]," * (5 * MIB), JSON),
    "many short strings": raw(b'{"a":[' + b'"",' * (5 * MIB), JSON),
    "a long string of escapes": raw(b'{"a":"' + b"\\u00e9" * (2 * MIB) + b'"}', JSON),
    "a long number": raw(b'{"a":' + b"1" * (15 * MIB) + b"}", JSON),
    "many blanks": raw(b'{"a":' + b" " * (15 * MIB) + b"}", JSON),
    "a form of escapes": raw(b"statement=" + b"%41" * (5 * MIB), FORM),
    "a form of separators": raw(b"&" * (16 * MIB - 1), FORM),
    "many objects in JSON text of a form": raw(
        b'snippet={"statement":"rows 1","z":[' + b"{}," * (2 * MIB) + b"{}]}", FORM
    ),
    "many sessions": execute("rows 1", notebook={"sessions": [{"type": "mysql", "id": 1}] * 300_000}),
    "many settings": execute("x", snippet={"properties": {"settings": [{"key": "k", "value": "v"}] * 300_000}}),
    "many properties of a session": lambda ana: ana.post_json(
        "editor/create_session", session={"type": "mysql", "properties": [{"name": "n", "value": "v"}] * 300_000}
    ),
    "many parts": raw(b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * 250_000, MULTIPART),
    "one part without an end": raw(
        b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + b"\r\n" * (7 * MIB), MULTIPART
    ),
}


@asynccontextmanager
async def longest_stall() -> AsyncIterator[list[float]]:
    """Measure until the context exits how long a ready task waits for the event loop. Yields a list whose only element
    is the longest wait in seconds.
    """
    longest = [0.0]

    async def tick() -> None:
        watch = Stopwatch()
        while True:
            await asyncio.sleep(0.005)
            longest[0] = max(longest[0], watch.lap())

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0.02)
    try:
        yield longest
    finally:
        await asyncio.sleep(0.01)
        ticker.cancel()


@pytest.mark.parametrize("name", CALLS)
async def test_hostile_input_does_not_block_the_event_loop(ana: Caller, name: str):
    stalls: list[float] = []
    # Other threads of the tests may also cause a stall, but they are unlikely to do so in all five attempts.
    for _ in range(5):
        async with longest_stall() as longest:
            answer = await CALLS[name](ana)
        assert answer.status_code < 500
        stalls.append(longest[0])
        if longest[0] < MAX_S:
            break
    assert min(stalls) < MAX_S
