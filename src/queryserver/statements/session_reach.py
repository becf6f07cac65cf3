"""What the statements of an engine session reach beside their data source, each with the rights of its caller."""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from queryserver import errors
from queryserver.engines.protocol import EngineCapabilities, SessionOptions
from queryserver.engines.reach import OpenResult
from queryserver.files.statement_files import SessionFiles, StatementFileAccess
from queryserver.identity.model import User

ResultOpener: TypeAlias = Callable[[User, str], AbstractAsyncContextManager[OpenResult]]
"""Opens the result of an operation; raises as `StatementResults.open`."""


@dataclass(slots=True, eq=False)
class SessionResults:
    """`StatementResults` of one session. Its statements run one after another; outside of them nothing is read."""

    opener: ResultOpener
    _user: User | None = field(default=None, init=False)

    @contextmanager
    def acting(self, user: User) -> Generator[None]:
        """Inside, a statement of `user` runs."""
        self._user = user
        try:
            yield
        finally:
            self._user = None

    @asynccontextmanager
    async def open(self, operation_id: str) -> AsyncGenerator[OpenResult]:
        if self._user is None:
            raise errors.result_denied("No statement runs that could read results.")
        async with self.opener(self._user, operation_id) as opened:
            yield opened


@dataclass(frozen=True, slots=True)
class SessionReach:
    """Files and results of one session; None: its engine reads none."""

    files: SessionFiles | None = None
    results: SessionResults | None = None

    def given_to(self, options: SessionOptions) -> SessionOptions:
        """The options of the session, with what it reaches."""
        return replace(options, files=self.files, results=self.results)

    @asynccontextmanager
    async def acting(self, user: User, *, operation_id: str = "") -> AsyncGenerator[None]:
        """Inside, a statement of `user` runs, with the rights of this user. `operation_id`: for its audit events."""
        async with AsyncExitStack() as stack:
            if self.files is not None:
                await stack.enter_async_context(self.files.acting(user, operation_id=operation_id))
            if self.results is not None:
                stack.enter_context(self.results.acting(user))
            yield


NOTHING_REACHED = SessionReach()


@dataclass(frozen=True, slots=True)
class Reach:
    """What sessions may reach at all, where their engines can; None: there is none of it here."""

    files: StatementFileAccess | None = None
    open_result: ResultOpener | None = None

    def of_session(self, capabilities: EngineCapabilities, *, read_only: bool) -> SessionReach:
        """For one session. `read_only`: its statements write no files, whatever the engine can."""
        files = results = None
        if self.files is not None and capabilities.reads_files:
            files = self.files.of_session(may_write=capabilities.writes_files and not read_only)
        if self.open_result is not None and capabilities.reads_results:
            results = SessionResults(self.open_result)
        return SessionReach(files, results)


NO_REACH = Reach()
