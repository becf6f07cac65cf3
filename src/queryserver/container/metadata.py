"""Services that look at data sources without an operation."""

from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import timedelta

from queryserver.db.catalog import ForwardedLooks, MetadataCacheRecords
from queryserver.db.database import Database
from queryserver.db.notices import Notices
from queryserver.interfaces.computation import Computing
from queryserver.interfaces.metrics import Metrics
from queryserver.interfaces.sessions import SessionRecords
from queryserver.interfaces.users import UserDirectory
from queryserver.services.byte_budget import ByteBudget
from queryserver.services.connectors import Connectors
from queryserver.services.credentials import CredentialBook
from queryserver.services.everything import MetadataServices
from queryserver.services.metadata.browsing import Metadata
from queryserver.services.metadata.cache import MetadataCache
from queryserver.services.metadata.elsewhere import Elsewhere, ElsewhereParts
from queryserver.services.metadata.explaining import Explanations
from queryserver.services.metadata.lookups import Heard, LookUpParts, LookUps
from queryserver.services.metadata.samples import Samples
from queryserver.services.metadata.statistics import Analyses
from queryserver.services.running.runner import Runner
from queryserver.services.statements.choosing import Choosing
from queryserver.services.statements.submission import Submissions
from queryserver.settings.editor import EditorSettings


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
