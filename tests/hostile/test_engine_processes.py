"""An engine process crashes, which must not affect the server's other work (Contract editor 3.5)."""

import asyncio
import itertools
import json
import random
import signal
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.api.driving import Api, Caller, open_api
from tests.api.storage.conftest import storage_settings
from tests.contract.engine_basis import NO_OPTIONS
from tests.contract.engine_driving import operation, run
from tests.e2e.installation import Installation, installed
from tests.fixtures.processes import EngineProcessList, command_of, is_alive
from tests.timing import settle, until

from queryserver.engines.duckdb.catalog import DuckdbCatalog
from queryserver.engines.duckdb.engine import DuckdbEngine, duckdb_processes
from queryserver.engines.duckdb.limits import DuckdbResources
from queryserver.engines.process.engine_process import EngineProcess
from queryserver.engines.protocol import EngineSession, OperationState
from queryserver.errors.base import QueryServerError, TooManyRequests
from queryserver.errors.statements import EngineUnavailable
from queryserver.identity.model import User
from queryserver.platform.embedded.postgres import EmbeddedPostgres

pytestmark = pytest.mark.timeout(600)

MIB = 1024 * 1024
ANA, BEN = User(1, "ana"), User(2, "ben")
CRASH = "SELECT \"=\"({'a': 1}, 5)"
STABLE = {"engine_error", "engine_memory_exceeded", "engine_process_lost", "cell_too_large", "row_too_large"}
_KILLS = 50
_BEFORE_A_CANCEL_S = 5
"""Statements that would be planned for minutes are canceled after this many seconds."""


def _doubled(times: int) -> str:
    more = "".join(f", c{n} AS (SELECT x || x AS x FROM c{n - 1})" for n in range(1, times + 1))
    return f"WITH c0 AS (SELECT repeat('x', 100) AS x){more} SELECT length(x) FROM c{times}"


_BRACKETS = "(repeat('[', 1000000) || repeat(']', 1000000))"

ATTACKS: dict[str, str | list[str]] = {
    "a comparison of other types": CRASH,
    "a comparison of text and number": """SELECT "="('', 1.5)""",
    "a quantile of nothing": "SELECT reservoir_quantile(5, NULL::INT[])",
    "a name of 30,000 parts": "SELECT a" + ".a" * 30_000,
    "a range as a value": "VALUES (len(range(400000000)))",
    "a range as a limit": "SELECT 1 LIMIT (SELECT len(range(500000000)))",
    "a width of a billion": "SELECT format('{:1000000000}', 'x')",
    "150 lambdas": "SELECT " + "list_transform([1], lambda x: " * 150 + "x" + ")" * 150,
    "a text as lists of lists": f"SELECT {_BRACKETS}::VARCHAR" + "[]" * 500,
    "a sum of ranges": "SELECT sum(len(range(1000000 + range::INT))) FROM range(100000)",
    "structs of two texts": (
        "SELECT {'a': repeat('x', 300000000 + range::INT), 'b': repeat('y', 300000000 + range::INT)} FROM range(10)"
    ),
    "CTEs that double 24 times": _doubled(24),
    "views that double 24 times": [
        "CREATE OR REPLACE VIEW v0 AS SELECT 'x' AS x",
        *(f"CREATE OR REPLACE VIEW v{n} AS SELECT a.x || b.x AS x FROM v{n - 1} a, v{n - 1} b" for n in range(1, 25)),
        "SELECT length(x) FROM v24",
    ],
    "JSON that is contained": f"SELECT json_contains({_BRACKETS}, '1')",
    "the structure of JSON": f"SELECT json_structure({_BRACKETS})",
    "JSON as a variant": f"SELECT {_BRACKETS}::JSON::VARIANT",
    "JSON transformed": f"SELECT json_transform('1', {_BRACKETS})",
    "50,000 brackets": "SELECT " + "(" * 50_000,
    "50,000 pairs of brackets": "SELECT " + "(" * 50_000 + "1" + ")" * 50_000,
    "100,000 constants": "SELECT 1" + ", 1" * 100_000,
    "20,000 unions": "SELECT 1" + " UNION ALL SELECT 1" * 20_000,
    "no binary digits": "SELECT from_binary('ééé')",
    "a cell of 3 GB": "SELECT length(repeat('x', 3000000000))",
}


@pytest.fixture
async def engines(
    tmp_path: Path, engine_processes: EngineProcessList
) -> AsyncGenerator[tuple[DuckdbEngine, DuckdbEngine]]:
    """The attacked engine, and an engine of the same server for another file."""
    processes = duckdb_processes()
    pair = tuple(DuckdbEngine(path=f"{name}.duckdb", root=tmp_path, processes=processes) for name in ("one", "two"))
    yield pair[0], pair[1]
    for engine in pair:
        await engine.close()
    assert not engine_processes()


async def outcome(session: EngineSession, sql: str) -> str:
    """Run a statement; return its error code, `available`, or `canceled` if it ran too long and was canceled."""
    async with operation(session, sql) as handle:
        for _ in range(_BEFORE_A_CANCEL_S):
            status = await session.poll(handle, wait_s=1)
            if status.state.is_terminal:
                break
        else:
            await session.cancel(handle)
            status = await session.poll(handle)
        if status.error is not None:
            return status.error.code
        if status.state is OperationState.CANCELED:
            return "canceled"
        if not status.has_result_set:
            return "available"
        try:
            async for _ in session.batches(handle):
                pass
        except QueryServerError as error:
            return error.code
        return "available"


@pytest.mark.item(103)
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
async def test_attack_affects_only_its_own_statement(
    engines: tuple[DuckdbEngine, DuckdbEngine], attack: str | list[str]
) -> None:
    engine, other = engines
    statements = [attack] if isinstance(attack, str) else attack
    before = psutil.Process().memory_info().rss
    async with other.session(BEN, NO_OPTIONS) as other_session:
        await run(other_session, "CREATE TEMPORARY TABLE open_before AS SELECT 7 AS n")
        async with engine.session(BEN, NO_OPTIONS) as ben:
            await run(ben, "CREATE TABLE kept AS SELECT 42 AS n")
        async with engine.session(ANA, NO_OPTIONS) as ana:
            for statement in statements:
                if (found := await outcome(ana, statement)) != "available":
                    break
        assert found in STABLE | {"available", "canceled"}
        assert (await run(other_session, "SELECT n FROM open_before")).cell == 7
        async with engine.session(BEN, NO_OPTIONS) as ben:
            assert (await run(ben, "SELECT n FROM kept")).cell == 42
            # Statements of other users still get memory, in the same process or in a new one.
            work = "SELECT count(*) FROM (SELECT DISTINCT md5(range::VARCHAR) FROM range(500000))"
            assert (await run(ben, work)).cell == 500_000
    assert psutil.Process().memory_info().rss - before < 200 * MIB


@pytest.mark.item(104)
async def test_idle_session_is_lost_with_its_process_without_delaying_its_user(
    engines: tuple[DuckdbEngine, DuckdbEngine],
) -> None:
    engine, _ = engines
    for _ in range(4):
        async with engine.session(BEN, NO_OPTIONS) as idle:
            await run(idle, "CREATE TEMPORARY TABLE gone AS SELECT 1")
            with suppress(QueryServerError):  # ana may open no session after three crashes
                async with engine.session(ANA, NO_OPTIONS) as ana:
                    await outcome(ana, CRASH)
            if await idle.is_alive():
                break
    else:
        pytest.fail("the user is admitted again and again")
    assert engine._connections._processes.losses_for(engine._connections, engine._file)._records.keys() == {ANA.id}


async def test_cancel_never_reaches_next_statement(
    engines: tuple[DuckdbEngine, DuckdbEngine], engine_processes: EngineProcessList
) -> None:
    engine, _ = engines
    async with engine.session(ANA, NO_OPTIONS) as session:
        for number in range(150):
            rows = random.choice((1, 5_000, 3_000_000))
            handle = await session.submit(f"SELECT sum(range % 7) FROM range({rows})")
            await asyncio.sleep(random.random() * 0.02)
            await session.cancel(handle)
            await session.close(handle)
            assert (await run(session, f"SELECT {number}")).cell == number
        assert len(engine_processes()) == 1  # the cancellation has killed no process


async def test_abandoned_result_leaves_nothing(
    engines: tuple[DuckdbEngine, DuckdbEngine], engine_processes: EngineProcessList
) -> None:
    engine, _ = engines
    for _ in range(20):
        async with engine.session(ANA, NO_OPTIONS) as session:
            handle = await session.submit("SELECT repeat('x', 1000) || range AS x FROM range(200000)")
            await session.poll(handle, wait_s=30)
            async for _ in session.batches(handle):
                break
    (process,) = engine_processes()
    assert process.num_threads() < 20
    async with engine.session(ANA, NO_OPTIONS) as session:
        assert (await run(session, "SELECT 1")).cell == 1


async def test_slow_reader_buffers_at_most_one_frame_in_server(engines: tuple[DuckdbEngine, DuckdbEngine]) -> None:
    engine, _ = engines
    async with engine.session(ANA, NO_OPTIONS) as session:
        await run(session, "CREATE TABLE large AS SELECT repeat('x', 50000) || range AS x FROM range(2000)")
        before = psutil.Process().memory_info().rss
        async with operation(session, "SELECT x FROM large") as handle:
            await session.poll(handle, wait_s=30)
            rows = 0
            async for batch in session.batches(handle):
                rows += batch.num_rows
                await asyncio.sleep(0.02)
                assert psutil.Process().memory_info().rss - before < 80 * MIB
            assert rows == 2000


async def test_closed_engine_with_running_statements_leaves_no_process(
    tmp_path: Path, engine_processes: EngineProcessList
) -> None:
    engine = DuckdbEngine(path="one.duckdb", root=tmp_path)
    memory = DuckdbEngine()
    slow = "SELECT sum(a.range * b.range) FROM range(3000000) a, range(3000000) b"
    sessions = [engine.session(ANA, NO_OPTIONS) for _ in range(3)] + [memory.session(BEN, NO_OPTIONS)]
    opened = [await session.__aenter__() for session in sessions]
    handles = [await session.submit(slow) for session in opened]
    await until(lambda: (engine.busy, memory.busy) == (3, 1))
    opening = asyncio.create_task(memory.session(ANA, NO_OPTIONS).__aenter__())
    await settle()
    await asyncio.gather(engine.close(), memory.close())
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    for session, one, handle in zip(sessions, opened, handles, strict=True):
        with suppress(QueryServerError):
            await one.close(handle)
        await session.__aexit__(None, None, None)
    await memory.close()
    await until(lambda: not engine_processes())


@pytest.mark.parametrize("step", ["ready", "opened"])
@pytest.mark.parametrize("is_canceled", [True, False])
async def test_engine_closed_while_a_session_opens_leaves_no_process(
    is_canceled: bool, step: str, monkeypatch, engine_processes: EngineProcessList
) -> None:
    has_reached, may_go_on, original = asyncio.Event(), asyncio.Event(), EngineProcess._expect

    async def expect_late(self: EngineProcess, kind: str) -> None:
        if kind == step:
            has_reached.set()
            await may_go_on.wait()
        await original(self, kind)

    monkeypatch.setattr(EngineProcess, "_expect", expect_late)
    engine = DuckdbEngine(processes=duckdb_processes())
    opening = asyncio.create_task(engine.session(ANA, NO_OPTIONS).__aenter__())
    await has_reached.wait()
    await engine.close()
    if is_canceled:
        opening.cancel()
        await settle()
    may_go_on.set()
    (outcome,) = await asyncio.gather(opening, return_exceptions=True)
    assert isinstance(outcome, asyncio.CancelledError if is_canceled else EngineUnavailable)
    await until(lambda: not engine_processes())


async def test_engine_closed_while_it_waits_for_its_file_leaves_no_process(
    tmp_path: Path, engine_processes: EngineProcessList
) -> None:
    processes = duckdb_processes()
    open_engine, waiting_engine = (
        DuckdbEngine(path="one.duckdb", root=tmp_path, resources=resources, processes=processes)
        for resources in (DuckdbResources(memory_limit="512MB"), DuckdbResources(memory_limit="600MB"))
    )
    async with open_engine.session(ANA, NO_OPTIONS):
        opening = asyncio.create_task(waiting_engine.session(ANA, NO_OPTIONS).__aenter__())
        await asyncio.sleep(0.2)
        await waiting_engine.close()
        await open_engine.close()
    (outcome,) = await asyncio.gather(opening, return_exceptions=True)
    assert isinstance(outcome, EngineUnavailable)
    await until(lambda: not engine_processes())


async def test_canceled_session_does_not_let_the_next_one_open_a_file_that_is_being_closed(
    tmp_path: Path, monkeypatch, engine_processes: EngineProcessList
) -> None:
    processes, may_end, original = duckdb_processes(), asyncio.Event(), EngineProcess.ended
    before, after = (
        DuckdbEngine(path="one.duckdb", root=tmp_path, resources=resources, processes=processes)
        for resources in (DuckdbResources(memory_limit="512MB"), DuckdbResources(memory_limit="600MB"))
    )
    async with before.session(ANA, NO_OPTIONS):
        pass
    (process,) = engine_processes()

    async def ended_late(self: EngineProcess) -> None:
        await may_end.wait()
        await original(self)

    monkeypatch.setattr(EngineProcess, "ended", ended_late)
    canceled = asyncio.create_task(after.session(ANA, NO_OPTIONS).__aenter__())
    await settle()
    canceled.cancel()
    await asyncio.gather(canceled, return_exceptions=True)
    (file,) = processes._files.values()
    assert file.pooled is not None
    assert file.pooled.process.pid == process.pid
    may_end.set()
    async with after.session(BEN, NO_OPTIONS) as session:
        assert (await run(session, "SELECT 1")).cell == 1
    await before.close()
    await after.close()
    await until(lambda: not engine_processes())


async def test_users_beyond_in_memory_database_limit_wait_for_a_slot(
    monkeypatch, engine_processes: EngineProcessList
) -> None:
    monkeypatch.setattr("queryserver.engines.process.pool._MAX_TURN_WAIT_S", 1.0)
    processes = duckdb_processes()
    processes._max_users = 2
    engine = DuckdbEngine(processes=processes)
    for number in range(1, 5):  # idle processes have been evicted
        async with engine.session(User(number, "x"), NO_OPTIONS) as session:
            assert (await run(session, "SELECT 1")).cell == 1
    async with engine.session(User(1, "x"), NO_OPTIONS), engine.session(User(2, "x"), NO_OPTIONS):
        with pytest.raises(QueryServerError) as refused:
            async with engine.session(User(3, "x"), NO_OPTIONS):
                pass
        assert refused.value.code == "engine_unavailable"
        async with engine.session(User(1, "x"), NO_OPTIONS) as session:
            assert (await run(session, "SELECT 1")).cell == 1
    await engine.close()
    assert not engine_processes()


INTERPRETERS: dict[str, Any] = {
    "duckdb": {"interface": "duckdb", "options": {"path": "own.duckdb"}},
    "memory": {"interface": "duckdb", "dialect": "duckdb"},
    "sqlite": {"interface": "sqlite", "options": {"path": "own.sqlite"}},
}


@pytest.fixture
async def api(tmp_path: Path, database_dsn: str, engine_processes: EngineProcessList) -> AsyncIterator[Api]:
    (tmp_path / "databases").mkdir()
    (tmp_path / "databases" / "own.sqlite").touch()
    tables = {"notebook": {"interpreters": INTERPRETERS}, "editor": {"cancel_wait_s": 30, "metadata_timeout_s": 120}}
    desktop = {"connector_policy": {"local_database_dir": str(tmp_path / "databases")}}
    async with open_api(storage_settings(tmp_path, database_dsn, tables=tables, desktop=desktop)) as api:
        yield api
    assert not engine_processes()


async def test_crashing_view_aborts_only_the_sample_of_another_user(api: Api) -> None:
    ana, ben = await api.user("ana"), await api.user("ben")
    body = await ana.run("duckdb", f"CREATE VIEW v AS {CRASH} AS x")
    assert body["status"] in {0, 1}, body
    await ana.run("duckdb", "CREATE TABLE kept AS SELECT 42 AS n")
    answer = await ben.post("editor/sample/main/v", snippet=json.dumps({"type": "duckdb"}))
    assert answer.json()["code"] in STABLE | {"engine_unavailable"}, answer.text
    body = await ben.run("duckdb", "SELECT n FROM kept")
    assert (await ben.page(body["history_uuid"]))["data"] == [[42]]


@pytest.mark.parametrize(
    ("kills", "has_begun", "code"),
    [(1, True, None), (2, True, "engine_process_lost"), (3, False, None), (4, False, "engine_unavailable")],
)
async def test_lookup_is_repeated_in_a_new_process_after_a_crash(
    api: Api, monkeypatch, kills: int, has_begun: bool, code: str | None
) -> None:
    """A lookup that had begun may have been the reason, so it is repeated only once."""
    ana = await api.user("ana")
    await ana.run("duckdb", "CREATE TABLE seen AS SELECT 1 AS n")
    original, killing = DuckdbCatalog.tables, list[asyncio.Task[None]]()

    async def tables(self: DuckdbCatalog, database: str) -> Any:
        if len(killing) < kills:
            (process,) = _held(api)
            killing.append(asyncio.create_task(_kill(process, has_begun=has_begun)))
            await (settle() if has_begun else killing[-1])
        return await original(self, database)

    monkeypatch.setattr(DuckdbCatalog, "tables", tables)
    answer = await ana.post("editor/autocomplete/main/", snippet=json.dumps({"type": "duckdb"}))
    assert len(killing) == kills
    assert answer.json().get("code") == code, answer.text
    assert code or "seen" in answer.text


async def _kill(process: EngineProcess, *, has_begun: bool) -> None:
    """Kill the process, and wait for its end. If `has_begun` is set, kill it when it has a query to answer."""
    victim = psutil.Process(process.pid)
    if has_begun:
        victim.suspend()
        await until(lambda: process.running)
    victim.kill()
    await process.ended()


async def test_waiting_sessions_of_a_user_whose_statements_crashed_are_refused(
    tmp_path: Path, monkeypatch, engine_processes: EngineProcessList
) -> None:
    engine = DuckdbEngine(path="one.duckdb", root=tmp_path)
    connections, may_open, original = engine._connections, asyncio.Event(), EngineProcess.open

    async def open_late(self: EngineProcess, configuration: Any) -> None:
        await may_open.wait()
        await original(self, configuration)

    monkeypatch.setattr(EngineProcess, "open", open_late)
    sessions = [engine.session(user, NO_OPTIONS) for user in (ANA, BEN)]
    opening = [asyncio.create_task(session.__aenter__()) for session in sessions]
    await until(engine_processes)
    connections._processes.losses_for(connections, engine._file).note(ANA.id, 3.0)
    may_open.set()
    refused, opened = await asyncio.gather(*opening, return_exceptions=True)
    assert isinstance(refused, TooManyRequests)
    assert not isinstance(opened, BaseException)
    await sessions[1].__aexit__(None, None, None)
    await engine.close()
    await until(lambda: not engine_processes())


@pytest.mark.item(105)
async def test_third_crash_gets_429_for_its_user_only(api: Api, monkeypatch) -> None:
    # The wait after the third crash is 10 s, in which a busy machine may not finish the calls that must be refused.
    monkeypatch.setattr("queryserver.engines.process.pool._FIRST_WAIT_S", 100.0)
    ana, ben = await api.user("ana"), await api.user("ben")
    for _ in range(3):
        assert (await ana.run("duckdb", CRASH))["code"] == "engine_process_lost"
    snippet = json.dumps({"type": "duckdb"})
    answer = await ana.post("editor/autocomplete/", snippet=snippet)
    assert answer.status_code == 429, answer.text
    assert int(answer.headers["Retry-After"]) > 0
    body = await ana.run("duckdb", "SELECT 1")
    assert body["code"] == "too_many_requests"
    assert "Retry in " in body["message"]
    assert (await ben.post("editor/autocomplete/", snippet=snippet)).status_code == 200
    assert (await ben.run("duckdb", "SELECT 1"))["status"] == 0
    assert (await ana.run("sqlite", "SELECT 1"))["status"] == 0


class _Load:
    """Users who run statements while engine processes are killed."""

    def __init__(self) -> None:
        self.is_over = False
        self.numbers = itertools.count()
        self.acknowledged = set[int]()
        self.never_sent = set[int]()
        self.outcomes = Counter[str]()

    async def write(self, caller: Caller) -> None:
        """Insert one row per statement. Record the outcomes, and which rows were inserted or certainly not sent."""
        while not self.is_over:
            number = next(self.numbers)
            code = await self._done(caller, "duckdb", f"INSERT INTO log VALUES ({number})")
            if code == "":
                self.acknowledged.add(number)
            elif code in {"session_lost", "engine_unavailable"}:
                self.never_sent.add(number)

    async def read(self, caller: Caller, dialect: str) -> None:
        """Run statements one after another. Each is canceled after 1 s, possibly while its process is stopped."""
        while not self.is_over:
            rows = random.choice((50_000_000, 40_000_000_000))
            await self._done(caller, dialect, f"SELECT sum(range % 11) FROM range({rows})", timeout="1")

    async def keep_statement_running(self, caller: Caller) -> None:
        while not self.is_over:
            body = await caller.run("sqlite", "SELECT 1")
            assert body["status"] == 0, body
            answer = await caller.get("editor/get_history")
            assert answer.status_code == 200, answer.text

    async def _done(self, caller: Caller, dialect: str, statement: str, **fields: Any) -> str:
        body = await caller.run(dialect, statement, **fields)
        code = str(body["code"]) if body["status"] else ""
        self.outcomes[code] += 1
        return code


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def _end_one(number: int, api: Api, pids: Callable[[], list[int]]) -> None:
    """Kill or stop an engine process. The server kills a stopped process when its statement is canceled."""
    kind = (signal.SIGKILL, signal.SIGSEGV, signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP)[number % 5]
    while not (victims := _at_work(api) if kind == signal.SIGSTOP else pids()):  # noqa: ASYNC110 of the system
        await asyncio.sleep(0.02)
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(random.choice(victims))
        process.send_signal(kind)
        while is_alive(process):  # noqa: ASYNC110 of the system
            await asyncio.sleep(0.05)


def _held(api: Api) -> list[EngineProcess]:
    """Return the running engine processes that hold a database file or belong to a user."""
    engine = api.services.connectors.engine(api._connector("duckdb"))
    assert isinstance(engine, DuckdbEngine)
    pool = engine._connections._processes
    pooled = [*(file.pooled for file in pool._files.values()), *pool._users.values()]
    return [one.process for one in pooled if one is not None and not one.process.has_ended]


def _at_work(api: Api) -> list[int]:
    """Return the PIDs of the engine processes that are running a statement."""
    return [process.pid for process in _held(api) if process.running]


@pytest.mark.item(102)
@pytest.mark.timeout(1200)
async def test_50_kills_under_load_lose_no_row_and_leave_no_orphans(
    api: Api, monkeypatch: pytest.MonkeyPatch, engine_processes: EngineProcessList
) -> None:
    # In this test, crashes must not cause users to be blocked.
    monkeypatch.setattr("queryserver.engines.process.pool._FREE_LOSSES", 1e9)
    users = [await api.user(name) for name in ("ana", "ben", "eva")]
    assert (await users[0].run("duckdb", "CREATE TABLE log (n BIGINT)"))["status"] == 0
    for caller in users:
        assert (await caller.run("memory", "SELECT 1"))["status"] == 0
        assert (await caller.run("sqlite", "SELECT 1"))["status"] == 0
    load = _Load()
    tasks_before, files_before = len(asyncio.all_tasks()), _open_files()
    works: list[Callable[[], Any]] = [
        *(lambda caller=caller: load.write(caller) for caller in users),
        lambda: load.read(users[0], "duckdb"),
        *(lambda caller=caller: load.read(caller, "memory") for caller in users[1:]),
        lambda: load.keep_statement_running(users[2]),
    ]
    working = [asyncio.create_task(work()) for work in works]
    for number in range(_KILLS):
        await asyncio.sleep(random.random() * 0.5)
        await _end_one(number, api, lambda: [one.pid for one in engine_processes("engines.duckdb")])
        assert not any(work.done() for work in working)
    load.is_over = True
    await asyncio.gather(*working)
    known = {"", "engine_process_lost", "session_lost", "engine_unavailable", "statement_timeout"}
    assert load.outcomes.keys() <= known, load.outcomes
    body = await users[0].run("duckdb", "SELECT n FROM log")
    rows = list[int]()
    while True:
        page = await users[0].page(body["history_uuid"], start_row=str(len(rows)))
        rows += [int(row[0]) for row in page["data"]]
        if not page["has_more"]:
            break
    counted = Counter(rows)
    assert max(counted.values()) == 1
    assert counted.keys() >= load.acknowledged
    assert not counted.keys() & load.never_sent
    async with asyncio.timeout(60):
        while len(asyncio.all_tasks()) > tasks_before + 2 or _open_files() > files_before + 16:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    assert len(engine_processes("engines.duckdb")) <= 1 + 3 + 1  # one for the file, three for users, and one kept ready
    assert not [one for one in psutil.Process().children() if one.status() == psutil.STATUS_ZOMBIE]


@pytest.fixture
async def place(
    postgres: EmbeddedPostgres, tcp_open: EmbeddedPostgres, migrated_template: str, tmp_path: Path
) -> AsyncIterator[Installation]:
    memory = {"memory": {"interface": "duckdb", "dialect": "duckdb"}}
    async with installed(postgres, migrated_template, tmp_path, memory) as place:
        yield place


@pytest.mark.parametrize("is_killed", [False, True], ids=["terminated", "killed"])
async def test_no_process_remains_after_its_server_has_ended(place: Installation, *, is_killed: bool) -> None:
    async with place.server() as node:
        slow = "SELECT sum(a.range * b.range) FROM range(3000000) a, range(3000000) b"
        operations = [await node.submit(dialect, slow) for dialect in ("duckdb", "memory")]
        for operation_id in operations:
            await node.until(operation_id, lambda status: status["state"] == "running")
        children = [
            child
            for child in psutil.Process(node.process.pid).children(recursive=True)
            if "queryserver.engines" in command_of(child)
        ]
        assert len(children) >= 2
        await (node.process.kill9() if is_killed else node.process.terminate())
        async with asyncio.timeout(60):
            while any(map(is_alive, children)):  # noqa: ASYNC110 of the system
                await asyncio.sleep(0.05)
