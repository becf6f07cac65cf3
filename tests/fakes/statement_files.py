"""Statement files on the stores of a test, without a database."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from queryserver.files.access import StorageAudit, Stores
from queryserver.files.model import ExtensionRules, PathReader, Scheme
from queryserver.files.protocol import FileSystem
from queryserver.files.statement_files import SessionFiles, StatementFileAccess
from queryserver.files.upload_repository import OrphanSweep, PartUploads, UnfinishedWrite, UnfinishedWrites
from queryserver.files.uploads import UploadRules
from queryserver.identity.model import STORE_RIGHTS, ApiTokenLimits, Scope, User
from queryserver.platform.logs import AuditTrail
from queryserver.statements.external_access import SessionReads

EVERY_STORE = frozenset(STORE_RIGHTS)
ANA, BOB = User(1, "ana", rights=EVERY_STORE), User(2, "bob", rights=EVERY_STORE)
ADMIN = User(3, "root", is_admin=True)


def by_token(user: User, *scopes: Scope) -> User:
    """Return the user, restricted as by an API token with these scopes."""
    return user.narrowed(ApiTokenLimits(UUID(int=1), "job", frozenset(scopes), None, b""))


@dataclass
class AuditEvents(AuditTrail):
    """Records the operation, path, outcome and details of each audit event."""

    events: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    details: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])

    def record_path(
        self,
        user: str,
        operation: str,
        path: str,
        *,
        outcome: str = "ok",
        effective_user: str | None = None,
        size_bytes: int | None = None,
        facts: Mapping[str, str | int] | None = None,
    ) -> None:
        self.events.append((operation, path, outcome))
        self.details.append({"user": user, "effective": effective_user, "size": size_bytes, **(facts or {})})


class WritesInMemory(UnfinishedWrites):
    """Records unfinished writes in memory."""

    def __init__(self) -> None:
        self.open: dict[UUID, UnfinishedWrite] = {}

    async def begin(self, write: UnfinishedWrite, *, is_running: bool = False) -> None:
        self.open[write.id] = write

    def running(self, write_id: UUID) -> AbstractContextManager[None]:
        return nullcontext()

    async def release(self, write_id: UUID) -> None:
        assert write_id in self.open

    async def end(self, write_id: UUID) -> None:
        del self.open[write_id]

    async def abandoned(
        self, *, older_than: timedelta, others_within: timedelta, schemes: Sequence[Scheme]
    ) -> Sequence[UnfinishedWrite]:
        del older_than, others_within, schemes
        return ()


class NoUploads(PartUploads):
    def __init__(self) -> None: ...


class GivenFiles:
    """Builds the files of statements on the given file systems. `audit` and `writes` record the operations."""

    def __init__(
        self,
        *file_systems: FileSystem,
        reader: PathReader | None = None,
        extensions: ExtensionRules | None = None,
        may_upload: bool = True,
        max_bytes: int | None = None,
        max_scanned: int = 1_000_000,
    ) -> None:
        schemes = [file_system.scheme for file_system in file_systems]
        stores = Stores(file_systems, reader or PathReader(schemes, ozone_services=("om",)))
        self.audit, self.writes = AuditEvents(), WritesInMemory()
        rules = UploadRules(stores, extensions or ExtensionRules(), is_enabled=may_upload, max_bytes=max_bytes)
        orphans = OrphanSweep(stores, self.writes, NoUploads())
        self.access = StatementFileAccess(stores, rules, orphans, StorageAudit(self.audit), max_scanned=max_scanned)

    def session(self, *, may_write: bool = True) -> SessionFiles:
        return SessionFiles(self.access, may_write=may_write, on_read=SessionReads().add_files)
