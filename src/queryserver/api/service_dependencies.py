"""Dependency aliases for the services that handlers declare in their signatures."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from queryserver.administration.client_configuration import ClientConfiguration
from queryserver.administration.configuration_check import ConfigurationCheck
from queryserver.administration.readiness import Readiness
from queryserver.administration.server_logs import ServerLogs
from queryserver.api.dependencies import services_of
from queryserver.catalog.browser import Analyses, CatalogBrowser
from queryserver.catalog.plans import Plans
from queryserver.catalog.samples import Samples
from queryserver.connectors.connection_tests import ConnectionTests
from queryserver.connectors.instances import StoredConnectors
from queryserver.connectors.registry import Connectors
from queryserver.files.access import FileSystems, StorageAudit, Stores
from queryserver.files.changes import Attributes, Creations
from queryserver.files.directory_pages import Listings
from queryserver.files.downloads import FileDownloads
from queryserver.files.excerpts import Excerpts
from queryserver.files.moves import Moves
from queryserver.files.operations import LongOperations
from queryserver.files.part_uploads import PartUploading
from queryserver.files.trash import Deletions, Trash
from queryserver.files.uploads import UploadRules, Uploads, UploadSpace
from queryserver.identity.api_tokens import ApiTokens
from queryserver.identity.limits import Streams
from queryserver.identity.logins import Logins
from queryserver.identity.tokens import Tokens
from queryserver.identity.users import Users
from queryserver.imports.plans import TableCreations
from queryserver.imports.preview import Detection, Previews
from queryserver.imports.uploads import ImportSources, ImportUploads
from queryserver.platform.metrics import Metrics
from queryserver.platform.prometheus import MetricsPage
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import Threads
from queryserver.search.search import MetadataSearch
from queryserver.services import Services
from queryserver.sql.formatter import ScriptFormatter
from queryserver.statements.downloads import Downloads
from queryserver.statements.overview import StatementAdministration
from queryserver.statements.result_reader import ResultReader
from queryserver.statements.sessions import Sessions
from queryserver.statements.status import StatementAccess, StatementControl, StatementHistory, StatementReader
from queryserver.statements.submission import Submissions
from queryserver.tasks.mail import MailSender, Recipients
from queryserver.tasks.schedules import Schedules
from queryserver.tasks.submission import TaskService

T = TypeVar("T")


def _service(read: Callable[[Services], T]) -> Any:
    async def service(request: Request) -> T:  # async, because FastAPI runs plain functions in a thread
        return read(services_of(request))

    return Depends(service)


def _enabled_tasks(services: Services) -> TaskService:
    """Return the task service. Raises task_server_disabled if tasks are turned off."""
    services.tasks.service.require_enabled()
    return services.tasks.service


# Statements and results
DownloadsDep = Annotated[Downloads, _service(lambda services: services.statements.downloads)]
FormattingDep = Annotated[ScriptFormatter, _service(lambda services: services.statements.formatting)]
ResultReaderDep = Annotated[ResultReader, _service(lambda services: services.statements.result_reader)]
SessionsDep = Annotated[Sessions, _service(lambda services: services.statements.sessions)]
StatementAccessDep = Annotated[StatementAccess, _service(lambda services: services.statements.access)]
StatementAdministrationDep = Annotated[
    StatementAdministration, _service(lambda services: services.statements.administration)
]
StatementControlDep = Annotated[StatementControl, _service(lambda services: services.statements.control)]
StatementHistoryDep = Annotated[StatementHistory, _service(lambda services: services.statements.history)]
StatementReaderDep = Annotated[StatementReader, _service(lambda services: services.statements.reader)]
StreamsDep = Annotated[Streams, _service(lambda services: services.streams)]
SubmissionsDep = Annotated[Submissions, _service(lambda services: services.statements.submissions)]

# Engine metadata and search
AnalysesDep = Annotated[Analyses, _service(lambda services: services.metadata.analyses)]
CatalogBrowserDep = Annotated[CatalogBrowser, _service(lambda services: services.metadata.browser)]
PlansDep = Annotated[Plans, _service(lambda services: services.metadata.plans)]
MetadataSearchDep = Annotated[MetadataSearch, _service(lambda services: services.searching.search)]
SamplesDep = Annotated[Samples, _service(lambda services: services.metadata.samples)]

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

# Users and tokens
ApiTokensDep = Annotated[ApiTokens, _service(lambda services: services.accounts.api_tokens)]
LoginsDep = Annotated[Logins, _service(lambda services: services.accounts.logins)]
TokensDep = Annotated[Tokens, _service(lambda services: services.accounts.tokens)]
UsersDep = Annotated[Users, _service(lambda services: services.users)]

# Tasks and schedules
EnabledTasksDep = Annotated[TaskService, _service(_enabled_tasks)]
MailsDep = Annotated[MailSender, _service(lambda services: services.scheduling.mails)]
RecipientsDep = Annotated[Recipients, _service(lambda services: services.scheduling.recipients)]
SchedulesDep = Annotated[Schedules, _service(lambda services: services.scheduling.schedules)]
TasksDep = Annotated[TaskService, _service(lambda services: services.tasks.service)]

# The server itself
ClientConfigurationDep = Annotated[ClientConfiguration, _service(lambda services: services.configuration.clients)]
ConfigurationCheckDep = Annotated[ConfigurationCheck, _service(lambda services: services.configuration.check)]
BannerDep = Annotated[str, _service(lambda services: services.configuration.banner)]
MetricsDep = Annotated[Metrics, _service(lambda services: services.metrics)]
MetricsPageDep = Annotated[MetricsPage | None, _service(lambda services: services.metrics_text)]
ReadinessDep = Annotated[Readiness, _service(lambda services: services.readiness)]
ServerLogsDep = Annotated[ServerLogs, _service(lambda services: services.configuration.logs)]
SettingsDep = Annotated[Settings, _service(lambda services: services.settings)]
ThreadsDep = Annotated[Threads, _service(lambda services: services.threads)]
