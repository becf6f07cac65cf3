"""What a run works with."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from queryserver.domain.statement import Assignment
from queryserver.interfaces.engine import EngineSession, OperationHandle
from queryserver.interfaces.metrics import UNMEASURED, StatementMetrics
from queryserver.interfaces.results import ResultStore
from queryserver.interfaces.statements import StatementLeases

Attached = tuple[EngineSession, OperationHandle]
"""A statement that another runner has left at the engine, and the session to follow it in."""


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
    """Limits of one run."""

    result_max_rows: int
    result_max_bytes: int
    cell_max_bytes: int
    log_max_bytes: int
    retention: timedelta
    cancel_wait: timedelta
    lease: timedelta


@dataclass(frozen=True, slots=True)
class ExecutionTools:
    """What a run works with.

    `session` opens, or waits its turn in, the engine session of the statement; `reattach` finds the statement that
    another runner has left at the engine. `before_end` is done before anybody can see that the statement has ended.
    """

    leases: StatementLeases
    results: ResultStore
    settings: ExecutionSettings
    session: Callable[[Assignment], AbstractAsyncContextManager[EngineSession]]
    reattach: Callable[[Assignment], AbstractAsyncContextManager[Attached]]
    notify: Callable[[], None]
    before_end: Callable[[], Awaitable[None]] | None = None
    metrics: StatementMetrics = UNMEASURED


@asynccontextmanager
async def beside(coroutine: Coroutine[None, None, None]) -> AsyncGenerator[None]:
    """Something that runs while inside. When it fails, the next write of the main work fails the same way."""
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
