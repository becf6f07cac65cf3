"""A fleet works as if there were one clock, although its processes' clocks differ from each other and from the
database's.
"""

import asyncio
import json
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.e2e.installation import Installation, Node, WorkerProcess, eventually, installed, query
from tests.fixtures import program
from tests.fixtures.valkey import running_valkey

from queryserver.platform.embedded.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

AHEAD_S = (10, -10)
CONCURRENCY = 4
LEASE_S = 6
LASTING_S = 8
"""A duration that is longer than a lease, so each process must renew its lease."""
SHORT_S = 4
SLACK_S = 6
"""The allowed deviation. It is smaller than the difference between the clocks, but large enough for a busy machine."""
PASSWORD = "a password for clocks"


@dataclass(frozen=True)
class Clocks:
    """A fleet of two processes of each kind. One of them has a fast clock, the other a slow one."""

    place: Installation
    servers: tuple[Node, Node]
    workers: tuple[WorkerProcess, WorkerProcess]
    administrators: tuple[Mapping[str, str], Mapping[str, str]]
    """For each server, the administrator's tokens by kind."""

    async def now(self) -> datetime:
        """Return the current time according to the database's clock."""
        return await query(self.place.database_dsn, "select clock_timestamp()")

    async def column(self, operation: str, expression: str) -> Any:
        """Evaluate a column or an expression for a statement's record; return its value."""
        return await query(
            self.place.database_dsn, f"select {expression} from statements where id = $1::text::uuid", operation
        )

    async def fill(self, statement: str, **fields: Any) -> list[str]:
        """Submit as many statements as all workers run concurrently, alternating between the servers. Returns the
        operation ids.
        """
        numbers = range(len(self.workers) * CONCURRENCY)
        submits = [self.servers[n % 2].submit("postgresql", f"{statement} -- {n}", **fields) for n in numbers]
        return await asyncio.gather(*submits)

    async def administer(self, path: str, number: int = 0, **body: Any) -> dict[str, Any]:
        """Call a task server operation as the administrator: a POST with a JSON body, or a GET if there are no
        fields.
        """
        headers = {"Authorization": f"Bearer {self.administrators[number]['access']}"}
        method = "POST" if body else "GET"
        answer = await self.servers[number].http.request(
            method, f"/api/v1/taskserver/{path}", json=body or None, headers=headers
        )
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
async def clocks(
    tcp_open: EmbeddedPostgres,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
    clock_ahead: Callable[[int], Mapping[str, str]],
) -> AsyncIterator[Clocks]:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(running_valkey())
        directory = tmp_path_factory.mktemp("clocks")
        plain = await stack.enter_async_context(installed(tcp_open, migrated_template, directory))
        settings = {"desktop__task_server__beat_enabled": "true", "desktop__task_server__concurrency": str(CONCURRENCY)}
        place = plain.with_task_server(broker.url, lease_s=LEASE_S)
        place = replace(place, environment={**place.environment, **settings})
        made = await program.run(
            "create-user",
            "root",
            "--admin",
            "--password-stdin",
            cwd=directory,
            env=place.settings(desktop__database__url=place.database_dsn, desktop__data_dir=str(directory / "data")),
            stdin=PASSWORD,
        )
        assert made.code == 0, made.err
        (early, late), workers, _ = [
            [await stack.enter_async_context(one(variables=clock_ahead(ahead))) for ahead in AHEAD_S]
            for one in (place.server, place.worker, place.beat)
        ]
        yield Clocks(place, (early, late), tuple(workers), (await login(early), await login(late)))


async def login(node: Node) -> Mapping[str, str]:
    """Log in as the administrator on this server; return the tokens, which it has signed."""
    answer = await node.http.post("/api/v1/token/auth", json={"username": "root", "password": PASSWORD})
    assert answer.status_code == 200, answer.text
    return answer.json()


def moment(text: str) -> datetime:
    """Parse a time from a response, which is in UTC and has no fractional seconds."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def issued_at(token: str) -> int:
    """Return the time at which the token was issued."""
    content = token.split(".")[1]
    return json.loads(urlsafe_b64decode(content + "=" * (-len(content) % 4)))["iat"]


async def test_tokens_of_each_server_are_immediately_valid_on_the_other(clocks: Clocks) -> None:
    for number, ahead_s in enumerate(AHEAD_S):
        before = await clocks.now()
        tokens, other = await login(clocks.servers[number]), clocks.servers[1 - number].http
        # This also verifies that the clocks do differ.
        own_s = issued_at(tokens["access"]) - before.timestamp()
        assert ahead_s - 1 <= own_s <= ahead_s + SLACK_S
        bearer = {"Authorization": f"Bearer {tokens['access']}"}
        assert (await other.get("/api/v1/editor/get_history", headers=bearer)).status_code == 200
        assert (await other.post("/api/v1/token/verify", json={"token": tokens["access"]})).status_code == 200
        renewed = await other.post("/api/v1/token/refresh", json={"refresh": tokens["refresh"]})
        assert renewed.status_code == 200, renewed.text
        bearer = {"Authorization": f"Bearer {renewed.json()['access']}"}
        back = await clocks.servers[number].http.get("/api/v1/editor/get_history", headers=bearer)
        assert back.status_code == 200


async def test_all_processes_count_as_alive(clocks: Clocks) -> None:
    for number in range(2):
        status = await clocks.administer("status", number)
        assert status["beat_running"]
        assert len(status["workers"]) == 2
        for one in status["workers"]:
            age = await clocks.now() - moment(one["heartbeat"])
            assert abs(age) < timedelta(seconds=SLACK_S)


async def test_statements_keep_their_owners_and_use_database_time(clocks: Clocks) -> None:
    before = (await clocks.now()).replace(microsecond=0)
    operations = await clocks.fill(f"SELECT pg_sleep({LASTING_S})")
    for node in clocks.servers:
        for operation in operations:
            status = (await node.status(operation, wait=60))["query_status"]
            assert status["state"] == "available", status
            submitted, started, ended = (moment(status[name]) for name in ("submitted", "started", "ended"))
            assert before <= submitted <= started < ended <= await clocks.now()
            assert status["elapsed_ms"] >= LASTING_S * 1000
            assert len((await node.page(operation))["data"]) == 1
            assert (await node.file(operation)).count(b"\n") == 2
    assert {await clocks.column(operation, "fence") for operation in operations} == {1}
    owners = {await clocks.column(operation, "owner") for operation in operations}
    assert owners == {worker.owner for worker in clocks.workers}
    kept = {await clocks.column(operation, "expires_at - ended_at") for operation in operations}
    assert kept == {timedelta(hours=24)}


async def test_statements_may_use_their_whole_time_limit(clocks: Clocks) -> None:
    operations = await clocks.fill("SELECT pg_sleep(60)", timeout=SHORT_S)
    for operation in operations:
        assert await clocks.servers[0].state(operation, wait=60) == "timed_out"
    owners = {await clocks.column(operation, "owner") for operation in operations}
    assert owners == {worker.owner for worker in clocks.workers}
    lasted = [await clocks.column(operation, "ended_at - recorded_at") for operation in operations]
    assert min(lasted) >= timedelta(seconds=SHORT_S - 0.1), lasted
    assert max(lasted) < timedelta(seconds=SHORT_S + SLACK_S), lasted


@pytest.mark.parametrize("number", [0, 1], ids=["early", "late"])
async def test_server_sessions_use_database_time(clocks: Clocks, number: int) -> None:
    node = clocks.servers[number]
    before = (await clocks.now()).replace(microsecond=0)
    created = (await node.post_ok("editor/create_session", session='{"type": "postgresql"}'))["session"]
    session, sql = created["id"], "select last_used_at + make_interval(secs => idle_s) from sessions where id = $1"
    expires_at = await query(clocks.place.database_dsn, sql, session)
    assert moment(created["expires_at"]) == expires_at.replace(microsecond=0)
    operation = await node.submit("postgresql", "SELECT pg_sleep(60)", session_id=session, timeout=SHORT_S)
    assert await node.state(operation, wait=60) == "timed_out"
    lasted = await clocks.column(operation, "ended_at - recorded_at")
    assert timedelta(seconds=SHORT_S - 0.1) <= lasted < timedelta(seconds=SHORT_S + SLACK_S)
    assert expires_at > before
    await node.post_ok("editor/close_session", session=json.dumps({"type": "postgresql", "id": session}))


async def test_idempotency_key_is_replayed_on_the_other_server(clocks: Clocks) -> None:
    for first, second in (clocks.servers, clocks.servers[::-1]):
        key = {"client_request_id": f"key-{first.process.pid}"}
        made = await first.execute("postgresql", "SELECT 1", **key)
        again = await second.execute("postgresql", "SELECT 1", **key)
        assert made.json()["history_uuid"] == again.json()["history_uuid"]
        assert "Idempotency-Replayed" not in made.headers
        assert again.headers["Idempotency-Replayed"] == "true"


async def test_schedule_fires_once_and_on_time(clocks: Clocks) -> None:
    schedule = {
        "name": "clocks", "kind": "statement", "connector": "postgresql", "statement": "SELECT 'by schedule'",
        "interval_s": 10,
    }  # fmt: skip
    made = (await clocks.administer("schedules/new", schedule=schedule))["schedule"]
    fires = [moment(made["next_run"])]
    runs = "select count(*) from statements where statement like '%by schedule%'"

    async def has_fired() -> bool:
        return await query(clocks.place.database_dsn, runs) >= len(fires)

    await eventually(has_fired, within_s=10 + SLACK_S)
    shown = (await clocks.administer(f"schedules/{made['id']}", 1))["schedule"]
    fires.append(moment(shown["next_run"]))
    await eventually(has_fired, within_s=10 + SLACK_S)
    switched_off = {"id": made["id"], "enabled": False}
    await clocks.administer("schedules/update", 1, schedule=switched_off)
    recorded = await query(
        clocks.place.database_dsn,
        "select array_agg(recorded_at order by recorded_at) from statements where statement like '%by schedule%'",
    )
    for fire in fires:
        assert len([at for at in recorded if timedelta(0) <= at - fire < timedelta(seconds=SLACK_S)]) == 1
