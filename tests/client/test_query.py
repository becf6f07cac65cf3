"""`query`: from a statement to its rows, in every format (issue 20, section 3)."""

import asyncio
import datetime as dt
import gc
import json
import os
import re
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.test_field_values import statement
from tests.client.conftest import QUICK, Server
from tests.client.threads import in_thread

from queryserver_client import (
    ApiError,
    Conflict,
    Connection,
    ConnectionLost,
    ConversionFailed,
    NoResultSet,
    Retries,
    StatementError,
    Truncated,
    arrow,
    connect,
    connect_sync,
)
from queryserver_client.errors import is_panic
from queryserver_client.event_loop import Loop

ROWS = "SELECT i AS n, 'row ' || i AS t FROM range({}) AS r(i)"


async def test_small_result_arrives_with_execute_response(db: Connection):
    result = await db.query("duckdb", "SELECT 1 AS one, 'x' AS letter")
    assert [(column.name, column.type) for column in result.columns] == [("one", "INT_TYPE"), ("letter", "STRING_TYPE")]
    assert await result.rows() == [(1, "x")]
    assert await result.dicts() == [{"one": 1, "letter": "x"}]
    assert await result.scalar() == 1
    assert result.row_count == 1


class PagelessTransport(httpx.AsyncHTTPTransport):
    """The real transport, except that all requests for result pages fail."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("fetch_result_data"):
            raise httpx.ReadError("cut")
        return await super().handle_async_request(request)


async def test_result_that_never_reaches_caller_is_deleted(server: Server):
    token = await server.token()
    retries = Retries(total_s=0)
    async with connect(server.url, token=token, retries=retries, http_transport=PagelessTransport()) as refusing:
        with pytest.raises(ConnectionLost):
            await refusing.query("duckdb", "SELECT 1", on_progress=lambda _: None)
        assert [entry.state async for entry in refusing.history.search()] == ["closed"]


async def test_values_are_returned_without_loss(db: Connection):
    result = await db.query(
        "duckdb",
        "SELECT 9223372036854775807, 12.50::DECIMAL(10,2), 170141183460469231731687303715884105727::HUGEINT, "
        "DATE '2024-01-31', TIMESTAMP '2024-01-31 10:20:30.5', TIMESTAMPTZ '2024-01-31 10:20:30+00', TIME '10:20:30', "
        "'\\x00\\xFF'::BLOB, NULL, 'NaN'::DOUBLE, true, 0.1::DOUBLE",
    )
    row = (await result.rows())[0]
    assert row[:9] == (
        9223372036854775807,
        Decimal("12.50"),
        2**127 - 1,
        dt.date(2024, 1, 31),
        dt.datetime(2024, 1, 31, 10, 20, 30, 500000),  # noqa: DTZ001
        dt.datetime(2024, 1, 31, 10, 20, 30, tzinfo=dt.UTC),
        dt.time(10, 20, 30),
        b"\x00\xff",
        None,
    )
    assert str(row[1]) == "12.50"
    assert row[9] != row[9]
    assert row[10:] == (True, 0.1)


async def test_rows_beyond_a_page_are_read_in_pages(db: Connection):
    result = await db.query("duckdb", ROWS.format(23_456), limit=50_000)
    rows = await result.rows()
    assert rows == [(n, f"row {n}") for n in range(23_456)]
    assert [row async for row in result] == rows


async def test_arrow_pandas_and_polars_contain_the_same_rows(db: Connection):
    result = await db.query("duckdb", ROWS.format(12_345), limit=50_000)
    table = await result.arrow()
    assert table.num_rows == 12_345
    assert table.column("n").to_pylist() == list(range(12_345))
    assert sum([batch.num_rows async for batch in result.batches()]) == 12_345
    assert (await result.pandas())["n"].sum() == sum(range(12_345))
    assert (await result.polars())["n"].sum() == sum(range(12_345))


async def test_polars_gets_decimals_of_39_digits_as_text(db: Connection):
    text = statement("20_client_polars_panic_ends_client.py.txt")
    max_value = 340282366920938463463374607431768211455
    result = await db.query("duckdb", f"select {max_value}::uhugeint as u, 1::uhugeint as one, 1.5::decimal(3, 1) as d")
    assert (await result.polars()).rows() == [(str(max_value), "1", Decimal("1.5"))]
    [hugeint] = re.findall(r'"(select .*hugeint as s)"', text)
    assert (await (await db.query("duckdb", hugeint)).polars()).rows() == [(str(2**127 - 1),)]


async def test_polars_panic_raises_conversion_failed(db: Connection):
    assert is_panic(Panic("gone"))
    assert not any(map(is_panic, (ValueError(), SystemExit(), KeyboardInterrupt(), asyncio.CancelledError())))
    result = await db.query("duckdb", "select 1 as n")
    with pytest.raises(ConversionFailed, match="polars cannot hold this result: no place"):
        arrow.polars_frame(await result.arrow(), convert=panicking)


class Panic(BaseException):
    """Replaces pyo3_runtime.PanicException, which is not a subclass of Exception."""


def panicking(_table: object) -> None:
    message = "no place"
    raise Panic(message)


@in_thread
def test_library_panic_ends_call_and_not_client():
    async def panic() -> None:
        panicking(None)

    async def exits() -> None:
        sys.exit(3)

    async def answer() -> int:
        return 7

    with closing(Loop()) as loop:
        for call, raised in ((panic, Panic), (exits, SystemExit)):
            with pytest.raises(raised):
                loop.run(call)
            assert loop.run(answer) == 7


@pytest.mark.parametrize("is_started", [True, False])
@in_thread
def test_interrupt_during_start_cancels_call(is_started: bool):
    """Ctrl-C and SIGTERM may interrupt the start of a call at any time, even after the event loop has started it."""
    began, ended = threading.Event(), threading.Event()

    async def endless() -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    with closing(Loop()) as loop:
        start = loop._portal.start_task_soon

        def interrupted(call: Any) -> None:
            loop._portal.start_task_soon = start
            if is_started:
                start(call)
                assert began.wait(60)
            raise KeyboardInterrupt

        loop._portal.start_task_soon = interrupted
        with pytest.raises(KeyboardInterrupt):
            loop.run(endless)
        assert ended.is_set() is began.is_set() is is_started


async def test_dates_beyond_python_are_timestamps_in_pandas(db: Connection):
    result = await db.query("duckdb", "select date '12024-02-29' as far, date '2024-02-29' as near")
    frame = await result.pandas()
    assert str(frame["far"][0]) == "12024-02-29 00:00:00"
    assert frame["near"][0] == dt.date(2024, 2, 29)


async def test_integers_with_nulls_stay_integers_in_pandas(db: Connection):
    columns = "9007199254740993::BIGINT AS a, 255::UTINYINT AS b, 1::INTEGER AS c, 1.5 AS d"
    result = await db.query("duckdb", f"SELECT {columns} UNION ALL SELECT NULL, NULL, 2, NULL ORDER BY c")
    frame = await result.pandas()
    assert (frame["a"][0], frame["b"][0]) == (9007199254740993, 255)
    assert [str(kind) for kind in frame.dtypes][:3] == ["Int64", "UInt8", "int32"]
    assert frame["a"].isna().tolist() == [False, True]
    exact = await result.pandas(integer_object_nulls=True)
    assert (str(exact["a"].dtype), exact["a"].tolist()) == ("object", [9007199254740993, None])


async def test_failed_statement_reports_position(db: Connection):
    with pytest.raises(StatementError) as caught:
        await db.query("postgresql", "SELECT nothing\nFROM nowhere")
    assert (caught.value.code, caught.value.line) == ("engine_error", 2)
    assert caught.value.operation_id
    assert caught.value.state == "failed"


async def test_all_rows_are_returned_by_default(db: Connection):
    result = await db.query("duckdb", ROWS.format(25_000))
    assert len(await result.rows()) == (await result.arrow()).num_rows == 25_000


async def test_truncated_result_is_never_returned_as_complete(small_server: Server):
    async with connect(small_server.url, token=await small_server.token(), retries=QUICK) as db:
        result = await db.query("duckdb", ROWS.format(6000))
        for read in (result.rows, result.arrow, result.scalar):
            with pytest.raises(Truncated, match="at most 5000 rows"):
                await read()
        kept = await db.query("duckdb", ROWS.format(6000), allow_truncated=True)
        assert len(await kept.rows()) == (await kept.arrow()).num_rows == 5000
        with pytest.raises(Truncated, match=r"editor\.result_max_rows"):
            await kept.statement.fetch(5000, 100)
        wanted = await db.query("duckdb", ROWS.format(6000), limit=10)
        assert len(await wanted.rows()) == (await wanted.arrow()).num_rows == 10


async def test_statement_without_result_set_returns_no_rows(db: Connection):
    result = await db.query("duckdb", "CREATE OR REPLACE TABLE without_rows (n INTEGER)")
    assert (result.has_rows, result.columns, await result.rows()) == (False, (), [])
    with pytest.raises(NoResultSet):
        await result.arrow()


async def test_leaving_block_closes_result(db: Connection):
    async with await db.query("duckdb", "SELECT 1") as result:
        assert (await result.statement.status()).state == "available"
    assert (await result.statement.status()).state == "closed"


async def test_submitted_statement_is_attached_and_awaited(db: Connection):
    submitted = await db.submit("duckdb", ROWS.format(3))
    again = db.statement(submitted.operation_id)
    assert (await again.wait()).state == "available"
    assert len(await (await again.result()).rows()) == 3
    assert (await again.logs()).lines
    await again.close()
    assert (await submitted.status()).state == "closed"


async def test_script_continues_statement_by_statement(db: Connection):
    script = "CREATE TEMP TABLE kept AS SELECT 7 AS n; SELECT n FROM kept"
    first = await db.submit("duckdb", script, run_all=False)
    assert first.has_more_statements
    await first.wait()
    second = await db.next(first)
    assert await (await second.result()).rows() == [(7,)]
    assert not second.has_more_statements


SCRIPT = "CREATE TEMP TABLE kept AS SELECT 7 AS n; SELECT n FROM kept; INSERT INTO kept VALUES (8)"


async def test_query_runs_all_statements_and_returns_last_rows(db: Connection):
    result = await db.query("duckdb", SCRIPT)
    assert (await result.rows(), result.row_count, result.has_rows) == ([(7,)], 1, True)
    assert (await result.arrow()).to_pylist() == [{"n": 7}]
    assert [one["state"] for one in result.status.statements] == ["success", "available", "success"]


async def test_query_of_statements_without_rows_has_no_rows(db: Connection):
    result = await db.query("duckdb", "CREATE TEMP TABLE kept(n int); INSERT INTO kept VALUES (8)")
    assert (result.has_rows, result.status.state) == (False, "success")


@pytest.mark.parametrize("callbacks", [{}, {"on_log": len}])
async def test_script_returns_result_of_each_statement(db: Connection, callbacks: dict[str, Any]):
    created, selected, inserted = await db.script("duckdb", SCRIPT, **callbacks)
    assert [result.has_rows for result in (created, selected, inserted)] == [False, True, False]
    assert await selected.rows() == [(7,)]
    assert inserted.modified_row_count == 1
    (only,) = await db.script("duckdb", "SELECT 42", **callbacks)
    assert await only.scalar() == 42


async def test_script_stops_at_first_failure_and_keeps_earlier_results(db: Connection):
    with pytest.raises(StatementError, match="nowhere") as caught:
        await db.script("duckdb", "SELECT 1 AS n;\nSELECT *\nFROM nowhere;\nSELECT 2")
    assert (caught.value.statement_id, caught.value.line) == (1, 2)
    status = await db.statement(caught.value.operation_id).status()
    first, failed = status.statements
    assert failed["state"] == "failed"
    assert await (await db.statement(first["operationId"]).result()).rows() == [(1,)]


async def test_script_is_refused_if_server_would_run_only_its_first_statement(server: Server):
    def strip(request: httpx.Request) -> httpx.Request:
        fields = {name: value for name, value in json.loads(request.content).items() if name != "run_all"}
        headers = {name: value for name, value in request.headers.items() if name != "content-length"}
        return httpx.Request(request.method, request.url, headers=headers, json=fields)

    class Old(httpx.AsyncHTTPTransport):
        """Simulates an older server version, which does not know the field `run_all`."""

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if not request.url.path.endswith("/execute/duckdb"):
                return await super().handle_async_request(request)
            response = await super().handle_async_request(strip(request))
            response.headers["X-Unknown-Fields"] = "run_all"
            return response

    async with connect(server.url, token=await server.token(), retries=QUICK, http_transport=Old()) as old:
        assert await (await old.query("duckdb", "SELECT 1")).scalar() == 1
        with pytest.raises(ApiError, match="does not support run_all"):
            await old.query("duckdb", "SELECT 1; SELECT 2")


async def test_same_key_is_the_same_statement(db: Connection):
    first, again = [await db.submit("mysql", "ddl", idempotency_key="of this test") for _ in range(2)]
    assert first.operation_id == again.operation_id
    with pytest.raises(Conflict, match="idempotency_conflict"):
        await db.submit("mysql", "change 3", idempotency_key="of this test")


async def test_reading_may_stop_early(db: Connection):
    result = await db.query("duckdb", ROWS.format(30_000), limit=50_000)
    async for batch in result.batches():
        assert batch.num_rows > 0
        break
    async for row in result:
        assert row == (0, "row 0")
        break
    assert await result.scalar() == 0


async def test_sync_client_returns_the_same_results(server: Server):
    token = await server.token()

    def work() -> None:
        with connect_sync(server.url, token=token, retries=QUICK) as db:
            with db.query("duckdb", ROWS.format(12_345), limit=50_000) as result:
                assert len(result.rows()) == 12_345
                assert result.arrow().num_rows == 12_345
                assert sum(1 for _ in result) == 12_345
                assert sum(batch.num_rows for batch in result.batches()) == 12_345
            assert db.statement(result.operation_id).status().state == "closed"
            with pytest.raises(StatementError):
                db.query("duckdb", "SELEC")

    await asyncio.to_thread(work)


async def test_progress_and_logs_arrive_while_statement_runs(db: Connection):
    lines: list[str] = []
    percents: list[int] = []
    result = await db.query(
        "duckdb", "SELECT 1", on_log=lines.append, on_progress=lambda progress: percents.append(progress.percent)
    )
    assert await result.rows() == [(1,)]
    assert "Submitted to duckdb" in lines[0]


WITHOUT_PACKAGES = """
import sys
sys.modules.update(dict.fromkeys(("pyarrow", "pandas", "polars", "numpy")))
from queryserver_client import MissingPackage, connect_sync
with connect_sync() as db:
    result = db.query("duckdb", "SELECT 12.50::DECIMAL(10,2), [DATE '2024-01-31']")
    print(result.rows())
    result.download("rows.parquet")
    try:
        result.arrow()
    except MissingPackage as error:
        print(error)
"""


async def test_rows_and_downloads_need_only_httpx(server: Server, target: Path):
    environment = {**os.environ, "QUERYSERVER_URL": server.url, "QUERYSERVER_TOKEN": await server.token()}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WITHOUT_PACKAGES, cwd=target, env=environment, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await asyncio.wait_for(process.communicate(), 60)
    assert printed.decode().splitlines() == [
        "[(Decimal('12.50'), [datetime.date(2024, 1, 31)])]",
        "pyarrow is required: pip install 'queryserver-client[arrow]'",
    ]
    assert (target / "rows.parquet").stat().st_size > 0


@in_thread
def test_garbage_collected_iterator_waits_for_nothing():
    """The iterator must not wait for its end, because its thread may hold a lock that the loop needs for closing it."""
    loop, held, closed = Loop(), threading.Lock(), threading.Event()

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            with held:
                closed.set()

    items = loop.iterate(numbers)
    assert next(items) == 1
    found: list[object] = [items]
    found.append(found)
    del items, found
    with held:
        gc.collect()
        assert not closed.is_set()
    assert closed.wait(60)
    loop.close()


async def test_max_age_permits_a_stored_result(db: Connection):
    first = await db.query("duckdb", "SELECT random() AS n", max_age=3600)
    again = await db.query("duckdb", "SELECT random() AS n", max_age=3600)
    assert await again.rows() == await first.rows()
    status = await again.statement.status()
    assert status.reused_from == first.statement.operation_id
    assert (status.reused_age_s or 0) > 0
    assert (await first.statement.status()).reused_from is None
    submitted = await db.submit("duckdb", "SELECT random() AS n", max_age=3600)
    assert (await submitted.wait()).reused_from == first.statement.operation_id
    assert await (await db.query("duckdb", "SELECT random() AS n", max_age=0)).rows() != await first.rows()


async def test_max_age_is_an_argument_of_the_blocking_client(server: Server):
    token = await server.token()

    def work() -> None:
        with connect_sync(server.url, token=token, retries=QUICK) as db:
            first = db.query("duckdb", "SELECT random() AS blocking", max_age=3600)
            assert db.query("duckdb", "SELECT random() AS blocking", max_age=3600).rows() == first.rows()
            assert db.submit("duckdb", "SELECT random() AS blocking", max_age=3600).wait().reused_from

    await asyncio.to_thread(work)


async def test_read_only_statements_fail_if_they_would_change_something(db: Connection):
    await db.query("duckdb", "CREATE TABLE kept_by_read_only (n INT)")
    for run in (db.query, db.script):
        with pytest.raises(StatementError) as refused:
            await run("duckdb", "SELECT 1; DROP TABLE kept_by_read_only", read_only=True)
        assert (refused.value.code, refused.value.statement_id) == ("rejected", 1)
    first = await db.submit("duckdb", "SELECT 1; DROP TABLE kept_by_read_only", read_only=True, run_all=False)
    await first.wait()
    status = await (await db.next(first)).wait()
    assert status.error is not None
    assert status.error.code == "rejected"
    saved = await db.documents.save("drops", "DROP TABLE kept_by_read_only", connector="duckdb")
    with pytest.raises(StatementError, match="must only read"):
        await db.documents.run(saved["uuid"], read_only=True)
    status = await (await db.documents.submit(saved["uuid"], read_only=True)).wait()
    assert status.state == "failed"
    assert await (await db.query("duckdb", "SELECT count(*) FROM kept_by_read_only", read_only=True)).scalar() == 0


async def test_statements_above_max_estimated_bytes_do_not_run(db: Connection):
    await db.query("duckdb", "CREATE TABLE estimated AS SELECT range AS n FROM range(500000)")
    sql = "SELECT sum(n) FROM estimated"
    for run in (db.query, db.script):
        with pytest.raises(StatementError, match="above the limit of 10 bytes") as refused:
            await run("duckdb", sql, max_estimated_bytes=10)
        assert refused.value.code == "estimate_exceeded"
        await run("duckdb", sql, max_estimated_bytes=2**40)
    with pytest.raises(StatementError, match="above the limit of 10 bytes"):
        await db.copy("duckdb", sql, "duckdb.estimated_copy", max_estimated_bytes=10)
    status = await (await db.submit("duckdb", sql, max_estimated_bytes=10)).wait()
    assert (status.state, status.message.endswith("send a higher limit.")) == ("failed", True)
    with pytest.raises(ApiError) as unknown:
        await db.query("sqlite", "SELECT 1", max_estimated_bytes=10)
    assert unknown.value.code == "not_supported"


async def test_guards_are_arguments_of_the_blocking_client(server: Server):
    token = await server.token()

    def work() -> None:
        with connect_sync(server.url, token=token, retries=QUICK) as db:
            assert db.query("duckdb", "SELECT 1", read_only=True, max_estimated_bytes=2**40).scalar() == 1
            for run in (db.query, db.script):
                with pytest.raises(StatementError, match="must only read"):
                    run("duckdb", "CREATE TABLE refused (n INT)", read_only=True)
            submitted = db.submit("duckdb", "CREATE TABLE refused (n INT)", read_only=True, max_estimated_bytes=1)
            assert submitted.wait().state == "failed"

    await asyncio.to_thread(work)
