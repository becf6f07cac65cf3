"""Settings to what makes tables of files."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from queryserver.catalog.build import MetadataServices
from queryserver.connectors.engines import Connectors
from queryserver.files.places import Stores
from queryserver.files.stores.local.storage import LocalUploadArea
from queryserver.identity.users import UserDirectory
from queryserver.imports.create_table import TableCreationParts, TableCreations
from queryserver.imports.preview import Detection, Previews
from queryserver.imports.repository import DatabaseImportUploads, ImportJanitor, ImportLeftovers, JanitorParts
from queryserver.imports.running import ImportParts, Imports
from queryserver.imports.uploads import ImportSources, ImportUploads, UploadAreaKeeping, UploadLimits, UploadUsage
from queryserver.platform.computing_protocol import Computing
from queryserver.platform.database import Database
from queryserver.platform.limits import DiskFloor, FairPlaces, disk_floor
from queryserver.platform.settings.stores import ImporterSettings
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import FairThreads
from queryserver.statements.session_repository import CredentialBook
from queryserver.statements.submission import Submissions
from queryserver.workbooks.reader import ProcessWorkbooks, WorkbookReader


@dataclass(frozen=True, slots=True)
class ImportServices:
    """What makes tables of files."""

    uploads: ImportUploads
    sources: ImportSources
    detection: Detection
    previews: Previews
    tables: TableCreations


_THREADS = 2
_FILES_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class ImportFiles:
    """Files that can be imported, and what is made of them without a database of the user's."""

    uploads: ImportUploads
    area: UploadAreaKeeping
    sources: ImportSources
    workbooks: WorkbookReader
    leftovers: ImportLeftovers
    threads: Executor
    """Of imports alone: they do not keep others waiting, and few threads keep few heaps."""
    import_lost: asyncio.Event
    """Set when an import has ended with its server."""
    scratch_dir: Path
    """Where imports keep rows on their way."""
    floor: DiskFloor
    """Below it nothing is kept there."""


@dataclass(frozen=True, slots=True)
class ImportGround:
    """What the services of the importer stand on."""

    files: ImportFiles
    threads: FairThreads
    computing: Computing
    connectors: Connectors
    credentials: CredentialBook
    metadata: MetadataServices
    submissions: Submissions


@asynccontextmanager
async def open_import_files(settings: Settings, database: Database, stores: Stores) -> AsyncGenerator[ImportFiles]:
    """The upload area and the reader of workbooks, closed at the end. Raises ConfigurationError."""
    records = DatabaseImportUploads(database)
    limits = _limits(settings.importer)
    async with AsyncExitStack() as stack:
        floor = disk_floor(settings)
        area = await stack.enter_async_context(LocalUploadArea(settings.uploads_dir, floor=floor))
        workbooks = await stack.enter_async_context(ProcessWorkbooks())
        threads = stack.enter_context(ThreadPoolExecutor(_THREADS, thread_name_prefix="importing"))
        uploads = ImportUploads(records, area, limits)
        yield ImportFiles(
            uploads=uploads,
            area=UploadAreaKeeping(records, area),
            sources=ImportSources(uploads, stores, max_copy_bytes=limits.max_file_bytes),
            workbooks=workbooks,
            leftovers=ImportLeftovers(database),
            threads=threads,
            import_lost=asyncio.Event(),
            scratch_dir=settings.uploads_dir,
            floor=floor,
        )


@asynccontextmanager
async def open_upload_area(settings: Settings, database: Database) -> AsyncGenerator[UploadAreaKeeping]:
    """What cleans the upload area up, for a command of the operator. Raises ConfigurationError."""
    async with LocalUploadArea(settings.uploads_dir) as area:
        yield UploadAreaKeeping(DatabaseImportUploads(database), area)


def import_services(ground: ImportGround) -> ImportServices:
    """All that calls of the importer need."""
    files = ground.files
    # A call holds a sample of several megabytes and what has been made of it.
    places = FairPlaces(_FILES_AT_ONCE)
    previews = Previews(files.workbooks, ground.computing, ground.threads, places)
    parts = TableCreationParts(
        sources=files.sources,
        previews=previews,
        connectors=ground.connectors,
        credentials=ground.credentials,
        submissions=ground.submissions,
        lookups=ground.metadata.lookups,
        computing=ground.computing,
    )
    return ImportServices(
        uploads=files.uploads,
        sources=files.sources,
        detection=Detection(files.workbooks, ground.computing, places),
        previews=previews,
        tables=TableCreations(parts, ground.metadata.forwarding),
    )


def imports_of(files: ImportFiles) -> Imports:
    """What the runner makes tables with."""
    scratch = partial(tempfile.TemporaryFile, dir=files.scratch_dir)
    room = partial(files.floor.require, files.scratch_dir)
    return Imports(
        ImportParts(files.sources, files.workbooks, files.threads, files.leftovers, scratch, require_room=room)
    )


def import_janitor(
    files: ImportFiles,
    users: UserDirectory,
    connectors: Connectors,
    credentials: CredentialBook,
    may_hold: Callable[[str], Awaitable[bool]],
) -> ImportJanitor:
    """What drops tables that broken imports have left."""
    return ImportJanitor(JanitorParts(files.leftovers, users, connectors, credentials, may_hold, files.import_lost))


def _limits(importer: ImporterSettings) -> UploadLimits:
    return UploadLimits(
        max_file_bytes=importer.max_local_file_size_upload_limit,
        most=UploadUsage(importer.max_files_per_user, importer.max_bytes_per_user),
        restricted_extensions=_extensions(importer.restrict_local_file_extensions),
        keep=importer.upload_expiry,
    )


def _extensions(names: Sequence[str]) -> frozenset[str]:
    """In lower case, with the leading dot that the settings may leave out."""
    return frozenset(f".{name.strip().lstrip('.').lower()}" for name in names if name.strip(" ."))
