"""All services of a process."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from queryserver.administration.build import ConfigurationServices
from queryserver.administration.readiness import Readiness
from queryserver.catalog.build import MetadataServices
from queryserver.connectors.connection_tests import ConnectionTests
from queryserver.connectors.instances import StoredConnectors
from queryserver.connectors.registry import Connectors
from queryserver.documents.documents import Documents
from queryserver.exports.build import ExportServices
from queryserver.files.build import StorageServices
from queryserver.identity.build import AccountServices
from queryserver.identity.limits import RequestLimits, Streams
from queryserver.identity.users import Users
from queryserver.imports.build import ImportServices
from queryserver.platform.metrics import Metrics, MetricsPage
from queryserver.platform.ownership import Ownership
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import Threads
from queryserver.search.build import SearchServices
from queryserver.statements.build import StatementServices
from queryserver.tasks.build import ScheduleServices, TaskServices
from queryserver.tasks.instances import Instances

if TYPE_CHECKING:
    from queryserver.tasks.broker import RedisBroker  # arq is not loaded by a server without the task server


@dataclass(frozen=True, slots=True)
class Services:
    """The services that handlers and commands call."""

    settings: Settings
    accounts: AccountServices
    users: Users
    connectors: Connectors
    stored_connectors: StoredConnectors
    connection_tests: ConnectionTests
    statements: StatementServices
    metadata: MetadataServices
    documents: Documents
    searching: SearchServices
    storage: StorageServices
    importing: ImportServices
    exporting: ExportServices
    configuration: ConfigurationServices
    streams: Streams
    request_limits: RequestLimits
    readiness: Readiness
    threads: Threads
    registry: CollectorRegistry
    metrics: Metrics
    metrics_text: MetricsPage | None
    """The metrics page, or None if metrics are disabled."""
    broker: "RedisBroker | None"
    """The broker, or None if the task server is disabled."""
    ownership: Ownership
    instances: Instances
    tasks: TaskServices
    scheduling: ScheduleServices
