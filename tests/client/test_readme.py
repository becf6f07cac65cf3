"""The examples in clients/python/README.md run as printed."""

import ast
import asyncio
import datetime as dt
import inspect
import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.api.token.logins import PASSWORD, accounts
from tests.client.conftest import Server
from tests.client.shell import Make
from tests.client.test_qs_prompt import terminal

import queryserver_client
from queryserver_client import Connection

README = Path(__file__).resolve().parents[2] / "clients" / "python" / "README.md"
ADDRESS = '"https://queryserver.example.com", token="…"'


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


async def run(block: str, names: dict[str, object]) -> None:
    code = compile(block, str(README), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        await eval(code, names)  # noqa: S307
    else:
        await asyncio.to_thread(exec, code, names)


async def test_each_example_runs(
    server: Server, db: Connection, target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(target)
    monkeypatch.setenv("QUERYSERVER_URL", server.url)
    monkeypatch.setenv("QUERYSERVER_TOKEN", await server.token())
    for block in blocks("python"):
        await run(block.replace(ADDRESS, ""), {"db": db})
    printed = capsys.readouterr().out
    assert "[(42,)]" in printed
    assert "engine_error" in printed
    assert (target / "rows.parquet").exists()


async def test_parameter_examples_run(db: Connection):
    for block in blocks("python parameters"):
        await run(block, {"db": db, "datetime": dt})


async def test_qs_examples_run_in_sequence(server: Server, make: Make, db: Connection, target: Path):
    caller = await server.api.user("reader")
    await accounts(server.api).set_password(caller.username, PASSWORD)
    await db.query("duckdb", "CREATE OR REPLACE TABLE sales AS SELECT 7 AS id, 'pen' AS article")
    lines = re.findall(r"^    (qs .+)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    (program, command, address), (second, *words, name) = map(shlex.split, lines)
    assert (program, command, second) == ("qs", "login", "qs")
    assert address.startswith("https://")
    qs = make()
    async with terminal(qs, command, server.url) as shown:
        await shown.shows("User: ")
        shown.type(f"{caller.username}\n")
        await shown.shows("Password: ")
        shown.type(f"{PASSWORD}\n")
        await shown.shows(f"logged in to {server.url}")
        assert await shown.end() == 0
    ended = await qs(*words, str(target / name))
    assert ended.code == 0, ended.err
    assert pq.read_table(target / name).to_pylist() == [{"id": 7, "article": "pen"}]


def test_every_public_name_is_in_readme():
    missing = {
        "Event",
        "Logs",
        "Progress",
        "Result",
        "Retries",
        "Statement",
        "Status",
        "Column",
        "Connection",
        "__version__",
    }
    words = set(re.findall(r"\w+", README.read_text(encoding="utf-8")))
    assert set(queryserver_client.__all__) - words <= missing
