"""Records work other than SQL as statements: imports, and exports of stored results."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.identity.model import User
from queryserver.platform.settings.editor import EditorSettings
from queryserver.sql.statements import statement_hash
from queryserver.statements.model import (
    IdempotencyKey,
    NewStatement,
    RecordedStatement,
    StatementHandle,
    new_session_guid,
    opaque_token,
)
from queryserver.statements.session_options import SessionCredentials
from queryserver.statements.submission import StatementRecorder


@dataclass(frozen=True, slots=True)
class NewJob:
    """Work other than SQL, to be recorded: an import, which has a plan, or an export of a stored result.

    `text` appears in histories.
    """

    text: str
    database: str | None = None
    plan: Mapping[str, Any] | None = None
    source_operation: UUID | None = None
    destination: Mapping[str, Any] | None = None
    idempotency_key: str | None = None
    notify_url: str | None = None

    @property
    def kind(self) -> str:
        return "import" if self.plan is not None else "export"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmissions:
    """Records imports and exports, and starts them as statements."""

    recorder: StatementRecorder
    connectors: Connectors
    credentials: SessionCredentials
    limits: EditorSettings

    async def replay(self, user: User, connector: Connector, new: NewJob) -> RecordedStatement | None:
        """Return the job that is already recorded under the same key, if any. Raises idempotency_conflict."""
        key = _job_key(new, connector)
        recorded = await self.recorder.records.find_replay(user.id, key) if key is not None else None
        return RecordedStatement(recorded, is_replay=True) if recorded is not None else None

    async def submit(self, user: User, connector: Connector, new: NewJob) -> RecordedStatement:
        """Record a job and start it. Raises too_many_statements, quota_exceeded, idempotency_conflict."""
        data = self.connectors.data_of(connector)
        *lines, last_line = new.text.split("\n")
        handle = StatementHandle(
            statement=new.text,
            statement_index=0,
            statements_count=1,
            position=(0, 0, len(lines), max(len(last_line) - 1, 0)),
            statement_hash=statement_hash(new.text),
            guid=opaque_token(),
            secret=opaque_token(),
            session_id=await self.recorder.records.new_session_id(),
            session_guid=new_session_guid(),
        )
        statement = NewStatement(
            id=uuid4(),
            user_id=user.id,
            connector=connector.key,
            dialect=connector.dialect,
            handle=handle,
            database=new.database,
            row_limit=1,
            timeout=connector.limits.statement_timeout,
            has_result_set=True,
            owner=await self.recorder.dispatcher.owner_for(data, session_owner=None),
            limits=self.limits,
            idempotency=_job_key(new, connector),
            import_plan=new.plan,
            source_operation=new.source_operation,
            destination=new.destination,
            notify=self.recorder.notification(new.notify_url),
            token=self.credentials.sealed_token(user, connector) if user.external_token else None,
            api_token=user.api_token,
        )
        return await self.recorder.record(
            user, connector, statement, audited_as=f"{new.kind}.start", is_bound=data is not None
        )


def _job_key(new: NewJob, connector: Connector) -> IdempotencyKey | None:
    key = new.idempotency_key
    parts = [new.kind, connector.key, new.plan]
    if new.plan is None:
        parts = [new.kind, connector.key, str(new.source_operation), new.destination]
    return IdempotencyKey.of(key, *parts) if key is not None else None
