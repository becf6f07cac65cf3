"""All services of one process, as the container puts them together."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from queryserver.db.accounts import PreferenceRepository
from queryserver.interfaces.auth import Authenticator
from queryserver.interfaces.metrics import Metrics, MetricsText
from queryserver.interfaces.sealing import Sealer
from queryserver.interfaces.users import UserDirectory
from queryserver.services.accounts import Accounts
from queryserver.services.client_configuration import ClientConfiguration
from queryserver.services.configuration_check import ConfigurationCheck
from queryserver.services.connection_tests import ConnectionTests
from queryserver.services.connector_examples import ConnectorExamples
from queryserver.services.connector_instances import ConnectorInstances
from queryserver.services.connectors import Connectors
from queryserver.services.formatting import Formatting
from queryserver.services.importing.creating import TableCreations
from queryserver.services.importing.detecting import Detection
from queryserver.services.importing.previewing import Previews
from queryserver.services.importing.sources import ImportSources
from queryserver.services.importing.uploads import ImportUploads
from queryserver.services.logins import Logins
from queryserver.services.metadata.browsing import Metadata
from queryserver.services.metadata.elsewhere import Elsewhere
from queryserver.services.metadata.explaining import Explanations
from queryserver.services.metadata.lookups import LookUps
from queryserver.services.metadata.samples import Samples
from queryserver.services.metadata.statistics import Analyses
from queryserver.services.readiness import Readiness
from queryserver.services.request_limits import RequestLimits
from queryserver.services.retention import RetentionSweep
from queryserver.services.running.runner import Runner
from queryserver.services.search.index_feeding import IndexFeed
from queryserver.services.search.index_refresh import IndexRefresh
from queryserver.services.search.index_views import IndexViews
from queryserver.services.search.search import MetadataSearch
from queryserver.services.server_logs import ServerLogs
from queryserver.services.sessions import Sessions
from queryserver.services.standing import Standing
from queryserver.services.statements.administering import StatementAdministration
from queryserver.services.statements.downloading import Downloads
from queryserver.services.statements.reading import Reading
from queryserver.services.statements.status import Access, Ending, Following, History
from queryserver.services.statements.submission import Submissions
from queryserver.services.storage.attributes import Attributes
from queryserver.services.storage.auditing import StorageAudit
from queryserver.services.storage.creating import Creations
from queryserver.services.storage.deleting import Deletions
from queryserver.services.storage.downloading import FileDownloads
from queryserver.services.storage.filesystems import FileSystems
from queryserver.services.storage.leftovers import Leftovers
from queryserver.services.storage.listing import Listings
from queryserver.services.storage.moving import Moving
from queryserver.services.storage.operations import Operations
from queryserver.services.storage.part_uploads import PartUploading
from queryserver.services.storage.stores import Stores
from queryserver.services.storage.trash import Trash
from queryserver.services.storage.upload_rules import UploadRules, UploadSpace
from queryserver.services.storage.uploading import Uploads
from queryserver.services.storage.viewing import Viewing
from queryserver.services.streams import Streams
from queryserver.services.threads import Threads
from queryserver.services.tokens import Tokens
from queryserver.services.users import Users
from queryserver.settings import Settings


@dataclass(frozen=True, slots=True)
class AccountServices:
    """What routes and commands call about users."""

    authenticator: Authenticator
    directory: UserDirectory
    standing: Standing
    sealer: Sealer
    accounts: Accounts
    logins: Logins
    tokens: Tokens
    preferences: PreferenceRepository


@dataclass(frozen=True, slots=True)
class MetadataServices:
    """What looks at data sources without an operation, or to start one."""

    lookups: LookUps
    elsewhere: Elsewhere
    browsing: Metadata
    samples: Samples
    analyses: Analyses
    explanations: Explanations


@dataclass(frozen=True, slots=True)
class SearchServices:
    """The search, and what keeps its index while it is `running`."""

    search: MetadataSearch
    views: IndexViews
    exchanges: AbstractAsyncContextManager[object]
    feed: IndexFeed | None
    refresh: IndexRefresh | None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Keep the index while inside."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.exchanges)
            if self.feed is not None:
                await stack.enter_async_context(self.feed.running())
            if self.refresh is not None:
                await stack.enter_async_context(self.refresh.running())
            yield


@dataclass(frozen=True, slots=True)
class UploadServices:
    """What takes files in."""

    rules: UploadRules
    files: Uploads
    parts: PartUploading
    space: UploadSpace
    leftovers: Leftovers


@dataclass(frozen=True, slots=True)
class StorageServices:
    """What works on files."""

    stores: Stores
    audit: StorageAudit
    viewing: Viewing
    downloads: FileDownloads
    file_systems: FileSystems
    listings: Listings
    creations: Creations
    attributes: Attributes
    deletions: Deletions
    trash: Trash
    operations: Operations
    uploading: UploadServices
    moving: Moving


@dataclass(frozen=True, slots=True)
class ImportServices:
    """What makes tables of files."""

    uploads: ImportUploads
    sources: ImportSources
    detection: Detection
    previews: Previews
    tables: TableCreations


@dataclass(frozen=True, slots=True)
class ConfigurationServices:
    """What tells clients and administrators about this server."""

    clients: ClientConfiguration
    banner: str
    """Harmless HTML."""
    check: ConfigurationCheck
    logs: ServerLogs


@dataclass(frozen=True, slots=True)
class StoredConnectorServices:
    """What administers the connectors that are kept in the service database."""

    instances: ConnectorInstances
    examples: ConnectorExamples


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that routes and commands call."""

    settings: Settings
    accounts: AccountServices
    users: Users
    connectors: Connectors
    stored_connectors: StoredConnectorServices
    connection_tests: ConnectionTests
    access: Access
    submissions: Submissions
    following: Following
    reading: Reading
    formatting: Formatting
    downloads: Downloads
    ending: Ending
    history: History
    statement_administration: StatementAdministration
    sessions: Sessions
    metadata: MetadataServices
    searching: SearchServices
    storage: StorageServices
    importing: ImportServices
    configuration: ConfigurationServices
    streams: Streams
    request_limits: RequestLimits
    retention: RetentionSweep
    readiness: Readiness
    runner: Runner
    threads: Threads
    registry: CollectorRegistry
    metrics: Metrics
    metrics_text: MetricsText | None
    """None: nothing is counted."""
