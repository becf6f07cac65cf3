"""What goes with time (Contract editor 4.4, 7.1, 13). Time passes by moving the dates of the records back."""

import pytest
import structlog.testing
from tests.api.driving import Caller
from tests.cases import each

from queryserver.statements import retention
from queryserver.statements.retention import alone_in_cleaning


async def aged(ana: Caller, operation: str, age: str) -> None:
    """Make an operation look as if everything in it had happened so long ago."""
    await ana.api.database.execute(
        f"""update statements set recorded_at = recorded_at - interval '{age}', ended_at = ended_at - interval '{age}'
        where id = $1""",
        operation,
    )


async def test_logs_go_after_their_days_and_the_call_stays(ana: Caller):
    old, new = [(await ana.run("mysql", "rows 1"))["history_uuid"] for _ in range(2)]
    await aged(ana, old, "8 days")
    await ana.api.services.retention.clean_up()
    body = await ana.on(old, "get_logs")
    assert (body["status"], body["logs"], body["progress"]) == (0, "", 100)
    assert (await ana.on(new, "get_logs"))["logs"]
    assert (await ana.page(old))["data"] == [[0]]


async def test_records_go_after_their_days(ana: Caller):
    old, new = [(await ana.run("mysql", "rows 3000 wide 100"))["history_uuid"] for _ in range(2)]
    await aged(ana, old, "366 days")
    await ana.api.services.retention.clean_up()
    assert await ana.refused("editor/check_status", operationId=old) == (404, 2, "operation_not_found")
    assert [entry["uuid"] for entry in (await ana.history())["history"]] == [new]
    results = ana.api.services.settings.results_dir
    assert not [path for path in results.rglob(f"*{old}*") if path.is_file()]
    assert (await ana.page(new))["rows_total"] == 3000


async def test_a_running_statement_is_kept_however_old(ana: Caller):
    operation = (await ana.execute("mysql", "sleep 30"))["history_uuid"]
    await aged(ana, operation, "4000 days")
    await ana.api.services.retention.clean_up()
    assert await ana.state(operation) in {"waiting", "running"}
    await ana.on(operation, "cancel_statement")


async def test_an_idempotency_key_is_forgotten_after_a_day(ana: Caller):
    key = {"Idempotency-Key": "k"}
    first = await ana.send("POST", "editor/execute/mysql", data={"statement": "rows 1"}, headers=key)
    await ana.api.database.execute(
        """update idempotency_keys set created_at = created_at - interval '24 hours'
        where user_id = (select id from users where username_key = $1)""",
        ana.username,
    )
    second = await ana.send("POST", "editor/execute/mysql", data={"statement": "rows 2"}, headers=key)
    assert second.status_code == 200, second.text
    assert second.json()["history_uuid"] != first.json()["history_uuid"]
    again = await ana.send("POST", "editor/execute/mysql", data={"statement": "rows 2"}, headers=key)
    assert again.headers["idempotency-replayed"] == "true"


@each(("most", "advised"), [(1, 1), (100_000, 0)])
async def test_the_log_advises_a_clean_up_above_so_many_documents(
    ana: Caller, monkeypatch: pytest.MonkeyPatch, most: int, advised: int
):
    for _ in range(2):
        await ana.run("mysql", "rows 1")
    monkeypatch.setattr(retention, "MANY_DOCUMENTS", most)
    with structlog.testing.capture_logs() as lines:
        await ana.api.services.retention.tidy()
    assert [line["more_than"] for line in lines if "run `queryserver cleanup`" in line["event"]] == [most] * advised


async def test_one_process_at_a_time_cleans_up_by_itself(ana: Caller):
    operation = (await ana.run("mysql", "rows 1"))["history_uuid"]
    await aged(ana, operation, "366 days")
    service, dsn = ana.api.services, ana.api.services.settings.desktop.database.dsn or ""
    async with alone_in_cleaning(dsn) as first, alone_in_cleaning(dsn) as second:
        assert (first, second) == (True, False)
        await service.retention.tidy()
        assert await ana.state(operation) == "available"
    await service.retention.tidy()
    assert await ana.refused("editor/check_status", operationId=operation) == (404, 2, "operation_not_found")


async def test_a_command_cleans_up_while_a_process_does_so_by_itself(ana: Caller):
    operation = (await ana.run("mysql", "rows 1"))["history_uuid"]
    await aged(ana, operation, "366 days")
    async with alone_in_cleaning(ana.api.services.settings.desktop.database.dsn or ""):
        await ana.api.services.retention.clean_up()
    assert await ana.refused("editor/check_status", operationId=operation) == (404, 2, "operation_not_found")
