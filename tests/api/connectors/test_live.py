"""Stored connectors in use. A change on one server applies to the next call on every server (Contract platform 4.3,
5).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from tests.api.conftest import ApiOpener
from tests.api.connectors.driving import ConnectorAdmin, listed
from tests.api.driving import Api, Caller, until
from tests.fixtures.database import execute

from queryserver.connectors.model import Connector
from queryserver.engines.protocol import Engine
from queryserver.errors.base import DatabaseUnavailable
from queryserver.errors.statements import DriverNotInstalled
from queryserver.platform.database import Database, open_database
from queryserver.platform.settings.sections import DatabaseSettings

_numbers = count(1)
_LOCK = 63
_HELD_UP = f"SELECT pg_advisory_xact_lock({_LOCK}), current_setting('application_name') AS who"
"""A statement that blocks until the `Servers.held_up` context exits."""
_WHO = "SELECT current_setting('application_name') AS who"


@dataclass(frozen=True, slots=True)
class Servers:
    """Two servers on one database. `admin` calls the first server, and `ana` calls both."""

    first: Api
    second: Api
    admin: ConnectorAdmin
    ana: Caller
    users_url: str
    users: Database

    @asynccontextmanager
    async def held_up(self) -> AsyncIterator[None]:
        """Block `_HELD_UP` statements until the context exits."""
        holder = await asyncpg.connect(self.users_url)
        try:
            await holder.execute(f"select pg_advisory_lock({_LOCK})")
            yield
        finally:
            await holder.close()

    @property
    def there(self) -> Caller:
        """The user ana as a caller of the second server."""
        return Caller(self.second, self.ana.username, self.ana.headers)

    def url(self, name: str) -> str:
        """Return the URL of the users' database. Its connections have the application name `name`."""
        return f"{self.users_url}?application_name={name}"

    async def new(self, name: str, **more: Any) -> dict[str, Any]:
        """Create a PostgreSQL connector whose connections have the application name `name`."""
        settings = listed({"url": self.url(name), "statement_tags": False})
        return await self.admin.send(
            {"nice_name": name, "dialect": "postgresql", "interface": "sqlalchemy", "settings": settings, **more}
        )

    async def connections(self, name: str) -> int:
        """Return the number of open connections with this application name on the engine."""
        return await self.users.value("select count(*) from pg_stat_activity where application_name = $1", name)

    async def drained(self, name: str) -> None:
        """Wait until no connection with this application name is open."""

        async def are_none() -> bool:
            return await self.connections(name) == 0

        await until(are_none)


@pytest.fixture
async def servers(small_api: ApiOpener, users_url: str) -> AsyncIterator[Servers]:
    """Two servers for one test, with an administrator and a user."""
    async with (
        small_api() as first,
        small_api() as second,
        open_database(users_url, DatabaseSettings(pool_max=1, connect_timeout_s=60)) as users,
    ):
        yield Servers(first, second, await ConnectorAdmin.of(first), await first.user("ana"), users_url, users)


@pytest.fixture
def name() -> str:
    """A unique application name for connections."""
    return f"live-{next(_numbers)}"


async def offered(caller: Caller) -> list[str]:
    """Return the interpreters that get_config lists."""
    return (await caller.post_ok("get_config"))["app_config"]["editor"]["interpreter_names"]


async def rows(caller: Caller, connector: str, statement: str) -> list[list[Any]]:
    return (await caller.result(connector, statement))["data"]


@pytest.mark.platform(63, 84)
async def test_new_connector_is_usable_on_both_servers_immediately(servers: Servers, name: str) -> None:
    assert (await servers.there.post_ok("get_config"))["status"] == 0
    made = await servers.new(name)
    assert made["id"] in await offered(servers.there)
    assert await rows(servers.there, made["id"], _WHO) == [[name]]
    assert await rows(servers.ana, f"postgresql-{made['id']}", _WHO) == [[name]]


@pytest.mark.platform(63)
async def test_digits_name_a_stored_connector_and_a_dialect_the_first_configured_interpreter(
    servers: Servers, name: str
) -> None:
    made = await servers.new(name)
    assert await rows(servers.ana, made["id"], _WHO) == [[name]]
    assert await rows(servers.ana, "postgresql", _WHO) != [[name]]
    refused = await servers.ana.refused(f"editor/execute/hive-{made['id']}", statement="x")
    assert refused == (404, -1, "dialect_not_found")


@pytest.mark.platform(66)
async def test_change_applies_to_the_next_call_and_running_statements_continue(servers: Servers, name: str) -> None:
    made = await servers.new(name)
    assert await rows(servers.there, made["id"], _WHO) == [[name]]
    async with servers.held_up():
        under_way = (await servers.there.execute(made["id"], _HELD_UP))["history_uuid"]
        await servers.there.running(under_way)
        new = f"{name}-new"
        await servers.admin.send({**made, "settings": listed({"url": servers.url(new), "statement_tags": False})})
        assert await rows(servers.there, made["id"], _WHO) == [[new]]
        assert await rows(servers.ana, made["id"], _WHO) == [[new]]
        assert await servers.connections(name) == 1
    await servers.there.ended(under_way)
    assert (await servers.there.page(under_way))["data"][0][1] == name
    await servers.drained(name)


@pytest.mark.platform(66)
async def test_open_session_continues_with_its_original_settings(servers: Servers, name: str) -> None:
    made = await servers.new(name)
    opened = await servers.there.post_json("editor/create_session", session={"type": made["id"]})
    session = opened.json()["session"]["id"]
    await servers.admin.send({**made, "settings": listed({"url": servers.url(f"{name}-new"), "statement_tags": False})})
    found = await servers.there.run(made["id"], _WHO, session_id=session)
    assert (await servers.there.page(found["history_uuid"]))["data"] == [[name]]
    assert await servers.connections(name) == 1
    closed = await servers.there.post_json("editor/close_session", session={"id": session})
    assert closed.status_code == 200
    await servers.drained(name)


@pytest.mark.platform(66)
async def test_sessions_and_statements_survive_a_change_to_a_type_that_cannot_run_here(
    servers: Servers, name: str
) -> None:
    there, settings = servers.there, listed({"url": servers.url(name), "statement_tags": False})
    made = await servers.admin.send(
        {"nice_name": name, "dialect": "sql", "interface": "sqlalchemy", "settings": settings}
    )
    opened = await there.post_json("editor/create_session", session={"type": made["id"]})
    session = opened.json()["session"]["id"]
    async with servers.held_up():
        under_way = (await there.execute(made["id"], _HELD_UP, session_id=session))["history_uuid"]
        await there.running(under_way)
        lacking = listed({"url": "clickhouse://localhost:1"})
        changed = await servers.admin.send({"id": made["id"], "settings": lacking})
        assert changed["is_runnable"] is False
        refused = await there.post(f"editor/execute/{made['id']}", statement=_WHO)
        assert (refused.status_code, refused.json()["code"]) == (501, "driver_not_installed")
    await there.ended(under_way)
    assert (await there.page(under_way))["data"][0][1] == name
    back = listed({"url": servers.url(f"{name}-new"), "statement_tags": False})
    await servers.admin.send({"id": made["id"], "settings": back})
    found = await there.run(made["id"], _WHO, session_id=session)
    assert (await there.page(found["history_uuid"]))["data"] == [[name]]
    assert (await servers.admin.delete(made["id"])).status_code == 200
    await servers.drained(name)


@pytest.mark.platform(66)
async def test_session_is_still_served_after_its_server_lost_the_driver(servers, name, monkeypatch):
    made = await servers.new(name)
    opened = await servers.there.post_json("editor/create_session", session={"type": made["id"]})
    session = opened.json()["session"]["id"]
    engines = servers.second.services.connectors._engines
    build = engines._build

    def lacking(connector: Connector) -> Engine:
        if connector.key == made["id"]:
            raise DriverNotInstalled("It is not there.")
        return build(connector)

    monkeypatch.setattr(engines, "_build", lacking)
    await servers.admin.send({**made, "settings": listed({"url": servers.url(f"{name}-new"), "statement_tags": False})})
    refused = await servers.there.post(f"editor/execute/{made['id']}", statement=_WHO)
    assert refused.json()["code"] == "driver_not_installed"
    assert await rows(servers.ana, made["id"], _WHO) == [[f"{name}-new"]]
    for hear in (servers.second.services.statements.sessions.runner.claims.claim, _is_unheard):
        monkeypatch.setattr(servers.second.services.statements.sessions.runner.claims, "claim", hear)
        found = await servers.ana.run(made["id"], _WHO, session_id=session)
        assert (await servers.ana.page(found["history_uuid"]))["data"] == [[name]]


async def _is_unheard(_: object) -> None:
    """Simulate a lost notification. Only the periodic sweep then finds unclaimed statements."""
    raise DatabaseUnavailable


@pytest.mark.platform(63, 84)
@pytest.mark.security("T22")
async def test_revoked_connector_and_its_results_are_gone_for_the_next_call(servers: Servers, name: str) -> None:
    made = await servers.new(name)
    done = (await servers.there.run(made["id"], _WHO))["history_uuid"]
    await servers.admin.send({"id": made["id"], "groups": []})
    assert made["id"] not in await offered(servers.there)
    seen = await servers.there.refused(f"editor/execute/{made['id']}", statement="SELECT 1")
    assert seen == (404, -1, "dialect_not_found")
    assert (await servers.there.get(f"connector/instance/get/{made['id']}")).status_code == 404
    for call in ("fetch_result_data", "check_status"):
        refused = await servers.there.post(f"editor/{call}", operationId=done)
        assert refused.status_code in {403, 404}, refused.text
    await servers.admin.send({"id": made["id"], "groups": ["default"]})
    assert (await servers.there.page(done))["data"] == [[name]]


@pytest.mark.platform(75)
async def test_delete_does_not_wait_for_statements_and_keeps_history(servers: Servers, name: str) -> None:
    made = await servers.new(name)
    opened = await servers.there.post_json("editor/create_session", session={"type": made["id"]})
    session = opened.json()["session"]["id"]
    async with servers.held_up():
        under_way = (await servers.there.execute(made["id"], _HELD_UP))["history_uuid"]
        refused = await servers.admin.delete(made["id"])
        assert (refused.status_code, refused.json()["code"], refused.json()["running"]) == (409, "connector_in_use", 1)
    await servers.there.ended(under_way)
    deleted = await servers.admin.delete(made["id"])
    assert (deleted.status_code, deleted.json()) == (200, {"id": made["id"], "status": 0})
    seen = await servers.there.refused(f"editor/execute/{made['id']}", statement="SELECT 1")
    assert seen == (404, -1, "dialect_not_found")
    assert (await servers.there.page(under_way))["data"][0][1] == name
    await servers.drained(name)

    async def is_closed() -> bool:
        return await servers.first.database.value("select closed_at is not null from sessions where id = $1", session)

    await until(is_closed)
    assert (await servers.new(f"{name}-next"))["id"] != made["id"]


@pytest.mark.platform(75)
async def test_statement_submitted_during_connector_deletion_ends(servers: Servers, name: str) -> None:
    made = await servers.new(name)
    late = (await servers.ana.run(made["id"], _WHO))["history_uuid"]
    assert (await servers.admin.delete(made["id"])).status_code == 200
    # Simulate a statement that was recorded after the deletion had counted statements, but before it was committed.
    await servers.first.database.execute(
        "update statements set state = 'waiting', ended_at = null, sent_at = null, owner = null, lease_until = null"
        " where id = $1",
        UUID(late),
    )
    await servers.new(f"{name}-next")
    status = (await servers.ana.ended(late))["query_status"]
    assert status["state"] == "failed"
    assert "no longer configured" in status["message"]


@pytest.mark.platform(74, 84)
async def test_type_that_cannot_run_is_stored_but_accepts_no_statements(servers: Servers, name: str) -> None:
    made = await servers.admin.create(name, "ksql", "ksql", url="http://localhost:8088")
    lacking = await servers.admin.create(f"{name}-lacking", "clickhouse", "sqlalchemy", url="clickhouse://localhost:1")
    listed_there = await offered(servers.there)
    assert made["id"] not in listed_there
    assert lacking["id"] not in listed_there
    for one, code in ((made, "interface_not_supported"), (lacking, "driver_not_installed")):
        response = await servers.there.post(f"editor/execute/{one['id']}", statement="SELECT 1")
        assert (response.status_code, response.json()["code"]) == (501, code)
    await servers.admin.send({"id": made["id"], "groups": []})
    assert (await servers.there.refused(f"editor/execute/{made['id']}", statement="SELECT 1"))[0] == 404


async def test_changed_connector_does_not_show_metadata_of_the_old_address(servers: Servers, name: str) -> None:
    table = name.replace("-", "_")
    made = await servers.new(name)
    await rows(servers.ana, made["id"], _WHO)
    await execute(servers.users_url, f"CREATE TABLE {table} (a int)")
    asked = {"snippet": f'{{"type": "{made["id"]}"}}'}
    assert table in str(await servers.there.post_ok("editor/autocomplete/public", **asked))
    await execute(servers.users_url, f"DROP TABLE {table}")
    assert table in str(await servers.there.post_ok("editor/autocomplete/public", **asked)), "nothing was kept"
    await servers.admin.send({**made, "settings": listed({"url": servers.url(f"{name}-new"), "statement_tags": False})})
    assert table not in str(await servers.there.post_ok("editor/autocomplete/public", **asked))


@pytest.mark.security("T9")
async def test_user_logins_are_never_sent_to_a_new_address(servers: Servers, name: str) -> None:
    url = servers.url(name).replace("api_tests:planted-secret@", "${USER}:${PASSWORD}@")
    made = await servers.admin.send(
        {
            "nice_name": name,
            "dialect": "postgresql",
            "interface": "sqlalchemy",
            "settings": listed({"url": url, "statement_tags": False}),
        }
    )
    login = [{"name": "user", "value": "api_tests"}, {"name": "password", "value": "planted-secret"}]
    session = {"type": made["id"], "properties": login}
    assert (await servers.ana.post_json("editor/create_session", session=session)).status_code == 200
    assert await rows(servers.there, made["id"], _WHO) == [[name]]
    renamed = await servers.admin.send({"id": made["id"], "nice_name": f"{name}-renamed"})
    assert await rows(servers.there, made["id"], _WHO) == [[name]]
    await servers.admin.send(
        {**renamed, "settings": listed({"url": url.replace("127.0.0.1", "localhost"), "statement_tags": False})}
    )
    refused = await servers.there.post(f"editor/execute/{made['id']}", statement=_WHO)
    assert refused.json()["code"] == "credentials_required"


async def test_servers_notice_changes_between_calls_and_after_a_database_outage(servers, name):
    there = servers.second.services.connectors

    async def knows(connector_id: str) -> None:
        async def is_known() -> bool:
            return there.find(connector_id) is not None

        await until(is_known)

    await knows((await servers.new(name))["id"])
    await servers.first.database.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and query ilike 'listen%'"
    )
    await knows((await servers.new(f"{name}-unheard"))["id"])
