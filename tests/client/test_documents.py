"""The shell examples in docs/clients.md and docs/authentication.md run on a server as printed."""

import asyncio
import datetime as dt
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.api.token.logins import PASSWORD
from tests.client.conftest import QUICK, Server
from tests.client.shell import clean_environment
from tests.fakes.issuer import Issuer

from queryserver_client import ApiError, AuthenticationError, Connection, PermissionDenied, connect

DOCS = Path(__file__).resolve().parents[2] / "docs"
ADDRESS = "http://127.0.0.1:8888"
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="this installation has only Python and make")


def block(document: str, heading: str, language: str = "sh") -> str:
    """Return the only code block in this language in a section. The section ends at the next heading of any level."""
    text = (DOCS / document).read_text(encoding="utf-8")
    _, found, section = text.partition(f"\n{heading}\n")
    assert found, heading
    section = re.split(r"^#+ ", section, maxsplit=1, flags=re.MULTILINE)[0]
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return code


async def run(script: str, directory: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a shell script in `directory`. It stops at the first failing command, and finds this project's programs on
    PATH.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return await asyncio.to_thread(
        subprocess.run,
        ["bash", "-e", "-u", "-o", "pipefail", "-c", script],
        cwd=directory,
        env=clean_environment() | {"PATH": path, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


async def answered(script: str, directory: Path, **variables: str) -> dict[str, Any]:
    """Run a script; return the JSON that it prints. Fails if the script does."""
    ended = await run(script, directory, **variables)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def beside(server: Server) -> dict[str, str]:
    """Return environment variables with which commands use the server's database."""
    desktop = server.api.services.settings.desktop
    return {
        "QUERYSERVER__DESKTOP__DATABASE__URL": desktop.database.dsn or "",
        "QUERYSERVER__DESKTOP__SECRET_KEY": desktop.secret_key.get_secret_value(),
        "QUERYSERVER__DESKTOP__DATA_DIR": str(desktop.data_dir),
    }


@needs_curl
async def test_documented_call_with_parameters_returns_its_rows(server: Server, db: Connection, tmp_path: Path):
    await db.query("duckdb", "CREATE TABLE items (name VARCHAR, price DECIMAL(9, 2))")
    await db.query("duckdb", "INSERT INTO items VALUES ('O''Brien', 12.49), ('O''Brien', 12.50), ('Brien', 1)")
    script = block("clients.md", "## Parameters")
    assert ADDRESS in script
    body = await answered(script.replace(ADDRESS, server.url), tmp_path, TOKEN=await server.token())
    assert (body["status"], body["query_status"]["state"]) == (0, "available")
    assert [[str(value) for value in row] for row in body["result"]["data"]] == [["O'Brien", "12.49"]]


@needs_curl
async def test_api_token_created_by_curl_is_limited_to_its_purpose(server: Server, tmp_path: Path):
    script = block("authentication.md", "## API tokens")
    body = await answered(script, tmp_path, B=server.url, TOKEN=await server.token())
    token = body["token"]
    assert (body["status"], token["name"], token["scopes"], token["connectors"]) == (
        0,
        "nightly report",
        ["query"],
        ["duckdb"],
    )
    begins, ends = (dt.datetime.fromisoformat(token[name]) for name in ("created_at", "expires_at"))
    assert ends - begins == dt.timedelta(days=90)
    assert body["value"].startswith("qst_")
    async with connect(server.url, token=body["value"], retries=QUICK) as program:
        assert await (await program.query("duckdb", "SELECT 42")).rows() == [(42,)]
        with pytest.raises(ApiError):
            await program.query("sqlite", "SELECT 42")
        with pytest.raises(PermissionDenied):
            await program.files.filesystems()


async def test_service_account_logs_in_only_with_its_token(server: Server, tmp_path: Path):
    ended = await run(block("authentication.md", "### Service accounts"), tmp_path, **beside(server))
    assert ended.returncode == 0, ended.stderr
    (value,) = re.findall(r"\bqst_\S+", ended.stdout)
    async with connect(server.url, token=value, retries=QUICK) as program:
        assert await (await program.query("duckdb", "SELECT 42")).rows() == [(42,)]
        loaded = await program.imports.load(b"n\n1\n", "duckdb.nightly")
        assert loaded.rows_loaded == 1
        with pytest.raises(PermissionDenied):
            await program.files.filesystems()
    async with connect(server.url, user="nightly", password=PASSWORD, retries=QUICK) as person:
        with pytest.raises(AuthenticationError):
            await person.query("duckdb", "SELECT 42")
    async with connect(server.url, token=await server.token(admin=True), retries=QUICK) as administrator:
        accounts = {user.name: user async for user in administrator.users.list()}
        assert accounts["nightly"].is_service_account
        fields = {"username": "nightly"}
        (token,) = (await administrator.transport.call("GET", "token/api_tokens", params=fields))["tokens"]
    assert (token["name"], token["scopes"]) == ("report", ["import", "query"])
    begins, ends = (dt.datetime.fromisoformat(token[name]) for name in ("created_at", "expires_at"))
    assert ends - begins == dt.timedelta(days=365)


async def test_tokens_of_another_issuer_are_explained(server: Server, tmp_path: Path):
    """The test uses the settings in the documentation, except for the address of the key server."""
    script = block("authentication.md", "### Why is a token refused?")
    settings = block("authentication.md", "## Tokens of another issuer", "toml")
    printed = tomllib.loads(settings)["desktop"]["auth"]["jwt"]
    issuer = Issuer()
    good: dict[str, Any] = {"iss": printed["issuer"], "aud": printed["audience"], printed["username_header"]: "carl"}
    meant_for_others: dict[str, Any] = {**good, "aud": "other"}
    async with issuer.serving() as url:
        (tmp_path / "queryserver.toml").write_text(settings.replace(printed["key_server_url"], url))
        for claims, code, last in ((good, 0, "accepted"), (meant_for_others, 1, "refused")):
            token = issuer.token(**claims)
            (tmp_path / "token.txt").write_text(f"{token}\n")
            ended = await run(script, tmp_path, **beside(server), QUERYSERVER__DESKTOP__AUTH__JWT__TIMEOUT_S="60")
            lines = ended.stdout.splitlines()
            assert (ended.returncode, lines[-1:]) == (code, [last]), ended.stdout + ended.stderr
            checks = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[:-1]}
            assert checks["signature"] == checks["iss"] == "ok"
            assert checks["aud"].startswith("ok" if code == 0 else "refused")
            assert not any(part in ended.stdout + ended.stderr for part in token.split("."))
