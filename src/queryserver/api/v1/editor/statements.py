"""Calls for statements (execute, cancel, close, explain, format), sessions, notebooks and the history."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

import structlog
from fastapi import Request, Response

from queryserver import errors
from queryserver.api.dependencies import (
    ConnectorsDep,
    FormattingDep,
    PlansDep,
    ReadUser,
    SessionsDep,
    StatementAccessDep,
    StatementControlDep,
    StatementHistoryDep,
    dependency,
    editor_fields,
    services_of,
)
from queryserver.api.responses import epoch_milliseconds, json_response, utc_text, while_connected
from queryserver.api.routes import editor_group, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import editor as requests
from queryserver.api.v1.editor.status import (
    cell_form,
    error_position,
    failure_body,
    failure_details,
    handle_body,
    page_response,
    query_status,
    requested_operation_id,
    reuse_fields,
    time_fields,
)
from queryserver.catalog.plans import PlanRequest, StatementPlan
from queryserver.connectors.registry import Connectors
from queryserver.documents.documents import Documents
from queryserver.documents.model import Runnable
from queryserver.engines.estimates import CostEstimate
from queryserver.engines.protocol import Credentials
from queryserver.exports.build import ExportServices
from queryserver.identity.limits import Streams, StreamSlot
from queryserver.identity.model import Scope, User
from queryserver.platform.settings.tree import Settings
from queryserver.platform.text import read_traceparent
from queryserver.sql.parameters import Parameters, read_parameters
from queryserver.sql.statements import PreviousStatement
from queryserver.statements.model import HistoryEntry, RecordedStatement, StatementRecord, StatementStatus
from queryserver.statements.result_reader import PageRequest, ResultPage, ResultReader
from queryserver.statements.sessions import NewSession
from queryserver.statements.states import ACTIVE, StatementState
from queryserver.statements.status import HistoryQuery, StatementReader, parse_operation_id
from queryserver.statements.submission import Submission, Submissions, remaining_statements_warning
from queryserver.tasks.notifications import Recipients

_STATES_WITH_RESULT = {StatementState.AVAILABLE, StatementState.SUCCESS}
"""States in which a result exists. In state `success`, the result is an empty table."""

log = structlog.get_logger(__name__)

router = editor_group()
# Registered last: its path ends with the name of any connector, which also matches other calls below the same path.
query_router = editor_group()


@dataclass(frozen=True, slots=True)
class Execution:
    """Executes the statement of one execute call."""

    http: Request
    settings: Settings
    connectors: Connectors
    submissions: Submissions
    reader: StatementReader
    results: ResultReader
    streams: Streams
    recipients: Recipients
    exports: ExportServices
    documents: Documents

    async def run(self, user: User, request: requests.ExecuteRequest, dialect: str | None) -> Response:
        """Execute the statement and return the response of `execute`.

        `dialect` comes from the path, and is None if the path has no such segment.
        """
        document = None
        if request.script is None and request.document is not None:
            document = await self.documents.runnable(user, request.document, request.parameters)
        destination = request.destination()
        if destination is not None and not user.has_scope(Scope.QUERY):
            raise errors.InsufficientScope(Scope.QUERY)
        target = None if destination is None else self.exports.target(user, destination)
        submission = replace(
            self._submission(user, request, dialect, document),
            parameters=await _values(request) if document is None else document.parameters,
            destination=None if target is None else target.stored(),
        )
        if request.notify is not None:
            await self.recipients.require_url(request.notify.url, "notify.url")
        check = None if target is None else partial(target.check, user)
        recorded = await self._submitted(user, submission, wait_s=request.wait, check_destination=check)
        if document is not None and not recorded.is_replay:
            self.documents.record_run(user, document, recorded.record.status.id)
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
        """Return the first rows, or None if they cannot be read now. fetch_result_data then returns the reason.

        An error is not raised here, because the statement has been recorded and the client must receive its handle.
        """
        form = cell_form(user, self.settings, request.escape, request.big_numbers)
        try:
            page = await self.results.page(user, status.id, PageRequest(request.rows, start_over=True, form=form))
        except (errors.PageRowTooLarge, errors.TooManyRequests, errors.ServiceUnavailable) as error:
            log.info("first rows could not be returned", operation_id=str(status.id), code=error.code)
            return None
        return page if page.status.outcome is None else None

    async def _submitted(
        self,
        user: User,
        submission: Submission,
        *,
        wait_s: float,
        check_destination: Callable[[], Awaitable[object]] | None,
    ) -> RecordedStatement:
        """Submit the statement and wait up to `wait_s` for its end.

        If the caller has no free stream slot for waiting, a new statement is rejected with TooManyStreams, while a
        replay returns without waiting.
        """
        submit = partial(
            self.submissions.submit,
            user,
            replace(submission, waits_for_end=wait_s > 0),
            check_destination=check_destination,
            choice_scope=partial(while_connected, self.http),
        )
        if wait_s <= 0:
            return await submit()
        with ExitStack() as slots:
            slot: StreamSlot | None = None

            def take_slot() -> StreamSlot:
                nonlocal slot
                slot = slots.enter_context(self.streams.slot(user))
                return slot

            recorded = await submit(before_recording=take_slot)
            status = recorded.record.status
            try:
                waiting = slot or take_slot()
            except errors.TooManyStreams:
                return recorded
            status = await self.reader.wait_for_end(status, wait_s, waiting)
            if not status.state.is_terminal:
                await self.submissions.make_durable(status.id)
            status = await self.reader.with_queue_position(status)
            if status.outcome is not None:
                status = await self.reader.with_failure(status)
            return replace(recorded, record=replace(recorded.record, status=status))

    def _submission(
        self, user: User, request: requests.ExecuteRequest, dialect: str | None, document: Runnable | None
    ) -> Submission:
        script = request.script if document is None else document.statement
        continued = parse_operation_id(request.operation_id) if request.operation_id else None
        if dialect is not None and not dialect.strip():
            # An empty segment is an error. Only a path without this segment selects the default connector.
            raise self.connectors.unknown(user, dialect)
        named = request.snippet.dialect or dialect
        if named is None and document is not None and document.connector is not None:
            # Never another connector of a dialect with the same name, if this one no longer exists.
            named = self.connectors.exact(user, document.connector).key
        previous = request.previous
        handle = request.snippet.result.handle
        names: tuple[str, ...] = ()  # names under which the notebook's sessions may refer to the connector
        if request.notebook.sessions:
            connector = self.connectors.resolve(user, named)
            names = (connector.key, connector.dialect, named or "")
        return Submission(
            connector=named,
            script=script,
            database=request.current_database or (document.database if document else None),
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
            parent_uuid=str(document.uuid) if document else request.notebook.saved_uuid or "",
            notify_url=request.notify.url if request.notify else None,
            run_all=request.run_all,
            max_age_s=request.max_age_s,
            read_only=request.read_only,
            max_estimated_bytes=request.max_estimated_bytes,
            traceparent=read_traceparent(self.http.headers.get("traceparent")),
        )


async def _values(request: requests.ExecuteRequest) -> Parameters | None:
    """Return the parameter values of a call without `document`. Raises InvalidParameter, conflicting_parameters."""
    if request.parameter_rows is None:
        return request.values
    return await asyncio.to_thread(lambda: request.values)  # parsing 10,000 rows of values takes 0.1 s


def _execute_body(record: StatementRecord) -> wire.ExecuteResponse | wire.StatementFailure:
    parent, handle, status = record.parent_uuid or None, record.handle, record.status
    warning = remaining_statements_warning(handle.statement_index, handle.statements_count)
    if status.outcome is not None:
        body = failure_body(status, failure_details(status))
        return body.model_copy(update={"history_parent_uuid": parent, "warning": warning})
    return wire.ExecuteResponse(
        status=0,
        history_id=status.history_id,
        history_uuid=str(status.id),
        handle=handle_body(handle, status),
        query_status=query_status(status),
        history_parent_uuid=parent,
        warning=warning,
    )


async def execution(http: Request) -> Execution:
    # The services are not dependencies of their own, because resolving eight dependencies takes seven times as long as
    # resolving one (docs/benchmarks.md).
    services = services_of(http)
    statements = services.statements
    return Execution(
        http,
        services.settings,
        services.connectors,
        statements.submissions,
        statements.reader,
        statements.result_reader,
        services.streams,
        services.scheduling.recipients,
        services.exporting,
        services.documents,
    )


ExecutionDep = Annotated[Execution, dependency(execution)]


@router.post("/notebook/api/create_notebook", include_in_schema=False)
@router.post("/api/v1/editor/create_notebook", response_model=wire.NotebookResponse, responses=failures(404))
@router.post(
    "/api/v1/query/create_notebook",
    name="create_query_notebook",
    response_model=wire.NotebookResponse,
    responses=failures(404),
)
async def create_notebook(
    user: ReadUser,
    request: Annotated[requests.CreateNotebookRequest, editor_fields(requests.CreateNotebookRequest)],
    connectors: ConnectorsDep,
) -> Response:
    """Return an empty notebook with a random UUID. The notebook is not stored. Contract editor 12."""
    kind, name = "notebook", "My Notebook"
    if request.type and request.type != "notebook":
        dialect = connectors.resolve(user, request.type.removeprefix("query-")).dialect
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
        directoryUuid=request.directory_uuid,
    )
    return json_response(wire.NotebookResponse(status=0, notebook=notebook))


_Executed = wire.ExecuteResponse | wire.StatementFailure | wire.ErrorBody
_ExecuteRequest = Annotated[requests.ExecuteRequest, editor_fields(requests.ExecuteRequest)]


@router.post("/notebook/api/execute", include_in_schema=False)
@router.post("/api/v1/editor/execute", response_model=_Executed, responses=failures(403, 404, 409, 501))
async def execute(user: ReadUser, request: _ExecuteRequest, execution: ExecutionDep) -> Response:
    """Record and start a statement, or a whole script if `run_all` is set.

    By default, the response does not wait for the end of the statement. If `wait` is set, the response is sent when the
    statement ends, or after that many seconds. Spec §4, Contract editor 4.1, 5.5.
    """
    return await execution.run(user, request, None)


@router.post("/notebook/api/execute/{dialect:name}", include_in_schema=False)
@router.post("/api/v1/editor/execute/{dialect:name}", response_model=_Executed, responses=failures(403, 409, 501))
@query_router.post(
    "/api/v1/query/{dialect:name}", name="query_on", response_model=_Executed, responses=failures(403, 409, 501)
)
async def execute_on(dialect: str, user: ReadUser, request: _ExecuteRequest, execution: ExecutionDep) -> Response:
    """Record and start a statement, or a whole script if `run_all` is set.

    By default, the response does not wait for the end of the statement. If `wait` is set, the response is sent when the
    statement ends, or after that many seconds. Spec §4, Contract editor 4.1, 5.5.
    """
    return await execution.run(user, request, dialect)


@router.post("/notebook/api/cancel_statement", include_in_schema=False)
@router.post("/api/v1/editor/cancel_statement", response_model=wire.CancelResponse, responses=failures(403, 404))
async def cancel_statement(
    user: ReadUser,
    request: Annotated[requests.EndRequest, editor_fields(requests.EndRequest)],
    access: StatementAccessDep,
    control: StatementControlDep,
) -> Response:
    """Cancel a statement on the engine, and wait up to `editor.cancel_wait_s` seconds for confirmation.

    Contract editor 7.2.
    """
    operation_id = await requested_operation_id(access, user, request)
    status = await control.cancel(user, operation_id)
    return json_response(
        wire.CancelResponse(status=0, result=wire.ActionResult(status=0), query_status=query_status(status))
    )


@router.post("/notebook/api/close_statement", include_in_schema=False)
@router.post("/api/v1/editor/close_statement", response_model=wire.CloseResponse, responses=failures(403, 404))
async def close_statement(
    user: ReadUser,
    request: Annotated[requests.EndRequest, editor_fields(requests.EndRequest)],
    access: StatementAccessDep,
    control: StatementControlDep,
) -> Response:
    """Delete the result of a statement. If the statement has not ended, cancel it first.

    The log and the history entry are kept. Contract editor 7.3.
    """
    operation_id = await requested_operation_id(access, user, request)
    before = await control.close(user, operation_id)
    closed = before in ACTIVE or before is StatementState.AVAILABLE
    message = "Query already expired." if before is StatementState.EXPIRED else "Query closed."
    return json_response(
        wire.CloseResponse(status=0, result=wire.ActionResult(status=0 if closed else -1), message=message)
    )


_ExplainRequest = Annotated[requests.ExplainRequest, editor_fields(requests.ExplainRequest)]
_Explained = wire.ExplainResponse | wire.ExplainFailure | wire.ErrorBody


@router.post("/api/v1/editor/explain", response_model=_Explained, responses=failures(403, 404, 501))
async def explain(http: Request, user: ReadUser, request: _ExplainRequest, plans: PlansDep) -> Response:
    """Return the plan of the first statement of a script. The statement is not run. Contract editor 8.3."""
    return await _explain_response(http, plans.explain(user, _plan_request(request, None)))


@router.post("/api/v1/editor/explain/{dialect:name}", response_model=_Explained, responses=failures(403, 501))
async def explain_on(
    http: Request, dialect: str, user: ReadUser, request: _ExplainRequest, connectors: ConnectorsDep, plans: PlansDep
) -> Response:
    """Return the plan of the first statement of a script. The statement is not run. Contract editor 8.3."""
    if not dialect.strip():
        raise connectors.unknown(user, dialect)
    return await _explain_response(http, plans.explain(user, _plan_request(request, dialect)))


def _plan_request(request: requests.ExplainRequest, dialect: str | None) -> PlanRequest:
    parameters = read_parameters(request.parameters) if request.parameters is not None else None
    named = request.snippet.dialect or dialect
    return PlanRequest(named, request.script, request.current_database, request.session_id, parameters)


async def _explain_response(http: Request, explaining: Coroutine[Any, Any, StatementPlan]) -> Response:
    explained = await while_connected(http, explaining)
    refusal = explained.refusal
    if refusal is None:
        estimate = explained.estimate or CostEstimate()
        shown = wire.ExplainResponse(
            status=0,
            explanation=explained.plan,
            statement=explained.statement,
            estimated_bytes=estimate.scanned_bytes,
            estimated_cost=estimate.cost,
        )
        return json_response(shown)
    return json_response(
        wire.ExplainFailure(
            status=1,
            code=refusal.code,
            message=refusal.message,
            statement=explained.statement,
            **error_position(refusal.position),
        )
    )


@router.post("/api/v1/editor/format", response_model=wire.FormatResponse)
async def format_statements(
    http: Request,
    user: ReadUser,
    request: Annotated[requests.FormatRequest, editor_fields(requests.FormatRequest)],
    formatting: FormattingDep,
) -> Response:
    """Format a script, with keywords in upper case and clauses on separate lines. Contract editor 8.4."""
    formatted = await while_connected(http, formatting.format_script(user.id, request.script, request.dialect))
    return json_response(wire.FormatResponse(status=0, formatted_statements=formatted))


@router.get("/notebook/api/get_history", include_in_schema=False)
@router.get("/api/v1/editor/get_history", response_model=wire.HistoryResponse)
async def get_history(
    user: ReadUser,
    request: Annotated[requests.HistoryParameters, editor_fields(requests.HistoryParameters)],
    history: StatementHistoryDep,
) -> Response:
    """List the caller's statements, newest first. Spec §4, Contract editor 11."""
    count, entries = 0, list[HistoryEntry]()
    if not request.is_notification_manager:
        count, entries = await history.page(
            user,
            HistoryQuery(
                doc_type=request.doc_type,
                text=request.doc_text,
                connector=request.doc_connector,
                is_active=request.is_active,
                page=request.page,
                limit=request.limit,
            ),
        )
    shown = [_entry(one) for one in entries]
    return json_response(wire.HistoryResponse(status=0, count=count, message="History fetched", history=shown))


def _entry(entry: HistoryEntry) -> wire.HistoryEntry:
    return wire.HistoryEntry(
        name="",
        id=entry.history_id,
        uuid=str(entry.id),
        type=f"query-{entry.dialect}",
        data=wire.HistoryData(
            statement=entry.statement,
            lastExecuted=epoch_milliseconds(entry.times.submitted),
            status=entry.state.wire_status,
            parentSavedQueryUuid=entry.parent_uuid,
            state=entry.state.value,
            message=entry.message,
            connector=entry.connector,
            database=entry.database or "",
            rows=entry.rows,
            parameters=entry.parameter_count,
            **time_fields(entry),
            **reuse_fields(entry),
            **error_position(entry.error_position),
        ),
        absoluteUrl=f"/editor?editor={entry.history_id}",
    )


@router.post("/notebook/api/create_session", include_in_schema=False)
@router.post(
    "/api/v1/editor/create_session",
    response_model=wire.CreateSessionResponse | wire.ErrorBody,
    responses=failures(403, 404),
)
async def create_session(
    user: ReadUser,
    request: Annotated[requests.SessionRequest, editor_fields(requests.SessionRequest)],
    sessions: SessionsDep,
) -> Response:
    """Open an engine session for later statements. Contract editor 9.1."""
    wanted = request.session
    opened = await sessions.create(
        user,
        NewSession(
            connector=wanted.type,
            properties=wanted.shown_properties,
            settings=wanted.settings,
            credentials=Credentials(*wanted.credentials) if wanted.credentials else None,
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
        expires_at=utc_text(opened.last_used_at + opened.idle),
    )
    return json_response(wire.CreateSessionResponse(status=0, session=session))


@router.post("/notebook/api/close_session", include_in_schema=False)
@router.post("/api/v1/editor/close_session", response_model=wire.CloseSessionResponse, responses=failures(403, 404))
async def close_session(
    user: ReadUser,
    request: Annotated[requests.CloseSessionRequest, editor_fields(requests.CloseSessionRequest)],
    sessions: SessionsDep,
) -> Response:
    """Close a session, or all of the caller's sessions on a connector. Contract editor 9.2."""
    if request.session.id is None:
        closed = await sessions.close_all(user, request.session.type)
    else:
        closed = await sessions.close(user, request.session.id)
    shown = wire.ClosedSession(id=closed.id, application=closed.dialect, status=4) if closed else None
    closure = wire.SessionClosure(status=0, message="Session successfully closed.", session=shown)
    return json_response(wire.CloseSessionResponse(status=0, session=closure))
