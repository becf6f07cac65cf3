"""What can delay or end a client's calls on the way to the server: proxies, the limit on concurrent waits,
certificates.
"""

import asyncio
import json
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.client.conftest import QUICK, Server
from tests.engines.certificates import Authority

from queryserver_client import ApiError, ConnectionLost, Retries, StatementError, connect, dbapi, events, transport
from queryserver_client.dbapi.connection import _begins, _words


def a_sleep(seconds: float) -> str:
    """Return a unique statement that sleeps for about this many seconds."""
    return f"sleep {seconds}{random.randrange(10**9)} then rows 1"


class Impatient(httpx.AsyncHTTPTransport):
    """A proxy that ends each call after about one second, either with an error response or by closing the
    connection.
    """

    def __init__(self, *, end: Callable[[], httpx.Response]) -> None:
        super().__init__()
        self.end = end
        self.waits: list[float] = []
        """The wait in seconds that each call has requested."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.waits += [wait] if (wait := json.loads(request.content or b"{}").get("wait")) else []
        try:
            async with asyncio.timeout(1.1):
                response = await super().handle_async_request(request)
                await response.aread()
                return response
        except TimeoutError:
            return self.end()


def closed() -> httpx.Response:
    message = "Server disconnected without sending a response."
    raise httpx.RemoteProtocolError(message)


@pytest.mark.parametrize(
    "end",
    [
        lambda: httpx.Response(504, text="<html>Gateway Time-out</html>"),
        lambda: httpx.Response(504, json={"status": -1, "code": "service_unavailable", "message": "Not in time."}),
        lambda: httpx.Response(503, json={"message": "Endpoint request timed out"}),
        closed,
    ],
    ids=["504", "504 with a code", "503 in JSON", "closed"],
)
async def test_statement_outlasting_proxy_timeout_runs_once_to_completion(
    server: Server, end: Callable[[], httpx.Response], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(transport, "_LEAST_HELD_S", 1.0)
    line, statement = Impatient(end=end), a_sleep(1.6)
    async with connect(server.url, token=await server.token(), retries=QUICK, http_transport=line) as db:
        assert await (await db.query("mysql", statement)).rows() == [(0,)]
        assert server.engine.executions.count(statement) == 1
        assert line.waits[0] == 30
        assert len(line.waits) > 1
        await db.query("mysql", "rows 1")
        assert max(line.waits[1:]) < 2
        # The proxy may have ended the call for another reason, so later calls request the full wait again.
        monkeypatch.setattr(db.transport, "_held_shorter_until", 0.0)
        line.waits.clear()
        await db.query("mysql", "rows 1")
        assert line.waits[0] == 30


async def test_statements_beyond_wait_limit_all_succeed(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("queryserver_client.events._POLL_S", 0.1)
    monkeypatch.setattr(server.api.services.streams, "max_per_user", 2)
    statements = [a_sleep(0.3) for _ in range(12)]
    # Refused waits must be retried. They must not be mistaken for a sign that a proxy holds back events.
    async with connect(server.url, token=await server.token(), retries=Retries(total_s=60)) as db:

        async def followed(statement: str) -> object:
            return await (await db.query("mysql", statement, on_log=lambda _: None)).rows()

        async def plain(statement: str) -> object:
            return await (await db.query("mysql", statement)).rows()

        calls = [(followed if number % 3 else plain)(text) for number, text in enumerate(statements)]
        assert await asyncio.gather(*calls) == [[(0,)]] * 12
        assert not db.transport.rest_of_events.is_on
    assert [server.engine.executions.count(text) for text in statements] == [1] * 12


async def test_unconfirmed_submission_is_found_by_its_key(server: Server):
    statement = a_sleep(0.1)

    class Deaf(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await (await super().handle_async_request(request)).aread()
            raise httpx.ReadError("cut")

    token = await server.token()
    async with connect(server.url, token=token, retries=Retries(total_s=0), http_transport=Deaf()) as db:
        with pytest.raises(ConnectionLost) as caught:
            await db.query("mysql", statement)
    assert caught.value.is_sent
    async with connect(server.url, token=token, retries=QUICK) as db:
        found = await db.submit("mysql", statement, idempotency_key=caught.value.idempotency_key)
        assert await (await found.result()).rows() == [(0,)]
    assert server.engine.executions.count(statement) == 1


async def test_statement_whose_response_was_lost_is_found_by_its_key(server: Server):
    """The first response did arrive. It reported that the statement was running."""
    statement, is_cut = a_sleep(2.0), asyncio.Event()

    class Cut(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if is_cut.is_set():
                raise httpx.ConnectError("cut")
            response = await super().handle_async_request(request)
            await response.aread()
            is_cut.set()
            return response

    token = await server.token()
    async with connect(server.url, token=token, retries=Retries(total_s=0), http_transport=Cut()) as db:
        with pytest.raises(ConnectionLost) as caught:
            await db.query("mysql", statement, on_progress=lambda _: None)
    async with connect(server.url, token=token, retries=QUICK) as db:
        found = await db.submit("mysql", statement, idempotency_key=caught.value.idempotency_key)
        assert await (await found.result()).rows() == [(0,)]
    assert server.engine.executions.count(statement) == 1


async def test_log_line_may_contain_other_line_separators():
    text = "one\u2028two\u2029three\u0085four\x0bfive"
    data = {"lines": [text], "next_from": 1}
    body = f"event: log\r\ndata: {json.dumps(data, ensure_ascii=False)}\r\n\r\nevent: x\ndata: 1\n\n".encode()

    async def pieces():
        for start in range(0, len(body), 5):
            yield body[start : start + 5]

    lines = [line async for line in events._lines(httpx.Response(200, content=pieces()))]
    assert lines[0] == "event: log"
    assert json.loads(lines[1].removeprefix("data: ")) == data
    assert lines[2:] == ["", "event: x", "data: 1", ""]


async def test_request_id_is_reported_for_statement_failing_in_first_response(server: Server):
    async with connect(server.url, token=await server.token(), retries=QUICK) as db:
        with pytest.raises(Exception, match="no such thing") as caught:
            await db.query("mysql", "fail no such thing")
    assert getattr(caught.value, "request_id", None)


async def test_rejected_certificate_is_reported_immediately(tmp_path: Path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority().certify("127.0.0.1").write(tmp_path))
    tries: list[object] = []
    server = await asyncio.start_server(lambda _, writer: tries.append(writer), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with connect(f"https://127.0.0.1:{port}", token="none", retries=Retries(total_s=600)) as db:
            with pytest.raises(ConnectionLost, match=r"certificate was not accepted: .*issuer") as caught:
                await asyncio.wait_for(db.query("duckdb", "SELECT 1"), 60)
    assert (caught.value.attempts, caught.value.is_sent, tries) == (1, False, [])


async def test_server_without_tls_is_reported_immediately_with_address_to_use():
    tries: list[bytes] = []

    async def answer_in_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append(await reader.read(1))
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_in_http, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with connect(f"https://127.0.0.1:{port}", token="none", retries=Retries(total_s=600)) as db:
            with pytest.raises(ConnectionLost, match=r"does not use TLS.*http://.*\?scheme=http") as caught:
                await asyncio.wait_for(db.query("duckdb", "SELECT 1"), 60)
    assert (caught.value.attempts, caught.value.is_sent, len(tries)) == (1, False, 1)


async def test_server_that_never_responded_is_retried_briefly_and_logged(caplog: pytest.LogCaptureFixture):
    retries = Retries(total_s=3600, first_s=0.01, most_s=0.02, unreached_s=0.1)
    async with connect("http://127.0.0.1:9", token="none", retries=retries) as db:
        with pytest.raises(ConnectionLost, match=r"http://127\.0\.0\.1:9: POST editor/execute") as caught:
            await asyncio.wait_for(db.query("duckdb", "SELECT 1"), 60)
    assert caught.value.attempts > 1
    assert [record.getMessage().partition(":9: ")[2] for record in caplog.records] == [
        "Connection refused; retrying for up to 0.1 s"
    ]


async def test_server_that_has_responded_is_retried_for_whole_time():
    answers = iter([httpx.Response(200, json={"status": 0})])

    def answer(_: httpx.Request) -> httpx.Response:
        if (response := next(answers, None)) is None:
            raise httpx.ConnectError("refused")
        return response

    retries = Retries(total_s=0.2, first_s=0.01, most_s=0.02, unreached_s=0)
    async with connect(
        "http://server", token="none", retries=retries, http_transport=httpx.MockTransport(answer)
    ) as db:
        await db.transport.call("GET", "x")
        with pytest.raises(ConnectionLost) as caught:
            await db.transport.call("GET", "x")
    assert caught.value.attempts > 2


@pytest.mark.parametrize(
    ("sql", "begins"),
    [
        ("BEGIN", True),
        (" begin ; ", True),
        ("/* x */ BEGIN ISOLATION LEVEL SERIALIZABLE -- y", True),
        ("START TRANSACTION WITH CONSISTENT SNAPSHOT", True),
        ("COMMIT", False),
        ("commit -- done", False),
        ("END TRANSACTION", False),
        ("ROLLBACK WORK", False),
        ("ABORT", False),
        ("COMMIT AND NO CHAIN", False),
        ("COMMIT AND CHAIN", True),
        ("COMMIT AND CHAIN NO RELEASE", True),
        ("ROLLBACK TO SAVEPOINT a", None),
        ("ROLLBACK PREPARED 'x'", None),
        ("COMMIT; SELECT 1", None),
        ("SELECT 'BEGIN'", None),
        ("-- BEGIN", None),
        ("", None),
    ],
)
def test_transaction_statements_are_recognized(sql: str, begins: bool | None):
    assert _begins(_words(sql)) is begins


def new_table(connection: dbapi.Connection) -> str:
    """Create an empty table with the single column `id`; return its name."""
    name = f"t_{random.randrange(10**9)}"
    connection.execute(f"CREATE TABLE {name} (id INTEGER)")
    connection.commit()
    return name


class TestTransactions:
    """DB-API transactions, in most of which a response is lost in transit."""

    async def test_possibly_begun_transaction_is_ended_before_next(self, server: Server):
        token = await server.token()

        def work() -> None:
            with dbapi.connect(server.url, "duckdb", token=token) as connection:
                table = new_table(connection)
                control, calls = connection._session.control, list[str]()

                async def cut(sql: str) -> None:
                    """Lose the response to the first BEGIN."""
                    calls.append(sql)
                    await control(sql)
                    if len(calls) == 1:
                        raise ApiError("away", status=504)

                connection._session.control = cut  # type: ignore[method-assign]
                with pytest.raises(dbapi.OperationalError):
                    connection.execute(f"INSERT INTO {table} VALUES (1)")
                assert not connection.in_transaction
                connection.execute(f"INSERT INTO {table} VALUES (2)")
                assert calls == ["BEGIN TRANSACTION", "ROLLBACK", "BEGIN TRANSACTION"]
                connection.rollback()
                assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)

        await asyncio.to_thread(work)

    async def test_refused_transaction_has_not_begun(self, server: Server):
        token = await server.token()

        def work() -> None:
            with dbapi.connect(server.url, "postgresql", token=token) as connection:
                table = new_table(connection)
                control, refusals = connection._session.control, [ApiError("busy", status=429)]

                async def refuse(sql: str) -> None:
                    if refusals:
                        raise refusals.pop()
                    await control(sql)

                connection._session.control = refuse  # type: ignore[method-assign]
                with pytest.raises(dbapi.OperationalError):
                    connection.execute(f"INSERT INTO {table} VALUES (1)")
                connection.execute(f"INSERT INTO {table} VALUES (2)")
                assert connection.in_transaction
                connection.rollback()
                assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)

        await asyncio.to_thread(work)

    async def test_transaction_whose_end_response_was_lost_may_be_ended_again(self, server: Server):
        token = await server.token()

        def work() -> None:
            with dbapi.connect(server.url, "duckdb", token=token) as connection:
                table = new_table(connection)
                control, calls, cuts, refused = connection._session.control, list[str](), [1], list[int]()

                async def cut(sql: str) -> None:
                    """Lose the response to the first COMMIT."""
                    calls.append(sql)
                    if sql == "COMMIT" and refused:
                        refused.pop()
                        raise ApiError("busy", status=429)
                    await control(sql)
                    if sql == "COMMIT" and cuts:
                        cuts.pop()
                        raise ApiError("away", status=504)

                connection._session.control = cut  # type: ignore[method-assign]
                connection.execute(f"INSERT INTO {table} VALUES (1)")
                with pytest.raises(dbapi.OperationalError):
                    connection.commit()
                with pytest.raises(dbapi.Error, match="no transaction is active"):
                    connection.commit()
                assert not connection.in_transaction
                connection.execute(f"INSERT INTO {table} VALUES (2)")
                cuts.append(1)
                with pytest.raises(dbapi.OperationalError):
                    connection.commit()
                connection.execute(f"INSERT INTO {table} VALUES (3)")
                connection.rollback()
                begin = "BEGIN TRANSACTION"
                assert calls == [begin, "COMMIT", "COMMIT", begin, "COMMIT", "ROLLBACK", begin, "ROLLBACK"]
                connection.execute(f"INSERT INTO {table} VALUES (4)")
                refused.append(1)
                with pytest.raises(dbapi.OperationalError):
                    connection.commit()
                connection.execute(f"DELETE FROM {table} WHERE id = 4")  # still in the same transaction
                connection.commit()
                assert calls[8:] == [begin, "COMMIT", "COMMIT"]
                assert connection.execute(f"SELECT id FROM {table} ORDER BY id").fetchall() == [(1,), (2,)]

        await asyncio.to_thread(work)

    @pytest.mark.parametrize(
        ("text", "message", "goes_on"),
        [
            ("END", "FOREIGN KEY constraint failed", True),
            ("commit -- done", "database is locked", True),
            ("COMMIT", "cannot commit - no transaction is active", False),
            ("/* commit */ ROLLBACK", "disk I/O error", False),
        ],
    )
    async def test_sqlite_keeps_transaction_that_cannot_be_committed(
        self, server: Server, text: str, message: str, goes_on: bool
    ):
        token = await server.token()

        async def refuse(sql: str, _: object) -> list[Any]:
            raise StatementError(message, code="engine_error")

        def work() -> None:
            with dbapi.connect(server.url, "sqlite", token=token) as connection:
                connection.execute("SELECT 1")
                run, connection._session.run = connection._session.run, refuse  # type: ignore[method-assign]
                with pytest.raises(dbapi.Error):
                    connection.execute(text)
                connection._session.run = run  # type: ignore[method-assign]
                assert connection.in_transaction is goes_on
                connection.rollback()

        await asyncio.to_thread(work)

    async def test_possibly_begun_user_transaction_is_ended(self, server: Server):
        token = await server.token()

        def work() -> None:
            with dbapi.connect(server.url, "duckdb", token=token, autocommit=True) as connection:
                table = new_table(connection)
                run = connection._session.run

                async def cut(sql: str, parameters: Any) -> list[Any]:
                    await run(sql, parameters)
                    raise ApiError("away", status=504)

                connection._session.run = cut  # type: ignore[method-assign]
                with pytest.raises(dbapi.OperationalError):
                    connection.execute("BEGIN")
                connection._session.run = run  # type: ignore[method-assign]
                connection.execute(f"INSERT INTO {table} VALUES (1)")
            with dbapi.connect(server.url, "duckdb", token=token) as other:
                assert other.execute(f"SELECT id FROM {table}").fetchall() == [(1,)]

        await asyncio.to_thread(work)

    async def test_mysql_transaction_mode_is_a_session_setting(self, server: Server):
        token, sent = await server.token(), list[str]()

        async def control(sql: str) -> None:
            sent.append(sql)

        def work() -> None:
            with dbapi.connect(server.url, "mysql", token=token) as connection:
                connection._session.control = control  # type: ignore[method-assign]
                connection.execute("change 1")
                connection.execute("change 1")
                connection.commit()
                connection.execute("change 1")
                connection.rollback()
                connection.autocommit = True
                connection.execute("change 1")
                connection.commit()

        await asyncio.to_thread(work)
        assert sent == ["SET autocommit = 0", "COMMIT", "ROLLBACK", "SET autocommit = 1"]

    @pytest.mark.parametrize("engine", ["duckdb", "postgresql", "sqlite"])
    async def test_user_begun_transaction_is_committed(self, server: Server, engine: str):
        token = await server.token()

        def work() -> None:
            with dbapi.connect(server.url, engine, token=token, autocommit=True) as connection:
                table = new_table(connection)
                connection.execute("begin;")
                connection.execute(f"INSERT INTO {table} VALUES (1)")
                assert connection.in_transaction
                connection.commit()
                connection.execute(" BEGIN TRANSACTION ")
                connection.execute(f"INSERT INTO {table} VALUES (2)")
                connection.execute("ROLLBACK")
                assert not connection.in_transaction
            with dbapi.connect(server.url, engine, token=token) as other:
                assert other.execute(f"SELECT id FROM {table}").fetchall() == [(1,)]

        await asyncio.to_thread(work)


@pytest.mark.parametrize("engine", ["duckdb", "postgresql"])
async def test_session_starts_in_requested_database(server: Server, engine: str):
    token = await server.token()

    def work() -> None:
        schema = f"s_{random.randrange(10**9)}"
        with dbapi.connect(server.url, engine, token=token, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
            connection.execute(f"CREATE TABLE {schema}.here (id INTEGER)")
        with dbapi.connect(server.url, engine, token=token, database=schema) as connection:
            assert connection.execute("SELECT current_schema()").fetchone() == (schema,)
            assert connection.execute("SELECT count(*) FROM here").fetchone() == (0,)
        connection = dbapi.connect(server.url, engine, token=token, database="no_such_schema")
        with pytest.raises(dbapi.Error, match="no_such_schema"):
            connection.execute("SELECT 1")
        connection.close()

    await asyncio.to_thread(work)
