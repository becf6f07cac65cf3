"""Budgets of users for one UTC day (Contract platform 6.5)."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from tests.api.conftest import make_settings
from tests.api.dialects import POSTGRESQL
from tests.api.driving import Api, Caller, open_api, verdict
from tests.fakes.estimates import ROW_BYTES, SCANNED_ROW_BYTES, FakeEstimatingEngine
from tests.fixtures.database import new_database

from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.settings.editor import InterpreterSettings

_SECONDS, _BYTES = 1000, 10_000_000
"""The budget of the settings `editor`."""
_DAY_START = "date_trunc('day', now() at time zone 'UTC') at time zone 'UTC'"


@pytest.fixture(scope="module")
async def api(
    tmp_path_factory: pytest.TempPathFactory, postgres: EmbeddedPostgres, migrated_template: str, users_url: str
) -> AsyncIterator[Api]:
    editor: dict[str, Any] = {
        "budget_engine_s_per_day": _SECONDS,
        "budget_bytes_per_day": _BYTES,
        "group_limits": {
            "analysts": {"budget_engine_s_per_day": 5000},
            "services": {"budget_engine_s_per_day": 0, "budget_bytes_per_day": 0},
        },
    }
    async for dsn in new_database(postgres, template=migrated_template):
        settings = make_settings(tmp_path_factory.mktemp("budgets"), dsn, users_url, **editor)
        measured = InterpreterSettings(interface="fake", options={"estimates": True})
        settings.notebook.interpreters["measured"] = measured
        week = InterpreterSettings(interface="fake", options={"statement_timeout_s": 7 * 86_400})
        settings.notebook.interpreters["patient"] = week
        async with open_api(settings) as opened:
            yield opened


async def budget_of(caller: Caller, **query: Any) -> dict[str, Any]:
    answer = await caller.get("iam/budget", **query)
    assert answer.status_code == 200, answer.text
    return answer.json()["budget"]


async def change(api: Api, body: dict[str, Any], values: str) -> None:
    """Change the record of a statement."""
    await api.database.execute(f"update statements set {values} where id = $1", UUID(body["history_uuid"]))


async def use(caller: Caller, values: str) -> dict[str, Any]:
    """Run a statement, and change its record so that it has used something."""
    body = await caller.run("mysql", "rows 1")
    assert body["status"] == 0, body
    await change(caller.api, body, values)
    return body


def ran(seconds: float) -> str:
    return f"sent_at = now() - make_interval(secs => {seconds}), ended_at = now()"


class TestCounting:
    @pytest.mark.item(122)
    async def test_a_new_user_has_used_nothing(self, ana: Caller):
        budget = await budget_of(ana)
        assert budget["username"] == ana.username
        assert budget["engine_s"] == {"limit": _SECONDS, "used": 0, "left": _SECONDS}
        assert budget["bytes"] == {"limit": _BYTES, "used": 0, "left": _BYTES}
        resets_at = datetime.fromisoformat(budget["resets_at"])
        assert timedelta(0) < resets_at - datetime.now(UTC) <= timedelta(days=1)
        assert (resets_at.hour, resets_at.minute, resets_at.second) == (0, 0, 0)

    async def test_engine_time_runs_from_the_send_to_the_end(self, ana: Caller):
        before = datetime.now(UTC).hour
        await use(ana, ran(100))
        used = (await budget_of(ana))["engine_s"]["used"]
        # Shortly after midnight, only a part of the 100 s belongs to this day.
        assert used == 100 or (used < 100 and before in {23, 0})

    async def test_a_running_statement_counts_so_far(self, ana: Caller):
        body = await ana.execute("mysql", "work")
        await ana.running(body["history_uuid"])
        await change(ana.api, body, f"sent_at = greatest(now() - interval '40 s', {_DAY_START})")
        assert (await budget_of(ana))["engine_s"]["used"] in range(1, 100)
        await ana.on(body["history_uuid"], "cancel_statement")

    @pytest.mark.item(120)
    async def test_of_a_statement_over_midnight_only_the_seconds_of_this_day_count(self, ana: Caller):
        over = f"recorded_at = {_DAY_START} - interval '1 hour', sent_at = {_DAY_START} - interval '1 hour'"
        await use(ana, f"{over}, ended_at = {_DAY_START} + interval '70 s'")
        await use(ana, f"{over}, ended_at = {_DAY_START} - interval '1 s', scanned_bytes = 5")
        assert (await budget_of(ana))["engine_s"]["used"] == 70
        assert (await budget_of(ana))["bytes"]["used"] < 1000

    async def test_a_statement_of_a_connector_with_a_longer_time_limit_counts_on_its_last_day(self, ana: Caller):
        body = await ana.run("patient", "rows 1")
        begin = f"{_DAY_START} - interval '6 days'"
        values = f"recorded_at = {begin}, sent_at = {begin}, ended_at = {_DAY_START}, scanned_bytes = 77"
        await change(ana.api, body, values)
        assert (await budget_of(ana))["bytes"]["used"] == 77

    async def test_reported_bytes_take_precedence_over_the_estimate_and_that_over_the_rows(self, ana: Caller):
        await ana.run("measured", "rows 1")
        before = (await budget_of(ana))["bytes"]["used"]
        engine = ana.api.fakes["measured"]
        assert isinstance(engine, FakeEstimatingEngine)
        await ana.run("measured", "rows 10")
        estimated = (await budget_of(ana))["bytes"]["used"] - before
        engine.reports_scans = True
        try:
            await ana.run("measured", "rows 10")
        finally:
            engine.reports_scans = False
        assert estimated == 10 * ROW_BYTES
        assert (await budget_of(ana))["bytes"]["used"] - before - estimated == 10 * SCANNED_ROW_BYTES
        before = (await budget_of(ana))["bytes"]["used"]
        await ana.run("mysql", "rows 10")
        assert (await budget_of(ana))["bytes"]["used"] > before

    async def test_answers_from_stored_results_and_unsent_statements_count_nothing(self, ana: Caller):
        text = "SELECT 'Hello World!'"
        await ana.run("mysql", text)
        before = await budget_of(ana)
        for _ in range(3):
            assert (await ana.run("mysql", text, max_age_s=3600))["query_status"]["reused_from"]
        await ana.run("frozen", "INSERT INTO t VALUES (1)")
        assert (await budget_of(ana))["bytes"] == before["bytes"]

    async def test_a_sum_above_64_bits_is_shown_as_the_largest_number(self, ana: Caller):
        for body in [await ana.run("mysql", "rows 1") for _ in range(3)]:
            await change(ana.api, body, f"scanned_bytes = {2**63 - 1}")
        assert (await budget_of(ana))["bytes"] == {"limit": _BYTES, "used": 2**63 - 1, "left": 0}

    async def test_closed_results_keep_counting(self, ana: Caller):
        body = await use(ana, f"{ran(20)}, scanned_bytes = 12345")
        await ana.on(body["history_uuid"], "close_statement")
        assert (await budget_of(ana))["bytes"]["used"] == 12345


class TestExhausted:
    @pytest.mark.item(120)
    @pytest.mark.parametrize(
        ("values", "text"),
        [
            (f"ended_at = sent_at + make_interval(secs => {_SECONDS})", "s of engine time"),
            (f"scanned_bytes = {_BYTES}", "bytes"),
        ],
    )
    async def test_new_statements_are_refused_until_midnight(self, api: Api, ana: Caller, values: str, text: str):
        await use(ana, values)
        for fields in ({}, {"run_all": "true"}):
            answer = await ana.post("editor/execute/mysql", statement="rows 1; rows 2", **fields)
            assert verdict(answer) == (429, -1, "budget_exhausted")
            body, resets_at = answer.json(), datetime.fromisoformat((await budget_of(ana))["resets_at"])
            assert text in body["message"]
            assert "`editor.budget_" in body["message"]
            wait = timedelta(seconds=int(answer.headers["Retry-After"]))
            assert abs(datetime.now(UTC) + wait - resets_at) < timedelta(seconds=30)
        assert (await ana.history())["count"] == 1
        bob = await api.user("bob")
        assert (await bob.run("mysql", "rows 1"))["status"] == 0

    @pytest.mark.item(120)
    async def test_metadata_results_and_replays_go_on(self, ana: Caller):
        first = await ana.run("mysql", "rows 3", client_request_id="once")
        await change(ana.api, first, f"scanned_bytes = {_BYTES}")
        assert (await ana.page(first["history_uuid"], rows=10))["data"] == [[0], [1], [2]]
        again = await ana.execute("mysql", "rows 3", client_request_id="once")
        assert again["history_uuid"] == first["history_uuid"]
        assert (await ana.post("editor/autocomplete", snippet='{"type": "postgresql"}')).status_code == 200
        explained = await ana.post_ok(f"editor/explain/{POSTGRESQL}", statement="SELECT 1")
        assert explained["status"] == 0

    @pytest.mark.item(120)
    async def test_statements_of_yesterday_do_not_count(self, ana: Caller):
        yesterday = f"recorded_at = {_DAY_START} - interval '2 h', sent_at = {_DAY_START} - interval '2 h'"
        await use(ana, f"{yesterday}, ended_at = {_DAY_START} - interval '1 s', scanned_bytes = {_BYTES}")
        assert (await ana.run("mysql", "rows 1"))["status"] == 0

    @pytest.mark.item(122)
    async def test_a_group_has_a_budget_of_its_own(self, api: Api):
        analyst = await api.user("analyst", groups=("analysts",))
        await use(analyst, f"ended_at = sent_at + make_interval(secs => {_SECONDS})")
        assert (await analyst.run("mysql", "rows 1"))["status"] == 0
        assert (await budget_of(analyst))["engine_s"]["limit"] == 5000
        service = await api.user("service", groups=("services", "analysts"))
        await use(service, f"scanned_bytes = {10 * _BYTES}")
        assert (await budget_of(service))["bytes"] == {"limit": None, "used": 10 * _BYTES, "left": None}
        assert (await service.run("mysql", "rows 1"))["status"] == 0

    @pytest.mark.item(120)
    async def test_the_bytes_that_postgresql_expects_to_read_use_up_the_budget(self, ana: Caller):
        table = f"budget_{ana.username}"
        made = f"CREATE TABLE {table} AS SELECT n, repeat('x', 200) AS t FROM generate_series(1, 20000) AS n"
        assert (await ana.run(POSTGRESQL, made))["status"] == 0
        assert (await ana.run(POSTGRESQL, f"ANALYZE {table}"))["status"] == 0
        used = [(await budget_of(ana))["bytes"]["used"]]
        while used[-1] < _BYTES and len(used) < 10:
            assert (await ana.run(POSTGRESQL, f"SELECT count(*) FROM {table}"))["status"] == 0
            used.append((await budget_of(ana))["bytes"]["used"])
            assert used[-1] - used[-2] > 20000 * 200
        answer = await ana.post(f"editor/execute/{POSTGRESQL}", statement=f"DROP TABLE {table}")
        assert verdict(answer) == (429, -1, "budget_exhausted")

    @pytest.mark.item(121)
    async def test_the_time_limit_is_what_is_left(self, ana: Caller):
        await use(ana, f"ended_at = sent_at + make_interval(secs => {_SECONDS - 2.5})")
        body = await ana.run("mysql", "sleep 300")
        assert body["query_status"]["state"] == "timed_out"
        assert "what is left of your budget" in (await ana.on(body["history_uuid"], "get_logs"))["logs"]

    @pytest.mark.item(121)
    async def test_a_whole_script_gets_what_is_left(self, ana: Caller):
        await use(ana, f"ended_at = sent_at + make_interval(secs => {_SECONDS - 2.5})")
        body = await ana.run("mysql", "rows 1; sleep 300; rows 2", run_all="true")
        assert body["query_status"]["state"] == "timed_out"
        assert len(body["query_status"]["statements"]) == 2


class TestAdministration:
    @pytest.mark.item(122)
    async def test_administrators_see_the_budgets_of_others(self, api: Api, ana: Caller):
        boss = await api.user("boss", admin=True)
        await use(ana, f"scanned_bytes = 777, {ran(1)}")
        assert (await budget_of(boss, username=ana.username))["bytes"]["used"] == 777
        assert verdict(await ana.get("iam/budget", username=boss.username)) == (403, -1, "admin_required")
        assert verdict(await boss.get("iam/budget", username="nobody.here")) == (404, -1, "unknown_user")

    @pytest.mark.item(122)
    async def test_the_users_with_the_most_engine_time_come_first(self, api: Api):
        boss, much, little = (await api.user("boss", admin=True), await api.user("much"), await api.user("little"))
        await use(much, f"ended_at = sent_at + make_interval(secs => {_SECONDS * 50})")
        await use(little, f"ended_at = sent_at + make_interval(secs => {_SECONDS * 40})")
        answer = await boss.get("iam/budgets", limit=2)
        found = answer.json()["budgets"]
        assert [one["username"] for one in found] == [much.username, little.username]
        assert found[0]["engine_s"] == {"limit": _SECONDS, "used": _SECONDS * 50, "left": 0}
        assert verdict(await much.get("iam/budgets")) == (403, -1, "admin_required")
