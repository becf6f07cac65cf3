"""Server information for administrators: banner, checks and logs (Contract platform 7.4 to 7.6)."""

import io
import logging
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.configuration.conftest import SECRET_KEY, Opener
from tests.api.driving import Api, Caller

from queryserver.platform.logs import configure_logging, stop_logging
from queryserver.platform.settings.desktop import LoggingSettings


@pytest.fixture
async def admin(api: Api) -> Caller:
    return await api.user("admin", admin=True)


@pytest.fixture
def logged() -> Iterator[None]:
    """Configure logging as on a server without a log file. `stop_logging` flushes all pending lines."""
    configure_logging(LoggingSettings())
    yield
    stop_logging()


@pytest.mark.platform(88)
@pytest.mark.security("T31")
async def test_banner_is_public_and_sanitized(open_with: Opener) -> None:
    toml = (
        "[desktop.custom]\nbanner_top_html = '''<b onclick=x()>Down at 8</b><script>y()</script>"
        '<a href="javascript:z()">no</a> <a href="https://status.example">yes</a>\'\'\'\n'
    )
    async with open_with(toml) as api:
        found = await api.stranger.get("banners")
        bad = await api.stranger.send("GET", "banners", headers={"Authorization": "Bearer broken"})
        wrong = await api.stranger.post("banners")
    expected = '<b>Down at 8</b><a>no</a> <a href="https://status.example">yes</a>'
    assert found.json() == bad.json() == {"system": None, "configured": expected, "status": 0}
    assert wrong.status_code == 405


@pytest.mark.platform(88)
async def test_banner_is_null_by_default(api: Api) -> None:
    assert (await api.stranger.get("banners")).json() == {"system": None, "configured": "", "status": 0}


@pytest.mark.platform(89)
@pytest.mark.parametrize("path", ["check_config", "logs", "logs/download", "available_app_examples"])
async def test_only_administrators_may_inspect_the_server(api: Api, ana: Caller, path: str) -> None:
    refused = await ana.get(path)
    assert (refused.status_code, refused.json()["code"]) == (403, "admin_required")
    assert (await api.stranger.get(path)).status_code == 401


@pytest.mark.platform(85, 89)
async def test_check_config_reports_warnings_with_values_but_no_secrets(open_with: Opener, tmp_path: Path) -> None:
    toml = """
[notebook]
interpreters_shown_on_wheel = ["nope", "12"]
[desktop.smtp]
password = "planted-secret"
[desktop.auth.jwt]
key_server_url = []
[metadata.index]
enabled = false
"""
    async with open_with(toml) as api:
        response = await (await api.user(admin=True)).get("check_config")
    body = response.json()
    assert body["hue_config_dir"] == str(tmp_path)
    assert {one["level"] for one in body["config_errors"]} == {"warning"}
    wheel = [one for one in body["config_errors"] if one["name"] == "notebook.interpreters_shown_on_wheel"]
    assert [one["value"] for one in wheel] == ['["nope", "12"]'] * 2
    assert "names nope" in wheel[0]["message"]
    assert "names 12, but there is no stored connector with this id" in wheel[1]["message"]
    assert "planted-secret" not in response.text
    assert SECRET_KEY not in response.text


@pytest.mark.platform(89)
async def test_check_config_reports_breakage_since_startup(open_with: Opener, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    async with open_with(f"[filebrowser]\nlocal_root = '{root}'\n") as api:
        admin = await api.user(admin=True)
        assert "filebrowser.local_root" not in (await admin.get("check_config")).text
        root.rmdir()
        found = (await api.http.get("/api/v1/check_config", headers=dict(admin.headers))).json()["config_errors"]
    assert {"name": "filebrowser.local_root", "level": "error", "value": str(root)}.items() <= found[0].items()


@pytest.mark.platform(89)
@pytest.mark.security("T29")
async def test_logs_are_the_last_lines_of_this_process_and_contain_no_token(admin: Caller, logged: None) -> None:
    token = admin.headers["Authorization"]
    log = logging.getLogger("queryserver.test")
    log.warning("first marker %s", token)
    log.warning("second marker password=planted-secret")
    stop_logging()
    body = (await admin.get("logs")).json()
    assert body["hue_hostname"]
    assert all(line.endswith("\n") for line in body["logs"])
    text = "".join(body["logs"])
    assert text.index("first marker") < text.index("second marker")
    assert token.split()[1] not in text
    assert "planted-secret" not in text
    assert sum(map(len, body["logs"])) <= 32 * 1024
    newest = (await admin.get("logs", reverse="true")).json()["logs"]
    newest.reverse()
    # Lines that are logged between the two calls are appended. They may push the oldest lines out of the buffer.
    first = next(line for line in body["logs"] if "first marker" in line)
    seen = body["logs"][body["logs"].index(first) :]
    assert newest[newest.index(first) :][: len(seen)] == seen
    assert (await admin.get("logs", reverse="sideways")).json()["code"] == "invalid_parameter"


@pytest.mark.platform(89)
async def test_logs_are_read_from_the_file_in_complete_lines_and_zipped(open_with: Opener, tmp_path: Path) -> None:
    file = tmp_path / "logs" / "server.log"
    file.parent.mkdir()
    lines = [f"{number:06} {'x' * 93}\n" for number in range(20_000)]
    file.write_text("".join(lines) + "half a li")
    async with open_with(f"[desktop.logging]\nfile = '{file}'\n") as api:
        admin = await api.user(admin=True)
        body = (await admin.get("logs")).json()
        assert body["logs"] == lines[-len(body["logs"]) :]
        assert 300 < len(body["logs"]) <= 327
        packed = await admin.get("logs/download")
        assert packed.headers["content-type"] == "application/zip"
        name = r'attachment; filename="queryserver-logs-\d{8}T\d{6}\.zip"'
        assert re.fullmatch(name, packed.headers["content-disposition"])
        archive = zipfile.ZipFile(io.BytesIO(packed.content))
        content = archive.read(archive.namelist()[0]).decode()
        assert content.endswith(lines[-1])
        assert 1_000_000 < len(content) <= 1024 * 1024
        file.unlink()
        for path in ("logs", "logs/download"):
            missing = await admin.get(path)
            assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
