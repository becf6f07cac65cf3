"""What a route gets: who calls, the fields of the call, the services."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from queryserver.api.access_log import note_caller
from queryserver.api.auth_request import CallToJudge
from queryserver.api.body_shares import BODY_SHARES, BodyShares, Hold
from queryserver.api.client_address import client_address
from queryserver.api.connections.guard import counted_address
from queryserver.api.unknown_fields import came, came_unread, reads
from queryserver.api.user_shares import enter_share
from queryserver.domain.errors.base import LateBody, PayloadTooLarge, UnsupportedMediaType
from queryserver.domain.user import User
from queryserver.formats.bodies import parse_form, parse_json_object, parse_multipart
from queryserver.schemas import requests
from queryserver.schemas.requests import parse
from queryserver.schemas.snippets import Fields as FieldsModel
from queryserver.services.everything import Services

_FORM = "application/x-www-form-urlencoded"
_THREAD_ABOVE_BYTES = 64 * 1024
ANONYMOUS = 0
"""The user id of callers without credentials: all of them take turns as one user."""
# 16 MiB in this time are 280 kB/s; who sends a byte now and then must not hold a connection for ever.
_BODY_WITHIN_S = 60.0

Model = TypeVar("Model", bound=FieldsModel)
T = TypeVar("T")


def services_of(request: Request) -> Services:
    """The services of this process."""
    return cast("Services", request.app.state.services)


async def authenticated(request: Request) -> User:
    """The caller; the stored connectors are at least as new as the rights.

    Waits while the user has too many calls under way. Raises NotAuthenticated, TooManyRequests.
    """
    services = services_of(request)
    judged = CallToJudge(request, services.settings.desktop.trusted_proxies)
    user = await services.accounts.authenticator.authenticate(judged)
    note_caller(request, user)
    services.request_limits.count_user(user.id)
    await enter_share(request, user.id)
    await services.connectors.at_least(user.connectors_version)
    return user


@dataclass(frozen=True, slots=True)
class Body:
    """The fields of a body, and whether it is too large to be looked through on the event loop."""

    fields: Mapping[str, Any]
    is_large: bool = False


@dataclass(frozen=True, slots=True)
class RawBody:
    """A body as it came: `kind` is its media type in lower case, without parameters."""

    kind: str
    content_type: str
    content: bytes


def _unbounded(size: int) -> None:
    del size


def holding(request: Request, user_id: int, max_bytes: int) -> AbstractContextManager[Hold]:
    """Counts the bytes of a body of at most `max_bytes` against the share of its sender.

    A share is four bodies for a user, and two for an address without credentials; each size of bodies has its own.
    """
    shares = cast("BodyShares | None", request.scope.get(BODY_SHARES))
    if shares is None:  # outside of the frame
        return nullcontext(_unbounded)
    if user_id != ANONYMOUS:
        return shares.holding(f"user {user_id} {max_bytes}", 4 * max_bytes, is_user=True)
    address = client_address(request, services_of(request).settings.desktop.trusted_proxies)
    return shares.holding(f"{counted_address(address)} {max_bytes}", 2 * max_bytes, is_user=False)


async def raw_body(
    request: Request, *, max_bytes: int, within_s: float = _BODY_WITHIN_S, hold: Hold = _unbounded
) -> RawBody | None:
    """A POST body of a kind that is read; None when it is empty (Contract platform 1.2).

    `hold` counts its bytes. Raises UnsupportedMediaType, PayloadTooLarge (before the body is read to its end), LateBody
    after `within_s`, and what `hold` raises.
    """
    content_type = request.headers.get("content-type", _FORM)
    kind = content_type.partition(";")[0].strip().lower() or _FORM
    length = request.headers.get("content-length", "")
    is_empty = length == "0" or (not length and "transfer-encoding" not in request.headers)
    if is_empty:
        return None
    if kind not in {_FORM, "multipart/form-data", "application/json"}:
        if await _in_time(_is_empty(request), within_s):
            return None
        raise UnsupportedMediaType(f"Content type {kind[:100]} is not read here.")
    if length.isdecimal() and int(length) > max_bytes:
        raise PayloadTooLarge(f"The body is above the limit of {max_bytes} bytes.")
    content = await _in_time(_read(request, max_bytes, hold), within_s)
    return RawBody(kind, content_type, content) if content else None


async def read_body(
    request: Request, *, max_bytes: int, user_id: int = ANONYMOUS, within_s: float = _BODY_WITHIN_S
) -> Body:
    """The fields of a POST body: form, multipart or JSON object (Contract platform 1.2).

    Raises as `raw_body`, and InvalidRequest.
    """
    came_unread(request.scope)
    with holding(request, user_id, max_bytes) as hold:
        body = await raw_body(request, max_bytes=max_bytes, within_s=within_s, hold=hold)
        if body is None:
            return Body({})
        services = services_of(request)
        parsed = partial(_parse, body, services.settings.limits.max_json_depth)
        fields, is_large = await parsed_aside(services, user_id, parsed, len(body.content))
        came(request.scope, fields)
        return Body(fields, is_large)


def query_fields(request: Request) -> Body:
    """The query parameters of a GET call. Raises InvalidParameter."""
    fields = parse_form(request.scope["query_string"])
    came(request.scope, fields)
    return Body(fields)


async def parsed_aside(services: Services, user_id: int, parsed: Callable[[], T], size_bytes: int) -> tuple[T, bool]:
    """What `parsed` gives, and whether it was too large for the event loop. Raises TooManyRequests."""
    if size_bytes <= _THREAD_ABOVE_BYTES:
        return parsed(), False
    return await services.threads.bodies.run(user_id, lambda _: parsed()), True


@dataclass(frozen=True, slots=True)
class Call:
    """One authenticated call."""

    request: Request
    services: Services
    user: User
    body: Body

    async def read(self, model: type[Model]) -> Model:
        """The fields as the call wants them. Raises InvalidRequest."""
        services = self.services
        reads(self.request.scope, model)
        parsed = partial(parse, model, self.body.fields, max_json_depth=services.settings.limits.max_json_depth)
        if not self.body.is_large:
            return parsed()
        return await services.threads.bodies.run(self.user.id, lambda _: parsed())


async def _call(request: Request) -> Call:
    """Who calls is asked first, then the body is read (Contract editor 1.5)."""
    services = services_of(request)
    user = await authenticated(request)
    if request.method == "GET":
        return Call(request, services, user, query_fields(request))
    max_bytes = services.settings.editor.request_body_max_bytes
    body = await read_body(request, max_bytes=max_bytes, user_id=user.id)
    return Call(request, services, user, body)


class CallRoute(APIRoute):
    """A route whose endpoint takes a Call and the path parameters.

    FastAPI solves dependencies, keeps two exit stacks and re-validates answers for each call, at the price of all else
    that a status call costs; these endpoints need none of it. The API description is made from the declarations all
    the same, and errors are answered where all are.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **declared: Any) -> None:
        super().__init__(path, endpoint, **declared)
        self.app = self._serve

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        response: Response = await self.endpoint(await self.call(request), **request.path_params)
        await response(scope, receive, send)

    async def call(self, request: Request) -> object:
        """What the endpoint gets of the request. Raises domain errors."""
        return await _call(request)


async def _public_fields(request: Request) -> Mapping[str, Any]:
    reads(request.scope, getattr(requests, request.scope["route"].openapi_extra["x-request-model"]))
    return (await read_body(request, max_bytes=services_of(request).settings.limits.max_body_bytes)).fields


AuthenticatedCall = Annotated[Call, Depends(_call)]
"""One authenticated call; for endpoints of a CallRoute."""

Fields = Annotated[Mapping[str, Any], Depends(_public_fields)]
"""Fields of a public POST."""


async def _services(request: Request) -> Services:
    # Async, or FastAPI would spend a thread on it.
    return services_of(request)


ServicesOf = Annotated[Services, Depends(_services)]
"""The services of this process."""


async def _in_time(reading: Coroutine[Any, Any, T], within_s: float) -> T:
    try:
        async with asyncio.timeout(within_s):
            return await reading
    except TimeoutError:
        raise LateBody from None


async def _is_empty(request: Request) -> bool:
    """Whether a body whose length nobody told has no byte; reads no further than the first."""
    async for piece in request.stream():
        if piece:
            return False
    return True


async def _read(request: Request, max_bytes: int, hold: Hold) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > max_bytes:
            raise PayloadTooLarge(f"The body is above the limit of {max_bytes} bytes.")
        hold(len(piece))
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _parse(body: RawBody, max_json_depth: int) -> dict[str, Any]:
    if body.kind == "application/json":
        return parse_json_object(body.content, max_depth=max_json_depth)
    if body.kind == _FORM:
        return parse_form(body.content)
    return parse_multipart(body.content, body.content_type)
