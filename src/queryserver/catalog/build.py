"""Builds the metadata services."""

from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import timedelta

from queryserver.catalog.browser import Analyses, CatalogBrowser, Samples
from queryserver.catalog.lookups import Lookups, MetadataCache, MetadataCacheRecords, ResultListener
from queryserver.catalog.plans import Plans
from queryserver.connectors.registry import Connectors
from queryserver.platform.database import Database
from queryserver.platform.settings.editor import EditorSettings
from queryserver.sql.statements import StatementChooser
from queryserver.statements.build import SharedResources, StatementServices
from queryserver.statements.session_repository import SessionRecords


@dataclass(frozen=True, slots=True)
class MetadataServices:
    lookups: Lookups
    browser: CatalogBrowser
    samples: Samples
    analyses: Analyses
    plans: Plans


def metadata_cache(
    database: Database, connectors: Connectors, threads: Executor, editor: EditorSettings
) -> MetadataCache:
    max_age = timedelta(seconds=editor.metadata_cache_s)
    return MetadataCache(MetadataCacheRecords(database), connectors, threads, max_age=max_age)


def metadata_services(
    *,
    editor: EditorSettings,
    connectors: Connectors,
    sessions: SessionRecords,
    cache: MetadataCache,
    resources: SharedResources,
    statements: StatementServices,
    on_result: ResultListener | None,
) -> MetadataServices:
    lookups = Lookups(
        connectors=connectors,
        credentials=statements.credentials,
        cache=cache,
        can_run=statements.runner.data.can_run,
        forwarding=statements.forwarding,
        external_data=statements.external_data,
        metrics=resources.metrics,
        on_result=on_result,
    )
    return MetadataServices(
        lookups=lookups,
        browser=CatalogBrowser(lookups, connectors, max_names=editor.metadata_max_names),
        samples=Samples(
            lookups,
            connectors,
            statements.submissions,
            resources.threads.rendering,
            resources.rendering,
            max_bytes=editor.batch_max_bytes,
        ),
        analyses=Analyses(lookups, connectors, statements.submissions),
        plans=Plans(
            lookups,
            connectors,
            sessions,
            statements.runner.sessions,
            StatementChooser(resources.computations),
            statements.submissions.parameters,
            max_bytes=editor.statement_max_bytes,
        ),
    )
