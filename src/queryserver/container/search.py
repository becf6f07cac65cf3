"""The metadata search: its sources, its catalogues, and who keeps its index."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from queryserver.catalogs.atlas import AtlasCatalog, AtlasServer
from queryserver.catalogs.dummy import EmptyCatalog
from queryserver.container.interfaces.context import BuildContext
from queryserver.db.database import Database
from queryserver.db.search import DocumentRecords, MetadataIndexRecords
from queryserver.domain.files import Scheme
from queryserver.domain.searching import SourceName
from queryserver.interfaces.metrics import Metrics
from queryserver.interfaces.search import Catalog
from queryserver.network.exchanges import Exchanges
from queryserver.services.connectors import Connectors
from queryserver.services.everything import SearchServices
from queryserver.services.metadata.lookups import LookUps
from queryserver.services.search.documents import DocumentSource
from queryserver.services.search.index import IndexParts, IndexSource
from queryserver.services.search.index_feeding import IndexFeed
from queryserver.services.search.index_refresh import IndexRefresh, RefreshLimits, RefreshParts
from queryserver.services.search.index_views import IndexViews
from queryserver.services.search.scoping import Scoping
from queryserver.services.search.search import MetadataSearch, SearchParts
from queryserver.services.search.walks import StoreSearch, WalkBounds
from queryserver.services.storage.stores import Stores
from queryserver.services.threads import Threads
from queryserver.settings import Settings
from queryserver.settings.metadata import MetadataSettings


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
    exchanges = Exchanges(BuildContext.of(ground.settings).addresses)
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
