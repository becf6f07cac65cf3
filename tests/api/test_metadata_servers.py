"""Metadata calls with two instances, under load, and on a database with 30,000 tables (Contract editor 14)."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.api.conftest import ApiOpener
from tests.api.dialects import DUCKDB, Dialect
from tests.api.driving import Api, Caller, until
from tests.api.metadata_objects import Shop, make_shop
from tests.fakes.catalog import table
from tests.fixtures.database import execute
from tests.timing import at_best, soon

from queryserver.statements.sessions import NewSession, Sessions

DUCK = {"snippet": '{"type": "duckdb"}'}


@dataclass(frozen=True, slots=True)
class TwoInstances:
    """Two instances on one database, called by the same user. The first instance owns the DuckDB file."""

    holder: Caller
    other: Caller
    shop: Shop
    other_api: Api


@pytest.fixture
async def pair(small_api: ApiOpener) -> AsyncIterator[TwoInstances]:
    """Two instances that the same user calls."""
    async with small_api() as first, small_api() as second:
        holder = await first.user()
        shop = await make_shop(holder, DUCKDB)
        yield TwoInstances(holder, Caller(second, holder.username, holder.headers), shop, second)


class TestDuckdbFile:
    async def test_both_instances_return_the_same_lists_and_descriptions(self, pair: TwoInstances):
        shop = pair.shop
        for path in ("", "/main", f"/main/{shop.items}", f"/main/{shop.items}/name"):
            answers = [
                await one.post_ok(f"editor/autocomplete{path}", refresh="true", **DUCK)
                for one in (pair.other, pair.holder)
            ]
            assert answers[0] == answers[1]
        described = await pair.other.post_ok(f"editor/describe/main/{shop.items}", source_type="duckdb")
        assert [one["name"] for one in described["cols"]] == ["id", "name", "owner_id"]

    async def test_both_instances_return_the_same_samples_statistics_and_plans(self, pair: TwoInstances):
        shop, other = pair.shop, pair.other
        sample = await other.post_ok(f"editor/sample/main/{shop.items}", **DUCK)
        assert sample == await pair.holder.post_ok(f"editor/sample/main/{shop.items}", **DUCK)
        assert len(sample["rows"]) == 3
        started = await other.post_ok(f"duckdb/analyze/main/{shop.items}")
        assert (await other.ended(started["operationId"]))["query_status"]["state"] == "success"
        plan = await other.post_ok("editor/explain/duckdb", statement=f"SELECT * FROM {shop.items}")
        assert shop.items in plan["explanation"]

    async def test_forwarded_failures_are_unchanged(self, pair: TwoInstances):
        other, shop = pair.other, pair.shop
        assert await other.refused("editor/autocomplete/nope", **DUCK) == (404, 1, "database_not_found")
        assert await other.refused("editor/sample/main/nope", **DUCK) == (404, 1, "table_not_found")
        assert await other.refused(f"duckdb/analyze/main/{shop.items}/nope") == (404, 1, "column_not_found")
        refused = await other.post_ok("editor/explain/duckdb", statement="SELEC 1")
        assert (refused["status"], refused["code"]) == (1, "engine_error")

    async def test_forwarding_leaves_no_records(self, pair: TwoInstances):
        await pair.other.post_ok("editor/autocomplete", **DUCK)
        await pair.other.refused("editor/autocomplete/nope", **DUCK)
        assert await pair.other_api.database.value("select count(*) from forwarded_looks") == 0


async def test_session_has_its_database_on_every_opening_server(small_api: ApiOpener):
    async with small_api() as first, small_api() as second:
        ana, held = await first.user(), first.services.statements.sessions.runner.sessions
        await ana.run("duckdb", "CREATE SCHEMA warehouse; SELECT 1")
        for caller in (ana, Caller(second, ana.username, ana.headers)):
            fields = {"session": {"type": "duckdb"}, "database": "warehouse"}
            answer = await caller.send("POST", "editor/create_session", json=fields)
            assert (answer.status_code, answer.headers.get("X-Unknown-Fields")) == (200, None)
            session = answer.json()["session"]["id"]
            body = await caller.run("duckdb", "SELECT current_schema()", session_id=session, database="main")
            assert (await caller.page(body["history_uuid"]))["data"] == [["warehouse"]]
            # Statements in a session run in its current database. They can change which database that is.
            await caller.run("duckdb", "USE main", session_id=session)
            body = await caller.run("duckdb", "SELECT current_schema()", session_id=session)
            assert (await caller.page(body["history_uuid"]))["data"] == [["main"]]
            closing = {"session": {"type": "duckdb", "id": session}}
            assert (await caller.send("POST", "editor/close_session", json=closing)).status_code == 200
            await until(lambda closed=session: closed not in held.ids())


async def test_session_is_closed_after_its_caller_disconnects(small_api: ApiOpener, monkeypatch: pytest.MonkeyPatch):
    """The instance that owns the DuckDB file finishes opening the session after the other instance has stopped waiting
    for it.
    """
    async with small_api() as first, small_api() as second:
        ana = await first.user()
        await ana.run("duckdb", "SELECT 1")
        holder, is_open, goes_on = first.services.statements.sessions, asyncio.Event(), asyncio.Event()
        open_here = Sessions._open_here

        async def opens_slowly(sessions: Sessions, *arguments: Any) -> bool:
            opened = await open_here(sessions, *arguments)
            is_open.set()
            await goes_on.wait()
            return opened

        monkeypatch.setattr(Sessions, "_open_here", opens_slowly)
        user = await second.services.accounts.directory.user(
            await second.database.value("select id from users where username = $1", ana.username)
        )
        assert user is not None
        new = NewSession(connector="duckdb", properties=(), settings={}, credentials=None)
        asked = asyncio.create_task(second.services.statements.sessions.create(user, new))
        await is_open.wait()
        assert holder.runner.sessions.ids()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        goes_on.set()

        async def is_closed() -> bool:
            recorded = await first.database.value("select count(*) from sessions where named and closed_at is null")
            return not recorded and not holder.runner.sessions.ids()

        await until(is_closed)


async def test_plan_comes_from_the_instance_holding_the_session(small_api: ApiOpener):
    async with small_api() as first, small_api() as second:
        ana = await first.user()
        elsewhere = Caller(second, ana.username, ana.headers)
        session = (await ana.post_json("editor/create_session", session={"type": "postgresql"})).json()["session"]["id"]
        await ana.run("postgresql", "CREATE TEMPORARY TABLE only_there (a int)", session_id=session)
        asked = {"statement": "SELECT * FROM only_there", "session_id": session}
        assert "only_there" in (await elsewhere.post_ok("editor/explain/postgresql", **asked))["explanation"]


async def test_read_forwarded_to_a_dead_instance_times_out(small_api: ApiOpener, database_dsn: str):
    await execute(
        database_dsn,
        "INSERT INTO engine_owners (connector, owner, lease_until)"
        " VALUES ('duckdb:api.duckdb', 'dead', now() + interval '60 s')",
    )
    async with small_api(metadata_timeout_s=1) as api:
        ana = await api.user()
        assert await ana.refused("editor/autocomplete", **DUCK) == (503, -4, "engine_timeout")

        async def cleaned_up() -> bool:
            return not await api.database.value("select count(*) from forwarded_looks")

        await until(cleaned_up)


SHELF = {"snippet": '{"type": "shelf"}'}
_TABLES = 30_000


async def longest_pause(until: asyncio.Event) -> float:
    """Measure the delays of the event loop until the event is set; return the longest in seconds."""
    longest, last = 0.0, time.monotonic()
    while not until.is_set():
        await asyncio.sleep(0.005)
        now = time.monotonic()
        longest, last = max(longest, now - last - 0.005), now
    return longest


@pytest.mark.slow
async def test_cached_list_of_many_tables_is_returned_quickly_without_the_engine(small_api: ApiOpener):
    async with small_api() as api:
        ana = await api.user()
        content = {f"table_{number}": table("shop", f"table_{number}", comment="goods") for number in range(_TABLES)}
        api.shelf.content["shop"] = content
        first = await ana.post_ok("editor/autocomplete/shop", **SHELF)
        assert [one["name"] for one in first["tables_meta"]] == [f"table_{number}" for number in range(_TABLES)]
        # The call takes 30 ms on an idle machine. The limit takes other tests on the machine into account.
        wanted = {"prefix": "TABLE_29", "limit": 100, "page": 12, **SHELF}
        page = await soon(lambda: ana.post_ok("editor/autocomplete/shop", **wanted), within_s=1)
        seen = (len(page["tables_meta"]), page["tables_meta"][-1]["name"], page["truncated"])
        assert seen == (11, "table_29999", False)
        assert api.shelf.looks == ["tables shop"]

        async def pause_while_all_are_told() -> tuple[float, int]:
            done = asyncio.Event()
            watching = asyncio.create_task(longest_pause(done))
            path = "/api/v1/editor/autocomplete/shop"
            response = await ana.api.http.post(path, data=SHELF, headers=dict(ana.headers))
            done.set()
            return await watching, len(response.content)

        # The 30,000 names are not parsed and serialized on the event loop.
        assert await at_best(pause_while_all_are_told, below_s=0.5) > _TABLES * 40


@pytest.mark.item(11)
@pytest.mark.timeout(120)
@pytest.mark.slow
async def test_metadata_calls_return_while_twenty_statements_run(api: Api, ana: Caller, bob: Caller, dialect: Dialect):
    shop = await make_shop(bob, dialect)
    busy = [(await ana.execute(dialect, dialect.slow))["history_uuid"] for _ in range(20)]
    await ana.running(busy[0])
    try:
        for path in (
            f"editor/autocomplete/{shop.schema}",
            f"editor/autocomplete/{shop.schema}/{shop.items}",
            f"editor/sample/{shop.schema}/{shop.items}",
        ):
            # The call takes one second on a dedicated machine. Here, twenty statements and the tests share a few cores.
            await soon(lambda path=path: bob.post_ok(path, snippet=shop.snippet, refresh="true"), within_s=3)
    finally:
        await asyncio.gather(*(ana.on(operation, "cancel_statement") for operation in busy))
