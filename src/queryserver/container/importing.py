"""Settings to what makes tables of files."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from queryserver.db.database import Database
from queryserver.db.import_uploads import DatabaseImportUploads
from queryserver.interfaces.import_uploads import UploadUsage
from queryserver.services.everything import ImportServices
from queryserver.services.importing.upload_area import UploadAreaKeeping
from queryserver.services.importing.uploads import ImportUploads, UploadLimits
from queryserver.settings import Settings
from queryserver.settings.stores import ImporterSettings
from queryserver.storages.local.upload_area import LocalUploadArea


@dataclass(frozen=True, slots=True)
class ImportFiles:
    """Files that wait to be imported."""

    uploads: ImportUploads
    area: UploadAreaKeeping


@dataclass(frozen=True, slots=True)
class ImportGround:
    """What the services of the importer stand on."""

    settings: Settings
    files: ImportFiles


@asynccontextmanager
async def open_import_files(settings: Settings, database: Database) -> AsyncGenerator[ImportFiles]:
    """The upload area, closed at the end. Raises ConfigurationError."""
    records = DatabaseImportUploads(database)
    async with LocalUploadArea(settings.uploads_dir) as area:
        yield ImportFiles(
            uploads=ImportUploads(records, area, _limits(settings.importer)),
            area=UploadAreaKeeping(records, area),
        )


def import_services(ground: ImportGround) -> ImportServices:
    """All that calls of the importer need."""
    return ImportServices(uploads=ground.files.uploads)


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
