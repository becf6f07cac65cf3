"""The previous program version with a newer schema: servers that are running, and servers that are started (Contract
platform 12).
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.e2e.installation import Installation, Node, eventually, installed
from tests.unit.cli.test_commands import command_in
from tests.unit.platform.test_migrations import scripts_with

from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.migrations import migrate, newest_revision

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# All kinds of changes that an expansion may make: columns with defaults in the tables that every call uses, an index,
# and a table.
EXPANDS = "; ".join(
    [f"alter table {table} add column later text not null default ''" for table in
     ("users", "groups", "facts", "instances", "statements", "scripts", "sessions", "statement_logs", "connectors")]
    + ["create index ix_later on statements (later)", "create table later (id bigint primary key)"]
)  # fmt: skip


@pytest.fixture
async def place(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path: Path
) -> AsyncIterator[Installation]:
    async with installed(postgres, migrated_template, tmp_path) as place:
        yield place


async def works(node: Node) -> None:
    """Check that a server works: a statement is run, its page and log are read, it is closed, and the history is
    listed.
    """
    operation = await node.finished("postgresql", "SELECT n FROM generate_series(1, 500) AS n", limit=500)
    assert (await node.page(operation, start_row=499))["data"] == [[500]]
    await node.post_ok("editor/get_logs", operationId=operation)
    await node.post_ok("editor/close_statement", operationId=operation)
    assert (await node.http.get("/api/v1/editor/get_history", headers=node.headers())).status_code == 200


async def is_ready(node: Node) -> bool:
    """Return whether the server is ready. On a busy machine, a readiness check may time out."""
    return (await node.http.get("/desktop/debug/is_ready")).status_code == 200


@pytest.mark.platform(52)
async def test_rolling_upgrade_works_with_expanded_schema_but_not_contracted_one(
    place: Installation, tmp_path: Path
) -> None:
    expand = ("9001", newest_revision(), EXPANDS)
    settings = place.settings() | {"QUERYSERVER__DESKTOP__DATABASE__URL": place.database_dsn}
    command = command_in(tmp_path, **settings)
    async with place.server(editor__lease_timeout_s="60") as running:
        # The server prepares its SQL statements before the tables change.
        for _ in range(3):
            await works(running)
        await migrate(place.database_dsn, scripts_with(tmp_path, expand))
        for _ in range(3):
            await works(running)
        await eventually(lambda: is_ready(running))
        # The server may also be restarted, which runs the migration step before the start.
        migrated = await command("migrate")
        assert migrated.code == 0, migrated
        assert "Schema version 9001. The schema belongs to a newer release" in migrated.out, migrated
        assert (await command("migrate", "--check")).code == 0
        async with place.server(editor__lease_timeout_s="60") as restarted:
            await works(restarted)
            await migrate(place.database_dsn, scripts_with(tmp_path, expand, ("9002", "9001", "drop table later")))
            for node in (running, restarted):
                answer = await node.http.get("/desktop/debug/is_ready")
                assert (answer.status_code, answer.json()["checks"]["schema"]["ok"]) == (503, False)
        refused = await command("serve", "--port", "0")
        assert refused.code == 3
        assert "Releases with schema version 9001 or newer can use it" in refused.err
        assert (await command("migrate", "--check")).code == 1
