"""The sessions and loaders of one engine whose databases are opened by separate processes."""

import asyncio
from collections.abc import AsyncGenerator, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from queryserver.engines.process.engine_process import EngineProcess
from queryserver.engines.process.loading import ProcessLoader
from queryserver.engines.process.pool import Configuration, EngineProcesses
from queryserver.engines.process.session_requests import SessionRequests
from queryserver.engines.process.sessions import Connection, ProcessSession, connected
from queryserver.engines.protocol import SessionOptions
from queryserver.engines.threaded import NO_USER
from queryserver.errors.statements import EngineUnavailable
from queryserver.platform.fair_queue import FairSemaphore

_LEAST_SHARE = 2
"""Least number of slots that one user may occupy."""

_OPEN_TRIES = 3

OpenedT = TypeVar("OpenedT", ProcessSession, ProcessLoader)


class ProcessConnections:
    """Opens connections; the engine closes this object.

    `file_key` identifies the file that one process opens; with None each user has a process. At most `max_statements`
    run at a time, and at most half of them for one user.
    """

    def __init__(
        self,
        processes: EngineProcesses,
        file_key: Hashable | None,
        configuration: Configuration,
        *,
        max_statements: int,
    ) -> None:
        self._processes = processes
        self._file_key = file_key
        self._configuration = configuration
        share = max(max_statements // 2, min(max_statements, _LEAST_SHARE))
        self._slots = FairSemaphore(max_statements, per_user=share, max_waiting=None, wait_s=None)
        self._open = set[ProcessSession | ProcessLoader]()
        self._is_closed = False

    @property
    def busy(self) -> int:
        """Number of statements that processes are working on."""
        return self._slots.held

    @asynccontextmanager
    async def session(self, user_id: int, options: SessionOptions) -> AsyncGenerator[ProcessSession]:
        """Open a session. Raises EngineUnavailable, StatementRejected, TooManyRequests."""
        async with (
            self._connected(user_id, options) as (connection, takes_rows),
            self._ended(ProcessSession(connection, takes_rows=takes_rows)) as session,
        ):
            yield session

    @asynccontextmanager
    async def loader(self, user_id: int, options: SessionOptions, *, read_only: bool) -> AsyncGenerator[ProcessLoader]:
        """Open a loader. Raises as `session`."""
        async with (
            self._connected(user_id, options, is_loader=True) as (connection, _),
            self._ended(ProcessLoader(connection, read_only=read_only)) as loader,
        ):
            yield loader

    async def ping(self) -> None:
        """Open and close a session. Raises as `session`."""
        async with self.session(NO_USER, SessionOptions()):
            pass

    async def close(self) -> None:
        """Stop running statements and end the sessions. Idempotent."""
        self._is_closed = True
        await asyncio.gather(*(opened.end() for opened in list(self._open)))
        await self._processes.leave(self)

    @asynccontextmanager
    async def _connected(
        self, user_id: int, options: SessionOptions, *, is_loader: bool = False
    ) -> AsyncGenerator[tuple[Connection, bool]]:
        """A connection, and whether it accepts statements with several rows of parameters."""
        if self._is_closed:
            raise EngineUnavailable("The engine is closed.")
        losses = self._processes.losses_of(self, self._file_key)
        losses.require_admitted(user_id)
        async with AsyncExitStack() as stack:
            requests = SessionRequests(files=options.files, results=options.results)
            tries = 1
            while True:
                process = await stack.enter_async_context(self._process(user_id))
                session = connected(
                    process, user_id, options, slots=self._slots, losses=losses, requests=requests,
                    is_loader=is_loader,
                )  # fmt: skip
                try:
                    connection, first = await stack.enter_async_context(session)
                    break
                except EngineUnavailable:
                    # Another session has ended the process before this one began anything.
                    if not process.has_ended or tries == _OPEN_TRIES or self._is_closed:
                        raise
                    tries += 1
                    await stack.aclose()
            yield connection, first.message.get("takes_rows") is True

    def _process(self, user_id: int) -> AbstractAsyncContextManager[EngineProcess]:
        if self._file_key is None:
            return self._processes.of_user(self, user_id, self._configuration)
        return self._processes.of_file(self, self._file_key, self._configuration)

    @asynccontextmanager
    async def _ended(self, opened: OpenedT) -> AsyncGenerator[OpenedT]:
        self._open.add(opened)
        try:
            yield opened
        finally:
            await asyncio.shield(opened.end())
            self._open.discard(opened)
