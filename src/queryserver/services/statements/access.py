"""Who may see which operation (Contract editor 1.6)."""

import re
from uuid import UUID

from queryserver.db.statements.records import StatementRecords
from queryserver.domain.errors.statements import OperationNotFound
from queryserver.domain.statement import StatementRecord, StatementStatus
from queryserver.domain.user import User
from queryserver.services.connectors import Connectors

_LONGEST_ID_SHOWN = 64
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


class Access:
    """Finds operations for callers. Unknown, malformed and foreign ids give the same OperationNotFound."""

    def __init__(self, records: StatementRecords, connectors: Connectors) -> None:
        self._records = records
        self._connectors = connectors

    async def id_of(self, user: User, operation_id: str | None, guid: str | None) -> UUID:
        """The operation that a caller names, by id or by the `guid` of its handle.

        An id is not yet known to be theirs. A guid is: an error must never tell the id behind a foreign one.
        Raises OperationNotFound.
        """
        if operation_id is None and guid is not None:
            found = await self._records.id_of_guid(guid, user_id=None if user.is_admin else user.id)
            if found is None:
                raise OperationNotFound(guid[:_LONGEST_ID_SHOWN])
            return found
        return parse_operation_id(operation_id or "")

    async def follow(self, user: User, operation_id: UUID) -> StatementStatus:
        """The status, for the owner and for administrators. Raises OperationNotFound, PermissionDenied."""
        status = await self.end(user, operation_id)
        self.require_follower(user, status)
        return status

    async def end(self, user: User, operation_id: UUID) -> StatementStatus:
        """The status, for those who may cancel and close: the owner and administrators. Raises OperationNotFound.

        Whoever lost the right to the connector may still end what is his own there.
        """
        status = await self._records.status(operation_id)
        if status is None or not (status.user_id == user.id or user.is_admin):
            raise OperationNotFound(str(operation_id))
        return status

    def require_follower(self, user: User, status: StatementStatus) -> None:
        """Raises OperationNotFound, PermissionDenied when the user may not follow the operation (any more)."""
        if not (status.user_id == user.id or user.is_admin):
            raise OperationNotFound(str(status.id))
        self._connectors.require_permission(user, status.connector)

    async def own(self, user: User, operation_id: UUID) -> StatementRecord:
        """The record, for the owner only. Raises OperationNotFound, PermissionDenied."""
        record = await self._records.read(operation_id)
        if record is None or record.status.user_id != user.id:
            raise OperationNotFound(str(operation_id))
        self._connectors.require_permission(user, record.status.connector)
        return record

    async def record(self, user: User, operation_id: UUID) -> StatementRecord:
        """The record, for the owner and for administrators. Raises OperationNotFound, PermissionDenied."""
        await self.follow(user, operation_id)
        record = await self._records.read(operation_id)
        if record is None:
            raise OperationNotFound(str(operation_id))
        return record

    def require_owner(self, user: User, status: StatementStatus) -> None:
        """Results are for the owner only, administrators included. Raises OperationNotFound, PermissionDenied."""
        if status.user_id != user.id:
            raise OperationNotFound(str(status.id))
        self._connectors.require_permission(user, status.connector)


def parse_operation_id(text: str) -> UUID:
    """A UUID in its usual form. Raises OperationNotFound."""
    if not _UUID.fullmatch(text):
        # UUID() would read more: braces, `urn:uuid:`, hyphens anywhere or nowhere.
        raise OperationNotFound(text[:_LONGEST_ID_SHOWN])
    return UUID(text)
