"""Several servers use one service database and one results directory (Contract editor 1, 3.3)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle

import httpx
import pytest
from tests.e2e.installation import (
    TAKEN_OVER_WITHIN_S,
    TERMINAL,
    Installation,
    Node,
    at_work,
    eventually,
    installed,
    is_at_work,
    query,
)
from tests.fixtures.database import execute
from tests.timing import at_best, soon

from queryserver.identity.passwords import Passwords
from queryserver.platform.embedded.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
async def place(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path_factory
) -> AsyncIterator[Installation]:
    """The installation that all servers in this file share."""
    async with installed(postgres, migrated_template, tmp_path_factory.mktemp("instances")) as place:
        yield place


@pytest.fixture(scope="module")
async def pair(place: Installation) -> AsyncIterator[tuple[Node, Node]]:
    """Two servers. The first one owns the DuckDB file."""
    async with place.server() as first, place.server() as second:
        yield first, second


@pytest.mark.item(23)
@pytest.mark.parametrize("dialect", ["postgresql", "sqlite", "duckdb"])
async def test_calls_may_alternate_between_instances(pair: tuple[Node, Node], dialect: str) -> None:
    nodes = cycle(pair)
    for number in range(4):
        operation = await next(nodes).submit(dialect, f"SELECT {number} AS n")
        next(nodes)
        assert (await next(nodes).status(operation, wait=10))["query_status"]["state"] == "available"
        assert [await next(nodes).page(operation) for _ in range(2)][1]["data"] == [[number]]
        for call in ("get_logs", "fetch_result_size", "fetch_result_metadata", "cancel_statement"):
            assert (await next(nodes).post_ok(f"editor/{call}", operationId=operation))["status"] == 0
        assert (await next(nodes).post_ok("editor/close_statement", operationId=operation))["result"]["status"] == 0
        assert (await next(nodes).post_ok("editor/close_statement", operationId=operation))["result"]["status"] == -1
        assert await next(nodes).state(operation) == "closed"


@pytest.mark.item(23)
async def test_large_result_is_read_from_both_instances(pair: tuple[Node, Node]) -> None:
    sql = "SELECT n, md5(n::text) FROM generate_series(1, 50000) AS n"
    operation = await pair[0].finished("postgresql", sql, limit=60_000)
    pages = [await node.page(operation, start_row=30_000, rows=1000) for node in pair]
    assert pages[0] == pages[1]
    assert pages[0]["data"][0][0] == 30_001
    assert await pair[0].file(operation) == await pair[1].file(operation)


@pytest.mark.item(13)
@pytest.mark.item(23)
async def test_wait_on_another_instance_returns_on_completion(pair: tuple[Node, Node]) -> None:
    first, second = pair

    async def wait() -> str:
        operation = await first.submit("postgresql", "SELECT pg_sleep(1.5)")
        return await second.state(operation, wait=30)

    assert await soon(wait, within_s=1.5 + 1) == "available"


@pytest.mark.item(23)
@pytest.mark.item(36)
@pytest.mark.parametrize("call", ["cancel_statement", "close_statement"])
async def test_cancel_on_another_instance_reaches_engine(
    pair: tuple[Node, Node], postgres: EmbeddedPostgres, call: str
) -> None:
    first, second = pair

    async def stop() -> tuple[float, None]:
        operation = await first.submit("postgresql", f"SELECT pg_sleep(60), 'stop by {call}'")
        await first.until(operation, lambda status: status["state"] == "running")
        await eventually(lambda: is_at_work(postgres.admin_dsn(), f"stop by {call}"))
        started = time.monotonic()
        assert (await second.post_ok(f"editor/{call}", operationId=operation))["status"] == 0
        assert await first.state(operation, wait=30) == "canceled"
        took_s = time.monotonic() - started
        assert await at_work(postgres.admin_dsn(), f"stop by {call}") == 0
        return took_s, None

    await at_best(stop, below_s=3)


@pytest.mark.item(23)
async def test_duckdb_file_is_used_by_one_process_for_all(pair: tuple[Node, Node]) -> None:
    first, second = pair
    await first.finished("duckdb", "CREATE OR REPLACE TABLE t AS SELECT 1 AS n")
    await second.finished("duckdb", "INSERT INTO t SELECT 2")
    # No sweep is needed, because the server is notified.
    assert await soon(lambda: second.value("duckdb", "SELECT sum(n)::INTEGER FROM t"), within_s=2) == 3
    assert await first.value("duckdb", "SELECT count(*)::INTEGER FROM t") == 2


@pytest.mark.item(57)
async def test_duckdb_session_is_opened_by_the_process_that_holds_the_file(pair: tuple[Node, Node]) -> None:
    first, second = pair
    created = await second.post_ok("editor/create_session", session='{"type": "duckdb"}')
    session = created["session"]["id"]
    await second.finished("duckdb", "CREATE TEMP TABLE there AS SELECT 7 AS n", session_id=session)
    for node in (first, second):
        assert await node.value("duckdb", "SELECT n FROM there", session_id=session) == 7
    closed = f'{{"type": "duckdb", "id": {session}}}'
    assert (await second.post_ok("editor/close_session", session=closed))["status"] == 0
    gone = await first.post("editor/execute/duckdb", statement="SELECT n FROM there", session_id=session, wait=10)
    assert gone.json()["code"] == "session_lost"


@pytest.mark.item(57)
async def test_session_statements_run_on_the_server_of_the_session(pair: tuple[Node, Node]) -> None:
    first, second = pair
    created = await first.post_ok("editor/create_session", session='{"type": "postgresql"}')
    session = created["session"]["id"]
    await second.finished("postgresql", "CREATE TEMP TABLE here AS SELECT 7 AS n", session_id=session)
    for node in (first, second, first, second):
        assert await node.value("postgresql", "SELECT n FROM here", session_id=session) == 7
    foreign = await second.post(
        "editor/execute/postgresql", user="bob", statement="SELECT n FROM here", session_id=session
    )
    assert (foreign.status_code, foreign.json()["code"]) == (404, "session_not_found")


async def test_closing_session_from_any_instance_stops_its_statements(
    pair: tuple[Node, Node], postgres: EmbeddedPostgres
) -> None:
    first, second = pair

    async def close() -> tuple[float, int]:
        created = await first.post_ok("editor/create_session", session='{"type": "postgresql"}')
        session = created["session"]["id"]
        operation = await first.submit("postgresql", "SELECT pg_sleep(60), 'in a session'", session_id=session)
        await first.until(operation, lambda status: status["state"] == "running")
        started = time.monotonic()
        await second.post_ok("editor/close_session", session=f'{{"type": "postgresql", "id": {session}}}')
        assert await second.state(operation, wait=30) == "canceled"
        return time.monotonic() - started, session

    session = await at_best(close, below_s=2)
    assert await at_work(postgres.admin_dsn(), "in a session") == 0
    gone = await second.post_ok("editor/execute/postgresql", statement="SELECT 1", session_id=session)
    final = (await second.post("editor/check_status", operationId=gone["history_uuid"], wait=10)).json()
    assert (final["status"], final["code"]) == (1, "session_lost")


@pytest.mark.item(44)
async def test_one_idempotency_key_creates_one_operation_across_instances(pair: tuple[Node, Node]) -> None:
    calls = [
        node.post_ok("editor/execute/postgresql", statement="SELECT 1", client_request_id="across instances")
        for node in (*pair, *pair)
    ]
    assert len({body["history_uuid"] for body in await asyncio.gather(*calls)}) == 1


@pytest.mark.item(50)
async def test_script_keeps_its_session_across_instances(pair: tuple[Node, Node]) -> None:
    first, second = pair
    script = "CREATE TEMP TABLE s AS SELECT 5 AS n; SELECT n FROM s; SELECT n + 1 FROM s"
    operation = await first.finished("postgresql", script)
    seen = []
    for node in (second, first):
        operation = (await node.post_ok("editor/execute/postgresql", operationId=operation, wait=10))["history_uuid"]
        seen.append((await node.page(operation))["data"])
    assert seen == [[[5]], [[6]]]
    unrelated = await first.submit("postgresql", "SELECT n FROM s")
    assert (await first.status(unrelated, wait=10))["code"] == "engine_error"


def bearing(access: str) -> dict[str, str]:
    """Return the headers for a call with this access token."""
    return {"Authorization": f"Bearer {access}"}


async def log_in(node: Node, username: str, password: str) -> httpx.Response:
    """Log in on this server; return the response."""
    return await node.http.post("/api/v1/token/auth", json={"username": username, "password": password})


async def give_password(place: Installation, username: str, password: str) -> None:
    """Set a user's password. The users of an installation have none at first."""
    with closing(Passwords()) as passwords:
        new = await passwords.hash(password)
    changed = "update users set password_hash = $2 where username = $1 returning id"
    assert await query(place.database_dsn, changed, username, new)


@pytest.mark.platform(25)
async def test_token_is_valid_and_revoked_on_both_instances(place: Installation, pair: tuple[Node, Node]) -> None:
    first, second = pair
    await give_password(place, "eve", "the password of eve")
    history = "/api/v1/editor/get_history"
    login = await log_in(first, "eve", "the password of eve")
    access = login.json()["access"]
    for node in pair:
        assert (await node.http.get(history, headers=bearing(access))).status_code == 200
    renewed = await second.http.post("/api/v1/token/refresh", json={"refresh": login.json()["refresh"]})
    assert (await first.http.get(history, headers=bearing(renewed.json()["access"]))).status_code == 200
    assert (await first.http.post("/api/v1/token/revoke", json={"token": access})).json() == {}
    for node in (second, first):
        refused = await node.http.get(history, headers=bearing(access))
        assert (refused.status_code, refused.json()["code"]) == (401, "token_not_valid")


@pytest.mark.platform(34)
async def test_failed_logins_on_both_instances_are_counted_together(
    place: Installation, pair: tuple[Node, Node]
) -> None:
    await give_password(place, "bob", "the password of bob")
    for name in ("bob", "nobody"):
        nodes = cycle(pair)
        statuses = [(await log_in(next(nodes), name, "no password of theirs")).status_code for _ in range(6)]
        assert statuses == [401] * 5 + [429]
    for node in pair:
        assert (await log_in(node, "bob", "the password of bob")).json()["code"] == "login_throttled"


@dataclass
class Survival:
    """Operations of a killed server, and their outcome as the surviving server reports it."""

    survivor: Node
    operations: dict[str, str]
    ended_after_s: dict[str, float]
    files: dict[str, bytes]
    session: int


@pytest.fixture(scope="module")
async def survival(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path_factory
) -> AsyncIterator[Survival]:
    """Start two servers, and kill the one that runs all statements."""
    async with installed(postgres, migrated_template, tmp_path_factory.mktemp("survival")) as place:
        await execute(place.users_dsn, "CREATE SEQUENCE sent; CREATE SEQUENCE unsent")
        async with place.server() as victim, place.server() as survivor:
            sql = "SELECT n, md5(n::text) FROM generate_series(1, 200000) AS n"
            operations = {
                "inline": await victim.finished("postgresql", "SELECT 1 AS one"),
                "segments": await victim.finished("postgresql", sql, limit=200_000),
                "table": await victim.finished("duckdb", "CREATE TABLE kept AS SELECT 42 AS n"),
            }
            files = {name: await victim.file(operations[name]) for name in ("inline", "segments")}
            session = (await victim.post_ok("editor/create_session", session='{"type": "postgresql"}'))["session"]["id"]
            operations["sent"] = await victim.submit("postgresql", "SELECT nextval('sent'), pg_sleep(60)", user="bob")
            operations["duckdb sent"] = await victim.submit(
                "duckdb", "SELECT count(*) FROM range(100000) a, range(10000000) b WHERE a.range % 7 = b.range % 11"
            )
            sleep = "SELECT pg_sleep(60), {}"
            others = [await victim.submit("postgresql", sleep.format(one), user="bob") for one in range(7)]
            for one in (operations["sent"], *others):  # the survivor would run any statements that are still waiting
                await victim.until(one, lambda status: status["state"] == "running", user="bob")
            await victim.until(operations["duckdb sent"], lambda status: status["state"] == "running")
            operations["unsent"] = await victim.submit(
                "postgresql", "SELECT nextval('unsent'), ?", user="bob", parameters='["a value"]'
            )
            assert await victim.state(operations["unsent"], user="bob") == "waiting"
            await victim.process.kill9()
            operations["submitted after"] = await survivor.submit("duckdb", "SELECT n FROM kept")
            killed = time.monotonic()
            ended = {}
            for name, user in (("sent", "bob"), ("duckdb sent", "ana"), ("unsent", "bob"), ("submitted after", "ana")):
                await survivor.state(operations[name], user=user, wait=30)
                ended[name] = time.monotonic() - killed
            yield Survival(survivor, operations, ended, files, session)


@pytest.mark.item(25)
@pytest.mark.parametrize(("name", "user"), [("sent", "bob"), ("duckdb sent", "ana")])
async def test_sent_statement_of_killed_instance_ends_as_unknown(survival: Survival, name: str, user: str) -> None:
    body = await survival.survivor.status(survival.operations[name], user=user)
    assert (body["query_status"]["state"], body["code"]) == ("failed", "outcome_unknown")
    assert survival.ended_after_s[name] < TAKEN_OVER_WITHIN_S


@pytest.mark.item(25)
async def test_unsent_statement_of_killed_instance_runs_once(survival: Survival) -> None:
    operation = survival.operations["unsent"]
    assert await survival.survivor.state(operation, user="bob") == "available"
    assert (await survival.survivor.page(operation, user="bob"))["data"] == [[1, "a value"]]
    assert survival.ended_after_s["unsent"] < TAKEN_OVER_WITHIN_S


@pytest.mark.item(25)
async def test_engine_received_each_statement_at_most_once(survival: Survival) -> None:
    seen = [
        await survival.survivor.value("postgresql", f"SELECT last_value FROM {name} WHERE is_called")
        for name in ("sent", "unsent")
    ]
    assert seen == [1, 1]


async def test_surviving_server_takes_over_duckdb_file(survival: Survival) -> None:
    operation = survival.operations["submitted after"]
    assert await survival.survivor.state(operation) == "available"
    assert (await survival.survivor.page(operation))["data"] == [[42]]
    assert survival.ended_after_s["submitted after"] < TAKEN_OVER_WITHIN_S


@pytest.mark.item(23)
async def test_results_of_killed_instance_are_unchanged(survival: Survival) -> None:
    for name, bytes_before in survival.files.items():
        assert await survival.survivor.file(survival.operations[name]) == bytes_before


async def test_log_of_taken_over_statement_continues_without_repetition(survival: Survival) -> None:
    operation, lines, start = survival.operations["sent"], [], 0
    for _ in range(3):
        answer = await survival.survivor.post_ok(
            "editor/get_logs", user="bob", operationId=operation, **{"from": start, "size": 2}
        )
        lines += answer["logs"].split("\n") if answer["logs"] else []
        start = answer["next_from"]
    whole = await survival.survivor.post_ok("editor/get_logs", user="bob", operationId=operation)
    assert "\n".join(lines) == whole["logs"]
    assert "has failed" in lines[-1]


async def test_session_of_killed_instance_is_lost_and_not_replaced(survival: Survival) -> None:
    answer = await survival.survivor.post(
        "editor/execute/postgresql", statement="SELECT 1", session_id=survival.session, wait=10
    )
    assert answer.json()["code"] in {"session_lost", "session_not_found"}


async def test_no_statement_waits_or_runs_after_a_kill(survival: Survival) -> None:
    async def all_ended() -> bool:
        node = survival.survivor
        history = await node.http.get("/api/v1/editor/get_history", headers=node.headers("bob"))
        return all(entry["data"]["state"] in TERMINAL for entry in history.json()["history"])

    await eventually(all_ended)


@pytest.mark.item(24)
async def test_results_survive_restart_of_all_instances(place: Installation) -> None:
    sql = "SELECT n, md5(n::text), n / 7.0 FROM generate_series(1, 200000) AS n"
    async with place.server() as before:
        small = await before.finished("sqlite", "SELECT 'kept', 1.5, NULL")
        large = await before.finished("postgresql", sql, limit=200_000)
        pages = [await before.page(small), await before.page(large, start_row=123_456, rows=500)]
        files = [await before.file(one, kind=kind) for one in (small, large) for kind in ("csv", "arrow")]
    async with place.server() as after:
        assert [await after.page(small), await after.page(large, start_row=123_456, rows=500)] == pages
        assert [await after.file(one, kind=kind) for one in (small, large) for kind in ("csv", "arrow")] == files
        assert (await after.post_ok("editor/get_logs", operationId=large))["logs"]
