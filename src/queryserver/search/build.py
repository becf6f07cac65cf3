"""Builds the metadata search: its sources, the external catalog, and the tasks that maintain its index."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta

from queryserver.catalog.lookups import Lookups
from queryserver.connectors.registry import Connectors
from queryserver.files.access import Stores
from queryserver.files.model import Scheme
from queryserver.platform.addresses import address_rules
from queryserver.platform.database import Database
from queryserver.platform.http_client import HttpClient
from queryserver.platform.metrics import Metrics
from queryserver.platform.ownership import Ownership
from queryserver.platform.settings.sections import MetadataSettings
from queryserver.platform.settings.tree import Settings
from queryserver.search.index import IndexSource, IndexViews
from queryserver.search.model import SourceName
from queryserver.search.refresh import IndexFeed, IndexRefresh, RefreshLimits
from queryserver.search.repository import MetadataIndexRecords
from queryserver.search.saved_queries import DocumentSource
from queryserver.search.search import MetadataSearch
from queryserver.search.sources import StorageSource
from queryserver.statements.build import SharedResources


@dataclass(frozen=True, slots=True)
class SearchServices:
    """The search and the tasks that maintain its index. The tasks are None if the index is disabled."""

    search: MetadataSearch
    exchanges: HttpClient
    feed: IndexFeed | None
    refresh: IndexRefresh | None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with (
            self.exchanges,
            self.feed.running() if self.feed else nullcontext(),
            self.refresh.running() if self.refresh else nullcontext(),
        ):
            yield


def index_feed(settings: MetadataSettings, database: Database, connectors: Connectors) -> IndexFeed | None:
    index = settings.index
    if not index.enabled:
        return None
    records = MetadataIndexRecords(database)
    return IndexFeed(records, connectors, max_tables=index.max_tables, max_columns=index.max_columns)


def index_refresh(
    settings: MetadataSettings,
    database: Database,
    connectors: Connectors,
    lookups: Lookups,
    ownership: Ownership,
    metrics: Metrics,
) -> IndexRefresh | None:
    index = settings.index
    if not index.enabled:
        return None
    return IndexRefresh(
        ownership=ownership,
        records=MetadataIndexRecords(database),
        connectors=connectors,
        lookups=lookups,
        metrics=metrics,
        limits=RefreshLimits(timedelta(seconds=index.refresh_interval_s), index.max_tables, index.max_columns),
    )


def search_services(
    *,
    settings: Settings,
    database: Database,
    connectors: Connectors,
    stores: Stores,
    resources: SharedResources,
    feed: IndexFeed | None,
    refresh: IndexRefresh | None,
) -> SearchServices:
    metadata, threads = settings.metadata, resources.threads
    records = MetadataIndexRecords(database)
    atlas, exchanges, catalog = None, HttpClient(address_rules(settings)), metadata.catalog
    if catalog.api_url:
        from queryserver.search.atlas import AtlasCatalog  # noqa: PLC0415 few servers have one

        atlas = AtlasCatalog(catalog, exchanges)
    search = MetadataSearch(
        {
            SourceName.DOCUMENTS: DocumentSource(database, threads.searching),
            SourceName.SQL: IndexSource(
                records=records,
                connectors=connectors,
                views=IndexViews(records, threads.indexing),
                refresh=refresh,
                threads=threads.searching,
            ),
            SourceName.HDFS: StorageSource(stores, Scheme.HDFS, metadata.search),
            SourceName.S3: StorageSource(stores, Scheme.S3A, metadata.search),
        },
        atlas=atlas,
        interface=catalog.interface,
        metrics=resources.metrics,
    )
    return SearchServices(search, exchanges, feed, refresh)
