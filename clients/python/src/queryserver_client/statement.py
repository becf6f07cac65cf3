"""Submitted statements whose result can be read."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from queryserver_client.errors import statement_error
from queryserver_client.result import Result
from queryserver_client.submitted import OnLog, OnProgress, SubmittedStatement
from queryserver_client.transport import Transport

if TYPE_CHECKING:
    from queryserver_client.generated import ResultPage

FIRST_ROWS = 1000
"""Number of rows in the response that reports the end of a statement."""


class Statement(SubmittedStatement):
    """A statement created by `Connection.submit` or `Connection.statement`."""

    def __init__(
        self,
        transport: Transport,
        operation_id: str,
        *,
        body: Mapping[str, Any] | None = None,
        allow_truncated: bool = False,
        request_id: str | None = None,
    ) -> None:
        super().__init__(transport, operation_id, body=body, request_id=request_id)
        self._allow_truncated = allow_truncated
        self._first: ResultPage | None = (body or {}).get("result")

    async def result(
        self,
        timeout_s: float | None = None,
        *,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
        allow_truncated: bool | None = None,
    ) -> Result:
        """Wait for the end and return the result. Meanwhile, pass progress to `on_progress`, and log lines to `on_log`.

        Raises StatementError if the statement did not succeed, and WaitTimeout.
        """
        if on_progress is not None or on_log is not None:
            await self.report(timeout_s, on_progress=on_progress, on_log=on_log)
        status = await self.wait(timeout_s)
        if status.error is not None:
            raise status.error
        first = self._first
        if first is None and status.state == "available":
            first = await self.fetch(0, FIRST_ROWS)
        allowed = self._allow_truncated if allow_truncated is None else allow_truncated
        return Result(self, status, self._transport, first, allow_truncated=allowed)


@asynccontextmanager
async def canceling(statement: Statement) -> AsyncGenerator[None, None]:
    """Cancel the statement if the block raises or, if the statement has already ended, delete its result."""
    try:
        yield
    except BaseException:
        await statement.abandon()
        raise


def statement_of(
    transport: Transport, body: Mapping[str, Any], *, allow_truncated: bool = False, request_id: str | None = None
) -> Statement:
    """Create a statement from the response of execute. Raises StatementError if no statement was recorded."""
    if not body.get("history_uuid"):
        raise statement_error(body, request_id=request_id)
    return Statement(
        transport, str(body["history_uuid"]), body=body, allow_truncated=allow_truncated, request_id=request_id
    )
