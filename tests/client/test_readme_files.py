"""The examples about files, imports and metadata in clients/python/README.md run as printed."""

import ast
import asyncio
import inspect
import re
from pathlib import Path

import pytest
from tests.client.conftest import QUICK, Server

from queryserver_client import connect

README = Path(__file__).resolve().parents[2] / "clients" / "python" / "README.md"


async def test_each_file_example_runs(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch):
    token = await server.token()
    monkeypatch.chdir(target)
    monkeypatch.setenv("QUERYSERVER_URL", server.url)
    monkeypatch.setenv("QUERYSERVER_TOKEN", token)
    (target / "sales.csv").write_text("id,price\n1,2.50\n2,3.75\n")
    text = README.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python files\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 8
    async with connect(server.url, token=token, retries=QUICK) as db:
        for block in blocks:
            names = {"db": db}
            code = compile(block, str(README), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                await eval(code, names)  # noqa: S307
            else:
                await asyncio.to_thread(exec, code, names)
        assert await db.files.exists("file:///shared/prices.csv")
        assert await db.files.exists("file:///shared/numbers.csv.gz")
        assert not await db.files.exists("file:///shared/sales")
        columns = await db.metadata.columns("duckdb", "main", "sales", refresh=True)
    assert (target / "copy.csv").read_bytes() == (target / "sales.csv").read_bytes()
    assert [(column.name, column.type) for column in columns] == [("price", "DECIMAL(9,2)"), ("number", "INTEGER")]
