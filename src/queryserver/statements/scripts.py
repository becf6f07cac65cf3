"""The statements of a script whose statements all run, one after the other (Contract editor 5.5, ADR 70)."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import islice
from typing import TypeVar
from uuid import uuid4

from queryserver.errors.base import InvalidParameter
from queryserver.platform.settings.editor import EditorSettings
from queryserver.sql.markers import StatementParameters, find_markers
from queryserver.sql.splitter import Choice, Script, ScriptStatement, is_short, literal_limit, statement_hash
from queryserver.sql.splitter_scan import expects_result_set
from queryserver.statements.assignments import Assignment
from queryserver.statements.leases import StatementLeases
from queryserver.statements.logbook import Logbook
from queryserver.statements.model import NewStatement, StatementHandle, kept_rows, opaque_token
from queryserver.statements.truncation import LimitSource

T = TypeVar("T")

OPERATION_OWNER = "script"
"""Owner of the rows of operations: no process claims them."""


def warning_of(index: int, count: int) -> str | None:
    """The warning for a script of which one statement runs; None for the last one."""
    if index == count - 1:
        return None
    return (
        f"Only statement {index + 1} of {count} of this script is run. Continue with operationId, or execute the script"
        " with run_all=true."
    )


def require_short(choice: Choice, limits: EditorSettings) -> None:
    """Raises InvalidParameter when too many statements would run in one call."""
    left, most = choice.count - choice.index, limits.script_max_statements
    if left > most:
        raise InvalidParameter(
            f"run_all: the script has {left} statements to run; at most {most} (`editor.script_max_statements`) run in"
            " one call."
        )


def operation_of(first: NewStatement, script: str, choice: Choice) -> tuple[NewStatement, NewStatement | None]:
    """The operation that clients follow, and the first of its statements; `choice` is that of `first`.

    Of a script with one statement the operation is that statement.
    """
    last, handle = choice.last, first.handle
    if last is None or choice.count == 1:
        return replace(first, runs_all=True), None
    operation = replace(
        first,
        handle=replace(
            handle,
            statement=script,
            statement_index=handle.statements_count - 1,
            position=(*handle.position[:2], last.end.row, last.end.column),
            statement_hash=last.hash,
        ),
        script=None,
        script_id=None,
        has_result_set=last.has_result_set,
        owner=OPERATION_OWNER,
        keeps_session=False,
        token=None,
        parameter_count=choice.markers.total,
        runs_all=True,
        is_script=True,
    )
    part = replace(
        first,
        id=uuid4(),
        handle=replace(handle, guid=opaque_token(), secret=opaque_token()),
        script=None,
        script_id=None,
        in_history=False,
        parent_uuid="",
        idempotency=None,
        notify=None,
        operation_id=operation.id,
    )
    return operation, part


@dataclass(slots=True, eq=False)
class ScriptRun:
    """What follows a statement of a script in the process that runs it: its text is cut once."""

    leases: StatementLeases
    editor: EditorSettings
    is_shared: bool
    """Its session is one that statements without a named session share."""
    log: Logbook | None = None
    """All statements of the script write into one."""
    _left: Iterator[ScriptStatement] | None = field(default=None, init=False)

    async def next_statement(self, done: Assignment) -> NewStatement | None:
        """The statement after `done`; None: that was the last one. Raises DatabaseUnavailable, OperationNotFound."""
        operation_id, index = done.lease.operation_id, done.statement_index + 1
        if operation_id is None or index >= done.statements_count:
            return None
        if self._left is None:
            script = await self.leases.script(operation_id)
            cut = await _off_loop(script, lambda: Script(script, done.dialect))
            self._left = islice(cut, index, None)
        statement = next(self._left)
        return await _off_loop(statement.text, lambda: self._new(done, index, statement))

    def _new(self, done: Assignment, index: int, statement: ScriptStatement) -> NewStatement:
        text, is_last = statement.text, index == done.statements_count - 1
        limit = done.row_limit if done.limit_source is LimitSource.CALLER else None
        row_limit, limit_source = kept_rows(self.editor, limit, literal_limit(text, done.dialect))
        parameters, count = None, 0
        if done.parameters is not None:
            before = done.parameters.before + _places(done.statement, done)
            parameters, count = StatementParameters(done.parameters.values, before), _places(text, done)
        start, end = statement.start, statement.end
        return NewStatement(
            id=uuid4(),
            user_id=done.user_id,
            connector=done.connector,
            dialect=done.dialect,
            handle=StatementHandle(
                statement=text,
                statement_index=index,
                statements_count=done.statements_count,
                position=(start.row, start.column, end.row, end.column),
                statement_hash=statement_hash(text),
                guid=opaque_token(),
                secret=opaque_token(),
                session_id=done.session_id,
                session_guid=done.session_guid,
            ),
            row_limit=row_limit,
            limit_source=limit_source,
            timeout=timedelta(seconds=max(math.ceil(done.ends_at - time.monotonic()), 0)),
            has_result_set=expects_result_set(text, done.dialect),
            owner=done.lease.owner,
            limits=self.editor,
            idempotency=None,
            database=done.database,
            settings=done.settings,
            in_history=False,
            in_named_session=done.in_named_session,
            keeps_session=self.is_shared or not (is_last or done.in_named_session),
            token=done.token,
            api_token=done.api_token,
            parameters=parameters,
            parameter_count=count,
            operation_id=done.lease.operation_id,
            needs_session=True,
        )


def _places(text: str, of: Assignment) -> int:
    named = of.parameters is not None and of.parameters.values.are_named
    return sum(1 for place in find_markers(text, of.dialect, named=named) if not place.is_literal)


async def _off_loop(text: str, call: Callable[[], T]) -> T:
    """The result of the call, which runs in a thread if the text is long."""
    return call() if is_short(text) else await asyncio.to_thread(call)
