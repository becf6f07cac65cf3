"""Reads and writes documents, their versions and grants in the service database.

The service decides what the caller may do; the queries of this module return only documents that the caller may see.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from queryserver.documents.lists import PERMISSION, PLAN_FOR_VALUES, SHOWN, candidates, page_query
from queryserver.documents.model import (
    MAX_GRANTS,
    Content,
    Document,
    DocumentParameter,
    DocumentQuery,
    DocumentVersion,
    Grant,
    Permission,
    Summary,
    VersionEntry,
)
from queryserver.errors.base import UserNotFound
from queryserver.identity.model import User
from queryserver.platform.database import Connection, Database, Row

_CONTENT = ("name", "description", "statement", "connector", "dialect", "database")
GRANTED = """
    select document_id from document_grants where user_id = $1
    union
    select g.document_id from document_grants g join group_members m using (group_id) where m.user_id = $1
"""
"""Ids of the documents that are shared with the user $1."""

# $3: the connectors to which the API token is limited.
_READ = f"""
select * from (
    select {SHOWN}, d.statement, d.parameters, d.owner_id, u.username as owner, {PERMISSION} as permission
    from documents d join users u on u.id = d.owner_id
    where d.uuid = $4 and ($3::text[] is null or d.connector = any($3))
) found where permission is not null
"""

_GRANTS = """
select g.permission, u.username as user, r.name as group from document_grants g
left join users u on u.id = g.user_id left join groups r on r.id = g.group_id
where g.document_id = $1 order by u.username_key, r.name
"""

_INSERT = """
insert into documents (uuid, owner_id, name, description, statement, parameters, connector, dialect, database, tags,
    folder, modified_by, size_bytes)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) on conflict (uuid) do nothing returning id
"""

_VERSION_COLUMNS = (
    "version, name, description, statement, parameters, connector, dialect, database, tags, modified_at, modified_by"
)
_KEEP_FORMER = f"""
insert into document_versions (document_id, {_VERSION_COLUMNS}, size_bytes)
select id, {_VERSION_COLUMNS}, size_bytes from documents where id = $1
"""
_DROP_OLDEST = "delete from document_versions where document_id = $1 and version <= $2"
# modified_at never goes back, so that a list that is sorted by it shows the last save first.
_UPDATE = """
update documents set name = $2, description = $3, statement = $4, parameters = $5, connector = $6, dialect = $7,
    database = $8, tags = $9, folder = $10, modified_by = $11, size_bytes = $12, version = version + 1,
    modified_at = greatest(now(), modified_at + interval '1 microsecond'),
    former_bytes = (select coalesce(sum(v.size_bytes), 0) from document_versions v where v.document_id = $1)
where id = $1
"""

# $2: the connectors to which the API token is limited. A former version may be for another connector.
_VERSIONS = """
select version, name, modified_at, modified_by from documents
where id = $1 and ($2::text[] is null or connector = any($2))
union all
select version, name, modified_at, modified_by from document_versions
where document_id = $1 and ($2::text[] is null or connector = any($2))
order by version desc
"""
_VERSION = f"""
select {_VERSION_COLUMNS} from documents
where id = $1 and ($2::text[] is null or connector = any($2)) and version = $3
union all
select {_VERSION_COLUMNS} from document_versions
where document_id = $1 and ($2::text[] is null or connector = any($2)) and version = $3
"""

# The row lock serializes the saves of an owner, so that two of them cannot exceed a limit together.
_LOCK_OWNER = "select id from users where id = $1 for no key update"
_USAGE = """
select count(*) as documents, coalesce(sum(size_bytes + former_bytes), 0)::bigint as bytes
from documents where owner_id = $1
"""

_DIALECTS = """
with recursive found (dialect) as (
    (
        select coalesce(dialect, '') from documents where owner_id = $1 and trashed_at is null and dialect is null
        limit 1
    )
    union all
    (
        select dialect from documents where owner_id = $1 and trashed_at is null and dialect is not null
        order by dialect limit 1
    )
    union all
    select (
        select dialect from documents
        where owner_id = $1 and trashed_at is null and dialect > found.dialect order by dialect limit 1
    )
    from found where found.dialect <> ''
)
select distinct dialect from found where dialect is not null
"""

_SET_GRANT = """
insert into document_grants (document_id, {kind}_id, permission, granted_by) values ($1, $2, $3, $4)
on conflict ({kind}_id, document_id) where {kind}_id is not null
do update set permission = excluded.permission, granted_by = excluded.granted_by, granted_at = now()
"""


_LOCK = "select id from documents where id = $1 and owner_id = $2 for update"
_LOCK_OWNERS = """
select id, username_key from users where username_key = $1 or username_key = $2 or id = $3
order by id for no key update
"""

# $1: the former owner, $2: the new one, $3: the only document, $4: the connectors to which the API token is limited,
# $5: the permission that the former owner keeps.
_GIVE = """
with given as (
    update documents set owner_id = $2
    where owner_id = $1 and ($3::bigint is null or id = $3) and ($4::text[] is null or connector = any($4))
    returning id
),
revoked as (
    delete from document_grants g using given where g.document_id = given.id and g.user_id = $2
),
kept as (
    insert into document_grants (document_id, user_id, permission, granted_by)
    select id, $1, $5::text, $6 from given where $5::text is not null
    on conflict (user_id, document_id) where user_id is not null
    do update set permission = excluded.permission, granted_by = excluded.granted_by, granted_at = now()
)
select count(*) from given
"""
_HAS_TOO_MANY_GRANTS = f"""
select exists (
    select from document_grants g join documents d on d.id = g.document_id where d.owner_id = $1
    group by g.document_id having count(*) > {MAX_GRANTS}
)
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the documents of an owner need, including their trash and former versions."""

    documents: int
    bytes: int


class DocumentRecords:
    """Documents in the service database. All methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator["DocumentTransaction"]:
        async with self._database.transaction() as connection:
            yield DocumentTransaction(connection)

    async def read(self, user: User, uuid: UUID) -> Document | None:
        """Return a document that the user may see, with its grants if the user may manage it."""
        async with self._database.connection() as connection:
            return await DocumentTransaction(connection).read(user, uuid)

    async def page(self, user: User, query: DocumentQuery, *, owner_key: str | None) -> Sequence[Summary]:
        """Return up to `query.limit` documents that the user may see, and one more if there are more. Newest first.

        `owner_key` is the owner's name in the form in which names are compared; None for all owners.
        """
        async with self._database.transaction() as connection:
            await connection.execute(PLAN_FOR_VALUES)
            owner_id = None
            if owner_key is not None:
                owner_id = await connection.fetchval("select id from users where username_key = $1", owner_key)
                if owner_id is None:
                    return []
            ids = await candidates(connection, [query.text]) if query.text else None
            sql, arguments = page_query(user, query, owner_id=owner_id, ids=ids)
            return [_summary(row) for row in await connection.fetch(sql, *arguments)]

    async def versions(self, user: User, document_id: int) -> Sequence[VersionEntry]:
        """Return the versions of a document that the user's API token permits, newest first."""
        rows = await self._database.fetch(_VERSIONS, document_id, _reached(user))
        return [VersionEntry(row["version"], row["name"], row["modified_at"], row["modified_by"]) for row in rows]

    async def version(self, user: User, document_id: int, version: int) -> DocumentVersion | None:
        """Return a version, or None if there is none that the user's API token permits."""
        row = await self._database.row(_VERSION, document_id, _reached(user), version)
        if row is None:
            return None
        return DocumentVersion(row["version"], _content(row), row["modified_at"], row["modified_by"])

    async def dialects(self, owner_id: int) -> Sequence[str | None]:
        """Return the dialects of a user's own documents; None stands for documents without a connector."""
        return [row["dialect"] or None for row in await self._database.fetch(_DIALECTS, owner_id)]

    async def clean_up(self, *, trashed_for: timedelta, dry_run: bool = False) -> Mapping[str, int]:
        """Delete documents that have been in the trash for this long. Return their number by kind."""
        old = "from documents where trashed_at < now() - $1::interval"
        if dry_run:
            return {"trashed documents": await self._database.value(f"select count(*) {old}", trashed_for)}
        return {"trashed documents": await self._database.execute(f"delete {old}", trashed_for)}


class DocumentTransaction:
    """Reads and writes documents in one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def read(self, user: User, uuid: UUID, *, locks: bool = False, to_key: str | None = None) -> Document | None:
        """Return a document that the user may see. `locks` keeps others from changing it until the transaction ends.

        `to_key` is the user name of a new owner, who is locked as well.
        """
        arguments = (user.id, user.is_admin, _reached(user), uuid)
        row = await self._connection.fetchrow(_READ, *arguments)
        while row is not None and locks:
            await self._connection.execute("savepoint document")
            # First the owners, as in the deletion of a user. Otherwise, the two could wait for each other.
            await self.lock_owners(to_key, from_id=row["owner_id"])
            locks = await self._connection.fetchval(_LOCK, row["id"], row["owner_id"]) is None
            if locks:  # Another user has become the owner, who must not be locked after the former one.
                await self._connection.execute("rollback to savepoint document")
            row = await self._connection.fetchrow(_READ, *arguments)
        if row is None:
            return None
        grants: Sequence[Row] = ()
        if row["permission"] == Permission.MANAGE:
            grants = await self._connection.fetch(_GRANTS, row["id"])
        return _document(row, grants)

    async def usage(self, owner_id: int) -> Usage:
        """Lock the owner's saves until the transaction ends, and return what the owner's documents need.

        Raises UserNotFound if the owner has been deleted.
        """
        if await self._connection.fetchval(_LOCK_OWNER, owner_id) is None:
            raise UserNotFound
        row = await self._connection.fetchrow(_USAGE, owner_id)
        return Usage(row["documents"], row["bytes"]) if row else Usage(0, 0)

    async def insert(self, uuid: UUID, owner: User, content: Content, *, folder: str) -> bool:
        """Create a document. Return False if another document has this uuid."""
        values = (*_stored(content), folder, owner.username, content.size_bytes)
        return await self._connection.fetchval(_INSERT, uuid, owner.id, *values) is not None

    async def update(self, document: Document, content: Content, *, folder: str, by: str, versions_kept: int) -> None:
        """Save a new version and keep the former one; delete the oldest above `versions_kept`."""
        await self._connection.execute(_KEEP_FORMER, document.id)
        await self._connection.execute(_DROP_OLDEST, document.id, document.version - versions_kept)
        await self._connection.execute(_UPDATE, document.id, *_stored(content), folder, by, content.size_bytes)

    async def move(self, document_id: int, folder: str) -> None:
        await self._connection.execute("update documents set folder = $2 where id = $1", document_id, folder)

    async def set_trashed(self, document_id: int, *, is_trashed: bool) -> None:
        moment = "coalesce(trashed_at, now())" if is_trashed else "null"
        await self._connection.execute(f"update documents set trashed_at = {moment} where id = $1", document_id)

    async def delete(self, document_id: int) -> None:
        await self._connection.execute("delete from documents where id = $1", document_id)

    async def lock_owners(
        self, to_key: str | None, from_key: str | None = None, *, from_id: int | None = None
    ) -> Mapping[str, int]:
        """Lock users as `usage` does, in the order of their ids. Return the ids of those who exist by their keys."""
        rows = await self._connection.fetch(_LOCK_OWNERS, to_key, from_key, from_id)
        return {row["username_key"]: row["id"] for row in rows}

    async def give(
        self, user: User, former_id: int, to_id: int, *, document_id: int | None, keep: Permission | None
    ) -> int:
        """Change the owner of a document, or of all documents that the user's API token permits. Return their number.

        The grant of the new owner is removed. The former owner gets the permission `keep`.
        """
        kept = None if keep is None else keep.value
        return await self._connection.fetchval(
            _GIVE, former_id, to_id, document_id, _reached(user), kept, user.username
        )

    async def has_too_many_grants(self, owner_id: int) -> bool:
        return await self._connection.fetchval(_HAS_TOO_MANY_GRANTS, owner_id)

    async def user_id(self, username_key: str) -> int | None:
        """Return the id of a user, who cannot be deleted until the transaction ends."""
        return await self._connection.fetchval(
            "select id from users where username_key = $1 for key share", username_key
        )

    async def group_id(self, name: str) -> int | None:
        """Return the id of a group, which cannot be deleted until the transaction ends."""
        return await self._connection.fetchval("select id from groups where name = $1 for key share", name)

    async def grant(
        self, document_id: int, permission: Permission, *, by: str, user_id: int | None, group_id: int | None
    ) -> None:
        """Set the permission of a user or a group, in place of a former one."""
        kind, grantee = ("user", user_id) if user_id is not None else ("group", group_id)
        await self._connection.execute(_SET_GRANT.format(kind=kind), document_id, grantee, permission.value, by)

    async def revoke(self, document_id: int, *, user_id: int | None, group_id: int | None) -> None:
        await self._connection.execute(
            "delete from document_grants where document_id = $1 and (user_id = $2 or group_id = $3)",
            document_id,
            user_id,
            group_id,
        )

    async def count_grants(self, document_id: int) -> int:
        return await self._connection.fetchval(
            "select count(*) from document_grants where document_id = $1", document_id
        )


def _reached(user: User) -> list[str] | None:
    return None if user.reached is None else list(user.reached)


def _stored(content: Content) -> tuple[object, ...]:
    return (
        content.name,
        content.description,
        content.statement,
        [one.stored for one in content.parameters],
        content.connector,
        content.dialect,
        content.database,
        list(content.tags),
    )


def _content(row: Row) -> Content:
    stored: Sequence[Mapping[str, Any]] = row["parameters"]
    return Content(
        **{name: row[name] for name in _CONTENT},
        parameters=tuple(DocumentParameter.of_stored(one) for one in stored),
        tags=tuple(row["tags"]),
    )


def _document(row: Row, grants: Sequence[Row]) -> Document:
    return Document(
        id=row["id"],
        uuid=row["uuid"],
        owner_id=row["owner_id"],
        owner=row["owner"],
        content=_content(row),
        folder=row["folder"],
        version=row["version"],
        created=row["created_at"],
        modified=row["modified_at"],
        modified_by=row["modified_by"],
        permission=Permission(row["permission"]),
        is_trashed=row["is_trashed"],
        grants=tuple(Grant(Permission(one["permission"]), one["user"], one["group"]) for one in grants),
    )


_SUMMARY_FIELDS = (
    "id", "uuid", "owner", "name", "description", "connector", "dialect", "database", "folder", "version",
    "modified_by", "is_trashed",
)  # fmt: skip


def _summary(row: Row) -> Summary:
    return Summary(
        **{name: row[name] for name in _SUMMARY_FIELDS},
        tags=tuple(row["tags"]),
        created=row["created_at"],
        modified=row["modified_at"],
        permission=Permission(row["permission"]),
    )
