"""Builds the file stores and services from the settings.

To add a scheme, add a member to `Scheme` and its table entries and authority rules in `files/model.py`, its settings in
`platform/settings/stores.py`, a module in `files/stores` whose `build` function creates a `FileSystem`
(`files/protocol.py`) from these settings, an entry in `_MODULES` here, and its home directories in `_homes`.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import MappingProxyType
from urllib.parse import urlsplit

from queryserver.files.access import FileSystems, StorageAudit, Stores
from queryserver.files.directory_pages import ListingLimits, Listings
from queryserver.files.downloads import Excerpts, FileDownloads
from queryserver.files.model import ExtensionRules, PathReader, Scheme
from queryserver.files.moves import Moves, Transfers, final_body
from queryserver.files.operations import LongOperations, OperationTimes
from queryserver.files.part_uploads import PartUploading
from queryserver.files.protocol import FileSystem
from queryserver.files.repository import OperationRecords, TransferRecords
from queryserver.files.statement_files import StatementFileAccess
from queryserver.files.trash import Attributes, Creations, Deletions, Trash
from queryserver.files.upload_repository import OrphanSweep, PartUploads, UnfinishedWrites
from queryserver.files.uploads import UploadRules, Uploads, UploadSpace
from queryserver.identity.limits import Streams
from queryserver.identity.repository import AccountRepository
from queryserver.platform.database import Database
from queryserver.platform.logs import AUDIT
from queryserver.platform.machine_limits import disk_floor
from queryserver.platform.ownership import Ownership
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import Threads
from queryserver.workbooks.reader import ProcessWorkbooks


@dataclass(frozen=True, slots=True)
class StorageServices:
    stores: Stores
    audit: StorageAudit
    file_systems: FileSystems
    listings: Listings
    excerpts: Excerpts
    downloads: FileDownloads
    creations: Creations
    attributes: Attributes
    deletions: Deletions
    trash: Trash
    operations: LongOperations
    transfers: Transfers
    moves: Moves
    upload_rules: UploadRules
    uploads: Uploads
    part_uploads: PartUploading
    upload_space: UploadSpace
    orphans: OrphanSweep
    statement_files: StatementFileAccess


Builder = Callable[[Settings], FileSystem | None]

_MODULES: Mapping[Scheme, tuple[str, Callable[[Settings], object]]] = MappingProxyType(
    {
        Scheme.HDFS: ("webhdfs.storage", lambda settings: settings.hadoop.hdfs_clusters),
        Scheme.S3A: ("s3.storage", lambda settings: settings.aws.aws_accounts),
        Scheme.ABFS: (
            "adls.file_system",
            lambda settings: settings.azure.abfs_clusters or settings.azure.adls_clusters,
        ),
        Scheme.OFS: ("ozone", lambda settings: settings.desktop.ozone),
        Scheme.FILE: ("local.storage", lambda settings: settings.filebrowser.local_root),
    }
)
"""For each scheme, the module in `files.stores` whose `build` creates the store, and the settings that configure it."""


def _build(scheme: Scheme, settings: Settings) -> FileSystem | None:
    """Create the store, or return None if it is not configured. Its module and driver are imported only if needed."""
    name, configured = _MODULES[scheme]
    return import_module(f"queryserver.files.stores.{name}").build(settings) if configured(settings) else None


BUILDERS: Mapping[Scheme, Builder] = MappingProxyType({scheme: partial(_build, scheme) for scheme in Scheme})
"""Each function creates its scheme's store, or returns None if it is not configured. Raises ConfigurationError."""


@asynccontextmanager
async def open_storage(
    settings: Settings,
    database: Database,
    ownership: Ownership,
    streams: Streams,
    threads: Threads,
    builders: Mapping[Scheme, Builder] | None = None,
) -> AsyncGenerator[StorageServices]:
    """Open the stores until the context exits. Raises ConfigurationError.

    The caller must run `transfers.running`, `operations.running` and `orphans.running`.
    """
    browser, audit = settings.filebrowser, StorageAudit(AUDIT)
    extensions = ExtensionRules(allowed=browser.allow_file_extensions, restricted=browser.restrict_file_extensions)
    limits = ListingLimits(
        count=browser.listing_count_limit, sort=browser.listing_sort_limit, scan=browser.listing_scan_limit
    )
    async with open_stores(settings, builders) as stores, ProcessWorkbooks() as workbooks:
        records, unfinished = OperationRecords(database), UnfinishedWrites(database, ownership)
        times = OperationTimes(shutdown_grace=settings.desktop.shutdown_grace)
        parts = PartUploads(database, ownership)
        transfers = Transfers(TransferRecords(database), records, unfinished, stores, audit, final_body, ownership)
        orphans, rules = orphan_sweep(database, stores, ownership), _upload_rules(settings, stores, extensions)
        yield StorageServices(
            stores=stores,
            audit=audit,
            file_systems=FileSystems(stores, AccountRepository(database)),
            listings=Listings(limits),
            excerpts=_excerpts(settings, threads, workbooks),
            downloads=FileDownloads(stores, streams, audit, enabled=settings.desktop.enable_download),
            creations=Creations(stores, extensions, orphans, audit),
            attributes=Attributes(stores, audit),
            deletions=Deletions(stores, audit),
            trash=Trash(stores, audit),
            operations=LongOperations(records, ownership, times),
            transfers=transfers,
            moves=Moves(stores, extensions, transfers, orphans, audit),
            upload_rules=rules,
            uploads=Uploads(rules, orphans, audit, threads.uploads),
            part_uploads=PartUploading(stores, parts, rules, orphans, audit, threads.uploads),
            upload_space=UploadSpace(rules, stores, browser.local_root, threads.uploads, disk_floor(settings)),
            orphans=orphans,
            statement_files=StatementFileAccess(stores, rules, orphans, audit, max_scanned=browser.listing_scan_limit),
        )


def _upload_rules(settings: Settings, stores: Stores, extensions: ExtensionRules) -> UploadRules:
    browser = settings.filebrowser
    max_bytes = browser.max_file_size_upload_limit
    return UploadRules(
        stores, extensions, is_enabled=browser.show_upload_button, max_bytes=None if max_bytes < 0 else max_bytes
    )


def _excerpts(settings: Settings, threads: Threads, workbooks: ProcessWorkbooks) -> Excerpts:
    return Excerpts(
        threads.unpacking,
        workbooks,
        max_unpacked_bytes=settings.filebrowser.max_decompress_bytes,
        max_snappy_bytes=settings.filebrowser.max_snappy_decompression_size,
    )


def orphan_sweep(database: Database, stores: Stores, ownership: Ownership) -> OrphanSweep:
    return OrphanSweep(stores, UnfinishedWrites(database, ownership), PartUploads(database, ownership))


@asynccontextmanager
async def open_stores(settings: Settings, builders: Mapping[Scheme, Builder] | None = None) -> AsyncGenerator[Stores]:
    """Yield the configured stores, without connecting to them, and close them on exit. Raises ConfigurationError."""
    builders = BUILDERS if builders is None else builders
    async with AsyncExitStack() as stack:
        file_systems: list[FileSystem] = []
        for scheme in Scheme:
            if (build := builders.get(scheme)) and (file_system := build(settings)):
                stack.push_async_callback(file_system.close)
                file_systems.append(file_system)
        reader = _path_reader(settings, [file_system.scheme for file_system in file_systems])
        yield Stores(file_systems, reader, _homes(settings))


def _path_reader(settings: Settings, configured: list[Scheme]) -> PathReader:
    """Create a path reader for the configured authorities. It accepts HDFS name nodes with or without a port."""
    name_nodes = {_authority(cluster.fs_defaultfs) for cluster in settings.hadoop.hdfs_clusters.values()}
    name_nodes |= {name.rpartition(":")[0] for name in name_nodes}
    azure = [*settings.azure.abfs_clusters.values(), *settings.azure.adls_clusters.values()]
    return PathReader(
        configured=configured,
        name_nodes=frozenset(name_nodes - {""}),
        azure_account=_authority(azure[0].fs_defaultfs) if azure else "",
        ozone_services=tuple(_authority(service.fs_defaultfs) for service in settings.desktop.ozone.values()),
    )


def _authority(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2].lower()


def _homes(settings: Settings) -> Mapping[Scheme, str]:
    """Return home directories by scheme: `remote_storage_home` if it uses that scheme, otherwise the store's configured
    default.
    """
    homes: dict[Scheme, str] = {}
    for account in settings.aws.aws_accounts.values():
        homes.setdefault(Scheme.S3A, account.default_home_path)
    for cluster in [*settings.azure.abfs_clusters.values(), *settings.azure.adls_clusters.values()]:
        container = urlsplit(cluster.fs_defaultfs).netloc.rpartition("@")[0]
        homes.setdefault(Scheme.ABFS, cluster.default_home_path or (f"abfs://{container}" if container else ""))
    remote = settings.filebrowser.remote_storage_home
    for scheme in (Scheme.S3A, Scheme.ABFS):
        if remote.lower().startswith(f"{scheme}://"):
            homes[scheme] = remote
    return homes
