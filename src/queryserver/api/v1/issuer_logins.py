"""Logins at the external issuer, with a browser and with a code (Contract platform 3.12, 3.13)."""

from typing import Annotated

from fastapi import Request, Response

from queryserver.api.cookies import LOGIN_COOKIE, cookie_value, set_cookie
from queryserver.api.dependencies import ClientDep, IssuerLoginsDep, NoPublicFields, SettingsDep, public_fields
from queryserver.api.origins import OwnPageDep, root_url
from queryserver.api.responses import json_response
from queryserver.api.routes import PathGroup, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import platform as requests
from queryserver.api.v1.sessions import session_response
from queryserver.identity.issuer_logins import LOGIN_LIFE_S, Callback, DevicePoll
from queryserver.identity.model import RequestInfo
from queryserver.platform.settings.tree import Settings

router = PathGroup("token")

CALLBACK_PATH = "/login/callback"
"""The page of the console to which the issuer sends browsers back."""


@router.post("/token/oidc/begin", response_model=wire.IssuerLoginResponse, responses=failures(403, 501))
async def begin_issuer_login(
    http: Request,
    _client: ClientDep,
    _page: OwnPageDep,
    _body: NoPublicFields,
    logins: IssuerLoginsDep,
    settings: SettingsDep,
) -> Response:
    """Begin a login at the external issuer: the page opens `url`, and a cookie binds the login to this browser.

    Contract platform 3.12.
    """
    redirect_url = settings.desktop.auth.oidc.redirect_url or root_url(http, settings) + CALLBACK_PATH
    begun = await logins.begin(redirect_url)
    response = json_response(wire.IssuerLoginResponse(status=0, url=begun.url))
    set_cookie(response, http, settings, LOGIN_COOKIE, begun.sealed, max_age_s=LOGIN_LIFE_S)
    return response


@router.post("/token/oidc/finish", response_model=wire.SessionResponse, responses=failures(401, 403, 501))
async def finish_issuer_login(
    http: Request,
    client: ClientDep,
    _page: OwnPageDep,
    request: Annotated[requests.FinishIssuerLoginRequest, public_fields(requests.FinishIssuerLoginRequest)],
    logins: IssuerLoginsDep,
    settings: SettingsDep,
) -> Response:
    """Exchange the code with which the issuer sent the browser back for a session, as `token/session` does.

    Contract platform 3.12.
    """
    callback = Callback(request.code, request.state, request.iss)
    pair = await logins.finish(cookie_value(http, LOGIN_COOKIE), callback, RequestInfo(client))
    response = session_response(http, settings, pair.access, pair.refresh, in_cookie=request.remember)
    set_cookie(response, http, settings, LOGIN_COOKIE, "", max_age_s=0)
    return response


@router.post("/token/device/begin", response_model=wire.DeviceLoginResponse, responses=failures(401, 501))
async def begin_device_login(_client: ClientDep, _body: NoPublicFields, logins: IssuerLoginsDep) -> Response:
    """Begin the login of a program: the user opens the address at the issuer and enters the code.

    Contract platform 3.13.
    """
    begun = await logins.begin_device()
    body = wire.DeviceLoginResponse(
        status=0,
        device=begun.sealed,
        user_code=begun.user_code,
        verification_uri=begun.verification_uri,
        verification_uri_complete=begun.verification_uri_complete,
        expires_in=begun.expires_in_s,
        interval=begun.interval_s,
    )
    return json_response(body)


@router.post("/token/device/poll", response_model=wire.DevicePollResponse, responses=failures(401, 501))
async def poll_device_login(
    client: ClientDep,
    request: Annotated[requests.DevicePollRequest, public_fields(requests.DevicePollRequest)],
    logins: IssuerLoginsDep,
    settings: SettingsDep,
) -> Response:
    """Return whether the user has approved the login of the program, and then its tokens. Contract platform 3.13."""
    return json_response(_poll_body(await logins.poll_device(request.device, RequestInfo(client)), settings))


def _poll_body(poll: DevicePoll, settings: Settings) -> wire.DevicePollResponse:
    if poll.pair is None:
        return wire.DevicePollResponse(status=0, state=poll.state.value)
    return wire.DevicePollResponse(
        status=0,
        state=poll.state.value,
        access=poll.pair.access,
        refresh=poll.pair.refresh,
        expires_in=settings.desktop.auth.access_token_lifetime_s,
    )
