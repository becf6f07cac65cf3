"""Access to stored files and results, with the rights of the user whose statement runs (ADR 76, ADR 78)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias
from uuid import UUID

import pyarrow as pa

from queryserver import errors
from queryserver.engines.external_data import OpenResult
from queryserver.engines.protocol import EngineCapabilities, SessionOptions
from queryserver.files.statement_files import SessionFiles, StatementFileAccess
from queryserver.identity.model import User
from queryserver.statements.grant_repository import ReadSources
from queryserver.statements.model import StatementStatus


class SourcedResult(OpenResult, Protocol):
    """An open result, with the sources of its rows for a statement that reads it."""

    sources: ReadSources

    async def require_whole(self) -> None:
        """Check, without reading the rows, that the store has all of them. Raises ServiceUnavailable."""
        ...

    def tables(self) -> AsyncGenerator[pa.Table]:
        """Yield all rows in order, one piece at a time. Raises ServiceUnavailable, TooManyRequests.

        Before it yields a very large piece, waits until memory for it is available.
        """
        ...


ResultOpener: TypeAlias = Callable[[User, str], AbstractAsyncContextManager[SourcedResult]]
"""Opens the result of an operation. Raises the same errors as `StatementResults.open`."""

ResultWaiter: TypeAlias = Callable[[User, str], Awaitable[StatementStatus]]
"""Waits for the end of an operation, and returns its status. Raises ResultRefused if the user may not read its result.
"""


SourceRecorder: TypeAlias = Callable[[UUID, ReadSources], Awaitable[object]]
"""Records what a statement has read so far."""


@dataclass(slots=True, eq=False)
class SessionReads:
    """Records what the statements of one session read with their user's rights, before they receive the bytes.

    This limits to whom their results may be granted. It applies to all later statements of the session too, because
    they can read the temporary tables of earlier ones (ADR 90).
    """

    record: SourceRecorder | None = None
    sources: ReadSources = field(default_factory=ReadSources)
    _statement: UUID | None = field(default=None, init=False)
    _recording: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def begin(self, statement_id: UUID | None) -> None:
        """Begin a statement of the session."""
        self._statement = statement_id
        if self.sources != ReadSources():
            await self._record(self.sources)

    async def add(self, sources: ReadSources) -> None:
        async with self._recording:
            if (combined := self.sources | sources) != self.sources:
                await self._record(combined)
                self.sources = combined

    async def add_files(self) -> None:
        await self.add(ReadSources(own_rights=True))

    async def _record(self, sources: ReadSources) -> None:
        if self.record is not None and self._statement is not None:
            await self.record(self._statement, sources)


@dataclass(slots=True, eq=False)
class SessionResults:
    """Implements `StatementResults` for one session, whose statements run one after another.

    Usable only inside `acting`.
    """

    opener: ResultOpener
    reads: SessionReads
    _user: User | None = field(default=None, init=False)

    @contextmanager
    def acting(self, user: User) -> Generator[None]:
        """Grant access with the rights of `user` while one of their statements runs."""
        self._user = user
        try:
            yield
        finally:
            self._user = None

    @asynccontextmanager
    async def open(self, operation_id: str) -> AsyncGenerator[OpenResult]:
        if self._user is None:
            raise errors.result_denied("No statement is running that could read results.")
        async with self.opener(self._user, operation_id) as opened:
            await self.reads.add(opened.sources)
            yield opened


@dataclass(frozen=True, slots=True)
class SessionExternalData:
    """The files and results that one session may access. A field is None if the session has no such access."""

    files: SessionFiles | None = None
    results: SessionResults | None = None
    reads: SessionReads | None = None

    def add_to(self, options: SessionOptions) -> SessionOptions:
        """Return the options, with access to these files and results added."""
        return replace(options, files=self.files, results=self.results)

    @asynccontextmanager
    async def acting(
        self, user: User, *, operation_id: str = "", statement_id: UUID | None = None
    ) -> AsyncGenerator[None]:
        """Grant access with the rights of `user` while a statement runs. Audit events contain `operation_id`."""
        async with AsyncExitStack() as stack:
            if self.reads is not None:
                await self.reads.begin(statement_id)
            if self.files is not None:
                await stack.enter_async_context(self.files.acting(user, operation_id=operation_id))
            if self.results is not None:
                stack.enter_context(self.results.acting(user))
            yield


NO_SESSION_EXTERNAL_DATA = SessionExternalData()


@dataclass(frozen=True, slots=True)
class ExternalData:
    """The files and results that sessions may access if their engines support it.

    A field is None if this process offers no such access.
    """

    files: StatementFileAccess | None = None
    open_result: ResultOpener | None = None
    wait_for_result: ResultWaiter | None = None
    record_sources: SourceRecorder | None = None

    def for_session(
        self, capabilities: EngineCapabilities, *, read_only: bool, own_login: bool = False
    ) -> SessionExternalData:
        """Select what one session may access. If `read_only` is set, its statements can never write files.

        `own_login` is set if the session logs in to the data source with the user's own credentials.
        """
        files = results = None
        reads = SessionReads(self.record_sources, ReadSources(own_rights=own_login))
        if self.files is not None and capabilities.reads_files:
            files = self.files.of_session(
                may_write=capabilities.writes_files and not read_only, on_read=reads.add_files
            )
        if self.open_result is not None and capabilities.reads_results:
            results = SessionResults(self.open_result, reads)
        return SessionExternalData(files, results, reads)


NO_EXTERNAL_DATA = ExternalData()
