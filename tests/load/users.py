"""Simulates the users in a separate process: `python -m tests.load.users` reads a plan and prints the results as JSON.

Each user does a round every 5 to 10 s: execute, status (check_status with `wait`, until completion), page, close,
autocomplete, history. Every fifth round also lists a directory. States and values are compared with the expected ones;
for all other responses only the HTTP status and the body's `status` are checked, which leaves more CPU time for the
servers.
"""

import asyncio
import json
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import uvloop
from tests.bench.client import Client

ROWS = 20
_WAIT_S = 30
_ANSWER_WITHIN_S = 60
_BROWSES = 0.2
_ALIVE_EVERY_S = 0.25
_EDITOR = "/api/v1/editor"
_PLACES = ("", "/customers", "/orders", "/order_items", "/products")


@dataclass(frozen=True)
class Plan:
    """The input of the users' process. Times are on the monotonic clock, which all processes share."""

    addresses: list[str]
    tokens: list[str]
    begins_at: float
    measured_from: float
    """The start of the measured period. Earlier calls count only if they fail, as errors."""
    ends_at: float
    think_s: tuple[float, float]
    keeps_server: bool
    """Whether all calls of a user go to the same server, as behind a proxy with source affinity. Otherwise, a user's
    calls alternate between the servers.
    """
    places: int
    """Number of different completions that each user requests. Responses are cached for a minute per user and
    completion.
    """
    seed: int


@dataclass
class Outcomes:
    """The results of all users."""

    took_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Response times in milliseconds by kind of call."""
    errors: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    processor_s: float = 0.0
    """CPU seconds that the users' process has used since its start."""


class RoundFailure(Exception):
    """Ends a round that cannot continue, because one of its calls failed. The failure has already been counted."""


class User:
    """A user with one connection to each server that the user calls."""

    def __init__(self, plan: Plan, met: Outcomes, number: int) -> None:
        self._plan, self._met = plan, met
        self._random = Random(plan.seed + number)
        addresses = [plan.addresses[number % len(plan.addresses)]] if plan.keeps_server else plan.addresses
        self._clients = [Client(address, plan.tokens[number]) for address in addresses]
        self._turn = self._number = number
        self._opened: set[Client] = set()

    async def run(self) -> None:
        """Do rounds until the end of the plan. A round that has begun is completed."""
        longest = self._plan.think_s[1]
        await _until(self._plan.begins_at + self._random.uniform(0, longest))
        while time.monotonic() < self._plan.ends_at:
            began = time.monotonic()
            try:
                await self._round()
                if self._plan.measured_from <= began:
                    self._met.rounds += 1
            except RoundFailure:
                pass
            await _until(min(began + self._random.uniform(*self._plan.think_s), self._plan.ends_at))
        for client in self._opened:
            await client.__aexit__()

    async def alive(self) -> None:
        """Call `is_alive` regularly until the end of the plan."""
        await _until(self._plan.begins_at)
        while time.monotonic() < self._plan.ends_at:
            with suppress(RoundFailure):
                await self._call("is_alive", lambda client: client.get("/desktop/debug/is_alive"), is_json=False)
            await asyncio.sleep(_ALIVE_EVERY_S)

    async def _round(self) -> None:
        factor = self._random.randrange(1, 1_000_000)
        operation = await self._execute(factor)
        await self._follow(operation)
        await self._read(operation, factor)
        await self._post("close", "close_statement", operationId=operation)
        await self._complete()
        await self._call("history", lambda client: client.get(f"{_EDITOR}/get_history?doc_type=postgresql&limit=20"))
        if self._random.random() < _BROWSES:
            await self._call("browse", lambda client: client.get("/api/v1/storage/view=file:///shared/samples"))

    async def _execute(self, factor: int) -> str:
        sql = f"SELECT g AS id, g::bigint * {factor} AS big, 'row ' || g AS label FROM generate_series(1, {ROWS}) AS g"
        body = await self._post("execute", "execute/postgresql", statement=sql)
        return json.loads(body)["history_uuid"]

    async def _follow(self, operation: str) -> None:
        give_up = time.monotonic() + _ANSWER_WITHIN_S
        state = "waiting"
        while state in {"waiting", "running"} and time.monotonic() < give_up:
            body = await self._post("status", "check_status", operationId=operation, wait=_WAIT_S)
            state = json.loads(body)["query_status"]["state"]
        if state != "available":
            self._fail("status", f"state {state}")

    async def _read(self, operation: str, factor: int) -> None:
        body = await self._post("page", "fetch_result_data", operationId=operation, start_row=0, rows=100)
        if json.loads(body)["result"]["data"] != [[n, n * factor, f"row {n}"] for n in range(1, ROWS + 1)]:
            self._fail("page", "wrong values")

    async def _complete(self) -> None:
        snippet = '{"type": "postgresql"}'
        place = _PLACES[(self._number + self._random.randrange(self._plan.places)) % len(_PLACES)]
        await self._post("autocomplete", f"autocomplete/public{place}", snippet=snippet)

    async def _post(self, kind: str, path: str, **fields: object) -> bytes:
        return await self._call(kind, lambda client: client.post(f"{_EDITOR}/{path}", fields))

    async def _call(
        self, kind: str, send: Callable[[Client], Awaitable[tuple[int, bytes]]], *, is_json: bool = True
    ) -> bytes:
        client = self._clients[self._turn % len(self._clients)]
        self._turn += 1
        began = time.monotonic()
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                if client not in self._opened:
                    await client.__aenter__()
                    self._opened.add(client)
                    began = time.monotonic()
                status, body = await send(client)
        except (OSError, EOFError, TimeoutError) as error:
            self._opened.discard(client)
            await client.__aexit__()
            self._fail(kind, type(error).__name__)
        if status != 200:
            self._fail(kind, f"{status} {_code(body)}")
        if is_json and b'"status":0' not in body and _code(body) != "0":
            self._fail(kind, f"200 {_code(body)}")
        if began >= self._plan.measured_from:
            self._met.took_ms[kind].append(round((time.monotonic() - began) * 1000, 2))
        return body

    def _fail(self, kind: str, how: str) -> None:
        self._met.errors[f"{kind}: {how}"] += 1
        raise RoundFailure


def _code(body: bytes) -> str:
    """Return the `code` of an error response, or its `status` field if it has no code."""
    try:
        answer = json.loads(body)
    except ValueError:
        return "no JSON"
    return str(answer.get("code") or answer.get("status", "no status")) if isinstance(answer, dict) else "no object"


async def _until(moment: float) -> None:
    await asyncio.sleep(max(moment - time.monotonic(), 0))


async def everybody(plan: Plan) -> Outcomes:
    """Run all users concurrently, and one task that calls `is_alive`."""
    met = Outcomes()
    async with asyncio.TaskGroup() as running:
        for number in range(len(plan.tokens)):
            running.create_task(User(plan, met, number).run())
        running.create_task(User(plan, met, 0).alive())
    used = resource.getrusage(resource.RUSAGE_SELF)
    met.processor_s = used.ru_utime + used.ru_stime
    return met


def main() -> None:
    """Read the plan, run the users, and print the results."""
    plan = Plan(**json.load(sys.stdin))
    print(json.dumps(vars(uvloop.run(everybody(plan)))))


if __name__ == "__main__":
    main()
