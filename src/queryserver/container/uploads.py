"""What takes files in, and removes what was never finished."""

from concurrent.futures import Executor
from dataclasses import dataclass

from queryserver.container.disk import disk_floor
from queryserver.db.database import Database
from queryserver.db.storage_uploads import PartUploads, UnfinishedWrites
from queryserver.domain.storage_names import ExtensionRules
from queryserver.services.everything import UploadServices
from queryserver.services.storage.auditing import StorageAudit
from queryserver.services.storage.joining import Joining
from queryserver.services.storage.leftovers import Leftovers
from queryserver.services.storage.part_uploads import KEEP, PartUploading, PartUploadTools
from queryserver.services.storage.part_writing import PartWriting
from queryserver.services.storage.stores import Stores
from queryserver.services.storage.upload_rules import UploadRules, UploadSpace
from queryserver.services.storage.uploading import Uploads
from queryserver.settings import Settings


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
