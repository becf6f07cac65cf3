"""Numbers that a double does not keep, as text: by call, and by the preference of the user (Contract editor 6.3)."""

from typing import Any

from tests.api.driving import Api, Caller, verdict

LARGE = 2**63 - 1
STATEMENTS = {
    "duckdb": f"SELECT {LARGE}::BIGINT AS big, 7::INTEGER AS small, 1.50::DECIMAL(4,2) AS exact,"
    f" [{LARGE}::BIGINT] AS list, 1.5::DOUBLE AS double, 2::UBIGINT AS unsigned",
    "postgresql": f"SELECT {LARGE}::bigint AS big, 7::integer AS small, 1.50::numeric(4,2) AS exact,"
    f" ARRAY[{LARGE}::bigint] AS list, 1.5::float8 AS double, 2::bigint AS unsigned",
}
NUMBERS = [LARGE, 7, "1.50", [LARGE], 1.5, 2]
TEXTS = [str(LARGE), 7, "1.50", [str(LARGE)], 1.5, "2"]
AS_TEXT = [True, False, True, True, False, True]


def flags(meta: list[dict[str, Any]]) -> list[object]:
    return [column.get("as_text") for column in meta]


async def test_each_call_that_gives_cells_takes_the_field(ana: Caller):
    for dialect, statement in STATEMENTS.items():
        executed = await ana.run(dialect, statement, rows=10, big_numbers="text")
        assert executed["result"]["data"] == [TEXTS]
        assert flags(executed["result"]["meta"]) == AS_TEXT
        operation = executed["history_uuid"]
        plain = await ana.page(operation, start_row=0)
        assert (plain["data"], flags(plain["meta"])) == ([NUMBERS], [None] * 6)
        for form in ({"big_numbers": "text"}, {"big_numbers": "text", "escape": True}):
            page = await ana.page(operation, start_row=0, **form)
            assert (page["data"][0][0], flags(page["meta"])) == (str(LARGE), AS_TEXT)
            assert [column["type"] for column in page["meta"]] == [column["type"] for column in plain["meta"]]
        told = await ana.on(operation, "fetch_result_metadata", big_numbers="text")
        assert flags(told["result"]["meta"]) == AS_TEXT
        refused = await ana.post("editor/fetch_result_data", operationId=operation, big_numbers="words")
        assert verdict(refused) == (400, -1, "invalid_parameter")
        assert refused.json()["message"] == "big_numbers must be 'number' or 'text'."


async def test_samples_take_the_field(ana: Caller):
    await ana.run("sqlite", "CREATE TABLE IF NOT EXISTS wide_numbers (big BIGINT, word TEXT)")
    await ana.run("sqlite", f"INSERT INTO wide_numbers VALUES ({LARGE}, 'a')")
    for fields, rows, as_text in (
        ({}, [[LARGE, "a"]], [None, None]),
        ({"big_numbers": "text"}, [[str(LARGE), "a"]], [True, False]),
    ):
        sample = await ana.told("editor/sample/main/wide_numbers", snippet='{"type": "sqlite"}', **fields)
        assert (sample["rows"], flags(sample["full_headers"])) == (rows, as_text)
    await ana.run("sqlite", "DROP TABLE wide_numbers")


async def test_the_preference_of_a_user_holds_where_a_call_says_nothing(api: Api):
    ana, ben = await api.user(), await api.user()
    assert (await ana.get("iam/preferences")).json() == {"status": 0, "preferences": {"big_numbers": "number"}}
    changed = await ana.told("iam/preferences", big_numbers="text")
    assert changed["preferences"] == (await ana.get("iam/preferences")).json()["preferences"] == {"big_numbers": "text"}
    assert (await ana.told("iam/preferences"))["preferences"] == {"big_numbers": "text"}  # nothing is named
    statement = STATEMENTS["duckdb"]
    operation = (await ana.run("duckdb", statement))["history_uuid"]
    assert (await ana.page(operation))["data"] == [TEXTS]
    assert (await ana.page(operation, start_row=0, big_numbers="number"))["data"] == [NUMBERS]
    assert (await ana.run("duckdb", statement, rows=1))["result"]["data"] == [TEXTS]
    assert (await ben.result("duckdb", statement))["data"] == [NUMBERS]
    assert (await ana.told("iam/preferences", big_numbers="number"))["preferences"] == {"big_numbers": "number"}
    assert (await ana.page(operation, start_row=0))["data"] == [NUMBERS]
    refused = await ana.post("iam/preferences", big_numbers="maybe")
    assert verdict(refused) == (400, -1, "invalid_parameter")
    assert (await api.stranger.get("iam/preferences")).status_code == 401


async def test_a_preference_of_another_version_counts_as_absent(api: Api):
    ana = await api.user()
    await api.database.execute(
        "update users set preferences = $2 where username = $1", ana.username, {"big_numbers": "roman", "other": [1]}
    )
    assert (await ana.get("iam/preferences")).json()["preferences"] == {"big_numbers": "number"}
    assert (await ana.told("iam/preferences", big_numbers="text"))["preferences"] == {"big_numbers": "text"}
