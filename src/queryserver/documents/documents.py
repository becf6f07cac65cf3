"""Saves, lists, shares, deletes and prepares runs of documents (Contract documents).

What a caller may not see does not exist for the caller: unknown ids and ids of other users raise the same error.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

from queryserver import errors
from queryserver.connectors.registry import Connectors
from queryserver.documents.model import (
    MAX_GRANTS,
    ROOT,
    Content,
    Cursor,
    Document,
    DocumentParameter,
    DocumentQuery,
    DocumentVersion,
    GrantChange,
    OwnerChange,
    Page,
    Permission,
    Runnable,
    SavedDocument,
    VersionEntry,
    checked_folder,
    run_parameters,
    type_of,
)
from queryserver.documents.repository import DocumentRecords, DocumentTransaction
from queryserver.identity.model import MAX_LENGTH, User, UsernameRule
from queryserver.platform.logs import AUDIT
from queryserver.platform.settings.editor import DocumentSettings
from queryserver.statements.status import StatementAccess, parse_operation_id

_MAX_SHOWN_ID_CHARACTERS = 40
_MAX_GROUP_CHARACTERS = 255
_TOO_MANY_GRANTS = f"a document has at most {MAX_GRANTS} grants. Use groups."


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """What a save sets. Members that are None stay as they are; in a new document, they are empty."""

    uuid: UUID | None = None
    """The document to change or create; None creates one."""
    version: int | None = None
    """The version that the caller has read."""
    name: str | None = None
    description: str | None = None
    statement: str | None = field(default=None, repr=False)
    parameters: tuple[DocumentParameter, ...] | None = None
    connector: str | None = None
    """Key, id or dialect of a connector; empty for none."""
    database: str | None = None
    """Empty for none."""
    tags: tuple[str, ...] | None = None
    folder: str | None = None
    operation_id: str | None = None
    """An operation of the caller whose statement, connector and database are saved."""
    replaces_any: bool = False
    """Whether to replace the current version if `version` is None. Programs written for Hue send no version."""

    @property
    def texts(self) -> Mapping[str, Any]:
        """The given members that are copied unchanged."""
        names = ("name", "description", "statement", "parameters", "tags")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """The saved queries. All methods raise DatabaseUnavailable."""

    records: DocumentRecords
    connectors: Connectors
    statements: StatementAccess
    usernames: UsernameRule
    settings: DocumentSettings

    async def get(self, user: User, document_id: str | UUID) -> Document:
        """Return a document that the user may see. Raises document_not_found."""
        uuid = _uuid(document_id)
        return _existing(await self.records.read(user, uuid), uuid)

    async def page(self, user: User, query: DocumentQuery) -> Page:
        """Return the caller's own documents and those shared with the caller, newest first.

        Raises InvalidParameter, admin_required.
        """
        if query.of_all and not user.is_admin:
            raise errors.admin_required("Only administrators may list the documents of all users.")
        try:
            owner_key = self.usernames.read(query.owner).key if query.owner else None
        except errors.InvalidUsername:
            return Page((), None)
        if query.folder is not None:
            query = replace(query, folder=checked_folder(query.folder))
        found = await self.records.page(user, query, owner_key=owner_key)
        page = found[: query.limit]
        return Page(page, Cursor(page[-1].modified, page[-1].id) if len(found) > len(page) else None)

    async def save(self, user: User, change: DocumentChange) -> SavedDocument:
        """Create a document, or save a new version of it. A save that changes nothing keeps the version.

        Raises document_not_found, document_in_trash, VersionConflict, PermissionDenied, UnknownDialect,
        InvalidParameter, PayloadTooLarge, too_many_documents, quota_exceeded, OperationNotFound,
        statement_text_expired.
        """
        uuid = change.uuid or uuid4()
        with AUDIT.event(user.username, "document.save", str(uuid)):
            change = await self._with_operation(user, change)
            async with self.records.transaction() as transaction:
                found = await transaction.read(user, uuid, locks=True) if change.uuid else None
                is_new = found is None and await self._create(transaction, user, uuid, change)
                if not is_new:
                    # Read again, because another call may have created the document in the meantime.
                    found = found or await transaction.read(user, uuid, locks=True)
                    await self._update(transaction, user, _existing(found, uuid), change)
                saved = _existing(await transaction.read(user, uuid), uuid)
        return SavedDocument(saved, is_new=is_new)

    async def delete(self, user: User, document_id: str, *, skips_trash: bool = False) -> None:
        """Move a document to the trash, or delete it for ever. Raises document_not_found, PermissionDenied."""
        async with self._managed(user, document_id, "delete", facts={"forever": int(skips_trash)}) as (changes, found):
            if skips_trash:
                await changes.delete(found.id)
            else:
                await changes.set_trashed(found.id, is_trashed=True)

    async def restore(self, user: User, document_id: str) -> Document:
        """Take a document out of the trash. Raises document_not_found, PermissionDenied."""
        async with self._managed(user, document_id, "restore") as (changes, found):
            await changes.set_trashed(found.id, is_trashed=False)
        return await self.get(user, document_id)

    async def move(self, user: User, document_id: str, folder: str) -> Document:
        """Move a document to another folder. Its version stays the same.

        Raises document_not_found, document_in_trash, PermissionDenied, InvalidParameter.
        """
        path = checked_folder(folder)
        async with self._managed(user, document_id, "move") as (changes, found):
            _require_not_trashed(found)
            await changes.move(found.id, path)
        return await self.get(user, document_id)

    async def share(self, user: User, document_id: str, changes: Sequence[GrantChange]) -> Document:
        """Set or revoke grants of users and groups. Grants that are not named stay as they are.

        Raises document_not_found, PermissionDenied, InvalidParameter, unknown_user, UnknownGroup.
        """
        with AUDIT.failures(user.username, "document.share", document_id):
            if len(changes) > MAX_GRANTS:
                raise errors.InvalidParameter(f"grants: {_TOO_MANY_GRANTS}")
            uuid = _uuid(document_id)
            async with self.records.transaction() as transaction:
                found = _managed_one(await transaction.read(user, uuid, locks=True), uuid)
                _require_not_trashed(found)
                facts = [await self._grant(transaction, user, found, change) for change in changes]
                if await transaction.count_grants(found.id) > MAX_GRANTS:
                    raise errors.InvalidParameter(f"grants: {_TOO_MANY_GRANTS}")
        for one in facts:  # an event for each grant, because a long list would be cut
            AUDIT.record(user.username, "document.share", str(uuid), facts=one)
        return await self.get(user, document_id)

    async def change_owner(self, user: User, change: OwnerChange) -> int:
        """Give one document, or all documents of a user, to another user. Return how many have changed.

        Raises document_not_found, document_in_trash, PermissionDenied, admin_required, unknown_user,
        InvalidParameter, too_many_documents, quota_exceeded.
        """
        facts: dict[str, str | int] = {}  # completed below, because the event is written at the end
        with AUDIT.event(user.username, "document.change_owner", change.document or "", facts=facts):
            facts["subject_user"] = to_key = self._username_key(change.to_user)
            async with self.records.transaction() as transaction:
                if change.document is not None:
                    found = await transaction.read(user, _uuid(change.document), locks=True, to_key=to_key)
                    one = _managed_one(found, change.document)
                    _require_not_trashed(one)
                    former_id, document_id, facts["former_owner"] = one.owner_id, one.id, one.owner
                    owners = await transaction.lock_owners(to_key)
                else:
                    facts["former_owner"] = from_key = self._own_or_managed_key(user, change.from_user or "")
                    owners = await transaction.lock_owners(to_key, from_key)
                    former_id, document_id = _existing_user(owners.get(from_key), change.from_user or ""), None
                to_id = _existing_user(owners.get(to_key), change.to_user)
                count = await self._give(transaction, user, former_id, to_id, document_id=document_id, keep=change.keep)
            facts["documents"] = count
        return count

    async def versions(self, user: User, document_id: str) -> Sequence[VersionEntry]:
        """Return the current and the kept former versions, newest first. Raises document_not_found."""
        return await self.records.versions(user, (await self.get(user, document_id)).id)

    async def version(self, user: User, document_id: str, version: int) -> tuple[Document, DocumentVersion]:
        """Return a document and one of its versions. Raises document_not_found, document_version_not_found."""
        document = await self.get(user, document_id)
        return document, await self._version(user, document, version)

    async def restore_version(self, user: User, document_id: str, restored: int, *, version: int) -> Document:
        """Save the content of a former version as a new version.

        `version` is the version that the caller has read. Raises document_version_not_found, and the errors of `save`.
        """
        with AUDIT.event(user.username, "document.save", document_id, facts={"restored_version": restored}):
            document = await self.get(user, document_id)
            content = (await self._version(user, document, restored)).content
            async with self.records.transaction() as transaction:
                found = _existing(await transaction.read(user, document.uuid, locks=True), document.uuid)
                _require_not_trashed(found)
                await self._write(transaction, user, found, content, folder=found.folder, version=version)
        return await self.get(user, document_id)

    async def runnable(self, user: User, document_id: str, parameters: object = None) -> Runnable:
        """Return what a run of the document by this user submits.

        `parameters` are the values of the run in the form of `execute`; the document's defaults complete them. The
        caller of this method submits the statement as the same user, so that it runs with the user's own rights.

        Raises document_not_found, document_in_trash, PermissionDenied, MissingParameter, InvalidParameter.
        """
        found = await self.get(user, document_id)
        _require_not_trashed(found)
        _require(found, Permission.RUN)
        content = found.content
        if not content.statement.strip():
            raise errors.MissingParameter("document: has no statement.")
        return Runnable(
            uuid=found.uuid,
            name=content.name,
            version=found.version,
            statement=content.statement,
            connector=content.connector,
            database=content.database,
            parameters=run_parameters(content.parameters, parameters),
        )

    def record_run(self, user: User, document: Runnable, operation_id: UUID) -> None:
        """Audit a run whose statement has been recorded."""
        facts = {"operation_id": str(operation_id), "version": document.version}
        AUDIT.record(user.username, "document.run", str(document.uuid), facts=facts)

    async def types(self, user: User) -> Sequence[str]:
        """Return the types of the user's own documents, sorted."""
        return sorted(type_of(dialect) for dialect in await self.records.dialects(user.id))

    async def _with_operation(self, user: User, change: DocumentChange) -> DocumentChange:
        """Complete a change with the statement, connector and database of its operation."""
        if change.operation_id is None:
            return change
        record = await self.statements.own_record(user, parse_operation_id(change.operation_id))
        if record.text_is_cut:
            raise errors.statement_text_expired()
        return replace(
            change,
            statement=record.handle.statement if change.statement is None else change.statement,
            connector=(
                self.connectors.exact(user, record.status.connector).key
                if change.connector is None
                else change.connector
            ),
            database=record.database if change.database is None else change.database,
        )

    async def _create(self, transaction: DocumentTransaction, user: User, uuid: UUID, change: DocumentChange) -> bool:
        """Create a document. Return False if another document has its uuid."""
        content = self._changed(user, Content(), change)
        usage = await transaction.usage(user.id)
        if usage.documents >= self.settings.max_per_user:
            raise errors.too_many_documents(
                f"You have {usage.documents} documents, the most that a user may have (`documents.max_per_user`)."
                " Delete some of them for ever."
            )
        self._require_space(usage.bytes + content.size_bytes)
        folder = checked_folder(change.folder or ROOT)
        return await transaction.insert(uuid, user, content, folder=folder)

    async def _update(
        self, transaction: DocumentTransaction, user: User, found: Document, change: DocumentChange
    ) -> None:
        _require_not_trashed(found)
        content = self._changed(user, found.content, change)
        folder = found.folder if change.folder is None else checked_folder(change.folder)
        version = found.version if change.version is None and change.replaces_any else change.version
        await self._write(transaction, user, found, content, folder=folder, version=version)

    async def _write(
        self,
        transaction: DocumentTransaction,
        user: User,
        found: Document,
        content: Content,
        *,
        folder: str,
        version: int | None,
    ) -> None:
        """Save a new version, unless it is the same as the current one: a repeated call must not fail."""
        _require(found, Permission.EDIT)
        is_same = content.is_same(found.content)
        if is_same and folder == found.folder:
            return
        if version != found.version:
            raise errors.VersionConflict(found.version, is_missing=version is None)
        if folder != found.folder:
            _require(found, Permission.MANAGE)
        if is_same:
            await transaction.move(found.id, folder)
            return
        self._require_space((await transaction.usage(found.owner_id)).bytes + content.size_bytes)
        kept = self.settings.versions_kept
        await transaction.update(found, content, folder=folder, by=user.username, versions_kept=kept)

    def _changed(self, user: User, content: Content, change: DocumentChange) -> Content:
        """Return the content with the change. A connector that stays the same need not be usable for the caller."""
        content = replace(content, **change.texts)
        if change.database is not None:
            content = replace(content, database=change.database or None)
        if change.connector == "":
            content = replace(content, connector=None, dialect=None)
        elif change.connector is not None and change.connector != content.connector:
            connector = self.connectors.resolve(user, change.connector)
            content = replace(content, connector=connector.key, dialect=connector.dialect)
        if content.connector is None and user.reached is not None:
            raise errors.InvalidParameter(
                "connector is required, because this API token is limited to certain connectors."
            )
        return content.checked(self.settings)

    def _require_space(self, size_bytes: int) -> None:
        if size_bytes > self.settings.max_bytes_per_user:
            raise errors.quota_exceeded(
                f"The documents of a user, with their former versions, may have {self.settings.max_bytes_per_user}"
                " bytes together (`documents.max_bytes_per_user`). Delete some of them for ever."
            )

    async def _grant(
        self, transaction: DocumentTransaction, user: User, found: Document, change: GrantChange
    ) -> Mapping[str, str]:
        """Set or revoke a grant. Return the facts of its audit event."""
        user_id = group_id = None
        permission = change.permission.value if change.permission else "none"
        if change.user is not None:
            grantee = self._username_key(change.user)
            user_id, facts = await transaction.user_id(grantee), {"subject_user": grantee, "permission": permission}
            if user_id is None:
                raise errors.unknown_user(change.user)
            if user_id == found.owner_id:
                raise errors.InvalidParameter("grants: the owner always has all permissions.")
        else:
            group = (change.group or "")[: _MAX_GROUP_CHARACTERS + 1]
            group_id, facts = await transaction.group_id(group), {"subject_group": group, "permission": permission}
            if group_id is None:
                raise errors.UnknownGroup(group)
        if change.permission is None:
            await transaction.revoke(found.id, user_id=user_id, group_id=group_id)
        else:
            await transaction.grant(found.id, change.permission, by=user.username, user_id=user_id, group_id=group_id)
        return facts

    async def _give(
        self,
        transaction: DocumentTransaction,
        user: User,
        former_id: int,
        to_id: int,
        *,
        document_id: int | None,
        keep: Permission | None,
    ) -> int:
        """Change the owner, unless it is the same: a repeated call must not fail. Return the number of documents."""
        if former_id == to_id:
            return 0
        count = await transaction.give(user, former_id, to_id, document_id=document_id, keep=keep)
        if not count:
            return 0
        # Users other than administrators must not be able to fill the whole space of another user.
        share = 1 if user.is_admin else 2
        usage = await transaction.usage(to_id)
        if usage.documents > self.settings.max_per_user // share:
            raise errors.too_many_documents("The new owner would have too many documents (`documents.max_per_user`).")
        if usage.bytes > self.settings.max_bytes_per_user // share:
            raise errors.quota_exceeded(
                "The documents of the new owner would need too much space (`documents.max_bytes_per_user`)."
            )
        if keep is not None and await transaction.has_too_many_grants(to_id):
            raise errors.InvalidParameter(f"keep: {_TOO_MANY_GRANTS}")
        return count

    def _own_or_managed_key(self, user: User, name: str) -> str:
        """Return the key of the name of the user, or for administrators of any user. Raises admin_required."""
        key = self._username_key(name)
        if not user.is_admin and key != self._username_key(user.username):
            raise errors.admin_required("Only administrators may give away all documents of another user.")
        return key

    def _username_key(self, name: str) -> str:
        """Return the key of a user name. Raises unknown_user."""
        if len(name) > MAX_LENGTH:  # also with surrounding blanks, which `read` ignores
            raise errors.unknown_user(name[:MAX_LENGTH])
        try:
            return self.usernames.read(name).key
        except errors.InvalidUsername:
            raise errors.unknown_user(name) from None

    async def _version(self, user: User, document: Document, version: int) -> DocumentVersion:
        found = await self.records.version(user, document.id, version)
        if found is None:
            raise errors.document_version_not_found(version)
        return found

    @asynccontextmanager
    async def _managed(
        self, user: User, document_id: str, operation: str, *, facts: Mapping[str, str | int] = MappingProxyType({})
    ) -> AsyncGenerator[tuple[DocumentTransaction, Document]]:
        """Open a transaction that changes a document which the user may manage, and audit it."""
        with AUDIT.event(user.username, f"document.{operation}", document_id, facts=facts):
            uuid = _uuid(document_id)
            async with self.records.transaction() as transaction:
                yield transaction, _managed_one(await transaction.read(user, uuid, locks=True), uuid)


def _uuid(document_id: str | UUID) -> UUID:
    """Return the UUID. Raises document_not_found, as for an unknown one."""
    try:
        return document_id if isinstance(document_id, UUID) else UUID(document_id)
    except ValueError:
        raise errors.document_not_found(str(document_id)[:_MAX_SHOWN_ID_CHARACTERS]) from None


def _existing(document: Document | None, uuid: UUID) -> Document:
    """Return the document. Raises document_not_found if there is none that the caller may see."""
    if document is None:
        raise errors.document_not_found(uuid)
    return document


def _existing_user(user_id: int | None, name: str) -> int:
    if user_id is None:
        raise errors.unknown_user(name)
    return user_id


def _managed_one(document: Document | None, document_id: UUID | str) -> Document:
    """Return the document. Raises document_not_found, and PermissionDenied if the caller may not manage it."""
    found = _existing(document, _uuid(document_id))
    _require(found, Permission.MANAGE)
    return found


_NEEDED = {
    Permission.RUN: "You may view this document, but not run it.",
    Permission.EDIT: "You may not change this document.",
    Permission.MANAGE: "Only the owner of this document may move, share or delete it, or give it away.",
}


def _require(document: Document, permission: Permission) -> None:
    if not document.permission.includes(permission):
        raise errors.PermissionDenied(_NEEDED[permission])


def _require_not_trashed(document: Document) -> None:
    if document.is_trashed:
        raise errors.document_in_trash(document.uuid)
