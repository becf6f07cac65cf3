"""Calls that grant results to users and groups, and open granted results (Contract sharing)."""

from typing import Annotated, Any

from fastapi import Response

from queryserver.api.dependencies import (
    NoEditorFields,
    QueryUser,
    ReadUser,
    ResultReaderDep,
    SharesDep,
    StatementAccessDep,
    StatementReaderDep,
    editor_fields,
)
from queryserver.api.responses import json_response, model_from, utc_text
from queryserver.api.routes import editor_group, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import shares as requests
from queryserver.api.v1.editor.status import column_meta, failure_response, query_status, requested_operation_id
from queryserver.statements.grant_repository import Grant, Grantee
from queryserver.statements.grants import NewGrant, ResultGrants
from queryserver.statements.model import StatementStatus
from queryserver.statements.states import StatementState
from queryserver.statements.status import parse_operation_id

router = editor_group()


@router.post(
    "/api/v1/editor/share_result",
    response_model=wire.SharesResponse | wire.ErrorBody,
    responses=failures(403, 404, 409),
)
async def share_result(
    user: QueryUser,
    request: Annotated[requests.ShareRequest, editor_fields(requests.ShareRequest)],
    access: StatementAccessDep,
    shares: SharesDep,
) -> Response:
    """Grant the caller's result to users and groups, who may then read it until the grant ends.

    Changes existing grants of the same users and groups. Contract sharing 2.1.
    """
    operation_id = await requested_operation_id(access, user, request)
    new = NewGrant(request.users, request.groups, request.until, request.title)
    return _shares(await shares.share(user, operation_id, new))


@router.post("/api/v1/editor/revoke_share", response_model=wire.SharesResponse, responses=failures(403, 404))
async def revoke_share(
    user: QueryUser,
    request: Annotated[requests.RevokeShareRequest, editor_fields(requests.RevokeShareRequest)],
    access: StatementAccessDep,
    shares: SharesDep,
) -> Response:
    """Revoke the grants of a result to users and groups, or all its grants if the call names none.

    Reading ends within seconds, including downloads that are running. Contract sharing 2.2.
    """
    operation_id = await requested_operation_id(access, user, request)
    return _shares(await shares.revoke(user, operation_id, request.users, request.groups))


@router.get("/api/v1/editor/shares/{operation_id:name}", response_model=wire.SharesResponse, responses=failures(403))
async def get_shares(operation_id: str, user: ReadUser, _: NoEditorFields, shares: SharesDep) -> Response:
    """List the users and groups to whom a result is granted. Contract sharing 2.3."""
    return _shares(await shares.of_operation(user, parse_operation_id(operation_id)))


@router.get("/api/v1/editor/shared_with_me", response_model=wire.SharedWithMeResponse, responses=failures(403))
async def shared_with_me(
    user: ReadUser,
    request: Annotated[requests.SharedParameters, editor_fields(requests.SharedParameters)],
    shares: SharesDep,
) -> Response:
    """List the results that other users have granted to the caller, newest grant first. Contract sharing 2.4."""
    count, found = await shares.received(user, page=request.page, limit=request.limit)
    shown = [wire.SharedResultEntry(**_shared(grant, status)) for grant, status in found]
    return json_response(wire.SharedWithMeResponse(status=0, count=count, results=shown))


@router.get(
    "/api/v1/editor/results/{operation_id:name}",
    response_model=wire.SharedResultResponse | wire.StatementFailure,
    responses=failures(403),
)
async def open_shared_result(
    operation_id: str,
    user: ReadUser,
    _: NoEditorFields,
    shares: SharesDep,
    reader: StatementReaderDep,
    results: ResultReaderDep,
) -> Response:
    """Open the link of a result: who shared it, until when, its status and its columns.

    The owner may open it too. Contract sharing 2.5.
    """
    found = await shares.open(user, parse_operation_id(operation_id))
    if found.status.outcome is not None:
        return await failure_response(reader, found.status)
    columns = found.columns
    if found.status.is_script:  # its result is that of its last statement
        columns = (await results.overview(user, found.status.id))[1]
    body = wire.SharedResultResponse(
        status=0,
        operationId=str(found.status.id),
        title=found.grant.title if found.grant else "",
        shared_by=found.grant.shared_by if found.grant else user.username,
        until=utc_text(found.grant.valid_until) if found.grant else None,
        query_status=query_status(found.status),
        meta=column_meta(columns),
    )
    return json_response(body)


def result_link(status: StatementStatus) -> str:
    return f"/api/v1/editor/results/{status.id}"


def _shares(found: ResultGrants) -> Response:
    return json_response(
        wire.SharesResponse(
            status=0,
            operationId=str(found.status.id),
            link=result_link(found.status),
            share_results=found.sharing.value,
            expires_at=_expiry(found.status),
            changed=found.changed,
            shares=[_grantee(one) for one in found.grantees],
        )
    )


def _grantee(grantee: Grantee) -> wire.Share:
    return model_from(wire.Share, grantee, until=utc_text(grantee.valid_until), shared_at=utc_text(grantee.granted_at))


def _shared(grant: Grant, status: StatementStatus) -> dict[str, Any]:
    return {
        "operationId": str(status.id),
        "link": result_link(status),
        "title": grant.title,
        "shared_by": grant.shared_by,
        "shared_at": utc_text(grant.granted_at),
        "until": utc_text(grant.valid_until),
        "type": status.dialect,
        "state": status.state.value,
        "rows": status.rows,
        "submitted": utc_text(status.times.submitted),
        "expires_at": _expiry(status),
    }


def _expiry(status: StatementStatus) -> str | None:
    return utc_text(status.expires_at) if status.state is StatementState.AVAILABLE else None
