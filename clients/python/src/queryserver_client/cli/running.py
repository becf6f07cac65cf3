"""Runs the statements of a script one after another, and shows their progress to the user."""

import sys
from collections.abc import Callable, Generator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from queryserver_client.cli.failures import place_of, report, visible
from queryserver_client.errors import QueryserverError, StatementError

if TYPE_CHECKING:
    from queryserver_client.encoding import Parameters
    from queryserver_client.sync import Connection, Result


@dataclass(frozen=True)
class Settings:
    """Settings for all statements of a command."""

    connector: str
    database: str | None = None
    limit: int | None = None
    timeout: float | None = None
    max_age: int | None = None
    read_only: bool = False
    max_estimated_bytes: int | None = None
    is_kept: bool = False
    """Whether results are kept on the server."""


class StatementFailed(Exception):
    """A StatementError that has been printed."""


def results(
    db: "Connection",
    settings: Settings,
    text: str,
    parameters: "Parameters | None" = None,
    *,
    session_id: int | None = None,
) -> "Generator[Result, None, None]":
    """Yield the result of each statement of a script. The caller must close the generator.

    Unless `is_kept` is set, a result is deleted on the server when the next one is requested. With `max_age`, it is
    kept, too, so that it can answer later calls.

    Ctrl-C cancels the running statement on the engine. Raises StatementFailed.
    """

    def first(**callbacks: Any) -> "Result":
        return db.query(
            settings.connector,
            text,
            parameters,
            database=settings.database if session_id is None else None,  # USE may have changed the session's database
            session_id=session_id,
            limit=settings.limit,
            timeout=settings.timeout,
            max_age=settings.max_age,
            read_only=settings.read_only,
            max_estimated_bytes=settings.max_estimated_bytes,
            allow_truncated=True,
            run_all=False,
            **callbacks,
        )

    result = _waited(db, first)
    while True:
        with nullcontext(result) if settings.is_kept or settings.max_age else result:
            yield result
            if not result.core.statement.has_more_statements:
                return
            result = _waited(db, _next(db, result))


def _next(db: "Connection", before: "Result") -> "Callable[..., Result]":
    """Return a function that runs the next statement of the script. If it is interrupted, the statement is canceled."""
    from queryserver_client.statement import canceling  # noqa: PLC0415
    from queryserver_client.sync import Result  # noqa: PLC0415

    async def run(**callbacks: Any) -> Any:
        statement = await db.core.next(before.core.statement)
        async with canceling(statement):
            return await statement.result(allow_truncated=True, **callbacks)

    def call(**callbacks: Any) -> "Result":
        return Result(db.loop, db.loop.run(lambda: run(**callbacks)))

    return call


def _waited(db: "Connection", call: "Callable[..., Result]") -> "Result":
    try:
        if not sys.stderr.isatty():
            return call()  # without callbacks, a small result takes a single request
        from queryserver_client.cli.terminal import ProgressLine  # noqa: PLC0415

        waiting = ProgressLine()
        with waiting.shown():
            return call(on_progress=waiting.on_progress)
    except StatementError as error:
        report(error, "" if error.line is None else _place(db, error))
        raise StatementFailed from error


def _place(db: "Connection", error: StatementError) -> str:
    """Return the line with the error; empty if it cannot be determined.

    The response of check_status includes the statement and its position in the script.
    """
    transport, fields = db.core.transport, {"operationId": error.operation_id}
    try:
        body = db.loop.run(lambda: transport.call("POST", "editor/check_status", fields, is_repeatable=True))
    except QueryserverError:
        return ""
    handle = body.get("handle") or {}
    return place_of(error, str(handle.get("statement", "")), int((handle.get("start") or {}).get("row", 0)) + 1)


def summary(result: "Result") -> str:
    """Return the summary line of a finished statement: the number of rows returned or changed."""
    if not result.has_rows:
        changed = result.modified_row_count
        return "done" if changed is None else f"done, {changed:,} {_rows(changed)} changed"
    return f"{result.row_count:,} {_rows(result.row_count)}"


def truncation(result: "Result") -> str:
    """Return why the server truncated the result; empty if it is complete or only the requested `limit` applied."""
    status = result.status
    return visible(status.message) if status.truncated_by not in (None, "limit") else ""


def _rows(count: int) -> str:
    return "row" if count == 1 else "rows"
