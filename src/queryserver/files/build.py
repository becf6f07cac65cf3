"""Settings to stores, and what stands on them."""

from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Protocol, cast
from urllib.parse import urlsplit
from uuid import uuid4

from queryserver.files.changing import Attributes, Creations
from queryserver.files.downloading import FileDownloads
from queryserver.files.listing import ListingLimits, Listings
from queryserver.files.model import ExtensionRules, PathReader, Scheme
from queryserver.files.moving import Moving, Targets, final_body
from queryserver.files.operations import Operations, OperationTimes
from queryserver.files.part_uploads import KEEP, Joining, PartUploading, PartUploadTools, PartWriting
from queryserver.files.places import FileSystems, StorageAudit, Stores
from queryserver.files.protocol import FileSystem
from queryserver.files.repository import OperationRecords, TransferRecords
from queryserver.files.transfers import TransferParts, Transfers
from queryserver.files.trash import Deletions, Trash
from queryserver.files.upload_repository import Leftovers, PartUploads, UnfinishedWrites
from queryserver.files.uploading import UploadRules, Uploads, UploadSpace
from queryserver.files.viewing import Viewing
from queryserver.identity.callers import Streams
from queryserver.identity.repository import AccountRepository
from queryserver.platform.database import Database
from queryserver.platform.limits import disk_floor
from queryserver.platform.logs import AUDIT
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import Threads
from queryserver.workbooks.reader import AvroReader, ProcessWorkbooks


@dataclass(frozen=True, slots=True)
class UploadServices:
    """What takes files in."""

    rules: UploadRules
    files: Uploads
    parts: PartUploading
    space: UploadSpace
    leftovers: Leftovers


@dataclass(frozen=True, slots=True)
class UploadGround:
    """What uploads stand on."""

    settings: Settings
    database: Database
    threads: Executor
    stores: Stores
    extensions: ExtensionRules
    audit: StorageAudit


def upload_services(ground: UploadGround) -> UploadServices:
    """All that upload calls need."""
    records = PartUploads(ground.database)
    leftovers = leftovers_of(ground.database, ground.stores)
    rules = _rules(ground)
    joining = Joining(ground.stores, records, leftovers, ground.threads)
    tools = PartUploadTools(
        stores=ground.stores,
        records=records,
        rules=rules,
        leftovers=leftovers,
        joining=joining,
        writing=PartWriting(records, joining, ground.threads, keep=KEEP),
        audit=ground.audit,
    )
    return UploadServices(
        rules=rules,
        files=Uploads(rules, leftovers, ground.audit, ground.threads),
        parts=PartUploading(tools),
        space=UploadSpace(
            rules,
            ground.stores,
            ground.settings.filebrowser.local_root,
            ground.threads,
            disk_floor(ground.settings),
        ),
        leftovers=leftovers,
    )


def leftovers_of(database: Database, stores: Stores) -> Leftovers:
    """What removes unfinished uploads."""
    return Leftovers(stores, UnfinishedWrites(database), PartUploads(database))


def _rules(ground: UploadGround) -> UploadRules:
    filebrowser = ground.settings.filebrowser
    limit = filebrowser.max_file_size_upload_limit
    return UploadRules(
        ground.stores,
        ground.extensions,
        is_enabled=filebrowser.show_upload_button,
        max_bytes=None if limit < 0 else limit,
    )


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


Builder = Callable[[Settings], FileSystem | None]

_MODULES: Mapping[Scheme, str] = MappingProxyType(
    {
        Scheme.HDFS: "webhdfs.storage",
        Scheme.S3A: "s3.storage",
        Scheme.ABFS: "adls.file_system",
        Scheme.OFS: "ozone",
        Scheme.FILE: "local.storage",
    }
)
"""The modules below `files.stores` whose `build` makes the store of a scheme."""

_CONFIGURED: Mapping[Scheme, Callable[[Settings], object]] = MappingProxyType(
    {
        Scheme.HDFS: lambda settings: settings.hadoop.hdfs_clusters,
        Scheme.S3A: lambda settings: settings.aws.aws_accounts,
        Scheme.ABFS: lambda settings: settings.azure.abfs_clusters or settings.azure.adls_clusters,
        Scheme.OFS: lambda settings: settings.desktop.ozone,
        Scheme.FILE: lambda settings: settings.filebrowser.local_root,
    }
)


def _builder(scheme: Scheme) -> Builder:
    """The module of a store, and the driver that it needs, are imported only when the settings have the store."""

    def build(settings: Settings) -> FileSystem | None:
        if not _CONFIGURED[scheme](settings):
            return None
        module = cast("_Module", import_module(f"queryserver.files.stores.{_MODULES[scheme]}"))
        return module.build(settings)

    return build


class _Module(Protocol):
    """The module of a store."""

    def build(self, settings: Settings) -> FileSystem | None:
        """The store. Raises ConfigurationError."""
        ...


BUILDERS: Mapping[Scheme, Builder] = MappingProxyType({scheme: _builder(scheme) for scheme in Scheme})
"""What makes the store of a scheme; None when the settings have none."""


@dataclass(frozen=True, slots=True)
class StorageGround:
    """What the services of files stand on."""

    settings: Settings
    database: Database
    streams: Streams
    threads: Threads


@asynccontextmanager
async def open_storage(
    ground: StorageGround, builders: Mapping[Scheme, Builder] = BUILDERS
) -> AsyncGenerator[StorageServices]:
    """All services of files, running. Raises ConfigurationError."""
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(open_stores(ground.settings, builders))
        audit = StorageAudit(AUDIT)
        transfers = Transfers(_transfer_parts(ground, stores, audit))
        await stack.enter_async_context(transfers.running())
        times = OperationTimes(shutdown_grace=ground.settings.desktop.shutdown_grace)
        operations = Operations(OperationRecords(ground.database), times)
        await stack.enter_async_context(operations.running())
        rules = extension_rules(ground.settings)
        uploading = upload_services(
            UploadGround(ground.settings, ground.database, ground.threads.uploads, stores, rules, audit)
        )
        yield StorageServices(
            stores=stores,
            audit=audit,
            viewing=_viewing(ground.settings, ground.threads, await stack.enter_async_context(ProcessWorkbooks())),
            downloads=FileDownloads(stores, ground.streams, audit, enabled=ground.settings.desktop.enable_download),
            file_systems=FileSystems(stores, AccountRepository(ground.database)),
            listings=Listings(_listing_limits(ground.settings)),
            operations=operations,
            uploading=uploading,
            moving=Moving(Targets(stores, rules), transfers, uploading.leftovers, audit),
            creations=Creations(stores, rules, uploading.leftovers, audit),
            attributes=Attributes(stores, audit),
            deletions=Deletions(stores, audit),
            trash=Trash(stores, audit),
        )


def _transfer_parts(ground: StorageGround, stores: Stores, audit: StorageAudit) -> TransferParts:
    return TransferParts(
        owner=uuid4().hex,
        records=TransferRecords(ground.database),
        operations=OperationRecords(ground.database),
        unfinished=UnfinishedWrites(ground.database),
        stores=stores,
        audit=audit,
        body=final_body,
    )


def _listing_limits(settings: Settings) -> ListingLimits:
    filebrowser = settings.filebrowser
    return ListingLimits(
        count=filebrowser.listing_count_limit,
        sort=filebrowser.listing_sort_limit,
        scan=filebrowser.listing_scan_limit,
    )


def _viewing(settings: Settings, threads: Threads, avro: AvroReader) -> Viewing:
    return Viewing(
        threads.unpacking,
        threads.parquet,
        avro,
        max_unpacked_bytes=settings.filebrowser.max_decompress_bytes,
        max_snappy_bytes=settings.filebrowser.max_snappy_decompression_size,
    )


def extension_rules(settings: Settings) -> ExtensionRules:
    """Which extensions new files may have."""
    filebrowser = settings.filebrowser
    return ExtensionRules(allowed=filebrowser.allow_file_extensions, restricted=filebrowser.restrict_file_extensions)


@asynccontextmanager
async def open_stores(settings: Settings, builders: Mapping[Scheme, Builder] = BUILDERS) -> AsyncGenerator[Stores]:
    """The configured stores, closed at the end. Connects to nothing. Raises ConfigurationError."""
    async with AsyncExitStack() as stack:
        file_systems: list[FileSystem] = []
        for scheme in Scheme:
            if (build := builders.get(scheme)) and (file_system := build(settings)):
                stack.push_async_callback(file_system.close)
                file_systems.append(file_system)
        reader = path_reader(settings, [file_system.scheme for file_system in file_systems])
        yield Stores(file_systems, reader, _homes(settings))


def path_reader(settings: Settings, configured: list[Scheme]) -> PathReader:
    """Reads paths with the authorities of the settings."""
    return PathReader(
        configured=configured,
        name_nodes=frozenset(
            name for cluster in settings.hadoop.hdfs_clusters.values() for name in _name_node(cluster.fs_defaultfs)
        ),
        azure_account=_azure_account(settings),
        ozone_services=tuple(_authority(service.fs_defaultfs) for service in settings.desktop.ozone.values()),
    )


def _name_node(fs_defaultfs: str) -> set[str]:
    """The name service, or the name node with and without its port."""
    authority = _authority(fs_defaultfs)
    return {authority, authority.rpartition(":")[0]} - {""} if authority else set()


def _authority(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2].lower()


def _azure_account(settings: Settings) -> str:
    for cluster in [*settings.azure.abfs_clusters.values(), *settings.azure.adls_clusters.values()]:
        return _authority(cluster.fs_defaultfs)
    return ""


def _homes(settings: Settings) -> Mapping[Scheme, str]:
    """`remote_storage_home` where it is of that scheme, else the default home of the store."""
    homes: dict[Scheme, str] = {}
    for account in settings.aws.aws_accounts.values():
        homes.setdefault(Scheme.S3A, account.default_home_path)
    for cluster in [*settings.azure.abfs_clusters.values(), *settings.azure.adls_clusters.values()]:
        homes.setdefault(Scheme.ABFS, cluster.default_home_path or _default_container(cluster.fs_defaultfs))
    remote = settings.filebrowser.remote_storage_home
    for scheme in (Scheme.S3A, Scheme.ABFS):
        if remote.lower().startswith(f"{scheme}://"):
            homes[scheme] = remote
    return homes


def _default_container(fs_defaultfs: str) -> str:
    container = urlsplit(fs_defaultfs).netloc.rpartition("@")[0]
    return f"abfs://{container}" if container else ""
