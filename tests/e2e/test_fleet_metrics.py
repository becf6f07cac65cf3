"""Prometheus can scrape the metrics of all processes in a fleet (Contract platform 9.3)."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from tests.e2e.harness import ServerProcess
from tests.e2e.installation import Installation, eventually, installed
from tests.fixtures import program
from tests.fixtures.database import execute
from tests.fixtures.valkey import running_valkey
from tests.ports import free_port

from queryserver.platform.embedded.postgres import EmbeddedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CONTRACT = Path(__file__).resolve().parents[2] / "docs" / "contract" / "platform.md"
TOKEN = "metrics-token-of-the-fleet"
DUE = """insert into schedules (name, owner_id, kind, connector, statement, interval_s, timezone, next_run_at)
    select 'due', id, 'statement', 'postgresql', 'SELECT 1', 3600, 'UTC', now() from users where username = 'ana'"""
OF_HTTP = {"http_requests_total", "http_request_seconds", "http_requests_active"}
"""Metrics about HTTP calls, which workers and beats do not have."""


@dataclass(frozen=True)
class Page:
    """The parsed metrics page of one process."""

    samples: dict[str, float]
    """Metric values. The keys are metric names with labels, but without the common prefix."""
    names: set[str]
    """Names of all metrics, including metrics that have no samples yet."""


async def page(url: str) -> Page:
    """Fetch and parse the metrics page of the process at this address. Fails unless the page requires the token."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        assert (await client.get("/metrics")).status_code == 403
        answer = await client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200, answer.text
    samples = re.findall(r"^queryserver_(\S+) (\S+)$", answer.text, re.MULTILINE)
    names = set(re.findall(r"^# TYPE queryserver_(\S+)", answer.text, re.MULTILINE))
    return Page({name: float(value) for name, value in samples}, names)


async def counted(url: str, sample: str) -> bool:
    """Return whether the sample's value on the metrics page is above zero."""
    return (await page(url)).samples.get(sample, 0) > 0


def promised() -> set[str]:
    """Return the names of all metrics that the contract lists."""
    section = CONTRACT.read_text().partition("### 9.3")[2].partition("\n###")[0]
    listed = section.partition("Names (all prefixed `queryserver_`): ")[2].partition("No label")[0]
    return set(re.findall(r"`(\w+)(?:\{[^`]*\})?`", listed))


@pytest.fixture
async def place(tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path: Path) -> AsyncIterator[Installation]:
    """A fleet whose metrics pages require the token."""
    async with running_valkey() as broker, installed(tcp_open, migrated_template, tmp_path) as place:
        fleet = place.with_task_server(broker.url)
        more = {
            "desktop__task_server__beat_enabled": "true",
            "desktop__metrics__token": TOKEN,
            "desktop__metrics__allowed_networks": "[]",
        }
        yield replace(fleet, environment={**fleet.environment, **more})


@pytest.mark.platform(100)
async def test_worker_and_beat_metrics_are_served_on_their_own_ports(place: Installation) -> None:
    ports = {role: free_port() for role in ("worker", "beat")}
    listening = {role: {"desktop__task_server__metrics_port": str(port)} for role, port in ports.items()}
    worker_url, beat_url = (f"http://127.0.0.1:{ports[role]}" for role in ("worker", "beat"))
    async with (
        place.server() as node,
        place.worker(**listening["worker"]) as worker,
        place.beat(**listening["beat"]) as beat,
    ):
        await node.finished("postgresql", "SELECT 1")
        await node.finished("duckdb", "SELECT 1")
        # A statement is counted after its end has been recorded, so clients may see its end earlier.
        by_duckdb = 'statements_total{dialect="duckdb",outcome="available"}'
        await eventually(lambda: _counts(worker_url, by_duckdb, 1))
        await execute(place.database_dsn, DUE)
        fired = 'schedules_fired_total{outcome="submitted"}'
        await eventually(lambda: counted(beat_url, fired))
        by_worker = 'statements_total{dialect="postgresql",outcome="available"}'
        await eventually(lambda: _counts(worker_url, by_worker, 2))

        # The metrics page waits only briefly for the database, so it may show earlier values.
        for url in (node.process.base_url, worker_url, beat_url):
            await eventually(lambda url=url: _counts(url, "workers_alive", 1))
        server = await page(node.process.base_url)
        pages = {"server": server, "worker": await page(worker_url), "beat": await page(beat_url)}
        assert by_worker not in server.samples, "it runs none"
        assert {role: fired in one.samples for role, one in pages.items()} == {
            "server": False,
            "worker": False,
            "beat": True,
        }
        missing = {role: {name for name in promised() if not _has(one, name)} for role, one in pages.items()}
        assert missing == {"server": set(), "worker": OF_HTTP, "beat": OF_HTTP}
        assert len(promised()) > 25
        for one in pages.values():
            assert one.samples["workers_alive"] == 1
            assert "ana" not in str(one)

        alive = await program.run("health", "--port", str(ports["worker"]), cwd=place.directory, env={})
        assert alive.code == 0, alive
        # The metrics port is closed when its process exits.
        for process, url in ((worker.process, worker_url), (beat.process, beat_url)):
            assert await process.terminate() == 0
            await _refuses(url, process)


def _has(one: Page, name: str) -> bool:
    return bool(one.names & {name, name.removesuffix("_total")})


async def _counts(url: str, sample: str, number: float) -> bool:
    return (await page(url)).samples.get(sample, 0) == number


async def _refuses(url: str, process: ServerProcess) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("/metrics")
    assert "Traceback" not in process.stdout + process.stderr
