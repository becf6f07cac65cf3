"""Stores the metadata index in the service database: one row per table, which contains the columns as text.

A refresh therefore writes 30,000 rows instead of a million, and none for unchanged tables. Each writer locks the row
of its scope, so that versions become visible in order.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import asyncpg

from queryserver.errors.base import Conflict
from queryserver.platform.database import Database
from queryserver.platform.ownership import OwnedTable
from queryserver.search.model import (
    DATABASE,
    RECORD,
    TABLE,
    UNIT,
    VIEW,
    IndexedObject,
    ObjectRow,
    Scope,
    ScopeClaim,
    ScopeKey,
)

_PORTION = 2000  # rows per query
_FAILED_PAUSE = timedelta(minutes=5)

SCOPES = OwnedTable("metadata_scopes", older_owner="lease_owner")

_ENSURE = f"""
insert into metadata_scopes as kept (connector, user_id, stored, address) values ($1, $2, $3, $4)
on conflict (connector, coalesce(user_id, 0)) do update
    set address = excluded.address, version = kept.version + 1, epoch = kept.epoch + 1, refreshed_at = null,
        failed_at = null, truncated = false, {SCOPES.released}
    where kept.address <> excluded.address
returning id, version, epoch, truncated, epoch > 0 as moved
"""

_FIND = """
select id, version, epoch, truncated from metadata_scopes
where connector = $1 and coalesce(user_id, 0) = coalesce($2, 0) and address = $3
"""

_SCOPES = """
with found as (
    select scope.id, scope.version, scope.epoch, scope.truncated, asked.place
    from unnest($1::text[], $2::bigint[], $3::bytea[]) with ordinality as asked(connector, user_id, address, place)
    join metadata_scopes as scope on scope.connector = asked.connector
        and coalesce(scope.user_id, 0) = coalesce(asked.user_id, 0) and scope.address = asked.address
),
noted as (
    update metadata_scopes set used_at = now()
    where id in (select id from found) and used_at < now() - interval '1 minute'
)
select * from found
"""

_PUT = """
insert into metadata_objects as kept
    (scope_id, kind, database, name, comment, owner, modified_at, columns, columns_cut, version)
select $1::bigint, kind, database, name, coalesce(comment, ''), coalesce(owner, ''), modified_at, columns, columns_cut,
    $2::bigint
from unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[], $9::text[], $10::boolean[])
    as given(kind, database, name, comment, owner, modified_at, columns, columns_cut)
on conflict (scope_id, database, name) do update set
    kind = excluded.kind,
    comment = case when $11 then excluded.comment else coalesce(nullif(excluded.comment, ''), kept.comment) end,
    owner = coalesce(nullif(excluded.owner, ''), kept.owner),
    modified_at = coalesce(excluded.modified_at, kept.modified_at),
    columns = coalesce(excluded.columns, kept.columns),
    columns_cut = case when excluded.columns is null then kept.columns_cut else excluded.columns_cut end,
    version = excluded.version,
    changed_at = now()
where (kept.kind, kept.comment, kept.owner, kept.modified_at, kept.columns, kept.columns_cut) is distinct from (
    excluded.kind,
    case when $11 then excluded.comment else coalesce(nullif(excluded.comment, ''), kept.comment) end,
    coalesce(nullif(excluded.owner, ''), kept.owner),
    coalesce(excluded.modified_at, kept.modified_at),
    coalesce(excluded.columns, kept.columns),
    case when excluded.columns is null then kept.columns_cut else excluded.columns_cut end
)
"""

# Databases, whose table name is empty, are counted separately.
_TOO_MANY = """
with had as (
    select count(*) filter (where name <> '') as tables, count(*) filter (where name = '') as databases
    from metadata_objects where scope_id = $1
),
new as (
    select given.place, given.name <> '' as is_table,
        row_number() over (partition by given.name <> '' order by given.place) as number
    from unnest($2::text[], $3::text[]) with ordinality as given(database, name, place)
    where not exists (
        select from metadata_objects where scope_id = $1 and database = given.database and name = given.name
    )
)
select new.place - 1 as place from new, had
where new.number + case when new.is_table then had.tables else had.databases end > $4
"""

_READ = """
select id, kind, database, name, comment, owner, modified_at, columns from metadata_objects
where scope_id = $1 and version > $2 and id > $3 order by id limit $4
"""

_CLAIM = f"""
update metadata_scopes as mine set {SCOPES.claimed("$2", "mine")}
where id = $1 and {SCOPES.may_claim("$2", "mine")} and coalesce(refreshed_at < now() - $3::interval, true)
    and coalesce(failed_at < now() - $4::interval, true)
    and not exists (
        select from metadata_scopes as other
        where other.connector = mine.connector and {SCOPES.is_owned("other", me="$2")}
    )
returning id, owner, fence
"""

_CHANGE = f"""
update metadata_scopes set version = version + 1, used_at = now()
where id = $1 and ($2::text is null or {SCOPES.fenced}) returning version
"""

_REMOVE = """
with seen as (select * from unnest($3::text[], $4::text[]) as seen(database, name)),
gone as (
    delete from metadata_objects as kept where scope_id = $1 and changed_at < $2 and kept.database <> all($5::text[])
        and not exists (select from seen where seen.database = kept.database and seen.name = kept.name)
    returning 1
)
select count(*) from gone
"""

_COMPLETE = f"""
update metadata_scopes set refreshed_at = case when not $6 then now() end, failed_at = null, {SCOPES.released},
    truncated = $4 or exists (select from metadata_objects where scope_id = $1 and columns_cut),
    version = version + $5, epoch = epoch + $5
where {SCOPES.fenced}
"""

_GIVE_UP = f"""
update metadata_scopes set failed_at = case when $4 then failed_at else now() end, {SCOPES.released}
where {SCOPES.fenced}
"""

_SWEEP = """
delete from metadata_scopes as scope
where (stored and not exists (select from connectors where id::text = scope.connector and deleted_at is null))
    or greatest(used_at, refreshed_at) < now() - $1::interval
"""


class MetadataIndexRecords:
    """Reads and writes the index. Each method except `read` is one transaction. All raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def scope(self, key: ScopeKey) -> Scope:
        """Find or create the scope with this key. If its address has changed, delete its objects first."""
        row = await self._database.row(_FIND, key.connector, key.user_id, key.address)
        if row is not None:
            return _scope(key, row)
        async with self._database.transaction() as connection:
            created = await connection.fetchrow(_ENSURE, key.connector, key.user_id, key.is_stored, key.address)
            if created is None:  # another process created it first
                created = await connection.fetchrow(_FIND, key.connector, key.user_id, key.address)
            elif created["moved"]:
                await connection.execute("delete from metadata_objects where scope_id = $1", created["id"])
            if created is None:
                raise AssertionError("a scope that was just made")
            return _scope(key, created)

    async def scopes(self, keys: Sequence[ScopeKey]) -> Sequence[Scope]:
        """Return the existing scopes with these keys, including the address, and mark them as used."""
        rows = await self._database.fetch(
            _SCOPES, [key.connector for key in keys], [key.user_id for key in keys], [key.address for key in keys]
        )
        return [_scope(keys[row["place"] - 1], row) for row in rows]

    async def put(
        self, scope_id: int, objects: Sequence[IndexedObject], *, max_tables: int, claim: ScopeClaim | None = None
    ) -> bool:
        """Add or change objects. Unchanged objects cause no writes. Return False if some objects were omitted.

        New tables are omitted once the scope has `max_tables` tables; the same limit applies to databases. If objects
        were omitted, or the columns of an object are truncated, the scope counts as truncated until the end of a
        refresh. Raises Conflict if `claim` is no longer valid.
        """
        last = {(item.database, item.name): item for item in objects}
        async with self._database.transaction() as connection:
            owner, fence = (claim.owner, claim.fence) if claim else (None, None)
            version = await connection.fetchval(_CHANGE, scope_id, owner, fence)
            if version is None:
                if claim:
                    raise claim_lost_error()
                return True
            keys = list(zip(*last, strict=True)) or [(), ()]
            too_many = {row["place"] for row in await connection.fetch(_TOO_MANY, scope_id, *keys, max_tables)}
            accepted = [one for number, one in enumerate(last.values()) if number not in too_many]
            is_whole = len(accepted) == len(last)
            if not is_whole or any(one.columns_cut for one in accepted):
                await connection.execute(
                    "update metadata_scopes set truncated = true where id = $1 and not truncated", scope_id
                )
            changed = 0
            for full in (True, False):
                some = [one for one in accepted if (one.comment is not None) is full]
                if some:
                    tag = await connection.execute(_PUT, scope_id, version, *_columns_of(some), full)
                    changed += int(tag.rpartition(" ")[2])
            if not changed:
                await connection.execute("update metadata_scopes set version = version - 1 where id = $1", scope_id)
        return is_whole

    async def tables_by_database(self, scope_id: int) -> Mapping[str, int]:
        rows = await self._database.fetch(
            "select database, count(*) filter (where name <> '') as tables from metadata_objects"
            " where scope_id = $1 group by database",
            scope_id,
        )
        return {row["database"]: row["tables"] for row in rows}

    async def read(self, scope_id: int, *, after_version: int) -> AsyncIterator[Sequence[ObjectRow]]:
        """Yield the objects that were changed after that version, in batches."""
        last = 0
        while rows := await self._database.fetch(_READ, scope_id, after_version, last, _PORTION):
            yield [ObjectRow(*row) for row in rows]
            last = rows[-1]["id"]

    async def claim(self, key: ScopeKey, *, owner: str, interval: timedelta) -> ScopeClaim | None:
        """Claim the scope for a refresh. Return None if it is not due or another process has claimed it.

        Also return None while another scope of the same connector is being refreshed, because only one server at a
        time reads from a data source.
        """
        scope = await self.scope(key)
        async with self._database.transaction() as connection:
            # Held until the transaction ends, so that concurrent claims for a connector see each other.
            await connection.execute(
                "select pg_advisory_xact_lock(hashtextextended('metadata index ' || $1, 0))", key.connector
            )
            row = await connection.fetchrow(_CLAIM, scope.id, owner, interval, min(interval, _FAILED_PAUSE))
        return None if row is None else ScopeClaim(*row)

    async def require(self, claim: ScopeClaim) -> None:
        """Raise Conflict if the claim is no longer valid."""
        if not await self._database.value(f"select true from metadata_scopes where {SCOPES.fenced}", *claim):
            raise claim_lost_error()

    async def complete(
        self,
        claim: ScopeClaim,
        *,
        listed: Mapping[str, Sequence[str]],
        unread: Collection[str],
        started_at: datetime,
        truncated: bool,
        again: bool,
    ) -> None:
        """Complete a refresh, and remove objects that were neither seen during it nor changed since its start.

        `listed` maps databases to their tables. The rows of databases in `unread` are kept. If `again` is set and
        objects were removed, the next refresh is due immediately.
        """
        pairs = [(database, name) for database, names in listed.items() for name in ("", *names)]
        async with self._database.transaction() as connection:
            is_valid = await connection.fetchval(
                f"select true from metadata_scopes where {SCOPES.fenced} for update", *claim
            )
            if is_valid:
                databases, names = [one for one, _ in pairs], [one for _, one in pairs]
                removed = await connection.fetchval(_REMOVE, claim.scope_id, started_at, databases, names, list(unread))
                await connection.execute(_COMPLETE, *claim, truncated, int(removed > 0), again and removed > 0)

    async def give_up(self, claim: ScopeClaim, *, soon: bool) -> None:
        """End a failed refresh and keep the objects.

        The next refresh is due immediately if `soon` is set, otherwise after a few minutes.
        """
        await self._database.execute(_GIVE_UP, *claim, soon)

    async def now(self) -> datetime:
        return await self._database.value("select clock_timestamp()")

    async def sweep(self, *, unused_for: timedelta) -> int:
        """Delete the scopes of deleted connectors, and scopes neither used nor refreshed for `unused_for`."""
        return await self._database.execute(_SWEEP, unused_for)

    async def counts(self) -> Mapping[str, int]:
        """Return the number of objects of each kind, excluding columns."""
        rows = await self._database.fetch("select kind, count(*) as objects from metadata_objects group by kind")
        return {kind.lower(): 0 for kind in (DATABASE, TABLE, VIEW)} | {
            row["kind"].lower(): row["objects"] for row in rows
        }


def _columns_of(objects: Sequence[IndexedObject]) -> Iterable[list[object]]:
    rows = [
        (
            one.kind,
            one.database,
            one.name,
            one.comment,
            one.owner,
            one.modified_at,
            # Sorted by name. Separators within names, which no known engine allows, are replaced with blanks.
            None
            if one.columns is None
            else RECORD.join(sorted(f"{_plain(column.name)}{UNIT}{_plain(column.comment)}" for column in one.columns)),
            one.columns_cut,
        )
        for one in objects
    ]
    return (list(column) for column in zip(*rows, strict=True))


def _plain(text: str) -> str:
    return text.replace(UNIT, " ").replace(RECORD, " ").replace("\0", " ")


def claim_lost_error() -> Conflict:
    return Conflict("Another server is reading this data source.")


def _scope(key: ScopeKey, row: asyncpg.Record) -> Scope:
    return Scope(row["id"], key, row["version"], row["epoch"], row["truncated"])
