"""The server's replies to an engine process that reads stored results."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from queryserver import errors
from queryserver.engines.blocking_drivers import Interrupted
from queryserver.engines.external_data import ResultPiece
from queryserver.engines.process.calls import ResultMethod
from queryserver.engines.process.engine_process import Reply
from queryserver.engines.process.requests import ResultRequests
from queryserver.formats.arrow import Column, ResultType


class Stored:
    """A result with three chunks.

    The first `files` chunks are stored in files; if `hang` is set, reads never return.
    """

    columns = (Column("n", ResultType.BIGINT, "BIGINT"),)
    pieces = tuple(ResultPiece(1, 10) for _ in range(3))
    warning = ""

    def __init__(self, directory: Path, files: int = 0) -> None:
        self.directory = directory
        self.files = files
        self.hang = False
        self.open_now = 0

    @asynccontextmanager
    async def open(self, operation_id: str) -> AsyncGenerator["Stored"]:
        if operation_id != "known":
            raise errors.result_not_found("no")
        self.open_now += 1
        try:
            yield self
        finally:
            self.open_now -= 1

    async def descriptor(self, number: int) -> int | None:
        if number == 2 < self.files:
            raise errors.ServiceUnavailable("away")
        if number >= self.files:
            return None
        file = self.directory / str(number)
        file.write_bytes(b"0123456789")
        return os.open(file, os.O_RDONLY)

    async def read(self, number: int, start: int, stop: int) -> bytes:
        if self.hang:
            await asyncio.Event().wait()
        return (b"%d123456789" % number)[start:stop]


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


async def answered(requests: ResultRequests, method: ResultMethod, **arguments: Any) -> Reply:
    return await requests.answer(method, arguments, b"")


async def test_result_stays_open_until_closed(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    requests = ResultRequests(stored)
    message = (await answered(requests, ResultMethod.OPEN, operation_id="known")).message
    assert (message["pieces"], message["columns"]) == ([[1, 10]] * 3, [["n", "BIGINT_TYPE", "BIGINT", ""]])
    assert stored.open_now == 1
    read = await answered(requests, ResultMethod.READ, result=message["result"], piece=1, start=0, stop=4)
    assert bytes(read.content) == b"1123"
    for _ in range(2):
        await answered(requests, ResultMethod.CLOSE, result=message["result"])
    assert stored.open_now == 0
    with pytest.raises(errors.InvalidParameter):
        await answered(requests, ResultMethod.READ, result=message["result"], piece=1, start=0, stop=4)


async def test_results_left_open_are_closed_with_the_statement(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    requests = ResultRequests(stored)
    for _ in range(3):
        await answered(requests, ResultMethod.OPEN, operation_id="known")
    with pytest.raises(errors.ResultRefused):
        await answered(requests, ResultMethod.OPEN, operation_id="unknown")
    assert stored.open_now == 3
    for _ in range(2):
        await requests.close()
    assert stored.open_now == 0


async def test_interrupt_stops_pending_read_but_not_close(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    requests = ResultRequests(stored)
    number = (await answered(requests, ResultMethod.OPEN, operation_id="known")).message["result"]
    stored.hang = True
    reading = asyncio.create_task(answered(requests, ResultMethod.READ, result=number, piece=0, start=0, stop=1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    requests.interrupt()
    with pytest.raises(Interrupted):
        await reading
    closing = asyncio.create_task(answered(requests, ResultMethod.CLOSE, result=number))
    await asyncio.sleep(0)
    requests.interrupt()
    await closing
    assert stored.open_now == 0


async def test_descriptors_are_returned_for_chunks_in_files(tmp_path: Path) -> None:
    requests = ResultRequests(Stored(tmp_path, files=1))
    number = (await answered(requests, ResultMethod.OPEN, operation_id="known")).message["result"]
    reply = await answered(requests, ResultMethod.FILES, result=number, first=0, count=32)
    assert [os.pread(one, 10, 0) for one in reply.descriptors] == [b"0123456789"]
    os.close(reply.descriptors[0])
    assert not (await answered(requests, ResultMethod.FILES, result=number, first=1, count=32)).descriptors


async def test_opened_files_are_closed_when_a_later_file_fails(tmp_path: Path) -> None:
    requests = ResultRequests(Stored(tmp_path, files=3))
    number = (await answered(requests, ResultMethod.OPEN, operation_id="known")).message["result"]
    before = open_files()
    with pytest.raises(errors.ServiceUnavailable):
        await answered(requests, ResultMethod.FILES, result=number, first=0, count=3)
    assert open_files() == before


@pytest.mark.parametrize(("method", "arguments"), [(ResultMethod.OPEN, {}), (ResultMethod.OPEN, {"operation_id": 7}),
    (ResultMethod.READ, {"result": 1, "piece": 0, "start": 0, "stop": 2**40}),
    (ResultMethod.READ, {"result": 1, "piece": -1, "start": 0, "stop": 1}),
    (ResultMethod.READ, {"result": 1, "piece": 9, "start": 0, "stop": 1}),
    (ResultMethod.READ, {"result": 1, "piece": 0, "start": 5, "stop": 1}),
    (ResultMethod.READ, {"result": "x"}), (ResultMethod.FILES, {"result": 2}), ("drop_result", {})])  # fmt: skip
async def test_invalid_call_is_refused(tmp_path: Path, method: str, arguments: dict[str, Any]) -> None:
    requests = ResultRequests(Stored(tmp_path))
    await answered(requests, ResultMethod.OPEN, operation_id="known")
    with pytest.raises(errors.InvalidParameter):
        await requests.answer(method, arguments, b"")
    await requests.close()
