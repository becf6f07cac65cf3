"""The server is killed while it imports a file (Contract importer 13.4)."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.e2e.installation import TAKEN_OVER_WITHIN_S, Installation, Node, eventually, installed, query

from queryserver.platform.embedded.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
async def place(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path: Path
) -> AsyncIterator[Installation]:
    """An installation for one test."""
    async with installed(postgres, migrated_template, tmp_path) as place:
        yield place


async def create_table_response(node: Node, connector: str, content: bytes) -> httpx.Response:
    """Upload a file and call create_table to import it; return the response."""
    answer = await node.http.post(
        "/api/v1/importer/upload/file/", files={"file": ("some.csv", content)}, headers=node.headers()
    )
    fields = {
        "file_path": answer.json()["file_path"], "import_type": "local", "file_type": "csv", "has_header": "true",
        "connector": connector, "table": "arrived",
    }  # fmt: skip
    return await node.post("importer/create_table", **fields)


async def is_loading(place: Installation) -> bool:
    """Return whether a load is in progress: either a staging table is recorded, or PostgreSQL is copying rows. Loads
    into PostgreSQL are not recorded in import_leftovers.
    """
    under_way = "select (select count(*) from import_leftovers) + (select count(*) from pg_stat_progress_copy)"
    return bool(await query(place.database_dsn, under_way))


@pytest.mark.importer(56)
@pytest.mark.parametrize("connector", ["duckdb", "postgresql"])
async def test_kill_during_load_leaves_neither_table_nor_staging(place: Installation, connector: str) -> None:
    async with place.server() as victim:
        large = b"id,text\n" + b"".join(b"%d,%s\n" % (n, b"x" * 60) for n in range(600_000))
        operation = (await create_table_response(victim, connector, large)).json()["history_uuid"]
        await victim.process.kill9_in(lambda: is_loading(place))
    async with place.server() as after:
        body = await after.status(operation, wait=TAKEN_OVER_WITHIN_S)
        assert (body["query_status"]["state"], body["code"]) == ("failed", "outcome_unknown")

        async def is_clean() -> bool:
            return not await query(place.database_dsn, "select count(*) from import_leftovers")

        await eventually(is_clean, within_s=40)
        sql = (
            "SELECT count(*) FROM information_schema.tables"
            " WHERE table_name = 'arrived' OR table_name LIKE '%qs_import%'"
        )
        assert await after.value(connector, sql) == 0


@pytest.mark.importer(11)
async def test_uploaded_file_is_imported_by_the_server_that_holds_the_data(place: Installation) -> None:
    async with place.server() as holder, place.server() as other:
        assert await holder.value("duckdb", "SELECT 1") == 1
        answer = await create_table_response(other, "duckdb", b"id\n1\n2\n")
        assert answer.status_code == 202, answer.text
        body = await other.status(answer.json()["history_uuid"], wait=30)
        assert body["query_status"]["state"] == "available"
        assert await holder.value("duckdb", "SELECT count(*) FROM arrived") == 2
        again = await create_table_response(other, "duckdb", b"id\n1\n")
        assert (again.status_code, again.json()["code"]) == (400, "table_exists")
