"""Database records of long file operations, and of moves and copies that take several steps.

Every update of a transfer is conditional on its owner and fence, so a process that has lost its claim changes nothing.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from queryserver.errors.files import OperationInProgress
from queryserver.files.model import (
    ClaimedTransfer,
    EntryKind,
    FileStatus,
    KeyState,
    LongOperationState,
    LongOperationStatus,
    Scheme,
    StoragePath,
    StorageUser,
    Transfer,
    TransferClaim,
    TransferKey,
    TransferKind,
    TransferState,
)
from queryserver.platform.database import Database, Row
from queryserver.platform.ownership import OwnedTable

_RETENTION = "interval '7 days'"

OPERATIONS = OwnedTable("storage_operations", active="state = 'running'")

# An operation stays open while a process owns its transfer or can still take it over.
_GIVE_UP = f"""
update storage_operations as operation set state = 'failed', ended_at = now(), result = $1
where {OPERATIONS.active} and {OPERATIONS.claimable("operation", me="$2")} and not exists (
    select from storage_transfers
    where operation_id = operation.id and ended_at is null and owner is not null
)
"""


_BEGIN_OPERATION = f"""
with spent as (delete from storage_operations where ended_at < now() - {_RETENTION})
insert into storage_operations (id, user_id, kind, path, state, owner, lease_until)
values ($1, $2, $3, $4, 'running', $5, 'infinity')
"""

_REPORT = "update storage_operations set done = $2, total = $3 where id = $1 and state = 'running'"

_RELEASE = f"update storage_operations set {OPERATIONS.released} where id = $1 and state = 'running'"

_END_OPERATION = """
update storage_operations set state = $2, result = $3, ended_at = now() where id = $1 and state = 'running'
"""


class OperationRecords:
    """Records of long operations, whose outcome clients poll."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, operation_id: UUID, *, user_id: int, kind: str, path: str, owner: str) -> None:
        """Record a running operation. Also delete records of operations that ended more than 7 days ago."""
        await self._database.execute(_BEGIN_OPERATION, operation_id, user_id, kind, path, owner)

    async def report(self, operation_id: UUID, *, done: int, total: int | None) -> None:
        await self._database.execute(_REPORT, operation_id, done, total)

    async def release(self, operation_id: UUID) -> None:
        """Release an operation that this process no longer works on. `give_up` or its transfer closes it."""
        await self._database.execute(_RELEASE, operation_id)

    async def end(self, operation_id: UUID, *, state: LongOperationState, result: Mapping[str, Any] | str) -> None:
        """Record the final state and response body. Has no effect if the operation has already ended."""
        body = result if isinstance(result, str) else dict(result)
        await self._database.execute(_END_OPERATION, operation_id, state.value, body)

    async def read(self, operation_id: UUID, *, user_id: int) -> LongOperationStatus | None:
        """Return the status of the user's operation, or None if the user has none with that id."""
        row = await self._database.row(
            "select state, done, total, result from storage_operations where id = $1 and user_id = $2",
            operation_id,
            user_id,
        )
        if row is None:
            return None
        return LongOperationStatus(
            operation_id, LongOperationState(row["state"]), row["done"], row["total"], row["result"]
        )

    async def give_up(self, result: Mapping[str, Any], *, owner: str) -> int:
        """Mark operations that neither `owner` nor another live process works on as failed, unless a process owns their
        transfer or can still take it over. Return their number.
        """
        return await self._database.execute(_GIVE_UP, dict(result), owner)


TRANSFERS = OwnedTable("storage_transfers", active="ended_at is null")
_ENDED = frozenset({TransferState.DONE, TransferState.ROLLED_BACK, TransferState.FAILED})
_COLUMNS = """id, coalesce(user_id, 0) as user_id, username, is_admin, kind, source_scheme, source, target_scheme,
    target, overwrite, operation_id, state, owner, fence, started_at"""

# Transfers that wait for a retry by their user, or that cannot be completed, are deleted after 7 days.
_BEGIN = f"""
with spent as (
    delete from storage_transfers
    where ended_at < now() - {_RETENTION} or (
        ended_at is null and started_at < now() - {_RETENTION} and {TRANSFERS.may_claim("$13")}
    )
)
insert into storage_transfers (
    id, user_id, digest, username, is_admin, kind, source_scheme, source, target_scheme, target, overwrite,
    operation_id, state, owner, lease_until
)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 'copying', $13, 'infinity')
on conflict (digest) where ended_at is null do nothing
returning {_COLUMNS}
"""

_CLAIM_SAME = f"""
update storage_transfers set {TRANSFERS.claimed("$2")}
where digest = any($1::bytea[]) and ended_at is null and {TRANSFERS.may_claim("$2")} and ($3 or owner is null)
returning {_COLUMNS}
"""

_CLAIM_TO = f"""
update storage_transfers set {TRANSFERS.claimed("$3")}
where id = (
    select id from storage_transfers
    where target_scheme = $1 and target = $2 and ended_at is null and {TRANSFERS.may_claim("$3")}
        and ($4 or owner is null)
    order by started_at limit 1 for update skip locked
) and {TRANSFERS.may_claim("$3")}
returning {_COLUMNS}
"""

# A transfer without an owner waits for the user's next call.
_CLAIM_ORPHAN = f"""
update storage_transfers set {TRANSFERS.claimed("$1")}
where id = (
    select id from storage_transfers
    where ended_at is null and owner is not null and {TRANSFERS.claimable(me="$1")}
    order by started_at limit 1 for update skip locked
) and {TRANSFERS.may_claim("$1")}
returning {_COLUMNS}
"""

_END = f"""
with changed as (
    update storage_transfers set state = $4, ended_at = now(), {TRANSFERS.released}
    where {TRANSFERS.fenced} returning id
), gone as (
    delete from storage_transfer_keys where transfer_id in (select id from changed)
)
select count(*) from changed
"""

_ADD_KEYS = f"""
insert into storage_transfer_keys (
    transfer_id, number, path, kind, size_bytes, modified_at, tag, file_id, permissions, state
)
select $1, key.* from storage_transfers, unnest(
    $4::int[], $5::text[], $6::text[], $7::bigint[], $8::timestamptz[], $9::text[], $10::text[], $11::int[], $12::text[]
) as key
where {TRANSFERS.fenced}
"""

_MARK = f"""
update storage_transfer_keys set state = $5
where transfer_id in (select id from storage_transfers where {TRANSFERS.fenced}) and number = any($4::int[])
"""

_MARK_COPIED = f"""
update storage_transfer_keys as key set state = 'copied', copy_version = copied.version
from unnest($4::int[], $5::text[]) as copied(number, version)
where key.transfer_id in (select id from storage_transfers where {TRANSFERS.fenced}) and key.number = copied.number
"""


class TransferRecords:
    """Records of moves and copies, with all their source entries (keys)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, transfer: Transfer, *, owner: str) -> ClaimedTransfer | None:
        """Record and claim a transfer in state `copying`. Return None if an equal transfer has not ended yet."""
        row = await self._database.row(
            _BEGIN,
            uuid4(),
            transfer.user_id,
            transfer.digest,
            transfer.acting.name,
            transfer.acting.is_admin,
            transfer.kind.value,
            transfer.source.scheme.value,
            transfer.source.path,
            transfer.target.scheme.value,
            transfer.target.path,
            transfer.overwrite,
            transfer.operation_id,
            owner,
        )
        return _claimed(row) if row else None

    async def claim_same(
        self, digests: Sequence[bytes], *, owner: str, may_take_over: bool = True
    ) -> tuple[bool, ClaimedTransfer | None]:
        """Return whether an unfinished transfer with one of these digests exists, and the transfer itself if no live
        process owned it and this call has claimed it.

        Unless `may_take_over` is set, only a transfer that its owner has released is claimed.
        """
        row = await self._database.row(_CLAIM_SAME, list(digests), owner, may_take_over)
        if row:
            return True, _claimed(row)
        exists = await self._database.value(
            "select exists (select from storage_transfers where digest = any($1::bytea[]) and ended_at is null)",
            list(digests),
        )
        return bool(exists), None

    async def claim_to(
        self, target: StoragePath, *, owner: str, may_take_over: bool
    ) -> tuple[bool, ClaimedTransfer | None]:
        """Like `claim_same`, for the unfinished transfers with this target."""
        row = await self._database.row(_CLAIM_TO, target.scheme.value, target.path, owner, may_take_over)
        if row:
            return True, _claimed(row)
        exists = await self._database.value(
            """select exists (
                select from storage_transfers where target_scheme = $1 and target = $2 and ended_at is null
            )""",
            target.scheme.value,
            target.path,
        )
        return bool(exists), None

    async def claim_orphan(self, *, owner: str) -> ClaimedTransfer | None:
        """Claim the oldest transfer whose process has died, or return None."""
        row = await self._database.row(_CLAIM_ORPHAN, owner)
        return _claimed(row) if row else None

    async def require(self, claim: TransferClaim) -> None:
        """Raise OperationInProgress if another process has claimed the transfer."""
        if not await self._database.value(f"select true from storage_transfers where {TRANSFERS.fenced}", *claim):
            raise OperationInProgress("Another server has taken over this operation.")

    async def release(self, claim: TransferClaim, *, again_after: timedelta | None) -> bool:
        """Release a transfer. Any process may claim it after `again_after`; if that is None, it is claimed only when
        the user retries the call. Return False if the claim was lost.
        """
        if again_after is None:
            return await self._changed(TRANSFERS.released, claim)
        return await self._changed("lease_until = now() + $4::interval", claim, again_after)

    async def advance(self, claim: TransferClaim, state: TransferState) -> bool:
        """Record a state. `done`, `rolled_back` and `failed` end the transfer and delete its keys. Return False if the
        claim was lost.
        """
        if state in _ENDED:
            return await self._database.value(_END, *claim, state.value) == 1
        return await self._changed("state = $4", claim, state.value)

    async def add_keys(self, claim: TransferClaim, keys: Sequence[TransferKey]) -> bool:
        """Record source entries. Return False if the claim was lost."""
        if not keys:
            return True
        columns = map(list, zip(*map(_row, keys), strict=True))
        return await self._database.execute(_ADD_KEYS, *claim, *columns) == len(keys)

    async def keys(
        self,
        transfer_id: UUID,
        *,
        kind: EntryKind,
        states: Sequence[KeyState],
        limit: int,
        after: int | None = None,
        descending: bool = False,
    ) -> Sequence[TransferKey]:
        """Return entries of one kind in ascending order of their numbers (descending if `descending` is set), starting
        after the number `after`.
        """
        comparison, direction = ("<", "desc") if descending else (">", "asc")
        rows = await self._database.fetch(
            f"""select number, path, kind, size_bytes, modified_at, tag, file_id, permissions, state, copy_version
            from storage_transfer_keys
            where transfer_id = $1 and kind = $2 and state = any($3::text[])
                and ($4::int is null or number {comparison} $4)
            order by number {direction} limit $5""",
            transfer_id,
            kind.value,
            [state.value for state in states],
            after,
            limit,
        )
        return [_key(row) for row in rows]

    async def count(self, transfer_id: UUID, states: Sequence[KeyState]) -> int:
        return await self._database.value(
            "select count(*) from storage_transfer_keys where transfer_id = $1 and state = any($2::text[])",
            transfer_id,
            [state.value for state in states],
        )

    async def repeated_path(self, transfer_id: UUID) -> str | None:
        """Return a path that is recorded twice because both a file and a directory have it, or None if there is
        none.
        """
        return await self._database.value(
            "select path from storage_transfer_keys where transfer_id = $1 group by path having count(*) > 1 limit 1",
            transfer_id,
        )

    async def mark(self, claim: TransferClaim, numbers: Sequence[int], state: KeyState) -> bool:
        """Record a state for these entries. Return False if the claim was lost."""
        if not numbers:
            return True
        return await self._database.execute(_MARK, *claim, list(numbers), state.value) == len(numbers)

    async def mark_copied(self, claim: TransferClaim, versions: Mapping[int, str]) -> bool:
        """Record these entries, by number, as copied, with the versions of the copies. Return False if the claim was
        lost.
        """
        if not versions:
            return True
        marked = await self._database.execute(_MARK_COPIED, *claim, list(versions), list(versions.values()))
        return marked == len(versions)

    async def _changed(self, change: str, claim: TransferClaim, *arguments: object) -> bool:
        change = f"update storage_transfers set {change} where {TRANSFERS.fenced}"
        return await self._database.execute(change, *claim, *arguments) == 1


def _claimed(row: Row) -> ClaimedTransfer:
    return ClaimedTransfer(
        claim=TransferClaim(row["id"], row["owner"], row["fence"]),
        transfer=Transfer(
            user_id=row["user_id"],
            acting=StorageUser(row["username"], is_admin=row["is_admin"]),
            kind=TransferKind(row["kind"]),
            source=StoragePath(Scheme(row["source_scheme"]), row["source"]),
            target=StoragePath(Scheme(row["target_scheme"]), row["target"]),
            overwrite=row["overwrite"],
            operation_id=row["operation_id"],
        ),
        state=TransferState(row["state"]),
        started_at=row["started_at"],
    )


def _row(key: TransferKey) -> tuple[object, ...]:
    entry = key.entry
    content = entry.size_bytes, entry.modified_at, entry.tag, entry.file_id
    return (key.number, entry.path, entry.kind, *content, entry.permissions, key.state)


def _key(row: Row) -> TransferKey:
    entry = FileStatus(
        row["path"],
        EntryKind(row["kind"]),
        row["size_bytes"],
        row["modified_at"],
        permissions=row["permissions"],
        tag=row["tag"],
        file_id=row["file_id"],
    )
    return TransferKey(row["number"], entry, KeyState(row["state"]), row["copy_version"])
