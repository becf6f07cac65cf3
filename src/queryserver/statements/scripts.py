"""Runs whole scripts, one statement after another (Contract editor 5.5, ADR 70)."""

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
from queryserver.sql.scanner import expects_result_set
from queryserver.sql.statements import Choice, Script, ScriptStatement, is_short, literal_limit, statement_hash
from queryserver.statements.model import Assignment, NewStatement, StatementHandle, effective_row_limit, opaque_token
from queryserver.statements.owned_statements import OwnedStatements
from queryserver.statements.states import LimitSource

T = TypeVar("T")

OPERATION_OWNER = "script"
"""Owner of operation rows, which no process ever claims."""


def require_few_statements(choice: Choice, limits: EditorSettings) -> None:
    """Raise InvalidParameter if too many statements would run in one call."""
    count, maximum = choice.count - choice.index, limits.script_max_statements
    if count > maximum:
        raise InvalidParameter(
            f"run_all: the script has {count} statements to run; at most {maximum} (`editor.script_max_statements`) run"
            " in one call."
        )


def script_operation(first: NewStatement, script: str, choice: Choice) -> tuple[NewStatement, NewStatement | None]:
    """Create a script's operation and its first statement. `first` is the statement that `choice` has selected.

    If only one statement is to run, that statement is itself the operation, and the second value is None.
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
    """Determines the next statement of a script, in the process that runs it. Splits the script text only once."""

    owned: OwnedStatements
    editor: EditorSettings
    is_shared: bool
    """Whether the script's session is shared by statements without a named session."""
    _remaining: Iterator[ScriptStatement] | None = field(default=None, init=False)

    async def next_statement(self, previous: Assignment) -> NewStatement | None:
        """Return the statement after `previous`, or None after the last one.

        Raises DatabaseUnavailable, OperationNotFound.
        """
        operation_id, index = previous.claim.operation_id, previous.statement_index + 1
        if operation_id is None or index >= previous.statements_count:
            return None
        if self._remaining is None:
            script = await self.owned.script(operation_id)
            cut = await _in_thread_if_long(script, lambda: Script(script, previous.dialect))
            self._remaining = islice(cut, index, None)
        statement = next(self._remaining)
        return await _in_thread_if_long(statement.text, lambda: self._new(previous, index, statement))

    def _new(self, previous: Assignment, index: int, statement: ScriptStatement) -> NewStatement:
        text, is_last = statement.text, index == previous.statements_count - 1
        limit = previous.row_limit if previous.limit_source is LimitSource.CALLER else None
        row_limit, limit_source = effective_row_limit(self.editor, limit, literal_limit(text, previous.dialect))
        parameters, count = None, 0
        if previous.parameters is not None:
            before = previous.parameters.before + _count_markers(previous.statement, previous)
            parameters, count = StatementParameters(previous.parameters.values, before), _count_markers(text, previous)
        start, end = statement.start, statement.end
        return NewStatement(
            id=uuid4(),
            user_id=previous.user_id,
            connector=previous.connector,
            dialect=previous.dialect,
            handle=StatementHandle(
                statement=text,
                statement_index=index,
                statements_count=previous.statements_count,
                position=(start.row, start.column, end.row, end.column),
                statement_hash=statement_hash(text),
                guid=opaque_token(),
                secret=opaque_token(),
                session_id=previous.session_id,
                session_guid=previous.session_guid,
            ),
            row_limit=row_limit,
            limit_source=limit_source,
            timeout=timedelta(seconds=max(math.ceil(previous.ends_at - time.monotonic()), 0)),
            has_result_set=expects_result_set(text, previous.dialect),
            owner=previous.claim.owner,
            limits=self.editor,
            idempotency=None,
            database=previous.database,
            settings=previous.settings,
            in_history=False,
            in_named_session=previous.in_named_session,
            keeps_session=self.is_shared or not (is_last or previous.in_named_session),
            token=previous.token,
            api_token=previous.api_token,
            parameters=parameters,
            parameter_count=count,
            operation_id=previous.claim.operation_id,
            needs_session=True,
            read_only=previous.read_only,
            traceparent=previous.traceparent,
            max_estimated_bytes=previous.max_estimated_bytes,
        )


def _count_markers(text: str, assignment: Assignment) -> int:
    named = assignment.parameters is not None and assignment.parameters.values.are_named
    return sum(1 for marker in find_markers(text, assignment.dialect, named=named) if not marker.is_literal)


async def _in_thread_if_long(text: str, call: Callable[[], T]) -> T:
    """Make the call. If the text is long, make it in a thread."""
    return call() if is_short(text) else await asyncio.to_thread(call)
