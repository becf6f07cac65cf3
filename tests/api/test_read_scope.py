"""The scope `query:read` of API tokens, call by call: what it permits, and that nothing is changed with it (Contract
platform 4.4, editor 4.9). A new call fails here until it is decided whether it only reads.
"""

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest
from scripts.api_texts import rows
from tests.api.answers import operation_of
from tests.api.driving import Api, Caller
from tests.api.test_api_token_statements import program_of
from tests.api.test_conventions import concrete, name_of
from tests.api.token.test_api_tokens import lacking
from tests.operations import NO_SCOPE, read_operations

READ = "query:read"

READING = {
    "check_status", "get_logs", "watch", "fetch_result_data", "fetch_result_metadata", "fetch_result_size",
    "autocomplete_databases", "autocomplete_tables", "autocomplete_columns", "autocomplete_column",
    "autocomplete_nested", "autocomplete_databases_of_query", "autocomplete_tables_of_query",
    "autocomplete_columns_of_query", "autocomplete_column_of_query", "autocomplete_nested_of_query",
    "follow_events", "describe_database", "describe_table", "describe_table_statistics",
    "describe_column_statistics", "sample_table", "sample_column", "sample_nested", "explain", "explain_on",
    "format_statements", "download_result", "get_shares", "shared_with_me", "open_shared_result", "get_history",
    "list_documents", "get_document", "list_document_versions", "get_document_version", "ask_optimizer",
    "search_metadata", "list_connectors", "get_connector", "create_notebook", "create_query_notebook",
}  # fmt: skip
"""Calls that store nothing, except positions and the time of the last use."""
RUNNING = {
    "execute", "execute_on", "query_on", "cancel_statement", "close_statement", "create_session", "close_session",
}  # fmt: skip
"""Calls that run and end statements and sessions of the caller. The statements of such a token only read."""
CHANGING = {
    "export_result", "share_result", "revoke_share", "save_document", "delete_document", "restore_document",
    "move_document", "share_document", "change_document_owner", "restore_document_version", "analyze_table",
    "analyze_column",
}  # fmt: skip
"""Calls that need the scope `query`."""
FREE = {
    "is_alive", "is_ready", "get_metrics", "log_in", "verify_token", "refresh_token", "get_login_options",
    "begin_session", "refresh_session", "begin_issuer_login",
    "finish_issuer_login", "begin_device_login", "poll_device_login", "get_config",
    "list_context_namespaces_by_alias", "list_context_namespaces", "get_namespaces", "list_context_computes_by_alias",
    "list_context_computes", "list_context_clusters_by_alias", "list_context_clusters", "get_banners", "get_schema",
    "get_console_view", "get_console_asset",
    "get_openapi_json", "get_swagger_page", "get_docs_page", "get_api_docs_asset", "get", "get_preferences",
    "get_budget", "download_ticket",
    "list_connector_types", "get_connectors_types", "post_connectors_types", "new_connector",
}  # fmt: skip
"""Calls of any token that store nothing. `new_connector` only fills in a form."""
FREE_CHANGES = {"change_preferences", "revoke_token", "end_session"}
"""Calls of any token that change something: the display of the caller's own numbers; an API token revokes nothing."""

NOT_READING = [one for one in read_operations() if one.scope not in {NO_SCOPE, READ}]


@pytest.fixture(scope="module")
async def owner(api: Api) -> Caller:
    return await api.user("owner")


@pytest.fixture(scope="module")
async def reader(owner: Caller) -> Caller:
    """A program with a token of `owner` that has only the scope `query:read`."""
    return (await program_of(owner, scopes=[READ]))[0]


def test_every_call_of_a_query_scope_is_decided() -> None:
    assert {name for name, row in rows().items() if row.scope == READ} == READING | RUNNING
    assert {name for name, row in rows().items() if row.scope == "query"} == CHANGING


def test_every_call_without_a_scope_is_decided() -> None:
    free = {name for name, row in rows().items() if row.scope == NO_SCOPE}
    assert free == FREE | FREE_CHANGES


@pytest.mark.platform(124)
@pytest.mark.parametrize("one", NOT_READING, ids=name_of)
async def test_call_of_another_scope_is_refused_before_its_body_is_read(reader: Caller, one: Any) -> None:
    body = {} if one.method == "GET" else {"content": b"x", "headers": {"Content-Type": "text/plain"}}
    assert lacking(await reader.send(one.method, concrete(one), **body)) == one.scope


class Calls:
    """Makes calls that must succeed, and collects the names of their operations."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.made: set[tuple[str, str]] = set()

    async def post(self, path: str, **fields: Any) -> dict[str, Any]:
        text = {name: one if isinstance(one, str | int) else json.dumps(one) for name, one in fields.items()}
        return self._kept("POST", path, await self.caller.post(path, **text)).json()

    async def get(self, path: str) -> httpx.Response:
        return self._kept("GET", path, await self.caller.get(path))

    def _kept(self, method: str, path: str, response: httpx.Response) -> httpx.Response:
        assert response.status_code == 200, f"{path}: {response.text}"
        self.made.add((method, path))
        return response


async def statement_calls(calls: Calls, reader: Caller) -> None:
    statement = {"statement": "SELECT 42 AS answer", "wait": 30}
    body = await calls.post("editor/execute/duckdb", **statement)
    operation = body["history_uuid"]
    await calls.post("editor/execute", **statement, snippet={"type": "duckdb"})
    await calls.post("query/duckdb", **statement)
    for call in ("check_status", "fetch_result_metadata", "fetch_result_size", "get_logs"):
        assert (await calls.post(f"editor/{call}", operationId=operation))["status"] == 0
    page = await calls.post("editor/fetch_result_data", operationId=operation)
    assert page["result"]["data"] == [[42]]
    await calls.post(f"editor/watch/{operation}")
    await calls.get(f"editor/events/{operation}")
    assert "42" in (await calls.get(f"editor/download/{operation}")).text
    history = (await calls.get("editor/get_history")).json()
    assert operation in {one["uuid"] for one in history["history"]}
    await calls.get(f"editor/shares/{operation}")
    await calls.get("editor/shared_with_me")
    await calls.get(f"editor/results/{operation}")
    opened = (await calls.post("editor/create_session", session={"type": "duckdb"}))["session"]
    in_session = {"statement": "SELECT 1", "session_id": opened["id"], "wait": 30}
    assert (await reader.post("editor/execute/duckdb", **in_session)).json()["status"] == 0
    await calls.post("editor/close_session", session={"type": "duckdb", "id": opened["id"]})
    await calls.post("editor/cancel_statement", operationId=operation)
    await calls.post("editor/close_statement", operationId=operation)
    await calls.post("editor/create_notebook")
    await calls.post("query/create_notebook")
    await calls.post("editor/format", statements="select 1")


async def metadata_calls(calls: Calls) -> None:
    for group in ("editor", "query"):
        for path in ("", "/shop", "/shop/t10", "/shop/t10/tags", "/shop/t10/tags/item"):
            await calls.post(f"{group}/autocomplete{path}", snippet={"type": "shelf"})
    for path in ("shop/t10", "shop/t10/tags"):
        await calls.post(f"editor/sample/{path}", snippet={"type": "shelf"})
    await calls.post("editor/sample/default/nested/tags/item", snippet={"type": "shelf"}, operation="hello")
    for path in ("shop", "shop/t10", "shop/t10/stats", "shop/t10/stats/id"):
        await calls.post(f"editor/describe/{path}", source_type="shelf")
    await calls.post("editor/explain", snippet={"type": "shelf"}, statement="rows 3")
    await calls.post("editor/explain/shelf", statement="rows 3")
    await calls.post("metadata/search/entities_interactive", query_s="t10", sources=["sql"])


async def document_calls(calls: Calls, uuid: str) -> None:
    await calls.get("documents")
    for path in ("", "/versions", "/versions/1"):
        await calls.get(f"documents/{uuid}{path}")


_UNCHANGED = (
    "users", "groups", "group_members", "group_rights", "connectors", "documents", "document_versions",
    "document_grants", "result_grants", "schedules", "tasks",
)  # fmt: skip


async def stored(api: Api) -> Mapping[str, Any]:
    """Return a digest of each table in which other calls store what they change, if it exists."""
    found = dict[str, Any]()
    for table in _UNCHANGED:
        if await api.database.value("select to_regclass($1) is not null", table):
            digest = "coalesce(sum(hashtext((to_jsonb(t) - 'last_login')::text)), 0)"
            found[table] = await api.database.value(f"select count(*)::text || '-' || {digest}::text from {table} t")
    return found


@pytest.mark.platform(124)
async def test_each_reading_call_succeeds_and_changes_nothing(api: Api, owner: Caller, reader: Caller) -> None:
    document = {"name": f"read {uuid4()}", "statement": "SELECT 1", "connector": "duckdb"}
    uuid = (await owner.post_ok("documents/save", document=json.dumps(document)))["uuid"]
    root = await api.user("readroot", admin=True)
    new = {"nice_name": f"Read {uuid4()}", "dialect": "sqlite", "interface": "sqlite"}
    connector = (await root.post_json("connector/instance/update", connector=new)).json()["connector"]
    before, calls = await stored(api), Calls(reader)
    await statement_calls(calls, reader)
    await metadata_calls(calls)
    await document_calls(calls, uuid)
    await calls.get("connector/instances")
    await calls.get(f"connector/instance/get/{connector['id']}")
    assert await stored(api) == before
    await root.post_json("connector/instance/delete", connector={"id": connector["id"]})
    expected = {one.key for one in read_operations() if one.scope == READ and one.group != "optimizer"}
    assert _keys(calls.made) == expected


def _keys(made: set[tuple[str, str]]) -> set[tuple[str, str]]:
    found = [operation_of(method, f"/api/v1/{path}") for method, path in made]
    return {one.key for one in found if one is not None}


@pytest.mark.platform(125)
class TestStatements:
    @pytest.mark.parametrize("dialect", ["duckdb", "sqlite", "postgresql"])
    @pytest.mark.parametrize("fields", [{}, {"read_only": "false"}, {"run_all": "true"}], ids=str)
    async def test_statement_that_changes_is_rejected(
        self, reader: Caller, owner: Caller, dialect: str, fields: dict[str, str]
    ) -> None:
        table = f"made_{uuid4().hex}"
        body = await reader.run(dialect, f"CREATE TABLE {table} (n integer)", **fields)
        assert (body["status"], body["code"]) == (1, "rejected")
        assert (await owner.run(dialect, f"SELECT * FROM {table}"))["status"] == 1

    async def test_script_stops_at_the_first_change(self, reader: Caller, owner: Caller) -> None:
        table = f"made_{uuid4().hex}"
        body = await reader.run("duckdb", f"SELECT 1; CREATE TABLE {table} (n integer)", run_all="true")
        assert (body["status"], body["code"]) == (1, "rejected")
        assert (await owner.run("duckdb", f"SELECT * FROM {table}"))["status"] == 1

    async def test_continued_script_of_the_user_only_reads(self, reader: Caller, owner: Caller) -> None:
        table = f"made_{uuid4().hex}"
        begun = await owner.run("duckdb", f"SELECT 1; CREATE TABLE {table} (n integer)")
        body = await reader.run("duckdb", "", operationId=begun["history_uuid"])
        assert (body["status"], body["code"]) == (1, "rejected")
        assert (await owner.run("duckdb", f"SELECT * FROM {table}"))["status"] == 1

    async def test_statements_of_the_user_may_still_change(self, reader: Caller, owner: Caller) -> None:
        assert (await reader.run("duckdb", "SELECT 1"))["status"] == 0
        assert (await owner.run("duckdb", f"CREATE TABLE made_{uuid4().hex} (n integer)"))["status"] == 0

    async def test_saved_query_that_changes_is_rejected(self, reader: Caller, owner: Caller) -> None:
        table = f"made_{uuid4().hex}"
        document = {"name": table, "statement": f"CREATE TABLE {table} (n integer)", "connector": "duckdb"}
        uuid = (await owner.post_ok("documents/save", document=json.dumps(document)))["uuid"]
        body = (await reader.post("editor/execute", document=uuid, wait=30)).json()
        assert (body["status"], body["code"]) == (1, "rejected")

    @pytest.mark.parametrize(
        "into",
        [{"path": "file:///tmp/planted.csv"}, {"connector": "postgresql", "database": "public", "table": "planted"}],
        ids=["file", "table"],
    )
    async def test_rows_go_nowhere_else(self, reader: Caller, into: dict[str, str]) -> None:
        sent = await reader.post("editor/execute/duckdb", statement="SELECT 1", into=json.dumps(into))
        assert lacking(sent) == "query"

    @pytest.mark.parametrize(
        ("dialect", "statement"),
        [
            ("duckdb", "COPY (SELECT 1) TO 'file:///shared/{}.csv'"),
            ("postgresql", "SELECT 1 AS n INTO {}"),
            ("postgresql", "/* */ WITH x AS (SELECT 1 AS n) SELECT n INTO {} FROM x"),
            ("postgresql", "COMMIT; CREATE TABLE {} (n integer)"),
            ("postgresql", "SET default_transaction_read_only = off; CREATE TABLE {} (n integer)"),
            ("postgresql", "DO $$ BEGIN CREATE TABLE {} (n integer); END $$"),
        ],
    )
    async def test_known_ways_around_fail(self, reader: Caller, owner: Caller, dialect: str, statement: str) -> None:
        table = f"made_{uuid4().hex}"
        body = await reader.run(dialect, statement.format(table), run_all="true")
        assert body["status"] == 1
        assert (await owner.run(dialect, f"SELECT * FROM {table}"))["status"] == 1

    async def test_explain_that_runs_its_statement_leaves_nothing(self, reader: Caller, owner: Caller) -> None:
        # PostgreSQL runs this one in a read-only transaction, which the service then rolls back.
        table = f"made_{uuid4().hex}"
        await reader.run("postgresql", f"EXPLAIN ANALYZE CREATE TABLE {table} AS SELECT 1 AS n")
        assert (await owner.run("postgresql", f"SELECT * FROM {table}"))["status"] == 1

    async def test_sample_of_a_view_changes_nothing(self, reader: Caller, owner: Caller) -> None:
        name = f"made_{uuid4().hex}"
        snippet = json.dumps({"type": "postgresql"})
        for text in (f"CREATE SEQUENCE s_{name}", f"CREATE VIEW {name} AS SELECT nextval('s_{name}') AS n"):
            assert (await owner.run("postgresql", text))["status"] == 0
        refused = await reader.post(f"editor/sample/public/{name}", snippet=snippet)
        assert "read-only transaction" in refused.text
        assert (await owner.result("postgresql", f"SELECT is_called FROM s_{name}"))["data"] == [[False]]
        shown = await owner.post_ok(f"editor/sample/public/{name}", snippet=snippet)
        assert shown["rows"] == [[1]]

    async def test_a_token_with_both_scopes_may_change(self, owner: Caller) -> None:
        program, _ = await program_of(owner, scopes=[READ, "query"])
        assert (await program.run("duckdb", f"CREATE TABLE made_{uuid4().hex} (n integer)"))["status"] == 0


async def test_search_in_stores_needs_the_scope_of_files(reader: Caller) -> None:
    for source in ("s3", "hdfs"):
        found = await reader.post("metadata/search/entities_interactive", query_s="a", sources=json.dumps([source]))
        assert lacking(found) == "files:read"


async def test_the_response_names_the_narrowest_scope_that_suffices(owner: Caller) -> None:
    program, _ = await program_of(owner, scopes=["import"])
    assert lacking(await program.get("editor/get_history")) == READ
