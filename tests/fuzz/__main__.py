"""Calls every operation in the OpenAPI document with valid and invalid input, against a separate server.

`make fuzz` takes ten minutes, `make fuzz ARGS=60` one minute. Each run prints its random seed, and `make fuzz ARGS="60
SEED"` reuses a seed. The exit code is 1 if a response reports a fault, has an undocumented status, or has a body that
does not match its schema. It is also 1 if a call is accepted or refused contrary to the document.
"""

import asyncio
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from tests.e2e.harness import ServerProcess, running_server
from tests.fuzz.hooks import ANSWERED, KNOWN, TOKEN

_HOOKS = Path(__file__).parent / "hooks.py"
_PROJECT = Path(__file__).parents[2]
_PASSWORD = "correct horse battery"
_SECONDS = 600
_SEED_BITS = 64
_REQUEST_TIMEOUT_S = 300
"""A call may wait a minute for its statement, and may take several times as long on a busy machine."""
_SHOWN_CHARACTERS, _SHOWN_SUMMARY = 20_000, 1_000
_CHECKS = (
    *("no_fault", "status_code_conformance", "content_type_conformance", "response_schema_conformance"),
    *("invalid_is_refused", "valid_is_accepted"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """The outcome of a run. `answers` contains the number of responses by operation and status."""

    code: int
    report: str
    answers: Mapping[tuple[str, int], int]

    @property
    def served(self) -> set[str]:
        """Operations that succeeded at least once."""
        return {operation for operation, status in self.answers if status < 300}

    @property
    def findings(self) -> str:
        """The failures in the report and the end of its summary. If there are no failures, the end of the report."""
        _, _, failures = self.report.partition("= FAILURES =")
        found, _, rest = failures.partition("= WARNINGS =")
        return (
            f"{found[:_SHOWN_CHARACTERS]}\n{rest[-_SHOWN_SUMMARY:]}" if failures else self.report[-_SHOWN_CHARACTERS:]
        )


async def fuzz(seconds: int | None, *options: str, seed: int) -> Run:
    """Fuzz a new server as its administrator. The run takes `seconds`, or makes as many calls as `options` specify."""
    with tempfile.TemporaryDirectory(prefix="queryserver-fuzz-") as directory:
        state = Path(directory) / "data"
        async with (
            running_server(state, settings={"QUERYSERVER_ADMIN_PASSWORD": _PASSWORD}) as server,
            httpx.AsyncClient(base_url=server.base_url, timeout=_REQUEST_TIMEOUT_S) as http,
        ):
            token = await _log_in(http)
            answered = Path(directory) / "answered"
            answered.touch()
            environment = {
                "SCHEMATHESIS_HOOKS": str(_HOOKS),
                "PYTHONPATH": str(_PROJECT),
                TOKEN: token,
                KNOWN: json.dumps(await _known(http)),
                ANSWERED: str(answered),
            }
            code, report = await _run(_command(server, seconds, seed, options), environment, Path(directory))
            if (await http.get("/api/v1/editor/get_history")).status_code != 200:
                code, report = 1, f"{report}\nThe token did not live until the end: the run says nothing.\n"
            return Run(code, report, _counted(answered))


def _counted(answered: Path) -> Mapping[tuple[str, int], int]:
    pairs = (line.split("\t") for line in answered.read_text().splitlines())
    return Counter((operation, int(status)) for operation, status in pairs)


async def _log_in(http: httpx.AsyncClient) -> str:
    answer = await http.post("/api/v1/token/auth", data={"username": "admin", "password": _PASSWORD})
    token = str(answer.json()["access"])
    http.headers["Authorization"] = f"Bearer {token}"
    return token


async def _known(http: httpx.AsyncClient) -> dict[str, list[Any]]:
    """Create objects on the server; return the values of existing objects for each field that refers to one."""
    statement = {"statement": "SELECT 1 AS id, 'blue pen' AS name", "wait": 30}
    operations = [
        (await http.post(f"/api/v1/editor/execute/{dialect}", json=statement)).json()["history_uuid"]
        for dialect in ("duckdb", "sqlite", "postgresql")
    ]
    session = (await http.post("/api/v1/editor/create_session", json={"session": {"type": "duckdb"}})).json()
    file = {"file": ("pens.csv", b"id,name\n1,blue pen\n")}
    reference = (await http.post("/api/v1/importer/upload/file", files=file)).json()["file_path"]
    home = (await http.get("/api/v1/storage/filesystems")).json()[0]["user_home_directory"]
    stored = (await http.post("/api/v1/storage/upload/file", files=file, params={"dest": home})).json()["path"]
    part = str(uuid4())
    sent = {"dest": home, "qquuid": part, "qqtotalfilesize": "40", "qqtotalparts": "2", "qqfilename": "parts.csv"}
    await http.post("/api/v1/storage/upload/chunks", files=file, params=sent)
    await http.post("/api/v1/iam/users/new", json={"username": "ana", "is_service_account": True})
    paths = [home, stored, f"{home}/new.csv", "/"]
    return {
        "dialect": ["duckdb", "sqlite", "postgresql"],
        "source_type": ["duckdb", "sqlite", "postgresql"],
        "snippet": [{"type": "duckdb"}, {"type": "postgresql"}],
        "database": ["main", "public", "sample"],
        "table": ["customers", "orders", "products"],
        "column": ["id", "name", "country"],
        "operationId": operations,
        "operation_id": operations,
        "session": [session["session"]],
        "statement": ["SELECT 1", "SELECT * FROM customers", "SELEC"],
        "path": [*paths, paths[1:3]],
        "src_path": [*paths, paths[1:3]],
        "dest_path": paths,
        "dest": [home, stored],
        "qquuid": [part],
        "file_path": [reference, stored],
        "connector": ["duckdb", {"id": "1"}],
        "username": ["ana"],
        "interface": ["duckdb", "trino", "sqlalchemy"],
    }


def _command(server: ServerProcess, seconds: int | None, seed: int, options: Sequence[str]) -> list[str]:
    return [
        str(Path(sys.executable).parent / "st"),
        "run",
        f"{server.base_url}/api/v1/openapi.json",
        *(() if seconds is None else ("--max-time", str(seconds))),
        *("--seed", str(seed), "--request-timeout", str(_REQUEST_TIMEOUT_S)),
        *("--checks", ",".join(_CHECKS), "--continue-on-failure"),
        *("--generation-database", "none", "--no-color"),
        *options,
    ]


async def _run(command: Sequence[str], environment: Mapping[str, str], directory: Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env={**os.environ, **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return process.returncode or 0, output.decode(errors="replace")


def main(arguments: Sequence[str]) -> int:
    """Fuzz for the given duration with the given seed, and print the seed and the report. Returns the exit code."""
    seconds = int(arguments[0]) if arguments else _SECONDS
    seed = int(arguments[1]) if len(arguments) > 1 else random.getrandbits(_SEED_BITS)
    print(f"Seed: {seed}", flush=True)
    run = asyncio.run(fuzz(seconds, seed=seed))
    operations = {operation for operation, _ in run.answers}
    print(run.report)
    answers = sum(run.answers.values())
    print(f"{answers} answers; {len(run.served)} of {len(operations)} operations did what they were asked.")
    return run.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
