"""The metadata search: its sources, its catalogues, and who keeps its index."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from queryserver.catalog.lookups import LookUps
from queryserver.connectors.engines import Connectors
from queryserver.files.model import Scheme
from queryserver.files.places import Stores
from queryserver.platform.addresses import address_rules
from queryserver.platform.database import Database
from queryserver.platform.metrics import Metrics
from queryserver.platform.outbound import Exchanges
from queryserver.platform.settings.sections import MetadataSettings
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import Threads
from queryserver.search.atlas import AtlasCatalog, AtlasServer, EmptyCatalog
from queryserver.search.feeding import IndexFeed, Scoping, StoreSearch, WalkBounds
from queryserver.search.index import IndexParts, IndexSource, IndexViews
from queryserver.search.model import Catalog, SourceName
from queryserver.search.refresh import IndexRefresh, RefreshLimits, RefreshParts
from queryserver.search.repository import DocumentRecords, MetadataIndexRecords
from queryserver.search.search import DocumentSource, MetadataSearch, SearchParts


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
class SearchGround:
    """What the search stands on. `feed` None: the index is switched off."""

    settings: Settings
    database: Database
    connectors: Connectors
    stores: Stores
    threads: Threads
    metrics: Metrics
    feed: IndexFeed | None


def index_feed(settings: MetadataSettings, database: Database, connectors: Connectors) -> IndexFeed | None:
    """What takes the answers that the editor gets; None when the index is switched off."""
    index = settings.index
    if not index.enabled:
        return None
    return IndexFeed(
        MetadataIndexRecords(database),
        Scoping(connectors),
        max_tables=index.max_tables,
        max_columns=index.max_columns,
    )


def search_services(ground: SearchGround, lookups: LookUps, owner: str) -> SearchServices:
    """The search over its four sources; `owner` names this process."""
    settings = ground.settings.metadata
    records, scoping = MetadataIndexRecords(ground.database), Scoping(ground.connectors)
    refresh = None
    if settings.index.enabled:
        index = settings.index
        refresh = IndexRefresh(
            RefreshParts(owner, records, ground.connectors, lookups, scoping, ground.metrics),
            RefreshLimits(timedelta(seconds=index.refresh_interval_s), index.max_tables, index.max_columns),
        )
    views = IndexViews(records, ground.threads.indexing)
    bounds = WalkBounds(settings.search.max_entries, settings.search.max_dirs, settings.search.max_seconds)
    exchanges = Exchanges(address_rules(ground.settings))
    parts = SearchParts(
        sources={
            SourceName.DOCUMENTS: DocumentSource(DocumentRecords(ground.database), ground.threads.searching),
            SourceName.SQL: IndexSource(
                IndexParts(records, ground.connectors, scoping, views, refresh, ground.threads.searching)
            ),
            SourceName.HDFS: StoreSearch(ground.stores, Scheme.HDFS, bounds),
            SourceName.S3: StoreSearch(ground.stores, Scheme.S3A, bounds),
        },
        catalogs=_catalogs(settings, exchanges),
        interface=settings.catalog.interface,
        metrics=ground.metrics,
    )
    return SearchServices(MetadataSearch(parts), views, exchanges, ground.feed, refresh)


def _catalogs(settings: MetadataSettings, exchanges: Exchanges) -> Mapping[str, Catalog | None]:
    """By the names that a call may give; None: its settings are missing."""
    catalog = settings.catalog
    atlas = None
    if catalog.api_url:
        atlas = AtlasCatalog(
            AtlasServer(
                url=catalog.api_url,
                user=catalog.server_user,
                password=catalog.server_password.get_secret_value(),
                cluster=catalog.search_cluster,
                timeout_s=catalog.timeout_s,
            ),
            exchanges,
        )
    return {"atlas": atlas, "dummy": EmptyCatalog()}
