"""Tokens: login, check, renewal, end (Contract platform 3)."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from queryserver.api.answers import accepts, answer
from queryserver.api.client_address import client_address
from queryserver.api.dependencies import Fields, ServicesOf
from queryserver.api.v1.token_fields import TokenFields
from queryserver.domain.errors.base import NotAuthenticated
from queryserver.interfaces.auth import RequestInfo
from queryserver.schemas import generated as wire
from queryserver.schemas import requests
from queryserver.services.bearers import bearer_token

router = APIRouter(prefix="/api/v1/token", tags=["token"])

_MOST_NAME_CHARACTERS = 150
_MOST_PASSWORD_BYTES = 1024


def _failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    every: dict[int, dict[str, Any]] = {
        400: {"model": wire.FieldErrors, "description": "Fields are missing or wrong."},
        401: {"model": wire.Unauthorized, "description": "Not accepted."},
        413: {"model": wire.ErrorBody, "description": "The body is too large."},
        415: {"model": wire.ErrorBody, "description": "This content type is not read."},
        429: {"model": wire.ErrorBody, "description": "Too many failed logins."},
        503: {"model": wire.ErrorBody, "description": "Something that the service needs is out of reach."},
    }
    return {status: every[status] for status in (400, 401, 413, 415, 503, *statuses)}


@router.post(
    "/auth",
    response_model=wire.TokenPair,
    responses=_failures(429),
    openapi_extra=accepts(requests.LogInRequest),
    summary="Log in",
)
async def auth(request: Request, fields: Fields, services: ServicesOf) -> Response:
    """A token pair for a name and a password. Contract platform 3.2."""
    read = TokenFields(fields)
    username = read.text("username", most_characters=_MOST_NAME_CHARACTERS, trimmed=True)
    password = read.text("password", most_bytes=_MOST_PASSWORD_BYTES)
    read.require_good()
    client = client_address(request, services.settings.desktop.trusted_proxies)
    pair = await services.accounts.logins.log_in(username, password, RequestInfo(client))
    return answer(wire.TokenPair(refresh=pair.refresh, access=pair.access))


@router.post(
    "/verify",
    response_model=wire.TokenVerifyResponse,
    responses=_failures(),
    openapi_extra=accepts(requests.VerifyTokenRequest),
    summary="Check an access token",
)
async def verify(fields: Fields, services: ServicesOf) -> Response:
    """An empty object when the token would be accepted as bearer now. Contract platform 3.4."""
    await services.accounts.tokens.verify(_one_token(fields, "token"))
    return answer(wire.TokenVerifyResponse())


@router.post(
    "/refresh",
    response_model=wire.TokenRefreshResponse,
    responses=_failures(),
    openapi_extra=accepts(requests.RefreshTokenRequest),
    summary="Renew an access token",
)
async def refresh(fields: Fields, services: ServicesOf) -> Response:
    """A new access token for a refresh token. Contract platform 3.5."""
    renewed = await services.accounts.tokens.refresh(_one_token(fields, "refresh"))
    return answer(wire.TokenRefreshResponse(access=renewed.access, refresh=renewed.refresh))


@router.post(
    "/revoke",
    response_model=wire.TokenRevokeResponse,
    responses=_failures(),
    openapi_extra=accepts(requests.RevokeTokenRequest),
    summary="Log out",
)
async def revoke(request: Request, fields: Fields, services: ServicesOf) -> Response:
    """End the login that a token belongs to, or all logins of its user. Contract platform 3.6."""
    read = TokenFields(fields)
    everything = read.flag("all")
    tokens = [read.text(name) for name in ("token", "refresh") if name in fields]
    if not tokens and (bearer := _bearer(request)):
        tokens = [bearer]
    if not tokens:
        read.text("token")
    read.require_good()
    for token in tokens:
        await services.accounts.tokens.revoke(token, everything=everything)
    return answer(wire.TokenRevokeResponse())


def _one_token(fields: Mapping[str, Any], name: str) -> str:
    read = TokenFields(fields)
    token = read.text(name)
    read.require_good()
    return token


def _bearer(request: Request) -> str | None:
    try:
        return bearer_token(request.scope["headers"])
    except NotAuthenticated:
        return None
