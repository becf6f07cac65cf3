"""Recording an import as a statement (Contract importer 13)."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from queryserver.domain.connector import Connector
from queryserver.domain.splitter import statement_hash
from queryserver.domain.statement import IdempotencyKey, NewStatement, StatementHandle
from queryserver.domain.user import User
from queryserver.interfaces.statements import Recorded
from queryserver.services.statements.handing_over import HandingOver, hand_over, new_session_guid, opaque_token
from queryserver.services.statements.submission import SubmissionParts


@dataclass(frozen=True, slots=True)
class NewImport:
    """An import about to be recorded. `text` is what histories show of it; `plan` is what the runner does."""

    text: str
    database: str | None
    plan: Mapping[str, Any]
    idempotency_key: str | None = None


class ImportSubmissions:
    """Takes imports in, under the limits and rules of statements."""

    def __init__(self, parts: SubmissionParts) -> None:
        self._parts = parts

    async def replay(self, user: User, connector: Connector, new: NewImport) -> Recorded | None:
        """What was recorded under the same key. Raises idempotency_conflict."""
        key = _key(connector, new)
        known = await self._parts.records.find_replay(user.id, key) if key else None
        return Recorded(known, replayed=True) if known is not None else None

    async def submit(self, user: User, connector: Connector, new: NewImport) -> Recorded:
        """Record an import and hand it to a runner.

        Raises too_many_statements, quota_exceeded, idempotency_conflict.
        """
        statement = await self._statement(user, connector, new)
        recorded = await self._parts.records.record(statement)
        if recorded.replayed:
            return recorded
        facts = {"operation_id": str(statement.id)}
        self._parts.audit.record(user.username, "import.start", connector.key, facts=facts)
        parts = HandingOver(self._parts.records, self._parts.leases, self._parts.queue)
        return await hand_over(parts, user, connector, statement, recorded)

    async def _statement(self, user: User, connector: Connector, new: NewImport) -> NewStatement:
        limits = self._parts.limits
        return NewStatement(
            id=uuid4(),
            user_id=user.id,
            connector=connector.key,
            dialect=connector.dialect,
            handle=_handle(new.text, await self._parts.records.new_session_id()),
            script=None,
            script_id=None,
            database=new.database,
            settings={},
            row_limit=1,
            timeout=connector.limits.statement_timeout,
            has_result_set=True,
            in_history=True,
            in_named_session=False,
            keeps_session=False,
            parent_uuid="",
            owner=await self._parts.queue.owner_for(connector, session_owner=None),
            lease=limits.lease,
            idempotency=_key(connector, new),
            max_active=limits.max_statements_per_user,
            max_spool_bytes=limits.spool_max_bytes_per_user,
            import_plan=new.plan,
            token=self._parts.credentials.sealed_token(user, connector),
            texts=limits.texts,
        )


def _handle(text: str, session_id: int) -> StatementHandle:
    *lines, last = text.split("\n")
    return StatementHandle(
        statement=text,
        statement_index=0,
        statements_count=1,
        position=(0, 0, len(lines), max(len(last) - 1, 0)),
        statement_hash=statement_hash(text),
        guid=opaque_token(),
        secret=opaque_token(),
        session_id=session_id,
        session_guid=new_session_guid(),
    )


def _key(connector: Connector, new: NewImport) -> IdempotencyKey | None:
    if new.idempotency_key is None:
        return None
    compared = ["import", connector.key, new.plan]
    return IdempotencyKey(new.idempotency_key, hashlib.sha256(json.dumps(compared).encode()).digest())
