"""Tokens: login, check, renewal, end (Contract platform 3); API tokens (ADR 62)."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fastapi import Response

from queryserver.api.addresses import client_address
from queryserver.api.answers import answer, like, moment
from queryserver.api.bodies import Call
from queryserver.api.calls import CallRoute, PathGroup, PublicCall, PublicRoute
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas import requests
from queryserver.api.schemas.fields import is_clean
from queryserver.errors.base import InsufficientScope, InvalidFields, InvalidParameter, NotAuthenticated, admin_required
from queryserver.identity.api_tokens import ApiToken, NewApiToken
from queryserver.identity.callers import bearer_token
from queryserver.identity.model import RequestInfo, UsernameRule
from queryserver.platform.text import boolean_of

router = PathGroup(PublicRoute)

_MOST_CHARACTERS = 100


@router.operation("log_in")
async def auth(call: PublicCall) -> Response:
    """A token pair for a name and a password. Contract platform 3.2."""
    read = TokenFields(call.fields)
    username = read.text("username", most_characters=150, trimmed=True)
    password = read.text("password", most_bytes=1024)
    read.require_valid()
    client = client_address(call.request, call.services.settings.desktop.trusted_proxies)
    pair = await call.services.accounts.logins.log_in(username, password, RequestInfo(client))
    return answer(wire.TokenPair(refresh=pair.refresh, access=pair.access))


@router.operation("verify_token")
async def verify(call: PublicCall) -> Response:
    """An empty object when the token would be accepted as bearer now. Contract platform 3.4."""
    token = _one_token(call.fields, "token")
    client = client_address(call.request, call.services.settings.desktop.trusted_proxies)
    await call.services.accounts.tokens.verify(token, client)
    return answer(wire.TokenVerifyResponse())


@router.operation("refresh_token")
async def refresh(call: PublicCall) -> Response:
    """A new access token for a refresh token. Contract platform 3.5."""
    renewed = await call.services.accounts.tokens.refresh(_one_token(call.fields, "refresh"))
    return answer(wire.TokenRefreshResponse(access=renewed.access, refresh=renewed.refresh))


@router.operation("revoke_token")
async def revoke(call: PublicCall) -> Response:
    """End the login that a token belongs to, or all logins of its user. Contract platform 3.6."""
    read = TokenFields(call.fields)
    everything = read.flag("all")
    tokens = [read.text(name) for name in ("token", "refresh") if name in call.fields]
    if not tokens:
        with suppress(NotAuthenticated):
            tokens = [bearer for bearer in [bearer_token(call.request.scope["headers"])] if bearer]
    if not tokens:
        read.text("token")
    read.require_valid()
    for token in tokens:
        await call.services.accounts.tokens.revoke(token, everything=everything)
    return answer(wire.TokenRevokeResponse())


@router.operation("list_api_tokens", kind=CallRoute)
async def api_tokens(call: Call) -> Response:
    """The API tokens of the caller; for administrators those of another user, or of all. Never their values."""
    asked = await call.read(requests.ApiTokenListParameters)
    username = _user_of(call, asked.username)
    if asked.all and not call.user.is_admin:
        raise admin_required("You must be an administrator.")
    tokens = call.services.accounts.api_tokens
    count, page = await tokens.page(None if asked.all else username, page=asked.page, limit=asked.limit)
    return answer(wire.ApiTokenList(status=0, tokens=[_shown(one) for one in page], count=count))


@router.operation("new_api_token", kind=CallRoute)
async def new_api_token(call: Call) -> Response:
    """An API token of the caller, for administrators also of another user. Its value is shown this once."""
    asked = await call.read(requests.NewApiTokenRequest)
    username = _user_of(call, asked.username)
    for scope in asked.scopes:
        if not call.user.has_scope(scope):
            raise InsufficientScope(scope, f"An API token cannot give the scope {scope}, which it lacks.")
    visible = {connector.key for connector in call.services.connectors.visible(call.user)}
    for key in asked.connectors or ():
        if key not in visible:
            raise InvalidParameter(f"connectors: there is no connector {key[:_MOST_CHARACTERS]}.")
    new = NewApiToken(
        asked.name,
        frozenset(asked.scopes),
        None if asked.connectors is None else frozenset(asked.connectors),
        asked.expires_in_days,
    )
    made, value = await call.services.accounts.api_tokens.create(username, new, by=call.user.username)
    return answer(wire.NewApiTokenResponse(status=0, token=_shown(made), value=value))


@router.operation("revoke_api_token", kind=CallRoute)
async def revoke_api_token(call: Call) -> Response:
    """Ends an API token of the caller, for administrators any. Repeating it is harmless."""
    asked = await call.read(requests.ApiTokenIdRequest)
    of = None if call.user.is_admin else call.user.username
    ended = await call.services.accounts.api_tokens.revoke(asked.id, of=of, by=call.user.username)
    return answer(wire.ApiTokenResponse(status=0, token=_shown(ended)))


def _user_of(call: Call, username: str | None) -> str:
    """The user whose tokens are meant. Raises admin_required, InvalidUsername."""
    if username is None:
        return call.user.username
    rule = UsernameRule.of(call.services.settings.desktop.auth)
    if not call.user.is_admin and rule.read(username).key != rule.read(call.user.username).key:
        raise admin_required("You must be an administrator.")
    return username


def _shown(token: ApiToken) -> wire.ApiToken:
    return like(
        wire.ApiToken,
        token,
        id=str(token.id),
        scopes=[one.value for one in token.scopes],
        connectors=None if token.connectors is None else list(token.connectors),
        created_at=moment(token.created_at),
        expires_at=moment(token.expires_at),
        last_used_at=moment(token.last_used_at),
    )


def _one_token(fields: Mapping[str, Any], name: str) -> str:
    read = TokenFields(fields)
    token = read.text(name)
    read.require_valid()
    return token


class TokenFields:
    """Reads one field after the other and collects the problems."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self._problems: dict[str, list[str]] = {}

    def text(
        self, name: str, *, trimmed: bool = False, most_characters: int | None = None, most_bytes: int | None = None
    ) -> str:
        """A required text; a JSON number counts as its text. Empty when it has a problem."""
        value = self._fields.get(name)
        if name not in self._fields:
            return self._problem(name, "This field is required.")
        if value is None:
            return self._problem(name, "This field may not be null.")
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not is_clean(value):
            return self._problem(name, "Not a valid string.")
        text = value.strip() if trimmed else value
        if not text:
            return self._problem(name, "This field may not be blank.")
        for most, size in ((most_characters, len(text)), (most_bytes, len(text.encode()))):
            if most is not None and size > most:
                return self._problem(name, f"Ensure this field has no more than {most} characters.")
        return text

    def flag(self, name: str) -> bool:
        value = self._fields.get(name)
        if isinstance(value, bool) or value is None:
            return bool(value)
        flag = boolean_of(str(value) or "false") if isinstance(value, str | int) else None
        if flag is None:
            self._problem(name, "Must be a valid boolean.")
        return bool(flag)

    def require_valid(self) -> None:
        if self._problems:
            raise InvalidFields(self._problems)

    def _problem(self, name: str, text: str) -> str:
        self._problems[name] = [text]
        return ""
