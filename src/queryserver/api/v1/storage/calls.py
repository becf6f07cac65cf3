"""What a storage route gets: who calls and as whom, and the fields of the call (Contract storage 2.1, 2.5)."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, cast

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from queryserver.api.dependencies import RawBody, authenticated, holding, parsed_aside, raw_body, services_of
from queryserver.api.errors import respond
from queryserver.api.unknown_fields import came, came_unread, reads
from queryserver.api.v1.storage.counting import count
from queryserver.domain.errors.base import InvalidParameter, QueryServerError, UnreadableParameter
from queryserver.domain.errors.files import ImpersonationNotAllowed, InvalidName, InvalidPath
from queryserver.domain.files import StorageUser
from queryserver.domain.user import User
from queryserver.formats.bodies import form_fields, multipart_fields, parse_json_object
from queryserver.schemas.requests.given import NAME_FIELDS, PATH_FIELDS, QUERY_TOO, Given, StorageFields, parse_given
from queryserver.services.everything import Services
from queryserver.services.storage.stores import Caller

MIB = 1024 * 1024
_MAX_BODY_BYTES = MIB
# A bulk call names up to 1000 items; a few more fields say what is to be done with them.
_MAX_FIELDS = 1100
_ALWAYS_READ = {"doas"}

Model = TypeVar("Model", bound=StorageFields)


@dataclass(frozen=True, slots=True)
class _StorageCall:
    """One authenticated call."""

    request: Request
    services: Services
    caller: Caller
    given: Given

    def read(self, model: type[Model]) -> Model:
        """The fields as the call wants them. Raises InvalidRequest."""
        came(self.request.scope, self.given.body)  # a streamed body is read after the call was made
        reads(self.request.scope, model)
        return parse_given(model, self.given, max_json_depth=self.services.settings.limits.max_json_depth)


async def _declared() -> None:
    """StorageRoute makes the call; FastAPI only learns that it is neither a parameter nor a body."""


StorageCall: TypeAlias = Annotated[_StorageCall, Depends(_declared)]
"""One authenticated call; for endpoints of a StorageRoute."""


class StorageRoute(APIRoute):
    """A route whose endpoint takes a StorageCall and the path parameters; see CallRoute for why it is no dependency."""

    max_body_bytes: ClassVar[int] = _MAX_BODY_BYTES

    def __init__(self, path: str, endpoint: Callable[..., Any], **declared: Any) -> None:
        super().__init__(path, endpoint, **declared)
        self.app = self._serve

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        await (await self._answer(request))(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        call, given, outcome = None, None, "internal_error"
        try:
            call = await self._call(request)
            given = call.given
            answer = await self.endpoint(call, **request.path_params)
            outcome = "ok"
        except UnreadableParameter as error:
            # A path that is no text is an invalid path, wherever it stands (Contract storage 2.2), and so is a name.
            shown = InvalidPath(error.message) if error.name in PATH_FIELDS else error
            shown = InvalidName(error.message) if error.name in NAME_FIELDS else shown
            outcome, answer = shown.code, respond(request, shown, plain=True)
        except QueryServerError as error:
            told = call.services.storage.stores.with_configured(error, call.caller) if call else error
            outcome, answer = error.code, respond(request, told, plain=True)
        finally:
            count(request, given, outcome)
        return answer

    async def _call(self, request: Request) -> _StorageCall:
        """Who calls is asked first, then the body is read (Contract storage 2.5)."""
        services = services_of(request)
        user = await authenticated(request)
        query = grouped(form_fields(request.scope["query_string"]))
        if request.method == "GET":
            came(request.scope, query.keys() - _ALWAYS_READ)
            return _StorageCall(request, services, _caller(request, user, query), Given(query, {}))
        body = await self._body(request, services, user.id)
        if "doas" in query or any(value is not None for value in body.get("doas", ())):
            raise InvalidParameter("doas is for GET calls only.")
        chosen = self._from_query(query)
        came(request.scope, body)
        came(request.scope, chosen)
        came_unread(request.scope, but=chosen)
        return _StorageCall(request, services, Caller.of(user), Given(chosen, body))

    async def _body(self, request: Request, services: Services, user_id: int) -> Mapping[str, Sequence[Any]]:
        with holding(request, user_id, self.max_body_bytes) as hold:
            body = await raw_body(request, max_bytes=self.max_body_bytes, hold=hold)
            if body is None:
                return {}
            parsed = partial(_parsed, body, services.settings.limits.max_json_depth)
            return (await parsed_aside(services, user_id, parsed, len(body.content)))[0]

    def _from_query(self, query: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
        """What this call reads from the query string of a POST."""
        return {name: values for name, values in query.items() if name in QUERY_TOO}


class StreamedRoute(StorageRoute):
    """A route that reads its body itself, in pieces; all other fields come from the query string."""

    async def _answer(self, request: Request) -> Response:
        with services_of(request).metrics.upload():
            return await super()._answer(request)

    async def _body(self, request: Request, services: Services, user_id: int) -> Mapping[str, Sequence[Any]]:
        del request, services, user_id
        return {}

    def _from_query(self, query: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
        return query


def _caller(request: Request, user: User, query: Mapping[str, Sequence[str]]) -> Caller:
    """Who acts. Acting as another without the right to it leaves an audit event (Contract storage S14)."""
    storage, doas = services_of(request).storage, _last(query, "doas")
    try:
        return storage.stores.caller(user, doas)
    except ImpersonationNotAllowed as error:
        word, _, path = request.scope["path"].removeprefix("/api/v1/storage/").partition("=")
        refused = Caller(user, StorageUser(doas or ""))
        storage.audit.record(refused, f"storage.{word}", _last(query, "path") or path, error.code)
        raise


def _parsed(body: RawBody, max_json_depth: int) -> Mapping[str, Sequence[Any]]:
    if body.kind == "application/json":
        members = parse_json_object(body.content, max_depth=max_json_depth)
        return {
            name: cast("list[Any]", value) if isinstance(value, list) else [value] for name, value in members.items()
        }
    if body.kind == "multipart/form-data":
        return grouped(multipart_fields(body.content, body.content_type, max_fields=_MAX_FIELDS))
    return grouped(form_fields(body.content, max_fields=_MAX_FIELDS))


def grouped(fields: Iterable[tuple[str, str]]) -> Mapping[str, Sequence[str]]:
    """Every value of each name, in its order."""
    values: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in fields:
        values[name].append(value)
    return values


def _last(fields: Mapping[str, Sequence[str]], name: str) -> str | None:
    return fields[name][-1] if name in fields else None
