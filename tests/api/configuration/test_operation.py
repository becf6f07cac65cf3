"""What administrators read about the deployment: its processes, and the findings of the doctor (Contract platform
7.10, 7.11).
"""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.api.configuration.conftest import SECRET_KEY, Opener
from tests.api.driving import Api, Caller

from queryserver.administration import examination
from queryserver.administration.doctor import Finding, State
from queryserver.platform.settings.tree import Settings

AREAS = {
    "settings", "database", "schema", "keys", "clock", "instances", "results", "file stores", "engines", "disk",
    "confinement", "limits",
}  # fmt: skip


@pytest.mark.platform(143)
async def test_client_configuration_names_the_caller(api: Api, ana: Caller) -> None:
    admin = await api.user("chief", admin=True)
    for caller in (ana, admin):
        assert (await caller.post_ok("get_config"))["username"] == caller.username


@pytest.mark.platform(146)
@pytest.mark.parametrize("path", ["admin/instances", "admin/doctor"])
async def test_only_administrators_may_inspect_the_fleet(api: Api, ana: Caller, path: str) -> None:
    refused = await ana.get(path)
    assert (refused.status_code, refused.json()["code"]) == (403, "admin_required")
    assert (await api.stranger.get(path)).status_code == 401


@pytest.mark.platform(144)
async def test_instances_are_listed_with_their_load_and_whether_they_are_alive(api: Api) -> None:
    admin = await api.user("chief", admin=True)
    await api.database.execute(
        """insert into instances (id, kind, name, version, running, capacity, started_at, heartbeat_at) values
            ('w', 'worker', 'node2-7', '0.9.0', 3, 8, now() - interval '2 hours', now() - interval '1 hour'),
            ('x', 'beat', 'node3-9', '0.9.0', 0, 0, now() - interval '9 days', now() - interval '2 days')"""
    )
    try:
        listed = {one["id"]: one for one in (await admin.get("admin/instances")).json()["instances"]}
    finally:
        await api.database.execute("delete from instances where id in ('w', 'x')")
    own = listed[api.running.statements.runner.owner]
    assert (own["kind"], own["is_alive"]) == ("server", True)
    assert own["name"].startswith(f"{socket.gethostname()}-")
    dead = listed["w"]
    assert (dead["kind"], dead["name"], dead["version"]) == ("worker", "node2-7", "0.9.0")
    assert (dead["is_alive"], dead["running"], dead["capacity"]) == (False, 3, 8)
    assert dead["started"] < dead["heartbeat"]
    assert "x" not in listed


@pytest.mark.platform(145)
async def test_doctor_finds_failures_without_showing_secrets_and_paths(
    open_with: Opener, tmp_path: Path, database_dsn: str
) -> None:
    (files := tmp_path / "files").mkdir()
    toml = f"""
[filebrowser]
local_root = "{files}"
[desktop]
ssl_certificate = "{tmp_path}/none.pem"
ssl_private_key = "{tmp_path}/none.key"
min_free_percent = 100
[notebook.interpreters.good]
interface = "duckdb"
dialect = "duckdb"
[notebook.interpreters.wrong]
dialect = "postgresql"
interface = "sqlalchemy"
options = {{url = "postgresql://planted:planted-word@127.0.0.1:9/planted_db"}}
"""
    async with open_with(toml) as api:
        answer = await (await api.user("chief", admin=True)).get("admin/doctor")
    body: dict[str, Any] = answer.json()
    findings = body["findings"]
    assert {one["area"] for one in findings} == AREAS
    assert all(one["to_do"] or one["state"] == "ok" for one in findings)
    states = [one["state"] for one in findings]
    assert (body["errors"], body["warnings"]) == (states.count("error"), states.count("warning"))
    texts = {
        area: " ".join(f"{one['state']} {one['what']}" for one in findings if one["area"] == area) for area in AREAS
    }
    assert "error desktop.ssl_certificate <desktop.ssl_certificate> is not a file." in texts["settings"]
    assert "in <desktop.data_dir>" in texts["disk"]
    assert "error wrong" in texts["engines"].casefold()
    assert "ok good" in texts["engines"].casefold()
    for hidden in (str(tmp_path), SECRET_KEY, "planted-word", database_dsn):
        assert hidden not in answer.text


@pytest.mark.platform(146)
async def test_one_examination_runs_at_a_time_and_ends_within_its_time(
    open_with: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most = 0, 0

    async def slow(*_: Any, **__: Any) -> list[Finding]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(0.3)
        finally:
            running -= 1
        return [Finding.ok("database", "Good.")]

    async def endless(*_: Any, **__: Any) -> list[Finding]:
        await asyncio.Event().wait()
        return []

    async with open_with() as api:
        admin = await api.user("chief", admin=True)
        monkeypatch.setattr(examination, "examine_deployment", slow)
        answers = await asyncio.gather(*(admin.get("admin/doctor") for _ in range(2)))
        assert [one.json()["findings"][0]["what"] for one in answers] == ["Good.", "Good."]
        assert most == 1
        monkeypatch.setattr(examination, "examine_deployment", endless)
        monkeypatch.setattr(examination, "_REPORT_WITHIN_S", 0.2)
        late = (await admin.get("admin/doctor")).json()
        assert late["errors"] == len(late["findings"]) == 1
        assert late["findings"][0]["area"] == "doctor"


@pytest.mark.platform(145)
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("3 GiB are free in /srv/qs/results.", "3 GiB are free in <desktop.data_dir>/results."),
        ("/etc/pki/x.pem is not a file.", "<path> is not a file."),
        ("cannot open '/opt/a b': denied", "cannot open '<path> b': denied"),
        ("See docs/operations/security.md.", "See docs/operations/security.md."),
        ("https://id.example/realm/.well-known is wrong", "https://id.example/realm/.well-known is wrong"),
        ("read/write, 3 / 4", "read/write, 3 / 4"),
    ],
)
def test_paths_of_the_server_are_replaced(text: str, shown: str) -> None:
    settings = Settings.model_validate({"desktop": {"data_dir": "/srv/qs"}})
    cleaned = examination.without_paths(Finding("disk", State.WARNING, text, text), settings)
    assert json.dumps([cleaned.what, cleaned.to_do]) == json.dumps([shown, shown])
