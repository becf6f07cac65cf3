"""Recording a statement and starting it (Contract editor 4, 5)."""

import hashlib
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

from queryserver import errors
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.identity.model import User
from queryserver.platform.logs import AUDIT
from queryserver.platform.settings.editor import EditorSettings
from queryserver.sql.parameters import Parameters
from queryserver.sql.splitter import (
    Choice,
    Choosing,
    PreviousStatement,
    is_short,
    refusal_where_read_only,
    statement_hash,
)
from queryserver.statements import model
from queryserver.statements.dispatcher import StatementDispatcher
from queryserver.statements.engine_sessions import CredentialBook
from queryserver.statements.engine_settings import chosen_settings
from queryserver.statements.leases import StatementLeases
from queryserver.statements.parameters import ParameterBook, checked_for
from queryserver.statements.repository import StatementRecords
from queryserver.statements.scripts import operation_of, require_short, warning_of
from queryserver.statements.session_repository import SessionRecords
from queryserver.statements.states import StatementState
from queryserver.statements.status import StatementAccess
from queryserver.statements.truncation import LimitSource

Choose = Coroutine[Any, Any, Choice | None]

_LONGEST_NAME = 1000
_LONGEST_SETTINGS = 16 * 1024


@dataclass(frozen=True, slots=True)
class Submission:
    """What a caller wants to run. `previous` comes from a handle in the notebook form (Contract editor 5.4)."""

    connector: str | None = None
    script: str | None = None
    database: str | None = None
    session_id: int | None = None
    continued: UUID | None = None
    previous: PreviousStatement | None = None
    previous_guid: str | None = None
    timeout_s: int | None = None
    limit: int | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    warnings: tuple[str, ...] = ()
    """Lines for the log of the operation."""
    idempotency_key: str | None = None
    in_history: bool = True
    parent_uuid: str = ""
    priority: int = 0
    """1: of a schedule; statements that a client waits for come first."""
    parameters: Parameters | None = field(default=None, repr=False)
    """None: the text has no places, or those of the operation that it continues are used."""
    run_all: bool = False
    """All statements run, from the chosen one to the last."""
    notify_url: str | None = None
    """Address of a signed call at the end of the statement; permitted by the caller of `submit`."""


@dataclass(frozen=True, slots=True)
class NewImport:
    """An import about to be recorded: `text` is shown in histories, `plan` is what the runner does."""

    text: str
    database: str | None
    plan: Mapping[str, Any]
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class _Session:
    """The session that a new statement runs in; `owner`: the instance that holds it now."""

    id: int
    guid: str
    named: bool
    owner: str | None
    shared: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Submissions:
    """Accepts statements. Each is recorded before anything is sent to an engine."""

    records: StatementRecords
    leases: StatementLeases
    sessions: SessionRecords
    connectors: Connectors
    credentials: CredentialBook
    dispatcher: StatementDispatcher
    access: StatementAccess
    limits: EditorSettings
    allowed_settings: frozenset[str]
    choosing: Choosing
    parameters: ParameterBook
    ends_are_mailed: bool = False
    """Owners get mail about statements that ran long (Contract platform 10.5)."""

    async def submit(
        self,
        user: User,
        asked: Submission,
        *,
        before_recording: Callable[[], object] | None = None,
        while_wanted: Callable[[Choose], Choose] | None = None,
    ) -> model.Recorded:
        """Record one statement of the script, or all, and start it, or find it under its idempotency key.

        `before_recording` is called when the request is valid and new; what it raises is raised. `while_wanted` wraps
        the search for the statement, which takes long in a large script; it may cancel it.

        Raises InvalidRequest, PayloadTooLarge, OperationNotFound, UnknownDialect, session_not_found, Conflict,
        CredentialsRequired, EngineJwtRequired, TooManyRequests, TooComplex; then nothing is recorded.
        """
        self._require_good_parameters(asked)
        before = await self._previous(user, asked)
        inherited = before if asked.continued is not None else None
        connector = self._connector(user, asked, inherited)
        asked = self._with_chosen_settings(asked, connector)
        if self.connectors.engine(connector).capabilities.wants_external_token:
            self.credentials.require_token(user, connector)
        script = await self._script(asked, inherited)
        given = asked.parameters or await self._known_parameters(asked, before, script)
        previous, full_form = asked.previous, inherited is None
        if inherited is not None:
            done = inherited.handle
            has_more = done.statement_index < done.statements_count - 1
            previous = PreviousStatement(done.statement_index, has_more, done.statement_hash)
        named = None if given is None else given.are_named
        choosing = self.choosing.next(
            user.id, script, connector.dialect, previous, full_form=full_form, named=named, to_end=asked.run_all
        )
        choice = await (while_wanted(choosing) if while_wanted and not is_short(script) else choosing)
        if choice is None:
            raise errors.InvalidParameter("statement: holds nothing but comments and terminators.")
        key = _idempotency(asked, connector, script)
        # Before sessions, credentials and limits: they may have changed since the first call.
        if key is not None and (known := await self.records.find_replay(user.id, key)) is not None:
            return await self._replayed(model.Recorded(known, replayed=True), given)
        supported = self.connectors.engine(connector).capabilities.parameters
        values = None if given is None else await checked_for(choice, given, supported, script, connector.dialect)
        if choice.is_over:
            raise errors.NoMoreStatements
        if asked.run_all:
            require_short(choice, self.limits)
        await self.credentials.required(user, connector)
        session = await self._session(user, asked, before, connector)
        data = self.connectors.data_of(connector)  # asked anew: the connector may have changed meanwhile
        owner = await self.dispatcher.owner_for(data, session_owner=session.owner)
        is_bound = data is not None or session.owner is not None
        new = self._new(user, asked, inherited, connector, script, choice, session, owner, key)
        if values is not None:
            new = replace(
                new,
                parameters=values,
                sealed_parameters=self.parameters.sealed(values),
                parameter_count=choice.places.own,
            )
        if before_recording is not None:
            before_recording()
        new, part = operation_of(new, script, choice) if asked.run_all else (new, None)
        recorded = await self._record(user, connector, new, "statement.start", is_bound=is_bound, part=part)
        return await self._replayed(recorded, given)

    async def _replayed(self, recorded: model.Recorded, given: Parameters | None) -> model.Recorded:
        """Raises idempotency_conflict for a replay with other values: a digest of them is not stored (ADR 61)."""
        if recorded.replayed and not self.parameters.are_those_of(recorded.record, given):
            raise errors.idempotency_conflict()
        if recorded.record.status.runs_all:
            record = await self.records.read(recorded.record.status.id)
            return replace(recorded, record=record or recorded.record)
        return recorded

    async def _known_parameters(
        self, asked: Submission, before: model.StatementRecord | None, script: str
    ) -> Parameters | None:
        """Those that came with the operation before, for the same text. Raises statement_text_expired."""
        if before is None or not (before.sealed_parameters or before.parameter_count):
            return None
        if asked.script is not None:
            kept = before.handle.statement
            if before.script_id is not None:
                try:
                    kept = await self.records.script(before.script_id)
                except errors.Conflict:  # the text is not stored any more
                    return None
            if kept != script:
                return None
        known = self.parameters.stored(before)
        if known is None:  # erased with the texts, or their key is gone
            raise errors.statement_text_expired()
        return known

    async def import_replay(self, user: User, connector: Connector, new: NewImport) -> model.Recorded | None:
        """The import that was recorded under the same key. Raises idempotency_conflict."""
        key = _key(new.idempotency_key, "import", connector.key, new.plan)
        known = await self.records.find_replay(user.id, key) if key is not None else None
        return model.Recorded(known, replayed=True) if known is not None else None

    async def submit_import(self, user: User, connector: Connector, new: NewImport) -> model.Recorded:
        """Record an import and start it. Raises too_many_statements, quota_exceeded, idempotency_conflict."""
        data = self.connectors.data_of(connector)
        *lines, last = new.text.split("\n")
        handle = model.StatementHandle(
            statement=new.text,
            statement_index=0,
            statements_count=1,
            position=(0, 0, len(lines), max(len(last) - 1, 0)),
            statement_hash=statement_hash(new.text),
            guid=model.opaque_token(),
            secret=model.opaque_token(),
            session_id=await self.records.new_session_id(),
            session_guid=model.new_session_guid(),
        )
        statement = model.NewStatement(
            id=uuid4(),
            user_id=user.id,
            connector=connector.key,
            dialect=connector.dialect,
            handle=handle,
            database=new.database,
            row_limit=1,
            timeout=connector.limits.statement_timeout,
            has_result_set=True,
            owner=await self.dispatcher.owner_for(data, session_owner=None),
            limits=self.limits,
            idempotency=_key(new.idempotency_key, "import", connector.key, new.plan),
            import_plan=new.plan,
            notify=self._notify(None),
            token=self.credentials.sealed_token(user, connector) if user.external_token else None,
            api_token=user.api_token,
        )
        return await self._record(user, connector, statement, "import.start", is_bound=data is not None)

    async def _record(
        self,
        user: User,
        connector: Connector,
        new: model.NewStatement,
        operation: str,
        *,
        is_bound: bool,
        part: model.NewStatement | None = None,
    ) -> model.Recorded:
        """Record a statement and start it; one that the connector forbids ends here.

        `part`: the first statement of the script of which `new` is the operation.
        """
        first = part or new
        refusal = refusal_where_read_only(first.handle.statement, connector.dialect) if connector.read_only else None
        if refusal is not None and first.owner is None and not is_bound:
            first = replace(first, owner=self.dispatcher.owner)  # no worker is needed to refuse it
        recorded = await self.records.record(first) if part is None else await self.records.record(new, first)
        if recorded.replayed:
            return recorded
        AUDIT.record(user.username, operation, connector.key, facts={"operation_id": str(new.id)})
        if refusal is not None and first.owner is not None:
            await self._refuse(first, first.owner, refusal, start_line=1 + len(new.log_lines))
            return model.Recorded(await self.records.read(new.id) or recorded.record, replayed=False)
        history_id = recorded.record.status.history_id
        await self.dispatcher.dispatch(first, user, history_id=history_id, is_bound=is_bound)
        return recorded

    async def _refuse(self, new: model.NewStatement, owner: str, message: str, *, start_line: int) -> None:
        """End a recorded statement without running it."""
        lease = model.Lease(new.id, owner, fence=1, operation_id=new.operation_id)
        outcome = model.Outcome(StatementState.FAILED, error_code="rejected", message=message)
        await self.leases.finish(lease, outcome, retention=timedelta(0), lines=[message], start_line=start_line)

    def _with_chosen_settings(self, asked: Submission, connector: Connector) -> Submission:
        """Without the settings that the connector ignores. Raises InvalidParameter."""
        settings = chosen_settings(asked.settings, connector, self.allowed_settings)
        return replace(asked, settings=settings.passed_on, warnings=settings.warnings)

    def _require_good_parameters(self, asked: Submission) -> None:
        """Parameters are checked before anything that they name (Contract editor 1.5)."""
        # They are stored with each statement, and do not count as text.
        for name, value in (("database", asked.database), ("parentUuid", asked.parent_uuid)):
            if value is not None and len(value) > _LONGEST_NAME:
                raise errors.InvalidParameter(f"{name}: at most {_LONGEST_NAME} characters.")
        if sum(len(value) for value in asked.settings.values()) > _LONGEST_SETTINGS:
            raise errors.InvalidParameter(f"settings: at most {_LONGEST_SETTINGS} characters together.")

    async def _previous(self, user: User, asked: Submission) -> model.StatementRecord | None:
        """The operation that this one continues: named in the short form, linked by its guid in the full form."""
        if asked.continued is not None:
            before = await self._last_of(await self.access.own_record(user, asked.continued))
        else:
            guid = asked.previous_guid
            found = await self.records.id_of_guid(guid, user_id=user.id) if guid else None
            before = await self._last_of(await self.records.read(found)) if found else None
        if before is not None and not before.status.state.is_terminal:
            raise errors.previous_not_finished("The previous statement of this script has not ended yet.")
        return before

    async def _last_of(self, before: model.StatementRecord | None) -> model.StatementRecord | None:
        """For a script whose statements all ran, or one of them: the operation at the statement begun last."""
        if before is not None and before.status.operation_id is not None:
            before = await self.records.read(before.status.operation_id)
        if before is None or not before.status.is_script or before.status.part is None:
            return before
        last = await self.records.result_part(before.status.id, before.status.part.statement_index)
        if last is None:
            return before
        done = last.handle
        handle = replace(before.handle, statement_index=done.statement_index, statement_hash=done.statement_hash)
        return replace(before, handle=handle)

    def _connector(self, user: User, asked: Submission, inherited: model.StatementRecord | None) -> Connector:
        if inherited is None:
            return self.connectors.resolve(user, asked.connector)
        if asked.connector and self.connectors.resolve(user, asked.connector).key != inherited.status.connector:
            raise errors.conflicting_parameters("The previous statement ran on another connector.")
        if asked.session_id is not None and asked.session_id != inherited.handle.session_id:
            raise errors.conflicting_parameters("The previous statement ran in another session.")
        return self.connectors.resolve(user, inherited.status.connector)

    async def _script(self, asked: Submission, inherited: model.StatementRecord | None) -> str:
        script = asked.script
        if script is None and inherited is not None:
            if inherited.script_id is not None:
                return await self.records.script(inherited.script_id)
            if inherited.text_is_cut:
                raise errors.statement_text_expired()
            return inherited.handle.statement
        if script is None or not script.strip():
            raise errors.MissingParameter("statement: this field is required.")
        limit = self.limits.statement_max_bytes
        if len(script) > limit or len(script.encode()) > limit:
            raise errors.PayloadTooLarge(f"statement: above the limit of {limit} bytes.")
        return script

    async def _session(
        self, user: User, asked: Submission, before: model.StatementRecord | None, connector: Connector
    ) -> _Session:
        if asked.session_id is not None and (before is None or asked.continued is None):
            return await self._named_session(user, asked.session_id, connector)
        shared = connector.limits.shared_session
        if before is not None and before.status.connector == connector.key:
            handle, named = before.handle, before.in_named_session
            owner = await self._holder(handle.session_id)
            return _Session(handle.session_id, handle.session_guid, named, owner, shared and not named)
        guid, session_id = model.new_session_guid(), await self.records.new_session_id()
        if not shared:
            return _Session(session_id, guid, named=False, owner=None)
        # Statements that open a session with the same options share one (Contract editor 9.3).
        purpose = json.dumps([asked.database or None, sorted(asked.settings.items())])
        session_id, guid = await self.sessions.shared(user.id, connector.key, purpose, (session_id, guid))
        return _Session(session_id, guid, named=False, owner=await self._holder(session_id), shared=True)

    async def _holder(self, session_id: int) -> str | None:
        kept = await self.sessions.read(session_id)
        return kept.owner if kept is not None and kept.is_live else None

    async def _named_session(self, user: User, session_id: int, connector: Connector) -> _Session:
        """A session of create_session. A statement in one that is gone is recorded, and fails (Contract editor 9.3)."""
        found = await self.sessions.read(session_id)
        if found is None and await self.sessions.named(session_id) == (user.id, connector.key):
            return _Session(session_id, model.new_session_guid(), named=True, owner=None)
        if found is None or not found.named or found.user_id != user.id or found.connector != connector.key:
            raise errors.session_not_found(session_id)
        await self.sessions.touch(found.id)
        return _Session(found.id, found.guid, named=True, owner=found.owner if found.is_live else None)

    def _new(
        self,
        user: User,
        asked: Submission,
        inherited: model.StatementRecord | None,
        connector: Connector,
        script: str,
        choice: Choice,
        session: _Session,
        owner: str | None,
        key: model.IdempotencyKey | None,
    ) -> model.NewStatement:
        handle = model.StatementHandle(
            statement=script[choice.first : choice.stop],
            statement_index=choice.index,
            statements_count=choice.count,
            position=(choice.start.row, choice.start.column, choice.end.row, choice.end.column),
            statement_hash=choice.hash,
            guid=model.opaque_token(),
            secret=model.opaque_token(),
            session_id=session.id,
            session_guid=session.guid,
        )
        timeout_s = asked.timeout_s or (inherited.timeout_s if inherited else None)
        script_id = inherited.script_id if inherited is not None and asked.script is None else None
        limit = asked.limit or None
        # A default is not inherited: the next statement may have a LIMIT of its own.
        if (
            limit is None
            and inherited
            and inherited.status.limit_source not in {LimitSource.DEFAULT, LimitSource.MAXIMUM}
        ):
            limit = inherited.row_limit
        warning = warning_of(choice.index, choice.count)
        row_limit, limit_source = model.kept_rows(self.limits, limit, choice.own_limit)
        return model.NewStatement(
            id=uuid4(),
            user_id=user.id,
            connector=connector.key,
            dialect=connector.dialect,
            handle=handle,
            script=script if choice.count > 1 and script_id is None else None,
            script_id=script_id,
            database=asked.database or (inherited.database if inherited else None),
            settings=asked.settings or (inherited.settings if inherited else {}),
            row_limit=row_limit,
            limit_source=limit_source,
            timeout=timedelta(seconds=timeout_s) if timeout_s else connector.limits.statement_timeout,
            has_result_set=choice.has_result_set,
            in_history=asked.in_history,
            in_named_session=session.named,
            keeps_session=session.shared or (choice.index < choice.count - 1 and not session.named),
            parent_uuid=asked.parent_uuid,
            owner=owner,
            limits=self.limits,
            idempotency=key,
            token=self.credentials.sealed_token(user, connector) if user.external_token else None,
            api_token=user.api_token,
            priority=asked.priority,
            log_lines=(*(() if asked.run_all or warning is None else (warning,)), *asked.warnings),
            notify=self._notify(asked.notify_url),
        )

    def _notify(self, url: str | None) -> Mapping[str, Any] | None:
        """What `tasks/deliveries.py` reads at the end of the statement."""
        return {"url": url} if url or self.ends_are_mailed else None


def _idempotency(asked: Submission, connector: Connector, script: str) -> model.IdempotencyKey | None:
    """What "the same request" means: Contract editor 4.4."""
    previous = asked.previous
    return _key(
        asked.idempotency_key,
        connector.key,
        script,
        asked.database,
        str(asked.continued),
        asked.session_id,
        asked.limit,
        asked.timeout_s,
        sorted(asked.settings.items()),
        [previous.statement_id, previous.has_more_statements, previous.statement_hash] if previous else None,
        *(["run_all"] if asked.run_all else []),
    )


def _key(key: str | None, *compared: object) -> model.IdempotencyKey | None:
    if key is None:
        return None
    return model.IdempotencyKey(key, hashlib.sha256(json.dumps(compared).encode()).digest())
