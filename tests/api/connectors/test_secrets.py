"""Secrets in stored connectors, and drivers, options and hosts that they may not use (Contract platform 5.1, 5.11; T7,
T8).
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from tests.api.conftest import ApiOpener
from tests.api.connectors.driving import ConnectorAdmin, by_name, listed
from tests.api.driving import Api

from queryserver.platform.logs import AUDIT_LOGGER

_MASK = "********"
_PLANTED = ("planted-whole", "planted-in-url", "planted-new", "planted-refused", "planted-option", "planted-key")


async def dump(dsn: str) -> str:
    """Return all rows of all tables in the database as one string."""
    connection = await asyncpg.connect(dsn)
    try:
        tables = await connection.fetch("select relname from pg_stat_user_tables order by relname")
        rows = [await connection.fetch(f'select t::text as whole from "{one["relname"]}" t') for one in tables]
        return "\n".join(row["whole"] for found in rows for row in found)
    finally:
        await connection.close()


class RecordedResponses:
    """Records the headers and content of all responses of an application."""

    def __init__(self, api: Api) -> None:
        self.texts: list[str] = []
        api.http.event_hooks["response"].append(self._hear)

    async def _hear(self, response: httpx.Response) -> None:
        await response.aread()
        self.texts.append(f"{response.headers} {response.text}")


@pytest.mark.platform(69)
@pytest.mark.security("T9", "T28")
async def test_planted_passwords_never_appear_in_responses_logs_errors_or_tables(small_api, tmp_path, caplog, capsys):
    caplog.set_level(logging.DEBUG)
    audit = logging.getLogger(AUDIT_LOGGER)
    audit.addHandler(caplog.handler)
    examples = {
        "shop": {
            "dialect": "mysql",
            "interface": "sqlalchemy",
            "settings": {"url": "mysql://svc:planted-in-url@db/shop"},
        }
    }
    policy = {"local_database_dir": tmp_path / "databases", "extra_url_options": {"druid": ("session_token",)}}
    async with small_api(desktop={"connectors": examples, "connector_policy": policy}) as api:
        heard = RecordedResponses(api)
        admin = await ConnectorAdmin.of(api)
        settings: Mapping[str, Mapping[str, Any]] = {
            "mysql sqlalchemy": {"url": "mysql://svc:planted-in-url@127.0.0.1:1/shop"},
            "postgresql sqlalchemy": {"url": "postgresql://svc:planted-in-url@127.0.0.1:1/shop"},
            "druid sqlalchemy": {"url": "druid://svc:planted-in-url@h:1/?session_token=planted-option"},
            "trino sqlalchemy": {"url": "trino://svc:planted-in-url@127.0.0.1:1/tpch"},
            "trino trino": {"url": "https://127.0.0.1:1", "username": "u", "password": "planted-whole"},
            "hive hiveserver2": {"server_host": "127.0.0.1", "server_port": 1, "password": "planted-whole"},
            "sql jdbc": {"url": "jdbc:db2://h:1/S:user=u;password=planted-option;", "password": "planted-whole"},
            "atlas rest": {"url": "http://127.0.0.1:1", "username": "u", "password": "planted-whole"},
        }
        for pair, values in settings.items():
            dialect, interface = pair.split()
            body = {"nice_name": pair, "settings": listed(values)}
            await admin.caller.post(f"connector/instance/new/{dialect}/{interface}", connector=json.dumps(body))
            made = await admin.save(nice_name=pair, dialect=dialect, interface=interface, settings=values)
            await admin.caller.post("connector/instance/test", connector=json.dumps({"id": made["id"]}))
            await admin.caller.post("connector/instance/test", connector=json.dumps(made))
            await admin.send(made)
            await admin.caller.post(f"editor/execute/{made['id']}", statement="SELECT 1", wait=10)
            await admin.caller.post("editor/autocomplete", snippet=json.dumps({"type": made["id"]}))
        for url in (
            "mysql://svc:planted-refused@169.254.169.254/d",
            "mysql://svc:planted-refused@h:port/d",
            "mysql://svc:pass?planted-refused@h/d",
            "mysql://svc:1234/planted-refused@h/d",
            "mysql://svc:1234?planted-refused&x=1@h/d",
            "sqlite://svc:planted-refused@h/d",
            "exotic://svc:planted-refused@h/d?password=planted-refused",
            "mysql://svc:planted-refused@h/d?local_infile=planted-refused",
        ):
            body = {
                "nice_name": "Refused",
                "dialect": "mysql",
                "interface": "sqlalchemy",
                "settings": listed({"url": url}),
            }
            assert (await admin.refused(body))[0] == 400, url
        wrong = {"server_port": "planted-refused", "password": "planted-refused", "use_sasl": "planted-refused"}
        body = {"nice_name": "R", "dialect": "hive", "interface": "hiveserver2", "settings": listed(wrong)}
        assert (await admin.refused(body))[0] == 400
        unused = {"url": "bigquery://p/d", "credentials_json": '{"key": "planted-key"}'}
        body = {"nice_name": "B", "dialect": "bigquery", "interface": "sqlalchemy", "settings": listed(unused)}
        status, code, errors = await admin.refused(body)
        assert (status, code, list(errors)) == (400, "validation_failed", ["credentials_json"])
        await admin.caller.post("connector/examples/install")
        await admin.instances()
        await admin.caller.post("get_config")
        await admin.caller.get("check_config")
        responses = "\n".join(heard.texts)
        kept = await dump(api.services.settings.desktop.database.dsn or "")
    audit.removeHandler(caplog.handler)
    logged = (
        "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records) + capsys.readouterr().out
    )
    assert "connector.create" in logged
    assert _MASK in responses
    assert _MASK in kept
    for name, text in (("answers", responses), ("tables", kept), ("log", logged)):
        assert not [one for one in _PLANTED if one in text], name


@pytest.mark.platform(70)
@pytest.mark.security("T9")
async def test_masked_connector_sent_back_keeps_its_secret(api: Api, admin: ConnectorAdmin, users_url: str) -> None:
    ana = await api.user("ana")
    made = await admin.create("Masked", "postgresql", "sqlalchemy", url=users_url)
    assert by_name(made)["url"] == users_url.replace("planted-secret", _MASK)
    again = await admin.send({**made, "description": "Edited"})
    assert (again["version"], by_name(again)) == (2, by_name(made))
    assert (await ana.result(made["id"], "SELECT 1"))["data"] == [[1]]


@pytest.mark.platform(70)
@pytest.mark.security("T9")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("mysql://svc:x@one:3306/d", f"mysql://svc:{_MASK}@two:3306/d"),
        ("mysql://svc:x@one:3306/d", f"mysql://svc:{_MASK}@one:3307/d"),
        ("mysql://svc:x@one:3306/d", f"mysql://other:{_MASK}@one:3306/d"),
        ("mysql://svc:x@one:3306/d", f"postgresql://svc:{_MASK}@one:3306/d"),
        ("mysql://svc@one:3306/d", f"mysql://svc:{_MASK}@one:3306/d"),
    ],
)
async def test_stored_secret_is_never_sent_to_another_destination(
    admin: ConnectorAdmin, before: str, after: str
) -> None:
    made = await admin.create(f"Moved {before} {after}"[:100], "mysql", "sqlalchemy", url=before)
    status, code, errors = await admin.refused({"id": made["id"], "settings": listed({"url": after})})
    assert (status, code, list(errors)) == (400, "secret_required", ["url"])
    assert await admin.shown(made["id"]) == made
    await admin.send({"id": made["id"], "settings": listed({"url": after.replace(_MASK, "again")})})


@pytest.mark.platform(70)
@pytest.mark.security("T9")
async def test_changing_a_destination_setting_requires_the_secret_again(admin: ConnectorAdmin) -> None:
    values = {"server_host": "one", "username": "svc", "password": "x", "auth_mechanism": "LDAP"}
    made = await admin.create("Single", "hive", "hiveserver2", **values)
    masked = {**values, "password": _MASK}
    await admin.send({"id": made["id"], "settings": listed({**masked, "database": "other"})})
    for change in ({"server_host": "two"}, {"server_port": 10001}, {"username": "root"}):
        sent = {"id": made["id"], "settings": listed({**masked, **change})}
        assert (await admin.refused(sent))[:2] == (400, "secret_required")
    cleared = await admin.send({"id": made["id"], "settings": listed({**values, "password": ""})})
    assert by_name(cleared)["password"] == ""
    assert (await admin.refused({"id": made["id"], "settings": listed(masked)}))[:2] == (400, "secret_required")


_REFUSED = (
    "host",
    "hostaddr",
    "port",
    "unix_socket",
    "service",
    "passfile",
    "options",
    "local_infile",
    "allow_local_infile",
    "allowLoadLocalInfile",
    "allowUrlInLocalInfile",
    "autoDeserialize",
    "queryInterceptors",
    "init_command",
    "read_default_file",
    "read_default_group",
    "plugin_dir",
    "socketFactory",
    "connectionFactoryClass",
    "ssl_ca",
    "ssl_key",
    "sslcert",
    "sslrootcert",
    "sslkey",
    "sslcrl",
    "krb_keytab",
    "ssl_key_path",
    "option_files",
    "auth_plugins",
    "krb5_conf",
    "verify",
    "connectionLifecycleInterceptors",
    "config",
    "ssl_verify_certs",
    "hosts",
    "proxies",
    "driver_class_name",
    "trust_stores",
)

_SCHEMES = ("mysql", "postgresql", "druid")


def connector(url: str, dialect: str = "mysql") -> dict[str, object]:
    return {"nice_name": "Smuggled", "dialect": dialect, "interface": "sqlalchemy", "settings": listed({"url": url})}


def mixed(name: str) -> str:
    return "".join(one.upper() if place % 2 else one.lower() for place, one in enumerate(name))


def encoded(name: str) -> str:
    return "".join(f"%{ord(one):02x}" for one in name)


def spellings(name: str) -> set[str]:
    """Return the spellings of an option name that drivers treat as the same option."""
    return {name, mixed(name), name.upper(), name.replace("_", "-")}


@pytest.mark.platform(71)
@pytest.mark.security("T7")
@pytest.mark.parametrize("option", _REFUSED)
async def test_forbidden_options_are_refused_in_every_spelling(admin: ConnectorAdmin, option: str) -> None:
    options = {*spellings(option), encoded(option), encoded(mixed(option))}
    for scheme in _SCHEMES:
        for name in options:
            for query in (f"{name}=x", f"charset=utf8&{name}=x" if scheme == "mysql" else name):
                refused = await admin.refused(connector(f"{scheme}://h/d?{query}"))
                assert refused[:2] == (400, "option_not_allowed"), (scheme, query)
                assert list(refused[2]) == ["url"]


@pytest.mark.platform(71)
@pytest.mark.security("T7")
async def test_forbidden_options_cannot_be_allowed_by_the_policy(small_api: ApiOpener, tmp_path: Path) -> None:
    names = sorted(name for option in _REFUSED for name in spellings(option))
    policy = {
        "local_database_dir": tmp_path / "databases",
        "extra_url_options": dict.fromkeys(_SCHEMES, (*names, "harmless")),
    }
    async with small_api(desktop={"connector_policy": policy}) as api:
        admin = await ConnectorAdmin.of(api)
        for scheme in _SCHEMES:
            assert (await admin.update(connector(f"{scheme}://h/d?harmless=x"))).status_code in {200, 409}
            status, code, errors = await admin.refused(connector(f"{scheme}://h/d?{'&'.join(names)}"))
            assert (status, code) == (400, "option_not_allowed")
            assert errors == {"url": [f"The option {name} is not allowed." for name in names]}


@pytest.mark.platform(71)
@pytest.mark.security("T7")
@pytest.mark.parametrize(
    "url",
    [
        "exotic://h/d",
        "EXOTIC://h/d",
        "mysql+aiomysql://h/d",
        "MySQL+MySQLdb://h/d",
        "sqlite:///etc/passwd",
        "SQLite:////etc/passwd",
        "sqlite+pysqlite:///x",
        "sqlite+aiosqlite:///x",
        "sqlite://",
        "duckdb:///x",
        "DuckDB:///:memory:",
        "duckdb+x:///x",
        "jdbc:mysql://h/d?autoDeserialize=true",
        "JDBC:db2://h",
        "file:///etc/passwd",
        "%73qlite:///x",
        "http://h/",
        "name://projectName/datasetName",
    ],
)
async def test_drivers_outside_the_list_are_refused(admin: ConnectorAdmin, url: str) -> None:
    status, code, errors = await admin.refused(connector(url))
    assert (status, code, list(errors)) == (400, "driver_not_allowed", ["url"])
    assert (await admin.refused(connector(url, "sql")))[:2] == (400, "driver_not_allowed")


@pytest.mark.security("T7")
@pytest.mark.parametrize(
    "url", ["sq\tlite:///x", "mysql://h/d\r\n", "mysql://h:port/d", "mysql://h:99999/d", "://h", "mysql"]
)
async def test_malformed_urls_are_refused(admin: ConnectorAdmin, url: str) -> None:
    status, _, errors = await admin.refused(connector(url))
    assert (status, list(errors)) == (400, ["url"])


@pytest.mark.security("T7")
async def test_driver_alias_is_accepted(admin: ConnectorAdmin) -> None:
    made = await admin.create("Alias", "postgresql", "sqlalchemy", url="POSTGRES://u:p@h/d?sslmode=require")
    assert by_name(made)["url"] == "POSTGRES://u:********@h/d?sslmode=require"
    assert made["is_runnable"] is True


async def test_unsupported_tunnels_and_impersonation_are_refused(admin: ConnectorAdmin) -> None:
    sent = connector("mysql://h/d")
    status, code, errors = await admin.refused({**sent, "settings": listed({"url": "mysql://h/d", "has_ssh": "yes"})})
    assert (status, code, list(errors)) == (400, "validation_failed", ["has_ssh"])
    presto = {
        **connector("presto://h/d", "presto"),
        "settings": listed({"url": "presto://h/d", "has_impersonation": 1}),
    }
    assert list((await admin.refused(presto))[2]) == ["has_impersonation"]


_BLOCKED = (
    "169.254.169.254",
    "2852039166",
    "0xA9FEA9FE",
    "0251.0376.0251.0376",
    "0xa9.0xfe.0xa9.0xfe",
    "169.254.43518",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "[fe80::1]",
    "0.0.0.0",
    "0",
    "[::]",
    "224.0.0.1",
    "255.255.255.255",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "[fd00:ec2::254]",
    "[fd20:ce::254]",
)


@pytest.mark.platform(72)
@pytest.mark.security("T8")
@pytest.mark.parametrize("host", _BLOCKED)
async def test_blocked_addresses_are_refused_in_every_spelling(admin: ConnectorAdmin, host: str) -> None:
    calls: list[tuple[str, str, str, str]] = [
        ("mysql", "sqlalchemy", "url", f"mysql://u:p@{host}:3306/d"),
        ("postgresql", "sqlalchemy", "url", f"postgresql://{host}/d"),
        ("druid", "sqlalchemy", "url", f"druid://{host}/"),
        ("trino", "sqlalchemy", "url", f"trino://{host}/tpch"),
        ("trino", "trino", "url", f"http://{host}:8080"),
        ("phoenix", "phoenix", "url", f"http://{host}/"),
        ("hive", "hiveserver2", "server_host", host),
        ("impala", "hiveserver2", "server_host", f"good.example,{host}:21050"),
        ("hdfs", "rest", "server_url", f"http://{host}:9870/webhdfs/v1"),
        ("atlas", "rest", "url", f"https://{host}"),
    ]
    for dialect, interface, name, value in calls:
        sent = {"nice_name": "Blocked", "dialect": dialect, "interface": interface, "settings": listed({name: value})}
        status, code, errors = await admin.refused(sent)
        assert (status, code, list(errors)) == (400, "host_not_allowed", [name]), value


@pytest.mark.security("T8")
async def test_all_problems_are_reported_and_the_first_kind_sets_the_code(admin: ConnectorAdmin) -> None:
    settings = listed({"url": "exotic://169.254.169.254/d?host=x", "has_ssh": True})
    status, code, errors = await admin.refused({**connector(""), "settings": settings})
    assert (status, code) == (400, "driver_not_allowed")
    assert set(errors) == {"url", "has_ssh"}
    assert len(errors["url"]) == 3


@pytest.mark.platform(77)
@pytest.mark.security("T7")
@pytest.mark.parametrize("dialect", ["duckdb", "sqlite"])
@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "file:x", "", "a\\..\\b"])
async def test_embedded_databases_stay_below_their_directory(admin: ConnectorAdmin, dialect: str, path: str) -> None:
    sent = {"nice_name": "Out", "dialect": dialect, "interface": dialect, "settings": listed({"path": path})}
    status, code, errors = await admin.refused(sent)
    assert (status, code, list(errors)) == (400, "validation_failed", ["path"])


@pytest.mark.security("T9")
@pytest.mark.parametrize("reserved", ["/", "?", "#"])
async def test_password_without_percent_encoding_is_refused_and_not_revealed(
    admin: ConnectorAdmin, reserved: str
) -> None:
    response = await admin.update(connector(f"mysql://svc:pla@in{reserved}planted@db:3306/shop"))
    assert response.status_code == 400
    assert "planted" not in response.text
