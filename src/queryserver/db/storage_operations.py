"""Records of long operations on files."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from queryserver.db.database import Database
from queryserver.domain.transfers import OperationState, OperationStatus

_KEPT = "interval '7 days'"

# A transfer that another process can finish, or that one has just taken over, will end its operation itself.
_GIVE_UP = """
update storage_operations as operation set state = 'failed', ended_at = now(), result = $1
where state = 'running' and lease_until < now() and not exists (
    select from storage_transfers
    where operation_id = operation.id and ended_at is null and owner is not null
)
"""


class OperationRecords:
    """Long operations whose clients ask for the outcome later."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, operation_id: UUID, *, user_id: int, kind: str, path: str, lease: timedelta) -> None:
        """Record a running operation. Spent records go with the next one."""
        await self._database.execute(
            f"""with spent as (delete from storage_operations where ended_at < now() - {_KEPT})
            insert into storage_operations (id, user_id, kind, path, state, lease_until)
            values ($1, $2, $3, $4, 'running', now() + $5::interval)""",
            operation_id,
            user_id,
            kind,
            path,
            lease,
        )

    async def report(self, operation_id: UUID, *, done: int, total: int | None, lease: timedelta) -> None:
        """Tell how far it is, and that its process lives."""
        await self._database.execute(
            """update storage_operations set done = $2, total = $3, lease_until = now() + $4::interval
            where id = $1 and state = 'running'""",
            operation_id,
            done,
            total,
            lease,
        )

    async def end(self, operation_id: UUID, *, state: OperationState, result: Mapping[str, Any] | str) -> None:
        """Record the final body, once."""
        await self._database.execute(
            """update storage_operations set state = $2, result = $3, ended_at = now()
            where id = $1 and state = 'running'""",
            operation_id,
            state.value,
            result if isinstance(result, str) else dict(result),
        )

    async def read(self, operation_id: UUID, *, user_id: int) -> OperationStatus | None:
        """None when there is none of this user."""
        row = await self._database.row(
            "select state, done, total, result from storage_operations where id = $1 and user_id = $2",
            operation_id,
            user_id,
        )
        if row is None:
            return None
        return OperationStatus(operation_id, OperationState(row["state"]), row["done"], row["total"], row["result"])

    async def give_up(self, result: Mapping[str, Any]) -> int:
        """End the operations whose process is gone and which nobody goes on with; how many."""
        return await self._database.execute(_GIVE_UP, dict(result))
