"""Statements: execute in its three forms, cancel, close, explain, format, history, sessions and notebooks."""

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from uuid import uuid4

import structlog
from fastapi import Response

from queryserver import errors
from queryserver.api.answers import answer, milliseconds, moment, while_connected
from queryserver.api.bodies import Call
from queryserver.api.calls import PathGroup
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas import requests
from queryserver.api.v1.editor import results
from queryserver.catalog.explaining import PlanRequest
from queryserver.engines.protocol import Credentials
from queryserver.identity.limits import StreamPlace
from queryserver.sql.parameters import read_parameters
from queryserver.sql.splitter import PreviousStatement
from queryserver.statements.model import HistoryEntry, RecordedStatement, StatementRecord, StatementStatus
from queryserver.statements.paging import PageRequest, ResultPage
from queryserver.statements.scripts import warning_of
from queryserver.statements.sessions import NewSession
from queryserver.statements.states import ACTIVE, StatementState
from queryserver.statements.status import HistoryQuery, parse_operation_id
from queryserver.statements.submission import Submission

router = PathGroup()

_WITH_ROWS = {StatementState.AVAILABLE, StatementState.SUCCESS}
"""The result still exists; that of `success` is an empty table."""

log = structlog.get_logger(__name__)


@router.operation("create_query_notebook", "create_notebook")
async def create_notebook(call: Call) -> Response:
    """A new notebook with a random uuid; nothing is stored. Contract editor 12."""
    asked = await call.read(requests.CreateNotebookRequest)
    kind, name = "notebook", "My Notebook"
    if asked.type and asked.type != "notebook":
        dialect = call.services.connectors.resolve(call.user, asked.type.removeprefix("query-")).dialect
        kind, name = f"query-{dialect}", ""
    notebook = wire.Notebook(
        name=name,
        uuid=str(uuid4()),
        description="",
        type=kind,
        isSaved=False,
        isManaged=False,
        skipHistorify=False,
        sessions=[],
        snippets=[],
        directoryUuid=asked.directory_uuid,
    )
    return answer(wire.NotebookResponse(status=0, notebook=notebook))


@router.operation("execute", "execute_on", "query_on")
async def execute(call: Call, dialect: str | None = None) -> Response:
    """Record one statement, or with `run_all` a script, and hand it to a runner; answers before it ends.

    Spec §4, Contract editor 4.1, 5.5.
    """
    asked = await call.read(requests.ExecuteRequest)
    # 10,000 rows of values take 0.1 s.
    values = asked.values if asked.parameter_rows is None else await asyncio.to_thread(lambda: asked.values)
    submission = replace(_submission(call, asked, dialect), parameters=values)
    if asked.notify is not None:
        await call.services.scheduling.recipients.require_url(asked.notify.url, "notify.url")
    recorded = await _submitted(call, submission, wait_s=asked.wait)
    headers = {"Idempotency-Replayed": "true"} if recorded.replayed else {}
    body, status = _executed(recorded.record), recorded.record.status
    page = await _first_page(call, asked, status) if asked.rows and status.state in _WITH_ROWS else None
    if page is None:
        return answer(body, headers=headers)
    return results.page_answer(
        page,
        results.cell_form(call, asked.escape, asked.big_numbers),
        beside=body.model_dump(by_alias=True),
        headers=headers,
    )


async def _first_page(call: Call, asked: requests.ExecuteRequest, status: StatementStatus) -> ResultPage | None:
    """The first rows; None: fetch_result_data answers why. The statement has run: the client gets its handle anyway."""
    wanted = PageRequest(asked.rows, start_over=True, form=results.cell_form(call, asked.escape, asked.big_numbers))
    try:
        page = await call.services.statements.result_reader.page(call.user, status.id, wanted)
    except (errors.PageRowTooLarge, errors.TooManyRequests, errors.ServiceUnavailable) as error:
        log.info("first rows not given", operation_id=str(status.id), code=error.code)
        return None
    return page if page.status.outcome is None else None


async def _submitted(call: Call, submission: Submission, *, wait_s: float) -> RecordedStatement:
    """The statement after `wait_s` at most. Without a place to wait a new one is refused; a replay does not wait."""
    services, user = call.services, call.user
    while_wanted = partial(while_connected, call.request)
    if wait_s <= 0:
        return await services.statements.submissions.submit(user, submission, while_wanted=while_wanted)
    with ExitStack() as places:
        place: StreamPlace | None = None

        def take_place() -> StreamPlace:
            nonlocal place
            place = places.enter_context(services.streams.place(user))
            return place

        recorded = await services.statements.submissions.submit(
            user, submission, before_recording=take_place, while_wanted=while_wanted
        )
        status = recorded.record.status
        try:
            waiting = place or take_place()
        except errors.TooManyStreams:
            return recorded
        reader = services.statements.reader
        status = await reader.wait_for_end(status, wait_s, waiting)
        status = await reader.with_queue_position(status)
        if status.outcome is not None:
            status = await reader.with_failure(status)
        return replace(recorded, record=replace(recorded.record, status=status))


def _submission(call: Call, asked: requests.ExecuteRequest, dialect: str | None) -> Submission:
    script = asked.script
    continued = parse_operation_id(asked.operation_id) if asked.operation_id else None
    if dialect is not None and not dialect.strip():
        # Only a path without the segment means the default connector.
        raise call.services.connectors.unknown(call.user, dialect)
    named = asked.snippet.dialect or dialect
    previous = asked.previous
    handle = asked.snippet.result.handle
    names: tuple[str, ...] = ()  # of the connector in sessions of the notebook
    if asked.notebook.sessions:
        connector = call.services.connectors.resolve(call.user, named)
        names = (connector.key, connector.dialect, named or "")
    return Submission(
        connector=named,
        script=script,
        database=asked.current_database,
        session_id=asked.session_for(names),
        continued=continued,
        previous=PreviousStatement(
            previous.statement_id, previous.has_more_statements, previous.previous_statement_hash
        )
        if previous
        else None,
        previous_guid=handle.guid if handle and continued is None else None,
        timeout_s=asked.timeout,
        limit=asked.limit,
        settings=asked.settings,
        idempotency_key=asked.idempotency_key(call.request.headers.get("idempotency-key")),
        in_history=not asked.notebook.hides_history,
        parent_uuid=asked.notebook.saved_uuid or "",
        notify_url=asked.notify.url if asked.notify else None,
        run_all=asked.run_all,
    )


def _executed(record: StatementRecord) -> wire.ExecuteResponse | wire.StatementFailure:
    parent, handle, status = record.parent_uuid or None, record.handle, record.status
    warning = warning_of(handle.statement_index, handle.statements_count)
    if status.outcome is not None:
        body = results.failure_body(status, results.details_of(status))
        return body.model_copy(update={"history_parent_uuid": parent, "warning": warning})
    return wire.ExecuteResponse(
        status=0,
        history_id=status.history_id,
        history_uuid=str(status.id),
        handle=results.shown_handle(handle, status),
        query_status=results.query_status(status),
        history_parent_uuid=parent,
        warning=warning,
    )


@router.operation("cancel_statement")
async def cancel_statement(call: Call) -> Response:
    """Stop the work at the engine and wait a while for its confirmation. Contract editor 7.2."""
    operation_id = await results.operation_of(call, await call.read(requests.EndRequest))
    status = await call.services.statements.control.cancel(call.user, operation_id)
    return answer(
        wire.CancelResponse(status=0, result=wire.ActionResult(status=0), query_status=results.query_status(status))
    )


@router.operation("close_statement")
async def close_statement(call: Call) -> Response:
    """Delete the result, or stop the statement; logs and history stay. Contract editor 7.3."""
    operation_id = await results.operation_of(call, await call.read(requests.EndRequest))
    before = await call.services.statements.control.close(call.user, operation_id)
    closed = before in ACTIVE or before is StatementState.AVAILABLE
    message = "Query already expired." if before is StatementState.EXPIRED else "Query closed."
    return answer(wire.CloseResponse(status=0, result=wire.ActionResult(status=0 if closed else -1), message=message))


@router.operation("explain", "explain_on")
async def explain(call: Call, dialect: str | None = None) -> Response:
    """The plan of the first statement, which is not run, on the default or a named connector. Contract editor 8.3."""
    if dialect is not None and not dialect.strip():
        raise call.services.connectors.unknown(call.user, dialect)
    asked = await call.read(requests.ExplainRequest)
    named = asked.snippet.dialect or dialect
    parameters = read_parameters(asked.parameters) if asked.parameters is not None else None
    wanted = PlanRequest(named, asked.script, asked.current_database, asked.session_id, parameters)
    explained = await while_connected(call.request, call.services.metadata.explanations.explain(call.user, wanted))
    refusal = explained.refusal
    if refusal is None:
        return answer(wire.ExplainResponse(status=0, explanation=explained.plan, statement=explained.statement))
    return answer(
        wire.ExplainFailure(
            status=1,
            code=refusal.code,
            message=refusal.message,
            statement=explained.statement,
            **results.error_place(refusal.position),
        )
    )


@router.operation("format_statements")
async def format_statements(call: Call) -> Response:
    """Keywords in upper case, clauses on lines of their own; nothing else changes. Contract editor 8.4."""
    asked = await call.read(requests.FormatRequest)
    formatting = call.services.statements.formatting.format_script(call.user.id, asked.script, asked.dialect)
    laid_out = await while_connected(call.request, formatting)
    return answer(wire.FormatResponse(status=0, formatted_statements=laid_out))


@router.operation("get_history")
async def get_history(call: Call) -> Response:
    """The caller's own operations, newest first. Spec §4, Contract editor 11."""
    asked = await call.read(requests.HistoryParameters)
    count, entries = 0, []
    if not asked.is_notification_manager:
        count, entries = await call.services.statements.history.page(
            call.user,
            HistoryQuery(
                doc_type=asked.doc_type,
                text=asked.doc_text,
                connector=asked.doc_connector,
                is_active=asked.is_active,
                page=asked.page,
                limit=asked.limit,
            ),
        )
    shown = [_entry(one) for one in entries]
    return answer(wire.HistoryResponse(status=0, count=count, message="History fetched", history=shown))


def _entry(entry: HistoryEntry) -> wire.HistoryEntry:
    return wire.HistoryEntry(
        name="",
        id=entry.history_id,
        uuid=str(entry.id),
        type=f"query-{entry.dialect}",
        data=wire.HistoryData(
            statement=entry.statement,
            lastExecuted=milliseconds(entry.times.submitted),
            status=entry.state.wire_status,
            parentSavedQueryUuid=entry.parent_uuid,
            state=entry.state.value,
            message=entry.message,
            database=entry.database or "",
            rows=entry.rows,
            parameters=entry.parameter_count,
            **results.shown_times(entry),
            **results.error_place(entry.error_position),
        ),
        absoluteUrl=f"/editor?editor={entry.history_id}",
    )


@router.operation("create_session")
async def create_session(call: Call) -> Response:
    """Open an engine session that statements can name. Contract editor 9.1."""
    request = await call.read(requests.SessionRequest)
    asked = request.session
    opened = await call.services.statements.sessions.create(
        call.user,
        NewSession(
            connector=asked.type,
            properties=asked.shown_properties,
            settings=asked.settings,
            credentials=Credentials(*asked.credentials) if asked.credentials else None,
            database=request.database or None,
        ),
    )
    session = wire.Session(
        type=opened.dialect,
        id=opened.id,
        session_id=opened.guid,
        properties=[dict(one) for one in opened.properties],
        configuration=dict(opened.settings),
        reuse_session=False,
        http_addr=None,
        expires_at=moment(opened.last_used_at + opened.idle),
    )
    return answer(wire.CreateSessionResponse(status=0, session=session))


@router.operation("close_session")
async def close_session(call: Call) -> Response:
    """Close one session, or all of the caller for a connector. Contract editor 9.2."""
    asked = (await call.read(requests.CloseSessionRequest)).session
    if asked.id is None:
        closed = await call.services.statements.sessions.close_all(call.user, asked.type)
    else:
        closed = await call.services.statements.sessions.close(call.user, asked.id)
    shown = wire.ClosedSession(id=closed.id, application=closed.dialect, status=4) if closed else None
    closure = wire.SessionClosure(status=0, message="Session successfully closed.", session=shown)
    return answer(wire.CloseSessionResponse(status=0, session=closure))
