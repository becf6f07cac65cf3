"""Calls of the platform part: who calls, then whether that is enough, then the body (Contract platform 1.1)."""

from typing import Annotated

from fastapi import Depends, Request
from starlette.types import Receive, Scope, Send

from queryserver.api.dependencies import Call, CallRoute, authenticated, query_fields, read_body, services_of
from queryserver.api.errors import respond
from queryserver.domain.errors.base import QueryServerError, admin_required


async def platform_call(request: Request) -> Call:
    """An authenticated call with the body limit of the platform part."""
    return await _call(request, admins_only=False)


async def admin_call(request: Request) -> Call:
    """The call of an administrator. Raises admin_required before the body is looked at."""
    return await _call(request, admins_only=True)


async def _call(request: Request, *, admins_only: bool) -> Call:
    services = services_of(request)
    user = await authenticated(request)
    if admins_only and not user.is_admin:
        raise admin_required("You must be an administrator.")
    if request.method in {"GET", "HEAD"}:
        return Call(request, services, user, query_fields(request))
    max_bytes = services.settings.limits.max_body_bytes
    return Call(request, services, user, await read_body(request, max_bytes=max_bytes, user_id=user.id))


class PlatformRoute(CallRoute):
    """See CallRoute; for any authenticated user. The `status` of failures is -1 (Contract platform 1.4)."""

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super()._serve(scope, receive, send)
        except QueryServerError as error:
            await respond(Request(scope), error, plain=True)(scope, receive, send)

    async def call(self, request: Request) -> object:
        """See CallRoute."""
        return await platform_call(request)


class AdminRoute(PlatformRoute):
    """See PlatformRoute; for administrators."""

    async def call(self, request: Request) -> object:
        """See CallRoute."""
        return await admin_call(request)


PlatformCall = Annotated[Call, Depends(platform_call)]
"""One authenticated call; for endpoints of a PlatformRoute."""

AdminCall = Annotated[Call, Depends(admin_call)]
"""The call of an administrator; for endpoints of an AdminRoute."""
