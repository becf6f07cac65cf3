"""An engine process that an attacker controls: the server trusts no message from the process."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest
from tests.contract.engine_basis import NO_OPTIONS
from tests.contract.engine_driving import failure, operation
from tests.refusals import raises_code

from queryserver.engines.process.connections import ProcessConnections
from queryserver.engines.process.pool import EngineProcesses
from queryserver.engines.process.sessions import ProcessSession
from queryserver.errors.statements import EngineUnavailable

_PROGRAM = """
import os, socket, struct, sys, time
import pyarrow as pa
from queryserver.engines.process.channel import Channel

control, calls = (Channel(socket.socket(fileno=int(number))) for number in sys.argv[1:3])
control.send({{"kind": "ready"}})
control.receive()
control.send({{"kind": "opened"}})
answer = {{"kind": "answer", "columns": [["a", "STRING_TYPE", "VARCHAR", ""]], "modified_rows": None}}

def batch(**columns):
    one = pa.record_batch(columns)
    return one.schema.serialize().to_pybytes(), one.serialize().to_pybytes()

def rows(schema, body, sizes=None):
    session.send(answer)
    session.send({{"kind": "rows", "parts": sizes or [[len(schema), len(body)]], "modified_rows": None}}, schema + body)

while True:
    frame = control.receive()
    if frame.kind == "stop":
        os._exit(0)
    if frame.kind != "session":
        continue
    session = Channel(socket.socket(fileno=frame.descriptors[0]))
    {before}
    session.send({{"kind": "connected", "takes_rows": True}})
    session.receive()
    {then}
"""

_STATEMENTS = {
    "no frame": "session._socket.sendall(b'\\xff' * 4096)",
    "no object": "session._socket.sendall(struct.pack('<IQB', 2, 0, 0) + b'[]')",
    "a terabyte": "session._socket.sendall(struct.pack('<IQB', 2, 2**40, 0) + b'{}')",
    "more than any row": "session._socket.sendall(struct.pack('<IQB', 2, 2**29, 0) + b'{}')",
    "descriptors": "session._socket.sendall(struct.pack('<IQB', 2, 0, 1) + b'{}')",
    "columns of another form": "session.send({'kind': 'answer', 'columns': [[1, 2]]})",
    "columns that are none": "session.send({'kind': 'answer', 'columns': 7})",
    "an unknown type": "session.send({'kind': 'answer', 'columns': [['a', 'X', '', '']]})",
    "an error that is none": "session.send({'kind': 'error', 'error': {'class': 'sys', 'code': 'x', 'message': ''}})",
    "a function as an error": (
        "session.send({'kind': 'error', 'error': {'class': 'recreate_error', 'code': 'x', 'message': ''}})"
    ),
    "a code that is none": (
        "session.send({'kind': 'error', 'error': {'class': 'EngineError', 'code': 'a b' * 999, 'message': ''}})"
    ),
    "a location of another form": (
        "session.send({'kind': 'error', 'error': {'class': 'EngineError', 'code': 'engine_error', 'message': '',"
        " 'location': ['Character', {'offset': 'x'}]}})"
    ),
    "rows of another number of columns": "rows(*batch(a=['x'], b=['y']))",
    "rows beyond their bytes": "rows(*batch(a=['x']), sizes=[[10**6, 10**6]])",
    "sizes below zero": "rows(*batch(a=['x']), sizes=[[-5, -7]])",
    "text beyond its bytes": (
        "schema, body = batch(a=['abc']); "
        "rows(schema, body.replace(struct.pack('<ii', 0, 3), struct.pack('<ii', 0, 2**31 - 1)))"
    ),
    "text that is no UTF-8": (
        "schema, body = batch(a=['abcdefgh']); rows(schema, body.replace(b'abcdefgh', b'\\xff' * 8))"
    ),
    "no answer": "session.close()",
    "its end": "os._exit(3)",
}


def rogues() -> list[psutil.Process]:
    """Return the running rogue processes, but not the engine processes of other tests."""
    found = list[psutil.Process]()
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "session = Channel(" in " ".join(child.cmdline()):
                found.append(child)
    return found


@asynccontextmanager
async def rogue(then: str, before: str = "") -> AsyncGenerator[ProcessConnections]:
    """Run an engine whose process executes `before` when a session opens, and `then` when the first statement runs."""
    connections = ProcessConnections(
        EngineProcesses(_PROGRAM.format(then=then, before=before)),
        "place",
        {"cell_max_bytes": 1024 * 1024},
        max_statements=4,
    )
    try:
        yield connections
    finally:
        await connections.close()
        assert not rogues()


@asynccontextmanager
async def opened(connections: ProcessConnections, user_id: int = 1) -> AsyncGenerator[ProcessSession]:
    async with connections.session(user_id, NO_OPTIONS) as session:
        yield session


@pytest.mark.parametrize("then", _STATEMENTS.values(), ids=_STATEMENTS.keys())
async def test_invalid_message_ends_process_and_fails_its_statement(then: str, monkeypatch) -> None:
    monkeypatch.setattr("queryserver.engines.process.engine_process.STOP_S", 1.0)
    async with rogue(then) as connections:
        async with opened(connections) as session:
            error = await failure(session, "SELECT 1")
            assert error.code == "engine_process_lost"
            assert not await session.is_alive()
        async with opened(connections) as session:  # runs in a new process
            assert await session.is_alive()


async def test_only_the_user_whose_statements_ended_processes_must_wait() -> None:
    async with rogue("os._exit(3)") as connections:
        for _ in range(3):
            async with opened(connections, user_id=1) as session:
                await failure(session, "SELECT 1")
        with raises_code("too_many_requests"):
            async with opened(connections, user_id=1):
                pass
        async with opened(connections, user_id=2) as session:
            assert await session.is_alive()


async def test_session_is_reopened_when_process_ends_while_opening(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    before = f"first = not os.path.exists({mark!r}); open({mark!r}, 'w').close(); first and os._exit(1)"
    async with rogue("pass", before) as connections, opened(connections) as session:
        assert await session.is_alive()


async def test_process_that_never_opens_a_session_is_killed(monkeypatch) -> None:
    monkeypatch.setattr("queryserver.engines.process.connections._OPEN_TRIES", 1)
    async with (
        rogue("pass", before="time.sleep(1000)") as connections,
        connections._processes.process_for_file(connections, "place", connections._configuration) as process,
    ):
        monkeypatch.setattr("queryserver.engines.process.engine_process._MAX_SILENCE_S", 0.5)
        with pytest.raises(EngineUnavailable):
            async with opened(connections):
                pass
        assert process.has_ended


async def test_endless_process_output_is_discarded_except_last_lines() -> None:
    flood = "[os.write(2, b'x' * 1000 + b'\\n') for _ in range(20000)]; os.write(2, b'last line'); os._exit(1)"
    before = psutil.Process().memory_info().rss
    async with rogue(flood) as connections, opened(connections) as session:
        error = await failure(session, "SELECT 1")
        assert error.code == "engine_process_lost"
        (file,) = connections._processes._files.values()
        assert file.pooled is not None
        assert file.pooled.process._last_lines[-1] == "last line"
        assert len(file.pooled.process._last_lines) <= 20
    assert psutil.Process().memory_info().rss - before < 50 * 1024 * 1024


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("terminate called after throwing an instance of 'std::bad_alloc'", "engine_memory_exceeded"),
        ("cannot allocate memory for thread-local data: ABORT", "engine_memory_exceeded"),
        ("MemoryError", "engine_memory_exceeded"),
        ("memory allocation of 1048576 bytes failed", "engine_memory_exceeded"),
        ("Fatal Python error: Segmentation fault", "engine_process_lost"),
    ],
)
async def test_last_process_output_decides_error_code(said: str, code: str) -> None:
    then = f"os.write(2, {said.encode()!r}); os.abort()"
    async with rogue(then) as connections, opened(connections) as session:
        assert (await failure(session, "SELECT 1")).code == code


async def test_invalid_calls_are_refused(monkeypatch) -> None:
    calls = (
        "[calls.send(m) for m in ({}, {'call': 1, 'session': [1], 'method': 'x', 'arguments': {}},"
        " {'call': 2, 'session': 1, 'method': 7, 'arguments': {}}, {'call': {}, 'session': 99})]; "
        "control.send({'kind': 'progress', 'request': [], 'progress': 'x'}); control.send({'kind': 'odd'}); "
        "replies = [calls.receive() for _ in range(4)]; "
        "codes = {reply.message['error']['code'] for reply in replies}; "
        "session.send({'kind': 'answer', 'columns': None, 'modified_rows': 5 if codes == {'permission_denied'} else 6})"
    )
    async with rogue(calls) as connections, opened(connections) as session, operation(session, "SELECT 1") as handle:
        async with asyncio.timeout(30):
            while not (status := await session.poll(handle, wait_s=1)).state.is_terminal:
                pass
        assert status.modified_rows == 5
        monkeypatch.setattr("queryserver.engines.process.sessions.STOP_S", 0.3)  # the process ignores the close request
