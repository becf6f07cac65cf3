"""An application that is served in this process, and its users."""

import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx
import uvicorn
from pydantic import SecretStr
from starlette.types import ASGIApp
from tests.api.answers import require_contract
from tests.api.transport import AppTransport
from tests.fakes.catalog import FakeCatalogEngine
from tests.fakes.engine import READS_FILES, TAKES_WORDS, FakeEngine
from tests.fakes.estimates import FakeEstimatingEngine
from tests.fakes.loading import FakeLoadingEngine
from tests.fixtures.valkey import running_valkey
from tests.modes import TASK_SERVER
from tests.timing import until
from uvicorn.lifespan.on import LifespanOn

from queryserver.connectors.engine_builders import EngineBuilder
from queryserver.connectors.model import Connector
from queryserver.engines.protocol import Engine
from queryserver.files.build import BUILDERS, Builder
from queryserver.files.model import Scheme
from queryserver.identity.model import Username
from queryserver.identity.repository import AccountRepository, NewAccount, StoredLogin
from queryserver.main import create_app
from queryserver.platform.database import Database, open_database
from queryserver.platform.roles import Role
from queryserver.platform.settings.sections import DatabaseSettings
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import background
from queryserver.services import Services
from queryserver.wiring import open_services
from queryserver.worker import work

_numbers = count(1)
_ACTIVE = {"waiting", "running"}


@dataclass
class Fakes:
    """Builds scripted engines for the interface `fake`, and real engines for all other interfaces. `built` contains the
    scripted engines.
    """

    built: dict[str, FakeEngine] = field(default_factory=dict)

    def build(self, builder: EngineBuilder, connector: Connector) -> Engine:
        if connector.interface != "fake":
            return builder.build(connector)
        kind = FakeCatalogEngine if connector.options.get("catalog") else FakeEngine
        kind = FakeLoadingEngine if connector.options.get("tables") else kind
        kind = FakeEstimatingEngine if connector.options.get("estimates") else kind
        capabilities = READS_FILES if connector.options.get("files") else TAKES_WORDS
        more = {"capabilities": capabilities} if kind is FakeEngine else {}
        return self.built.setdefault(connector.key, kind(dialect=connector.dialect, **more))


@dataclass(frozen=True, slots=True)
class Api:
    """An application that is served in this process."""

    app: ASGIApp
    services: Services
    database: Database
    """The service database. Tests use it to backdate timestamps and count rows."""
    fakes: Mapping[str, FakeEngine]
    http: httpx.AsyncClient
    worker: Services | None = None
    """The services of the worker process, which runs the statements if a task server is used (`--task-server`)."""

    @property
    def running(self) -> Services:
        """The services of the process that runs statements and owns their in-memory state."""
        return self.worker or self.services

    async def user(self, name: str = "user", *, admin: bool = False, groups: tuple[str, ...] = ()) -> "Caller":
        """Create a user and sign in. A number makes the username unique within the process."""
        return await sign_in(self, f"{name}{next(_numbers)}", admin=admin, groups=groups)

    @property
    def shelf(self) -> FakeCatalogEngine:
        """The scripted engine with metadata. It is configured under the key `shelf`."""
        engine = self.services.connectors.engine(self._connector("shelf"))
        assert isinstance(engine, FakeCatalogEngine)
        return engine

    def _connector(self, key: str) -> Connector:
        connector = self.services.connectors.find(key)
        assert connector is not None
        return connector

    @property
    def stranger(self) -> "Caller":
        """A caller without credentials."""
        return Caller(self, "", {})


@asynccontextmanager
async def open_api(settings: Settings, stores: Mapping[Scheme, Builder] = BUILDERS) -> AsyncGenerator[Api]:
    """Open an application with its own services. `stores` maps URL schemes to functions that build file systems."""
    fakes, worker = Fakes(), None
    async with AsyncExitStack() as stack:
        if TASK_SERVER in os.environ:
            valkey = await stack.enter_async_context(running_valkey())
            settings = _with_broker(settings, valkey.url)
            worker = await stack.enter_async_context(
                open_services(settings, role=Role.WORKER, engines=fakes.build, stores=stores)
            )
            await stack.enter_async_context(background(work(worker), "worker"))
        database = await stack.enter_async_context(
            open_database(settings.desktop.database.dsn or "", DatabaseSettings(pool_max=2, connect_timeout_s=60))
        )
        services = await stack.enter_async_context(open_services(settings, engines=fakes.build, stores=stores))
        app = create_app(settings, services=services)
        await stack.enter_async_context(_lifespan(app))
        async with httpx.AsyncClient(transport=AppTransport(app), base_url="http://test", timeout=90) as http:
            yield Api(app, services, database, fakes.built, http, worker)


@asynccontextmanager
async def _lifespan(app: ASGIApp) -> AsyncGenerator[None]:
    """Run the application's lifespan in a task, as uvicorn does."""
    lifespan = LifespanOn(uvicorn.Config(app, lifespan="on", log_config=None))
    await lifespan.startup()
    try:
        yield
    finally:
        await lifespan.shutdown()


def _with_broker(settings: Settings, url: str) -> Settings:
    # A user may run eight statements on one connector, as without workers. The ninth slot is reserved for other users
    # (ADR 66).
    changed = {"enabled": True, "broker_url": SecretStr(url), "concurrency": 9}
    tasks = settings.desktop.task_server.model_copy(update=changed)
    return settings.model_copy(update={"desktop": settings.desktop.model_copy(update={"task_server": tasks})})


async def sign_in(api: Api, username: str, *, admin: bool, groups: tuple[str, ...]) -> "Caller":
    """Create a user in the given groups, and issue credentials for the user.

    The user has no password, because hashing one would take most of a test's time.
    """
    records = AccountRepository(api.database)
    for group in groups:
        await records.ensure_group(group, ())
    account = NewAccount(Username(username, username), is_admin=admin, groups=groups)
    user_id = await records.create(account, default_group=api.services.settings.desktop.auth.default_user_group)
    login = StoredLogin(user_id, username, password_hash=None, is_active=True, token_epoch=0)
    pair = api.services.accounts.tokens.issue(login)
    return Caller(api, username, {"Authorization": f"Bearer {pair.access}"})


@dataclass(frozen=True, slots=True)
class Caller:
    """A client with the credentials of one user. Every response is checked against the contract before the test
    receives it.
    """

    api: Api
    username: str
    headers: Mapping[str, str]

    async def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send any request. `path` is relative to /api/v1/ unless it starts with a slash."""
        path = path if path.startswith("/") else f"/api/v1/{path}"
        headers = [*self.headers.items(), *dict(more.pop("headers", {})).items()]
        response = await self.api.http.request(method, path, headers=headers, **more)
        require_contract(response)
        return response

    async def post(self, path: str, /, **fields: Any) -> httpx.Response:
        """Send a POST with form fields."""
        return await self.send("POST", path, data=fields)

    async def post_json(self, path: str, /, **fields: Any) -> httpx.Response:
        """Send a POST with a JSON body."""
        return await self.send("POST", path, json=fields)

    async def get(self, path: str, /, *, headers: Mapping[str, str] | None = None, **query: Any) -> httpx.Response:
        return await self.send("GET", path, params=query, headers=headers or {})

    async def post_ok(self, path: str, /, **fields: Any) -> dict[str, Any]:
        """Send a POST that must return HTTP 200; return the body. The response may still report a failed statement."""
        response = await self.post(path, **fields)
        assert response.status_code == 200, response.text
        return response.json()

    async def refused(self, path: str, **fields: Any) -> tuple[int, int, str]:
        """Send a POST that must fail; return its HTTP status, `status` and `code`."""
        return verdict(await self.post(path, **fields))

    async def execute(self, dialect: object, statement: str, **fields: Any) -> dict[str, Any]:
        """Submit a statement, and do not wait for its end. Returns the response body."""
        return await self.post_ok(f"editor/execute/{dialect}", statement=statement, **fields)

    async def run(self, dialect: object, statement: str, **fields: Any) -> dict[str, Any]:
        """Submit a statement and wait for its end. Returns the response body."""
        body = await self.execute(dialect, statement, wait=60, **fields)
        assert body["query_status"]["state"] not in _ACTIVE, body
        return body

    async def on(self, operation: str, call: str, **fields: Any) -> dict[str, Any]:
        """Make an editor call for an operation, for example `on(op, "check_status")`."""
        return await self.post_ok(f"editor/{call}", operationId=operation, **fields)

    async def ended(self, operation: str) -> dict[str, Any]:
        """Wait for the statement's end; return the check_status body."""
        body = await self.on(operation, "check_status", wait=60)
        assert body["query_status"]["state"] not in _ACTIVE, body
        return body

    async def running(self, operation: str) -> None:
        """Wait until the engine is running the statement."""
        assert await self.begun(operation) == "running"

    async def begun(self, operation: str) -> str:
        """Wait until the statement has left the queue; return its state. A fast statement may already have ended."""
        states: list[str] = []

        async def has_left_the_queue() -> bool:
            states.append(await self.state(operation))
            return states[-1] != "waiting"

        await until(has_left_the_queue)
        return states[-1]

    async def seen_running(self, dialect: object, statement: str) -> str:
        """Submit the statement with increasing durations until it is observed while it is running.

        Returns the operation id. In `statement`, `{}` stands for the duration in seconds.
        """
        for seconds in (3, 12, 48):
            operation = (await self.execute(dialect, statement.format(seconds)))["history_uuid"]
            if await self.begun(operation) == "running":
                return operation
            await self.ended(operation)
        message = "the statement had always ended before it was looked at"
        raise AssertionError(message)

    async def state(self, operation: str) -> str:
        return (await self.on(operation, "check_status"))["query_status"]["state"]

    async def page(self, operation: str, **fields: Any) -> dict[str, Any]:
        """Fetch a page, which must succeed; return the `result` of the response."""
        body = await self.on(operation, "fetch_result_data", **fields)
        assert body["status"] == 0, body
        return body["result"]

    async def result(self, dialect: object, statement: str, **fields: Any) -> dict[str, Any]:
        """Run a statement, which must succeed; return the `result` of its first page."""
        body = await self.run(dialect, statement)
        assert body["status"] == 0, body
        return await self.page(body["history_uuid"], **fields)

    async def history(self, **query: Any) -> dict[str, Any]:
        response = await self.get("editor/get_history", **query)
        assert response.status_code == 200, response.text
        return response.json()


def without_ends(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the audit events, except for the ends of statements and imports. Statements of earlier tests may still
    end.
    """
    return [event for event in events if event["operation"] not in {"statement.end", "import.end"}]


def verdict(response: httpx.Response) -> tuple[int, int, str]:
    """Return the HTTP status of a response, and the `status` and `code` in its body."""
    body = response.json()
    return response.status_code, body["status"], body["code"]
