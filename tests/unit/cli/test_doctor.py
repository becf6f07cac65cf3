"""`queryserver doctor` and `is_worker_alive`, with a real database."""

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.database import PATIENT, execute
from tests.fixtures.valkey import PASSWORD, guarded_valkey
from tests.ports import free_port
from tests.unit.cli.test_commands import Command, command_in

from queryserver.platform.database import open_database
from queryserver.platform.migrations import newest_revision

KEY = "k7Qm2vX9pLw4Rt8Zb3Nc6Yf1Hs5Jd0Ge"
Environment = Mapping[str, str]


@pytest.fixture
def environment(tmp_path: Path, database_dsn: str) -> dict[str, str]:
    """Provide the environment variables of a server that has a secret key."""
    return {
        "QUERYSERVER__DESKTOP__DATABASE__URL": database_dsn,
        "QUERYSERVER__DESKTOP__SECRET_KEY": KEY,
        "QUERYSERVER__DESKTOP__MIN_FREE_BYTES": "0",
        "QUERYSERVER__DESKTOP__MIN_FREE_PERCENT": "0",
        "QUERYSERVER__FILEBROWSER__LOCAL_ROOT": str(tmp_path / "files"),
    }


async def examined(command: Command) -> tuple[int, dict[str, list[dict[str, Any]]], str]:
    """Run `doctor`; return its exit code, its findings by area, and its complete output."""
    ended = await command("doctor", "--json")
    assert "Traceback" not in ended.err, ended.err
    findings: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(ended.out)["findings"]:
        assert one["to_do"] or one["state"] == "ok", one
        findings.setdefault(one["area"], []).append(one)
    return ended.code, findings, ended.out + ended.err


def worst(findings: list[dict[str, Any]]) -> str:
    return max((one["state"] for one in findings), key=["ok", "warning", "error"].index)


async def everything(dsn: str) -> Mapping[str, int]:
    """Return the number of rows in each table."""
    async with open_database(dsn, PATIENT) as database:
        tables = await database.fetch(
            "select relname from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace"
        )
        return {name: await database.value(f'select count(*) from "{name}"') for (name,) in tables}


async def test_healthy_deployment_has_no_errors_and_is_unchanged(
    tmp_path: Path, database_dsn: str, environment: dict[str, str]
) -> None:
    (tmp_path / "files").mkdir()
    # One server is registered, and another one ended without removing its registration.
    await execute(
        database_dsn,
        f"""insert into facts (name, value) values ('other', 'x');
        insert into instances (id, kind, name, version, heartbeat_at) values
            ('a', 'server', 'node1-1', '0.1.0', now()),
            ('b', 'server', 'node2-7', '0.0.9', now() - interval '1 hour'),
            ('{"c" * 8}', 'server', 'node3-9', '0.0.9', now())""",
    )
    before = await everything(database_dsn)
    code, found, text = await examined(command_in(tmp_path, **environment))
    assert code == 0, text
    assert {area: worst(findings) for area, findings in found.items()} == {
        "settings": "warning",  # a warning, because any host name is accepted
        "database": "ok",
        "schema": "ok",
        "keys": "ok",
        "clock": "ok",
        "instances": "warning",
        "results": "ok",
        "file stores": "ok",
        "engines": "ok",
        "disk": "ok",
        "confinement": found["confinement"][0]["state"],
        "limits": found["limits"][0]["state"],
    }
    summary = " ".join(one["what"] for one in found["instances"])
    assert "2 servers, 0 workers, 0 beats running" in summary
    assert "node2-7 stopped unexpectedly" in summary
    assert "1 of 0.0.9, 1 of 0.1.0" in summary
    assert newest_revision() in found["schema"][0]["what"]
    assert await everything(database_dsn) == before
    assert [path for path in (tmp_path / "queryserver-data").rglob("*") if path.is_file()] == []


async def test_all_problems_are_found_in_one_run_without_printing_secrets(
    tmp_path: Path, database_dsn: str, environment: dict[str, str]
) -> None:
    (tmp_path / "files").mkdir()
    await execute(database_dsn, f"insert into facts (name, value) values ('secret_key_fingerprint', '{'ab' * 32}')")
    nowhere = f"127.0.0.1:{free_port()}"
    environment |= {
        "QUERYSERVER__DESKTOP__DATA_DIR": str(tmp_path / "data"),
        "QUERYSERVER__DESKTOP__TASK_SERVER__ENABLED": "true",
        "QUERYSERVER__DESKTOP__TASK_SERVER__BEAT_ENABLED": "true",
        "QUERYSERVER__DESKTOP__TASK_SERVER__BROKER_URL": f"redis://:planted-broker@{nowhere}/0",
        "QUERYSERVER__DESKTOP__SMTP__HOST": "127.0.0.1",
        "QUERYSERVER__DESKTOP__SMTP__PORT": nowhere.rpartition(":")[2],
        "QUERYSERVER__DESKTOP__SMTP__PASSWORD": "planted-mail",
        "QUERYSERVER__DESKTOP__MIN_FREE_PERCENT": "100",
        "QUERYSERVER__DESKTOP__DATABASE__POOL_MAX": "200",
    }
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "results").write_text("no directory")
    await execute(
        database_dsn,
        """insert into instances (id, kind, name, version)
        select n::text, 'server', 'h-' || n, '1' from generate_series(1, 9) n""",
    )
    code, found, text = await examined(command_in(tmp_path, **environment))
    assert code == 1
    errors = {area for area, findings in found.items() if worst(findings) == "error"}
    assert errors == {"keys", "broker", "results", "mail", "instances", "disk", "database"}, text
    summary = {area: " ".join(one["what"] for one in findings) for area, findings in found.items()}
    assert "no worker is running" in summary["instances"]
    assert "no beat is running" in summary["instances"]
    assert "may open 1818 connections" in summary["database"]
    assert "not tested" in summary["engines"]
    for secret in (KEY, "planted-broker", "planted-mail", nowhere, database_dsn):
        assert secret not in text


async def test_broker_and_engines_are_contacted(tmp_path: Path, environment: dict[str, str], users_dsn: str) -> None:
    (tmp_path / "files").mkdir()
    wrong = users_dsn.replace(":", ":planted-", 2).replace("postgresql:planted-", "postgresql:")
    (tmp_path / "queryserver.toml").write_text(
        f"""
[notebook.interpreters.good]
dialect = "postgresql"
interface = "sqlalchemy"
options = {{url = "{users_dsn}"}}
[notebook.interpreters.wrong]
dialect = "postgresql"
interface = "sqlalchemy"
options = {{url = "{wrong}"}}
[notebook.interpreters.lite]
interface = "sqlite"
options = {{path = "lost.sqlite"}}
read_only = true
[desktop.connector_policy]
local_database_dir = "{tmp_path}"
"""
    )
    async with guarded_valkey() as url:
        environment["QUERYSERVER__DESKTOP__TASK_SERVER__ENABLED"] = "true"
        environment["QUERYSERVER__DESKTOP__TASK_SERVER__BROKER_URL"] = url
        _, found, text = await examined(command_in(tmp_path, **environment))
    assert worst(found["broker"]) == "ok"
    engines = {one["what"].split(" ")[0]: one for one in found["engines"]}
    assert [engines[name]["state"] for name in ("good", "wrong", "lite")] == ["ok", "error", "error"], engines
    assert "(auth)" in engines["wrong"]["what"]
    assert "planted-" not in text
    assert PASSWORD not in text


async def test_other_areas_are_examined_without_a_database(tmp_path: Path, environment: dict[str, str]) -> None:
    environment["QUERYSERVER__DESKTOP__DATABASE__URL"] = f"postgresql://qs:planted@127.0.0.1:{free_port()}/none"
    (tmp_path / "files").mkdir()
    ended = await command_in(tmp_path, **environment)("doctor")
    assert ended.code == 1
    assert "error   database: The service database refuses connections.\n        Start it" in ended.out
    assert "ok      results: " in ended.out
    assert "planted" not in ended.out + ended.err


async def test_unmigrated_database_suggests_the_migration(
    tmp_path: Path, unmigrated_dsn: str, environment: dict[str, str]
) -> None:
    environment["QUERYSERVER__DESKTOP__DATABASE__URL"] = unmigrated_dsn
    _, found, _ = await examined(command_in(tmp_path, **environment))
    assert found["schema"][0]["to_do"] == "Run `queryserver migrate`."
    assert "keys" not in found


async def test_invalid_settings_exit_with_3(tmp_path: Path, environment: dict[str, str]) -> None:
    environment["QUERYSERVER__DESKTOP__SECRET_KEY"] = "short"
    ended = await command_in(tmp_path, **environment)("doctor")
    assert (ended.code, ended.out) == (3, "")
    assert (await command_in(tmp_path)("doctor")).code == 3


async def test_worker_of_this_host_is_alive_by_its_heartbeat(
    tmp_path: Path, database_dsn: str, environment: dict[str, str]
) -> None:
    command = command_in(tmp_path, **environment)
    host = socket.gethostname()
    others = f"('x', 'worker', '{host}-other-{os.getpid()}', '1'), ('y', 'beat', '{host}-1', '1')"
    await execute(database_dsn, f"insert into instances (id, kind, name, version) values {others}")
    assert (await command("is_worker_alive")).code == 1
    assert (await command("is_worker_alive", "--beat")).code == 0
    await execute(
        database_dsn, f"insert into instances (id, kind, name, version) values ('z', 'worker', '{host}-2', '1')"
    )
    assert (await command("is_worker_alive"))[:2] == (0, "worker alive\n")
    await execute(database_dsn, "update instances set heartbeat_at = now() - interval '1 minute'")
    assert (await command("is_worker_alive"))[:2] == (1, "worker not alive\n")
    environment["QUERYSERVER__DESKTOP__DATABASE__URL"] = f"postgresql://127.0.0.1:{free_port()}/none"
    away = await command_in(tmp_path, **environment)("is_worker_alive")
    assert (away.code, away.out) == (0, "")
