"""An installation: a service database, a results directory, data sources, servers, workers, and calls by its users."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from tests.e2e.harness import ALIVE_WITHIN_S, PROGRAM, ServerProcess, running_server, started
from tests.fixtures.database import execute, new_database

from queryserver.identity.build import open_accounts
from queryserver.identity.model import Username
from queryserver.identity.repository import AccountRepository, NewAccount, StoredLogin
from queryserver.platform.database import open_database
from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.settings.sections import DatabaseSettings
from queryserver.platform.settings.tree import Settings

SECRET_KEY = "k7Qm2vX9pLw4Rt8Zb3Nc6Yf1Hs5Jd0Ge"
USERS = ("ana", "bob", "eve")
LEASE_S = 6
TAKEN_OVER_WITHIN_S = LEASE_S + 15
TERMINAL = {"available", "success", "failed", "canceled", "timed_out", "expired", "closed"}

_NO_VARIABLES: Mapping[str, str] = {}

_numbers = count(1)


@dataclass(frozen=True)
class Node:
    """A server, and calls to it by the installation's users."""

    process: ServerProcess
    http: httpx.AsyncClient
    tokens: Mapping[str, str]

    def headers(self, user: str = "ana") -> dict[str, str]:
        """Return the headers for a user's calls."""
        return {"Authorization": f"Bearer {self.tokens[user]}"}

    async def post(self, path: str, *, user: str = "ana", **fields: Any) -> httpx.Response:
        """Send a POST with form fields."""
        return await self.http.post(f"/api/v1/{path}", data=fields, headers=self.headers(user))

    async def post_ok(self, path: str, *, user: str = "ana", **fields: Any) -> dict[str, Any]:
        """Send a POST that must succeed; return its body."""
        response = await self.post(path, user=user, **fields)
        assert response.status_code == 200, response.text
        return response.json()

    async def execute(self, dialect: str, statement: str, *, user: str = "ana", **fields: Any) -> httpx.Response:
        """Call execute with a JSON body, because form encoding would enlarge a long statement."""
        body = {"statement": statement, **fields}
        return await self.http.post(f"/api/v1/editor/execute/{dialect}", json=body, headers=self.headers(user))

    async def submit(self, dialect: str, statement: str, *, user: str = "ana", **fields: Any) -> str:
        """Submit a statement; return the operation id."""
        body = await self.post_ok(f"editor/execute/{dialect}", user=user, statement=statement, **fields)
        return body["history_uuid"]

    async def status(self, operation: str, *, user: str = "ana", wait: float = 0) -> dict[str, Any]:
        """Return the body of check_status."""
        return await self.post_ok("editor/check_status", user=user, operationId=operation, wait=wait)

    async def state(self, operation: str, *, user: str = "ana", wait: float = 0) -> str:
        """Return the statement's detailed state, `query_status.state`."""
        return (await self.status(operation, user=user, wait=wait))["query_status"]["state"]

    async def finished(self, dialect: str, statement: str, *, user: str = "ana", **fields: Any) -> str:
        """Run a statement until its result is available; return the operation id. Fails if the statement does."""
        operation = await self.submit(dialect, statement, user=user, **fields)
        body = await self.status(operation, user=user, wait=60)
        assert body["query_status"]["state"] in {"available", "success"}, body
        return operation

    async def value(self, dialect: str, statement: str, *, user: str = "ana", **fields: Any) -> Any:
        """Run a statement; return the first cell of its result."""
        operation = await self.finished(dialect, statement, user=user, **fields)
        return (await self.page(operation, user=user))["data"][0][0]

    async def page(self, operation: str, *, user: str = "ana", start_row: int = 0, rows: int = 100) -> dict[str, Any]:
        """Return one page of a result."""
        answer = await self.post_ok(
            "editor/fetch_result_data", user=user, operationId=operation, start_row=start_row, rows=rows
        )
        return answer["result"]

    async def file(self, operation: str, *, user: str = "ana", kind: str = "csv") -> bytes:
        """Download the whole result as a file."""
        path = f"/api/v1/editor/download/{operation}"
        response = await self.http.get(path, params={"format": kind}, headers=self.headers(user))
        assert response.status_code == 200, response.text
        return response.content

    async def until(
        self, operation: str, holds: Callable[[dict[str, Any]], bool], *, user: str = "ana", within_s: float = 60
    ) -> dict[str, Any]:
        """Wait until the statement's query_status satisfies the condition; return the check_status body. Fails
        immediately if the statement ends first.
        """
        give_up = time.monotonic() + within_s
        while True:
            body = await self.status(operation, user=user)
            if holds(body["query_status"]):
                return body
            assert body["query_status"]["state"] not in TERMINAL, body
            assert time.monotonic() < give_up, body
            await asyncio.sleep(0.05)


@dataclass(frozen=True)
class WorkerProcess:
    """A worker or beat of the task server. `owner` is its name in the rows that it owns."""

    process: ServerProcess
    owner: str


@dataclass(frozen=True)
class Installation:
    """The resources that several servers share. `environment` contains the settings of all servers."""

    directory: Path
    database_dsn: str
    users_dsn: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def server(
        self, *, port: int | None = None, variables: Mapping[str, str] = _NO_VARIABLES, **environment: str
    ) -> AsyncIterator[Node]:
        """Run a server on the installation.

        Keyword arguments become environment variables with the common prefix. `variables` are passed unchanged.
        """
        settings = self.settings(**environment) | dict(variables)
        arguments = ["--config", str(self.directory / "queryserver.toml")]
        async with AsyncExitStack() as stack:
            process = await stack.enter_async_context(
                running_server(
                    self.directory / "data",
                    database_dsn=self.database_dsn,
                    port=port,
                    settings=settings,
                    arguments=arguments,
                )
            )
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=process.base_url, timeout=90))
            yield Node(process, http, self.tokens)

    @asynccontextmanager
    async def worker(
        self, *, variables: Mapping[str, str] = _NO_VARIABLES, **environment: str
    ) -> AsyncIterator[WorkerProcess]:
        """Run `queryserver worker` and wait until it accepts statements. `variables` are passed unchanged."""
        async with self._member("worker", variables, environment) as member:
            yield member

    @asynccontextmanager
    async def beat(
        self, *, variables: Mapping[str, str] = _NO_VARIABLES, **environment: str
    ) -> AsyncIterator[WorkerProcess]:
        """Run `queryserver beat` and wait until it is running. `variables` are passed unchanged."""
        async with self._member("beat", variables, environment) as member:
            yield member

    @asynccontextmanager
    async def _member(
        self, kind: str, variables: Mapping[str, str], environment: Mapping[str, str]
    ) -> AsyncIterator[WorkerProcess]:
        command = [str(PROGRAM), kind, "--config", str(self.directory / "queryserver.toml")]
        settings = self.settings(**environment) | {
            "QUERYSERVER__DESKTOP__DATA_DIR": str(self.directory / "data"),
            "QUERYSERVER__DESKTOP__DATABASE__URL": self.database_dsn,
            **variables,
        }
        async with started(command, 0, self.directory, settings) as process:
            yield WorkerProcess(process, await self._owner_of(process, kind))

    async def _owner_of(self, process: ServerProcess, kind: str) -> str:
        give_up = time.monotonic() + ALIVE_WITHIN_S
        while process.process.returncode is None and time.monotonic() < give_up:
            if "queryserver runs" in process.stdout + process.stderr:
                known = "select id from instances where kind = $1 and name like '%-' || $2"
                return await query(self.database_dsn, known, kind, str(process.pid))
            await asyncio.sleep(0.05)
        raise AssertionError(f"no {kind}:\n{process.stdout}\n{process.stderr}")

    def with_task_server(self, broker_url: str, *, lease_s: int = LEASE_S) -> "Installation":
        """Return the same installation with a task server. Workers then run the statements."""
        chosen = {"enabled": "true", "broker_url": broker_url, "heartbeat_s": str(lease_s // 3)}
        more = {f"desktop__task_server__{name}": value for name, value in chosen.items()}
        more["editor__lease_timeout_s"] = str(lease_s)
        return replace(self, environment={**self.environment, **more})

    def settings(self, **environment: str) -> dict[str, str]:
        """Return the environment variables of one process."""
        given = {**self.environment, **environment}
        return {f"QUERYSERVER__{name.upper()}": value for name, value in given.items()}

    def add_tables(self, sections: Mapping[str, Mapping[str, Any]]) -> None:
        """Add sections to the settings file that all processes read when they start."""
        lines: list[str] = []
        for name, tables in sections.items():
            lines += [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in tables.items())]
        with (self.directory / "queryserver.toml").open("a") as settings:
            settings.write("\n".join(lines) + "\n")

    @property
    def results(self) -> Path:
        """The directory with the stored results."""
        return self.directory / "data" / "results"

    def spooled(self) -> list[Path]:
        """Return the paths of all stored result files."""
        return list(self.results.rglob("*.arrow")) if self.results.is_dir() else []

    def through(self, database_dsn: str) -> "Installation":
        """Return the same installation, but with this DSN for the service database."""
        return replace(self, database_dsn=database_dsn)


@asynccontextmanager
async def installed(
    postgres: EmbeddedPostgres, template: str, directory: Path, interpreters: Mapping[str, Any] | None = None
) -> AsyncIterator[Installation]:
    """Create an installation for one test, with three users and DuckDB, SQLite and PostgreSQL connectors."""
    name = f"e2e_{next(_numbers)}"
    admin = postgres.admin_dsn()
    await execute(admin, f"CREATE ROLE {name} LOGIN PASSWORD '{name}'")
    await execute(admin, f"CREATE DATABASE {name} TEMPLATE template0 OWNER {name}")
    users_dsn = f"postgresql://{name}:{name}@127.0.0.1:{postgres.address.port}/{name}"
    databases = directory / "databases"
    databases.mkdir()
    (databases / "e2e.sqlite").touch()
    _write_settings(directory / "queryserver.toml", databases, users_dsn, interpreters or {})
    environment = {
        "desktop__secret_key": SECRET_KEY,
        "desktop__shutdown_grace_s": "1",
        "desktop__database__pool_max": "5",
        "editor__lease_timeout_s": str(LEASE_S),
        "editor__cancel_wait_s": "3",
    }
    try:
        async for database_dsn in new_database(postgres, template=template):
            tokens = await signed_in(database_dsn, directory)
            yield Installation(directory, database_dsn, users_dsn, tokens, environment)
    finally:
        await execute(admin, f"DROP DATABASE {name} WITH (FORCE)")
        await execute(admin, f"DROP ROLE {name}")


async def query(dsn: str, sql: str, *arguments: object) -> Any:
    """Run a query directly on the database; return the first value of its first row."""
    connection = await asyncpg.connect(dsn, timeout=60, command_timeout=60)
    try:
        return await connection.fetchval(sql, *arguments)
    finally:
        await connection.close(timeout=60)


async def at_work(admin_dsn: str, marker: str) -> int:
    """Return the number of statements containing `marker` that PostgreSQL is running."""
    return await query(
        admin_dsn,
        """select count(*) from pg_stat_activity
        where query like '%' || $1 || '%' and state <> 'idle' and pid <> pg_backend_pid()""",
        marker,
    )


async def is_at_work(admin_dsn: str, marker: str) -> bool:
    """Return whether PostgreSQL is running exactly one statement that contains `marker`."""
    return await at_work(admin_dsn, marker) == 1


@asynccontextmanager
async def held(dsn: str, lock: int) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Hold a PostgreSQL advisory lock. Statements that wait for the lock block until the yielded function is called."""
    holder = await asyncpg.connect(dsn, timeout=60, command_timeout=60)
    try:
        await holder.execute(f"SELECT pg_advisory_lock({lock})")
        yield lambda: holder.execute(f"SELECT pg_advisory_unlock({lock})")
    finally:
        await holder.close(timeout=60)


async def eventually(holds: Callable[[], Any], *, within_s: float = 60) -> None:
    """Wait until the asynchronous condition is true. Fails after `within_s` seconds."""
    give_up = time.monotonic() + within_s
    while not await holds():
        assert time.monotonic() < give_up, "it never came true"
        await asyncio.sleep(0.1)


def _write_settings(file: Path, databases: Path, users_dsn: str, more: Mapping[str, Any]) -> None:
    interpreters: dict[str, Mapping[str, Any]] = {
        "duckdb": {"interface": "duckdb", "options": {"path": "e2e.duckdb"}},
        "sqlite": {"interface": "sqlite", "options": {"path": "e2e.sqlite"}},
        "postgresql": {"interface": "sqlalchemy", "options": {"url": users_dsn}},
        **more,
    }
    lines = ["[desktop.connector_policy]", f"local_database_dir = {json.dumps(str(databases))}"]
    for key, table in interpreters.items():
        lines.append(f"[notebook.interpreters.{key}]")
        lines += [f"{name} = {_toml(value)}" for name, value in table.items()]
    file.write_text("\n".join(lines) + "\n")


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items()) + "}"
    return json.dumps(value)


async def signed_in(database_dsn: str, directory: Path, users: Sequence[str] = USERS) -> dict[str, str]:
    """Create users and return their tokens. The users have no passwords, because hashing would take most of a test's
    time.
    """
    settings = Settings.model_validate({"desktop": {"secret_key": SECRET_KEY, "data_dir": directory / "data"}})
    tokens = {}
    async with (
        open_database(database_dsn, DatabaseSettings(pool_max=2)) as database,
        open_accounts(settings, database) as accounts,
    ):
        for name in users:
            account = NewAccount(Username(name, name), is_admin=False, groups=())
            user_id = await AccountRepository(database).create(account, default_group="default")
            login = StoredLogin(user_id, name, password_hash=None, is_active=True, token_epoch=0)
            tokens[name] = accounts.tokens.issue(login).access
    return tokens
