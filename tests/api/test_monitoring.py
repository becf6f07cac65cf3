"""The calls is_alive, is_ready and metrics (Contract platform 9.1 to 9.3)."""

import asyncio
import json
import re
import shutil
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.api.conftest import ApiOpener
from tests.api.dialects import POSTGRESQL
from tests.api.driving import Api
from tests.fixtures.valkey import PASSWORD, guarded_valkey
from tests.ports import free_port
from tests.timing import until

from queryserver.administration.readiness import ping_broker
from queryserver.platform.metrics import ConnectionCounts


def take_away(directory: Path) -> None:
    shutil.move(directory, directory.with_name("aside"))
    directory.write_text("a file where the directory was")


def bring_back(directory: Path) -> None:
    directory.unlink()
    shutil.move(directory.with_name("aside"), directory)


@pytest.mark.platform(98)
async def test_is_alive_responds_with_all_threads_busy_and_any_token(api: Api):
    release = threading.Event()
    loop = asyncio.get_running_loop()
    pools = [getattr(api.services.threads, field.name) for field in fields(api.services.threads)]
    shared = [None, *(pool for pool in pools if isinstance(pool, Executor))]
    threads = [loop.run_in_executor(pool, release.wait, 30) for pool in shared for _ in range(64)]
    try:
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic x"}):
            async with asyncio.timeout(25):
                answer = await api.http.get("/desktop/debug/is_alive", headers=headers)
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["content-type"].startswith("text/plain")
    finally:
        release.set()
        await asyncio.gather(*threads)


@pytest.mark.platform(98, 99)
async def test_server_without_its_result_store_is_alive_but_not_ready(small_api: ApiOpener):
    async with small_api() as api:
        results = Path(api.services.settings.results_dir)
        take_away(results)
        assert (await api.http.get("/desktop/debug/is_alive")).status_code == 200
        refused = await api.http.get("/desktop/debug/is_ready")
        body = refused.json()
        assert (refused.status_code, body["code"], body["ready"]) == (503, "not_ready", False)
        assert body["checks"]["result_store"]["ok"] is False
        assert int(refused.headers["Retry-After"]) > 0
        assert str(results.parent) not in refused.text
        bring_back(results)
        await is_ready_again(api)


async def is_ready_again(api: Api) -> None:
    """Wait until the server is ready. The server repeats a failed readiness check only after a second."""
    for _ in range(600):
        if (await api.http.get("/desktop/debug/is_ready")).json()["ready"]:
            return
        await asyncio.sleep(0.1)
    raise AssertionError


@pytest.mark.platform(99)
async def test_server_on_another_schema_is_not_ready(small_api: ApiOpener):
    async with small_api() as api:
        newest = await api.database.value("select version_num from alembic_version")
        await api.database.execute("update alembic_version set version_num = '0001'")
        refused = await api.http.get("/desktop/debug/is_ready")
        assert (refused.status_code, refused.json()["checks"]["schema"]["ok"]) == (503, False)
        await api.database.execute("update alembic_version set version_num = $1", newest)
        ready = await api.http.get("/desktop/debug/is_ready")
        assert ready.status_code == 200
        assert set(ready.json()["checks"]) == {"database", "schema", "result_store", "broker"}
        api.services.readiness.stopping = True
        stopping = await api.http.get("/desktop/debug/is_ready")
        seen = (stopping.status_code, stopping.json()["code"], stopping.headers["retry-after"])
        assert seen == (503, "stopping", "5")
        assert stopping.json()["checks"]["database"]["ok"]


@pytest.mark.platform(99)
async def test_server_without_its_broker_is_not_ready(small_api: ApiOpener):
    port = free_port()
    broker = {"enabled": True, "broker_url": f"redis://:{PASSWORD}@127.0.0.1:{port}/0"}
    async with small_api(desktop={"task_server": broker}) as api:
        for _ in range(2):
            refused = await api.http.get("/desktop/debug/is_ready")
            assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
            failed = [name for name, check in refused.json()["checks"].items() if not check["ok"]]
            assert failed == ["broker"]
            assert str(port) not in refused.text
            assert (await api.http.get("/desktop/debug/is_alive")).status_code == 200
            async with guarded_valkey(port=port):
                ready = await api.http.get("/desktop/debug/is_ready")
                assert ready.status_code == 200, ready.text
                assert ready.json()["checks"]["broker"] | {"ms": 0} == {"ok": True, "ms": 0, "enabled": True}


@pytest.mark.platform(99)
async def test_readiness_reveals_no_address(api: Api):
    dsn = api.services.settings.desktop.database.dsn or ""
    shown = (await api.http.get("/desktop/debug/is_ready")).text
    assert "postgres" not in shown
    assert dsn.rpartition("/")[2] not in shown


DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TOKEN = "metrics-token-of-the-tests"

NAMES = {
    *("http_requests_total", "http_request_seconds", "http_requests_active"),
    *("logins_total", "login_throttled_total", "tokens_issued_total", "external_jwt_total", "jwks_fetch_total"),
    *("statements_total", "statements_active", "statement_seconds", "engine_sessions", "engine_errors_total"),
    *("results_bytes", "results_expired_total", "storage_operations_total", "uploads_active"),
    *("db_pool_connections", "db_query_seconds", "leases_lost_total"),
    *("metadata_index_objects", "search_seconds", "build_info"),
    *("tasks_total", "tasks_queued", "workers_alive", "schedules_fired_total", "emails_total"),
    "webhooks_total",
}

LABELS = {
    "http_requests_total": {"method", "route", "status"},
    "http_request_seconds_count": {"route"},
    "statements_total": {"dialect", "outcome"},
    "statement_seconds_count": {"dialect"},
    "engine_sessions": {"dialect"},
    "engine_errors_total": {"dialect", "kind"},
    "storage_operations_total": {"fs", "operation", "outcome"},
    "db_pool_connections": {"state"},
    "build_info": {"version"},
    "results_bytes": set[str](),
}

_SAMPLE = re.compile(r"queryserver_(\w+?)(?:\{(.*)\})? (\S+)")


class Page:
    """A metrics page, parsed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.names = {
            line.split()[2].removeprefix("queryserver_") for line in text.splitlines() if line.startswith("# TYPE ")
        }
        self.samples = {
            (found[1], frozenset(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))): float(found[3])
            for line in text.splitlines()
            if (found := _SAMPLE.fullmatch(line))
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples.get((name, frozenset(labels.items())), 0.0)

    def labels(self, name: str) -> list[set[str]]:
        return [{label for label, _ in labels} for found, labels in self.samples if found == name]


@pytest.fixture(autouse=True)
def long_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise timeouts on which no test relies, because connecting may take seconds on a busy machine."""
    monkeypatch.setattr(ping_broker, "__defaults__", (60.0,))
    monkeypatch.setattr("queryserver.platform.metrics._FACTS_WITHIN_S", 60.0)
    monkeypatch.setattr("queryserver.administration.readiness._LIMIT_S", 60.0)


@pytest.fixture
async def counted(small_api: ApiOpener) -> AsyncIterator[Api]:
    # Calls need the token, because the tests call from loopback, which is not an allowed network.
    async with small_api(desktop={"metrics": {"token": TOKEN, "allowed_networks": ["10.1.0.0/16"]}}) as api:
        yield api


async def scraped(api: Api) -> Page:
    answer = await api.http.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    return Page(answer.text)


@pytest.mark.platform(100)
async def test_foreign_address_requires_the_token(counted: Api):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"X-Forwarded-For": "127.0.0.1"}):
        answer = await counted.http.get("/metrics", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    ana = await counted.user("ana")
    assert (await counted.http.get("/metrics", headers=dict(ana.headers))).status_code == 403
    await scraped(counted)


@pytest.mark.platform(100)
async def test_one_statement_populates_all_metrics_without_private_data(counted: Api):
    ana = await counted.user("verysecretname")
    await ana.run(POSTGRESQL, "SELECT 'verysecrettext'")
    await ana.run(POSTGRESQL, "SELECT verysecretcolumn")
    await ana.get("storage/view=file:///verysecretpath")
    await ana.get("storage/view=verysecretscheme:///")
    page = await scraped(counted)
    assert 'queryserver_storage_operations_total{fs="other"' in page.text
    assert NAMES - page.names - {name.removesuffix("_total") for name in page.names} == set()
    for name, labels in LABELS.items():
        found = page.labels(name)
        assert found, name
        assert all(one == labels for one in found), name
    assert "verysecret" not in page.text
    assert ana.username not in page.text
    assert "127.0.0.1" not in page.text


async def test_alerts_and_dashboard_use_existing_metrics(counted: Api):
    panels = json.loads((DEPLOY / "grafana" / "queryserver.json").read_text())["panels"]
    shown = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    used = set(
        re.findall(r"queryserver_(\w+)", "\n".join([(DEPLOY / "prometheus" / "alerts.yml").read_text(), *shown]))
    )
    assert len(used) >= len(NAMES) // 2
    # The HTTP server counts its connections, but the tests run the application without that server.
    of_connections = CollectorRegistry()
    ConnectionCounts(of_connections)
    there = (await scraped(counted)).names | Page(generate_latest(of_connections).decode()).names
    assert used - there - {f"{name}_bucket" for name in there} == set()


@pytest.mark.platform(100)
async def test_callers_cannot_create_series(counted: Api):
    for number in range(3):
        await counted.http.get(f"/api/v1/nothing-{number}")
        await counted.http.request(f"VERB{number}", "/desktop/debug/is_alive")
    page = await scraped(counted)
    assert page.value("http_requests_total", method="GET", route="other", status="404") == 3
    assert "nothing-" not in page.text
    assert "VERB" not in page.text


async def without_sessions(api: Api, dialect: str) -> Page:
    """Wait until the dialect has no open session; return the metrics page.

    Sessions are closed only after the ends of their statements have been reported.
    """
    pages: list[Page] = []

    async def are_closed() -> bool:
        pages.append(await scraped(api))
        return pages[-1].value("engine_sessions", dialect=dialect) == 0

    await until(are_closed)
    return pages[-1]


async def test_events_are_counted(counted: Api):
    ana = await counted.user("ana")
    await ana.run(POSTGRESQL, "SELECT 1")
    await ana.run(POSTGRESQL, "SELECT nonsense")
    await ana.run("mysql", "rows 3")
    await ana.get("storage/view=file:///nowhere")
    page = await without_sessions(counted, "postgresql")
    assert page.value("statements_total", dialect="postgresql", outcome="available") == 1
    assert page.value("statements_total", dialect="postgresql", outcome="failed") == 1
    assert page.value("engine_errors_total", dialect="postgresql", kind="engine_error") == 1
    assert page.value("statement_seconds_count", dialect="postgresql") == 2
    seen = page.value("http_requests_total", method="POST", route="/api/v1/editor/execute/{dialect:name}", status="200")
    assert seen == 3
    assert page.value("db_query_seconds_count") > 5
    assert page.value("db_pool_connections", state="idle") >= 1
    [operation] = [labels for name, labels in page.samples if name == "storage_operations_total"]
    assert ("operation", "view") in operation


async def test_active_statements_and_stored_results_come_from_the_records(counted, monkeypatch):
    # More than the default of ten seconds may pass between two scrapes on a busy machine.
    monkeypatch.setattr("queryserver.platform.metrics._FACTS_EVERY_S", 3600.0)
    ana = await counted.user("ana")
    running = (await ana.execute("mysql", "sleep 300"))["history_uuid"]
    await ana.running(running)
    page = await scraped(counted)
    assert page.value("statements_active", dialect="mysql", state="running") == 1
    assert page.value("engine_sessions", dialect="mysql") == 1
    await ana.on(running, "cancel_statement")
    await ana.ended(running)
    # The database is not queried again within the interval, so the number is unchanged.
    assert (await scraped(counted)).value("statements_active", dialect="mysql", state="running") == 1


async def test_disabled_metrics_path_is_not_found(small_api: ApiOpener):
    async with small_api(desktop={"metrics": {"enable_prometheus": False, "token": TOKEN}}) as api:
        answer = await api.http.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.platform(100)
async def test_allowed_address_needs_no_token(api: Api):
    assert (await api.http.get("/metrics")).status_code == 200


@pytest.mark.platform(35, 100)
async def test_foreign_client_behind_an_allowed_proxy_is_refused(small_api: ApiOpener):
    """The proxy sets `X-Forwarded-For`. It passes a `Forwarded` header on unchanged."""
    here = ip_network("127.0.0.0/8")
    desktop = {"trusted_proxies": [here], "metrics": {"allowed_networks": [here, ip_network("10.1.0.0/16")]}}
    async with small_api(desktop=desktop) as api:
        for forwarded in ("for=198.51.100.1", "for=127.0.0.1", "for=10.1.2.3", "for=_hidden", ""):
            headers = {"X-Forwarded-For": "203.0.113.9", "Forwarded": forwarded}
            answer = await api.http.get("/metrics", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied"), forwarded
        for headers in ({"X-Forwarded-For": "203.0.113.9"}, {"X-Forwarded-For": ""}, {"Forwarded": "for=junk"}):
            assert (await api.http.get("/metrics", headers=headers)).status_code == 403, headers
        for headers in ({}, {"X-Forwarded-For": "10.1.2.3"}):
            assert (await api.http.get("/metrics", headers=headers)).status_code == 200, headers
