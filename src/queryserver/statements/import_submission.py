"""Records imports as statements (Contract importer 13)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.identity.model import User
from queryserver.platform.settings.editor import EditorSettings
from queryserver.sql.splitter import statement_hash
from queryserver.statements.dispatcher import StatementRecorder
from queryserver.statements.model import (
    IdempotencyKey,
    NewStatement,
    RecordedStatement,
    StatementHandle,
    new_session_guid,
    opaque_token,
)
from queryserver.statements.session_chooser import SessionCredentials


@dataclass(frozen=True, slots=True)
class NewImport:
    """An import to be recorded: `text` is shown in histories, `plan` is executed by the runner."""

    text: str
    database: str | None
    plan: Mapping[str, Any]
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSubmissions:
    """Accepts imports."""

    recorder: StatementRecorder
    connectors: Connectors
    credentials: SessionCredentials
    limits: EditorSettings

    async def replay(self, user: User, connector: Connector, new: NewImport) -> RecordedStatement | None:
        """The import already recorded under the same key, if any. Raises idempotency_conflict."""
        key = _key(new, connector)
        recorded = await self.recorder.records.find_replay(user.id, key) if key is not None else None
        return RecordedStatement(recorded, replayed=True) if recorded is not None else None

    async def submit(self, user: User, connector: Connector, new: NewImport) -> RecordedStatement:
        """Record an import and start it. Raises too_many_statements, quota_exceeded, idempotency_conflict."""
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
            idempotency=_key(new, connector),
            import_plan=new.plan,
            notify=self.recorder.notification(None),
            token=self.credentials.sealed_token(user, connector) if user.external_token else None,
            api_token=user.api_token,
        )
        return await self.recorder.record(
            user, connector, statement, audited_as="import.start", is_bound=data is not None
        )


def _key(new: NewImport, connector: Connector) -> IdempotencyKey | None:
    key = new.idempotency_key
    return IdempotencyKey.of(key, "import", connector.key, new.plan) if key is not None else None
