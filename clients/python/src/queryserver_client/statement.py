"""Submitted statements whose result can be read."""

import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio

from queryserver_client.errors import ApiError, QueryserverError, statement_error
from queryserver_client.exports import (
    Compression,
    CopyIfExists,
    Export,
    ExportFormat,
    IfExists,
    copy_target,
    file_target,
)
from queryserver_client.result import Result
from queryserver_client.submitted import OnLog, OnProgress, SubmittedStatement
from queryserver_client.transport import Sent, Transport

if TYPE_CHECKING:
    from queryserver_client.generated import ResultPage

_ABANDON_WITHIN_S = 15.0
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

    async def submit_export(
        self,
        path: str,
        *,
        format: ExportFormat | None = None,  # noqa: A002
        compression: Compression | None = None,
        guard: bool = False,
        header: bool = True,
        split_rows: int | None = None,
        split_bytes: int | None = None,
        if_exists: IfExists = "error",
        allow_truncated: bool | None = None,
    ) -> "Statement":
        """Start an export without waiting for its end. The arguments are those of `export`."""
        target = file_target(
            path,
            format=format,
            compression=compression,
            guard=guard,
            header=header,
            split_rows=split_rows,
            split_bytes=split_bytes,
            if_exists=if_exists,
            allow_truncated=self._allow_truncated if allow_truncated is None else allow_truncated,
        )
        return await started(self._transport, "editor/export_result", {"operationId": self.operation_id, **target})

    async def export(
        self,
        path: str,
        *,
        format: ExportFormat | None = None,  # noqa: A002
        compression: Compression | None = None,
        guard: bool = False,
        header: bool = True,
        split_rows: int | None = None,
        split_bytes: int | None = None,
        if_exists: IfExists = "error",
        allow_truncated: bool | None = None,
        timeout_s: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
    ) -> Export:
        """Write the result into a file of a store, and wait for completion. The statement may still be running.

        The ending of the name determines format and compression, such as `.csv.gz`. With `split_rows` or `split_bytes`,
        `path` is a folder of part files. Files appear whole or not at all. `if_exists="replace"` replaces a file,
        but not a folder. Canceling the waiting task cancels the export.

        Raises ApiError (`already_exists`, `path_not_found`, …) if the export cannot be started, and StatementError if
        it fails later.
        """
        statement = await self.submit_export(
            path,
            format=format,
            compression=compression,
            guard=guard,
            header=header,
            split_rows=split_rows,
            split_bytes=split_bytes,
            if_exists=if_exists,
            allow_truncated=allow_truncated,
        )
        async with canceling(statement):
            result = await statement.result(timeout_s, on_progress=on_progress, on_log=on_log)
            return Export.of((await result.dicts())[0], statement.operation_id)

    async def copy(
        self,
        target: str | Sequence[str],
        *,
        if_exists: CopyIfExists = "error",
        columns: Sequence[str] | None = None,
        allow_truncated: bool | None = None,
        timeout_s: float | None = None,
        on_progress: OnProgress | None = None,
        on_log: OnLog | None = None,
    ) -> Export:
        """Write the result into a table of any connector, and wait for completion. The statement may still be running.

        The arguments are those of `Connection.copy`, the exceptions those of `export`.
        """
        fields = {"operationId": self.operation_id, **copy_target(target, if_exists, columns)}
        if self._allow_truncated if allow_truncated is None else allow_truncated:
            fields["allow_truncated"] = True
        statement = await started(self._transport, "editor/export_result", fields)
        async with canceling(statement):
            result = await statement.result(timeout_s, on_progress=on_progress, on_log=on_log)
            return Export.of((await result.dicts())[0], statement.operation_id)

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


async def started(
    transport: Transport,
    path: str,
    fields: Mapping[str, Any],
    *,
    allow_truncated: bool = False,
    key: str | None = None,
    is_abandoned: bool = True,
    wait_s: float = 0.0,
) -> Statement:
    """Start a statement with an idempotency key, so that it runs only once even if the request is repeated.

    If `is_abandoned` is set, canceling the task also cancels the statement, because nothing else has its id.
    """
    headers, sent = {"Idempotency-Key": key or str(uuid.uuid4())}, Sent()
    try:
        body, received = await transport.answered(
            "POST", path, fields, headers=headers, is_repeatable=True, wait_s=wait_s, is_held=wait_s > 0, sent=sent
        )
    except anyio.get_cancelled_exc_class():
        if sent.is_ever_possible and is_abandoned:
            await _abandon(transport, path, fields, headers)
        raise
    statement = statement_of(transport, body, allow_truncated=allow_truncated, request_id=received.get("X-Request-Id"))
    unknown = received.get("X-Unknown-Fields", "").replace(",", " ").split()
    named = ("parameters", "parameter_rows", "run_all", "into")
    missing = next((name for name in named if name in fields and name in unknown), None)
    # A single statement does not need run_all.
    if missing is not None and (missing != "run_all" or statement.has_more_statements):
        await statement.abandon()
        raise ApiError(f"this server version does not support {missing}", status=501, code="not_supported")
    return statement


async def _abandon(transport: Transport, path: str, fields: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    """Cancel a statement whose id was not received. A repeated request with the same key returns the id."""
    fields = {name: value for name, value in fields.items() if name != "rows"}
    with anyio.move_on_after(transport.cleanup_s(_ABANDON_WITHIN_S), shield=True):
        # If the server is unreachable, the statement runs until its timeout.
        with suppress(QueryserverError):
            body = await transport.call("POST", path, fields, headers=headers, is_repeatable=True)
            await statement_of(transport, body).abandon()
