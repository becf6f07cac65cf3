"""Token calls: login, verification, refresh and revocation (Contract platform 3), and API tokens (ADR 62)."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Request, Response

from queryserver.api.dependencies import (
    AnyUser,
    ApiTokensDep,
    ClientDep,
    ConnectorsDep,
    LoginsDep,
    SettingsDep,
    TicketsDep,
    TokensDep,
    caller,
    fields,
    unchecked_fields,
)
from queryserver.api.responses import json_response, model_from, utc_text
from queryserver.api.routes import PathGroup, failures
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.fields import is_storable_text
from queryserver.api.schemas.requests import platform as requests
from queryserver.errors.base import InsufficientScope, InvalidFields, InvalidParameter, NotAuthenticated, admin_required
from queryserver.identity.api_tokens import ApiToken, NewApiToken
from queryserver.identity.callers import bearer_token
from queryserver.identity.model import RequestInfo, Scope, User, UsernameRule
from queryserver.platform.settings.tree import Settings
from queryserver.platform.text import parse_boolean

router = PathGroup("token", prefix="")

TokenAdmin = Annotated[User, caller(Scope.ADMIN)]
"""A caller whose API token, if one is used, has the admin scope. The user need not be an administrator."""

_MAX_SHOWN_CHARACTERS = 100


@router.post("/api/v1/token/auth", response_model=wire.TokenPair, responses=failures(401))
@router.post("/api/token/auth", include_in_schema=False)
async def log_in(
    client: ClientDep, form: Annotated[Mapping[str, Any], unchecked_fields(requests.LogInRequest)], logins: LoginsDep
) -> Response:
    """Exchange a user name and password for an access token and a refresh token. Contract platform 3.2."""
    username, password = login_fields(form)
    pair = await logins.log_in(username, password, RequestInfo(client))
    return json_response(wire.TokenPair(refresh=pair.refresh, access=pair.access))


@router.post("/api/v1/token/verify", response_model=wire.TokenVerifyResponse, responses=failures(401))
@router.post("/api/token/verify", include_in_schema=False)
async def verify_token(
    client: ClientDep,
    form: Annotated[Mapping[str, Any], unchecked_fields(requests.VerifyTokenRequest)],
    tokens: TokensDep,
) -> Response:
    """Check an access token. The response is an empty object if the token is accepted. Contract platform 3.4."""
    await tokens.verify(_single_token(form, "token"), client)
    return json_response(wire.TokenVerifyResponse())


@router.post("/api/v1/token/refresh", response_model=wire.TokenRefreshResponse, responses=failures(401))
@router.post("/api/token/refresh", include_in_schema=False)
async def refresh_token(
    _client: ClientDep,
    form: Annotated[Mapping[str, Any], unchecked_fields(requests.RefreshTokenRequest)],
    tokens: TokensDep,
) -> Response:
    """Exchange a refresh token for a new access token. Contract platform 3.5."""
    renewed = await tokens.refresh(_single_token(form, "refresh"))
    return json_response(wire.TokenRefreshResponse(access=renewed.access, refresh=renewed.refresh))


@router.post("/api/v1/token/revoke", response_model=wire.TokenRevokeResponse, responses=failures(401))
async def revoke_token(
    http: Request,
    _client: ClientDep,
    form: Annotated[Mapping[str, Any], unchecked_fields(requests.RevokeTokenRequest)],
    tokens: TokensDep,
) -> Response:
    """End the login to which a token belongs, or all logins of its user if `all` is set. Contract platform 3.6."""
    read = TokenFields(form)
    everything = read.flag("all")
    revoked = [read.text(name) for name in ("token", "refresh") if name in form]
    if not revoked:
        with suppress(NotAuthenticated):
            revoked = [bearer for bearer in [bearer_token(http.scope["headers"])] if bearer]
    if not revoked:
        read.text("token")
    read.require_valid()
    for token in revoked:
        await tokens.revoke(token, everything=everything)
    return json_response(wire.TokenRevokeResponse())


@router.post("/api/v1/token/download", response_model=wire.DownloadTicketResponse)
async def download_ticket(
    user: AnyUser,
    request: Annotated[requests.DownloadTicketRequest, fields(requests.DownloadTicketRequest)],
    tickets: TicketsDep,
) -> Response:
    """Return the address of a download with a ticket, which a browser can open without a header.

    The ticket permits GET and HEAD of exactly this address for 60 s, with the rights that the caller has when it is
    used. Contract platform 3.14.
    """
    separator = "&" if "?" in request.url else "?"
    url = f"{request.url}{separator}ticket={tickets.issue(user, request.url)}"
    return json_response(wire.DownloadTicketResponse(status=0, url=url), headers={"Cache-Control": "no-store"})


@router.get("/api/v1/token/api_tokens", response_model=wire.ApiTokenList, responses=failures(403))
async def list_api_tokens(
    user: TokenAdmin,
    request: Annotated[requests.ApiTokenListParameters, fields(requests.ApiTokenListParameters)],
    api_tokens: ApiTokensDep,
    settings: SettingsDep,
) -> Response:
    """List the caller's API tokens. Administrators can list those of any user. Token values are not returned."""
    username = _owner(user, request.username, settings)
    if request.all and not user.is_admin:
        raise admin_required("You must be an administrator.")
    count, page = await api_tokens.page(None if request.all else username, page=request.page, limit=request.limit)
    return json_response(wire.ApiTokenList(status=0, tokens=[_token_body(one) for one in page], count=count))


@router.post("/api/v1/token/api_tokens/new", response_model=wire.NewApiTokenResponse, responses=failures(403, 404, 409))
async def new_api_token(
    user: TokenAdmin,
    request: Annotated[requests.NewApiTokenRequest, fields(requests.NewApiTokenRequest)],
    api_tokens: ApiTokensDep,
    connectors: ConnectorsDep,
    settings: SettingsDep,
) -> Response:
    """Create an API token for the caller. Administrators can create one for any user.

    Only this response contains the value of the token.
    """
    username = _owner(user, request.username, settings)
    for scope in request.scopes:
        if not user.has_scope(scope):
            raise InsufficientScope(scope, f"An API token without the scope {scope} cannot grant it.")
    visible = {connector.key for connector in connectors.visible(user)}
    for key in request.connectors or ():
        if key not in visible:
            raise InvalidParameter(f"connectors: unknown connector {key[:_MAX_SHOWN_CHARACTERS]}.")
    new = NewApiToken(
        request.name,
        frozenset(request.scopes),
        None if request.connectors is None else frozenset(request.connectors),
        request.expires_in_days,
        request.max_estimated_bytes,
    )
    made, value = await api_tokens.create(username, new, by=user.username)
    return json_response(wire.NewApiTokenResponse(status=0, token=_token_body(made), value=value))


@router.post("/api/v1/token/api_tokens/revoke", response_model=wire.ApiTokenResponse, responses=failures(403, 404))
async def revoke_api_token(
    user: TokenAdmin,
    request: Annotated[requests.ApiTokenIdRequest, fields(requests.ApiTokenIdRequest)],
    api_tokens: ApiTokensDep,
) -> Response:
    """Revoke an API token of the caller. Administrators can revoke any token. Repeating the call has no effect."""
    owner = None if user.is_admin else user.username
    ended = await api_tokens.revoke(request.id, of=owner, by=user.username)
    return json_response(wire.ApiTokenResponse(status=0, token=_token_body(ended)))


def _owner(user: User, username: str | None, settings: Settings) -> str:
    """Return the name of the user whose tokens the call concerns: `username`, or else the caller.

    Raises admin_required, InvalidUsername.
    """
    if username is None:
        return user.username
    rule = UsernameRule.of(settings.desktop.auth)
    if not user.is_admin and rule.read(username).key != rule.read(user.username).key:
        raise admin_required("You must be an administrator.")
    return username


def _token_body(token: ApiToken) -> wire.ApiToken:
    return model_from(
        wire.ApiToken,
        token,
        id=str(token.id),
        scopes=[one.value for one in token.scopes],
        connectors=None if token.connectors is None else list(token.connectors),
        created_at=utc_text(token.created_at),
        expires_at=utc_text(token.expires_at),
        last_used_at=utc_text(token.last_used_at),
    )


def _single_token(fields: Mapping[str, Any], name: str) -> str:
    read = TokenFields(fields)
    token = read.text(name)
    read.require_valid()
    return token


def login_fields(form: Mapping[str, Any]) -> tuple[str, str]:
    """Return the user name, without surrounding white space, and the password of a login. Raises InvalidFields."""
    read = TokenFields(form)
    username = read.text("username", max_characters=150, trimmed=True)
    password = read.text("password", max_bytes=1024)
    read.require_valid()
    return username, password


class TokenFields:
    """Reads the fields of a token call one by one, and collects the error messages by field."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self._problems: dict[str, list[str]] = {}

    def text(
        self, name: str, *, trimmed: bool = False, max_characters: int | None = None, max_bytes: int | None = None
    ) -> str:
        """Return a required string. Converts JSON numbers. If the value is invalid, record an error and return ""."""
        value = self._fields.get(name)
        if name not in self._fields:
            return self._problem(name, "This field is required.")
        if value is None:
            return self._problem(name, "This field may not be null.")
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not is_storable_text(value):
            return self._problem(name, "Not a valid string.")
        text = value.strip() if trimmed else value
        if not text:
            return self._problem(name, "This field may not be blank.")
        for most, size in ((max_characters, len(text)), (max_bytes, len(text.encode()))):
            if most is not None and size > most:
                return self._problem(name, f"Ensure this field has no more than {most} characters.")
        return text

    def flag(self, name: str) -> bool:
        value = self._fields.get(name)
        if isinstance(value, bool) or value is None:
            return bool(value)
        flag = parse_boolean(str(value) or "false") if isinstance(value, str | int) else None
        if flag is None:
            self._problem(name, "Must be a valid boolean.")
        return bool(flag)

    def require_valid(self) -> None:
        if self._problems:
            raise InvalidFields(self._problems)

    def _problem(self, name: str, text: str) -> str:
        self._problems[name] = [text]
        return ""
