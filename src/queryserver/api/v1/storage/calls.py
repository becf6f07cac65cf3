"""Storage calls: who calls and as whom, fields, places, calls with many items or much work (Contract storage 2, 7)."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

import orjson
from fastapi import Request, Response

from queryserver import errors
from queryserver.api.answers import answer
from queryserver.api.bodies import (
    MULTIPART,
    RawBody,
    came,
    came_unread,
    form_fields,
    holding,
    multipart_fields,
    multipart_type,
    parse_json_object,
    parsed_aside,
    pieces,
    raw_body,
    reads,
)
from queryserver.api.calls import CallRoute, PathGroup, services_of
from queryserver.api.errors import http_status, respond
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas import requests
from queryserver.files.access import Caller, Location
from queryserver.files.model import StorageUser, decoded_path, repaired
from queryserver.files.operations import Outcomes, Progress, Started, Work, each_of, failure_body, items_of
from queryserver.formats.multipart import MultipartStream
from queryserver.identity.model import User
from queryserver.platform.metrics import OTHER
from queryserver.services import Services

MIB = 1024 * 1024
_MAX_BODY_BYTES = MIB
# A bulk call names up to 1000 items; a few more fields have the parameters of the call.
_MAX_FIELDS = 1100
_ALWAYS_READ = {"doas"}
_NO_PLACE = OTHER

Model = TypeVar("Model", bound=requests.StorageFields)


@dataclass(frozen=True, slots=True)
class StorageCall:
    request: Request
    services: Services
    caller: Caller
    given: requests.Given

    @property
    def is_bulk(self) -> bool:
        """Whether one item alone is answered as many are (Contract storage 7.8)."""
        return self.request.scope["path"].endswith("/bulk")

    def read(self, model: type[Model]) -> Model:
        came(self.request.scope, self.given.body)  # a streamed body is read after the call was made
        reads(self.request.scope, model)
        return requests.parse_given(model, self.given, max_json_depth=self.services.settings.limits.max_json_depth)


class StorageRoute(CallRoute):
    """A route whose handler takes a `StorageCall`. Each call is counted with its scheme and outcome."""

    max_body_bytes: ClassVar[int] = _MAX_BODY_BYTES
    query_too: ClassVar[Collection[str] | None] = requests.QUERY_TOO
    """Fields that a POST also reads from its query string; None: all."""

    def refused(
        self, request: Request, call: StorageCall | None, error: errors.QueryServerError
    ) -> tuple[str, Response]:
        """The `status` of failures is -1 (Contract storage 3)."""
        shown = error
        if isinstance(error, errors.UnreadableParameter):
            # A path that is no text is an invalid path, wherever it stands (Contract storage 2.2), and so is a name.
            shown = errors.InvalidPath(error.message) if error.name in requests.PATH_FIELDS else error
            shown = errors.InvalidName(error.message) if error.name in requests.NAME_FIELDS else shown
            return shown.code, respond(request, shown, plain=True)
        if call is not None:
            shown = call.services.storage.stores.with_configured(error, call.caller)
        return error.code, respond(request, shown, plain=True)

    def count(self, request: Request, call: StorageCall | None, outcome: str) -> None:
        services = call.services if call else services_of(request)
        scheme = _scheme(call) if call else _NO_PLACE
        operation = self.path.removeprefix("/api/v1/storage/").partition("=")[0]
        services.metrics.storage_operations.labels(scheme, operation, outcome).inc()

    async def read(self, request: Request, services: Services, user: User) -> StorageCall:
        """The call of a user (Contract storage 2.5). Raises domain errors."""
        query = grouped(form_fields(request.scope["query_string"]))
        if request.method == "GET":
            came(request.scope, query.keys() - _ALWAYS_READ)
            return StorageCall(request, services, _caller(request, user, query), requests.Given(query, {}))
        body = await self._body(request, services, user.id)
        if "doas" in query or any(value is not None for value in body.get("doas", ())):
            raise errors.InvalidParameter("doas is for GET calls only.")
        chosen = {name: query[name] for name in query if self.query_too is None or name in self.query_too}
        came(request.scope, body)
        came(request.scope, chosen)
        came_unread(request.scope, but=chosen)
        return StorageCall(request, services, Caller.of(user), requests.Given(chosen, body))

    async def _body(self, request: Request, services: Services, user_id: int) -> Mapping[str, Sequence[Any]]:
        with holding(request, user_id, self.max_body_bytes) as hold:
            body = await raw_body(request, max_bytes=self.max_body_bytes, hold=hold)
            if body is None:
                return {}
            parsed = partial(_parsed, body, services.settings.limits.max_json_depth)
            return (await parsed_aside(services, user_id, parsed, len(body.content)))[0]


class StreamedStorageRoute(StorageRoute):
    """A route that reads its body itself, in pieces; all other fields come from the query string."""

    query_too = None

    async def _body(self, request: Request, services: Services, user_id: int) -> Mapping[str, Sequence[Any]]:
        del request, services, user_id
        return {}


def _caller(request: Request, user: User, query: Mapping[str, Sequence[str]]) -> Caller:
    """The acting user. A refused `doas` leaves an audit event (Contract storage S14)."""
    storage, doas = services_of(request).storage, _last(query, "doas")
    try:
        return storage.stores.caller(user, doas)
    except errors.ImpersonationNotAllowed as error:
        word, _, path = request.scope["path"].removeprefix("/api/v1/storage/").partition("=")
        refused = Caller(user, StorageUser(doas or ""))
        storage.audit.record(refused, f"storage.{word}", _last(query, "path") or path, error.code)
        raise


def _parsed(body: RawBody, max_json_depth: int) -> Mapping[str, Sequence[Any]]:
    if body.kind == "application/json":
        members = parse_json_object(body.content, max_depth=max_json_depth)
        return {
            name: requests.JsonArray(cast("list[Any]", value)) if isinstance(value, list) else [value]
            for name, value in members.items()
        }
    if body.kind == "multipart/form-data":
        return grouped(multipart_fields(body.content, body.content_type, max_fields=_MAX_FIELDS))
    return grouped(form_fields(body.content, max_fields=_MAX_FIELDS))


def grouped(fields: Iterable[tuple[str, str]]) -> Mapping[str, Sequence[str]]:
    values: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in fields:
        values[name].append(value)
    return values


def _last(fields: Mapping[str, Sequence[str]], name: str) -> str | None:
    return fields[name][-1] if name in fields else None


def _scheme(call: StorageCall) -> str:
    places = (call.given.query, call.given.body)
    given = [fields[name][-1] for fields in places for name in requests.PATH_FIELDS if fields.get(name)]
    text = next(iter([*call.request.path_params.values(), *given]), None)
    if not isinstance(text, str):
        return _NO_PLACE
    try:
        return call.services.storage.stores.path(text).scheme
    except errors.QueryServerError:
        return _NO_PLACE


def place_of(call: StorageCall, raw: str | None, *, or_root: bool = False) -> Location:
    """The place behind `=`, None: of the parameter `path`.

    `or_root`: an empty path is the root of the default store, else it is missing.
    Raises MissingParameter, InvalidPath, UnknownScheme, StorageNotConfigured, UnknownAuthority, storage_access_denied.
    """
    text = repaired(call.read(requests.PathParameters).path or "") if raw is None else decoded_path(raw)
    stores = call.services.storage.stores
    if not text and not or_root:
        raise errors.MissingParameter("path is required.")
    return stores.location(call.caller, stores.path_or_root(text))


async def file_call(
    call: StorageCall, *, file_fields: Collection[str] = (), leading_fields: Collection[str] = ()
) -> tuple[StorageCall, MultipartStream, str]:
    """Read the body up to its file: the call with the fields so far, the body, and the name of the file.

    Raises UnsupportedMediaType, InvalidRequest, too_many_parts, PayloadTooLarge, BodyTooSlow, upload_aborted.
    """
    content_type = multipart_type(call.request)
    if content_type is None:
        raise errors.UnsupportedMediaType(f"An upload is {MULTIPART}.")
    leading = {*leading_fields, "doas"}  # refused wherever it stands
    stream = MultipartStream(pieces(call.request), content_type, file_fields=file_fields, leading_fields=leading)
    name = await stream.file_name()
    fields = grouped(stream.fields)
    if "doas" in fields:
        raise errors.InvalidParameter("doas is for GET calls only.")
    return replace(call, given=requests.Given(call.given.query, fields)), stream, name


@dataclass(frozen=True, slots=True)
class Final:
    """The answer at the end of the work."""

    body: Mapping[str, Any] | str
    http_status: int = 200


@dataclass(frozen=True, slots=True)
class LongCall:
    """A call that is answered by 202 after `wait_s` (None: never), with `path`. `kind`: such as `storage.move`."""

    call: StorageCall
    kind: str
    path: str
    wait_s: int | None

    async def answer(self, run: Callable[[Progress], Awaitable[Final]]) -> Response:
        """The answer at the end of the work, or 202; the work goes on without the client. Raises as `run`."""
        work = Work(self.kind, self.path, run, lambda final: final.body)
        outcome = await self.call.services.storage.operations.run(self.call.caller, work, wait_s=self.wait_s)
        if isinstance(outcome, Started):
            running = wire.RunningOperation(
                status=0, path=outcome.path, operation_id=str(outcome.operation_id), state="running"
            )
            return answer(running, status=202)
        return json_answer(outcome)


def json_answer(final: Final) -> Response:
    return Response(orjson.dumps(final.body), final.http_status, media_type="application/json")


router = PathGroup(StorageRoute)


@router.operation("get_storage_operation")
async def operation(call: StorageCall) -> Response:
    """State, progress and outcome of a call that answered 202. Contract storage 7.6."""
    asked = call.read(requests.OperationStatusParameters)
    status = await call.services.storage.operations.status(call.caller, asked.id)
    return answer(
        wire.OperationProgress(
            status=0,
            operation_id=str(status.operation_id),
            state=status.state.value,
            done=status.done,
            total=status.total,
            result=status.result if isinstance(status.result, str) or status.result is None else dict(status.result),
        )
    )


Each = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Does one item and gives its success body. Raises QueryServerError."""


async def answer_each(
    sent: Sequence[str], each: Each, *, always_bulk: bool = False, long: LongCall | None = None
) -> Response:
    """Do each item; one alone is answered as itself, unless `always_bulk`. With `long` the work may go on after 202.

    Raises MissingParameter, too_many_entries; for one alone, what `each` raises.
    """
    items = items_of(sent)

    async def run(progress: Progress) -> Final:
        if len(sent) == 1 and not always_bulk:
            progress.expect(1)
            body = await each(items[0])
            progress.advance()
            return Final(body)
        return final_of(await each_of(items, each, progress))

    return await long.answer(run) if long else json_answer(await run(Progress()))


def final_of(outcomes: Outcomes[Mapping[str, Any]]) -> Final:
    """The bodies of all items; the HTTP status is the highest of those that failed."""
    failed = [outcome for outcome in outcomes.values() if isinstance(outcome, errors.QueryServerError)]
    results = {
        item: failure_body(outcome) if isinstance(outcome, errors.QueryServerError) else outcome
        for item, outcome in outcomes.items()
    }
    if not failed:
        return Final({"status": 0, "results": results})
    message = f"{len(failed)} of {len(outcomes)} items failed."
    body = {"status": -1, "code": "partial_failure", "message": message, "results": results}
    return Final(body, max(map(http_status, failed)))
