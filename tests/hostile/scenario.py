"""Ten ordinary users work while one hostile user runs all attacks in `attacks.py` in parallel."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import psutil
from tests.bench.client import Client
from tests.e2e.harness import ServerProcess, running_server

from queryserver.identity.build import open_accounts
from queryserver.identity.model import AuthenticatedUser
from queryserver.platform.database import open_database
from queryserver.platform.embedded.cluster import SERVICE_ROLE, load_or_create_secrets
from queryserver.platform.embedded.postgres import recorded_address
from queryserver.platform.settings.sections import DatabaseSettings
from queryserver.platform.settings.tree import Settings

USERS = 10
PEAK_MIB = 500
AFTERWARD_MIB = 350
P99_MS = 300

_PROJECT = Path(__file__).resolve().parents[2]
_MIB = 1024 * 1024
_SECRET_KEY = "k7Qm2vX9pLw4Rt8Zb3Nc6Yf1Hs5Jd0Ge"
_PASSWORD = "ordinary-" + os.urandom(8).hex()
_ADDRESS = "127.0.0.2"
_PAUSE_S = 0.3
_LOGIN_EVERY_S = 5.0
_ACTIVE = {"waiting", "running"}
_LOST = {"engine_process_lost", "engine_memory_exceeded", "session_lost"}
_STATEMENTS = {
    "duckdb": ("SELECT 42 AS n, CAST(DATE '2026-11-23' AS VARCHAR) AS d", [42, "2026-11-23"]),
    "postgresql": (
        "SELECT count(*) AS n, to_char(DATE '2026-11-23', 'YYYY-MM-DD') AS d FROM customers",
        [400, "2026-11-23"],
    ),
    "sqlite": ("SELECT count(*) AS n, date('2026-11-23') AS d FROM customers", [400, "2026-11-23"]),
}


@dataclass
class Report:
    """The response times and failures of the ordinary users' calls, and the server's memory usage."""

    errors: list[str] = field(default_factory=list)
    """Descriptions of the failures that an ordinary user saw."""
    lost: int = 0
    """Responses lost because the DuckDB file's process exited. The hostile user shares this file, fills it and crashes
    its process.
    """
    calls: int = 0
    check_status_ms: list[float] = field(default_factory=list)
    pages_ms: list[float] = field(default_factory=list)
    idle_mib: float = 0.0
    peak_mib: float = 0.0
    peak_with_helpers_mib: float = 0.0
    """Peak memory including the server's child processes, except for those of PostgreSQL."""
    afterward_mib: float = 0.0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """The number of responses to the attacks by attack and outcome."""
    log: str = ""

    def quantile_ms(self, share: float, *, of: str) -> float:
        """Return the quantile `share` of `check_status_ms` or `pages_ms`."""
        times = sorted(getattr(self, of))
        return times[min(int(len(times) * share), len(times) - 1)] if times else float("inf")


async def run(folder: Path, *, attacked_s: float, afterward_s: float, only: Sequence[str] = ()) -> Report:
    """Run the whole scenario on a new embedded server. `only` selects attacks, so that the cost of each can be
    measured.
    """
    settings = {
        "QUERYSERVER__DESKTOP__SECRET_KEY": _SECRET_KEY,
        "QUERYSERVER_ADMIN_PASSWORD": _PASSWORD,
        # Both timeouts are shorter than their defaults, so that two minutes have the effect of a longer period.
        "QUERYSERVER__DESKTOP__REQUEST_HEAD_TIMEOUT_S": "5",
        "QUERYSERVER__DESKTOP__RESPONSE_STALL_TIMEOUT_S": "30",
    }
    names = ["hostile", *(f"user{number}" for number in range(USERS))]
    async with running_server(folder / "data", settings=settings) as server:
        await _make_users(folder / "data", names)
        tokens = {name: await _token(server, name) for name in names}
        report = Report(idle_mib=_resident_mib(server))
        async with _watched(server, report):
            await _attacked(server, tokens, attacked_s, report, only)
            ends_at = time.monotonic() + afterward_s
            while time.monotonic() < ends_at:
                await asyncio.sleep(0.5)
                report.afterward_mib = _resident_mib(server)
                if afterward_s < 60 and report.afterward_mib < AFTERWARD_MIB:
                    break
        report.log = server.stdout + server.stderr
    return report


async def _attacked(
    server: ServerProcess, tokens: Mapping[str, str], seconds: float, report: Report, only: Sequence[str]
) -> None:
    arguments = [server.base_url, tokens["hostile"], "user0", str(seconds), *only]
    command = [sys.executable, "-m", "tests.hostile.attacks", *arguments]
    hostile = await asyncio.create_subprocess_exec(*command, cwd=_PROJECT, stdout=asyncio.subprocess.PIPE)
    try:
        ends_at = time.monotonic() + seconds
        ordinary = (_Ordinary(number, server, tokens[f"user{number}"], ends_at, report) for number in range(USERS))
        await asyncio.gather(*(one.work() for one in ordinary), _log_in(server, ends_at, report))
        printed, _ = await asyncio.wait_for(hostile.communicate(), 120)
        report.outcomes = json.loads(printed)
    finally:
        if hostile.returncode is None:
            hostile.kill()
            await hostile.wait()


class _Ordinary:
    """A user who submits small statements, waits for them, reads pages, browses files and reads metadata."""

    def __init__(self, number: int, server: ServerProcess, token: str, ends_at: float, report: Report) -> None:
        self._number = number
        self._server = server
        self._token = token
        self._ends_at = ends_at
        self._report = report

    async def work(self) -> None:
        """Submit statements and browse until the time is up."""
        turn = self._number
        await asyncio.sleep(self._number * _PAUSE_S / USERS)
        while time.monotonic() < self._ends_at:
            # A broken connection counts as an error. The user then continues on a new connection.
            try:
                async with Client(self._server.base_url, self._token, local_address=_ADDRESS) as client:
                    while time.monotonic() < self._ends_at:
                        turn += 1
                        await self._statement(client, list(_STATEMENTS)[turn % len(_STATEMENTS)])
                        await self._browse(client, turn)
                        await asyncio.sleep(_PAUSE_S)
            except (OSError, EOFError, TimeoutError) as error:
                self._report.errors.append(f"user{self._number}: {type(error).__name__}: {error}")
                await asyncio.sleep(_PAUSE_S)

    async def _statement(self, client: Client, dialect: str) -> None:
        text, expected = _STATEMENTS[dialect]
        body = await self._post(client, f"editor/execute/{dialect}", statement=text)
        if (operation := body.get("history_uuid")) is None:
            return
        status = body
        while status.get("query_status", {}).get("state") in _ACTIVE:
            await asyncio.sleep(0.05)
            with _timed(self._report.check_status_ms):
                status = await self._post(client, "editor/check_status", operationId=operation)
        with _timed(self._report.check_status_ms):
            await self._post(client, "editor/check_status", operationId=operation)
        with _timed(self._report.pages_ms):
            page = await self._post(client, "editor/fetch_result_data", operationId=operation)
        rows = page.get("result", {}).get("data")
        if page.get("code") in _LOST:
            self._report.lost += 1
        elif rows != [expected]:
            self._report.errors.append(f"user{self._number}: {dialect} gave {rows} and {status.get('query_status')}")
        await self._post(client, "editor/close_statement", operationId=operation)

    async def _browse(self, client: Client, turn: int) -> None:
        paths = (
            "editor/get_history",
            f"storage/list?path={quote('/shared/samples')}&pagesize=20",
            f"storage/display?path={quote('/shared/samples/customers.csv')}&length=2000",
            "storage/filesystems",
        )
        path = paths[turn % len(paths)]
        self._judge(path, *await client.get(f"/api/v1/{path}"))
        dialect, database = (("postgresql", "public"), ("duckdb", "main"))[turn % 2]
        await self._post(client, f"editor/autocomplete/{database}/", snippet=json.dumps({"type": dialect}))

    async def _post(self, client: Client, path: str, **fields: str) -> dict[str, object]:
        return self._judge(path, *await client.post(f"/api/v1/{path}", fields))

    def _judge(self, path: str, status: int, body: bytes) -> dict[str, object]:
        self._report.calls += 1
        answer = json.loads(body)
        has_failed = isinstance(answer, dict) and answer.get("status", 0) != 0 and answer.get("code") not in _LOST
        if status != 200 or has_failed:
            self._report.errors.append(f"user{self._number}: {path}: {status} {body[:300]!r}")
        return answer if isinstance(answer, dict) else {}


async def _log_in(server: ServerProcess, ends_at: float, report: Report) -> None:
    """From time to time, log in from a known address as the user whose password is being guessed."""
    fields = {"username": "user0", "password": _PASSWORD}
    while time.monotonic() < ends_at:
        async with Client(server.base_url, local_address=_ADDRESS) as client:
            status, body = await client.post("/api/v1/token/auth", fields)
        report.calls += 1
        if status != 200:
            report.errors.append(f"login of user0: {status} {body[:300]!r}")
        await asyncio.sleep(_LOGIN_EVERY_S)


@contextmanager
def _timed(times: list[float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    times.append((time.perf_counter() - began) * 1000)


@asynccontextmanager
async def _watched(server: ServerProcess, report: Report) -> AsyncIterator[None]:
    async def watch() -> None:
        while True:
            resident = _resident_mib(server)
            report.peak_mib = max(report.peak_mib, resident)
            report.peak_with_helpers_mib = max(report.peak_with_helpers_mib, resident + _helpers_mib(server))
            await asyncio.sleep(0.05)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _resident_mib(server: ServerProcess) -> float:
    return psutil.Process(server.pid).memory_info().rss / _MIB


def _helpers_mib(server: ServerProcess) -> float:
    helpers = 0
    for process in psutil.Process(server.pid).children():
        try:
            if "postgres" not in process.name():
                helpers += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return helpers / _MIB


async def _make_users(data_dir: Path, names: list[str]) -> None:
    settings = Settings.model_validate({"desktop": {"secret_key": _SECRET_KEY, "data_dir": data_dir}})
    async with (
        open_database(_service_dsn(data_dir), DatabaseSettings(pool_max=2)) as database,
        open_accounts(settings, database) as accounts,
    ):
        for name in names:
            await accounts.accounts.create(AuthenticatedUser(name), _PASSWORD)


def _service_dsn(data_dir: Path) -> str:
    home = data_dir.resolve() / "postgresql"
    address = recorded_address(home)
    assert address is not None
    secret = quote(load_or_create_secrets(home / "secrets.json", may_create=False).service, safe="")
    host = quote(address.socket_directory, safe="")
    return f"postgresql://{SERVICE_ROLE}:{secret}@/{SERVICE_ROLE}?host={host}&port={address.port}"


async def _token(server: ServerProcess, name: str) -> str:
    async with Client(server.base_url, local_address=_ADDRESS) as client:
        status, body = await client.post("/api/v1/token/auth", {"username": name, "password": _PASSWORD})
    assert status == 200, body
    return json.loads(body)["access"]
