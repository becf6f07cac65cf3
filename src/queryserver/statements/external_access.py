"""Access to stored files and results, with the rights of the user whose statement runs (ADR 76, ADR 78)."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from queryserver import errors
from queryserver.engines.external_data import OpenResult
from queryserver.engines.protocol import EngineCapabilities, SessionOptions
from queryserver.files.statement_files import SessionFiles, StatementFileAccess
from queryserver.identity.model import User

ResultOpener: TypeAlias = Callable[[User, str], AbstractAsyncContextManager[OpenResult]]
"""Opens the result of an operation. Raises the same errors as `StatementResults.open`."""

ResultWaiter: TypeAlias = Callable[[User, str], Awaitable[object]]
"""Waits until an operation has ended. Raises ResultRefused if the user may not read its result."""


@dataclass(slots=True, eq=False)
class SessionResults:
    """Implements `StatementResults` for one session, whose statements run one after another.

    Usable only inside `acting`.
    """

    opener: ResultOpener
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
            yield opened


@dataclass(frozen=True, slots=True)
class SessionExternalData:
    """The files and results that one session may access. A field is None if the session has no such access."""

    files: SessionFiles | None = None
    results: SessionResults | None = None

    def add_to(self, options: SessionOptions) -> SessionOptions:
        """Return the options, with access to these files and results added."""
        return replace(options, files=self.files, results=self.results)

    @asynccontextmanager
    async def acting(self, user: User, *, operation_id: str = "") -> AsyncGenerator[None]:
        """Grant access with the rights of `user` while a statement runs. Audit events contain `operation_id`."""
        async with AsyncExitStack() as stack:
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

    def for_session(self, capabilities: EngineCapabilities, *, read_only: bool) -> SessionExternalData:
        """Select what one session may access. If `read_only` is set, its statements can never write files."""
        files = results = None
        if self.files is not None and capabilities.reads_files:
            files = self.files.of_session(may_write=capabilities.writes_files and not read_only)
        if self.open_result is not None and capabilities.reads_results:
            results = SessionResults(self.open_result)
        return SessionExternalData(files, results)


NO_EXTERNAL_DATA = ExternalData()
