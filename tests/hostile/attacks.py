"""A hostile user, who has a valid login but also opens connections that require none. All attacks run in parallel.

The attacks run in a separate process, so that their resource usage is not attributed to the server or to other users:
`python -m tests.hostile.attacks BASE_URL TOKEN VICTIM SECONDS [ATTACK ...]`. At the end, this program prints the number
of responses by attack and outcome.
"""

import asyncio
import io
import json
import os
import random
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

ADDRESS = "127.0.0.1"
"""The loopback address of the attacks. The other users call from a different address."""
_MIB = 1024 * 1024
_PAUSE_S = 0.2
_MIN_FIRST_S = 10.0
"""Minimum time limit of the first attempt at each attack, which may begin late on a busy machine."""
_UNUSED_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_HOME = "/user/hostile"
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass
class Hostile:
    """The hostile user, and the number of server responses by attack and outcome."""

    base_url: str
    token: str
    victim: str
    ends_at: float
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def goes_on(self) -> bool:
        """Whether there is time for another round of attacks."""
        return time.monotonic() < self.ends_at

    def http(self, address: str = ADDRESS) -> httpx.AsyncClient:
        """Return a client whose connections come from this loopback address."""
        return httpx.AsyncClient(
            # No call uses TLS. Without this context, each client would spend CPU time on making one.
            transport=httpx.AsyncHTTPTransport(local_address=address, verify=_UNUSED_TLS),
            base_url=f"{self.base_url}/api/v1/",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=60,
        )


Attack = Callable[[Hostile, httpx.AsyncClient], Awaitable[str]]


def outcome(answer: httpx.Response) -> str:
    """Return the HTTP status of a response, followed by the code or statement state if there is one."""
    if not answer.headers.get("content-type", "").startswith("application/json") or len(answer.content) > _MIB:
        return str(answer.status_code)
    body = answer.json()
    status = body.get("query_status") or {}
    code = body.get("code") or status.get("code") or status.get("state") or ""
    # An engine error has the same code for every reason, so the message is added.
    text = f" ({body.get('message', '')[:80]})" if code == "engine_error" else ""
    return f"{answer.status_code} {code}{text}".strip()


def statement(dialect: str, *texts: str) -> Attack:
    """Return an attack that runs each statement, fetches a page of its result and closes it."""

    async def attack(_: Hostile, http: httpx.AsyncClient) -> str:
        last = ""
        for text in texts:
            answer = await http.post(f"editor/execute/{dialect}", data={"statement": text, "wait": "10"})
            last = outcome(answer)
            operation = answer.json().get("history_uuid")
            if answer.status_code == 200 and operation:
                page = await http.post("editor/fetch_result_data", data={"operationId": operation, "rows": "100"})
                last = f"{last}, page {outcome(page)}"
                await http.post("editor/close_statement", data={"operationId": operation})
        return last

    return attack


async def long_comments(_: Hostile, http: httpx.AsyncClient) -> str:
    """Submit a long statement that is never closed, to fill the service's storage."""
    body = b"statement=/*%d+" % random.getrandbits(64) + _noise() + b"*/+SELECT+1"
    return outcome(await http.post("editor/execute/sqlite", content=body, headers=_FORM))


async def brackets(_: Hostile, http: httpx.AsyncClient) -> str:
    """Send eight concurrent format calls with a statement that takes a long time to parse."""
    body = b"statements=" + b"(" * 400_000
    calls = (http.post("editor/format", content=body, headers=_FORM) for _ in range(8))
    return outcome((await asyncio.gather(*calls))[0])


async def wide_parquet(_: Hostile, http: httpx.AsyncClient) -> str:
    """Upload and preview a Parquet file with 20,000 columns."""
    uploaded = await _upload(http, "wide.parquet", _wide_file())
    if uploaded.status_code != 200:
        return outcome(uploaded)
    shown = await http.get(f"storage/display?path={_HOME}/wide.parquet&compression=parquet")
    return f"{outcome(uploaded)}, preview {outcome(shown)}"


async def uploads(_: Hostile, http: httpx.AsyncClient) -> str:
    """Upload a 64 MiB file."""
    return outcome(await _upload(http, "large.bin", _large_file()))


async def passwords(hostile: Hostile, _: httpx.AsyncClient) -> str:
    """Try to log in as a known user with a wrong password, from one of several addresses."""
    async with hostile.http(f"127.0.0.{random.randint(10, 14)}") as http:
        body = {"username": hostile.victim, "password": f"wrong-{random.random()}"}
        return outcome(await http.post("token/auth", data=body))


async def unread_pages(hostile: Hostile, http: httpx.AsyncClient) -> str:
    """Request pages of 8 MB without reading the responses."""
    text = "SELECT repeat('x', 1000000) AS c FROM range(8)"
    answer = await http.post("editor/execute/duckdb", data={"statement": text, "wait": "10"})
    operation = answer.json().get("history_uuid", "")
    body = f"operationId={operation}&rows=8".encode()
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(20):
            writer = await _connected(hostile)
            writer.transport.pause_reading()
            writer.write(
                b"POST /api/v1/editor/fetch_result_data HTTP/1.1\r\nHost: test\r\n"
                b"Authorization: Bearer " + hostile.token.encode() + b"\r\n"
                b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            writers.append(writer)
        await asyncio.sleep(3)
    finally:
        for writer in writers:
            writer.close()
        await http.post("editor/close_statement", data={"operationId": operation})
    return outcome(answer)


async def idle_connections(hostile: Hostile, _: httpx.AsyncClient) -> str:
    """Open 300 connections. Half of them send a header one byte at a time, and the others send nothing."""
    writers = [await _connected(hostile) for _ in range(300)]
    try:
        for writer in writers[::2]:
            writer.write(b"POST /api/v1/token/auth HTTP/1.1\r\nHost: test\r\nX-Slow: ")
        for _ in range(20):
            for writer in writers[::2]:
                if not writer.transport.is_closing():
                    writer.write(b"a")
            await asyncio.sleep(0.5)
        return f"{sum(writer.transport.is_closing() for writer in writers) // 100}00 closed"
    finally:
        for writer in writers:
            writer.transport.abort()


async def slow_bodies(hostile: Hostile, _: httpx.AsyncClient) -> str:
    """Send large request bodies to the login call without completing them."""
    writers = [await _connected(hostile) for _ in range(30)]
    try:
        for writer in writers:
            writer.write(
                b"POST /api/v1/token/auth HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
                b"Content-Length: 10000000\r\n\r\n" + b'"' + bytes(9_900_000)
            )
        await asyncio.sleep(8)
        return f"{sum(writer.transport.is_closing() for writer in writers) // 10}0 closed"
    finally:
        for writer in writers:
            writer.transport.abort()


ATTACKS: dict[str, Attack] = {
    "a cell of 900 MB on duckdb": statement("duckdb", "SELECT repeat('x', 900000000)"),
    "a cell of 500 MB on postgresql": statement("postgresql", "SELECT repeat('x', 500000000)"),
    "a cell of 200 MB on sqlite": statement("sqlite", "SELECT zeroblob(200000000)", "SELECT randomblob(200000000)"),
    "rows of 10,000 columns": statement(
        "duckdb", "SELECT " + ", ".join(f"range + {n} AS c{n}" for n in range(10_000)) + " FROM range(100)"
    ),
    "lists nested 18,000 deep": statement("duckdb", "SELECT " + "[" * 18_000 + "1" + "]" * 18_000),
    "types nested 200 deep": statement("duckdb", "SELECT " + "{'a': " * 200 + "1" + "}" * 200),
    "a crash of duckdb": statement("duckdb", "SELECT \"=\"({'a': 1}, 5)"),
    "internal errors of duckdb": statement(
        "duckdb", """SELECT "="('', 1.5)""", "SELECT reservoir_quantile(5, NULL::INT[])", "SELECT from_binary('ééé')"
    ),
    "plans without end on duckdb": statement(
        "duckdb", "SELECT a" + ".a" * 30_000, "SELECT 1" + " UNION ALL SELECT 1" * 20_000
    ),
    "constants of gigabytes on duckdb": statement(
        "duckdb",
        "VALUES (len(range(400000000)))",
        "SELECT 1 LIMIT (SELECT len(range(500000000)))",
        "SELECT format('{:1000000000}', 'x')",
        "SELECT sum(len(range(1000000 + range::INT))) FROM range(100000)",
        "SELECT {'a': repeat('x', 300000000 + range::INT), 'b': repeat('y', 300000000 + range::INT)} FROM range(10)",
    ),
    "texts that nest on duckdb": statement(
        "duckdb",
        "SELECT " + "list_transform([1], lambda x: " * 150 + "x" + ")" * 150,
        "SELECT " + "(" * 50_000 + "1" + ")" * 50_000,
        "SELECT 1" + ", 1" * 100_000,
        "SELECT json_contains(repeat('[', 1000000) || repeat(']', 1000000), '1')",
        "SELECT (repeat('[', 1000000) || repeat(']', 1000000))::JSON::VARIANT",
    ),
    "text that opens brackets": brackets,
    "comments of 8 MiB": long_comments,
    "the setting of everybody on duckdb": statement(
        "duckdb",
        "SET GLOBAL Calendar = 'buddhist'",
        "SET GLOBAL TimeZone = 'Asia/Bangkok'",
        "SET GLOBAL memory_limit = '50MB'",
        "PRAGMA database_list",
        "PRAGMA copy_database",
    ),
    "the setting of everybody on postgresql": statement(
        "postgresql",
        "ALTER ROLE CURRENT_USER SET search_path = pg_catalog",
        "ALTER ROLE CURRENT_USER SET default_transaction_read_only = on",
        "ALTER ROLE CURRENT_USER PASSWORD 'hostile'",
        "SELECT pg_cancel_backend(pid), pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()",
    ),
    "previews of 20,000 columns": wide_parquet,
    "uploads of 64 MiB": uploads,
    "wrong passwords": passwords,
    "pages that are not read": unread_pages,
    "silent and dripping connections": idle_connections,
    "bodies that stop": slow_bodies,
}


async def rounds(name: str, attack: Attack, hostile: Hostile) -> None:
    """Repeat one attack until the time is up, but try it at least once."""
    is_tried = False
    while not is_tried or hostile.goes_on:
        try:
            async with hostile.http() as http:
                while not is_tried or hostile.goes_on:
                    # An attack to which the server does not respond is aborted when the time is up.
                    within_s = max(hostile.ends_at - time.monotonic(), 0.1 if is_tried else _MIN_FIRST_S)
                    is_tried = True
                    async with asyncio.timeout(within_s):
                        result = await attack(hostile, http)
                    hostile.outcomes[f"{name}: {result}"] += 1
                    await asyncio.sleep(_PAUSE_S)
        except (OSError, httpx.HTTPError, ValueError) as error:
            hostile.outcomes[f"{name}: {type(error).__name__}"] += 1
            await asyncio.sleep(_PAUSE_S)


@cache
def _noise() -> bytes:
    return random.randbytes(4 * _MIB).hex().encode()


@cache
def _wide_file() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({f"c{number}": [number] for number in range(20_000)}), file)
    return file.getvalue()


@cache
def _large_file() -> bytes:
    return bytes(64 * _MIB)


async def _upload(http: httpx.AsyncClient, name: str, content: bytes) -> httpx.Response:
    head = f'--boundary\r\nContent-Disposition: form-data; name="hdfs_file"; filename="{name}"\r\n\r\n'.encode()
    headers = {"Content-Type": "multipart/form-data; boundary=boundary"}
    body = head + content + b"\r\n--boundary--\r\n"
    return await http.post(f"storage/upload/file?dest={_HOME}&overwrite=true", content=body, headers=headers)


async def _connected(hostile: Hostile) -> asyncio.StreamWriter:
    parts = urlsplit(hostile.base_url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port, local_addr=(ADDRESS, 0))
    return writer


async def _main(base_url: str, token: str, victim: str, seconds: float, names: Sequence[str]) -> None:
    for made_once in (_noise, _wide_file, _large_file):
        made_once()
    hostile = Hostile(base_url, token, victim, ends_at=0.0)
    async with hostile.http() as http:
        await http.post("storage/mkdir", data={"path": "/user", "name": "hostile"})
    hostile.ends_at = time.monotonic() + seconds
    await asyncio.gather(*(rounds(name, ATTACKS[name], hostile) for name in names))
    print(json.dumps(hostile.outcomes))


if __name__ == "__main__":
    os.nice(5)  # a lower priority, as if the attacks ran on another machine
    asyncio.run(_main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), sys.argv[5:] or list(ATTACKS)))
