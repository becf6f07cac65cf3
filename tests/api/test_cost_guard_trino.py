"""Limits on estimates, and budgets of bytes, with the estimates and the scanned bytes of Trino (Contract editor 4.10,
platform 6.5).
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.api.conftest import make_settings
from tests.api.driving import Api, Caller, open_api
from tests.engines.servers import HttpAddress
from tests.fixtures.database import new_database

from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.settings.editor import InterpreterSettings

pytestmark = pytest.mark.engine("trino")

ORDERS = "SELECT max(totalprice) FROM tpch.tiny.orders"
LINES = "SELECT sum(l.quantity) FROM tpch.tiny.lineitem l JOIN tpch.tiny.orders o USING (orderkey)"


@pytest.fixture(scope="module")
async def api(
    tmp_path_factory: pytest.TempPathFactory,
    postgres: EmbeddedPostgres,
    migrated_template: str,
    users_url: str,
    trino_server: HttpAddress,
) -> AsyncIterator[Api]:
    options: dict[str, Any] = {"url": trino_server.url, "catalog": "tpch", "schema": "tiny"}
    async for dsn in new_database(postgres, template=migrated_template):
        settings = make_settings(
            tmp_path_factory.mktemp("guard-trino"), dsn, users_url, budget_bytes_per_day=1_000_000_000
        )
        settings.notebook.interpreters["trino"] = InterpreterSettings(
            interface="trino", options=options, max_estimated_bytes=1_000_000
        )
        async with open_api(settings) as opened:
            yield opened


@pytest.mark.item(115)
async def test_a_large_join_is_refused_and_a_small_scan_runs(ana: Caller):
    refused = await ana.run("trino", LINES)
    assert refused["code"] == "estimate_exceeded", refused
    estimate = refused["query_status"]["estimated_bytes"]
    assert estimate > 1_000_000
    assert f"reads {estimate} bytes" in refused["message"]
    assert "above the limit of 1000000 bytes (976.6 KiB) of the connector trino" in refused["message"]
    small = await ana.run("trino", ORDERS, rows=1)
    assert small["status"] == 0, small
    assert 0 < small["query_status"]["estimated_bytes"] < 1_000_000
    explained = await ana.post_ok("editor/explain/trino", statement=LINES)
    assert explained["estimated_bytes"] == estimate


@pytest.mark.item(116)
async def test_each_statement_of_a_script_is_estimated(ana: Caller):
    body = await ana.run("trino", f"{ORDERS}; {LINES}", run_all="true")
    assert (body["code"], body["statement_id"]) == ("estimate_exceeded", 1)


@pytest.mark.item(117)
async def test_statements_without_an_estimate_run(ana: Caller):
    body = await ana.run("trino", "SHOW SCHEMAS FROM tpch")
    assert body["status"] == 0, body
    assert "limits on estimates do not apply" in (await ana.on(body["history_uuid"], "get_logs"))["logs"]


@pytest.mark.item(120)
async def test_the_bytes_that_trino_reports_are_counted(ana: Caller):
    body = await ana.run("trino", ORDERS)
    status = (await ana.on(body["history_uuid"], "check_status"))["query_status"]
    answer = await ana.get("iam/budget")
    expected = status["scanned_bytes"] if "scanned_bytes" in status else status["estimated_bytes"]
    assert answer.json()["budget"]["bytes"]["used"] == expected
    assert answer.json()["budget"]["engine_s"]["used"] >= 1
