"""Executes a statement: interprets the request, waits for the end, and reads the first rows."""

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import structlog
from fastapi import Depends, Request, Response

from queryserver import errors
from queryserver.api.responses import json_response, while_connected
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import editor as requests
from queryserver.api.service_dependencies import (
    ConnectorsDep,
    RecipientsDep,
    ResultReaderDep,
    SettingsDep,
    StatementReaderDep,
    StreamsDep,
    SubmissionsDep,
)
from queryserver.api.v1.editor import shapes
from queryserver.api.v1.editor.shapes import cell_form, page_response
from queryserver.connectors.registry import Connectors
from queryserver.identity.limits import Streams, StreamSlot
from queryserver.identity.model import User
from queryserver.platform.settings.tree import Settings
from queryserver.sql.statements import PreviousStatement
from queryserver.statements.model import RecordedStatement, StatementRecord, StatementStatus
from queryserver.statements.result_reader import PageRequest, ResultPage, ResultReader
from queryserver.statements.states import StatementState
from queryserver.statements.status import StatementReader, parse_operation_id
from queryserver.statements.submission import Submission, Submissions, remaining_statements_warning
from queryserver.tasks.mail import Recipients

_STATES_WITH_RESULT = {StatementState.AVAILABLE, StatementState.SUCCESS}
"""States in which a result exists; in state `success`, it is an empty table."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Execution:
    """Executes the statement of one call."""

    http: Request
    settings: Settings
    connectors: Connectors
    submissions: Submissions
    reader: StatementReader
    results: ResultReader
    streams: Streams
    recipients: Recipients

    async def run(self, user: User, request: requests.ExecuteRequest, dialect: str | None) -> Response:
        """Execute the statement and return the response of `execute`.

        `dialect` comes from the path; None if the path has no such segment.
        """
        # In a thread, because parsing 10,000 rows of values takes 0.1 s.
        values = request.values if request.parameter_rows is None else await asyncio.to_thread(lambda: request.values)
        submission = replace(self._submission(user, request, dialect), parameters=values)
        if request.notify is not None:
            await self.recipients.require_url(request.notify.url, "notify.url")
        recorded = await self._submitted(user, submission, wait_s=request.wait)
        headers = {"Idempotency-Replayed": "true"} if recorded.is_replay else {}
        body, status = _execute_body(recorded.record), recorded.record.status
        page = (
            await self._first_page(user, request, status)
            if request.rows and status.state in _STATES_WITH_RESULT
            else None
        )
        if page is None:
            return json_response(body, headers=headers)
        form = cell_form(user, self.settings, request.escape, request.big_numbers)
        return page_response(page, form, other_fields=body.model_dump(by_alias=True), headers=headers)

    async def _first_page(
        self, user: User, request: requests.ExecuteRequest, status: StatementStatus
    ) -> ResultPage | None:
        """Return the first rows; None if they cannot be read now, in which case fetch_result_data returns the reason.

        An error is not raised here, because the statement has been recorded and the client must receive its handle.
        """
        form = cell_form(user, self.settings, request.escape, request.big_numbers)
        try:
            page = await self.results.page(user, status.id, PageRequest(request.rows, start_over=True, form=form))
        except (errors.PageRowTooLarge, errors.TooManyRequests, errors.ServiceUnavailable) as error:
            log.info("first rows not returned", operation_id=str(status.id), code=error.code)
            return None
        return page if page.status.outcome is None else None

    async def _submitted(self, user: User, submission: Submission, *, wait_s: float) -> RecordedStatement:
        """Submit the statement and wait up to `wait_s` for its end.

        If the caller has no free stream slot for waiting, a new statement is rejected with TooManyStreams, while a
        replay returns without waiting.
        """
        while_wanted = partial(while_connected, self.http)
        if wait_s <= 0:
            return await self.submissions.submit(user, submission, choice_scope=while_wanted)
        with ExitStack() as slots:
            slot: StreamSlot | None = None

            def take_slot() -> StreamSlot:
                nonlocal slot
                slot = slots.enter_context(self.streams.slot(user))
                return slot

            recorded = await self.submissions.submit(
                user, submission, before_recording=take_slot, choice_scope=while_wanted
            )
            status = recorded.record.status
            try:
                waiting = slot or take_slot()
            except errors.TooManyStreams:
                return recorded
            status = await self.reader.wait_for_end(status, wait_s, waiting)
            status = await self.reader.with_queue_position(status)
            if status.outcome is not None:
                status = await self.reader.with_failure(status)
            return replace(recorded, record=replace(recorded.record, status=status))

    def _submission(self, user: User, request: requests.ExecuteRequest, dialect: str | None) -> Submission:
        script = request.script
        continued = parse_operation_id(request.operation_id) if request.operation_id else None
        if dialect is not None and not dialect.strip():
            # An empty segment is an error; only a path without this segment selects the default connector.
            raise self.connectors.unknown(user, dialect)
        named = request.snippet.dialect or dialect
        previous = request.previous
        handle = request.snippet.result.handle
        names: tuple[str, ...] = ()  # names under which the notebook's sessions may refer to the connector
        if request.notebook.sessions:
            connector = self.connectors.resolve(user, named)
            names = (connector.key, connector.dialect, named or "")
        return Submission(
            connector=named,
            script=script,
            database=request.current_database,
            session_id=request.session_for(names),
            previous_id=continued,
            previous=PreviousStatement(
                previous.statement_id, previous.has_more_statements, previous.previous_statement_hash
            )
            if previous
            else None,
            previous_guid=handle.guid if handle and continued is None else None,
            timeout_s=request.timeout,
            limit=request.limit,
            settings=request.settings,
            idempotency_key=request.idempotency_key(self.http.headers.get("idempotency-key")),
            in_history=not request.notebook.hides_history,
            parent_uuid=request.notebook.saved_uuid or "",
            notify_url=request.notify.url if request.notify else None,
            run_all=request.run_all,
        )


def _execute_body(record: StatementRecord) -> wire.ExecuteResponse | wire.StatementFailure:
    parent, handle, status = record.parent_uuid or None, record.handle, record.status
    warning = remaining_statements_warning(handle.statement_index, handle.statements_count)
    if status.outcome is not None:
        body = shapes.failure_body(status, shapes.failure_details(status))
        return body.model_copy(update={"history_parent_uuid": parent, "warning": warning})
    return wire.ExecuteResponse(
        status=0,
        history_id=status.history_id,
        history_uuid=str(status.id),
        handle=shapes.handle_body(handle, status),
        query_status=shapes.query_status(status),
        history_parent_uuid=parent,
        warning=warning,
    )


async def execution(
    http: Request,
    settings: SettingsDep,
    connectors: ConnectorsDep,
    submissions: SubmissionsDep,
    reader: StatementReaderDep,
    results: ResultReaderDep,
    streams: StreamsDep,
    recipients: RecipientsDep,
) -> Execution:
    return Execution(http, settings, connectors, submissions, reader, results, streams, recipients)


ExecutionDep = Annotated[Execution, Depends(execution)]
