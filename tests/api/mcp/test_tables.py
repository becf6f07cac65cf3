"""Tools that find and describe tables (Contract mcp 3.6, 3.7, 3.10; checks 24 to 27)."""

import json
from typing import Any

import pytest
from tests.api.driving import Api, Caller, until
from tests.api.mcp.sources import Agents, agents, ana, api, bob, endpoint, error_in, files, newest
from tests.api.storage.conftest import Files
from tests.api.token.test_api_tokens import holding
from tests.mcp_sessions import Session, text_of

from queryserver.api.mcp.sizes import ANSWER_BYTES

__all__ = ["agents", "ana", "api", "bob", "endpoint", "files", "newest"]  # fixtures

pytestmark = pytest.mark.usefixtures("api")

WIDE = 5000


async def made(caller: Caller, connector: str, *statements: str) -> None:
    for statement in statements:
        body = await caller.run(connector, statement)
        assert body["status"] == 0, body


async def answer(agent: Session, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool; return its answer, whose text must fit the byte budget and equal the structured content."""
    result = await agent.result(tool, **arguments)
    assert not result.is_error, result.content
    text = text_of(result)
    assert len(text.encode()) <= ANSWER_BYTES + 1024
    assert json.loads(text) == result.structured_content
    return json.loads(text)


async def test_description_has_columns_with_types_comments_and_keys(agents: Agents, ana: Caller) -> None:
    await made(
        ana,
        "postgresql",
        "CREATE TABLE IF NOT EXISTS described (id int PRIMARY KEY, note varchar(20) NOT NULL DEFAULT 'x')",
        "COMMENT ON TABLE described IS 'orders of the shop'",
        "COMMENT ON COLUMN described.note IS 'a free text'",
    )
    async with agents(ana) as agent:
        found = await answer(agent, "describe_table", connector="postgresql", database="public", table="described")
        assert (found["kind"], found["comment"], found["total_columns"]) == ("table", "orders of the shop", 2)
        assert [(one["name"], one["type"], one["nullable"]) for one in found["columns"]] == [
            ("id", "integer", False),
            ("note", "character varying(20)", False),
        ]
        assert found["columns"][0]["primary_key"]
        assert found["columns"][1]["comment"] == "a free text"
        assert not found["has_more"]
        assert "sample" not in found


@pytest.fixture(scope="module")
async def wide(files: Files) -> str:
    """A table of 5,000 columns."""
    columns = ", ".join(f"{number} AS measurement_of_sensor_{number}" for number in range(WIDE))
    await made(await files.api.user("owner"), "duckdb", f"CREATE TABLE wide AS SELECT {columns} FROM range(3)")
    return "wide"


@pytest.mark.slow
class TestWideTable:
    async def test_pages_list_every_column_once_within_the_budget(self, newest: Agents, ana: Caller, wide: str) -> None:
        names: list[str] = []
        offset: int | None = 0
        async with newest(ana) as agent:
            while offset is not None:
                page = await answer(
                    agent, "describe_table", connector="duckdb", database="main", table=wide, offset=offset
                )
                names += [one["name"] for one in page["columns"]]
                assert page["total_columns"] == WIDE
                offset = page.get("next_offset")
                assert page["has_more"] == (offset is not None)
        assert names == [f"measurement_of_sensor_{number}" for number in range(WIDE)]

    async def test_columns_can_be_selected_by_name(self, newest: Agents, ana: Caller, wide: str) -> None:
        async with newest(ana) as agent:
            found = await answer(
                agent, "describe_table", connector="duckdb", database="main", table=wide, columns="SENSOR_123"
            )
        names = [one["name"].removeprefix("measurement_of_sensor_") for one in found["columns"]]
        assert names == ["123", *(f"123{digit}" for digit in range(10))]
        assert not found["has_more"]

    async def test_sample_has_the_columns_of_the_answer_and_fits(self, newest: Agents, ana: Caller, wide: str) -> None:
        async with newest(ana) as agent:
            found = await answer(
                agent, "describe_table", connector="duckdb", database="main", table=wide, offset=100, sample_rows=3
            )
        sample = found["sample"]
        assert sample["columns"] == [one["name"] for one in found["columns"]]
        assert sample["columns"][0] == "measurement_of_sensor_100"
        assert sample["rows"]
        assert all(row == list(range(100, 100 + len(row))) for row in sample["rows"])

    async def test_rows_of_a_result_fit_with_all_their_columns(self, newest: Agents, ana: Caller, wide: str) -> None:
        async with newest(ana) as agent:
            outcome = await agent.call("run_sql", connector="duckdb", sql=f"SELECT * FROM {wide}", wait_s=30)
            assert (outcome["operation"]["state"], outcome["result"]) == ("available", None)
            operation = outcome["operation"]["operation_id"]
            refusal = await agent.refused("get_result", operation_id=operation, max_bytes=200_000)
            assert error_in(refusal)["code"] == "row_too_large"
            assert "5000 columns" in refusal
            few = f"SELECT COLUMNS('sensor_12.$') FROM {wide}"
            outcome = await agent.call("run_sql", connector="duckdb", sql=few, wait_s=30)
        assert outcome["result"]["rows"] == [list(range(120, 130))] * 3


async def test_sample_cuts_long_values(newest: Agents, ana: Caller) -> None:
    sql = "CREATE OR REPLACE TABLE letters AS SELECT repeat('x', 5000000) AS long, [1, 2] AS few, 7 AS n FROM range(5)"
    await made(ana, "duckdb", sql)
    async with newest(ana) as agent:
        found = await answer(
            agent, "describe_table", connector="duckdb", database="main", table="letters", sample_rows=2
        )
    [row, _] = found["sample"]["rows"]
    assert (len(row[0]), row[0][-1], row[2]) == (200, "…", 7)


async def test_sample_of_a_view_changes_nothing_with_a_token_that_only_reads(newest: Agents, ana: Caller) -> None:
    await made(
        ana,
        "postgresql",
        "CREATE TABLE IF NOT EXISTS reads_of_a_view (n int)",
        "CREATE OR REPLACE FUNCTION count_read() RETURNS int LANGUAGE sql VOLATILE AS"
        " 'INSERT INTO reads_of_a_view VALUES (1) RETURNING n'",
        "CREATE OR REPLACE VIEW counting AS SELECT count_read() AS n",
    )
    arguments = {"connector": "postgresql", "database": "public", "table": "counting", "sample_rows": 1}
    async with newest(await holding(ana, "query:read")) as agent:
        assert "read-only" in error_in(await agent.refused("describe_table", **arguments))["message"]
        counted = await agent.call("run_sql", connector="postgresql", sql="SELECT count(*) FROM reads_of_a_view")
    assert counted["result"]["rows"] == [[0]]


async def test_connector_that_is_not_granted_does_not_exist(newest: Agents, ana: Caller) -> None:
    async with newest(ana) as agent:
        calls = [
            ("describe_table", {"database": "public", "table": "described"}),
            ("search_tables", {"database": "public"}),
            ("search_tables", {}),
            ("search_tables", {"text": "described"}),
            ("explain", {"sql": "SELECT 1"}),
        ]
        for tool, arguments in calls:
            errors = [
                error_in(await agent.refused(tool, connector=connector, **arguments))
                for connector in ("granted", "missing")
            ]
            assert [one["code"] for one in errors] == ["dialect_not_found"] * 2
            assert errors[0]["message"].replace("granted", "missing") == errors[1]["message"]


async def test_unknown_table_is_an_error_that_names_it(newest: Agents, ana: Caller) -> None:
    async with newest(ana) as agent:
        refusal = await agent.refused(
            "describe_table", connector="postgresql", database="public", table="missing_table"
        )
    assert error_in(refusal)["code"] == "table_not_found"
    assert "missing_table" in refusal


class TestSearch:
    async def test_lists_databases_and_tables_of_a_connector_as_they_are_now(self, agents: Agents, ana: Caller) -> None:
        await made(
            ana,
            "postgresql",
            "CREATE TABLE IF NOT EXISTS listed_one (id int)",
            "CREATE OR REPLACE VIEW listed_two AS SELECT 1 AS n",
        )
        async with agents(ana) as agent:
            databases = await answer(agent, "search_tables", connector="postgresql")
            assert "public" in [one["database"] for one in databases["objects"]]
            tables = await answer(agent, "search_tables", connector="postgresql", database="public", text="LISTED_")
            assert [(one["table"], one["kind"]) for one in tables["objects"]] == [
                ("listed_one", "table"),
                ("listed_two", "view"),
            ]
            views = await answer(
                agent, "search_tables", connector="postgresql", database="public", text="listed_", kind="view"
            )
            assert [one["table"] for one in views["objects"]] == ["listed_two"]

    async def test_pages_list_every_table_once(self, newest: Agents, ana: Caller) -> None:
        sql = "; ".join(f"CREATE TABLE IF NOT EXISTS paged_{number:03} (id int)" for number in range(120))
        await made(ana, "postgresql", f"DO $$ BEGIN {sql}; END $$")
        names: list[str] = []
        offset: int | None = 0
        async with newest(ana) as agent:
            while offset is not None:
                page = await answer(
                    agent,
                    "search_tables",
                    connector="postgresql",
                    database="public",
                    text="paged_",
                    limit=50,
                    offset=offset,
                )
                assert page["total"] == 120
                names += [one["table"] for one in page["objects"]]
                offset = page.get("next_offset")
        assert names == [f"paged_{number:03}" for number in range(120)]

    async def test_finds_columns_in_the_index_of_the_granted_connectors(
        self, newest: Agents, ana: Caller, api: Api
    ) -> None:
        rich = await api.user("rich", groups=("analysts",))
        await made(ana, "postgresql", "CREATE TABLE IF NOT EXISTS indexed (unusual_name int, other int)")
        async with newest(ana) as agent, newest(rich) as analyst:
            described = {"database": "public", "table": "indexed"}
            await agent.call("describe_table", connector="postgresql", **described)
            await analyst.call("describe_table", connector="granted", **described)

            async def found(by: Session, **arguments: Any) -> set[tuple[str, str, str]]:
                objects = (await answer(by, "search_tables", text="unusual_name", **arguments))["objects"]
                return {(one["connector"], one["table"], one["column"]) for one in objects}

            both = {(key, "indexed", "unusual_name") for key in ("postgresql", "granted")}

            async def is_indexed() -> bool:
                return await found(analyst) == both

            await until(is_indexed)
            mine = {("postgresql", "indexed", "unusual_name")}
            assert await found(agent) == mine
            assert await found(analyst, connector="postgresql", kind="column") == mine
            assert await found(analyst, kind="table") == set()

    async def test_database_without_connector_is_an_error(self, newest: Agents, ana: Caller) -> None:
        async with newest(ana) as agent:
            assert error_in(await agent.refused("search_tables", database="public"))["code"] == "invalid_parameter"

    async def test_index_is_not_searched_without_the_right(self, newest: Agents, ana: Caller, api: Api) -> None:
        await api.database.execute("update group_rights set \"right\" = 'meta' where \"right\" = 'metadata'")
        try:
            async with newest(ana) as agent:
                assert error_in(await agent.refused("search_tables", text="x"))["code"] == "permission_denied"
        finally:
            await api.database.execute("update group_rights set \"right\" = 'metadata' where \"right\" = 'meta'")
