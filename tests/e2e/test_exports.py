"""Servers are killed while they export into tables, and share the embedded databases (Contract exports 8)."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.installation import TAKEN_OVER_WITHIN_S, Installation, Node, eventually, installed, query

from queryserver.platform.embedded.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROWS = 600_000
SERIES = f"SELECT n, repeat('x', 60) AS s FROM generate_series(1, {ROWS}) AS n"


@pytest.fixture
async def place(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path: Path
) -> AsyncIterator[Installation]:
    """An installation for one test."""
    async with installed(postgres, migrated_template, tmp_path) as place:
        yield place


async def export(node: Node, operation: str, connector: str, **fields: Any) -> str:
    """Export a stored result into the table `arrived`; return the operation of the export."""
    answer = await node.post(
        "editor/export_result", operationId=operation, connector=connector, table="arrived", **fields
    )
    assert answer.status_code == 202, answer.text
    return answer.json()["history_uuid"]


async def write_into(node: Node, source: str, connector: str) -> str:
    """Start a statement whose rows go into the table `arrived`; return its operation."""
    into = json.dumps({"connector": connector, "table": "arrived"})
    return await node.submit(source, SERIES, into=into)


async def is_loading(place: Installation) -> bool:
    """Return whether a load is in progress: a staging table is recorded, or PostgreSQL is copying rows."""
    under_way = "select (select count(*) from import_leftovers) + (select count(*) from pg_stat_progress_copy)"
    return bool(await query(place.database_dsn, under_way))


async def require_clean(place: Installation, node: Node, connector: str, *, tables: int) -> None:
    """Wait until no table of a broken load is recorded, and check that `tables` tables with these names exist."""

    async def is_clean() -> bool:
        return not await query(place.database_dsn, "select count(*) from import_leftovers")

    await eventually(is_clean, within_s=40)
    sql = "SELECT count(*) FROM information_schema.tables WHERE table_name = 'arrived' OR table_name LIKE '%qs_import%'"
    assert await node.value(connector, sql) == tables


@pytest.mark.exports(21)
@pytest.mark.parametrize("connector", ["duckdb", "postgresql"])
async def test_export_whose_server_was_killed_is_run_again(place: Installation, connector: str) -> None:
    async with place.server() as victim:
        source = await victim.finished("postgresql", SERIES)
        operation = await export(victim, source, connector)
        await victim.process.kill9_in(lambda: is_loading(place))
    async with place.server() as after:
        body = await after.status(operation, wait=TAKEN_OVER_WITHIN_S + 30)
        assert body["query_status"]["state"] == "available", body
        assert (await after.page(operation))["data"][0][0] == ROWS
        log = (await after.post_ok("editor/get_logs", operationId=operation))["logs"]
        assert "The stored result will be read again." in log
        assert await after.value(connector, "SELECT count(DISTINCT n) FROM arrived") == ROWS
        await require_clean(place, after, connector, tables=1)


@pytest.mark.exports(22)
@pytest.mark.parametrize("connector", ["duckdb", "postgresql"])
async def test_killed_into_leaves_neither_table_nor_staging(place: Installation, connector: str) -> None:
    async with place.server() as victim:
        operation = await write_into(victim, "postgresql", connector)
        await victim.process.kill9_in(lambda: is_loading(place))
    async with place.server() as after:
        body = await after.status(operation, wait=TAKEN_OVER_WITHIN_S)
        assert (body["query_status"]["state"], body["code"]) == ("failed", "outcome_unknown")
        await require_clean(place, after, connector, tables=0)


@pytest.mark.exports(23)
async def test_export_is_never_run_again_once_its_rows_may_be_published(place: Installation) -> None:
    """The server dies between the publication and the record of the end, so an append must not happen twice."""
    async with place.server() as victim:
        source = await victim.finished("postgresql", SERIES)
        operation = await export(victim, source, "postgresql", if_exists="append")

        async def is_published() -> bool:
            sql = "select destination ? 'is_published' from statements where id = $1::uuid"
            return bool(await query(place.database_dsn, sql, operation))

        await victim.process.kill9_in(is_published)
    async with place.server() as after:
        body = await after.status(operation, wait=TAKEN_OVER_WITHIN_S)
        state = body["query_status"]["state"]
        assert state == "available" or body["code"] == "outcome_unknown", body
        sql = "SELECT count(*) FROM information_schema.tables WHERE table_name = 'arrived'"
        if await after.value("postgresql", sql):
            assert await after.value("postgresql", "SELECT count(*) FROM arrived") == ROWS


@pytest.mark.exports(24)
async def test_rows_reach_the_embedded_database_of_another_server(place: Installation) -> None:
    async with place.server() as holder, place.server() as other:
        assert await holder.value("duckdb", "SELECT 1") == 1
        operation = await write_into(other, "postgresql", "duckdb")
        body = await other.status(operation, wait=60)
        assert body["query_status"]["state"] == "available", body
        source = await other.finished("postgresql", "SELECT 1 AS n, 'again' AS s")
        more = await export(other, source, "duckdb", if_exists="append")
        assert (await other.status(more, wait=60))["query_status"]["state"] == "available"
        assert await holder.value("duckdb", "SELECT count(*) FROM arrived") == ROWS + 1


@pytest.mark.exports(24)
async def test_into_between_the_databases_of_two_servers_ends_with_advice(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path: Path
) -> None:
    """A third process holds the target, whichever of the two servers receives the call."""
    more = {"second": {"interface": "duckdb", "dialect": "duckdb", "options": {"path": "second.duckdb"}}}
    held = """insert into engine_owners (connector, owner, lease_until)
        values ('duckdb:second.duckdb', 'third', now() + interval '10 min')"""
    async with installed(postgres, migrated_template, tmp_path, more) as place:
        await query(place.database_dsn, held)
        async with place.server() as holder, place.server() as other:
            assert await holder.value("duckdb", "SELECT 1") == 1
            for node in (holder, other):
                into = json.dumps({"connector": "second", "table": "arrived"})
                body = await node.status(await node.submit("duckdb", "SELECT 1 AS n", into=into), wait=60)
                assert (body["query_status"]["state"], body["code"]) == ("failed", "rejected"), body
                assert "export its result" in body["message"]
