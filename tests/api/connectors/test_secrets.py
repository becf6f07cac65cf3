"""Secrets of connectors: nowhere to be read, kept by their mask, asked for again with a new place (5.1)."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from tests.api.conftest import ApiOpener
from tests.api.connectors.driving import Keeper, by_name, listed
from tests.api.driving import Api
from tests.cases import each

from queryserver.platform.logs import AUDIT_LOGGER

_MASK = "********"
_PLANTED = ("planted-whole", "planted-in-url", "planted-new", "planted-refused", "planted-option", "planted-key")


async def dump(dsn: str) -> str:
    """Every row of every table as text."""
    connection = await asyncpg.connect(dsn)
    try:
        tables = await connection.fetch("select relname from pg_stat_user_tables order by relname")
        rows = [await connection.fetch(f'select t::text as whole from "{one["relname"]}" t') for one in tables]
        return "\n".join(row["whole"] for found in rows for row in found)
    finally:
        await connection.close()


class Overheard:
    """Every answer of an application, as text with headers."""

    def __init__(self, api: Api) -> None:
        self.texts: list[str] = []
        api.http.event_hooks["response"].append(self._hear)

    async def _hear(self, response: httpx.Response) -> None:
        await response.aread()
        self.texts.append(f"{response.headers} {response.text}")


@pytest.mark.platform(69)
@pytest.mark.security("T9", "T28")
async def test_no_answer_log_line_error_or_table_shows_a_planted_password(
    small_api: ApiOpener, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
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
        heard = Overheard(api)
        keeper = await Keeper.of(api)
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
            await keeper.caller.post(f"connector/instance/new/{dialect}/{interface}", connector=json.dumps(body))
            made = await keeper.save(nice_name=pair, dialect=dialect, interface=interface, settings=values)
            await keeper.caller.post("connector/instance/test", connector=json.dumps({"id": made["id"]}))
            await keeper.caller.post("connector/instance/test", connector=json.dumps(made))
            await keeper.send(made)
            await keeper.caller.post(f"editor/execute/{made['id']}", statement="SELECT 1", wait=10)
            await keeper.caller.post("editor/autocomplete", snippet=json.dumps({"type": made["id"]}))
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
            assert (await keeper.refused(body))[0] == 400, url
        wrong = {"server_port": "planted-refused", "password": "planted-refused", "use_sasl": "planted-refused"}
        body = {"nice_name": "R", "dialect": "hive", "interface": "hiveserver2", "settings": listed(wrong)}
        assert (await keeper.refused(body))[0] == 400
        unused = {"url": "bigquery://p/d", "credentials_json": '{"key": "planted-key"}'}
        body = {"nice_name": "B", "dialect": "bigquery", "interface": "sqlalchemy", "settings": listed(unused)}
        status, code, errors = await keeper.refused(body)
        assert (status, code, list(errors)) == (400, "validation_failed", ["credentials_json"])
        await keeper.caller.post("connector/examples/install")
        await keeper.instances()
        await keeper.caller.post("get_config")
        await keeper.caller.get("check_config")
        told = "\n".join(heard.texts)
        kept = await dump(api.services.settings.desktop.database.dsn or "")
    audit.removeHandler(caplog.handler)
    logged = (
        "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records) + capsys.readouterr().out
    )
    assert "connector.create" in logged
    assert _MASK in told
    assert _MASK in kept
    for name, text in (("answers", told), ("tables", kept), ("log", logged)):
        assert not [one for one in _PLANTED if one in text], name


@pytest.mark.platform(70)
@pytest.mark.security("T9")
async def test_a_masked_connector_sent_back_keeps_its_secret_working(api: Api, keeper: Keeper, users_url: str) -> None:
    ana = await api.user("ana")
    made = await keeper.create("Masked", "postgresql", "sqlalchemy", url=users_url)
    assert by_name(made)["url"] == users_url.replace("planted-secret", _MASK)
    again = await keeper.send({**made, "description": "Edited"})
    assert (again["version"], by_name(again)) == (2, by_name(made))
    assert (await ana.result(made["id"], "SELECT 1"))["data"] == [[1]]


@pytest.mark.platform(70)
@pytest.mark.security("T9")
@each(
    ("before", "after"),
    [
        ("mysql://svc:x@one:3306/d", f"mysql://svc:{_MASK}@two:3306/d"),
        ("mysql://svc:x@one:3306/d", f"mysql://svc:{_MASK}@one:3307/d"),
        ("mysql://svc:x@one:3306/d", f"mysql://other:{_MASK}@one:3306/d"),
        ("mysql://svc:x@one:3306/d", f"postgresql://svc:{_MASK}@one:3306/d"),
        ("mysql://svc@one:3306/d", f"mysql://svc:{_MASK}@one:3306/d"),
    ],
)
async def test_a_stored_secret_never_goes_elsewhere(keeper: Keeper, before: str, after: str) -> None:
    made = await keeper.create(f"Moved {before} {after}"[:100], "mysql", "sqlalchemy", url=before)
    status, code, errors = await keeper.refused({"id": made["id"], "settings": listed({"url": after})})
    assert (status, code, list(errors)) == (400, "secret_required", ["url"])
    assert await keeper.shown(made["id"]) == made
    await keeper.send({"id": made["id"], "settings": listed({"url": after.replace(_MASK, "again")})})


@pytest.mark.platform(70)
@pytest.mark.security("T9")
async def test_single_settings_say_where_a_secret_goes_too(keeper: Keeper) -> None:
    values = {"server_host": "one", "username": "svc", "password": "x", "auth_mechanism": "LDAP"}
    made = await keeper.create("Single", "hive", "hiveserver2", **values)
    masked = {**values, "password": _MASK}
    await keeper.send({"id": made["id"], "settings": listed({**masked, "database": "other"})})
    for change in ({"server_host": "two"}, {"server_port": 10001}, {"username": "root"}):
        sent = {"id": made["id"], "settings": listed({**masked, **change})}
        assert (await keeper.refused(sent))[:2] == (400, "secret_required")
    cleared = await keeper.send({"id": made["id"], "settings": listed({**values, "password": ""})})
    assert by_name(cleared)["password"] == ""
    assert (await keeper.refused({"id": made["id"], "settings": listed(masked)}))[:2] == (400, "secret_required")
