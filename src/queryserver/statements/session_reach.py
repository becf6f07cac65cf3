"""What the statements of an engine session reach beside their data source, each with the rights of its caller."""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from queryserver import errors
from queryserver.engines.reach import OpenResult
from queryserver.identity.model import User

ResultOpener: TypeAlias = Callable[[User, str, int | None], AbstractAsyncContextManager[OpenResult]]
"""Opens the result of an operation, or of that statement of a script; raises as `StatementResults.open`."""


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
    async def open(self, operation_id: str, *, statement_id: int | None = None) -> AsyncGenerator[OpenResult]:
        if self._user is None:
            raise errors.result_denied("No statement runs that could read results.")
        async with self.opener(self._user, operation_id, statement_id) as opened:
            yield opened
