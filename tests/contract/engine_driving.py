"""Functions that drive an engine session: they run a statement, wait for its completion, and read its rows."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.tasks import TasksBegun

from queryserver.engines.protocol import (
    EngineSession,
    OperationHandle,
    OperationState,
    OperationStatus,
    ResumableSession,
)
from queryserver.errors.statements import EngineError
from queryserver.formats.arrow import Column
from queryserver.sql.markers import BoundStatement


@dataclass(frozen=True, slots=True)
class Answer:
    """The complete result of a statement."""

    status: OperationStatus
    columns: tuple[Column, ...]
    rows: list[tuple[Any, ...]]

    @property
    def cell(self) -> Any:
        return self.rows[0][0]


@asynccontextmanager
async def operation(session: EngineSession, sql: str | BoundStatement) -> AsyncGenerator[OperationHandle]:
    """Submit a statement; cancel and close it on exit."""
    handle = await session.submit(sql)
    try:
        yield handle
    finally:
        await session.cancel(handle)
        await session.close(handle)


async def ended(session: EngineSession, handle: OperationHandle, *, within_s: float = 30) -> OperationStatus:
    """Wait for the terminal status and return it."""
    async with asyncio.timeout(within_s):
        while not (status := await session.poll(handle, wait_s=1)).state.is_terminal:
            pass
    return status


async def patient_poll(session: EngineSession, handle: OperationHandle, *, wait_s: float) -> OperationStatus:
    """Poll for `wait_s`, even if the engine returns earlier because it has a new resume token to store."""
    until = time.monotonic() + wait_s
    while True:
        before = session.resume_token(handle) if isinstance(session, ResumableSession) else None
        status = await session.poll(handle, wait_s=max(until - time.monotonic(), 0))
        moved = isinstance(session, ResumableSession) and session.resume_token(handle) != before
        if status.state.is_terminal or not moved or time.monotonic() >= until:
            return status


async def started(session: EngineSession, handle: OperationHandle) -> None:
    """Wait until the engine is working on the statement."""
    async with asyncio.timeout(30):
        while (await session.poll(handle, wait_s=0.01)).state is OperationState.PENDING:
            pass
    # Some adapters report RUNNING before the statement reaches the engine; this delay allows it to arrive.
    await asyncio.sleep(0.05)


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Return the rows as tuples, because column names may repeat."""
    columns = [column.to_pylist() for column in batch.columns]
    return list(zip(*columns, strict=True))


async def read(session: EngineSession, handle: OperationHandle) -> list[tuple[Any, ...]]:
    """Return all rows of the result."""
    return [row async for batch in session.batches(handle) for row in rows_of(batch)]


async def count_rows(session: EngineSession, handle: OperationHandle) -> int:
    """Read the whole result and return the number of rows."""
    return sum([batch.num_rows async for batch in session.batches(handle)])


async def run(session: EngineSession, sql: str | BoundStatement) -> Answer:
    """Run a statement to completion and return its result; raise its error if it fails."""
    async with operation(session, sql) as handle:
        status = await ended(session, handle)
        if status.error is not None:
            raise status.error
        if not status.has_result_set:
            return Answer(status, (), [])
        columns, rows = await session.columns(handle), await read(session, handle)
        return Answer(await session.poll(handle), columns, rows)


async def failure(session: EngineSession, sql: str | BoundStatement) -> EngineError:
    """Return the error of a statement that must fail, whether raised or reported in the status."""
    try:
        await run(session, sql)
    except EngineError as error:
        return error
    pytest.fail(f"not refused: {str(sql)[:200]}")


@dataclass(frozen=True, slots=True)
class Footprint:
    """The resources that this process holds."""

    threads: int
    tasks: int
    files: int

    @classmethod
    def now(cls, begun: TasksBegun) -> "Footprint":
        return cls(threading.active_count(), len(begun.left()), len(list(Path("/proc/self/fd").iterdir())))
