"""A fake engine whose statements continue after the client has disconnected.

If `pages_once` is set, the engine can repeat only the latest page, as on engines where a request for the next page
acknowledges the previous one. Otherwise, it returns rows from any position.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pyarrow as pa
from tests.fakes.engine import BATCH_ROWS, FakeEngine, FakeSession

from queryserver.engines.protocol import EngineSession, OperationHandle, SessionOptions
from queryserver.errors.statements import OutcomeUnknown
from queryserver.identity.model import User


class ResumableFakeEngine(FakeEngine):
    """A fake engine whose statements can be resumed. `left` holds the detached sessions of running statements by name.
    All pages after the first wait for the event `go_on`.
    """

    def __init__(self, *, pages_once: bool = False) -> None:
        super().__init__()
        self.pages_once = pages_once
        self.left: dict[str, ResumableFakeSession] = {}
        self.go_on = asyncio.Event()
        self.go_on.set()

    @asynccontextmanager
    async def session(self, user: User, options: SessionOptions) -> AsyncGenerator[EngineSession]:
        await self.ping()
        self.sessions_opened += 1
        session = ResumableFakeSession(self)
        try:
            yield session
        finally:
            await session.leave()

    @asynccontextmanager
    async def reattach(
        self, user: User, options: SessionOptions, token: str, *, rows_read: int
    ) -> AsyncGenerator[tuple[EngineSession, OperationHandle]]:
        await self.ping()
        name, _, page = token.partition("/")
        session = self.left.pop(name, None)
        if session is None:
            raise OutcomeUnknown("Results have expired: the statement no longer exists on the engine.")
        session.go_to(int(page) if self.pages_once else rows_read // BATCH_ROWS)
        try:
            yield session, session.handle
        finally:
            await session.leave()


class ResumableFakeSession(FakeSession):
    """Implements `ResumableSession`."""

    def __init__(self, engine: ResumableFakeEngine) -> None:
        super().__init__(engine)
        self._resumable = engine
        self._is_detached = False
        self._next_page = 0
        self._acknowledged_page = -1

    @property
    def handle(self) -> OperationHandle:
        assert self._operation is not None
        return self._operation.handle

    def resume_token(self, handle: OperationHandle) -> str:
        return f"{handle.token}/{self._next_page}" if self._resumable.pages_once else handle.token

    def detach(self) -> None:
        self._is_detached = True

    async def leave(self) -> None:
        if self._is_detached:
            self._resumable.left[self.handle.token] = self
        else:
            await self.end()

    def go_to(self, page: int) -> None:
        assert self._operation is not None
        if self._resumable.pages_once and page not in {self._acknowledged_page, self._acknowledged_page + 1}:
            raise OutcomeUnknown("Results have expired: the page is gone.")
        self._is_detached = False
        self._next_page = page
        self._operation.sent_rows = page * BATCH_ROWS

    async def batches(self, handle: OperationHandle) -> AsyncIterator[pa.RecordBatch]:
        pages = super().batches(handle)
        while True:
            if self._next_page > 0:
                await self._resumable.go_on.wait()
            self._acknowledged_page = self._next_page
            batch = await anext(pages, None)
            if batch is None:
                return
            self._next_page += 1
            yield batch
