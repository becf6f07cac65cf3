"""Findings of the settings check, and stored connectors in get_config responses (Contract platform 7.1, 11)."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from aiosmtpd.smtp import SMTP
from pydantic import SecretStr
from tests.api.configuration.conftest import Opener
from tests.api.driving import Caller
from tests.fakes.provider import Provider
from tests.fixtures.database import execute
from tests.ports import free_port

from queryserver.administration import configuration_check as checking
from queryserver.administration import configuration_check as looks
from queryserver.administration.configuration_check import check_settings
from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.model import Connector
from queryserver.engines.protocol import Engine
from queryserver.files.model import Scheme
from queryserver.platform.settings.loader import read_settings
from queryserver.platform.settings.tree import Settings, SettingsFinding, warnings

Reader = Callable[[str], Settings]


@pytest.fixture
def read(tmp_path: Path, database_dsn: str) -> Reader:
    """A function that reads settings from a TOML string and adds a working service database."""

    def reader(toml: str) -> Settings:
        file = tmp_path / "queryserver.toml"
        file.write_text(toml)
        environ = {
            "QUERYSERVER__DESKTOP__DATABASE__URL": database_dsn,
            "QUERYSERVER__DESKTOP__DATA_DIR": str(tmp_path / "data"),
            "QUERYSERVER__METADATA__INDEX__ENABLED": "false",
            # Separate tests cover access through a proxy.
            "QUERYSERVER__DESKTOP__ALLOWED_HOSTS": "localhost",
            "QUERYSERVER__DESKTOP__METRICS__ALLOWED_NETWORKS": "",
        }
        return read_settings(file, environ).settings

    return reader


async def lines(settings: Settings, **how: bool) -> list[str]:
    """Return the findings in the format in which the settings check prints them."""
    return list(map(str, await check_settings(settings, **how)))


async def test_valid_settings_have_no_findings(read: Reader) -> None:
    assert await lines(read("")) == []


@pytest.mark.platform(49)
async def test_one_check_covers_every_interpreter_store_and_file(read: Reader, tmp_path: Path) -> None:
    toml = f"""
[desktop]
ssl_certificate = "{tmp_path}/none.pem"
ssl_private_key = "{tmp_path}/none.key"
[desktop.auth]
backend = "local, no_such_back_end"
api_auth = "jwt, no.such.module.Class"
[filebrowser]
local_root = "{tmp_path}/missing"
[notebook.interpreters.odd]
interface = "unheard-of"
[notebook.interpreters.far]
interface = "sqlalchemy"
options = {{url = "oracle9+x://h/d?a=planted"}}
[notebook.interpreters.hive]
interface = "hiveserver2"
options = {{server_host = "h", server_port = 99999}}
"""
    found = await lines(read(toml), offline=True)
    assert [line.split(": ")[0] for line in found] == [
        "error desktop.ssl_certificate",
        "error desktop.ssl_private_key",
        "error notebook.interpreters.odd.interface",
        "error notebook.interpreters.far.options.url",
        "error notebook.interpreters.far.options.url",
        "error notebook.interpreters.hive.options.server_port",
        "error filebrowser.local_root",
        "error desktop.auth.backend",
        "error desktop.auth.api_auth",
    ]
    assert "planted" not in "".join(found)


async def test_limits_on_estimates_that_a_data_source_cannot_make_cause_warnings(read: Reader) -> None:
    toml = """
[notebook.interpreters.lite]
interface = "sqlite"
max_estimated_bytes = 1000
[notebook.interpreters.duck]
interface = "duckdb"
max_estimated_bytes = 1000
max_estimated_cost = 1000
[notebook.interpreters.lake]
interface = "trino"
options = {url = "http://127.0.0.1:1"}
max_estimated_bytes = 1000
"""
    found = [line for line in await lines(read(toml)) if "does not estimate" in line]
    assert [line.split(": ")[0] for line in found] == [
        "warning notebook.interpreters.lite.max_estimated_bytes",
        "warning notebook.interpreters.duck.max_estimated_cost",
    ]


async def test_engines_and_stores_are_built_off_the_event_loop(read: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read("[notebook.interpreters.lite]\ninterface = 'sqlite'\n")
    threads: list[threading.Thread] = []
    real = EngineBuilder.build

    def build(builder: EngineBuilder, connector: Connector) -> Engine:
        threads.append(threading.current_thread())
        return real(builder, connector)

    def store(_settings: Settings) -> None:
        threads.append(threading.current_thread())

    monkeypatch.setattr(EngineBuilder, "build", build)
    monkeypatch.setattr(checking, "BUILDERS", {Scheme.FILE: store})
    assert await lines(settings, offline=True) == []
    assert len(threads) == 2
    assert threading.current_thread() not in threads


@pytest.mark.platform(85)
async def test_wheel_names_must_be_keys_or_ids_of_stored_connectors(read: Reader, database_dsn: str) -> None:
    toml = "[notebook]\ninterpreters_shown_on_wheel = ['LITE', 'nope', '1', '99']\n"
    toml += "[notebook.interpreters.lite]\ninterface = 'sqlite'\n"
    connection = await asyncpg.connect(database_dsn)
    await connection.execute("insert into connectors (nice_name, dialect, interface) values ('x', 'sqlite', 'sqlite')")
    await connection.close()
    assert await lines(read(toml)) == [
        "warning notebook.interpreters_shown_on_wheel: names nope, but there is no interpreter with this name.",
        "warning notebook.interpreters_shown_on_wheel: names 99, but there is no stored connector with this id.",
    ]


async def test_unavailable_database_does_not_hide_other_findings(read: Reader, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    task_server = f"""
[desktop.task_server]
enabled = true
broker_url = "redis://:planted-secret@127.0.0.1:{free_port()}/0"
result_file_storage = '{{"backend": "local", "properties": {{"location": "{tmp_path}/file/below"}}}}'
[desktop.auth.jwt]
key_server_url = ["http://127.0.0.1:{free_port()}/keys"]
issuer = "i"
audience = "a"
"""
    settings = read(task_server)
    database = settings.desktop.database.model_copy(
        update={"url": type(settings.desktop.database.url)(f"postgresql://u:planted-secret@127.0.0.1:{free_port()}/d")}
    )
    broken = settings.model_copy(update={"desktop": settings.desktop.model_copy(update={"database": database})})
    found = await lines(broken)
    assert sorted(line.split(": ")[0] for line in found) == [
        "error desktop.auth.jwt.key_server_url",
        "error desktop.database",
        "error desktop.task_server.broker_url",
        "error desktop.task_server.result_file_storage",
    ]
    assert "planted-secret" not in "".join(found)
    assert [line for line in await lines(broken, offline=True) if line.startswith("error")] == []


async def test_many_documents_are_reported_but_a_missing_extension_is_not(read, database_dsn, monkeypatch):
    monkeypatch.setattr(looks, "MANY_DOCUMENTS", 1)
    connection = await asyncpg.connect(database_dsn)
    user = await connection.fetchval("insert into users (username, username_key) values ('u', 'u') returning id")
    await connection.execute(
        """insert into statements (id, user_id, connector, dialect, state, statement, statement_index,
        statements_count, position, statement_hash, guid, secret, session_id, session_guid, row_limit, timeout_s,
        deadline_at, has_result_set) values (gen_random_uuid(), $1, 'c', 'd', 'closed', 's', 0, 1, '{}', 'h',
        'g', 's', 1, 'g', 1, 1, now(), true)""",
        user,
    )
    await connection.execute(
        """insert into documents (uuid, owner_id, name, description, statement, parameters, tags, folder, modified_by,
        size_bytes) values (gen_random_uuid(), $1, 'n', '', 's', '[]', '{}', '/', 'u', 2)""",
        user,
    )
    settings = read("")
    indexed = settings.metadata.model_copy(
        update={"index": settings.metadata.index.model_copy(update={"enabled": True})}
    )
    found = await lines(settings.model_copy(update={"metadata": indexed}))
    text = "retains more than 1 history entries and saved queries: run `queryserver cleanup`."
    assert f"warning editor.history_retention_days: {text}" in found
    await connection.close()
    # Without this extension, searches are just as fast (ADR 37), so its absence is not a finding.
    assert not any("pg_trgm" in line for line in found)


async def test_local_results_on_several_hosts_must_be_shared(read, database_dsn, tcp_open):
    settings = read("")
    rules = tcp_open.defaults.files_dir.parent / "postgresql" / "data" / "pg_hba.conf"
    with rules.open("a") as stream:
        stream.write("host all all 127.0.0.9/32 trust\n")
    await execute(tcp_open.admin_dsn(), "SELECT pg_reload_conf()")
    async with from_another_address(tcp_open.address.port) as port:
        elsewhere = await asyncpg.connect(database_dsn, host="127.0.0.1", port=port)
        found = await lines(settings)
        await elsewhere.close()
    [finding] = [line for line in found if "result_file_storage" in line]
    assert finding.startswith("warning desktop.task_server.result_file_storage: ")
    assert "2 hosts use the database" in finding


@asynccontextmanager
async def from_another_address(port: int) -> AsyncIterator[int]:
    """Yield a local port whose connections reach the database from 127.0.0.9, as if the clients ran on another host."""
    pumps: set[asyncio.Task[None]] = set()
    closing: list[asyncio.StreamWriter] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.9", 0))
        for source, target in ((reader, far_writer), (far_reader, writer)):
            pumps.add(asyncio.create_task(pump(source, target)))
            closing.append(target)

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in pumps:
            task.cancel()
        for target in closing:
            target.close()
        await asyncio.gather(*pumps, *(target.wait_closed() for target in closing), return_exceptions=True)


async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Forward all bytes from `source` to `target`, then close `target`."""
    while piece := await source.read(65536):
        target.write(piece)
        await target.drain()
    target.close()


async def test_findings_are_unique_and_errors_come_first() -> None:
    from queryserver.administration.configuration_check import _sorted_findings

    error, warning = SettingsFinding.error("b", "x"), SettingsFinding.warning("a", "y")
    assert _sorted_findings([warning, error, warning]) == [error, warning]


async def create(admin: Caller, name: str, dialect: str, interface: str, **settings: Any) -> str:
    """Create a stored connector; return its id."""
    given = [{"name": key, "value": value} for key, value in settings.items()]
    asked = {"nice_name": name, "dialect": dialect, "interface": interface, "settings": given}
    return (await admin.post_ok("connector/instance/update", connector=json.dumps(asked)))["connector"]["id"]


async def shown(caller: Caller) -> list[str]:
    """Return the keys and ids of the interpreters that get_config lists."""
    return (await caller.post_ok("get_config"))["app_config"]["editor"]["interpreter_names"]


@pytest.mark.platform(82, 84)
async def test_new_connector_appears_and_revoked_connector_disappears_immediately(open_with: Opener) -> None:
    async with open_with('[notebook.interpreters.lite]\ninterface = "sqlite"\ndialect = "sqlite"\n') as api:
        ana, admin = await api.user("ana"), await api.user("admin", admin=True)
        first = await create(admin, "Scratch", "duckdb", "duckdb")
        second = await create(admin, "More", "sqlite", "sqlite")
        assert await shown(ana) == ["lite", first, second]
        found = await ana.post_ok("get_config")
        entry = found["app_config"]["editor"]["interpreters"][1]
        assert (entry["name"], entry["dialect"], entry["tooltip"]) == ("Scratch", "duckdb", "Duckdb Query")
        assert entry["page"] == f"/editor/?type={first}"
        assert [one["type"] for one in found["app_config"]["catalogs"]] == ["lite", first, second]
        await api.database.execute('delete from group_rights where "right" = $1', f"connector:{first}")
        assert await shown(ana) == ["lite", second]
        assert await shown(admin) == ["lite", first, second]
        await admin.post_ok("connector/instance/delete", connector=json.dumps({"id": second}))
        assert await shown(ana) == ["lite"]


@pytest.mark.platform(82)
async def test_first_stored_connector_is_the_main_action_without_configured_interpreters(open_with: Opener) -> None:
    async with open_with() as api:
        admin = await api.user("admin", admin=True)
        first = await create(admin, "Scratch", "duckdb", "duckdb")
        found = await (await api.user("ana")).post_ok("get_config")
    assert found["main_button_action"]["type"] == found["default_sql_interpreter"] == first


@pytest.mark.platform(82, 84)
async def test_stored_connector_on_the_wheel_precedes_configured_interpreters(open_with: Opener) -> None:
    toml = '[notebook]\ninterpreters_shown_on_wheel = "1"\ndefault_interpreter = "{0}"\n'
    toml += '[notebook.interpreters.lite]\ninterface = "sqlite"\ndialect = "sqlite"\n'
    for default in ("", "more", "1"):
        async with open_with(toml.format(default)) as api:
            ana, admin = await api.user("ana"), await api.user("admin", admin=True)
            if not default:
                assert await create(admin, "More", "sqlite", "sqlite") == "1"
            assert await shown(ana) == ["1", "lite"]
            assert (await ana.post_ok("get_config"))["default_sql_interpreter"] == "1"
            for path in ("editor/execute", "editor/execute/sqlite"):
                done = await ana.post_ok(path, statement="select 1", wait=60)
                operation = UUID(done["history_uuid"])
                assert await api.database.value("select connector from statements where id = $1", operation) == "1"


@pytest.mark.platform(84)
async def test_types_that_accept_no_statements_are_never_listed(open_with: Opener) -> None:
    async with open_with() as api:
        admin = await api.user("admin", admin=True)
        await create(admin, "Livy", "sparksql", "livy")
        await create(admin, "Files", "hdfs", "rest")
        await create(admin, "Atlas", "atlas", "rest")
        await create(admin, "Redis", "ksql", "ksql")
        assert await shown(admin) == []


@pytest.mark.platform(89)
async def test_app_examples_install_the_configured_connectors(open_with: Opener) -> None:
    toml = '[desktop.connectors.Scratch]\ndialect = "duckdb"\ninterface = "duckdb"\n'
    async with open_with(toml) as api:
        ana, admin = await api.user("ana"), await api.user("admin", admin=True)
        assert (await admin.get("available_app_examples")).json() == {"apps": {"connectors": "Connectors"}, "status": 0}
        done = await admin.post_ok("install_app_examples", app_name="connectors")
        assert done == {"message": "Successfully installed examples for connectors.", "status": 0}
        names = [one["name"] for one in (await ana.post_ok("get_config"))["app_config"]["editor"]["interpreters"]]
        assert names == ["Scratch"]
        missing = await admin.post("install_app_examples")
        assert missing.status_code == 400
        assert missing.json() == {
            "status": -1, "code": "missing_parameter", "message": "Missing parameter: app_name is required.",
        }  # fmt: skip
        for app in ("hive", "impala", "hbase", "pig", "oozie", "notebook", "search", "spark", "jobsub"):
            assert await admin.refused("install_app_examples", app_name=app) == (501, -1, "not_supported")
        unknown = await admin.post("install_app_examples", app_name="x")
        assert (unknown.status_code, unknown.json()["message"]) == (400, "Unsupported app name: x")
        assert (await ana.post("install_app_examples", app_name="connectors")).json()["code"] == "admin_required"


async def test_settings_unsuitable_for_several_servers_cause_warnings(read: Reader) -> None:
    toml = """
[desktop.task_server]
enabled = true
broker_url = "redis://localhost:6379/0"
email_after_s = 60
"""
    settings = read(toml).desktop.database.model_copy(update={"url": SecretStr("postgresql://qs@db.example.org/qs")})
    fleet = read(toml)
    desktop = fleet.desktop.model_copy(update={"database": settings})
    found = [str(one) for one in warnings(fleet.model_copy(update={"desktop": desktop}))]
    assert [line for line in found if "machine" in line or "email" in line or "mail" in line] == found[-3:]
    embedded = read("[desktop.task_server]\nenabled = true\n[desktop.database]\nembedded = true\n")
    assert [key for key, _ in warnings(embedded)][-1:] == ["desktop.database.embedded"]


async def test_mail_server_check_connects_without_sending_email(read: Reader) -> None:
    class Mails:
        seen = 0

        async def handle_DATA(self, *_: object) -> str:  # noqa: N802 the name of aiosmtpd
            Mails.seen += 1
            return "250 OK"

    port = free_port()
    smtp = f"[desktop.smtp]\nhost = '127.0.0.1'\nport = {port}\ntls = 'none'\n"
    away = [line for line in await lines(read(smtp)) if line.startswith("error")]
    assert away == ["error desktop.smtp.host: does not respond."]
    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: SMTP(Mails(), loop=loop), "127.0.0.1", port):
        assert [line for line in await lines(read(smtp)) if line.startswith("error")] == []
        encrypted = [line for line in await lines(read(smtp.replace("none", "starttls"))) if line.startswith("error")]
        assert encrypted == ["error desktop.smtp.host: does not accept connections with desktop.smtp.tls = starttls."]
        login = f"{smtp}user = 'qs'\npassword = 'planted'\n"
        refused = [line for line in await lines(read(login)) if line.startswith("error")]
        assert len(refused) == 1
        assert "planted" not in refused[0]
    assert Mails.seen == 0


async def test_login_issuer_must_return_its_own_discovery_document(read: Reader) -> None:
    provider = Provider()
    async with provider.serving() as issuer:
        settings = read(
            f"""
[desktop.auth.jwt]
key_server_url = ["{issuer}/keys"]
issuer = "{issuer}"
audience = "a"
[desktop.auth.oidc]
client_id = "console"
"""
        )
        assert [line for line in await lines(settings) if "oidc" in line] == []
        provider.document["issuer"] = "https://other.example"
        (found,) = (line for line in await lines(settings) if "oidc" in line)
        document = f"{issuer}/.well-known/openid-configuration"
        assert found == f"error desktop.auth.oidc.client_id: {document} is not the discovery document of this issuer."
