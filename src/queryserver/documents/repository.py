"""Reads and writes documents, their versions and grants in the service database.

The service decides what the caller may do; the queries of this module return only documents that the caller may see.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from queryserver.documents.model import (
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
_SHOWN = (
    "d.id, d.uuid, d.name, d.description, d.connector, d.dialect, d.database, d.tags, d.folder, d.version,"
    " d.created_at, d.modified_at, d.modified_by, d.trashed_at is not null as is_trashed"
)
GRANTED = """
    select document_id from document_grants where user_id = $1
    union
    select g.document_id from document_grants g join group_members m using (group_id) where m.user_id = $1
"""
"""Ids of the documents that are shared with the user $1."""

# The highest permission of the user $1 for a document `d`; null if there is none. $2: the user is an administrator.
_PERMISSION = """
    case when d.owner_id = $1 or $2 then 'manage' else (
        select g.permission from document_grants g
        where g.document_id = d.id and d.trashed_at is null and (
            g.user_id = $1
            or g.group_id in (select m.group_id from group_members m where m.user_id = $1)
        )
        order by array_position(array['edit', 'run', 'view'], g.permission) limit 1
    ) end
"""

# $3: the connectors to which the API token is limited.
_READ = f"""
select * from (
    select {_SHOWN}, d.statement, d.parameters, d.owner_id, u.username as owner, {_PERMISSION} as permission
    from documents d join users u on u.id = d.owner_id
    where d.uuid = $4 and ($3::text[] is null or d.connector = any($3))
) found where permission is not null
"""

_GRANTS = """
select g.permission, u.username as user, r.name as group from document_grants g
left join users u on u.id = g.user_id left join groups r on r.id = g.group_id
where g.document_id = $1 order by u.username_key, r.name
"""

_TEXTS = "lower(d.name || E'\\n' || d.description || E'\\n' || d.statement)"

# After five executions, PostgreSQL would use one plan for all users and filters, which for users with few documents is
# a hundred times slower than the plan for their values (docs/benchmarks.md).
_PLAN_FOR_VALUES = "set local plan_cache_mode = force_custom_plan"

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
        sql, arguments = _page_query(user, query, owner_key)
        async with self._database.transaction() as connection:
            await connection.execute(_PLAN_FOR_VALUES)
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

    async def read(self, user: User, uuid: UUID, *, locks: bool = False) -> Document | None:
        """Return a document that the user may see. `locks` keeps others from changing it until the transaction ends."""
        arguments = (user.id, user.is_admin, _reached(user), uuid)
        row = await self._connection.fetchrow(_READ, *arguments)
        if row is not None and locks:
            # First the owner, as in the deletion of a user. Otherwise, the two could wait for each other.
            await self._connection.execute(_LOCK_OWNER, row["owner_id"])
            await self._connection.execute("select from documents where id = $1 for update", row["id"])
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


def _page_query(user: User, query: DocumentQuery, owner_key: str | None) -> tuple[str, Sequence[object]]:
    """Return SQL with only the conditions in use. One query with optional conditions would not use the indexes."""
    arguments: list[object] = [user.id, user.is_admin, query.limit + 1]
    conditions = ["d.trashed_at is not null" if query.is_trashed else "d.trashed_at is null"]
    for argument, condition in (
        (_reached(user), "d.connector = any({}::text[])"),
        (query.folder, "d.folder = {}::text"),
        (query.tag, "{}::text = any(d.tags)"),
        (query.type, "coalesce('query-' || d.dialect, 'notebook') = {}::text"),
        (query.text, f"strpos({_TEXTS}, lower({{}}::text)) > 0"),
        (owner_key, "d.owner_id = (select id from users where username_key = {}::text)"),
    ):
        if argument is not None:
            arguments.append(argument)
            conditions.append(condition.format(f"${len(arguments)}"))
    if query.after is not None:
        arguments += [query.after.modified, query.after.id]
        conditions.append(f"(d.modified_at, d.id) < (${len(arguments) - 1}::timestamptz, ${len(arguments)}::bigint)")
    chosen = " and ".join(conditions)
    newest = "order by d.modified_at desc, d.id desc limit $3"
    # Two queries, because with `or` between own and shared documents PostgreSQL would sort all of them.
    parts = [f"select d.* from documents d where d.owner_id = $1 and {chosen} {newest}"]
    if query.of_all:
        parts = [f"select d.* from documents d where {chosen} {newest}"]
    elif not query.is_trashed:
        parts.append(
            f"select d.* from documents d where d.owner_id <> $1 and d.id in ({GRANTED}) and {chosen} {newest}"
        )
    found = " union all ".join(f"({part})" for part in parts)
    return (
        f"""select {_SHOWN}, u.username as owner, {_PERMISSION} as permission
        from (select * from ({found}) d {newest}) d join users u on u.id = d.owner_id
        order by d.modified_at desc, d.id desc""",
        arguments,
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
