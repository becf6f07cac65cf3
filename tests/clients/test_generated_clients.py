"""Clients generated from openapi.json complete the main workflow, and the generators support everything in the
document.
"""

import asyncio
import base64
import io
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest
from scripts.export_openapi import TARGET
from tests.clients.generators import ENGINE, PYTHON, TYPESCRIPT, node_environment, node_packages, python_environment
from tests.e2e.harness import ServerProcess, running_server
from tests.engines.node import program
from tests.fixtures.engines import FIRST_TEST_TIMEOUT_S

pytestmark = [pytest.mark.engine(ENGINE), pytest.mark.timeout(FIRST_TEST_TIMEOUT_S)]

PASSWORD = "correct horse battery"
GUIDE = Path(__file__).parents[2] / "docs" / "clients.md"
GUIDE_SERVER = '"http://127.0.0.1:8888"'
FOUND = {
    "state": "available",
    "expires_later": True,
    "columns": ["id", "name"],
    "column_types": ["INT_TYPE", "STRING_TYPE"],
    "rows": [[1, "blue pen"]],
    "has_log": True,
    "unknown": "operation_not_found",
    "failed": [1, "engine_error", "failed", True],
    "followed": ["engine_error", "engine_error"],
    "refused": "engine_error",
    "no_dialect": "dialect_not_found",
    "is_listed": True,
    "types": {"id": "INT", "name": "STRING"},
    "preview": [["1", "blue pen"], ["2", "red pen"]],
    "export": ["available", 1, ["rows", "bytes", "files", "path", "table", "schema"]],
    "exists": "already_exists",
    "shared": [1, ["default"], 1, 0],
    "opened": ["available", ["id", "name"]],
    "document": [1, [True], [[7], [8]]],
    "stale": "version_conflict",
    "granted": [["default", "run"]],
    "deleted": True,
    "schedule": ["statement", True, 2, False],
    "schedules": [None, 1, 0],
    "unscheduled": True,
}


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerProcess]:
    """A server started with `queryserver serve --embedded`."""
    state = tmp_path_factory.mktemp("clients") / "data"
    async with running_server(state, settings={"QUERYSERVER_ADMIN_PASSWORD": PASSWORD}) as server:
        yield server


@pytest.fixture(scope="module")
def python_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Python package generated from the API document alone."""
    folder, python = tmp_path_factory.mktemp("python-client"), python_environment()
    command = [str(python), "-m", "openapi_python_client", "generate", "--path", str(TARGET)]
    environment = {**os.environ, "PATH": os.pathsep.join((str(python.parent), os.environ["PATH"]))}
    text = ran(command, folder, environment)
    assert "warning" not in text.lower()
    assert "unable" not in text.lower()
    return folder / "query-server-api-client"


@pytest.fixture(scope="module")
def typescript_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the TypeScript job, type-checked under the strictest rules against the generated types, and
    compiled.
    """
    folder, packages = tmp_path_factory.mktemp("typescript-client"), node_packages()
    (folder / "node_modules").symlink_to(packages / "node_modules")
    for file in (TYPESCRIPT / "main_job.ts", TYPESCRIPT / "tsconfig.json", TYPESCRIPT / "package.json"):
        shutil.copy(file, folder)
    (folder / "guide.ts").write_text(example("typescript").replace(GUIDE_SERVER, 'process.argv[2] ?? ""'))
    programs = packages / "node_modules" / ".bin"
    command = [str(programs / "openapi-typescript"), str(TARGET), "--output", str(folder / "schema.d.ts")]
    text = ran(command, folder, node_environment())
    assert "warn" not in text.lower()
    ran([str(programs / "tsc"), "--project", str(folder)], folder, node_environment())
    return folder


def example(language: str) -> str:
    """Return the example in this language from docs/clients.md, with the password filled in."""
    text = GUIDE.read_text(encoding="utf-8")
    block = text.split(f"```{language}\n", 1)[1].partition("```")[0]
    assert GUIDE_SERVER in block
    return block.replace("…", PASSWORD)


def ran(command: Sequence[str], folder: Path, environment: dict[str, str]) -> str:
    """Run a command; return its output. Fails if the command does."""
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


async def found_by(command: Sequence[str], server: ServerProcess, folder: Path, **environment: str) -> dict[str, Any]:
    """Run a job against the server; return its results."""
    arguments = [*command, server.base_url, "admin", PASSWORD]
    return json.loads(await asyncio.to_thread(ran, arguments, folder, {**os.environ, **environment}))


def require_the_job(found: dict[str, Any]) -> None:
    assert {name: found[name] for name in FOUND} == FOUND
    assert {"duckdb", "sqlite", "postgresql"} <= set(found["interpreters"])
    assert found["history"][0] is True
    assert (found["events"][0], found["events"][-1]) == ("status", "end")
    assert base64.b64decode(found["csv"]) == base64.b64decode(found["exported"]) == b"id,name\r\n1,blue pen\r\n"
    table = pq.read_table(io.BytesIO(base64.b64decode(found["parquet"])))
    assert table.to_pylist() == [{"id": 1, "name": "blue pen"}]
    assert base64.b64decode(found["stored"]) == b"id,name\n1,blue pen\n2,red pen\n"


def test_python_generator_omits_no_operation(python_client: Path):
    paths = json.loads(TARGET.read_text(encoding="utf-8"))["paths"]
    calls = [call for methods in paths.values() for call in methods.values()]
    modules = {file.stem for file in (python_client / "query_server_api_client" / "api").glob("*/*.py")} - {"__init__"}
    assert modules == {call["operationId"] for call in calls}


async def test_python_client_completes_main_workflow(python_client: Path, server: ServerProcess):
    job = [str(python_environment()), str(PYTHON / "main_job.py")]
    require_the_job(await found_by(job, server, python_client, PYTHONPATH=str(python_client)))
    guide = python_client / "guide.py"
    guide.write_text(example("python").replace(GUIDE_SERVER, f'"{server.base_url}"'))
    command = [str(python_environment()), str(guide)]
    assert await asyncio.to_thread(ran, command, python_client, dict(os.environ)) == "[[42]]\n"
    assert (python_client / "answer.csv").read_bytes() == b"answer\r\n42\r\n"


async def test_typescript_client_completes_main_workflow(typescript_client: Path, server: ServerProcess):
    job = [program(ENGINE, "node"), str(typescript_client / "out" / "main_job.js")]
    require_the_job(await found_by(job, server, typescript_client))
    command = [program(ENGINE, "node"), str(typescript_client / "out" / "guide.js"), server.base_url]
    assert len(await asyncio.to_thread(ran, command, typescript_client, dict(os.environ))) == len(f"{UUID(int=0)}\n")
