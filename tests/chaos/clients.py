"""The fleet's users, and the ledger of all their requests and responses.

All clients follow the same rules. An execute call has an idempotency key, with which it is retried. After a 429, 502 or
503 response or a lost connection, a call is retried after `Retry-After` or an increasing pause. The state is polled
until it is neither waiting nor running. Pages are read with `start_row`. A download counts only if the file is
complete.
"""

import asyncio
import csv
import io
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import uuid4

import httpx

ROWS = 3000
READABLE, ACTIVE = "available", {"waiting", "running"}
_PAGE = 500
_REPEATED = {429, 502, 503}
_WAIT_S = 15
_ANSWER_WITHIN_S = 20
_GIVE_UP_S = 240
_MAX_PAUSE_S = 5.0
_THINKS_S = (0.2, 3.0)


class GaveUp(Exception):
    """A call received no final response within minutes."""


def now() -> str:
    """Return the current time in the format of the report."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass
class Entry:
    """A statement as recorded by its client. `token` is the idempotency key. It is also the value that an insert writes
    to the target table.
    """

    kind: str
    user: str
    token: str
    requested_at: str = field(default_factory=now)
    operation: str = ""
    state: str = "not submitted"
    code: str = ""
    message: str = ""
    responded_at: str = ""
    problems: list[str] = field(default_factory=list)
    factor: int = 0
    """Determines the expected values in the result of the statement."""
    rows: int = 0


@dataclass
class Ledger:
    """All statements of the clients, and the number of responses that the clients received, by status or error."""

    entries: list[Entry] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    faults: list[dict[str, str]] = field(default_factory=list)
    """Responses with HTTP 500, and responses that are contrary to the rules."""


@dataclass
class Caller:
    """Makes the calls of one user. Each call is retried until it receives a final response."""

    user: str
    headers: Mapping[str, str]
    servers: list[httpx.AsyncClient]
    ledger: Ledger
    random: Random

    async def call(
        self, method: str, path: str, *, key: str = "", answer_s: float = _ANSWER_WITHIN_S, **more: Any
    ) -> httpx.Response:
        """Make a call; return its final response. Raises GaveUp if there is none within minutes."""
        give_up, pause = time.monotonic() + _GIVE_UP_S, 0.5
        headers = {**self.headers, **({"Idempotency-Key": key} if key else {})}
        while time.monotonic() < give_up:
            server = self.random.choice(self.servers)
            try:
                async with asyncio.timeout(answer_s):
                    response = await server.request(method, f"/api/v1/editor/{path}", headers=headers, **more)
            except (httpx.TransportError, TimeoutError) as error:
                self.ledger.answers[type(error).__name__] += 1
                wait = pause
            else:
                self.ledger.answers[str(response.status_code)] += 1
                self.ledger.answers["replayed executes"] += "Idempotency-Replayed" in response.headers
                if response.status_code < 500 and response.status_code not in _REPEATED:
                    return response
                if response.status_code not in _REPEATED:
                    self._fault(path, key, response)
                wait = float(response.headers.get("Retry-After", pause))
            await asyncio.sleep(wait * self.random.uniform(1, 1.5))
            pause = min(pause * 2, _MAX_PAUSE_S)
        raise GaveUp(path)

    async def successful_body(self, path: str, *, wait_s: float = 0, key: str = "", **body: Any) -> dict[str, Any]:
        """Send a POST request that must succeed; return the response body. Any other final response is recorded as a
        fault.
        """
        response = await self.call("POST", path, key=key, answer_s=_ANSWER_WITHIN_S + wait_s, json=body)
        if response.status_code != 200:
            self._fault(path, key or str(body.get("operationId", "")), response)
        return response.json()

    def _fault(self, path: str, about: str, response: httpx.Response) -> None:
        fault = {"at": now(), "path": path, "about": about, "status": str(response.status_code)}
        request_id = response.headers.get("X-Request-Id", "")
        self.ledger.faults.append(fault | {"request_id": request_id, "body": response.text[:500]})


@dataclass
class Client:
    """A user who runs one statement after another."""

    caller: Caller
    ends_at: float
    """The end in monotonic time. A statement that is running then is still followed to completion."""

    async def run(self) -> None:
        """Run statements until `ends_at`."""
        kinds: list[Callable[[Entry], Awaitable[None]]] = [self.insert, self.select, self.page, self.download]
        kinds.append(self.cancel)
        random = self.caller.random
        await asyncio.sleep(random.uniform(0, 3))
        while time.monotonic() < self.ends_at:
            (kind,) = random.choices(kinds, weights=[40, 25, 15, 10, 10])
            entry = Entry(kind.__name__, self.caller.user, uuid4().hex)
            self.caller.ledger.entries.append(entry)
            try:
                await kind(entry)
            except GaveUp as error:
                entry.problems.append(f"gave up: {error}")
            except (KeyError, TypeError, ValueError) as error:
                entry.problems.append(f"cannot read an answer: {error!r}")
            await asyncio.sleep(random.uniform(*_THINKS_S))

    async def insert(self, entry: Entry) -> None:
        """Insert a row with the entry's token into the target table."""
        delay = self.caller.random.choice((0, 0, 0.5, 2, 4))
        await self._submit(entry, f"INSERT INTO done (token) SELECT '{entry.token}' FROM pg_sleep({delay})")
        await self._follow(entry)

    async def select(self, entry: Entry) -> None:
        """Select a few rows, and read them as pages. The result is stored in the statement's record."""
        await self._select(entry, 20)
        await read_all(self.caller, entry)

    async def page(self, entry: Entry) -> None:
        """Select several thousand rows, and read them as pages. The result is stored in the result store."""
        await self._select(entry, ROWS)
        await read_all(self.caller, entry)

    async def download(self, entry: Entry) -> None:
        """Select several thousand rows, and download them as a file. The result is stored in the result store."""
        await self._select(entry, ROWS)
        if entry.state != READABLE:
            return
        response = await self.caller.call("GET", f"download/{entry.operation}", answer_s=60)
        if response.status_code != 200:
            entry.problems.append(f"{now()} download: {response.status_code} {response.text[:300]}")
            return
        rows = list(csv.reader(io.StringIO(response.text)))[1:]
        if rows != [[str(cell) for cell in row] for row in expected(entry)]:
            entry.problems.append(f"{now()} wrong content: the file has {len(rows)} rows")

    async def cancel(self, entry: Entry) -> None:
        """Submit an insert and cancel it, either while it runs or after it has completed."""
        await self._submit(entry, f"INSERT INTO done (token) SELECT '{entry.token}' FROM pg_sleep(4)")
        await asyncio.sleep(self.caller.random.uniform(0, 5))
        await self.caller.successful_body("cancel_statement", operationId=entry.operation, wait_s=10)
        await self._follow(entry)

    async def _select(self, entry: Entry, rows: int) -> None:
        entry.rows, entry.factor = rows, self.caller.random.randrange(1, 1_000_000)
        statement = (
            f"SELECT g::int AS id, g::bigint * {entry.factor} AS big, 'row ' || g || ' of {entry.token}' AS label "
            f"FROM generate_series(1, {rows}) AS g"
        )
        await self._submit(entry, statement)
        await self._follow(entry)

    async def _submit(self, entry: Entry, statement: str) -> None:
        body = await self.caller.successful_body("execute/postgresql", key=entry.token, statement=statement)
        entry.operation = body["history_uuid"]
        _note(entry, body)

    async def _follow(self, entry: Entry) -> None:
        give_up = time.monotonic() + _GIVE_UP_S
        while entry.state in ACTIVE:
            if time.monotonic() > give_up:
                raise GaveUp(f"it is still {entry.state}")
            body = await self.caller.successful_body(
                "check_status", operationId=entry.operation, wait=_WAIT_S, wait_s=_WAIT_S
            )
            _note(entry, body)


def expected(entry: Entry) -> list[list[Any]]:
    """Return the rows that the result of the entry's statement must contain."""
    return [[n, n * entry.factor, f"row {n} of {entry.token}"] for n in range(1, entry.rows + 1)]


async def read_all(caller: Caller, entry: Entry) -> None:
    """Read the result page by page. Records deviations from the expected rows as problems."""
    if entry.state != READABLE:
        return
    rows: list[Any] = []
    while True:
        where = {"operationId": entry.operation, "start_row": len(rows), "rows": _PAGE}
        body = await caller.successful_body("fetch_result_data", **where)
        if body.get("status") != 0:
            entry.problems.append(f"{now()} not readable from row {len(rows)}: {str(body)[:300]}")
            return
        rows += body["result"]["data"]
        if not body["result"]["has_more"]:
            break
        if not body["result"]["data"]:
            entry.problems.append(f"{now()} an empty page at row {len(rows)} says that there are more")
            return
    if rows != expected(entry):
        entry.problems.append(f"{now()} wrong content: {len(rows)} rows, {entry.rows} expected")


def _note(entry: Entry, body: Mapping[str, Any]) -> None:
    status = body["query_status"]
    entry.state, entry.responded_at = status["state"], now()
    entry.code, entry.message = str(body.get("code", "")), str(body.get("message") or status["message"])[:300]
