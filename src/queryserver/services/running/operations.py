"""A statement that an engine has, for as long as somebody here wants it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

from queryserver.domain.errors.statements import EngineError
from queryserver.interfaces.engine import EngineSession, OperationHandle


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
