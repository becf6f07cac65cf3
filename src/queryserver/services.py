"""All services of one process."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from queryserver.administration.build import ConfigurationServices
from queryserver.administration.readiness import Readiness
from queryserver.catalog.build import MetadataServices
from queryserver.connectors.connection_tests import ConnectionTests
from queryserver.connectors.engines import Connectors
from queryserver.connectors.instances import StoredConnectors
from queryserver.files.build import StorageServices
from queryserver.identity.build import AccountServices
from queryserver.identity.callers import RequestLimits, Streams
from queryserver.identity.users import Users
from queryserver.imports.build import ImportServices
from queryserver.platform.metrics import Metrics
from queryserver.platform.prometheus import MetricsPage
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import Threads
from queryserver.search.build import SearchServices
from queryserver.sql.formatting import Formatting
from queryserver.statements.downloads import Downloads
from queryserver.statements.overview import StatementAdministration
from queryserver.statements.paging import ResultReader
from queryserver.statements.retention import RetentionSweep
from queryserver.statements.runner import Runner
from queryserver.statements.sessions import Sessions
from queryserver.statements.status import Access, Ending, Following, History
from queryserver.statements.submission import Submissions


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that routes and commands call."""

    settings: Settings
    accounts: AccountServices
    users: Users
    connectors: Connectors
    stored_connectors: StoredConnectors
    connection_tests: ConnectionTests
    access: Access
    submissions: Submissions
    following: Following
    reading: ResultReader
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
    metrics_text: MetricsPage | None
    """None: nothing is counted."""
