"""Each real engine is used through the HTTP API. Some tests kill the server while statements are running."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.contract.test_phoenix_engine import make_tables
from tests.e2e.installation import TAKEN_OVER_WITHIN_S, Installation, Node, eventually, installed, query
from tests.engines.mariadb import mariadb_server
from tests.engines.servers import HttpAddress, ServerAddress

from queryserver.imports.model import TABLE_DIALECTS
from queryserver.platform.embedded.companions import ValkeyServer
from queryserver.platform.embedded.postgres import EmbeddedPostgres

ENDS_WITHIN_S = 120.0
FORBIDDEN = ("Traceback", "\tat ", "java.lang.", "org.apache.", "io.trino.", "http://", "127.0.0.1", "/tmp/")  # noqa: S108


@dataclass(frozen=True)
class Case:
    """The statements that test one engine. In them, `{t}` stands for the table name, qualified by the database."""

    dialect: str
    table: dict[str, Any]
    """The connector's table in the settings file."""
    database: str
    create: tuple[str, ...]
    select: str
    rows: list[list[Any]]
    types: list[str]
    slow: str
    function: str | None
    column: str = "id"
    name: str = "items"
    analyze: str | None = "success"
    """The final state of a statement that analyzes the table. It is None if the engine cannot analyze tables."""
    analyzed_column: bool = True
    drop: str = "DROP TABLE {t}"
    long_rows: str = ""
    """A statement that runs for some seconds and then returns `long_count` rows, which contain the integers from 0
    on.
    """
    longer_rows: str = ""
    """A statement like `long_rows` that runs longer than a worker takes to start."""
    long_count: int = 0
    headers: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="class")
async def place(
    case: Case,
    postgres: EmbeddedPostgres,
    tcp_open: EmbeddedPostgres,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Installation]:
    """An installation whose data sources include the engine."""
    assert tcp_open
    directory = tmp_path_factory.mktemp(case.dialect)
    async with installed(postgres, migrated_template, directory, {case.dialect: case.table}) as place:
        yield place


@pytest.fixture
async def fleet(
    case: Case,
    postgres: EmbeddedPostgres,
    tcp_open: EmbeddedPostgres,
    migrated_template: str,
    tmp_path_factory: pytest.TempPathFactory,
    valkey: ValkeyServer,
) -> AsyncIterator[Installation]:
    """An installation with workers. It has a separate database, because servers without a task server would run the
    waiting statements.
    """
    assert tcp_open
    directory = tmp_path_factory.mktemp(f"{case.dialect}-fleet")
    async with installed(postgres, migrated_template, directory, {case.dialect: case.table}) as place:
        yield place.with_task_server(valkey.url)


@pytest.fixture(scope="class")
async def node(place: Installation) -> AsyncIterator[Node]:
    """A server with a long lease. On a busy machine, no other server considers it dead."""
    async with place.server(editor__lease_timeout_s="60") as node:
        yield node


@pytest.fixture(scope="class")
async def items(node: Node, case: Case) -> AsyncIterator[str]:
    """Create a table with rows; yield its name. The table is dropped after the test."""
    table = f"{case.database}.{case.name}" if case.database else case.name
    for statement in case.create:
        await done(node, case, statement.format(t=table))
    yield case.name
    await done(node, case, case.drop.format(t=table))


class RoundTrip:
    """Tests for all engines. The class of each engine inherits them and provides the fixture `case`."""

    @pytest.mark.item(9)
    @pytest.mark.item(31)
    async def test_rows_are_typed(self, node: Node, case: Case, items: str) -> None:
        table = f"{case.database}.{items}" if case.database else items
        operation = await done(node, case, case.select.format(t=table))
        page = await node.page(operation)
        assert page["data"] == case.rows
        assert [one["type"] for one in page["meta"]] == case.types
        assert page["rows_total"] == len(case.rows)
        logs = await node.post_ok("editor/get_logs", operationId=operation)
        assert (logs["progress"], logs["isFullLogs"]) == (100, True)
        lines = list(csv.reader(io.StringIO((await node.file(operation)).decode())))
        assert len(lines) == 1 + len(case.rows)
        assert (await node.post_ok("editor/close_statement", operationId=operation))["result"]["status"] == 0

    @pytest.mark.item(15)
    @pytest.mark.item(16)
    async def test_unknown_table_is_reported_with_the_engine_message(self, node: Node, case: Case) -> None:
        operation = await node.submit(case.dialect, "SELECT * FROM no_such_table_here")
        body = await ended(node, operation)
        assert (body["status"], body["code"]) == (1, "engine_error")
        assert "no_such_table_here" in body["message"].lower()
        for word in FORBIDDEN:
            assert word not in body["message"]

    @pytest.mark.item(36)
    async def test_cancel_stops_slow_statement(self, node: Node, case: Case) -> None:
        operation = await node.submit(case.dialect, case.slow)
        await node.until(operation, lambda status: status["status"] == "running", within_s=60)
        await node.post_ok("editor/cancel_statement", operationId=operation)
        body = await ended(node, operation)
        assert (body["status"], body["code"]) == (1, "canceled")

    @pytest.mark.item(35)
    async def test_time_limit_stops_slow_statement(self, node: Node, case: Case) -> None:
        operation = await node.submit(case.dialect, case.slow, timeout=4)
        body = await ended(node, operation)
        assert (body["status"], body["code"]) == (-4, "statement_timeout")

    @pytest.mark.item(60)
    async def test_names_are_completed(self, node: Node, case: Case, items: str) -> None:
        snippet = json.dumps({"type": case.dialect})
        listed = await node.post_ok("editor/autocomplete", snippet=snippet)
        assert case.database in listed["databases"]
        tables = await node.post_ok(f"editor/autocomplete/{case.database}", snippet=snippet)
        assert items.lower() in [one["name"].lower() for one in tables["tables_meta"]]
        table = await node.post_ok(f"editor/autocomplete/{case.database}/{items}", snippet=snippet)
        assert case.column.lower() in [name.lower() for name in table["columns"]]
        column = await node.post_ok(f"query/autocomplete/{case.database}/{items}/{case.column}", snippet=snippet)
        assert column["name"].lower() == case.column.lower()

    @pytest.mark.item(61)
    @pytest.mark.parametrize(
        ("path", "code"),
        [
            ("no_such_db", "database_not_found"),
            ("{db}/no_such_table", "table_not_found"),
            ("{db}/{t}/no_such_column", "column_not_found"),
            ("{db}/{t}/{c}/item", "nested_path_not_found"),
        ],
    )
    async def test_unknown_names_are_not_found(self, node: Node, case: Case, items: str, path: str, code: str) -> None:
        path = path.format(db=case.database, t=items, c=case.column)
        snippet = json.dumps({"type": case.dialect})
        response = await node.post(f"editor/autocomplete/{path}", snippet=snippet)
        assert (response.status_code, response.json()["code"]) == (404, code)

    @pytest.mark.item(63)
    async def test_functions_are_described(self, node: Node, case: Case) -> None:
        snippet = json.dumps({"type": case.dialect})
        listed = await node.post_ok("editor/autocomplete", snippet=snippet, operation="functions")
        names = [one["name"].lower() for one in listed["functions"]]
        assert (case.function in names) if case.function else not names
        if case.function:
            one = await node.post_ok(f"editor/autocomplete/{case.function}", snippet=snippet, operation="function")
            assert one["function"]["name"].lower() == case.function

    @pytest.mark.item(64)
    async def test_samples_are_returned(self, node: Node, case: Case, items: str) -> None:
        snippet = json.dumps({"type": case.dialect})
        path = f"editor/sample/{case.database}/{items}"
        sample = await node.post_ok(path, snippet=snippet)
        assert sorted(map(str, sample["rows"])) == sorted(map(str, case.rows))
        column = await node.post_ok(f"{path}/{case.column}", snippet=snippet, operation="distinct")
        assert column["rows"] == sorted([row[0]] for row in case.rows)
        largest = await node.post_ok(f"{path}/{case.column}", snippet=snippet, operation="max")
        assert largest["rows"] == [[max(row[0] for row in case.rows)]]
        hello = await node.post_ok(path, snippet=snippet, operation="hello")
        assert hello["rows"] == [["Hello World!"]]
        begun = await node.post_ok(path, snippet=snippet, **{"async": "true"})
        await ended(node, begun["operationId"])
        assert len((await node.page(begun["operationId"]))["data"]) == len(case.rows)

    @pytest.mark.item(65)
    async def test_objects_are_described(self, node: Node, case: Case, items: str) -> None:
        database = await node.post_ok(f"editor/describe/{case.database}", source_type=case.dialect)
        assert database["db_name"] == case.database
        table = await node.post_ok(f"editor/describe/{case.database}/{items}", source_type=case.dialect)
        assert case.column.lower() in [one["name"].lower() for one in table["cols"]]
        column = await node.post_ok(
            f"editor/describe/{case.database}/{items}/stats/{case.column}", source_type=case.dialect
        )
        assert column["col_name"].lower() == case.column.lower()

    @pytest.mark.item(66)
    async def test_analysis_can_be_watched(self, node: Node, case: Case, items: str) -> None:
        path = f"{case.dialect}/analyze/{case.database}/{items}"
        if case.analyze is None:
            response = await node.post(path)
            assert (response.status_code, response.json()["code"]) == (501, "not_supported")
            return
        begun = await node.post_ok(path)
        watched = await watch(node, begun["watch_url"])
        assert watched["query_status"]["state"] == case.analyze
        response = await node.post(f"{path}/{case.column}")
        assert response.status_code == (200 if case.analyzed_column else 501)
        if case.analyzed_column:
            assert (await watch(node, response.json()["watch_url"]))["isSuccess"] == (case.analyze != "failed")

    @pytest.mark.item(56)
    async def test_explain_shows_plan_without_running_statement(self, node: Node, case: Case, items: str) -> None:
        table = f"{case.database}.{items}" if case.database else items
        plan = await node.post_ok(f"editor/explain/{case.dialect}", statement=case.select.format(t=table))
        assert plan["explanation"].strip()
        operation = await done(node, case, case.select.format(t=table))
        assert len((await node.page(operation))["data"]) == len(case.rows)

    @pytest.mark.exports(27)
    async def test_rows_go_to_another_connector_and_back(self, node: Node, case: Case, items: str) -> None:
        table = f"{case.database}.{items}" if case.database else items
        there = {"connector": "postgresql", "table": f"from_{case.dialect}", "if_exists": "replace"}
        operation = await node.submit(case.dialect, case.select.format(t=table), into=json.dumps(there))
        body = await ended(node, operation)
        assert body["query_status"]["state"] == "available", body
        assert (await node.page(operation))["data"][0][0] == len(case.rows)
        source = await node.finished("postgresql", f"SELECT * FROM from_{case.dialect}")
        back = {"connector": case.dialect, "database": case.database, "table": "BACK"}
        answer = await node.post("editor/export_result", operationId=source, **back)
        if case.dialect not in TABLE_DIALECTS:
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_dialect")
            return
        assert answer.status_code == 202, answer.text
        body = await ended(node, answer.json()["history_uuid"])
        assert body["query_status"]["state"] == "available", body
        table = f"{case.database}.BACK" if case.database else "BACK"
        found = (await node.page(await done(node, case, f"SELECT * FROM {table}")))["data"]
        rows = [row[: len(case.types)] for row in found]  # Phoenix adds a column with row numbers
        assert sorted(map(str, rows)) == sorted(map(str, (await node.page(source))["data"]))
        await done(node, case, case.drop.format(t=table))


class TakeOver(RoundTrip):
    """Tests for engines on which a statement continues when its client disconnects."""

    @pytest.mark.item(25)
    @pytest.mark.parametrize("ending", ["kill -9", "restart"])
    async def test_running_statement_is_taken_over(self, place: Installation, case: Case, ending: str) -> None:
        async with place.server() as first:
            operation = await first.submit(case.dialect, case.long_rows, limit=case.long_count + 1)
            await first.until(operation, lambda status: status["status"] == "running", within_s=60)
            await asyncio.sleep(1.5)
            body = await first.status(operation)
            assert body["query_status"]["state"] == "running", body
            if ending == "kill -9":
                await first.process.kill9()
            else:
                await first.process.terminate()
        async with place.server() as second:
            body = await second.until(
                operation,
                lambda status: status["status"] not in {"waiting", "running"},
                within_s=ENDS_WITHIN_S + TAKEN_OVER_WITHIN_S,
            )
            assert body["query_status"]["state"] == "available", body
            assert body["query_status"]["rows"] == case.long_count
            seen = await all_rows(second, operation, case.long_count)
        assert seen == list(range(case.long_count))

    @pytest.mark.item(25)
    async def test_statement_is_taken_over_while_reading_rows(self, place: Installation, case: Case) -> None:
        async with place.server() as first:
            operation = await first.submit(case.dialect, case.long_rows, limit=case.long_count + 1)
            await first.until(operation, lambda status: status["rows"] > 0, within_s=ENDS_WITHIN_S)
            await first.process.kill9()
        async with place.server() as second:
            body = await second.until(
                operation,
                lambda status: status["status"] not in {"waiting", "running"},
                within_s=ENDS_WITHIN_S + TAKEN_OVER_WITHIN_S,
            )
            assert body["query_status"]["state"] == "available", body
            seen = await all_rows(second, operation, case.long_count)
        assert seen == list(range(case.long_count))

    @pytest.mark.platform(104)
    @pytest.mark.parametrize("ending", ["kill -9", "stop"])
    async def test_running_statement_of_worker_is_resumed_by_another(
        self, fleet: Installation, case: Case, ending: str
    ) -> None:
        async with fleet.server() as node, fleet.worker(desktop__shutdown_grace_s="0") as first:
            operation = await node.submit(case.dialect, case.longer_rows, limit=case.long_count + 1)
            await node.until(operation, lambda status: status["status"] == "running", within_s=60)
            async with fleet.worker() as second:
                body = await node.status(operation)
                assert body["query_status"]["state"] == "running", body
                await (first.process.kill9() if ending == "kill -9" else first.process.terminate())
                body = await node.until(
                    operation,
                    lambda status: status["status"] not in {"waiting", "running"},
                    within_s=ENDS_WITHIN_S + TAKEN_OVER_WITHIN_S,
                )
                assert body["query_status"]["state"] == "available", body
                owner = "select owner from statements where id = $1::text::uuid"
                assert await query(fleet.database_dsn, owner, operation) == second.owner
                seen = await all_rows(node, operation, case.long_count)
        assert seen == list(range(case.long_count))


async def done(node: Node, case: Case, statement: str) -> str:
    """Run a statement; return its operation id. Fails if the statement does."""
    operation = await node.submit(case.dialect, statement)
    body = await ended(node, operation)
    assert body["query_status"]["state"] in {"available", "success"}, body
    return operation


async def failing_log(node: Node, case: Case, statement: str) -> str:
    """Run a statement that must fail; return its log. Neither the log nor the message may reveal internals of the
    engine.
    """
    operation = await node.submit(case.dialect, statement)
    body = await ended(node, operation)
    assert (body["status"], body["code"]) == (1, "engine_error")
    log = (await node.post_ok("editor/get_logs", operationId=operation))["logs"]
    for word in (*FORBIDDEN, "Caused by", "file:/", "more\n"):
        assert word not in log
        assert word not in body["message"]
    return log


async def ended(node: Node, operation: str) -> dict[str, Any]:
    """Wait for the statement's end; return the last check_status body."""
    async with asyncio.timeout(ENDS_WITHIN_S):
        while True:
            body = await node.status(operation, wait=20)
            if body["query_status"]["status"] not in {"waiting", "running"}:
                return body


async def watch(node: Node, url: str) -> dict[str, Any]:
    """Call watch until the operation has ended; return the body of the last response."""
    seen: dict[str, Any] = {}

    async def is_over() -> bool:
        response = await node.http.post(url, headers=node.headers())
        seen.update(response.json())
        return seen["isSuccess"] or seen["isFailure"]

    await eventually(is_over, within_s=ENDS_WITHIN_S)
    return seen


async def all_rows(node: Node, operation: str, count: int) -> list[int]:
    """Return the first column of a result, read page by page."""
    found: list[int] = []
    while len(found) < count:
        page = await node.page(operation, start_row=len(found), rows=10_000)
        assert page["data"]
        found += [row[0] for row in page["data"]]
    return found


def _hiveserver2(address: ServerAddress) -> dict[str, Any]:
    options = {"server_host": address.host, "server_port": address.port, "username": address.user}
    return {"interface": "hiveserver2", "options": options}


@pytest.mark.engine("sparksql")
class TestSpark(RoundTrip):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, spark_server: ServerAddress) -> Case:
        return Case(
            dialect="sparksql",
            table=_hiveserver2(spark_server),
            database="default",
            create=(
                "CREATE TABLE {t} (id INT, name STRING) USING parquet",
                "INSERT INTO {t} VALUES (1, 'blue pen'), (2, NULL)",
            ),
            select="SELECT id, name FROM {t} ORDER BY id",
            rows=[[1, "blue pen"], [2, None]],
            types=["INT_TYPE", "STRING_TYPE"],
            slow="SELECT sum(a.id * b.id % 7) FROM range(0, 2000000, 1, 1) a CROSS JOIN range(0, 40000, 1, 1) b",
            function="abs",
        )

    @pytest.mark.item(25)
    @pytest.mark.parametrize("ending", ["kill -9", "restart"])
    async def test_statement_that_ended_with_server_is_not_awaited(
        self, place: Installation, case: Case, ending: str
    ) -> None:
        """Spark ends a statement when the connection that started it is closed."""
        async with place.server() as first:
            operation = await first.submit(case.dialect, case.slow)
            await first.until(operation, lambda status: status["status"] == "running", within_s=60)
            await (first.process.kill9() if ending == "kill -9" else first.process.terminate())
        async with place.server() as second:
            body = await second.until(
                operation,
                lambda status: status["status"] not in {"waiting", "running"},
                within_s=2 * TAKEN_OVER_WITHIN_S,
            )
        assert body["code"] == "outcome_unknown"
        assert body["message"].startswith("Results have expired")

    @pytest.mark.item(51)
    @pytest.mark.parametrize(
        ("sql", "words"),
        [
            ("SELECT raise_error('my own words') FROM range(2)", "my own words"),
            ("SELECT * FROM no_such_table_here", "TABLE_OR_VIEW_NOT_FOUND"),
            ("SELECT * FROM parquet.`/nowhere/x`", "Path does not exist"),
        ],
        ids=["a task", "a table", "a file"],
    )
    async def test_failed_statement_log_contains_only_the_cause(
        self, node: Node, case: Case, sql: str, words: str
    ) -> None:
        assert words in await failing_log(node, case, sql)


@pytest.mark.engine("trino")
class TestTrino(TakeOver):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, trino_server: HttpAddress) -> Case:
        return Case(
            dialect="trino",
            table={
                "interface": "trino",
                "options": {"url": trino_server.url, "catalog": "memory", "schema": "default"},
            },
            database="memory.default",
            create=("CREATE TABLE {t} (id integer, name varchar)", "INSERT INTO {t} VALUES (1, 'blue pen'), (2, NULL)"),
            select="SELECT id, name FROM {t} ORDER BY id",
            rows=[[1, "blue pen"], [2, None]],
            types=["INT_TYPE", "STRING_TYPE"],
            slow="SELECT count(comment) FROM tpch.sf1000.lineitem",
            function="abs",
            # The memory connector cannot compute statistics.
            analyze="failed",
            long_rows=_trino_rows(1),
            longer_rows=_trino_rows(3),
            long_count=900_000,
        )

    @pytest.mark.item(111)
    async def test_operation_and_user_are_found_in_the_table_of_queries(self, node: Node, case: Case) -> None:
        operation = await done(node, case, "SELECT 'whose'")
        sql = f"SELECT \"user\", source, query FROM system.runtime.queries WHERE query LIKE '%{operation}%whose%'"
        own = await done(node, case, sql)
        (found,) = [row for row in (await node.page(own))["data"] if "runtime.queries" not in row[2]]
        comment = f"/*connector='trino',operation_id='{operation}',user='ana'*/"
        assert found == ["ana", "queryserver", f"{comment} SELECT 'whose'"]

    @pytest.mark.item(25)
    async def test_transaction_of_read_only_statement_ends_after_takeover(
        self, place: Installation, case: Case
    ) -> None:
        async with place.server() as first:
            operation = await first.submit(case.dialect, case.long_rows, read_only="true", limit=case.long_count + 1)
            await first.until(operation, lambda status: status["status"] == "running", within_s=60)
            await asyncio.sleep(1.5)
            assert await self.transactions(first, case) == [[True]]
            await first.process.kill9()
        async with place.server() as second:
            body = await second.until(
                operation,
                lambda status: status["status"] not in {"waiting", "running"},
                within_s=ENDS_WITHIN_S + TAKEN_OVER_WITHIN_S,
            )
            assert body["query_status"]["state"] == "available", body
            await eventually(lambda: self.no_transaction(second, case), within_s=30)

    async def transactions(self, node: Node, case: Case) -> list[list[Any]]:
        """Return the mode of each transaction that was started explicitly."""
        sql = "SELECT read_only FROM system.runtime.transactions WHERE NOT auto_commit_context"
        return (await node.page(await done(node, case, sql)))["data"]

    async def no_transaction(self, node: Node, case: Case) -> bool:
        return not await self.transactions(node, case)


def _trino_rows(scale: int) -> str:
    """Return a query that reads a table before it returns rows. `scale` determines the size of the table."""
    return f"""SELECT a.i * 1000 + b.j AS n
        FROM UNNEST(sequence(0, 899)) AS a(i) CROSS JOIN UNNEST(sequence(0, 999)) AS b(j)
        CROSS JOIN (SELECT count(comment) AS c FROM tpch.sf{scale}.lineitem) WHERE c > 0 ORDER BY n"""


@pytest.mark.engine("hive")
class TestHive(TakeOver):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, hive_server: ServerAddress) -> Case:
        return Case(
            dialect="hive",
            table=_hiveserver2(hive_server),
            database="default",
            create=(
                "CREATE TABLE {t} (id INT, name STRING) STORED AS ORC",
                "INSERT INTO {t} VALUES (1, 'blue pen'), (2, NULL)",
            ),
            select="SELECT id, name FROM {t} ORDER BY id",
            rows=[[1, "blue pen"], [2, None]],
            types=["INT_TYPE", "STRING_TYPE"],
            slow="SELECT reflect('java.lang.Thread', 'sleep', CAST(60000 AS bigint))",
            function="abs",
            long_rows=_hive_rows(8),
            longer_rows=_hive_rows(20),
            long_count=300_000,
        )

    @pytest.mark.item(51)
    async def test_failed_task_log_contains_only_the_cause(self, node: Node, case: Case, items: str) -> None:
        """The statement has one job. Its only task is tried four times, and always fails."""
        log = await failing_log(node, case, f"SELECT max(IF(assert_true(id < 2) IS NULL, id, 0)) FROM {items}")
        assert "ASSERT_TRUE(): assertion failed." in log
        assert "Vertex failed" in log

    async def test_nested_decimals_keep_their_digits(self, node: Node, case: Case) -> None:
        """Hive returns nested values as JSON strings."""
        number = "12345678901234567890.123456789"
        decimal = f"CAST('{number}' AS decimal(38,9))"
        nested = (
            f"array({decimal}, CAST('-0.5' AS decimal(38,9)), NULL)",
            f"map('k', {decimal})",
            f"named_struct('x', {decimal})",
        )
        operation = await done(node, case, f"SELECT {', '.join(nested)}")
        ((listed, mapped, built),) = (await node.page(operation))["data"]
        assert [str(value) for value in listed] == [number, "-0.5", "None"]
        assert (mapped, built) == ({"k": number}, {"x": number})
        _, line = csv.reader(io.StringIO((await node.file(operation)).decode()))
        assert [cell.count(number) for cell in line] == [1, 1, 1]


def _hive_rows(seconds: int) -> str:
    """Return a query that sleeps and then returns wide rows, whose transfer takes a while."""
    return f"""SELECT IF(length(coalesce(slept, '')) > 99, -1, i * 1000 + j) AS n, rpad('', 300, 'x') AS w
        FROM (SELECT CAST(reflect('java.lang.Thread', 'sleep', CAST({seconds}000 AS bigint)) AS string) AS slept) t
        LATERAL VIEW posexplode(split(space(299), ' ')) a AS i, x
        LATERAL VIEW posexplode(split(space(999), ' ')) b AS j, y"""


@pytest.mark.engine("mariadb")
class TestMariadb(RoundTrip):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls) -> Iterator[Case]:
        with mariadb_server() as server:
            url = f"mysql://{server.user}:{server.password}@{server.host}:{server.port}/users"
            yield Case(
                dialect="mysql",
                table={"interface": "sqlalchemy", "options": {"url": url}},
                database="users",
                create=("CREATE TABLE {t} (id INT, name TEXT)", "INSERT INTO {t} VALUES (1, 'blue pen'), (2, NULL)"),
                select="SELECT id, name FROM {t} ORDER BY id",
                rows=[[1, "blue pen"], [2, None]],
                types=["INT_TYPE", "STRING_TYPE"],
                slow="SELECT SLEEP(60)",
                function="abs",
                # ANALYZE TABLE returns rows.
                analyze="available",
            )


@pytest.mark.engine("phoenix")
@pytest.mark.timeout(400)
class TestPhoenix(RoundTrip):
    @pytest.fixture(scope="class")
    @classmethod
    def case(cls, phoenix_server: HttpAddress) -> Case:
        asyncio.run(make_tables(phoenix_server.url))
        return Case(
            dialect="phoenix",
            table={"interface": "phoenix", "options": {"url": phoenix_server.url}},
            database="QS",
            create=(
                "CREATE TABLE {t} (id INTEGER PRIMARY KEY, name VARCHAR)",
                "UPSERT INTO {t} VALUES (1, 'blue pen')",
                "UPSERT INTO {t} (id) VALUES (2)",
            ),
            select="SELECT id, name FROM {t} ORDER BY id",
            rows=[[1, "blue pen"], [2, None]],
            types=["INT_TYPE", "STRING_TYPE"],
            slow="SELECT COUNT(*) FROM (SELECT a.n FROM qs.n AS a, qs.n AS b, qs.n AS c LIMIT 50000000)",
            function=None,
            # Phoenix analyzes only whole tables.
            analyzed_column=False,
        )
