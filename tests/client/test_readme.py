"""The examples of clients/python/README.md run as they are printed."""

import ast
import asyncio
import datetime as dt
import inspect
import re
from pathlib import Path

import pytest
from tests.client.conftest import Server

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


async def test_the_examples_with_parameters_run(db: Connection):
    for block in blocks("python parameters"):
        await run(block, {"db": db, "datetime": dt})


def test_every_name_of_the_package_is_in_the_readme():
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
