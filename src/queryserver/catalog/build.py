"""Services that look at data sources without an operation."""

from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import timedelta

from queryserver.catalog.browsing import Analyses, Metadata
from queryserver.catalog.cache import ForwardedLooks, MetadataCache, MetadataCacheRecords
from queryserver.catalog.explaining import Explanations
from queryserver.catalog.lookups import Elsewhere, ElsewhereParts, Heard, LookUpParts, LookUps
from queryserver.catalog.samples import Samples
from queryserver.connectors.engines import Connectors
from queryserver.identity.users import UserDirectory
from queryserver.platform.computing_protocol import Computing
from queryserver.platform.database import Database, Notices
from queryserver.platform.limits import ByteBudget
from queryserver.platform.metrics import Metrics
from queryserver.platform.settings.editor import EditorSettings
from queryserver.sql.splitter import Choosing
from queryserver.statements.runner import Runner
from queryserver.statements.session_repository import CredentialBook, SessionRecords
from queryserver.statements.submission import Submissions


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
class Ground:
    """What these services stand on."""

    editor: EditorSettings
    database: Database
    users: UserDirectory
    connectors: Connectors
    credentials: CredentialBook
    sessions: SessionRecords
    cache: MetadataCache
    threads: Executor
    rendering: ByteBudget
    computing: Computing
    metrics: Metrics
    heard: Heard | None = None


def metadata_cache(database: Database, threads: Executor, editor: EditorSettings) -> MetadataCache:
    """Answers of catalogues in the service database."""
    return MetadataCache(MetadataCacheRecords(database), threads, max_age=timedelta(seconds=editor.metadata_cache_s))


def metadata_services(ground: Ground, runner: Runner, notices: Notices, submissions: Submissions) -> MetadataServices:
    """Lists, descriptions, samples, statistics and plans, over the same looks."""
    editor, connectors = ground.editor, ground.connectors
    elsewhere = Elsewhere(
        ElsewhereParts(runner.owner, ForwardedLooks(ground.database), ground.users, connectors, notices)
    )
    lookups = LookUps(
        LookUpParts(
            connectors, ground.credentials, ground.cache, runner.may_run, elsewhere, ground.metrics, ground.heard
        )
    )
    return MetadataServices(
        lookups=lookups,
        elsewhere=elsewhere,
        browsing=Metadata(lookups, connectors, max_names=editor.metadata_max_names),
        samples=Samples(
            lookups,
            elsewhere,
            connectors,
            submissions,
            ground.threads,
            ground.rendering,
            max_bytes=editor.batch_max_bytes,
        ),
        analyses=Analyses(lookups, elsewhere, connectors, submissions),
        explanations=Explanations(
            lookups,
            elsewhere,
            connectors,
            ground.sessions,
            runner.held,
            Choosing(ground.computing),
            max_bytes=editor.statement_max_bytes,
        ),
    )
