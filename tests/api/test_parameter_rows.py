"""The execute field `parameter_rows`, with which one statement runs for many rows of values (Contract editor 4.1)."""

import json
from typing import Any

import pytest
from tests.api.dialects import DUCKDB, POSTGRESQL, SQLITE, Dialect, every_dialect
from tests.api.driving import Api, Caller, verdict


async def many(ana: Caller, dialect: object, statement: str, rows: object, **fields: Any) -> dict[str, Any]:
    answer = await ana.post_json(
        f"editor/execute/{dialect}", statement=statement, parameter_rows=rows, wait=60, **fields
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


async def rows_of(ana: Caller, dialect: object, statement: str) -> list[list[Any]]:
    body = await ana.run(dialect, statement)
    assert body["status"] == 0, body
    return (await ana.page(body["history_uuid"]))["data"]


async def table(ana: Caller, dialect: object, name: str, columns: str = "n integer PRIMARY KEY, t varchar(20)") -> str:
    await ana.run(dialect, f"DROP TABLE IF EXISTS {name}")
    body = await ana.run(dialect, f"CREATE TABLE {name} ({columns})")
    assert body["status"] == 0, body
    return name


REAL = pytest.mark.parametrize("dialect", [DUCKDB, SQLITE, POSTGRESQL])


@REAL
async def test_one_call_runs_the_statement_once_per_row(ana: Caller, dialect: Dialect):
    name = await table(ana, dialect, "many_listed")
    rows = [[n, None if n % 3 == 0 else f"row {n}"] for n in range(1000)]
    body = await many(ana, dialect, f"INSERT INTO {name} VALUES (?, ?)", rows)
    assert (body["status"], body["query_status"]["state"]) == (0, "success")
    assert body["query_status"]["modified_row_count"] == 1000
    assert await rows_of(ana, dialect, f"SELECT count(*), count(t), min(n), max(n) FROM {name}") == [
        [1000, 666, 0, 999]
    ]
    assert await rows_of(ana, dialect, f"SELECT t FROM {name} WHERE n IN (3, 4) ORDER BY n") == [[None], ["row 4"]]


@REAL
async def test_rows_may_be_objects_and_their_modifications_are_summed(ana: Caller, dialect: Dialect):
    name = await table(ana, dialect, "many_named")
    await many(ana, dialect, f"INSERT INTO {name} VALUES (:n, :t)", [{"n": n, "t": "x"} for n in range(10)])
    body = await many(
        ana,
        dialect,
        f"UPDATE {name} SET t = :t WHERE n >= :n",
        [{"n": 8, "t": "y"}, {"t": "z", "n": 9}, {"n": 50, "t": ""}],
    )
    assert body["query_status"]["modified_row_count"] == 3
    assert await rows_of(ana, dialect, f"SELECT t FROM {name} WHERE n > 6 ORDER BY n") == [["x"], ["y"], ["z"]]


@REAL
async def test_values_keep_their_types_in_every_row(ana: Caller, dialect: Dialect):
    name = await table(ana, dialect, "many_typed", "n integer, d double precision, t varchar(20)")
    rows = [[1, 1.5, "a"], [2, None, "1"], [None, 2, None], [4, {"type": "double", "value": "Infinity"}, "é'"]]
    await many(ana, dialect, f"INSERT INTO {name} VALUES (?, ?, ?)", rows)
    assert await rows_of(ana, dialect, f"SELECT n, d, t FROM {name} ORDER BY n IS NULL, n") == [
        [1, 1.5, "a"],
        [2, None, "1"],
        [4, "Infinity", "é'"],
        [None, 2.0, None],
    ]


@REAL
async def test_failing_row_is_named_and_all_rows_are_rolled_back(ana: Caller, dialect: Dialect):
    name = await table(ana, dialect, "many_failing")
    rows = [[n, "x"] for n in range(100)]
    rows[70] = [5, "secret-value"]
    body = await many(ana, dialect, f"INSERT INTO {name} VALUES (?, ?)", rows)
    assert (body["status"], body["code"]) == (1, "engine_error")
    assert body["message"].endswith("\nRow 71 of 100 of parameter_rows.")
    assert "secret-value" not in body["message"]
    assert await rows_of(ana, dialect, f"SELECT count(*) FROM {name}") == [[0]]


@REAL
async def test_rows_join_an_open_transaction(ana: Caller, dialect: Dialect):
    name = await table(ana, dialect, "many_open")
    session = (await ana.post_json("editor/create_session", session={"type": str(dialect)})).json()["session"]["id"]
    await ana.run(dialect, "BEGIN", session_id=session)
    insert = f"INSERT INTO {name} VALUES (?, ?)"
    assert (await many(ana, dialect, insert, [[1, "a"], [2, "b"]], session_id=session))["status"] == 0
    await ana.run(dialect, "ROLLBACK", session_id=session)
    assert await rows_of(ana, dialect, f"SELECT count(*) FROM {name}") == [[0]]
    assert (await many(ana, dialect, insert, [[1, "a"], [2, "b"]], session_id=session))["status"] == 0
    assert await rows_of(ana, dialect, f"SELECT count(*) FROM {name}") == [[2]]


@REAL
async def test_rows_of_a_returning_clause_are_discarded(ana: Caller, dialect: Dialect):
    name = await table(ana, dialect, "many_returning")
    body = await many(ana, dialect, f"INSERT INTO {name} VALUES (?, ?) RETURNING n", [[1, "a"], [2, "b"]])
    assert (body["query_status"]["state"], body["query_status"]["modified_row_count"]) == ("success", 2)


@every_dialect
@pytest.mark.parametrize(
    ("statement", "rows", "word"),
    [
        ("INSERT INTO t VALUES (?)", [], "at least one row"),
        ("INSERT INTO t VALUES (?)", "5", "a JSON list of rows"),
        ("INSERT INTO t VALUES (?)", [[1], 5], "row 2: parameters must be a JSON list or a JSON object"),
        (
            "INSERT INTO t VALUES (?)",
            [[1], [1, 2]],
            "row 2: the number of values (2) does not match the number of parameter markers (1)",
        ),
        ("INSERT INTO t VALUES (:a)", [{"a": 1}, {"b": 1}], "row 2: the parameter marker :a has no value"),
        (
            "INSERT INTO t VALUES (?)",
            [[1], {"a": 1}],
            "row 2: parameters must be lists in all rows or objects in all rows",
        ),
        (
            "INSERT INTO t VALUES (?)",
            [[1], [{"type": "date", "value": "secret"}]],
            "row 2: 1 has a value that is not valid for",
        ),
        ("INSERT INTO t VALUES (?); SELECT 1", [[1], [2]], "must be one statement"),
        ("SELECT ?", [[1], [2]], "must be one that changes rows"),
        ("-- the end\nCOMMIT", [[], []], "not one that begins or ends a transaction"),
        ("savepoint s", [[]], "not one that begins or ends a transaction"),
        ("INSERT INTO t VALUES (?)", [[1]] * 10_001, "at most 10000 rows"),
    ],
)
async def test_statements_unsuitable_for_many_rows_are_refused(ana: Caller, dialect: Dialect, statement, rows, word):
    before = (await ana.history())["count"]
    answer = await ana.post_json(f"editor/execute/{dialect}", statement=statement, parameter_rows=rows)
    assert verdict(answer) == (400, -1, "invalid_parameter"), answer.text
    assert word in answer.json()["message"]
    assert "secret" not in answer.json()["message"]
    assert (await ana.history())["count"] == before


@pytest.mark.item(71)
async def test_rows_cannot_be_combined_with_parameters_or_a_continued_script(ana: Caller):
    known = (await ana.run("duckdb", "SELECT 1; SELECT 2"))["history_uuid"]
    for more in ({"parameters": [1]}, {"operationId": known}):
        answer = await ana.post_json(
            "editor/execute/duckdb", statement="INSERT INTO t VALUES (?)", parameter_rows=[[1]], **more
        )
        assert verdict(answer) == (400, -1, "conflicting_parameters")


async def test_form_accepts_rows_as_text(ana: Caller):
    name = await table(ana, "sqlite", "many_form")
    body = await ana.run("sqlite", f"INSERT INTO {name} VALUES (?, ?)", parameter_rows=json.dumps([[1, "a"], [2, "b"]]))
    assert body["query_status"]["modified_row_count"] == 2


async def test_same_key_with_different_rows_is_a_conflict(ana: Caller):
    name = await table(ana, "duckdb", "many_key")
    fields = {"client_request_id": "many-1"}
    first = await many(ana, "duckdb", f"INSERT INTO {name} VALUES (?, ?)", [[1, "a"]], **fields)
    again = await many(ana, "duckdb", f"INSERT INTO {name} VALUES (?, ?)", [[1, "a"]], **fields)
    assert first["history_uuid"] == again["history_uuid"]
    answer = await ana.post_json(
        "editor/execute/duckdb",
        statement=f"INSERT INTO {name} VALUES (?, ?)",
        parameter_rows=[[1, "a"], [2, "b"]],
        **fields,
    )
    assert verdict(answer) == (409, -1, "idempotency_conflict")


async def test_engine_without_batches_receives_rows_in_order(ana: Caller, api: Api):
    fake = api.fakes["mysql"]
    before = len(fake.executions)
    body = await many(ana, "mysql", ":what :n", [{"what": "change", "n": n} for n in (1, 2, 30)])
    assert (body["query_status"]["state"], body["query_status"]["modified_row_count"]) == ("success", 33), body
    assert fake.executions[before:] == ["change 1", "change 2", "change 30"]
    rows = [{"what": "change", "n": 1}, {"what": "fail", "n": "late"}, {"what": "change", "n": 2}]
    body = await many(ana, "mysql", ":what :n", rows)
    assert (body["status"], body["message"]) == (1, "late\nRow 2 of 3 of parameter_rows.")
    assert fake.executions[before + 3 :] == ["change 1", "fail late"]


LATER = ({"what": "sleep", "n": 30}, {"what": "change", "n": 1})


async def test_cancel_between_rows_stops_the_statement(ana: Caller, api: Api):
    fake = api.fakes["mysql"]
    before = len(fake.executions)
    answer = await ana.post_json("editor/execute/mysql", statement=":what :n", parameter_rows=LATER)
    operation = answer.json()["history_uuid"]
    await ana.running(operation)
    await ana.post("editor/cancel_statement", operationId=operation)
    assert (await ana.ended(operation))["query_status"]["state"] == "canceled"
    assert fake.executions[before:] == ["sleep 30"]


MANY_OF_SQLITE = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 3000000)"


@pytest.mark.parametrize(
    ("dialect", "statement"),
    [
        ("duckdb", "INSERT INTO {t} SELECT ? FROM range(3000000)"),
        ("sqlite", f"INSERT INTO {{t}} {MANY_OF_SQLITE} SELECT ? FROM c"),
        ("postgresql", "INSERT INTO {t} SELECT CAST(? AS integer) FROM pg_sleep(0.2)"),
    ],
)
async def test_cancel_rolls_back_earlier_rows(ana: Caller, dialect, statement):
    name = await table(ana, dialect, "many_canceled", "n integer")
    answer = await ana.post_json(
        f"editor/execute/{dialect}", statement=statement.format(t=name), parameter_rows=[[n] for n in range(1000)]
    )
    operation = answer.json()["history_uuid"]
    await ana.running(operation)
    await ana.post("editor/cancel_statement", operationId=operation)
    assert (await ana.ended(operation))["query_status"]["state"] == "canceled"
    assert await rows_of(ana, dialect, f"SELECT count(*) FROM {name}") == [[0]]
