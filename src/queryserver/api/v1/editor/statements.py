"""execute in its three forms, and create_notebook."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from uuid import uuid4

import structlog
from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures
from queryserver.api.dependencies import AuthenticatedCall, Call, CallRoute
from queryserver.api.presence import while_connected
from queryserver.api.v1.editor import shapes
from queryserver.api.v1.editor.pages import cell_form, page_answer
from queryserver.domain.errors.base import ServiceUnavailable, TooManyRequests, TooManyStreams
from queryserver.domain.errors.statements import PageRowTooLarge
from queryserver.domain.splitter import PreviousStatement
from queryserver.domain.statement import StatementRecord, StatementStatus
from queryserver.interfaces.statements import Recorded
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import CreateNotebookRequest, ExecuteRequest
from queryserver.services.statements.reading import PageRequest, ResultPage
from queryserver.services.statements.status import parse_operation_id
from queryserver.services.statements.submission import Submission
from queryserver.services.streams import StreamPlace

router = APIRouter(prefix="/api/v1", tags=["editor"], route_class=CallRoute)

log = structlog.get_logger(__name__)

_EXECUTE = failures(400, 403, 404, 409, 413, 415, 429)


@router.post(
    "/editor/create_notebook",
    response_model=wire.NotebookResponse,
    responses=failures(400, 404, 413, 415),
    openapi_extra=accepts(CreateNotebookRequest),
    summary="An empty notebook",
)
@router.post(
    "/query/create_notebook",
    response_model=wire.NotebookResponse,
    responses=failures(400, 404, 413, 415),
    openapi_extra=accepts(CreateNotebookRequest),
    summary="An empty notebook",
)
async def create_notebook(call: AuthenticatedCall) -> Response:
    """A new notebook with a random uuid; nothing is stored. Contract editor 12."""
    asked = await call.read(CreateNotebookRequest)
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


@router.post(
    "/editor/execute",
    response_model=wire.ExecuteResponse | wire.StatementFailure | wire.ErrorBody,
    responses=_EXECUTE,
    openapi_extra=accepts(ExecuteRequest),
    summary="Run a statement on the default or a named connector",
)
async def execute(call: AuthenticatedCall) -> Response:
    """Record one statement and hand it to a runner; answers before it ends. Spec §4, Contract editor 4.1."""
    return await _execute(call, None)


@router.post(
    "/editor/execute/{dialect:name}",
    response_model=wire.ExecuteResponse | wire.StatementFailure | wire.ErrorBody,
    responses=_EXECUTE,
    openapi_extra=accepts(ExecuteRequest),
    summary="Run a statement on a connector",
)
async def execute_on(call: AuthenticatedCall, dialect: str) -> Response:
    """Record a statement for the data source of the path and run it. Spec §4, Contract editor 4.1."""
    return await _execute(call, dialect)


@router.post(
    "/query/{dialect:name}",
    response_model=wire.ExecuteResponse | wire.StatementFailure | wire.ErrorBody,
    responses=_EXECUTE,
    openapi_extra=accepts(ExecuteRequest),
    summary="Run a statement on a connector",
)
async def query(call: AuthenticatedCall, dialect: str) -> Response:
    """Record a statement for the data source of the path and run it. Spec §4, Contract editor 4.1."""
    return await _execute(call, dialect)


async def _execute(call: Call, dialect: str | None) -> Response:
    asked = await call.read(ExecuteRequest)
    submission = _submission(call, asked, dialect)
    recorded = await _submitted(call, submission, wait_s=asked.wait)
    headers = {"Idempotency-Replayed": "true"} if recorded.replayed else {}
    body, status = _executed(recorded.record), recorded.record.status
    page = await _first_page(call, asked, status) if asked.rows and status.has_ended_well else None
    if page is None:
        return answer(body, headers=headers)
    return page_answer(page, cell_form(call, asked), beside=body.model_dump(by_alias=True), headers=headers)


async def _first_page(call: Call, asked: ExecuteRequest, status: StatementStatus) -> ResultPage | None:
    """The first `asked.rows` rows; later fetches go on after them. None: fetch_result_data says why there are none.

    The statement has run: whatever becomes of its rows, the client gets the handle.
    """
    wanted = PageRequest(asked.rows, start_over=True, form=cell_form(call, asked))
    try:
        page = await call.services.reading.page(call.user, status.id, wanted)
    except (PageRowTooLarge, TooManyRequests, ServiceUnavailable) as error:
        log.info("first rows not given", operation_id=str(status.id), code=error.code)
        return None
    return page if page.status.outcome is None else None


async def _submitted(call: Call, submission: Submission, *, wait_s: float) -> Recorded:
    """The statement after `wait_s` at most. Without a place to wait a new one is refused; a replay does not wait."""
    services, user = call.services, call.user
    while_wanted = partial(while_connected, call.request)
    if wait_s <= 0:
        return await services.submissions.submit(user, submission, while_wanted=while_wanted)
    with ExitStack() as places:
        place: StreamPlace | None = None

        def take_place() -> StreamPlace:
            nonlocal place
            place = places.enter_context(services.streams.place(user))
            return place

        recorded = await services.submissions.submit(
            user, submission, before_recording=take_place, while_wanted=while_wanted
        )
        status = recorded.record.status
        try:
            waiting = place or take_place()
        except TooManyStreams:
            return recorded
        await services.following.awaited(status, wait_s, waiting)
        record = await services.following.record(user, status.id)
        return replace(recorded, record=replace(record, status=await services.following.placed(record.status)))


def _submission(call: Call, asked: ExecuteRequest, dialect: str | None) -> Submission:
    continued = parse_operation_id(asked.operation_id) if asked.operation_id else None
    if dialect is not None and not dialect.strip():
        # Only a path without the segment means the default connector.
        raise call.services.connectors.unknown(call.user, dialect)
    named = asked.snippet.dialect or dialect
    previous = asked.previous
    handle = asked.snippet.result.handle
    return Submission(
        connector=named,
        script=asked.script,
        database=asked.current_database,
        session_id=asked.session_for(_names(call, named, has_sessions=bool(asked.notebook.sessions))),
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
    )


def _names(call: Call, named: str | None, *, has_sessions: bool) -> tuple[str, ...]:
    """What a session of the notebook may call the connector."""
    if not has_sessions:
        return ()
    connector = call.services.connectors.resolve(call.user, named)
    return connector.key, connector.dialect, named or ""


def _executed(record: StatementRecord) -> wire.ExecuteResponse | wire.StatementFailure:
    parent = record.parent_uuid or None
    if record.status.outcome is not None:
        return shapes.failure_body(record).model_copy(update={"history_parent_uuid": parent})
    return wire.ExecuteResponse(
        status=0,
        history_id=record.status.history_id,
        history_uuid=str(record.status.id),
        handle=shapes.handle(record),
        query_status=shapes.query_status(record.status),
        history_parent_uuid=parent,
    )
