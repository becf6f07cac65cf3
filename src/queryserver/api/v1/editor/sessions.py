"""create_session and close_session."""

from fastapi import APIRouter, Response

from queryserver.api.answers import accepts, answer, failures, moment
from queryserver.api.dependencies import AuthenticatedCall, CallRoute
from queryserver.interfaces.engine import Credentials
from queryserver.schemas import generated as wire
from queryserver.schemas.requests import CloseSessionRequest, SessionRequest
from queryserver.services import sessions

router = APIRouter(prefix="/api/v1", tags=["editor"], route_class=CallRoute)


@router.post(
    "/editor/create_session",
    response_model=wire.CreateSessionResponse | wire.ErrorBody,
    responses=failures(400, 403, 404, 413, 415, 429),
    openapi_extra=accepts(SessionRequest),
    summary="Open a session",
)
async def create_session(call: AuthenticatedCall) -> Response:
    """Open an engine session that statements can name. Contract editor 9.1."""
    asked = (await call.read(SessionRequest)).session
    opened = await call.services.sessions.create(
        call.user,
        sessions.SessionRequest(
            connector=asked.type,
            properties=asked.shown_properties,
            settings=asked.settings,
            credentials=Credentials(*asked.credentials) if asked.credentials else None,
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


@router.post(
    "/editor/close_session",
    response_model=wire.CloseSessionResponse,
    responses=failures(400, 403, 404, 413, 415),
    openapi_extra=accepts(CloseSessionRequest),
    summary="Close a session",
)
async def close_session(call: AuthenticatedCall) -> Response:
    """Close one session, or all of the caller for a connector. Contract editor 9.2."""
    asked = (await call.read(CloseSessionRequest)).session
    if asked.id is None:
        closed = await call.services.sessions.close_all(call.user, asked.type)
    else:
        closed = await call.services.sessions.close(call.user, asked.id)
    shown = wire.ClosedSession(id=closed.id, application=closed.dialect, status=4) if closed else None
    closure = wire.SessionClosure(status=0, message="Session successfully closed.", session=shown)
    return answer(wire.CloseSessionResponse(status=0, session=closure))
