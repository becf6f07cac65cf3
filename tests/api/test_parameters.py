"""Statement parameters: arrays for `?`, objects for `:name`, in scripts, and encrypted in the records
(docs/clients.md).
"""

import json
from typing import Any

import pytest
from pydantic import SecretStr
from tests.api.conftest import SECRET_KEY
from tests.api.dialects import DUCKDB, Dialect, every_dialect
from tests.api.driving import Caller, verdict

from queryserver.identity.keys import AesSealer, Keyring, SecretKey, reseal

SECRET = "s3cret-value-17"


async def rows(ana: Caller, dialect: object, statement: str, parameters: object, **fields: Any) -> list[list[Any]]:
    body = await ana.run(dialect, statement, parameters=json.dumps(parameters), **fields)
    assert body["status"] == 0, body
    return (await ana.page(body["history_uuid"]))["data"]


async def refusal(ana: Caller, dialect: object, statement: str, parameters: object) -> str:
    """Send a call that must be rejected before a statement is recorded; return the error message."""
    before = (await ana.history())["count"]
    answer = await ana.post_json(f"editor/execute/{dialect}", statement=statement, parameters=parameters)
    assert verdict(answer) == (400, -1, "invalid_parameter"), answer.text
    assert (await ana.history())["count"] == before
    return answer.json()["message"]


@every_dialect
async def test_list_of_values_fills_question_marks(ana: Caller, dialect: Dialect):
    statement = "SELECT ? AS a, 'a?' AS b, ? AS c -- ?"
    assert await rows(ana, dialect, statement, [7, "O'Brien"]) == [[7, "a?", "O'Brien"]]
    assert await rows(ana, dialect, "SELECT 1 AS a WHERE 'x??' = ? /* ?? */", ["x??"]) == [[1]]


@every_dialect
async def test_object_fills_named_placeholders(ana: Caller, dialect: Dialect):
    statement = "SELECT :b AS b, ':b' AS text, :a AS a, :b AS again"
    assert await rows(ana, dialect, statement, {"a": None, "b": 2.5}) == [[2.5, ":b", None, 2.5]]


async def test_parameters_are_accepted_natively_in_json_and_as_text_in_forms(ana: Caller):
    for sent in ([5], json.dumps([5])):
        answer = await ana.post_json("editor/execute/sqlite", statement="SELECT ? AS a", parameters=sent, wait=30)
        assert (await ana.page(answer.json()["history_uuid"]))["data"] == [[5]]


async def test_casts_slices_and_operators_are_not_placeholders(ana: Caller):
    listed = """SELECT '{"a": 1}'::jsonb ?? 'a' AS has, ?::int AS n"""
    assert await rows(ana, "postgresql", listed, ["5"]) == [[True, 5]]
    named = "SELECT (ARRAY[1, 2, 3])[1:2] AS part, :n::int AS n"
    assert await rows(ana, "postgresql", named, {"n": 5}) == [[[1, 2], 5]]


@pytest.mark.parametrize(
    ("dialect", "given", "value"),
    [
        ("sqlite", ("double", "Infinity"), "Infinity"),
        ("sqlite", ("double", "-Infinity"), "-Infinity"),
        ("sqlite", ("double", "NaN"), None),
        ("sqlite", ("decimal", "Infinity"), "Infinity"),
        ("sqlite", ("decimal", "NaN"), None),
        ("duckdb", ("double", "Infinity"), "Infinity"),
        ("duckdb", ("double", "NaN"), "NaN"),
        ("postgresql", ("double", "-Infinity"), "-Infinity"),
        ("postgresql", ("double", "NaN"), "NaN"),
        ("postgresql", ("decimal", "NaN"), "NaN"),
        ("postgresql", ("decimal", "-Infinity"), "-Infinity"),
    ],
)
async def test_nan_and_infinities_round_trip_where_supported(ana: Caller, dialect, given, value):
    """SQLite converts NaN to NULL."""
    kind, text = given
    assert await rows(ana, dialect, "SELECT ? AS a", [{"type": kind, "value": text}]) == [[value]]
    assert await rows(ana, dialect, "SELECT :a AS a", {"a": {"type": kind, "value": text}}) == [[value]]


async def test_duckdb_refuses_non_finite_decimals(ana: Caller):
    message = await refusal(ana, "duckdb", "SELECT ?", [{"type": "decimal", "value": "NaN"}])
    assert "1 is NaN or infinite, which this connector does not support" in message


async def test_text_takes_the_type_of_its_placeholder(ana: Caller):
    statement = (
        "SELECT count(*) AS n FROM generate_series(DATE '2024-01-01', '2024-01-31', '1 day') d WHERE d::date <= ?"
    )
    assert await rows(ana, "postgresql", statement, ["2024-01-10"]) == [[10]]
    body = await ana.run("postgresql", statement, parameters=json.dumps(["no date"]))
    assert body["status"] == 1
    assert "invalid input syntax for type" in body["message"]


@every_dialect
async def test_statements_without_parameters_are_not_searched_for_placeholders(ana: Caller, dialect: Dialect):
    """The statement reaches the engine unchanged. There, placeholders without values fail, and PostgreSQL operators
    such as `?` work.
    """
    assert (await ana.run(dialect, "SELECT :a AS a"))["status"] == 1 or dialect.name == "sqlite"
    statement = """SELECT '{"a": 1}'::jsonb ? 'a' AS a"""
    if dialect.name == "postgresql":
        assert (await ana.result(dialect, statement))["data"] == [[True]]


@every_dialect
async def test_placeholders_are_counted_across_the_whole_script(ana: Caller, dialect: Dialect):
    script = "SELECT ? AS a;\nSELECT 'no place?' AS b;\nSELECT ? AS c, ? AS d"
    body = await ana.run(dialect, script, parameters=json.dumps([1, 2, 3]))
    assert (await ana.page(body["history_uuid"]))["data"] == [[1]]
    for expected in ([["no place?"]], [[2, 3]]):
        body = await ana.post_ok(f"editor/execute/{dialect}", operationId=body["history_uuid"], wait=60)
        assert body["status"] == 0, body
        assert (await ana.page(body["history_uuid"]))["data"] == expected
    entries = [entry["data"] for entry in (await ana.history())["history"][:3]]
    assert [entry["parameters"] for entry in entries] == [2, 0, 1]
    assert entries[0]["statement"] == "SELECT ? AS c, ? AS d"


async def test_next_statement_accepts_new_values(ana: Caller):
    first = await ana.run(DUCKDB, "SELECT :a AS a; SELECT :a + 1 AS b", parameters='{"a": 1}')
    following = await ana.post_ok(
        "editor/execute", operationId=first["history_uuid"], parameters='{"a": 41}', wait=60, rows=5
    )
    assert following["result"]["data"] == [[42]]


async def test_long_script_is_searched_in_a_separate_process(ana: Caller):
    script = ";".join(f"SELECT {number} AS n, ? AS v" for number in range(3_000))
    body = await ana.run("sqlite", script, parameters=json.dumps(list(range(3_000))))
    body = await ana.post_ok("editor/execute", operationId=body["history_uuid"], wait=60, rows=5)
    assert body["result"]["data"] == [[1, 1]]


async def test_long_statement_accepts_values_and_has_a_plan(ana: Caller):
    statement = f"SELECT ? AS a, '{'?' * 60_000}' AS b, ? AS c"
    assert [(row[0], len(row[1]), row[2]) for row in await rows(ana, "sqlite", statement, [1, 2])] == [(1, 60_000, 2)]
    plan = await ana.post_ok("editor/explain/sqlite", statement=statement, parameters="[1, 2]")
    assert plan["status"] == 0, plan


@pytest.mark.parametrize(("statement", "parameters", "says"), [
    ("SELECT ?", [], "values (0) does not match the number of parameter markers (1)"),
    ("SELECT ?, '?'", [1, SECRET], "values (2) does not match the number of parameter markers (1)"),
    ("SELECT 1; SELECT ?", [], "values (0) does not match the number of parameter markers (1)"),
    ("SELECT :a", {"b": SECRET}, "the parameter marker :a has no value"),
    ("SELECT :a", {"a": 1, "unused": SECRET}, "no parameter marker :unused"),
    ("SELECT ?", [{"type": "date", "value": SECRET}], "1 has a value that is not valid for its type date"),
    ("SELECT :a", {"a": {"type": "bigint", "value": SECRET}}, ":a has a value that is not valid for its type bigint"),
    ("SELECT ?", [{"type": "money", "value": SECRET}], "1 must have a `type`"),
    ("SELECT ?", [{"value": SECRET}], "1 must have a `type`"),
    ("SELECT ?", [{"type": "varchar"}], "1 must have exactly the members"),
    ("SELECT ?", [2**63], "1 must be a 64-bit integer"),
    ("SELECT ?, ?", [1, [SECRET]], "2 has the type array, which this connector does not support"),
    ("SELECT :a", {"a b": SECRET}, "names must consist of letters"),
    ("SELECT ?", 5, "a JSON list or a JSON object"),
])  # fmt: skip
async def test_mismatched_parameters_are_refused_before_anything_is_recorded(
    ana: Caller, statement: str, parameters: object, says: str
):
    message = await refusal(ana, "sqlite", statement, parameters)
    assert says in message
    assert SECRET not in message


@pytest.mark.parametrize(("given", "says"), [
    ([[1, 2], [3]], "1 contains nested arrays of different lengths"),
    ([[1, 2], None], "1 contains nested arrays of different lengths"),
    ([[[1], [2]], [[3, 4], [5, 6]]], "1 contains nested arrays of different lengths"),
    ([[1], ["x"]], "1 is an array whose elements have different types"),
])  # fmt: skip
async def test_non_rectangular_arrays_are_refused_for_postgresql(ana: Caller, given: object, says: str):
    assert says in await refusal(ana, "postgresql", "SELECT ?", [given])


async def test_nested_arrays_take_the_common_type_of_their_elements(ana: Caller):
    sent = [[[1, 2], [3, 2.5]], [[], []], [[None], [7]], [["a", None], ["b", "c"]], [1, None, 2]]
    assert await rows(ana, "postgresql", "SELECT ? AS a, ? AS b, ? AS c, ? AS d, ? AS e", sent) == [
        [[[1, 2], [3, 2.5]], [], [[None], [7]], [["a", None], ["b", "c"]], [1, None, 2]]
    ]
    uneven = [[1, 2], [2.5], []]
    assert await rows(ana, "duckdb", "SELECT ? AS a", [uneven]) == [[uneven]]


async def test_connector_without_parameter_support_refuses_them(ana: Caller):
    assert "does not support parameters" in await refusal(ana, "shelf", "rows 1", [])


async def test_values_are_stored_only_sealed(ana: Caller):
    body = await ana.run("postgresql", "SELECT ?::text AS a; SELECT 2", parameters=json.dumps([SECRET]))
    assert (await ana.page(body["history_uuid"]))["data"] == [[SECRET]]
    operation = body["history_uuid"]
    row = await ana.api.database.row("select * from statements where id = $1", operation)
    assert row is not None
    assert row["sealed_parameters"] is not None
    kept = {name: value for name, value in row.items() if name != "inline_result"}
    logs = await ana.api.database.fetch("select * from statement_logs where statement_id = $1", operation)
    scripts = await ana.api.database.fetch("select * from scripts where id = $1", row["script_id"])
    seen = repr([kept, [dict(one) for one in logs], [dict(one) for one in scripts]])
    assert SECRET not in seen
    assert "SELECT ?::text AS a" in seen


async def test_values_sealed_with_a_former_key_are_unusable_until_resealed(ana: Caller):
    former, ours = (SecretKey.derive(SecretStr(text)) for text in ("f" * 40, SECRET_KEY))
    body = await ana.run(DUCKDB, "SELECT 1; SELECT ? AS a", parameters=json.dumps([SECRET]))
    operation, database = body["history_uuid"], ana.api.database
    sealed = await database.value("select sealed_parameters from statements where id = $1", operation)
    by_former = AesSealer(Keyring(former)).seal(AesSealer(Keyring(ours)).unseal(sealed))
    await database.execute("update statements set sealed_parameters = $2 where id = $1", operation, by_former)
    refused = await ana.post("editor/execute", operationId=operation)
    assert verdict(refused)[2] == "statement_text_expired", refused.text
    await reseal(database, AesSealer(Keyring(ours, (former,))))
    following = await ana.post_ok("editor/execute", operationId=operation, wait=60, rows=5)
    assert following["result"]["data"] == [[SECRET]]


@pytest.mark.parametrize("statement", ["SELECT CAST(? AS DATE) AS a", "SELECT 1 WHERE ? )"])
@pytest.mark.parametrize("dialect", ["duckdb", "postgresql"])
async def test_error_message_contains_no_values(ana: Caller, dialect: str, statement: str):
    body = await ana.run(dialect, statement, parameters=json.dumps([SECRET]))
    assert body["status"] == 1
    logs = await ana.on(body["history_uuid"], "get_logs")
    assert SECRET not in json.dumps([body, logs, await ana.history()])


async def test_error_position_refers_to_the_text_with_markers(ana: Caller):
    for dialect in ("duckdb", "sqlite", "postgresql"):
        body = await ana.run(dialect, "SELECT :a AS a,\n :long_name AS b )", parameters='{"a": 1, "long_name": "x"}')
        assert (body["line"], body["column"]) == (2, 18), (dialect, body)


async def test_same_key_with_different_values_is_a_conflict(ana: Caller):
    async def send(value: object, key: str) -> Any:
        fields = {"statement": "SELECT ? AS a", "client_request_id": key}
        if value is not None:
            fields["parameters"] = json.dumps(value)
        return await ana.post("editor/execute/sqlite", **fields)

    first = (await send([1], "key")).json()["history_uuid"]
    assert (await send([1], "key")).json()["history_uuid"] == first
    for other in ([2], [{"type": "bigint", "value": 1}], None):
        assert verdict(await send(other, "key"))[::2] == (409, "idempotency_conflict")


async def test_limit_and_statement_kind_are_recognized_with_placeholders(ana: Caller):
    assert await rows(ana, DUCKDB, DUCKDB.rows(50) + " LIMIT ?", [3]) == [[0], [1], [2]]
    body = await ana.run(DUCKDB, "SELECT range AS n FROM range(?)", parameters="[50]", limit=2)
    assert body["query_status"]["truncated_by"] == "limit", body
    assert len((await ana.page(body["history_uuid"]))["data"]) == 2


async def test_read_only_connector_refuses_changes_with_placeholders(ana: Caller):
    assert await rows(ana, "replica", "SELECT ? AS a", [1]) == [[1]]
    body = await ana.run("replica", "CREATE TABLE t AS SELECT ? AS a", parameters="[1]")
    assert (body["status"], body["code"]) == (1, "rejected")


@every_dialect
async def test_explain_accepts_parameters(ana: Caller, dialect: Dialect):
    script = "SELECT 1 WHERE 1 = ?; SELECT ?"
    answer = await ana.post_json(f"editor/explain/{dialect}", statement=script, parameters=[1, 2])
    body = answer.json()
    assert body["status"] == 0, body
    assert body["statement"] == "SELECT 1 WHERE 1 = ?"
    assert body["explanation"]
    refused = await ana.post_json(f"editor/explain/{dialect}", statement="SELECT ?", parameters=[])
    assert verdict(refused) == (400, -1, "invalid_parameter")


@pytest.mark.parametrize("call", ["execute", "explain"])
async def test_value_size_limit_counts_every_placeholder(ana: Caller, call: str):
    many = "SELECT " + ",".join([":a"] * 300)
    refused = await ana.post_json(f"editor/{call}/duckdb", statement=many, parameters={"a": "x" * 100_000})
    assert verdict(refused) == (400, -1, "invalid_parameter")


async def test_position_of_a_refused_plan_refers_to_the_text_with_placeholders(ana: Caller):
    fields = {"statement": "SELECT\n?,\n1 )", "parameters": ["a\nlong text"]}
    answer = await ana.post_json("editor/explain/postgresql", **fields)
    assert (answer.json()["line"], answer.json()["column"]) == (3, 3), answer.text
