"""A statement at an engine for as long as a caller needs it; a statement without an operation record."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa

from queryserver.engines.protocol import EngineSession, OperationHandle, OperationState
from queryserver.errors.statements import EngineError, EngineUnavailable
from queryserver.formats.columns import Column

_POLL_S = 1.0
_MOST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """Columns and rows, in as few batches as the engine gave."""

    columns: tuple[Column, ...] = ()
    rows: tuple[pa.RecordBatch, ...] = ()


async def run(session: EngineSession, statement: str, *, max_rows: int, max_bytes: int = _MOST_BYTES) -> Answer:
    """Run a statement and read its first rows, until they take `max_bytes`; nothing is left at the engine.

    Raises EngineError: the engine's refusal, or that it was stopped there.
    """
    handle = await session.submit(statement)
    async with submitted(session, handle):
        status = await session.poll(handle, wait_s=_POLL_S)
        while not status.state.is_terminal:
            status = await session.poll(handle, wait_s=_POLL_S)
        if status.error is not None:
            raise status.error
        if status.state is not OperationState.FINISHED:
            raise EngineUnavailable("The statement was stopped at the engine.")
        if not status.has_result_set:
            return Answer()
        return Answer(await session.columns(handle), await _first_rows(session, handle, max_rows, max_bytes))


async def _first_rows(
    session: EngineSession, handle: OperationHandle, max_rows: int, max_bytes: int
) -> tuple[pa.RecordBatch, ...]:
    kept: list[pa.RecordBatch] = []
    async with aclosing(_as_generator(session, handle)) as batches:
        async for batch in batches:
            kept.append(batch.slice(0, max_rows))
            max_rows -= batch.num_rows
            max_bytes -= batch.nbytes
            if max_rows <= 0 or max_bytes <= 0:
                break
    return tuple(kept)


async def _as_generator(session: EngineSession, handle: OperationHandle) -> AsyncGenerator[pa.RecordBatch]:
    async for batch in session.batches(handle):
        yield batch


@asynccontextmanager
async def submitted(
    session: EngineSession, handle: OperationHandle, *, is_left: Callable[[], bool] = lambda: False
) -> AsyncGenerator[None]:
    """Whoever leaves early leaves nothing running, unless it `is_left` to another runner by then.

    The adapter limits the time of both calls.
    """
    try:
        yield
    except BaseException:  # includes CancelledError: the engine must not work for nobody
        if not is_left():
            # What ended the work is worth more than an engine that cannot be told.
            with suppress(EngineError):
                await asyncio.shield(session.cancel(handle))
        raise
    finally:
        if not is_left():
            await asyncio.shield(session.close(handle))
