"""Sessions of web pages, whose refresh token is in a cookie that scripts cannot read (Contract platform 3.11)."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Request, Response

from queryserver.api.cookies import SESSION_COOKIE, cookie_value, set_cookie
from queryserver.api.dependencies import (
    ClientDep,
    IssuerLoginsOrNoneDep,
    LoginsDep,
    NoPublicFields,
    SettingsDep,
    TokensDep,
    unchecked_fields,
)
from queryserver.api.errors import respond
from queryserver.api.origins import OwnPageDep
from queryserver.api.responses import json_response
from queryserver.api.routes import PathGroup, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import platform as requests
from queryserver.api.v1.token import login_fields
from queryserver.errors.base import NotAuthenticated, ServiceUnavailable
from queryserver.identity.callers import bearer_of
from queryserver.identity.model import RequestInfo
from queryserver.platform.settings.tree import Settings

router = PathGroup("token")


@router.get("/token/options", response_model=wire.LoginOptions)
async def get_login_options(_client: ClientDep, tokens: TokensDep, logins: IssuerLoginsOrNoneDep) -> Response:
    """List the ways to log in that this server offers. Contract platform 3.11."""
    issuer = None if logins is None else wire.LoginIssuer(name=logins.name)
    device = logins is not None and logins.has_device_login
    return json_response(wire.LoginOptions(status=0, password=tokens.are_bearers, issuer=issuer, device=device))


@router.post("/token/session", response_model=wire.SessionResponse, responses=failures(401, 403))
async def begin_session(
    http: Request,
    client: ClientDep,
    _page: OwnPageDep,
    form: Annotated[Mapping[str, Any], unchecked_fields(requests.LogInRequest)],
    logins: LoginsDep,
    settings: SettingsDep,
) -> Response:
    """Log in with a password, and keep the refresh token in a cookie. The response has only the access token.

    Contract platform 3.11.
    """
    username, password = login_fields(form)
    pair = await logins.log_in(username, password, RequestInfo(client))
    return session_response(http, settings, pair.access, pair.refresh)


@router.post("/token/session/refresh", response_model=wire.SessionResponse, responses=failures(401, 403))
async def refresh_session(
    http: Request,
    _client: ClientDep,
    _page: OwnPageDep,
    _body: NoPublicFields,
    tokens: TokensDep,
    settings: SettingsDep,
) -> Response:
    """Exchange the refresh token in the cookie for a new access token. Contract platform 3.11.

    A refused cookie is kept: another tab may have replaced it while this call was on its way.
    """
    refresh = cookie_value(http, SESSION_COOKIE)
    if refresh is None:
        raise NotAuthenticated
    renewed = await tokens.refresh(refresh)
    return session_response(http, settings, renewed.access, renewed.refresh)


@router.post("/token/session/end", response_model=wire.SessionEnded, responses=failures(403))
async def end_session(
    http: Request,
    _client: ClientDep,
    _page: OwnPageDep,
    _body: NoPublicFields,
    tokens: TokensDep,
    settings: SettingsDep,
) -> Response:
    """Log out: revoke the tokens of the cookie and of the header `Authorization`, and delete the cookie.

    The cookie is deleted even if its token cannot be revoked now. Contract platform 3.11.
    """
    response: Response
    try:
        for token in _sent_tokens(http):
            await tokens.revoke(token, everything=False)
        response = json_response(wire.SessionEnded(status=0))
    except ServiceUnavailable as error:
        response = respond(http, error, plain=True)
    set_cookie(response, http, settings, SESSION_COOKIE, "", max_age_s=0)
    return response


def session_response(
    http: Request, settings: Settings, access: str, refresh: str | None, *, in_cookie: bool = True
) -> Response:
    """Return an access token, and the refresh token in the cookie, or in the body if `in_cookie` is false.

    `refresh` is None if the cookie of the call remains valid.
    """
    auth = settings.desktop.auth
    body = wire.SessionResponse(status=0, access=access, expires_in=auth.access_token_lifetime_s)
    if refresh is not None and not in_cookie:
        return json_response(body.model_copy(update={"refresh": refresh}))
    response = json_response(body)
    if refresh is not None:
        set_cookie(response, http, settings, SESSION_COOKIE, refresh, max_age_s=auth.refresh_token_lifetime_s)
    return response


def _sent_tokens(http: Request) -> list[str]:
    bearer = None
    with suppress(NotAuthenticated):  # a bad header is ignored, as on every public path
        bearer = bearer_of(http.scope["headers"])
    return [token for token in (cookie_value(http, SESSION_COOKIE), bearer) if token]
