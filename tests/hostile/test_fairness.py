"""Attacks on fair sharing: one user takes all slots of a connector, all sessions, or all of the event loop's time."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from httpx import Response
from tests.api.conftest import make_settings
from tests.api.driving import Api, Caller, open_api
from tests.timing import until

from queryserver.platform.settings.editor import LimitsSettings

Opener = Callable[..., AbstractAsyncContextManager[Api]]

_NO_DATABASE = "postgresql://api_tests:planted-secret@127.0.0.1:1/none"
_SESSION = '{"type": "mysql"}'


@pytest.fixture
def opener(tmp_path: Path, database_dsn: str) -> Opener:
    """A function that opens separate applications with the given editor settings and call limit."""

    def opened(*, calls_per_user: int = 64, **editor: Any) -> AbstractAsyncContextManager[Api]:
        settings = make_settings(tmp_path, database_dsn, _NO_DATABASE, **editor)
        return open_api(settings.model_copy(update={"limits": LimitsSettings(calls_per_user=calls_per_user)}))

    return opened


@dataclass
class Crowd:
    """One user's concurrent calls: `waits` wait for a statement, and `others` block until `go` is set."""

    api: Api
    user: Caller
    go: asyncio.Event
    waits: list["asyncio.Task[dict[str, Any]]"]
    others: list["asyncio.Task[Response]"]

    async def end(self) -> None:
        (execution,) = self.api.services.statements.runner.statements.executions()
        execution.stop("Canceled.")
        self.go.set()
        await asyncio.gather(*self.waits)
        assert {one.status_code for one in await asyncio.gather(*self.others)} == {200}


async def crowd(api: Api, waits: int, others: int) -> Crowd:
    """Start `waits` calls that wait for a statement, and `others` calls that open a session on an engine that does not
    respond.
    """
    user, go = await api.user("hostile"), asyncio.Event()
    operation = (await user.execute("mysql", "sleep 600"))["history_uuid"]
    engine = api.fakes["mysql"]
    await until(lambda: engine.running == 1)
    waiting = [asyncio.create_task(user.on(operation, "check_status", wait=60)) for _ in range(waits)]
    await until(lambda: api.services.streams._open.total() == waits)
    assert (await user.get("editor/get_history")).status_code == 200  # waits have a limit of their own
    arrived = list[None]()

    async def ping() -> None:
        arrived.append(None)
        await go.wait()

    engine.ping = ping  # type: ignore[method-assign]
    opening = [asyncio.create_task(user.post("editor/create_session", session=_SESSION)) for _ in range(others)]
    await until(lambda: len(arrived) == others)
    return Crowd(api, user, go, waiting, opening)


async def test_one_user_cannot_occupy_all_slots_of_a_connector(opener: Opener) -> None:
    async with opener() as api:
        hostile, ana = await api.user("hostile"), await api.user("ana")
        for _ in range(30):
            await hostile.execute("mysql", "sleep 600")
        assert (await ana.run("mysql", "rows 1"))["query_status"]["status"] == "available"
        assert api.fakes["mysql"].running <= 8


async def test_scripts_waiting_to_run_open_no_connections(opener: Opener) -> None:
    """Each script has a session for its statements. The session must not be opened while the script waits."""
    async with opener() as api:
        hostile = await api.user("hostile")
        scripts = [(await hostile.execute("mysql", "sleep 600; rows 1"))["history_uuid"] for _ in range(20)]
        engine = api.fakes["mysql"]
        await until(lambda: engine.running == 8)
        opened = engine.sessions_opened
        assert opened <= 9
        for _ in range(5):  # a session that could open without a slot would open during these calls
            await hostile.get("editor/get_history")
        assert engine.sessions_opened == opened
        # Waiting scripts run after others have finished.
        for script in scripts:
            await hostile.on(script, "cancel_statement")
        await until(lambda: engine.running == 0)
        assert (await hostile.run("mysql", "rows 1; rows 2"))["query_status"]["status"] == "available"


async def test_session_flood_opens_at_most_the_connections_of_one_user(opener: Opener) -> None:
    """Each session is a connection to the data source. It opens before the session is recorded and counted."""
    async with opener(max_sessions_per_connector=12) as api:
        hostile, ana = await api.user("hostile"), await api.user("ana")
        calls = (hostile.post("editor/create_session", session=_SESSION) for _ in range(60))
        answers = await asyncio.gather(*calls)
        assert Counter(answer.status_code for answer in answers) == {200: 6, 429: 54}
        assert {one.json()["code"] for one in answers if one.status_code == 429} == {"too_many_sessions"}
        assert api.fakes["mysql"].sessions_opened == 6
        for _ in range(4):
            assert (await ana.post("editor/create_session", session=_SESSION)).status_code == 200
        # Another connector has its own slots.
        assert (await hostile.post("editor/create_session", session='{"type": "hive2"}')).status_code == 200


async def test_user_may_open_all_sessions_on_one_connector(opener: Opener) -> None:
    async with opener() as api:
        busy, ana = await api.user("busy"), await api.user("ana")
        answers = await asyncio.gather(*(busy.post("editor/create_session", session=_SESSION) for _ in range(51)))
        assert Counter(answer.status_code for answer in answers) == {200: 50, 429: 1}
        assert (await ana.post("editor/create_session", session=_SESSION)).status_code == 200


async def test_calls_beyond_the_share_of_a_user_wait_for_other_calls_of_that_user(opener: Opener) -> None:
    async with opener(calls_per_user=2, max_streams_per_user=2) as api:
        ana, hostile = await api.user("ana"), await crowd(api, 2, 2)
        flood = [asyncio.create_task(hostile.user.get("banners")) for _ in range(3)]
        flood += [asyncio.create_task(hostile.user.get("editor/get_history")) for _ in range(50)]
        for _ in range(5):
            assert (await ana.get("editor/get_history")).status_code == 200
        assert sum(task.done() for task in flood) == 3  # public calls have no user, so they have no limit
        await hostile.end()
        assert {(await task).status_code for task in flood} == {200}


async def test_user_with_too_many_waiting_calls_must_retry_later(opener: Opener) -> None:
    async with opener(calls_per_user=2, max_streams_per_user=2) as api:
        ana, hostile = await api.user("ana"), await crowd(api, 2, 2)
        flood = [asyncio.create_task(hostile.user.get("editor/get_history")) for _ in range(600)]
        done, _ = await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
        refused = done.pop().result()
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
        assert int(refused.headers["Retry-After"]) >= 1
        assert (await ana.get("editor/get_history")).status_code == 200
        await hostile.end()
        await asyncio.gather(*flood)
