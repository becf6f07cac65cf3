"""Users send input that takes a long time to process. Other users do not wait for it, and processing stops at a
limit.
"""

import asyncio
import gzip
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.api.conftest import make_settings
from tests.api.driving import Api, Caller, open_api, verdict
from tests.api.serving import served
from tests.fakes.computation import InlineComputations
from tests.fakes.storage_reads import OddFileSystem, Oddity
from tests.timing import processor_s, until

from queryserver.errors.base import TooComplex, TooManyRequests
from queryserver.files.access import Location
from queryserver.files.downloads import Excerpts, FileExcerpt
from queryserver.files.model import StoragePath, StorageUser
from queryserver.formats.unpacking import Codec
from queryserver.platform import computation_pool as processes
from queryserver.platform.computation import Task
from queryserver.platform.computation_pool import ComputationPool
from queryserver.platform.threads import open_threads
from queryserver.sql import formatter as sql
from queryserver.sql.classification import changes_data, changes_objects
from queryserver.sql.formatter import SCANNED_CHARACTERS, STATEMENT_CHARACTERS, ScriptFormatter, format_statements
from queryserver.sql.scanner import HEAD_CHARACTERS, expects_result_set
from queryserver.sql.statements import StatementChooser
from queryserver.workbooks.reader import ProcessWorkbooks

# Three statements of the maximum length for the formatter, which take about three seconds of CPU time.
SLOW_STATEMENT = ("select " + "a()" * STATEMENT_CHARACTERS)[: STATEMENT_CHARACTERS - 10]
SLOW_SCRIPT = ";\n".join([SLOW_STATEMENT] * 3)
# Five million statements, which take about ten seconds of CPU time, and 80 MB of offsets.
MANY_STATEMENTS = "a;" * (5 * 1024 * 1024 - 1)
SMALL_GZIP = gzip.compress(b"small")
NO_SUCH_PLACE = "postgresql://nobody:nothing@127.0.0.1:1/none"
# Much longer than any call in this file takes. A test that hangs fails after this time.
ENDS_WITHIN_S = 100

ApiOpener = Callable[..., AbstractAsyncContextManager[Api]]


@pytest.fixture
def opened(tmp_path: Path, database_dsn: str) -> ApiOpener:
    """A function that opens separate applications with the given `desktop` settings."""

    def opener(**desktop: Any) -> AbstractAsyncContextManager[Api]:
        return open_api(make_settings(tmp_path, database_dsn, NO_SUCH_PLACE, desktop=desktop))

    return opener


@pytest.fixture
async def computations() -> AsyncIterator[ComputationPool]:
    async with ComputationPool(processes=1) as opened:
        yield opened


def computing_of(api: Api) -> ComputationPool:
    computations = api.services.statements.formatting._computations
    assert isinstance(computations, ComputationPool)
    return computations


def outcomes_of(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list to which the outcome kind of each subsequent computation is added. Computations that are killed add
    none.
    """
    outcomes: list[object] = []

    def noted(kind: bytes, answer: Any, task: Task) -> Any:
        outcomes.append(kind)
        return result_of(kind, answer, task)

    result_of = processes._result
    monkeypatch.setattr(processes, "_result", noted)
    return outcomes


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@asynccontextmanager
async def under_way(caller: Caller, calls: int) -> AsyncIterator[list["asyncio.Task[Any]"]]:
    """Start this many calls that format a slow script; yield when a computation is running. They are canceled on
    exit.
    """
    tasks = [asyncio.create_task(caller.post("editor/format", statements=SLOW_SCRIPT)) for _ in range(calls)]
    try:
        await until(lambda: computing_of(caller.api).running)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class TestLength:
    @pytest.mark.parametrize("unit", ["(", "a()", "select 1;"])
    async def test_text_above_limit_is_returned_without_being_scanned(self, unit: str, monkeypatch: pytest.MonkeyPatch):
        def never(*_: object) -> None:
            raise AssertionError

        for name in ("scan", "tokens", "token_spans"):
            monkeypatch.setattr(sql, name, never)
        text = (unit * 400_000)[:400_000]
        assert format_statements(text, None) == text
        computations = InlineComputations()
        assert await ScriptFormatter(computations, max_bytes=10**7).format_script(1, text, None) == text
        assert computations.done == []

    async def test_unchanged_text_is_scanned_once(self, monkeypatch: pytest.MonkeyPatch):
        def never(*_: object) -> None:
            raise AssertionError

        monkeypatch.setattr(sql, "tokens", never)
        text = "(" * SCANNED_CHARACTERS
        assert format_statements(text, None) == text


class TestOtherUsers:
    async def test_page_is_served_while_another_users_eight_texts_are_formatted(self, opened: ApiOpener):
        async with opened() as api:
            ana, bob = await api.user("ana"), await api.user("bob")
            async with under_way(ana, 8) as tasks:
                result = await bob.result("duckdb", "SELECT 42")
                assert result["data"] == [[42]]
                assert not all(task.done() for task in tasks)

    @pytest.mark.slow
    async def test_first_call_of_another_user_is_not_queued_after_many_of_one(self, opened: ApiOpener):
        async with opened(computation_processes=1) as api:
            ana, bob = await api.user("ana"), await api.user("bob")
            async with under_way(ana, 8) as tasks:
                body = await bob.post_ok("editor/format", statements="select 1")
                assert body["formatted_statements"] == "SELECT 1"
                assert sum(task.done() for task in tasks) < len(tasks) - 1

    async def test_user_has_one_process_at_a_time(self, opened: ApiOpener):
        async with opened(computation_processes=2) as api, under_way(await api.user("ana"), 4):
            async with under_way(await api.user("bob"), 1):
                await until(lambda: len(computing_of(api).running) == 2)
            await until(lambda: len(computing_of(api).running) == 1)

    async def test_user_with_too_many_queued_calls_must_retry_later(self, opened: ApiOpener):
        async with opened() as api:
            ana = await api.user("ana")
            async with under_way(ana, 17):
                await until(lambda: computing_of(api)._slots.waiting == 16)
                refused = await ana.post("editor/format", statements="select 1")
                assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
                assert int(refused.headers["Retry-After"]) >= 1


class TestPackedFiles:
    async def test_endless_files_of_one_user_do_not_occupy_all_slots(self):
        store = OddFileSystem()
        store.odd["bomb.gz"] = Oddity(2**50, pattern=gzip.compress(b""))
        store.odd["small.gz"] = Oddity(len(SMALL_GZIP), pattern=SMALL_GZIP)
        with open_threads() as threads:
            excerpts = Excerpts(threads.unpacking, ProcessWorkbooks(), max_unpacked_bytes=2**40, max_snappy_bytes=2**20)

            async def show(user_id: int, name: str) -> FileExcerpt:
                storage = store.as_user(StorageUser("ana"))
                location = Location(StoragePath(store.scheme, name), store, storage)
                return await excerpts.read(user_id, location, await storage.stat(name), 0, 16, Codec.GZIP)

            bombs = [asyncio.create_task(show(1, "bomb.gz")) for _ in range(6)]
            await asyncio.sleep(0)
            async with asyncio.timeout(ENDS_WITHIN_S):
                assert (await show(2, "small.gz")).excerpt.requested == b"small"
            assert not any(bomb.done() for bomb in bombs)
            for bomb in bombs:
                bomb.cancel()
            await asyncio.gather(*bombs, return_exceptions=True)


class TestLeaving:
    @pytest.mark.parametrize(
        ("path", "field", "text"),
        [
            ("editor/format", "statements", SLOW_SCRIPT),
            ("editor/execute/duckdb", "statement", MANY_STATEMENTS),
            ("editor/explain/duckdb", "statement", MANY_STATEMENTS),
        ],
        ids=["format", "execute", "explain"],
    )
    async def test_work_stops_when_client_closes_connection(
        self, opened: ApiOpener, path: str, field: str, text: str, monkeypatch: pytest.MonkeyPatch
    ):
        async with opened() as api, served(api) as url:
            ana = await api.user("ana")
            host, _, port = url.removeprefix("http://").partition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            body = f'{{"{field}": {_json(text)}}}'.encode()
            head = [f"POST /api/v1/{path} HTTP/1.1", "Host: test", "Content-Type: application/json"]
            head += [f"Content-Length: {len(body)}", f"Authorization: {ana.headers['Authorization']}"]
            writer.write("\r\n".join([*head, "", ""]).encode() + body)
            await writer.drain()
            computations = computing_of(api)
            await until(lambda: computations.running)
            outcomes = outcomes_of(monkeypatch)
            (pid,) = computations.running
            writer.transport.abort()
            await until(lambda: not computations.running)
            await until(lambda: not is_alive(pid))
            assert outcomes == []
            assert (await ana.history())["count"] == 0

    async def test_connection_serves_further_calls_after_a_watched_one(self, opened: ApiOpener):
        async with opened() as api, served(api) as url:
            ana = await api.user("ana")
            host, _, port = url.removeprefix("http://").partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))

            def run_lookups(statement: str) -> None:
                body = f'{{"statements": "{statement}"}}'.encode()
                head = ["POST /api/v1/editor/format HTTP/1.1", "Host: test", "Content-Type: application/json"]
                head += [f"Content-Length: {len(body)}", f"Authorization: {ana.headers['Authorization']}"]
                writer.write("\r\n".join([*head, "", ""]).encode() + body)

            for _ in range(2):
                for number in range(3):
                    run_lookups(f"select {number}")
                async with asyncio.timeout(ENDS_WITHIN_S):
                    for number in range(3):
                        await reader.readuntil(f"SELECT {number}".encode())
            writer.close()

    async def test_canceled_computation_frees_its_slot(self, computations: ComputationPool):
        content = SLOW_SCRIPT.encode()
        for _ in range(3):
            work = asyncio.create_task(computations.run(1, Task.FORMAT, {"dialect": None}, content))
            await until(lambda: computations.running)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            assert not computations.running
        assert await computations.run(1, Task.FORMAT, {"dialect": None}, b"select 1") == "SELECT 1"

    async def test_worker_exits_with_its_server_even_if_killed(self):
        program = (
            "import asyncio\n"
            "from queryserver.platform.computation_pool import ComputationPool\n"
            "from queryserver.platform.computation_pool import Task\n"
            "async def main():\n"
            "    async with ComputationPool() as computations:\n"
            "        options = {'dialect': 'mysql', 'previous': None, 'full_form': True}\n"
            "        work = computations.run(1, Task.CHOOSE_STATEMENT, options, b'a;' * 5_000_000)\n"
            "        work = asyncio.create_task(work)\n"
            "        while not computations.running:\n"
            "            await asyncio.sleep(0.01)\n"
            "        print(computations.running[0], flush=True)\n"
            "        await work\n"
            "asyncio.run(main())\n"
        )
        server = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
        assert server.stdout is not None
        worker = int(await server.stdout.readline())
        assert is_alive(worker)
        server.send_signal(signal.SIGKILL)
        await server.wait()
        await until(lambda: not is_alive(worker))


class TestLimits:
    async def test_script_that_takes_too_long_to_format_is_returned_unchanged(self):
        # The formatter's largest input takes up to two seconds on a fast machine, so it would not reliably exceed a
        # realistic limit.
        computations = InlineComputations(fails=TooComplex("too long"))
        formatter = ScriptFormatter(computations, max_bytes=1024)
        assert await formatter.format_script(1, "select 1", None) == "select 1"
        computations.fails = None
        assert await formatter.format_script(1, "select 1", None) == "SELECT 1"
        assert computations.done == [(1, Task.FORMAT)] * 2

    @pytest.mark.parametrize("call", ["execute", "explain"])
    @pytest.mark.slow
    async def test_script_that_takes_too_long_to_split_is_refused(self, opened: ApiOpener, call: str):
        async with opened(computation_timeout_s=1) as api:
            ana = await api.user("ana")
            answer = await ana.post_json(f"editor/{call}/duckdb", statement=MANY_STATEMENTS)
            assert verdict(answer) == (400, -1, "too_complex")
            assert (await ana.history())["count"] == 0

    async def test_computation_exceeding_memory_is_refused(self):
        async with ComputationPool(processes=1, memory_bytes=64 * 1024 * 1024) as computations:
            options = {"dialect": "mysql", "previous": None, "full_form": True}
            with pytest.raises(TooComplex):
                await computations.run(1, Task.CHOOSE_STATEMENT, options, b"a;" * 20_000_000)
            assert await computations.run(1, Task.FORMAT, {"dialect": None}, b"select 1") == "SELECT 1"

    @pytest.mark.slow
    async def test_queue_of_one_user_does_not_count_against_another(self, computations: ComputationPool):
        slow = SLOW_SCRIPT.encode()
        work = [asyncio.create_task(computations.run(1, Task.FORMAT, {"dialect": None}, slow)) for _ in range(17)]
        await until(lambda: computations._slots.waiting == 16)
        with pytest.raises(TooManyRequests):
            await computations.run(1, Task.FORMAT, {"dialect": None}, b"select 1")
        assert await computations.run(2, Task.FORMAT, {"dialect": None}, b"select 1") == "SELECT 1"
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)


class TestEventLoop:
    """Searches in a statement's text. They run on the event loop, so all other calls wait for them."""

    @pytest.mark.parametrize("unit", ["(", "( ", "(/**/", "/**/", "-- \n", "/*", "\n"])
    @pytest.mark.parametrize("dialect", ["mysql", "postgresql", "hive"])
    def test_kind_of_long_statement_is_found_quickly(self, unit: str, dialect: str):
        text = unit * (9_000_000 // len(unit)) + "select 1"

        def work() -> None:
            changes_data(text, dialect)
            changes_objects(text, dialect)
            expects_result_set(text, dialect)

        assert processor_s(work) < 1

    @pytest.mark.parametrize("characters", [990_000, 9_000_000])
    def test_long_query_is_searched_for_words_quickly(self, characters: int):
        text = "with a as (select 1) select " + "a, " * (characters // 3) + "1"
        assert processor_s(lambda: changes_data(text, "postgresql")) < 0.1

    @pytest.mark.parametrize("unit", ["(", "a;", "end;", "/*!", "$$", "'"])
    def test_script_of_any_kind_is_split_in_event_loop_quickly(self, unit: str):
        handed_over = InlineComputations()
        choosing = StatementChooser(handed_over)
        texts = [(unit * 25_000)[:length] for length in range(1_000, 50_001, 1_000)]
        for text in texts:
            handed_over.done.clear()
            asyncio.run(choosing.next(1, text, "mysql", full_form=True))
            at_most = 20_000 / (len(unit) + 10) * len(unit) if ";" in unit else 20_000
            assert bool(handed_over.done) == (len(text) > at_most)

    @pytest.mark.parametrize("hidden", ["/**/", "-", "--\n", "(", "/*!"])
    def test_change_after_a_long_head_is_recognized(self, hidden: str):
        for length in range(HEAD_CHARACTERS - 6, HEAD_CHARACTERS + 6):
            text = " " * (length - len(hidden)) + hidden + "- x\n delete from t"
            assert changes_data(text, "mysql") or len(text) <= HEAD_CHARACTERS


def _json(text: str) -> str:
    return '"' + text.replace("\n", "\\n") + '"'
