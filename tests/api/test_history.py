"""The calls get_history and create_notebook, and retention (Contract editor 4.4, 7.1, 11 to 13).

To simulate that time has passed, tests backdate records.
"""

import json
import re
import time

import pytest
import structlog.testing
from tests.api.answers import TIMES
from tests.api.conftest import ApiOpener
from tests.api.dialects import Dialect, every_dialect
from tests.api.documents.calls import save
from tests.api.driving import Api, Caller, verdict

from queryserver.statements import retention
from queryserver.statements.retention import clean_up_lock


class TestHistory:
    @pytest.mark.item(67)
    async def test_history_lists_only_own_entries_newest_first(self, api: Api, ana: Caller, bob: Caller):
        await bob.run("mysql", "rows 9")
        began = time.time() * 1000
        for number in range(3):
            await ana.run("mysql", f"rows {number}")
        body = await ana.history()
        assert (body["count"], body["message"]) == (3, "History fetched")
        assert [entry["data"]["statement"] for entry in body["history"]] == ["rows 2", "rows 1", "rows 0"]
        assert all(
            began - 1000 <= entry["data"]["lastExecuted"] <= time.time() * 1000 + 1000 for entry in body["history"]
        )
        admin = await api.user(admin=True)
        assert (await admin.history())["count"] == 0

    @pytest.mark.item(67)
    @every_dialect
    async def test_entry_fully_describes_its_operation(self, api: Api, dialect: Dialect):
        ana = await api.user()
        body = await ana.run(dialect, dialect.rows(3))
        (entry,) = (await ana.history())["history"]
        assert (entry["id"], entry["uuid"]) == (body["history_id"], body["history_uuid"])
        assert (entry["name"], entry["type"]) == ("", f"query-{dialect}")
        assert entry["absoluteUrl"] == f"/editor?editor={body['history_id']}"
        data = entry["data"]
        assert data == data | {
            "statement": dialect.rows(3),
            "status": "available",
            "parentSavedQueryUuid": "",
            "state": "available",
            "message": "",
            "connector": dialect.name,
            "database": "",
            "rows": 3,
            **{name: body["query_status"][name] for name in TIMES},
        }
        assert data["queue_position"] is None

    @pytest.mark.item(67)
    async def test_status_changes_without_polling(self, ana: Caller):
        operation = (await ana.execute("mysql", "sleep 30"))["history_uuid"]
        assert (await ana.history())["history"][0]["data"]["status"] in {"waiting", "running"}
        await ana.on(operation, "cancel_statement")
        assert (await ana.history())["history"][0]["data"]["status"] == "canceled"
        failed = await ana.run("mysql", "fail nicely")
        data = (await ana.history())["history"][0]["data"]
        assert (data["status"], data["state"], data["message"]) == ("failed", "failed", failed["message"])
        await ana.run("mysql", "ddl")
        data = (await ana.history())["history"][0]["data"]
        assert (data["status"], data["state"]) == ("available", "success")

    @pytest.mark.item(67)
    async def test_polling_does_not_change_the_order(self, ana: Caller):
        operations = [(await ana.run("mysql", f"rows {number}"))["history_uuid"] for number in range(3)]
        before = (await ana.history())["history"]
        await ana.on(operations[0], "check_status")
        await ana.page(operations[0])
        assert (await ana.history())["history"] == before

    @pytest.mark.item(67)
    async def test_pages_contain_all_entries_newest_first(self, ana: Caller):
        for number in range(7):
            await ana.run("mysql", f"rows {number}")
        pages = [await ana.history(page=page, limit=3) for page in (1, 2, 3, 4, 10**9, 10**20)]
        assert {page["count"] for page in pages} == {7}
        assert [len(page["history"]) for page in pages] == [3, 3, 1, 0, 0, 0]
        seen = [entry["data"]["statement"] for page in pages for entry in page["history"]]
        assert seen == [f"rows {number}" for number in reversed(range(7))]

    @pytest.mark.item(67)
    async def test_out_of_range_limit_becomes_100(self, ana: Caller):
        await ana.api.database.execute(
            """insert into statements (id, user_id, connector, dialect, state, statement, statement_index,
                statements_count, position, statement_hash, guid, secret, session_id, session_guid, row_limit,
                timeout_s, deadline_at, has_result_set)
            select gen_random_uuid(), users.id, 'mysql', 'mysql', 'closed', 'rows 1', 0, 1, '{0,0,0,5}', '',
                gen_random_uuid()::text, '', 0, '', 1, 1, now(), true
            from users, generate_series(1, 120) where username_key = $1""",
            ana.username,
        )
        assert len((await ana.history())["history"]) == 50
        for limit in ("101", "0", "-1", "100", str(10**20), str(-(10**20))):
            assert len((await ana.history(limit=limit))["history"]) == 100

    @pytest.mark.item(67)
    @pytest.mark.parametrize(
        "query",
        [{"page": "0"}, {"page": "-1"}, {"page": str(-(10**20))}, {"page": "x"}, {"limit": "x"}, {"limit": "1.5"}],
    )
    async def test_invalid_numbers_are_refused(self, ana: Caller, query: dict[str, str]):
        answer = await ana.get("editor/get_history", **query)
        assert verdict(answer) == (400, -1, "invalid_parameter")
        assert next(iter(query)) in answer.json()["message"]

    @pytest.mark.item(67)
    async def test_doc_type_accepts_every_form_of_a_name(self, ana: Caller):
        for connector in ("mysql", "hive2", "7070"):
            await ana.run(connector, "rows 1")
        found = {name: (await ana.history(doc_type=name))["count"] for name in (
            "", "mysql", "MYSQL", "hive", "beeswax", "hive2", "7070", "hive-7070", "mysql-7070", "nope", "999",
        )}  # fmt: skip
        assert found == {
            "": 3, "mysql": 1, "MYSQL": 1, "hive": 2, "beeswax": 2, "hive2": 1, "7070": 1, "hive-7070": 1,
            "mysql-7070": 0, "nope": 0, "999": 0,
        }  # fmt: skip

    @pytest.mark.item(67)
    async def test_doc_connector_filters_by_id(self, ana: Caller):
        for connector in ("mysql", "hive2", "7070"):
            await ana.run(connector, "rows 1")
        assert (await ana.history(doc_connector="7070"))["count"] == 1
        assert (await ana.history(doc_connector="8"))["count"] == 0
        assert (await ana.history(doc_connector="7070", doc_type="mysql"))["count"] == 0
        assert (await ana.history(doc_connector="7070", doc_type="hive"))["count"] == 1

    @pytest.mark.item(67)
    async def test_doc_text_matches_substrings_without_case_or_wildcards(self, ana: Caller):
        for text in ("Alpha 100%", "beta_x", "gamma\\"):
            await ana.run("mysql", f"text {text}")
        counts = {
            text: (await ana.history(doc_text=text))["count"]
            for text in ("ALPHA", "0%", "a%0", "_", "a_x", "\\", "text")
        }
        assert counts == {"ALPHA": 1, "0%": 1, "a%0": 0, "_": 1, "a_x": 1, "\\": 1, "text": 3}

    async def test_active_filter_lists_only_running_statements(self, ana: Caller, bob: Caller):
        others = (await bob.execute("mysql", "sleep 60"))["history_uuid"]
        running = (await ana.execute("mysql", "sleep 61"))["history_uuid"]
        for number in range(3):
            await ana.run("mysql", f"rows {number}")
        body = await ana.history(is_active="true", limit=1)
        assert (body["count"], [entry["uuid"] for entry in body["history"]]) == (1, [running])
        assert (await ana.history(is_active="true", doc_text="rows"))["count"] == 0
        assert (await ana.history(is_active="false"))["count"] == 4
        await ana.on(running, "cancel_statement")
        await bob.on(others, "cancel_statement")
        assert (await ana.ended(running))["query_status"]["state"] == "canceled"
        assert (await ana.history(is_active="true"))["count"] == 0

    async def test_notification_manager_lists_no_entries(self, ana: Caller):
        await ana.run("mysql", "rows 1")
        body = await ana.history(is_notification_manager="true")
        assert (body["count"], body["history"]) == (0, [])

    @pytest.mark.item(67)
    async def test_statement_is_truncated_to_1001_characters(self, ana: Caller):
        statement = "text " + "😀" * 2000
        await ana.run("mysql", statement)
        assert (await ana.history())["history"][0]["data"]["statement"] == statement[:1001]

    async def test_notebook_can_exclude_its_operations_from_history(self, ana: Caller):
        for notebook in ({"type": "notebook"}, {"skipHistorify": True}):
            body = (await ana.post_json("editor/execute/mysql", statement="rows 1", notebook=notebook, wait=30)).json()
            assert (await ana.page(body["history_uuid"]))["data"] == [[0]]
        assert (await ana.history())["count"] == 0

    async def test_saved_notebook_sets_the_parent_query(self, ana: Caller):
        for notebook, parent in (
            ({"isSaved": True, "uuid": "u"}, "u"),
            ({"isSaved": True, "uuid": "u", "parentSavedQueryUuid": "p"}, "p"),
        ):
            body = (await ana.post_json("editor/execute/mysql", statement="rows 1", notebook=notebook)).json()
            assert body["history_parent_uuid"] == parent
            assert (await ana.history())["history"][0]["data"]["parentSavedQueryUuid"] == parent
        plain = (await ana.post_json("editor/execute/mysql", statement="rows 1", notebook={"uuid": "u"})).json()
        assert "history_parent_uuid" not in plain

    @pytest.mark.item(67)
    async def test_each_statement_of_a_script_has_an_entry(self, ana: Caller):
        first = await ana.run("mysql", "rows 1; rows 2")
        await ana.post_ok("editor/execute/mysql", operationId=first["history_uuid"], wait=30)
        snippet = json.dumps({"type": "mysql", "statement": "rows 5", "database": "main"})
        await ana.post_ok("editor/execute", snippet=snippet, wait=30)
        entries = (await ana.history())["history"]
        assert [entry["data"]["statement"] for entry in entries] == ["rows 5", "rows 2", "rows 1"]
        assert entries[0]["data"]["database"] == "main"


class TestNotebook:
    @pytest.mark.item(68)
    @pytest.mark.parametrize("path", ["query/create_notebook", "editor/create_notebook"])
    async def test_each_call_returns_a_new_empty_notebook(self, ana: Caller, path: str):
        notebooks = [(await ana.post_ok(path))["notebook"] for _ in range(2)]
        assert (
            notebooks[0] | {"uuid": ""}
            == notebooks[1] | {"uuid": ""}
            == {
                "name": "My Notebook",
                "uuid": "",
                "description": "",
                "type": "notebook",
                "isSaved": False,
                "isManaged": False,
                "skipHistorify": False,
                "sessions": [],
                "snippets": [],
                "directoryUuid": None,
            }
        )
        assert notebooks[0]["uuid"] != notebooks[1]["uuid"]
        assert re.fullmatch(r"[0-9a-f-]{36}", notebooks[0]["uuid"])
        assert (await ana.history())["count"] == 0

    @pytest.mark.item(68)
    async def test_dialect_sets_the_notebook_type(self, ana: Caller):
        for kind in ("sqlite", "SQLite"):
            notebook = (await ana.post_ok("editor/create_notebook", type=kind, directory_uuid="d"))["notebook"]
            assert (notebook["type"], notebook["name"], notebook["directoryUuid"]) == ("query-sqlite", "", "d")
        assert await ana.refused("editor/create_notebook", type="nope") == (404, -1, "dialect_not_found")


async def aged(ana: Caller, operation: str, age: str) -> None:
    """Simulate that the interval `age` has passed since the operation."""
    await ana.api.database.execute(
        f"""update statements set recorded_at = recorded_at - interval '{age}', ended_at = ended_at - interval '{age}'
        where id = $1""",
        operation,
    )


async def test_expired_logs_are_deleted_and_get_logs_still_works(ana: Caller):
    old, new = [(await ana.run("mysql", "rows 1"))["history_uuid"] for _ in range(2)]
    await aged(ana, old, "8 days")
    await ana.api.services.statements.retention.clean_up()
    body = await ana.on(old, "get_logs")
    assert (body["status"], body["logs"], body["progress"]) == (0, "", 100)
    assert (await ana.on(new, "get_logs"))["logs"]
    assert (await ana.page(old))["data"] == [[0]]


async def test_expired_records_are_deleted_with_their_result_files(small_api: ApiOpener):
    # The test needs its own database. An application that shares it would look for the files in its own directory.
    async with small_api() as api:
        ana = await api.user()
        old, new = [(await ana.run("mysql", "rows 3000 wide 100"))["history_uuid"] for _ in range(2)]
        stored = [path for path in api.services.settings.results_dir.rglob("*") if path.is_file()]
        assert [path for path in stored if old in str(path)]
        await aged(ana, old, "366 days")
        await api.services.statements.retention.clean_up()
        assert await ana.refused("editor/check_status", operationId=old) == (404, 2, "operation_not_found")
        assert [entry["uuid"] for entry in (await ana.history())["history"]] == [new]
        assert [path for path in stored if path.exists()] == [path for path in stored if new in str(path)]
        assert (await ana.page(new))["rows_total"] == 3000


async def test_running_statement_is_kept_regardless_of_age(ana: Caller):
    operation = (await ana.execute("mysql", "sleep 30"))["history_uuid"]
    await aged(ana, operation, "4000 days")
    await ana.api.services.statements.retention.clean_up()
    assert await ana.state(operation) in {"waiting", "running"}
    await ana.on(operation, "cancel_statement")


async def test_idempotency_key_expires_after_a_day(ana: Caller):
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


@pytest.mark.parametrize(("most", "advised"), [(1, 1), (100_000, 0)])
async def test_log_recommends_a_clean_up_above_a_document_count(ana, monkeypatch, most, advised):
    await ana.run("mysql", "rows 1")
    await save(ana, name="saved")
    monkeypatch.setattr(retention, "MANY_DOCUMENTS", most)
    with structlog.testing.capture_logs() as lines:
        await ana.api.services.statements.retention.clean_up_periodically()
    assert [line["more_than"] for line in lines if "run `queryserver cleanup`" in line["event"]] == [most] * advised


async def test_only_one_process_at_a_time_cleans_up_automatically(ana: Caller):
    operation = (await ana.run("mysql", "rows 1"))["history_uuid"]
    await aged(ana, operation, "366 days")
    service, dsn = ana.api.services, ana.api.services.settings.desktop.database.dsn or ""
    async with clean_up_lock(dsn) as first, clean_up_lock(dsn) as second:
        assert (first, second) == (True, False)
        await service.statements.retention.clean_up_periodically()
        assert await ana.state(operation) == "available"
    await service.statements.retention.clean_up_periodically()
    assert await ana.refused("editor/check_status", operationId=operation) == (404, 2, "operation_not_found")


async def test_command_can_clean_up_during_automatic_clean_up(ana: Caller):
    operation = (await ana.run("mysql", "rows 1"))["history_uuid"]
    await aged(ana, operation, "366 days")
    async with clean_up_lock(ana.api.services.settings.desktop.database.dsn or ""):
        await ana.api.services.statements.retention.clean_up()
    assert await ana.refused("editor/check_status", operationId=operation) == (404, 2, "operation_not_found")
