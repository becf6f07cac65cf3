"""Computations in worker processes: results, errors, and the lifetime of workers."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from tests.fakes.computation import InlineComputations
from tests.refusals import raises_code
from tests.timing import until

from queryserver.errors.base import InvalidParameter, ServiceUnavailable
from queryserver.platform import computation_pool as processes
from queryserver.platform.computation import Task
from queryserver.platform.computation_pool import ComputationPool
from queryserver.sql import statements
from queryserver.sql.markers import NO_MARKERS, ScriptMarkers
from queryserver.sql.statements import PreviousStatement, StatementChooser

ANA = 1
PREVIOUS = [
    (None, True),
    (PreviousStatement(0, has_more_statements=True), True),
    (PreviousStatement(2), False),
    (PreviousStatement(1, statement_hash="another"), True),
]
PREVIEWED = {
    "reading": {
        "file_type": "csv",
        "sheet_name": None,
        "delimiters": {"field": ",", "quote": '"', "record": "\n"},
        "quote_char": None,
        "record_separator": None,
        "encoding": None,
        "formats": {},
        "skip_rows": None,
        "comment": None,
        "escape": None,
        "null_words": None,
    },
    "has_header": True,
    "is_whole": False,
    "is_last": True,
}


@pytest.fixture
async def computations() -> AsyncIterator[ComputationPool]:
    async with ComputationPool(processes=1) as opened:
        yield opened


async def test_process_runs_successive_computations(computations: ComputationPool):
    assert await computations.run(ANA, Task.FORMAT, {"dialect": None}, b"select 1") == "SELECT 1"
    (first,) = computations._idle
    assert await computations.run(ANA, Task.FORMAT, {"dialect": None}, b"SELECT 1") is None
    assert computations._idle == [first]


async def test_server_memory_does_not_count_toward_worker_memory(computations: ComputationPool):
    held = bytearray(b"x") * (400 * 1024 * 1024)
    await computations.run(ANA, Task.FORMAT, {"dialect": None}, b"select 1")
    assert len(computations._idle) == 1
    del held


async def test_idle_process_ends():
    async with ComputationPool(processes=1, idle_s=0.05) as computations:
        await computations.run(ANA, Task.FORMAT, {"dialect": None}, b"select 1")
        (worker,) = computations._idle
        await until(lambda: worker.process.returncode is not None)
        assert not computations._idle
        assert await computations.run(ANA, Task.FORMAT, {"dialect": None}, b"select 1") == "SELECT 1"


async def test_killed_idle_process_is_replaced(computations: ComputationPool):
    await computations.run(ANA, Task.FORMAT, {"dialect": None}, b"select 1")
    (worker,) = computations._idle
    os.kill(worker.process.pid, 9)
    await worker.process.wait()
    assert await computations.run(ANA, Task.FORMAT, {"dialect": None}, b"select 1") == "SELECT 1"


@pytest.mark.parametrize(
    ("content", "code"), [(b"", "file_empty"), (b"%PDF-1.7\n" + bytes(range(256)) * 100, "unsupported_format")]
)
async def test_domain_errors_keep_type_and_message(computations: ComputationPool, content: bytes, code: str):
    with raises_code(code) as here:
        await InlineComputations().run(ANA, Task.DETECT_FILE, {"is_whole": True}, content)
    with raises_code(code) as there:
        await computations.run(ANA, Task.DETECT_FILE, {"is_whole": True}, content)
    assert str(there.value) == str(here.value)
    assert type(there.value) is type(here.value)


async def test_internal_error_is_raised_and_pool_stays_usable(computations: ComputationPool):
    with pytest.raises(RuntimeError, match="header"):
        await computations.run(ANA, Task.HEADER, {}, b"a")
    assert await computations.run(ANA, Task.FORMAT, {"dialect": None}, b"select 1") == "SELECT 1"


@pytest.mark.parametrize("program", ["raise SystemExit(1)", "import no_such_module", "pass"])
async def test_process_that_cannot_start_means_service_unavailable(program: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "_PROGRAM", program)
    async with ComputationPool(processes=1) as computations:
        for content in (b"select 1", b"select 1" * 1_000_000):
            with pytest.raises(ServiceUnavailable):
                await computations.run(ANA, Task.FORMAT, {"dialect": None}, content)
        assert not computations.running
        assert computations._slots.is_unused


async def test_computation_interrupted_by_shutdown_is_service_unavailable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "_PROGRAM", "import sys; sys.stdin.buffer.read()")  # a worker that never replies
    async with ComputationPool(processes=1) as computations:
        options = {"dialect": "mysql", "previous": None, "full_form": True}
        work = [
            asyncio.create_task(computations.run(user_id, Task.CHOOSE_STATEMENT, options, b"a;" * 5_000_000))
            for user_id in (ANA, ANA, 2)
        ]
        await until(lambda: computations.running)
    for one in work:
        with pytest.raises(ServiceUnavailable, match="The server is stopping"):
            await one


@pytest.mark.slow
async def test_file_with_many_columns_is_previewed_within_memory_limit():
    row = b",".join([b"2020-01-01"] * 1000) + b"\n"
    options = {**PREVIEWED, "has_header": False}
    async with ComputationPool(processes=1, memory_bytes=512 * 1024 * 1024) as computations:
        found = await computations.run(ANA, Task.PREVIEW, options, row * (8 * 1024 * 1024 // len(row)))
    assert len(found["columns"]) == 1000


@pytest.mark.parametrize(("previous", "full_form"), PREVIOUS)
@pytest.mark.parametrize("dialect", ["mysql", "postgresql"])
async def test_statement_choice_is_the_same_in_process_and_inline(
    previous: PreviousStatement | None,
    full_form: bool,
    dialect: str,
    computations: ComputationPool,
    monkeypatch: pytest.MonkeyPatch,
):
    script = "-- Größe\nselect 'a;b';\r\n insert into t values (1) ;select 3"
    small = await StatementChooser(InlineComputations()).next(ANA, script, dialect, previous, full_form=full_form)
    monkeypatch.setattr(statements, "INLINE_CHARACTERS", 0)
    large = await StatementChooser(computations).next(ANA, script, dialect, previous, full_form=full_form)
    assert small is not None
    assert large == small
    assert script[large.first : large.stop]


@pytest.mark.parametrize("limit", [50_000, 0])
async def test_statement_to_explain_is_the_same_in_process_and_inline(limit, computations, monkeypatch) -> None:
    monkeypatch.setattr(statements, "INLINE_CHARACTERS", limit)
    asked = StatementChooser(computations)
    script = "/* é */ select ?, ':x' ; select ?"
    text, part = "/* é */ select ?, ':x'", "select ?, ':x'"
    assert await asked.first_to_explain(ANA, script, "mysql") == (text, part, NO_MARKERS)
    places = ScriptMarkers(total=2, before=0, own=1)
    assert await asked.first_to_explain(ANA, script, "mysql", named=False) == (text, part, places)
    assert await asked.first_to_explain(ANA, " -- nothing", "mysql") is None
    with pytest.raises(InvalidParameter, match="EXPLAIN"):
        await asked.first_to_explain(ANA, "explain select 1", "mysql")


async def test_record_length_limit_is_reported_from_process(computations: ComputationPool):
    with raises_code("record_too_long"):
        await computations.run(ANA, Task.PREVIEW, PREVIEWED, b'"' + b"a" * 1024 * 1024)


async def test_warm_up_starts_the_process_that_the_next_call_uses(computations: ComputationPool):
    computations.warm_up(ANA, Task.PREVIEW, PREVIEWED, b"a,b\n1,2\n")
    computations.warm_up(ANA, Task.PREVIEW, PREVIEWED, b"a,b\n1,2\n")
    await until(lambda: len(computations._idle) == 1)
    (worker,) = computations._idle
    await computations.run(2, Task.PREVIEW, PREVIEWED, b"a,b\n1,2\n")
    assert computations._idle == [worker]


async def test_warm_up_runs_nothing_if_a_process_is_ready(computations: ComputationPool):
    await computations.run(ANA, Task.FORMAT, {"dialect": None}, b"select 1")
    computations.warm_up(ANA, Task.PREVIEW, PREVIEWED, b"a,b\n1,2\n")
    assert computations._warm_up is None


async def test_warm_up_ends_with_the_pool_and_failures_are_ignored(monkeypatch: pytest.MonkeyPatch):
    async with ComputationPool(processes=1) as computations:
        computations.warm_up(ANA, Task.HEADER, {}, b"a")  # a bug in the worker
        await until(lambda: computations._warm_up is not None and computations._warm_up.done())
        assert await computations.run(ANA, Task.FORMAT, {"dialect": None}, b"select 1") == "SELECT 1"
    monkeypatch.setattr(processes, "_PROGRAM", "import sys; sys.stdin.buffer.read()")  # a worker that never replies
    async with ComputationPool(processes=1) as computations:
        computations.warm_up(ANA, Task.PREVIEW, PREVIEWED, b"a,b\n1,2\n")
        await until(lambda: bool(computations.running))
    assert computations._warm_up is not None
    assert computations._warm_up.done()
    assert not computations.running
    async with asyncio.timeout(10):
        await computations._warm_up
