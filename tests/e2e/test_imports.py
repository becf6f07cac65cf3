"""Imports whose server dies in the middle (Contract importer 13.4)."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.e2e.installation import TAKEN_OVER_WITHIN_S, Installation, Node, eventually, installed, query

from queryserver.embedded.postgres import EmbeddedPostgres

LARGE = b"id,text\n" + b"".join(b"%d,%s\n" % (n, b"x" * 60) for n in range(600_000))


@pytest.fixture
async def place(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path: Path
) -> AsyncIterator[Installation]:
    """An installation of the test's own."""
    async with installed(postgres, migrated_template, tmp_path) as place:
        yield place


async def started(node: Node, connector: str) -> str:
    """An import of many rows that has just begun."""
    answer = await node.http.post(
        "/api/v1/importer/upload/file/", files={"file": ("large.csv", LARGE)}, headers=node.headers()
    )
    fields = {
        "file_path": answer.json()["file_path"], "import_type": "local", "file_type": "csv", "has_header": "true",
        "connector": connector, "table": "crashed",
    }  # fmt: skip
    response = await node.post("importer/create_table", **fields)
    assert response.status_code == 202, response.text
    return response.json()["history_uuid"]


async def loading(place: Installation) -> None:
    """Returns once a staging table is, or is about to be, in the database."""
    give_up = time.monotonic() + 30
    while not await query(place.database_dsn, "select count(*) from import_leftovers"):
        assert time.monotonic() < give_up
        await asyncio.sleep(0.01)


@pytest.mark.importer(56)
@pytest.mark.parametrize("connector", ["duckdb", "postgresql"])
async def test_a_kill_in_mid_load_leaves_neither_table_nor_staging(place: Installation, connector: str) -> None:
    async with place.server() as victim:
        operation = await started(victim, connector)
        await loading(place)
        await victim.process.kill9()
    async with place.server() as after:
        body = await after.status(operation, wait=TAKEN_OVER_WITHIN_S)
        assert (body["query_status"]["state"], body["code"]) == ("failed", "outcome_unknown")

        async def is_clean() -> bool:
            return not await query(place.database_dsn, "select count(*) from import_leftovers")

        await eventually(is_clean, within_s=40)
        sql = (
            "SELECT count(*) FROM information_schema.tables"
            " WHERE table_name = 'crashed' OR table_name LIKE '%qs_import%'"
        )
        assert await after.value(connector, sql) == 0
