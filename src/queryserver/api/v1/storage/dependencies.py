"""Provides the FastAPI dependencies of storage handlers, and formats store entries in responses.

The dependencies are the acting user, the fields in query and body, and the path after `=`. Entries have formatted
modes, sizes, times and links (Contract storage 2, 4).
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import Annotated, Any, Generic, Self, TypeVar, cast
from urllib.parse import quote, urlsplit
from zoneinfo import ZoneInfo

from fastapi import Request, Response
from fastapi.routing import APIRoute

from queryserver import errors
from queryserver.api import bodies
from queryserver.api.dependencies import FieldsReader, StorageAuditDep, StoresDep, caller, dependency, services_of
from queryserver.api.errors import respond
from queryserver.api.routes import PathGroup, RouteHandler
from queryserver.api.schemas import generated as wire
from queryserver.api.schemas.requests import storage as requests
from queryserver.api.schemas.requests.storage import (
    NAME_FIELDS,
    PATH_FIELDS,
    QUERY_TOO,
    FieldValues,
    JsonArray,
    RequestFields,
    parse_request,
)
from queryserver.files.access import Caller
from queryserver.files.model import ROOTS, EntryKind, FileStatus, Scheme, StoragePath, StorageUser, decoded_path
from queryserver.formats.multipart import MultipartStream
from queryserver.identity.model import Scope, User
from queryserver.platform.metrics import OTHER
from queryserver.platform.settings.tree import Settings

PREFIX = "/api/v1/storage"

_STICKY = 0o1000

# Characters that are not percent-encoded in links, in addition to letters, digits and `_.-~`.
_PLAIN = "@$&()*!+=;,'"
_TYPES = {
    EntryKind.DIRECTORY: (0o040000, "d"),
    EntryKind.FILE: (0o100000, "-"),
    EntryKind.LINK: (0o120000, "l"),
    EntryKind.UNKNOWN: (0, "?"),
}
_UNITS = ("KB", "MB", "GB", "TB", "PB")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StorageRoute(APIRoute):
    """A route whose error responses have the `status` -1. Counts each call by scheme, operation and outcome."""

    def get_route_handler(self) -> RouteHandler:
        handle = super().get_route_handler()
        operation = self.path.removeprefix(f"{PREFIX}/").partition("=")[0]

        async def handle_and_count(request: Request) -> Response:
            outcome = "internal_error"
            try:
                response = await handle(request)
                outcome = "ok"
            except errors.QueryServerError as error:
                client_error = _client_error(request, error)
                outcome, response = client_error.code, respond(request, client_error, plain=True)
            finally:
                operations = services_of(request).metrics.storage_operations
                operations.labels(_scheme(request), operation, outcome).inc()
            return response

        return handle_and_count


def storage_group(tag: str = "storage", *, prefix: str = PREFIX) -> PathGroup:
    """Create a router for storage calls."""
    return PathGroup(tag, prefix=prefix, route_class=StorageRoute)


def _client_error(request: Request, error: errors.QueryServerError) -> errors.QueryServerError:
    """Return the error that the client gets (Contract storage 2.2).

    An unreadable path or name becomes InvalidPath or InvalidName. An error about a store lists the available stores.
    """
    if isinstance(error, errors.UnreadableParameter):
        if error.name in PATH_FIELDS:
            return errors.InvalidPath(error.message)
        return errors.InvalidName(error.message) if error.name in NAME_FIELDS else error
    user = request.scope.get("user")
    return error if user is None else services_of(request).storage.stores.with_available_stores(error, Caller.of(user))


def _scheme(request: Request) -> str:
    """Return the scheme of the call's first path for the metrics, or OTHER if there is no valid path."""
    fields: RequestFields | None = getattr(request.state, "storage_fields", None)
    sources = () if fields is None else (fields.query, fields.body)
    texts = [values[name][-1] for values in sources for name in PATH_FIELDS if values.get(name)]
    text = next(iter([*request.path_params.values(), *texts]), None)
    if fields is None or not isinstance(text, str):
        return OTHER
    try:
        return services_of(request).storage.stores.path(text).scheme
    except errors.QueryServerError:
        return OTHER


MIB = 1024 * 1024
_MAX_BODY_BYTES = MIB
# A bulk call has up to 1000 items, plus a few parameters.
_MAX_FIELDS = 1100
_DOAS = "doas"

Model = TypeVar("Model", bound=requests.StorageFields)


async def _query_values(request: Request) -> FieldValues:
    """Read all values of the query string. Raises InvalidParameter."""
    return _grouped(bodies.form_fields(request.scope["query_string"]))


QueryValuesDep = Annotated[FieldValues, dependency(_query_values)]


def _grouped(fields: Iterable[tuple[str, str]]) -> Mapping[str, Sequence[str]]:
    values: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in fields:
        values[name].append(value)
    return values


def last_value(values: FieldValues, name: str) -> Any:
    """Return the last value of a field, or None if the request does not contain the field."""
    return values[name][-1] if name in values else None


def acting(scope: Scope, *, by_ticket: bool = False) -> Any:
    """Create the dependency for `Annotated[Caller, acting(…)]`: the caller and the user on whose behalf the call runs.

    GET calls may name another user in `doas` (Contract storage 2.5). A rejected attempt writes an audit event (Contract
    storage S14). Raises InvalidParameter, ImpersonationNotAllowed, and the errors of `caller`.
    """

    async def acting_user(
        request: Request,
        user: Annotated[User, caller(scope, by_ticket=by_ticket)],
        query: QueryValuesDep,
        stores: StoresDep,
        audit: StorageAuditDep,
    ) -> Caller:
        if request.method != "GET":
            return Caller.of(user)
        doas = last_value(query, _DOAS)
        try:
            return stores.caller(user, doas)
        except errors.ImpersonationNotAllowed as error:
            operation, _, path = request.scope["path"].removeprefix(f"{PREFIX}/").partition("=")
            refused = Caller(user, StorageUser(doas or ""))
            audit.record(refused, f"storage.{operation}", last_value(query, "path") or path, error.code)
            raise

    return dependency(acting_user)


FilesReader = Annotated[Caller, acting(Scope.FILES_READ)]
FileDownloader = Annotated[Caller, acting(Scope.FILES_READ, by_ticket=True)]
"""Like `FilesReader`, also with a download ticket in place of a token."""
FilesWriter = Annotated[Caller, acting(Scope.FILES_WRITE)]


def _refuse_doas(values: FieldValues) -> None:
    if any(value is not None for value in values.get(_DOAS, ())):
        raise errors.InvalidParameter("doas is only supported for GET.")


class StorageFieldsReader(FieldsReader):
    """Dependency that returns the fields of a call as a model. GET and DELETE have their fields in the query string.

    Raises the errors of `read_body` and `parse_request`.
    """

    def __init__(
        self, model: type[requests.StorageFields] | None, *, max_body_bytes: int, query_too: Collection[str] | None
    ) -> None:
        """`query_too` names the fields that a POST also reads from its query string. None means all fields."""
        super().__init__(model)
        self._fields = model
        self._max_body_bytes = max_body_bytes
        self._query_too = query_too

    async def __call__(self, request: Request, query: QueryValuesDep) -> requests.StorageFields | None:
        fields, is_large = await self._read(request, query)
        request.state.storage_fields = fields
        if self._fields is None:
            return None
        services = services_of(request)
        bodies.note_read(request.scope, self._fields)
        parsed = partial(parse_request, self._fields, fields, max_json_depth=services.settings.limits.max_json_depth)
        if not is_large:
            return parsed()
        return await services.threads.bodies.run(request.scope["user"].id, lambda _: parsed())

    async def _read(self, request: Request, query: FieldValues) -> tuple[RequestFields, bool]:
        if request.method == "GET":
            bodies.note_received(request.scope, query.keys() - {_DOAS})
            return RequestFields(query, {}), False
        no_body: FieldValues = {}
        body, is_large = (no_body, False) if request.method == "DELETE" else await self._body(request)
        _refuse_doas(query)
        _refuse_doas(body)
        chosen = {name: query[name] for name in query if self._query_too is None or name in self._query_too}
        bodies.note_received(request.scope, body)
        bodies.note_received(request.scope, chosen)
        bodies.note_unread_query(request.scope, but=chosen)
        return RequestFields(chosen, body), is_large

    async def _body(self, request: Request) -> tuple[FieldValues, bool]:
        services, user_id = services_of(request), request.scope["user"].id
        with bodies.holding(request, user_id, self._max_body_bytes) as hold:
            body = await bodies.raw_body(request, max_bytes=self._max_body_bytes, hold=hold)
            if body is None:
                return {}, False
            grouped = partial(_values_of, body, services.settings.limits.max_json_depth)
            return await bodies.parse_in_thread_if_large(services.threads, user_id, grouped, len(body.content))


def _values_of(body: bodies.RawBody, max_json_depth: int) -> FieldValues:
    if body.kind == "application/json":
        members = bodies.parse_json_object(body.content, max_depth=max_json_depth)
        return {
            name: JsonArray(cast("list[Any]", value)) if isinstance(value, list) else [value]
            for name, value in members.items()
        }
    if body.kind == bodies.MULTIPART:
        return _grouped(bodies.multipart_fields(body.content, body.content_type, max_fields=_MAX_FIELDS))
    return _grouped(bodies.form_fields(body.content, max_fields=_MAX_FIELDS))


def storage_fields(
    model: type[requests.StorageFields] | None,
    *,
    max_body_bytes: int = _MAX_BODY_BYTES,
    query_too: Collection[str] | None = QUERY_TOO,
) -> Any:
    """Create the dependency for `Annotated[Model, storage_fields(Model)]`, which returns the call's fields.

    Contract storage 2.1.
    """
    return dependency(StorageFieldsReader(model, max_body_bytes=max_body_bytes, query_too=query_too))


NoStorageFields = Annotated[None, storage_fields(None)]


class UploadBody(Generic[Model]):
    """A multipart body that the handler reads itself: first the fields before the file, then the file."""

    def __init__(
        self,
        request: Request,
        query: FieldValues,
        model: type[Model],
        file_fields: Collection[str],
        leading_fields: Collection[str],
    ) -> None:
        self._request = request
        self._query = query
        self._model = model
        self._file_fields = file_fields
        self._leading_fields = {*leading_fields, _DOAS}  # doas is rejected in any position
        self._stream: MultipartStream

    @property
    def announced_bytes(self) -> int | None:
        return bodies.announced_bytes(self._request)

    async def start(self) -> tuple[Model, str]:
        """Read the query string and the fields before the file. Return the parsed fields and the file name.

        Raises UnsupportedMediaType, InvalidRequest, too_many_parts, PayloadTooLarge, BodyTooSlow, upload_aborted.
        """
        scope, content_type = self._request.scope, bodies.multipart_type(self._request)
        if content_type is None:
            raise errors.UnsupportedMediaType(f"An upload must be {bodies.MULTIPART}.")
        self._stream = MultipartStream(
            bodies.pieces(self._request),
            content_type,
            file_fields=self._file_fields,
            leading_fields=self._leading_fields,
        )
        name = await self._stream.file_name()
        fields = _grouped(self._stream.fields)
        _refuse_doas(fields)
        bodies.note_received(scope, fields)
        bodies.note_read(scope, self._model)
        max_json_depth = services_of(self._request).settings.limits.max_json_depth
        return parse_request(self._model, RequestFields(self._query, fields), max_json_depth=max_json_depth), name

    def content(self) -> AsyncGenerator[bytes]:
        """Yield the file content. Raises the errors of `MultipartStream.content`."""
        return self._stream.content()

    def note_fields(self) -> None:
        """Record the fields after the file, so that X-Unknown-Fields can list them.

        Must be called after the file has been read.
        """
        bodies.note_received(self._request.scope, dict(self._stream.fields))


class UploadBodyReader(FieldsReader):
    """Dependency that returns the unread body of an upload. Its fields may also be in the query string."""

    def __init__(
        self, model: type[requests.StorageFields], file_fields: Collection[str], leading_fields: Collection[str]
    ) -> None:
        super().__init__(model)
        self._parts = (model, file_fields, leading_fields)

    async def __call__(self, request: Request, query: QueryValuesDep) -> UploadBody[Any]:
        _refuse_doas(query)
        bodies.note_received(request.scope, query)
        request.state.storage_fields = RequestFields(query, {})
        return UploadBody(request, query, *self._parts)


def upload_body(
    model: type[requests.StorageFields], *, file_fields: Collection[str] = (), leading_fields: Collection[str] = ()
) -> Any:
    """Create the dependency for `Annotated[UploadBody[Model], upload_body(Model)]`.

    `file_fields` are the permitted names of the file field. If it is empty, any name is permitted. `leading_fields`
    must precede the file.
    """
    return dependency(UploadBodyReader(model, file_fields, leading_fields))


async def _path_after_equals(path: str) -> str:
    return decoded_path(path)


PathText = Annotated[str, dependency(_path_after_equals)]
"""The decoded path after `=` in the URL, which may be empty. Raises InvalidPath."""


async def _is_bulk(request: Request) -> bool:
    return request.scope["path"].endswith("/bulk")


IsBulk = Annotated[bool, dependency(_is_bulk)]
"""Whether the call is a bulk call, which uses the bulk response even for a single item (Contract storage 7.8)."""


@dataclass(frozen=True, slots=True)
class EntryShapes:
    """Formats the entries of one store. `managed` are HDFS directories that another service manages."""

    root: str
    """Prefix of all paths in the store."""
    zone: tzinfo
    url_prefix: str
    managed: Sequence[StoragePath]

    @classmethod
    def of(cls, settings: Settings, scheme: Scheme) -> Self:
        """Create the formatter from the settings. Managed prefixes may be URLs that include the file system name."""
        browser = settings.filebrowser
        prefixes = browser.managed_prefixes if scheme is Scheme.HDFS else ()
        managed = [StoragePath(Scheme.HDFS, urlsplit(prefix).path.strip("/")) for prefix in prefixes]
        return cls(ROOTS[scheme], ZoneInfo(settings.desktop.time_zone), browser.browser_url_prefix, managed)

    def url(self, path: str) -> str:
        """Return the link to a normalized path. Even `/` and `:` are percent-encoded."""
        return self.url_prefix + quote(path, safe=_PLAIN)

    def is_managed(self, path: StoragePath) -> bool:
        return any(map(path.is_inside, self.managed))

    def entry(self, status: FileStatus, *, name: str | None = None) -> dict[str, object]:
        """Return the content of a `FileEntry` as a dict, because validating many entries would be slow."""
        stats = self._stats(status, name)
        path = f"{self.root}{status.path}"
        return {
            "path": path,
            "name": stats["name"],
            "stats": stats,
            "mtime": time_text(epoch_seconds(status.modified_at), self.zone),
            "humansize": human_size(0 if status.kind is EntryKind.DIRECTORY else status.size_bytes),
            "type": status.kind.value,
            "rwx": rwx(status),
            "mode": f"{mode_of(status):o}",
            "url": self.url(path),
            "is_sentry_managed": bool(self.managed) and self.is_managed(StoragePath(Scheme.HDFS, status.path)),
        }

    def flat(self, status: FileStatus) -> dict[str, object]:
        """Return the content of a `FlatFileEntry` as a dict."""
        return {**self._stats(status, None), "type": status.kind.value, "rwx": rwx(status)}

    def _stats(self, status: FileStatus, name: str | None) -> dict[str, object]:
        return {
            "path": f"{self.root}{status.path}",
            "name": status.path.rpartition("/")[2] if name is None else name,
            "size": 0 if status.kind is EntryKind.DIRECTORY else status.size_bytes,
            "atime": epoch_seconds(status.accessed_at),
            "mtime": epoch_seconds(status.modified_at),
            "mode": mode_of(status),
            "user": status.owner,
            "group": status.group,
            "aclBit": status.has_acl,
            "blockSize": status.block_size,
            "replication": status.replication,
        }


def mode_of(status: FileStatus) -> int:
    """Return the permissions including the file type bits."""
    return _TYPES[status.kind][0] | status.permissions


def rwx(status: FileStatus) -> str:
    """Return the mode as `drwxr-xr-x`, followed by `t` if the sticky bit is set and by `+` if there is an ACL."""
    bits = status.permissions
    letters = "".join([letter if bits & (0o400 >> bit) else "-" for bit, letter in enumerate("rwx" * 3)])
    return f"{_TYPES[status.kind][1]}{letters}{'t' if bits & _STICKY else ''}{'+' if status.has_acl else ''}"


def human_size(size_bytes: int) -> str:
    """Format a size in multiples of 1024, such as `12 bytes` or `5.9 MB`, with a no-break space."""
    if size_bytes < 1024:
        return f"{size_bytes}\u00a0{'byte' if size_bytes == 1 else 'bytes'}"
    size = size_bytes / 1024
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.1f}\u00a0{unit}"
        size /= 1024
    return f"{size:.1f}\u00a0{_UNITS[-1]}"


def epoch_seconds(time: datetime | None) -> int | None:
    """Return Unix time in seconds, rounded down."""
    return None if time is None else (time - _EPOCH) // timedelta(seconds=1)


def time_text(seconds: int | None, zone: tzinfo) -> str:
    """Format a Unix time in English, as `October 31, 2016 03:34 PM`. Return "" for None, 0 and times out of range."""
    if not seconds:
        return ""
    try:
        time = (_EPOCH + timedelta(seconds=seconds)).astimezone(zone)
    except OverflowError:
        return ""
    date = f"{_MONTHS[time.month - 1]} {time.day:02}, {time.year:04}"
    return f"{date} {time.hour % 12 or 12:02}:{time.minute:02} {'AM' if time.hour < 12 else 'PM'}"


def breadcrumbs(path: StoragePath) -> list[wire.Breadcrumb]:
    """Return the path and label of the root and of each component down to `path`."""
    root, names = ROOTS[path.scheme], path.names
    steps = [(root + "/".join(names[:number]), name) for number, name in enumerate(names, start=1)]
    return [wire.Breadcrumb(url=url, label=label) for url, label in [(root, root), *steps]]
