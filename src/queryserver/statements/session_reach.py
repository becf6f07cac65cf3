"""The files and results that statements of a session may read, each with the rights of its caller."""

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
    """`StatementResults` of one session, whose statements run one after another. Usable only inside `acting`."""

    opener: ResultOpener
    _user: User | None = field(default=None, init=False)

    @contextmanager
    def acting(self, user: User) -> Generator[None]:
        """Give access with the rights of `user` while one of their statements runs."""
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
    """The files and results of one session; None if its engine cannot read them."""

    files: SessionFiles | None = None
    results: SessionResults | None = None

    def given_to(self, options: SessionOptions) -> SessionOptions:
        """The options of the session, with access to its files and results."""
        return replace(options, files=self.files, results=self.results)

    @asynccontextmanager
    async def acting(self, user: User, *, operation_id: str = "") -> AsyncGenerator[None]:
        """Give access with the rights of `user` while a statement runs. `operation_id` is for its audit events."""
        async with AsyncExitStack() as stack:
            if self.files is not None:
                await stack.enter_async_context(self.files.acting(user, operation_id=operation_id))
            if self.results is not None:
                stack.enter_context(self.results.acting(user))
            yield


NOTHING_REACHED = SessionReach()


@dataclass(frozen=True, slots=True)
class Reach:
    """The files and results that sessions may access if their engines can; None if this process has none."""

    files: StatementFileAccess | None = None
    open_result: ResultOpener | None = None

    def of_session(self, capabilities: EngineCapabilities, *, read_only: bool) -> SessionReach:
        """The access of one session. With `read_only`, its statements can never write files."""
        files = results = None
        if self.files is not None and capabilities.reads_files:
            files = self.files.of_session(may_write=capabilities.writes_files and not read_only)
        if self.open_result is not None and capabilities.reads_results:
            results = SessionResults(self.open_result)
        return SessionReach(files, results)


NO_REACH = Reach()
