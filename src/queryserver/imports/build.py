"""Builds the importer's services. `wiring.py` calls `open_import_files` first, and `import_services` once the
connectors and statement services exist.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from queryserver.catalog.build import MetadataServices
from queryserver.connectors.registry import Connectors
from queryserver.files.access import Stores
from queryserver.files.stores.local.storage import LocalUploadArea
from queryserver.identity.users import UserDirectory
from queryserver.imports.plans import TableCreations
from queryserver.imports.preview import Detection, Previews
from queryserver.imports.repository import ImportJanitor, UnfinishedTables
from queryserver.imports.session import Imports
from queryserver.imports.uploads import (
    ImportSources,
    ImportUploadRecords,
    ImportUploads,
    UploadAreaSweep,
    UploadLimits,
    UploadUsage,
)
from queryserver.platform.computation import ComputationExecutor
from queryserver.platform.database import Database
from queryserver.platform.fair_queue import FairSemaphore
from queryserver.platform.machine_limits import disk_floor
from queryserver.platform.ownership import Ownership
from queryserver.platform.settings.tree import Settings
from queryserver.platform.threads import FairThreads
from queryserver.statements.build import StatementServices
from queryserver.workbooks.reader import ProcessWorkbooks

_THREADS = (
    2  # a pool of its own, so that imports do not delay other work; small, because each thread keeps its own heap
)
_FILES_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class ImportServices:
    uploads: ImportUploads
    sources: ImportSources
    detection: Detection
    previews: Previews
    tables: TableCreations
    janitor: ImportJanitor
    """Drops staging tables that interrupted imports have left."""


@dataclass(frozen=True, slots=True)
class ImportFiles:
    """The importer's file services, which need no engine and stay open as long as the server runs."""

    uploads: ImportUploads
    area: UploadAreaSweep
    sources: ImportSources
    workbooks: ProcessWorkbooks
    imports: Imports
    unfinished: UnfinishedTables
    import_lost: asyncio.Event
    """Set when an import is lost because its server has crashed. This triggers the janitor."""


@asynccontextmanager
async def open_import_files(settings: Settings, database: Database, stores: Stores) -> AsyncGenerator[ImportFiles]:
    importer, directory = settings.importer, settings.uploads_dir
    records, unfinished, floor = ImportUploadRecords(database), UnfinishedTables(database), disk_floor(settings)
    names = importer.restrict_local_file_extensions
    limits = UploadLimits(
        max_file_bytes=importer.max_local_file_size_upload_limit,
        max_usage=UploadUsage(importer.max_files_per_user, importer.max_bytes_per_user),
        # The leading dot is optional in the settings.
        restricted_extensions=frozenset(f".{name.strip().lstrip('.').lower()}" for name in names if name.strip(" .")),
        keep=importer.upload_expiry,
    )
    async with LocalUploadArea(directory, floor=floor) as area, ProcessWorkbooks() as workbooks:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="importing") as threads:
            uploads = ImportUploads(records, area, limits)
            sources = ImportSources(uploads, stores, max_copy_bytes=limits.max_file_bytes)
            imports = Imports(
                sources,
                workbooks,
                threads,
                unfinished,
                partial(tempfile.TemporaryFile, dir=directory),
                require_room=partial(floor.require, directory),
            )
            sweep = UploadAreaSweep(records, area)
            yield ImportFiles(uploads, sweep, sources, workbooks, imports, unfinished, asyncio.Event())


@asynccontextmanager
async def open_upload_area(settings: Settings, database: Database) -> AsyncGenerator[UploadAreaSweep]:
    async with LocalUploadArea(settings.uploads_dir) as area:
        yield UploadAreaSweep(ImportUploadRecords(database), area)


def import_services(
    files: ImportFiles,
    *,
    ownership: Ownership,
    threads: FairThreads,
    computations: ComputationExecutor,
    users: UserDirectory,
    connectors: Connectors,
    metadata: MetadataServices,
    statements: StatementServices,
) -> ImportServices:
    # Each detection or preview holds a sample of several megabytes in memory.
    slots = FairSemaphore(_FILES_AT_ONCE)
    previews = Previews(files.workbooks, computations, threads, slots)
    tables = TableCreations(
        files.sources,
        previews,
        connectors=connectors,
        credentials=statements.credentials,
        submissions=statements.job_submissions,
        lookups=metadata.lookups,
    )
    janitor = ImportJanitor(
        ownership,
        files.unfinished,
        users,
        connectors,
        statements.credentials,
        statements.runner.data.try_acquire,
        files.import_lost,
    )
    detection = Detection(files.workbooks, computations, slots)
    return ImportServices(files.uploads, files.sources, detection, previews, tables, janitor)
