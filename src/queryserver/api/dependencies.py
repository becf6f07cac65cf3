"""FastAPI dependencies that handlers declare: the caller, the request fields, and the services."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import quote

import structlog
from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.datastructures import URL, Headers
from starlette.types import Scope as AsgiScope

from queryserver.administration.client_configuration import ClientConfiguration
from queryserver.administration.configuration_check import ConfigurationCheck
from queryserver.administration.examination import Doctor
from queryserver.administration.readiness import Readiness
from queryserver.api import bodies
from queryserver.api.addresses import client_address
from queryserver.api.middlewares import CALL, PRINTABLE, CallRecord
from queryserver.api.schemas.fields import Fields, parse
from queryserver.catalog.browser import Analyses, CatalogBrowser, Samples
from queryserver.catalog.plans import Plans
from queryserver.connectors.connection_tests import ConnectionTests
from queryserver.connectors.instances import StoredConnectors
from queryserver.connectors.registry import Connectors
from queryserver.documents.documents import Documents
from queryserver.errors.base import InsufficientScope, admin_required, issuer_not_configured
from queryserver.exports.build import ExportServices
from queryserver.files.access import FileSystems, StorageAudit, Stores
from queryserver.files.directory_pages import Listings
from queryserver.files.downloads import Excerpts, FileDownloads
from queryserver.files.moves import Moves
from queryserver.files.operations import LongOperations
from queryserver.files.part_uploads import PartUploading
from queryserver.files.trash import Attributes, Creations, Deletions, Trash
from queryserver.files.uploads import UploadRules, Uploads, UploadSpace
from queryserver.identity.administration import UserAdministration
from queryserver.identity.api_tokens import ApiTokens
from queryserver.identity.issuer_logins import IssuerLogins
from queryserver.identity.limits import Streams
from queryserver.identity.logins import Logins
from queryserver.identity.model import Scope, User
from queryserver.identity.tickets import DownloadTickets
from queryserver.identity.tokens import Tokens
from queryserver.identity.users import Users
from queryserver.imports.plans import TableCreations
from queryserver.imports.preview import Detection, Previews
from queryserver.imports.uploads import ImportSources, ImportUploads
from queryserver.platform.logs import ServerLogs
from queryserver.platform.metrics import Metrics, MetricsPage
from queryserver.platform.networks import Network, contains
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import Threads
from queryserver.search.search import MetadataSearch
from queryserver.services import Services
from queryserver.sql.formatter import ScriptFormatter
from queryserver.statements.budgets import Budgets
from queryserver.statements.downloads import Downloads
from queryserver.statements.grants import Shares
from queryserver.statements.overview import StatementAdministration
from queryserver.statements.result_reader import ResultReader
from queryserver.statements.sessions import Sessions
from queryserver.statements.status import StatementAccess, StatementControl, StatementHistory, StatementReader
from queryserver.tasks.instances import Instances
from queryserver.tasks.notifications import MailSender, Recipients
from queryserver.tasks.schedules import Schedules
from queryserver.tasks.submission import TaskService

T = TypeVar("T")


def services_of(request: Request) -> Services:
    return cast("Services", request.app.state.services)


def dependency(call: Callable[..., Any]) -> Any:
    """Create a dependency of a handler.

    FastAPI determines the scope of a dependency without an explicit one again at each call, which takes half of the
    time for resolving it (docs/benchmarks.md). Scopes make a difference only for generators, which are not used here.
    """
    return Depends(call, scope="function")


class ReceivedCall:
    """A call as it is passed to authenticators.

    Properties are computed when they are read, because most authenticators need only the headers.
    """

    __slots__ = ("_request", "_trusted", "raw_headers")

    def __init__(self, request: Request, trusted: Sequence[Network]) -> None:
        self._request = request
        self._trusted = trusted
        self.raw_headers: Sequence[tuple[bytes, bytes]] = request.scope["headers"]

    @property
    def method(self) -> str:
        """The method in upper case. A HEAD request keeps this method, although it is routed as GET."""
        return self._received["method"]

    @property
    def url(self) -> str:
        """The complete URL as the client sent it, including the query string."""
        scope = self._received
        # The raw path includes the configured URL prefix, any trailing slash, and the client's percent-encoding.
        if raw_path := scope.get("raw_path"):
            scope = {**scope, "path": quote(raw_path.partition(b"?")[0], safe=PRINTABLE)}
        return str(URL(scope=scope))

    @property
    def target(self) -> str:
        """The path, with the configured URL prefix, and the query string as the client sent them."""
        path = self._received.get("raw_path", b"").partition(b"?")[0]
        return (path + b"?" + self._received["query_string"]).decode("latin-1")

    @property
    def headers(self) -> Headers:
        return self._request.headers

    @property
    def client(self) -> str:
        """The client address: the peer, or the address that a trusted proxy reports.

        `unknown` if the proxy's headers disagree or contain no valid address.
        """
        return client_address(self._request, self._trusted)

    @property
    def is_from_trusted_proxy(self) -> bool:
        peer = self._request.client
        return peer is not None and contains(self._trusted, peer.host)

    @property
    def _received(self) -> AsgiScope:
        record: CallRecord | None = self._request.scope.get(CALL)
        return self._request.scope if record is None else record.received


def without_ticket(target: str, url_prefix: str) -> tuple[str, str]:
    """Return a URL without prefix and ticket, and the ticket, which must be the last parameter of the query string."""
    url, mark, ticket = target.removeprefix(url_prefix.rstrip("/")).rpartition("ticket=")
    return (url[:-1], ticket) if mark and url.endswith(("?", "&")) else ("", "")


async def authenticated(request: Request, *, by_ticket: bool = False) -> User:
    """Return the authenticated user, and refresh the connectors if the user's rights refer to a newer version.

    With `by_ticket`, a download ticket in the query string also identifies the caller (Contract platform 3.14). Waits
    for a free slot while the user has too many running calls. Raises NotAuthenticated, TooManyRequests.
    """
    services = services_of(request)
    call = ReceivedCall(request, services.settings.desktop.trusted_proxies)
    if by_ticket and "authorization" not in call.headers and "ticket" in request.query_params:
        url, ticket = without_ticket(call.target, services.settings.desktop.url_prefix)
        user = await services.accounts.tickets.user(ticket, url)
    else:
        user = await services.accounts.authenticator.authenticate(call)
    record: CallRecord | None = request.scope.get(CALL)
    if record is not None:
        record.username = user.username
    if user.api_token is not None:
        # Adds the token's id to every log line and audit event of this call.
        structlog.contextvars.bind_contextvars(token_id=str(user.api_token.id))
    if services.request_limits.are_on:
        services.request_limits.count_user(user.id)
    if record is not None:
        await record.take_slot(user.id)
    if user.connectors_version > services.connectors.version:
        await services.connectors.at_least(user.connectors_version)
    return user


class Caller:
    """Dependency that returns the user who makes the call. Raises NotAuthenticated, InsufficientScope, admin_required.

    `scope` is the scope that an API token needs in addition to its user's rights (ADR 62). With `by_ticket`, the call
    also accepts download tickets.
    """

    def __init__(self, scope: Scope | None, *, is_admin: bool, by_ticket: bool = False) -> None:
        self.scope = scope
        self.is_admin = is_admin
        self.by_ticket = by_ticket

    async def __call__(self, request: Request) -> User:
        user = await authenticated(request, by_ticket=self.by_ticket)
        # Scopes apply only to API tokens.
        if self.scope is not None and user.api_token is not None and not user.has_scope(self.scope):
            raise InsufficientScope(self.scope)
        if self.is_admin and not user.is_admin:
            raise admin_required("You must be an administrator.")
        request.scope["user"] = user
        return user


def caller(scope: Scope | None = None, *, is_admin: bool = False, by_ticket: bool = False) -> Any:
    """Create the dependency for `Annotated[User, caller(…)]`.

    It requires the scope and, if `is_admin` is set, an administrator.
    """
    return dependency(Caller(scope, is_admin=is_admin, by_ticket=by_ticket))


def solved_order(dependant: Dependant) -> Iterator[Callable[..., Any] | None]:
    """Yield the dependencies of a route, including nested ones, in the order in which FastAPI resolves them."""
    for one in dependant.dependencies:
        yield from solved_order(one)
        yield one.call


def caller_of(route: APIRoute) -> Caller | None:
    """Return the `Caller` dependency of a route, or None if the route needs no credentials."""
    return next((one for one in solved_order(route.dependant) if isinstance(one, Caller)), None)


AnyUser = Annotated[User, caller()]
QueryUser = Annotated[User, caller(Scope.QUERY)]
ReadUser = Annotated[User, caller(Scope.QUERY_READ)]
"""A user whose token may at least read metadata and results, and run statements that change nothing."""
ResultDownloader = Annotated[User, caller(Scope.QUERY_READ, by_ticket=True)]
"""Like `ReadUser`, also with a download ticket in place of a token."""
Admin = Annotated[User, caller(Scope.ADMIN, is_admin=True)]


async def count_client(request: Request) -> str:
    """Count a call without credentials against its client's rate limit, and return the address (Contract platform 1.6).

    Raises TooManyRequests before the request body is read.
    """
    services = services_of(request)
    address = client_address(request, services.settings.desktop.trusted_proxies)
    if services.request_limits.are_on:
        services.request_limits.count_address(address)
    return address


ClientDep = Annotated[str, dependency(count_client)]


_READ_BODY = "queryserver.read_body"
"""Scope key of a body that was read early, because the call makes a check before its fields are validated."""


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """Limit on the size of a call's body. `setting` is the name of the setting that defines it, or empty."""

    setting: str
    of: Callable[[Settings], int]


_BODY_LIMIT = BodyLimit("limits.max_body_bytes", lambda settings: settings.limits.max_body_bytes)
_EDITOR_BODY_LIMIT = BodyLimit("editor.request_body_max_bytes", lambda settings: settings.editor.request_body_max_bytes)


async def _read_body(request: Request, limit: BodyLimit, repeated: Collection[str] = ()) -> bodies.Body:
    if request.method == "GET":
        return bodies.query_fields(request, repeated)
    max_bytes, user_id = limit.of(services_of(request).settings), request.scope["user"].id
    return await bodies.read_body(request, max_bytes=max_bytes, setting=limit.setting, user_id=user_id)


class FieldsReader:
    """Dependency that reads the fields of a call. `model` describes the fields, and is None if the call has none."""

    def __init__(self, model: type[Fields] | None) -> None:
        self.model = model


class ModelFields(FieldsReader):
    """Dependency that returns the fields of a call as a model, read from the body or from the query string of a GET.

    Raises InvalidRequest, and the errors of `read_body`.
    """

    def __init__(
        self,
        model: type[Fields],
        limit: BodyLimit,
        *,
        parse: Callable[..., Fields] = parse,
        repeated: Collection[str] = (),
    ) -> None:
        """`parse` creates the model. `repeated` names the query parameters that keep all values."""
        super().__init__(model)
        self._fields = model
        self._limit = limit
        self._parse = parse
        self._repeated = repeated

    async def __call__(self, request: Request) -> Fields:
        services, user = services_of(request), request.scope["user"]
        body = request.scope.get(_READ_BODY) or await _read_body(request, self._limit, self._repeated)
        bodies.note_read(request.scope, self._fields)
        parsed = partial(self._parse, self._fields, body.fields, max_json_depth=services.settings.limits.max_json_depth)
        if not body.is_large:
            return parsed()
        return await services.threads.bodies.run(user.id, lambda _: parsed())


def fields(model: type[Fields], *, repeated: Collection[str] = ()) -> Any:
    """Create the dependency for `Annotated[Model, fields(Model)]`, which returns the fields of the call.

    `repeated` names the query parameters that keep all values.
    """
    return dependency(ModelFields(model, _BODY_LIMIT, repeated=repeated))


def editor_fields(model: type[Fields]) -> Any:
    """Create a dependency like `fields` for editor calls, whose bodies may contain long scripts."""
    return dependency(ModelFields(model, _EDITOR_BODY_LIMIT))


class IgnoredBody(FieldsReader):
    """Dependency for calls without fields: reads the body within the limits and ignores any fields.

    The response header X-Unknown-Fields lists the ignored fields. Raises the errors of `read_body`.
    """

    def __init__(self, limit: BodyLimit) -> None:
        super().__init__(None)
        self._limit = limit

    async def __call__(self, request: Request) -> None:
        await _read_body(request, self._limit)


async def _keep_body(request: Request) -> None:
    request.scope[_READ_BODY] = await _read_body(request, _BODY_LIMIT)


BodyDep = Annotated[None, dependency(_keep_body)]
"""Reads the body, for calls that make a check before a later dependency validates the fields."""
NoFields = Annotated[None, dependency(IgnoredBody(_BODY_LIMIT))]
NoEditorFields = Annotated[None, dependency(IgnoredBody(_EDITOR_BODY_LIMIT))]


class UncheckedForm(FieldsReader):
    """Dependency that returns the raw fields of a POST without credentials, which the handler validates.

    Raises the errors of `read_body`.
    """

    def __init__(self, model: type[Fields]) -> None:
        super().__init__(model)
        self._fields = model

    async def __call__(self, request: Request) -> Mapping[str, Any]:
        # Set before the body is read, so that the response lists unread query parameters even if the body is rejected.
        request.scope[bodies.SEEN_FIELDS] = bodies.SeenFields()
        bodies.note_read(request.scope, self._fields)
        max_bytes = _BODY_LIMIT.of(services_of(request).settings)
        return (await bodies.read_body(request, max_bytes=max_bytes, setting=_BODY_LIMIT.setting)).fields


class UnreadForm(FieldsReader):
    """Dependency for calls without credentials and fields: reads the body within the limits and ignores any fields."""

    def __init__(self) -> None:
        super().__init__(None)

    async def __call__(self, request: Request) -> None:
        max_bytes = _BODY_LIMIT.of(services_of(request).settings)
        await bodies.read_body(request, max_bytes=max_bytes, setting=_BODY_LIMIT.setting)


NoPublicFields = Annotated[None, dependency(UnreadForm())]


def unchecked_fields(model: type[Fields]) -> Any:
    """Create the dependency for `Annotated[Mapping[str, Any], unchecked_fields(Model)]`.

    `Model` describes the fields in the API description, but does not validate them.
    """
    return dependency(UncheckedForm(model))


class PublicFields(FieldsReader):
    """Dependency that returns the fields of a POST without credentials as a model.

    Raises InvalidRequest, and the errors of `read_body`.
    """

    def __init__(self, model: type[Fields]) -> None:
        super().__init__(model)
        self._form = UncheckedForm(model)
        self._fields = model

    async def __call__(self, request: Request) -> Fields:
        limits = services_of(request).settings.limits
        return parse(self._fields, await self._form(request), max_json_depth=limits.max_json_depth)


def public_fields(model: type[Fields]) -> Any:
    """Create the dependency for `Annotated[Model, public_fields(Model)]`, for calls without credentials."""
    return dependency(PublicFields(model))


def _service(read: Callable[[Services], T]) -> Any:
    async def service(request: Request) -> T:  # async, because FastAPI runs plain functions in a thread
        return read(services_of(request))

    return dependency(service)


def _issuer_logins(services: Services) -> IssuerLogins:
    """Return the logins at the external issuer. Raises issuer_not_configured."""
    if services.accounts.issuer_logins is None:
        raise issuer_not_configured()
    return services.accounts.issuer_logins


def _enabled_tasks(services: Services) -> TaskService:
    """Return the task service. Raises task_server_disabled if tasks are turned off."""
    services.tasks.service.require_enabled()
    return services.tasks.service


# Statements and results
DownloadsDep = Annotated[Downloads, _service(lambda services: services.statements.downloads)]
FormattingDep = Annotated[ScriptFormatter, _service(lambda services: services.statements.formatting)]
ResultReaderDep = Annotated[ResultReader, _service(lambda services: services.statements.result_reader)]
SharesDep = Annotated[Shares, _service(lambda services: services.statements.shares)]
SessionsDep = Annotated[Sessions, _service(lambda services: services.statements.sessions)]
StatementAccessDep = Annotated[StatementAccess, _service(lambda services: services.statements.access)]
StatementAdministrationDep = Annotated[
    StatementAdministration, _service(lambda services: services.statements.administration)
]
StatementControlDep = Annotated[StatementControl, _service(lambda services: services.statements.control)]
StatementHistoryDep = Annotated[StatementHistory, _service(lambda services: services.statements.history)]
StatementReaderDep = Annotated[StatementReader, _service(lambda services: services.statements.reader)]
StreamsDep = Annotated[Streams, _service(lambda services: services.streams)]

# Engine metadata and search
AnalysesDep = Annotated[Analyses, _service(lambda services: services.metadata.analyses)]
CatalogBrowserDep = Annotated[CatalogBrowser, _service(lambda services: services.metadata.browser)]
PlansDep = Annotated[Plans, _service(lambda services: services.metadata.plans)]
MetadataSearchDep = Annotated[MetadataSearch, _service(lambda services: services.searching.search)]
SamplesDep = Annotated[Samples, _service(lambda services: services.metadata.samples)]

# Documents
DocumentsDep = Annotated[Documents, _service(lambda services: services.documents)]

# Connectors
ConnectionTestsDep = Annotated[ConnectionTests, _service(lambda services: services.connection_tests)]
ConnectorsDep = Annotated[Connectors, _service(lambda services: services.connectors)]
StoredConnectorsDep = Annotated[StoredConnectors, _service(lambda services: services.stored_connectors)]

# Files
AttributesDep = Annotated[Attributes, _service(lambda services: services.storage.attributes)]
CreationsDep = Annotated[Creations, _service(lambda services: services.storage.creations)]
DeletionsDep = Annotated[Deletions, _service(lambda services: services.storage.deletions)]
ExcerptsDep = Annotated[Excerpts, _service(lambda services: services.storage.excerpts)]
FileDownloadsDep = Annotated[FileDownloads, _service(lambda services: services.storage.downloads)]
FileSystemsDep = Annotated[FileSystems, _service(lambda services: services.storage.file_systems)]
FileUploadsDep = Annotated[Uploads, _service(lambda services: services.storage.uploads)]
ListingsDep = Annotated[Listings, _service(lambda services: services.storage.listings)]
LongOperationsDep = Annotated[LongOperations, _service(lambda services: services.storage.operations)]
MovesDep = Annotated[Moves, _service(lambda services: services.storage.moves)]
PartUploadsDep = Annotated[PartUploading, _service(lambda services: services.storage.part_uploads)]
StorageAuditDep = Annotated[StorageAudit, _service(lambda services: services.storage.audit)]
StoresDep = Annotated[Stores, _service(lambda services: services.storage.stores)]
TrashDep = Annotated[Trash, _service(lambda services: services.storage.trash)]
UploadRulesDep = Annotated[UploadRules, _service(lambda services: services.storage.upload_rules)]
UploadSpaceDep = Annotated[UploadSpace, _service(lambda services: services.storage.upload_space)]

# Imports
DetectionDep = Annotated[Detection, _service(lambda services: services.importing.detection)]
ImportSourcesDep = Annotated[ImportSources, _service(lambda services: services.importing.sources)]
ImportUploadsDep = Annotated[ImportUploads, _service(lambda services: services.importing.uploads)]
PreviewsDep = Annotated[Previews, _service(lambda services: services.importing.previews)]
TableCreationsDep = Annotated[TableCreations, _service(lambda services: services.importing.tables)]

# Exports
ExportsDep = Annotated[ExportServices, _service(lambda services: services.exporting)]

# Users and tokens
BudgetsDep = Annotated[Budgets, _service(lambda services: services.statements.budgets)]
ApiTokensDep = Annotated[ApiTokens, _service(lambda services: services.accounts.api_tokens)]
IssuerLoginsDep = Annotated[IssuerLogins, _service(_issuer_logins)]
IssuerLoginsOrNoneDep = Annotated[IssuerLogins | None, _service(lambda services: services.accounts.issuer_logins)]
LoginsDep = Annotated[Logins, _service(lambda services: services.accounts.logins)]
TicketsDep = Annotated[DownloadTickets, _service(lambda services: services.accounts.tickets)]
TokensDep = Annotated[Tokens, _service(lambda services: services.accounts.tokens)]
UserAdministrationDep = Annotated[UserAdministration, _service(lambda services: services.accounts.administration)]
UsersDep = Annotated[Users, _service(lambda services: services.users)]

# Tasks and schedules
EnabledTasksDep = Annotated[TaskService, _service(_enabled_tasks)]
RecipientsDep = Annotated[Recipients, _service(lambda services: services.scheduling.recipients)]
MailsDep = Annotated[MailSender, _service(lambda services: services.scheduling.mails)]
SchedulesDep = Annotated[Schedules, _service(lambda services: services.scheduling.schedules)]
TasksDep = Annotated[TaskService, _service(lambda services: services.tasks.service)]

# The server itself
ClientConfigurationDep = Annotated[ClientConfiguration, _service(lambda services: services.configuration.clients)]
ConfigurationCheckDep = Annotated[ConfigurationCheck, _service(lambda services: services.configuration.check)]
DoctorDep = Annotated[Doctor, _service(lambda services: services.configuration.doctor)]
InstancesDep = Annotated[Instances, _service(lambda services: services.instances)]
BannerDep = Annotated[str, _service(lambda services: services.configuration.banner)]
MetricsDep = Annotated[Metrics, _service(lambda services: services.metrics)]
MetricsPageDep = Annotated[MetricsPage | None, _service(lambda services: services.metrics_text)]
ReadinessDep = Annotated[Readiness, _service(lambda services: services.readiness)]
ServerLogsDep = Annotated[ServerLogs, _service(lambda services: services.configuration.logs)]
SettingsDep = Annotated[Settings, _service(lambda services: services.settings)]
ThreadsDep = Annotated[Threads, _service(lambda services: services.threads)]
