"""Records of unfinished writes and multipart uploads, claims on uploads, and the removal of orphaned files."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import structlog
from pydantic import TypeAdapter

from queryserver.errors.base import DatabaseUnavailable, QueryServerError
from queryserver.errors.files import DirectoryNotEmpty, PathNotFound, StorageError, StorageNotConfigured, part_conflict
from queryserver.files.access import Caller, Stores
from queryserver.files.model import FileStatus, Scheme, StoragePath, StorageUser, is_staged_folder
from queryserver.files.protocol import PartPlan, Storage, StoredPart, UnlistedUploads
from queryserver.files.repository import TRANSFERS
from queryserver.platform.database import Connection, Database
from queryserver.platform.ownership import OwnedTable, Ownership
from queryserver.platform.threads import background, now_and_every


@dataclass(frozen=True, slots=True)
class UnfinishedWrite:
    """A record of an entry that is being written. A crash may leave temporary files in its directory."""

    id: UUID
    directory: StoragePath
    name: str
    """The name of the entry; empty in records of earlier versions."""
    user: StorageUser


@dataclass(frozen=True, slots=True)
class UploadTerms:
    """The properties of an upload, which its first part determines."""

    target: StoragePath
    plan: PartPlan
    overwrite: bool


@dataclass(frozen=True, slots=True)
class ReceivedPart:
    """A stored part and its digest."""

    stored: StoredPart
    sha256: bytes


@dataclass(frozen=True, slots=True)
class PartUpload:
    """A multipart upload. `user` is the user whose permissions apply in the store."""

    id: UUID
    client_uuid: UUID
    user: StorageUser
    terms: UploadTerms
    staging: str | None
    """The name that the store has given the staging area; None until the staging area has been created."""
    result: FileStatus | None
    """The joined file; None while the upload is unfinished."""
    expires_at: datetime
    received_parts: Mapping[int, ReceivedPart] = field(default_factory=dict[int, ReceivedPart])


@dataclass(frozen=True, slots=True)
class NewUpload:
    """A new upload that has not been recorded yet."""

    id: UUID
    user_id: int
    client_uuid: UUID
    user: StorageUser
    terms: UploadTerms


_LOCK = 0x71737570  # "qsup"
_FILE_STATUS = TypeAdapter(FileStatus)

_COLUMNS = """id, client_uuid, username, is_admin, scheme, path, size_bytes, part_bytes, parts, overwrite, staging,
    result, expires_at"""

# `touched_at` is `infinity` while a process writes. After that, it is the time at which the process stopped.
WRITES = OwnedTable("unfinished_writes", lease="touched_at", past="now()")
PART_UPLOADS = OwnedTable("part_uploads", lease="claimed_until", older_owner="claimed_by")
PARTS = OwnedTable(
    "part_upload_parts",
    key=("upload_id", "index"),
    lease="claimed_until",
    active="sha256 is null",
    older_owner="claimed_by",
)

_LAST_SIGN = """case when {of}.touched_at < 'infinity' then {of}.touched_at
    else coalesce((select heartbeat_at from instances where instances.id = {of}.owner), '-infinity') end"""
"""SQL expression: the last time at which the process that wrote was certainly alive."""

_BEGIN_WRITE = """
insert into unfinished_writes (id, scheme, directory, name, username, is_admin, owner, touched_at)
values ($1, $2, $3, $4, $5, $6, $7, case when $7::text is null then now() else 'infinity' end)
"""

_ABANDONED = f"""
select id, scheme, directory, name, username, is_admin from unfinished_writes as written
where {WRITES.claimable("written", me="$4")} and {_LAST_SIGN.format(of="written")} < now() - $1::interval
    and scheme = any($3::text[]) and not exists (
    select from part_uploads
    where scheme = written.scheme and state = 'open' and (expires_at > now() or {PART_UPLOADS.is_owned(me="$4")})
        and regexp_replace(path, '/?[^/]*$', '') = written.directory
) and not exists (
    select from unfinished_writes as other
    where other.scheme = written.scheme and other.directory = written.directory
        and ({WRITES.is_owned("other", me="$4")} or {_LAST_SIGN.format(of="other")} > now() - $2::interval)
) and not exists (
    select from storage_transfers
    where target_scheme = written.scheme and ended_at is null and {TRANSFERS.is_owned(me="$4")}
        and starts_with(written.directory || '/', target || '/')
)
order by touched_at limit 1000
"""

_OPEN = """
insert into part_uploads (
    id, user_id, client_uuid, username, is_admin, scheme, path, size_bytes, part_bytes, parts, overwrite, state,
    expires_at
)
select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, 'open', now() + $12::interval
where (select count(*) from part_uploads where user_id = $2 and state = 'open' and expires_at > now()) < $13
"""

_DETACH_EXPIRED = """
update part_uploads set user_id = null where user_id = $1 and client_uuid = $2 and expires_at <= now()
"""

_CLAIM = f"""
update part_uploads set {PART_UPLOADS.claimed("$2")}
where id = $1 and user_id is not null and {PART_UPLOADS.may_claim("$2")}
returning fence
"""
_RELEASE = f"update part_uploads set {PART_UPLOADS.released} where {PART_UPLOADS.fenced}"
_RECORD_STAGING = f"update part_uploads set staging = $4, {PART_UPLOADS.released} where {PART_UPLOADS.fenced}"
_RECORD_RESULT = (
    f"update part_uploads set result = $4, state = 'done', {PART_UPLOADS.released} where {PART_UPLOADS.fenced}"
)

# An upload without a user cannot be found or claimed any more, except to remove it. The claim ends by itself, because
# the command `cleanup` sends no heartbeats.
_RETIRE = f"""
update part_uploads set user_id = null, {PART_UPLOADS.claimed("$2", until="now() + interval '10 minutes'")}
where id = $1 and (expires_at < now() or user_id is null) and {PART_UPLOADS.may_claim("$2")}
returning fence
"""

# The row stays after a release, so that each claim of a part has another fence.
_CLAIM_PART = f"""
insert into part_upload_parts as part (upload_id, index, owner, fence, claimed_until, claimed_by)
select id, $2, $3, 1, 'infinity', gen_random_uuid() from part_uploads where id = $1 and state = 'open'
on conflict (upload_id, index) do update set {PARTS.claimed("excluded.owner", "part")}
    where part.sha256 is null and {PARTS.may_claim("excluded.owner", "part")}
returning fence
"""
_RELEASE_PART = f"update part_upload_parts set {PARTS.released} where {PARTS.fenced}"

_RECORD_PART = f"""
with upload as (
    update part_uploads set expires_at = now() + $8::interval
    where id = $1 and exists (select from part_upload_parts where {PARTS.fenced})
)
update part_upload_parts set size_bytes = $5, receipt = $6, sha256 = $7, {PARTS.released} where {PARTS.fenced}
"""


class UnfinishedWrites:
    """Records of unfinished writes. Each method runs one SQL statement and may raise DatabaseUnavailable."""

    def __init__(self, database: Database, ownership: Ownership) -> None:
        self._database = database
        self.ownership = ownership
        ownership.watch(WRITES)

    async def begin(self, write: UnfinishedWrite, *, is_running: bool = False) -> None:
        """Record a write. Set `is_running` if this process is writing the entry until `release` or `end`."""
        directory, user, owner = write.directory, write.user, self.ownership.id if is_running else None
        if is_running:
            await self.ownership.require_current()
        await self._database.execute(
            _BEGIN_WRITE, write.id, directory.scheme, directory.path, write.name, user.name, user.is_admin, owner
        )

    def running(self, write_id: UUID) -> AbstractContextManager[None]:
        """Wrap a write that began with `is_running`."""
        return self.ownership.holding(WRITES, write_id)

    async def release(self, write_id: UUID) -> None:
        """Record that the process no longer writes, but may have left temporary files. Never fails."""
        await self.ownership.release(f"update unfinished_writes set {WRITES.released} where id = $1", write_id)

    async def end(self, write_id: UUID) -> None:
        """Delete the record, if it exists. Call this only if the write has left no orphaned files."""
        await self._database.execute("delete from unfinished_writes where id = $1", write_id)

    async def abandoned(
        self, *, older_than: timedelta, others_within: timedelta, schemes: Sequence[Scheme]
    ) -> Sequence[UnfinishedWrite]:
        """Return at most 1000 writes whose process stopped or gave its last sign of life `older_than` ago.

        Omits directories with an open multipart upload, a running transfer, or another write that is running or stopped
        within `others_within`, because the files of such work may be older than its record. Work of this process counts
        as running even if its heartbeat is late.
        """
        rows = await self._database.fetch(_ABANDONED, older_than, others_within, list(schemes), self.ownership.id)
        return [
            UnfinishedWrite(
                row["id"],
                StoragePath(Scheme(row["scheme"]), row["directory"]),
                row["name"],
                StorageUser(row["username"], is_admin=row["is_admin"]),
            )
            for row in rows
        ]


class PartUploads:
    """Records of all multipart uploads. Each method runs one transaction and may raise DatabaseUnavailable.

    Any work on an upload or part requires a claim, which is exclusive, also within a process. A fence identifies it.
    """

    def __init__(self, database: Database, ownership: Ownership) -> None:
        self._database = database
        self.ownership = ownership
        self._owner = ownership.id
        ownership.watch(PART_UPLOADS)
        ownership.watch(PARTS)

    async def open(self, new: NewUpload, *, keep: timedelta, max_open: int) -> PartUpload | None:
        """Return the user's upload with the same `client_uuid` if it exists. Otherwise, record and return `new`.

        Return None if the user already has `max_open` unfinished uploads.
        """
        async with self._database.transaction() as connection:
            # The lock serializes a user's calls, so that the count is still correct when the row is inserted.
            await connection.execute("select pg_advisory_xact_lock($1, $2::bigint::integer)", _LOCK, new.user_id)
            existing = await _read(connection, new.user_id, new.client_uuid)
            if existing is None:
                # Free the key of an expired upload. Its record must stay until its parts have been removed from the
                # store.
                await connection.execute(_DETACH_EXPIRED, new.user_id, new.client_uuid)
                await connection.execute(_OPEN, *_values(new), keep, max_open)
                existing = await _read(connection, new.user_id, new.client_uuid)
        return existing

    async def read(self, user_id: int, client_uuid: UUID) -> PartUpload | None:
        """Return the user's upload, or None if it does not exist or has expired."""
        async with self._database.connection() as connection:
            return await _read(connection, user_id, client_uuid)

    async def claim(self, upload_id: UUID) -> int | None:
        """Claim an upload and return the fence. Return None if it is already claimed or no longer exists."""
        await self.ownership.require_current()
        return await self._database.value(_CLAIM, upload_id, self._owner)

    @asynccontextmanager
    async def holding(self, upload_id: UUID, fence: int) -> AsyncGenerator[None]:
        """Wrap the work on a claimed upload, and release it on exit."""
        with self.ownership.holding(PART_UPLOADS, upload_id, fence):
            try:
                yield
            finally:
                await self.release(upload_id, fence)

    async def require(self, upload_id: UUID, fence: int, *, index: int | None = None, since: int) -> int:
        """Raise part_conflict if another process has claimed the upload, or its part `index`.

        Call this before anything that cannot be undone. `since` is the value of `Ownership.lapses` before the claim, or
        the result of the previous call. Queries the database only if this process may have counted as dead since then.
        Raises DatabaseUnavailable.
        """
        if not self.ownership.has_lapsed(since):
            return since
        await self.ownership.require_current()
        lapses = self.ownership.lapses
        if index is None:
            query, key = f"select true from part_uploads where {PART_UPLOADS.fenced}", (upload_id,)
        else:
            query, key = f"select true from part_upload_parts where {PARTS.fenced}", (upload_id, index)
        if not await self._database.value(query, *key, self._owner, fence):
            raise part_conflict(f"Another request took over {'this upload' if index is None else f'part {index}'}.")
        return lapses

    async def record_staging(self, upload_id: UUID, fence: int, staging: str) -> bool:
        """Record the staging area and release the claim. Return False if the claim was lost."""
        return await self._database.execute(_RECORD_STAGING, upload_id, self._owner, fence, staging) == 1

    async def record_result(self, upload_id: UUID, fence: int, result: FileStatus) -> bool:
        """Record the joined file and release the claim. Return False if the claim was lost."""
        entry = _FILE_STATUS.dump_python(result, mode="json")
        return await self._database.execute(_RECORD_RESULT, upload_id, self._owner, fence, entry) == 1

    async def claim_part(self, upload_id: UUID, index: int) -> int | None:
        """Claim a part that has not been received, and return the fence.

        Return None if the part is already claimed or received, or if the upload is no longer open.
        """
        await self.ownership.require_current()
        return await self._database.value(_CLAIM_PART, upload_id, index, self._owner)

    @asynccontextmanager
    async def holding_part(self, upload_id: UUID, index: int, fence: int) -> AsyncGenerator[None]:
        """Wrap the work on a claimed part until it is recorded. If the work fails, release the part."""
        with self.ownership.holding(PARTS, f"{upload_id} {index}", fence):
            try:
                yield
            except BaseException:  # includes CancelledError
                await self.ownership.release(_RELEASE_PART, upload_id, index, self._owner, fence)
                raise

    async def record_part(self, upload_id: UUID, fence: int, part: ReceivedPart, *, keep: timedelta) -> bool:
        """Record a stored part and extend the upload's expiry to `keep` from now. Return False if the claim was
        lost.
        """
        stored, fenced = part.stored, (upload_id, part.stored.index, self._owner, fence)
        changed = await self._database.execute(
            _RECORD_PART, *fenced, stored.size_bytes, stored.receipt, part.sha256, keep
        )
        return changed == 1

    async def retire(self, upload_id: UUID) -> int | None:
        """Claim an expired upload for ten minutes to remove it, and return the fence. No call can find it any more.

        Return None if it is claimed or not expired.
        """
        return await self._database.value(_RETIRE, upload_id, self._owner)

    async def release(self, upload_id: UUID, fence: int) -> None:
        """Release an upload. Never fails."""
        await self.ownership.release(_RELEASE, upload_id, self._owner, fence)

    async def forget(self, upload_id: UUID) -> None:
        """Delete the record of an upload, if it exists."""
        await self._database.execute("delete from part_uploads where id = $1", upload_id)

    async def expired(self, *, limit: int) -> Sequence[PartUpload]:
        """Return expired uploads and uploads of deleted users, without their parts, in order of expiry."""
        rows = await self._database.fetch(
            f"""select {_COLUMNS} from part_uploads where expires_at < now() or user_id is null
            order by expires_at limit $1""",
            limit,
        )
        return [_upload(row, {}) for row in rows]


async def _read(connection: Connection, user_id: int, client_uuid: UUID) -> PartUpload | None:
    row = await connection.fetchrow(
        f"select {_COLUMNS} from part_uploads where user_id = $1 and client_uuid = $2 and expires_at > now()",
        user_id,
        client_uuid,
    )
    if row is None:
        return None
    parts = await connection.fetch(
        """select index, size_bytes, receipt, sha256 from part_upload_parts
        where upload_id = $1 and sha256 is not null order by index""",
        row["id"],
    )
    arrived = {
        part["index"]: ReceivedPart(
            StoredPart(part["index"], part["size_bytes"], part["receipt"]), bytes(part["sha256"])
        )
        for part in parts
    }
    return _upload(row, arrived)


def _upload(row: asyncpg.Record, arrived: Mapping[int, ReceivedPart]) -> PartUpload:
    target = StoragePath(Scheme(row["scheme"]), row["path"])
    plan = PartPlan(row["path"], row["size_bytes"], row["part_bytes"], row["parts"])
    return PartUpload(
        id=row["id"],
        client_uuid=row["client_uuid"],
        user=StorageUser(row["username"], is_admin=row["is_admin"]),
        terms=UploadTerms(target, plan, row["overwrite"]),
        staging=row["staging"],
        result=None if row["result"] is None else _FILE_STATUS.validate_python(row["result"]),
        expires_at=row["expires_at"],
        received_parts=arrived,
    )


def _values(new: NewUpload) -> tuple[object, ...]:
    terms, plan = new.terms, new.terms.plan
    return (
        new.id,
        new.user_id,
        new.client_uuid,
        new.user.name,
        new.user.is_admin,
        terms.target.scheme,
        terms.target.path,
        plan.size_bytes,
        plan.part_bytes,
        plan.parts,
        terms.overwrite,
    )


log = structlog.get_logger(__name__)

_MAX_PAUSE_S = 1.0


async def attempts(within_s: float) -> AsyncGenerator[None]:
    """Yield immediately, and again after increasing pauses, until `within_s` has passed."""
    clock = asyncio.get_running_loop().time
    end = clock() + within_s
    pause_s = 0.02
    while True:
        yield
        if clock() + pause_s > end:
            return
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


_BATCH = 500
_AGE_TOLERANCE = timedelta(minutes=15)
"""A write may modify its files up to this long after the last heartbeat of its process."""
_WRITES_AFTER_HEARTBEAT = timedelta(seconds=30)
"""A process that crashes may have written its files up to this long after its last heartbeat."""
_SWEEP_EVERY_S = 30.0
_DEAD_AFTER: Sequence[tuple[timedelta, Sequence[Scheme]]] = (
    (timedelta(seconds=90), (Scheme.FILE, Scheme.S3A, Scheme.ABFS)),
    # In these stores, unfinished files keep their creation time, and earlier versions renew records every 5 minutes.
    (timedelta(minutes=6), (Scheme.HDFS, Scheme.OFS)),
)
"""By scheme, the time without a heartbeat after which the files of a dead process are removed."""


class OrphanSweep:
    """Records writes in progress, and removes the temporary files of writes whose process has crashed.

    `age` is the minimum age of orphaned files that `clean_up` removes.
    """

    def __init__(
        self, stores: Stores, writes: UnfinishedWrites, uploads: PartUploads, *, age: timedelta = timedelta(hours=24)
    ) -> None:
        self._stores = stores
        self._writes = writes
        self._uploads = uploads
        self._age = age

    @asynccontextmanager
    async def recorded_write(self, caller: Caller, path: StoragePath) -> AsyncGenerator[None]:
        """Record that the block writes an entry, so that its temporary files can be removed after a crash. Raises
        DatabaseUnavailable.
        """
        write_id, may_leave_files = uuid4(), True
        await self._begin(write_id, caller, path, is_running=True)
        with self._writes.running(write_id):
            try:
                yield
                may_leave_files = False
            except QueryServerError as error:
                may_leave_files = isinstance(error, StorageError | DirectoryNotEmpty)
                raise
            finally:
                await (self._writes.release(write_id) if may_leave_files else self.end(write_id))

    async def begin(self, write_id: UUID, caller: Caller, path: StoragePath) -> None:
        """Record that the entry at `path` will be written, by any process. Raises DatabaseUnavailable."""
        await self._begin(write_id, caller, path, is_running=False)

    async def _begin(self, write_id: UUID, caller: Caller, path: StoragePath, *, is_running: bool) -> None:
        directory, _, name = path.path.rpartition("/")
        write = UnfinishedWrite(write_id, StoragePath(path.scheme, directory), name, caller.acting)
        await self._writes.begin(write, is_running=is_running)

    async def end(self, write_id: UUID) -> None:
        """Delete the record. If this fails, log a warning: a remaining record only causes its directory to be listed
        once more.
        """
        try:
            await self._writes.end(write_id)
        except DatabaseUnavailable:
            log.warning("record of a finished write not deleted")

    async def release(self, write_id: UUID) -> None:
        """Record that a write has failed just now, and may have left temporary files. Never fails."""
        await self._writes.release(write_id)

    async def clean_up(self, *, dry_run: bool = False, older_than: timedelta | None = None) -> Mapping[str, int]:
        """Remove expired uploads and orphaned files. Return the number of uploads and of swept directories.

        If `dry_run` is set, remove nothing and return what would be processed. `older_than` overrides the minimum age
        of orphaned files; it does not affect uploads, which have their own expiry.
        """
        age = self._age if older_than is None else older_than
        expired = await self._uploads.expired(limit=_BATCH)
        abandoned = await self._writes.abandoned(
            older_than=age + _AGE_TOLERANCE, others_within=_AGE_TOLERANCE, schemes=tuple(Scheme)
        )
        if dry_run:
            return {"expired uploads": len(expired), "interrupted uploads": len(abandoned)}
        removed = [await self._remove(upload) for upload in expired]
        swept = [await self._sweep_directory(write, age) for write in abandoned]
        return {"expired uploads": sum(removed), "interrupted uploads": sum(swept)}

    @asynccontextmanager
    async def running(self, *, alone: bool) -> AsyncGenerator[None]:
        """Remove the orphaned files of crashed processes, at startup and then every 30 s.

        If `alone` is set, no other process uses the stores, so the first sweep treats all earlier writes as orphaned.
        """
        async with background(self._sweep_always(alone=alone), "storage-orphans-sweep"):
            yield

    async def _sweep_always(self, *, alone: bool) -> None:
        started_at = time.monotonic()

        async def sweep_earlier_writes() -> None:
            since = timedelta(seconds=time.monotonic() - started_at)
            await self._sweep(since, since, tuple(Scheme))

        await now_and_every(_SWEEP_EVERY_S, self.sweep_dead, first=sweep_earlier_writes if alone else self.sweep_dead)

    async def sweep_dead(self) -> int:
        """Remove the orphaned files of processes that have died. Return the number of swept directories."""
        if not self._writes.ownership.may_take_over:
            return 0
        # The sweep deletes the record of a write, so no file of the write may be too recent to be removed.
        return sum(
            [await self._sweep(after, after - _WRITES_AFTER_HEARTBEAT, schemes) for after, schemes in _DEAD_AFTER]
        )

    async def _sweep(self, after: timedelta, age: timedelta, schemes: Sequence[Scheme]) -> int:
        """Remove files older than `age` of writes whose process gave its last sign of life longer than `after` ago."""
        writes = await self._writes.abandoned(older_than=after, others_within=after, schemes=schemes)
        return sum([await self._sweep_directory(write, age) for write in writes])

    async def _remove(self, upload: PartUpload) -> bool:
        """Remove an upload and its parts. Return False if it is claimed or the store fails; the next `clean_up`
        retries.
        """
        fence = await self._uploads.retire(upload.id)
        if fence is None:
            return False
        try:
            if upload.staging is not None and upload.result is None:
                storage = self._stores.as_user(upload.terms.target.scheme, upload.user)
                await storage.discard_parts(upload.terms.plan, upload.staging)
        except StorageError as error:
            log.warning("parts of an upload not removed", upload_id=str(upload.id), code=error.code)
            await self._uploads.release(upload.id, fence)
            return False
        except QueryServerError as error:
            log.warning("parts of an upload cannot be removed", upload_id=str(upload.id), code=error.code)
        await self._uploads.forget(upload.id)
        return True

    async def _sweep_directory(self, write: UnfinishedWrite, age: timedelta) -> bool:
        """Remove the orphaned files of a write. Return False if the store fails; the next sweep retries."""
        try:
            storage, age_s = self._stores.as_user(write.directory.scheme, write.user), age.total_seconds()
            removed = await storage.sweep_orphans(write.directory.path, age_s)
            if is_staged_folder(write.name):
                await _delete_folder(storage, write.directory.child(write.name).path)
            if write.name and isinstance(storage, UnlistedUploads):
                removed += await storage.abort_unlisted_uploads(write.directory.child(write.name).path, age_s)
            log.info("directory swept", scheme=write.directory.scheme, removed=removed)
        except StorageNotConfigured:
            return False
        except StorageError as error:
            log.warning("directory not swept", scheme=write.directory.scheme, code=error.code)
            return False
        except QueryServerError as error:
            # The directory no longer exists, or the user may no longer access it.
            log.info("directory cannot be swept", scheme=write.directory.scheme, code=error.code)
        await self._writes.end(write.id)
        return True


async def _delete_folder(storage: Storage, path: str) -> None:
    with suppress(PathNotFound):
        await storage.delete(path, recursive=True)
