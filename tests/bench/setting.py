"""The measured server, started as a user would start it, with embedded defaults."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
import psutil
from tests.bench.client import Client
from tests.e2e.harness import PROGRAM, ServerProcess, running_server

from queryserver.platform.embedded.cluster import SAMPLE_OWNER
from queryserver.platform.embedded.postgres import EmbeddedResources, sample_interpreters
from queryserver.platform.embedded.sample_server import prepare

PASSWORD = "bench-" + os.urandom(8).hex()
USERS = 8
_SETTINGS = {
    # The measurements run more statements concurrently than one person would.
    "QUERYSERVER__EDITOR__MAX_STATEMENTS_PER_USER": "200",
    "QUERYSERVER__EDITOR__MAX_STREAMS_PER_USER": "200",
}


@dataclass(frozen=True)
class Measured:
    """One row of the results table."""

    what: str
    value: str
    target: str = ""


@dataclass(frozen=True)
class Bench:
    """A running server and the means to call it."""

    server: ServerProcess
    data_dir: Path
    tokens: tuple[str, ...]
    sample_dsn: str
    service_dsn: str

    def client(self, user: int = 0) -> Client:
        """Return a client for one of the users."""
        return Client(self.server.base_url, self.tokens[user % len(self.tokens)])

    @property
    def processor_s(self) -> float:
        """CPU seconds that the server process has used so far."""
        used = psutil.Process(self.server.pid).cpu_times()
        return used.user + used.system

    @property
    def resident_mib(self) -> float:
        """Resident memory of the server process, excluding PostgreSQL."""
        return psutil.Process(self.server.pid).memory_info().rss / 2**20


class Peak:
    """The observed peak of the server's memory in MiB."""

    mib = 0.0


@asynccontextmanager
async def peak_mib(bench: Bench) -> AsyncIterator[Peak]:
    """Sample the server's memory until the context exits."""
    peak = Peak()

    async def watch() -> None:
        while True:
            peak.mib = max(peak.mib, bench.resident_mib)
            await asyncio.sleep(0.05)

    watcher = asyncio.create_task(watch())
    try:
        yield peak
    finally:
        watcher.cancel()


@asynccontextmanager
async def bench_server(
    folder: Path,
    more: Mapping[str, Mapping[str, object]] | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    database: Callable[[str], AbstractAsyncContextManager[str]] = nullcontext,
) -> AsyncIterator[Bench]:
    """Start a new server with embedded PostgreSQL, sample data, and a few users who are logged in.

    `more` are additional interpreters; `settings` are additional environment variables.
    `database` replaces the DSN that the server uses, for instance by one that leads through a proxy.
    """
    async with prepare(folder / "state") as given:
        defaults = replace(given, sample_dsn=await login_without_limit(given))
        interpreters = {
            name: table.model_dump(include={"interface", "options"})
            for name, table in sample_interpreters(defaults).items()
        } | dict(more or {})
        environment = {
            **_SETTINGS,
            **(settings or {}),
            "QUERYSERVER__DESKTOP__DATABASE__AUTO_MIGRATE": "true",
            "QUERYSERVER__DESKTOP__CONNECTOR_POLICY__LOCAL_DATABASE_DIR": str(defaults.databases_dir),
            "QUERYSERVER__NOTEBOOK__INTERPRETERS": json.dumps(interpreters),
        }
        data_dir = folder / "data"
        async with (
            database(defaults.service_dsn) as dsn,
            running_server(data_dir, database_dsn=dsn, settings=environment) as server,
        ):
            direct = {"QUERYSERVER__DESKTOP__DATABASE__URL": defaults.service_dsn}
            for number in range(USERS):
                await _create_user(f"user{number}", {**direct, "QUERYSERVER__DESKTOP__DATA_DIR": str(data_dir)})
            tokens = await asyncio.gather(*(_token(server, f"user{number}") for number in range(USERS)))
            yield Bench(server, data_dir, tuple(tokens), defaults.sample_dsn, defaults.service_dsn)


async def login_without_limit(defaults: EmbeddedResources) -> str:
    """Return the sample database's DSN for a separate role, because the default role may open few connections."""
    connection = await asyncpg.connect(defaults.sample_admin_dsn or defaults.service_dsn)
    try:
        await connection.execute(f"CREATE ROLE bench LOGIN PASSWORD '{PASSWORD}'")
        await connection.execute(f"GRANT {SAMPLE_OWNER} TO bench")
    finally:
        await connection.close()
    url = urlsplit(defaults.sample_dsn)
    return url._replace(netloc=f"bench:{PASSWORD}@{url.netloc.rpartition('@')[2]}").geturl()


async def administrator_token(bench: Bench) -> str:
    """Create an administrator and return their token."""
    database = {"QUERYSERVER__DESKTOP__DATABASE__URL": bench.service_dsn}
    await _create_user("root", {**database, "QUERYSERVER__DESKTOP__DATA_DIR": str(bench.data_dir)}, "--admin")
    return await _token(bench.server, "root")


async def _create_user(name: str, environment: Mapping[str, str], *options: str) -> None:
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM),
        "create-user",
        name,
        *options,
        "--password-stdin",
        stdin=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    await process.communicate(PASSWORD.encode())
    assert process.returncode == 0


async def _token(server: ServerProcess, name: str) -> str:
    async with httpx.AsyncClient(base_url=server.base_url) as client:
        answer = await client.post("/api/v1/token/auth", data={"username": name, "password": PASSWORD})
        answer.raise_for_status()
        return answer.json()["access"]
