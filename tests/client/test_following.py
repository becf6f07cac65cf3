"""Progress, logs and cancellation of a running statement (issue 20, section 3)."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.api.driving import until
from tests.client.conftest import QUICK, Server
from tests.client.proxies import Cut, Proxy, proxy

from queryserver_client import Connection, StatementCanceled, StatementTimeout, WaitTimeout, connect, events
from queryserver_client.retries import Rest

SCRIPT = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from queryserver_client import connect_sync
with connect_sync() as db:
    db.query("mysql", os.environ["STATEMENT"])
"""


def long_statement() -> str:
    """Return a unique statement that runs for five minutes."""
    return f"sleep 300.{random.randrange(10**9)}"


@pytest.fixture
async def line(server: Server) -> AsyncIterator[Proxy]:
    async with proxy(server.url) as made:
        yield made


async def canceled_at_engine(server: Server, statement: str) -> None:
    assert server.engine.executions.count(statement) == 1
    await until(lambda: not server.engine.running)


class TestCancel:
    @pytest.mark.parametrize("follows", [False, True])
    async def test_canceling_task_cancels_statement_in_engine(self, server: Server, db: Connection, follows: bool):
        statement = long_statement()
        seen: list[str] = []
        query = db.query("mysql", statement, on_log=seen.append) if follows else db.query("mysql", statement)
        task = asyncio.create_task(query)
        await until(lambda: statement in server.engine.executions and bool(seen or not follows))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await canceled_at_engine(server, statement)

    async def test_caller_timeout_cancels_statement(self, server: Server, db: Connection):
        statement = long_statement()

        async def query() -> None:
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as expiring:
                expiring.create_task(expire(limit))
                await db.query("mysql", statement)

        async def expire(limit: asyncio.Timeout) -> None:
            await until(lambda: statement in server.engine.executions)
            limit.reschedule(asyncio.get_running_loop().time())

        with pytest.raises(TimeoutError):
            await query()
        await canceled_at_engine(server, statement)

    async def test_failing_callback_cancels_statement(self, server: Server, db: Connection):
        statement = long_statement()

        def fail(_: str) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await db.query("mysql", statement, on_log=fail)
        await until(lambda: not server.engine.running)

    async def test_handle_keeps_statement_running_until_canceled(self, server: Server, db: Connection):
        statement = await db.submit("mysql", long_statement())
        with pytest.raises(WaitTimeout):
            await statement.wait(0.2)
        await until(lambda: server.engine.running == 1)
        assert (await statement.cancel()).state == "canceled"
        with pytest.raises(StatementCanceled):
            await statement.result()

    async def test_leaving_handle_block_cancels_statement(self, server: Server, db: Connection):
        async with await db.submit("mysql", long_statement()) as statement:
            await until(lambda: server.engine.running == 1)
        await until(lambda: not server.engine.running)
        assert (await statement.wait()).state == "canceled"

    async def test_statement_time_limit_raises_its_own_error(self, db: Connection):
        with pytest.raises(StatementTimeout):
            await db.query("mysql", long_statement(), timeout=1)

    async def test_ctrl_c_in_sync_program_reaches_engine(self, server: Server):
        statement = long_statement()
        environment = {
            **os.environ,
            "QUERYSERVER_URL": server.url,
            "QUERYSERVER_TOKEN": await server.token(),
            "STATEMENT": statement,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SCRIPT, env=environment, stderr=asyncio.subprocess.PIPE
        )
        await until(lambda: statement in server.engine.executions)
        process.send_signal(signal.SIGINT)
        _, errors = await asyncio.wait_for(process.communicate(), 30)
        assert b"KeyboardInterrupt" in errors
        assert process.returncode != 0
        assert environment["QUERYSERVER_TOKEN"].encode() not in errors
        await canceled_at_engine(server, statement)


class SlowEvents(httpx.AsyncHTTPTransport):
    """The real transport, except that it delays event streams."""

    def __init__(self) -> None:
        super().__init__()
        self.head_after_s = self.first_after_s = 0.0
        self.streams = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if "/events/" not in request.url.path:
            return response
        self.streams += 1
        await asyncio.sleep(self.head_after_s)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        stream = SlowStream(response.stream, self.first_after_s)
        return httpx.Response(response.status_code, headers=response.headers, stream=stream)


class SlowStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, first_after_s: float) -> None:
        self._stream = stream
        self._first_after_s = first_after_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await asyncio.sleep(self._first_after_s)
        async for chunk in self._stream:
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class TestEvents:
    async def events_of(self, db: Connection, statement: str) -> list[str]:
        """Submit a statement and read its events to the end; return its states. Its log lines must be complete, and it
        must have reported progress.
        """
        submitted = await db.submit("mysql", statement)
        lines, states, progressed = list[str](), list[str](), False
        async for event in submitted.events():
            lines += event.log.lines if event.log else ()
            states += [event.status.state] if event.status else []
            progressed |= event.progress is not None
        assert lines == list((await submitted.logs()).lines)
        assert states[-1] == "available"
        assert progressed
        return states

    async def test_states_progress_and_logs_arrive_as_they_happen(
        self, db: Connection, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(events, "FIRST_WITHIN_S", 30)
        states = await self.events_of(db, "sleep 3 then rows 3")
        assert "running" in states
        assert not db.transport.rest_of_events.is_on

    async def test_events_arrive_behind_buffering_proxy(
        self, server: Server, line: Proxy, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(events, "HEAD_WITHIN_S", 0.5)  # this proxy also holds back the headers
        line.holds_events = True
        async with connect(line.url, token=await server.token(), retries=QUICK) as db:
            states = await self.events_of(db, "sleep 2 then rows 3")
            assert db.transport.rest_of_events.is_on
        assert set(states) <= {"waiting", "running", "available"}

    async def test_slow_headers_are_awaited_and_slow_first_event_leads_to_polling(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(events, "FIRST_WITHIN_S", 0.3)
        slow = SlowEvents()
        async with connect(server.url, token=await server.token(), retries=QUICK, http_transport=slow) as db:
            slow.head_after_s = 1.0
            await self.events_of(db, "sleep 2 then rows 3")
            assert (slow.streams, db.transport.rest_of_events.is_on) == (1, False)

            now, slow.head_after_s, slow.first_after_s = 0.0, 0.0, 1.0
            db.transport.rest_of_events = Rest(60, 3600, lambda: now)
            await self.events_of(db, "sleep 1.5 then rows 3")  # the client polls the status instead
            slow.first_after_s = 0.0
            await self.events_of(db, "sleep 0.5 then rows 3")
            assert (slow.streams, db.transport.rest_of_events.is_on) == (2, True)

            now = 61.0
            await self.events_of(db, "sleep 1.5 then rows 3")
            assert (slow.streams, db.transport.rest_of_events.is_on) == (3, False)

    @pytest.mark.parametrize("place", [300, 700, 1100])
    async def test_broken_event_stream_neither_loses_nor_repeats_lines(self, server: Server, line: Proxy, place: int):
        token = await server.token()
        async with connect(server.url, token=token) as direct, connect(line.url, token=token, retries=QUICK) as db:
            submitted = await direct.submit("mysql", "sleep 1.2 then rows 3")
            line.cuts.extend([Cut(of_answers=place)] * 2)
            lines = list[str]()
            async for event in db.statement(submitted.operation_id).events():
                lines += event.log.lines if event.log else ()
            assert lines == list((await submitted.logs()).lines)
        assert not line.cuts
