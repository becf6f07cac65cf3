"""Which statement a call of execute runs, and its record (Contract editor 4, 5)."""

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
from queryserver.platform.settings.editor import EditorSettings
from queryserver.sql.markers import StatementParameters
from queryserver.sql.parameters import Parameters
from queryserver.sql.splitter import Choice, PreviousStatement, StatementChooser, is_short
from queryserver.statements import model
from queryserver.statements.credentials import SessionCredentials
from queryserver.statements.engine_settings import chosen_settings
from queryserver.statements.parameters import ParameterSealer, checked_for
from queryserver.statements.recorder import StatementRecorder
from queryserver.statements.scripts import operation_of, require_short, warning_of
from queryserver.statements.session_choice import SessionChoice, StatementSession
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
class _Request:
    """A submission with what it refers to, before the statement is chosen."""

    user: User
    fields: Submission
    before: model.StatementRecord | None
    """The operation before this one in its script."""
    connector: Connector
    script: str
    parameters: Parameters | None

    @property
    def inherited(self) -> model.StatementRecord | None:
        """The operation whose options are used where the call has none: it named its predecessor by `operationId`."""
        return self.before if self.fields.continued is not None else None

    @property
    def previous(self) -> PreviousStatement | None:
        """The statement after which the script continues."""
        if self.inherited is None:
            return self.fields.previous
        done = self.inherited.handle
        has_more = done.statement_index < done.statements_count - 1
        return PreviousStatement(done.statement_index, has_more, done.statement_hash)

    @property
    def timeout(self) -> timedelta:
        timeout_s = self.fields.timeout_s or (self.inherited.timeout_s if self.inherited else None)
        return timedelta(seconds=timeout_s) if timeout_s else self.connector.limits.statement_timeout

    @property
    def database(self) -> str | None:
        return self.fields.database or (self.inherited.database if self.inherited else None)

    @property
    def settings(self) -> Mapping[str, str]:
        return self.fields.settings or (self.inherited.settings if self.inherited else {})

    @property
    def limit(self) -> int | None:
        """The row limit of the caller. A default is not inherited: the next statement may have a LIMIT of its own."""
        if self.fields.limit or self.inherited is None:
            return self.fields.limit or None
        is_own = self.inherited.status.limit_source not in {LimitSource.DEFAULT, LimitSource.MAXIMUM}
        return self.inherited.row_limit if is_own else None

    def idempotency_key(self) -> model.IdempotencyKey | None:
        """What "the same request" means: Contract editor 4.4."""
        fields, previous = self.fields, self.fields.previous
        if fields.idempotency_key is None:
            return None
        return model.IdempotencyKey.of(
            fields.idempotency_key,
            self.connector.key,
            self.script,
            fields.database,
            str(fields.continued),
            fields.session_id,
            fields.limit,
            fields.timeout_s,
            sorted(fields.settings.items()),
            [previous.statement_id, previous.has_more_statements, previous.statement_hash] if previous else None,
            *(["run_all"] if fields.run_all else []),
        )


@dataclass(slots=True, eq=False, kw_only=True)
class Submissions:
    """Accepts statements. Each is recorded before anything is sent to an engine."""

    recorder: StatementRecorder
    sessions: SessionChoice
    connectors: Connectors
    credentials: SessionCredentials
    access: StatementAccess
    limits: EditorSettings
    allowed_settings: frozenset[str]
    choosing: StatementChooser
    parameters: ParameterSealer

    async def submit(
        self,
        user: User,
        submission: Submission,
        *,
        before_recording: Callable[[], object] | None = None,
        while_wanted: Callable[[Choose], Choose] | None = None,
    ) -> model.RecordedStatement:
        """Record one statement of the script, or all, and start it, or find it under its idempotency key.

        `before_recording` is called when the request is valid and new; what it raises is raised. `while_wanted` wraps
        the search for the statement, which takes long in a large script; it may cancel it.

        Raises InvalidRequest, PayloadTooLarge, OperationNotFound, UnknownDialect, session_not_found, Conflict,
        CredentialsRequired, EngineJwtRequired, TooManyRequests, TooComplex; then nothing is recorded.
        """
        request = await self._request(user, submission)
        connector = request.connector
        choice = await self._choice(request, while_wanted)
        key = request.idempotency_key()
        # Before sessions, credentials and limits: they may have changed since the first call.
        if key is not None and (known := await self.recorder.records.find_replay(user.id, key)) is not None:
            return await self._replayed(model.RecordedStatement(known, replayed=True), request.parameters)
        values = await self._values(request, choice)
        if choice.is_over:
            raise errors.NoMoreStatements
        if submission.run_all:
            require_short(choice, self.limits)
        await self.credentials.required(user, connector)
        session = await self._session(request)
        data = self.connectors.data_of(connector)  # read late: the connector may have changed meanwhile
        owner = await self.recorder.dispatcher.owner_for(data, session_owner=session.owner)
        new, part = self._new(request, choice, session, values), None
        new = replace(new, owner=owner, idempotency=key)
        if before_recording is not None:
            before_recording()
        if submission.run_all:
            new, part = operation_of(new, request.script, choice)
        is_bound = data is not None or session.owner is not None
        recorded = await self.recorder.record(
            user, connector, new, audited_as="statement.start", is_bound=is_bound, part=part
        )
        return await self._replayed(recorded, request.parameters)

    async def _replayed(
        self, recorded: model.RecordedStatement, parameters: Parameters | None
    ) -> model.RecordedStatement:
        """Raises idempotency_conflict for a replay with other values: a digest of them is not stored (ADR 61)."""
        if recorded.replayed and not self.parameters.are_those_of(recorded.record, parameters):
            raise errors.idempotency_conflict()
        if recorded.record.status.runs_all:
            record = await self.recorder.records.read(recorded.record.status.id)
            return replace(recorded, record=record or recorded.record)
        return recorded

    async def _request(self, user: User, submission: Submission) -> _Request:
        _require_short_fields(submission)
        before = await self._previous(user, submission)
        inherited = before if submission.continued is not None else None
        connector = self._connector(user, submission, inherited)
        settings = chosen_settings(submission.settings, connector, self.allowed_settings)
        submission = replace(submission, settings=settings.passed_on, warnings=settings.warnings)
        if self.connectors.engine(connector).capabilities.wants_external_token:
            self.credentials.require_token(user, connector)
        script = await self._script(submission, inherited)
        parameters = submission.parameters or await self._known_parameters(submission, before, script)
        return _Request(user, submission, before, connector, script, parameters)

    async def _choice(self, request: _Request, while_wanted: Callable[[Choose], Choose] | None) -> Choice:
        """The statement that runs. Raises InvalidParameter for a script without any."""
        choosing = self.choosing.next(
            request.user.id,
            request.script,
            request.connector.dialect,
            request.previous,
            full_form=request.inherited is None,
            named=None if request.parameters is None else request.parameters.are_named,
            to_end=request.fields.run_all,
        )
        choice = await (while_wanted(choosing) if while_wanted and not is_short(request.script) else choosing)
        if choice is None:
            raise errors.InvalidParameter("statement: holds nothing but comments and terminators.")
        return choice

    async def _values(self, request: _Request, choice: Choice) -> StatementParameters | None:
        connector = request.connector
        if request.parameters is None:
            return None
        supported = self.connectors.engine(connector).capabilities.parameters
        return await checked_for(choice, request.parameters, supported, request.script, connector.dialect)

    async def _known_parameters(
        self, submission: Submission, before: model.StatementRecord | None, script: str
    ) -> Parameters | None:
        """The values of the operation before, if its script is the same. Raises statement_text_expired."""
        if before is None or not (before.sealed_parameters or before.parameter_count):
            return None
        if submission.script is not None:
            kept = before.handle.statement
            if before.script_id is not None:
                try:
                    kept = await self.recorder.records.script(before.script_id)
                except errors.Conflict:  # the text is not stored any more
                    return None
            if kept != script:
                return None
        known = self.parameters.stored(before)
        if known is None:  # erased with the texts, or their key is gone
            raise errors.statement_text_expired()
        return known

    async def _previous(self, user: User, submission: Submission) -> model.StatementRecord | None:
        """The operation that this one continues: named in the short form, linked by its guid in the full form."""
        if submission.continued is not None:
            before = await self._last_of(await self.access.own_record(user, submission.continued))
        else:
            guid = submission.previous_guid
            found = await self.recorder.records.id_of_guid(guid, user_id=user.id) if guid else None
            before = await self._last_of(await self.recorder.records.read(found)) if found else None
        if before is not None and not before.status.state.is_terminal:
            raise errors.previous_not_finished("The previous statement of this script has not ended yet.")
        return before

    async def _last_of(self, before: model.StatementRecord | None) -> model.StatementRecord | None:
        """For a script whose statements all ran, or one of them: the operation at the statement begun last."""
        if before is not None and before.status.operation_id is not None:
            before = await self.recorder.records.read(before.status.operation_id)
        if before is None or not before.status.is_script or before.status.part is None:
            return before
        last = await self.recorder.records.result_part(before.status.id, before.status.part.statement_index)
        if last is None:
            return before
        done = last.handle
        handle = replace(before.handle, statement_index=done.statement_index, statement_hash=done.statement_hash)
        return replace(before, handle=handle)

    def _connector(self, user: User, submission: Submission, inherited: model.StatementRecord | None) -> Connector:
        if inherited is None:
            return self.connectors.resolve(user, submission.connector)
        if (
            submission.connector
            and self.connectors.resolve(user, submission.connector).key != inherited.status.connector
        ):
            raise errors.conflicting_parameters("The previous statement ran on another connector.")
        if submission.session_id is not None and submission.session_id != inherited.handle.session_id:
            raise errors.conflicting_parameters("The previous statement ran in another session.")
        return self.connectors.resolve(user, inherited.status.connector)

    async def _script(self, submission: Submission, inherited: model.StatementRecord | None) -> str:
        script = submission.script
        if script is None and inherited is not None:
            if inherited.script_id is not None:
                return await self.recorder.records.script(inherited.script_id)
            if inherited.text_is_cut:
                raise errors.statement_text_expired()
            return inherited.handle.statement
        if script is None or not script.strip():
            raise errors.MissingParameter("statement: this field is required.")
        limit = self.limits.statement_max_bytes
        if len(script) > limit or len(script.encode()) > limit:
            raise errors.PayloadTooLarge(f"statement: above the limit of {limit} bytes.")
        return script

    async def _session(self, request: _Request) -> StatementSession:
        fields, before, connector = request.fields, request.before, request.connector
        if fields.session_id is not None and request.inherited is None:
            return await self.sessions.named(request.user, connector, fields.session_id)
        if before is not None and before.status.connector == connector.key:
            return await self.sessions.continued(before, connector)
        return await self.sessions.new(request.user, connector, fields.database, fields.settings)

    def _new(
        self, request: _Request, choice: Choice, session: StatementSession, values: StatementParameters | None
    ) -> model.NewStatement:
        """The statement, without its owner and its idempotency key."""
        user, fields, inherited, connector = request.user, request.fields, request.inherited, request.connector
        script_id = inherited.script_id if inherited is not None and fields.script is None else None
        warning = None if fields.run_all else warning_of(choice.index, choice.count)
        row_limit, limit_source = model.kept_rows(self.limits, request.limit, choice.literal_limit)
        return model.NewStatement(
            id=uuid4(),
            user_id=user.id,
            connector=connector.key,
            dialect=connector.dialect,
            handle=_handle(request.script, choice, session),
            script=request.script if choice.count > 1 and script_id is None else None,
            script_id=script_id,
            database=request.database,
            settings=request.settings,
            row_limit=row_limit,
            limit_source=limit_source,
            timeout=request.timeout,
            has_result_set=choice.has_result_set,
            in_history=fields.in_history,
            in_named_session=session.named,
            keeps_session=session.shared or (choice.index < choice.count - 1 and not session.named),
            parent_uuid=fields.parent_uuid,
            owner=None,
            limits=self.limits,
            idempotency=None,
            token=self.credentials.sealed_token(user, connector) if user.external_token else None,
            api_token=user.api_token,
            priority=fields.priority,
            log_lines=(*(() if warning is None else (warning,)), *fields.warnings),
            notify=self.recorder.notification(fields.notify_url),
            parameters=values,
            sealed_parameters=None if values is None else self.parameters.sealed(values),
            parameter_count=0 if values is None else choice.markers.own,
        )


def _handle(script: str, choice: Choice, session: StatementSession) -> model.StatementHandle:
    return model.StatementHandle(
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


def _require_short_fields(submission: Submission) -> None:
    """Raises InvalidParameter; before anything that the fields name is looked up (Contract editor 1.5)."""
    # They are stored with each statement, and do not count as text.
    for name, value in (("database", submission.database), ("parentUuid", submission.parent_uuid)):
        if value is not None and len(value) > _LONGEST_NAME:
            raise errors.InvalidParameter(f"{name}: at most {_LONGEST_NAME} characters.")
    if sum(len(value) for value in submission.settings.values()) > _LONGEST_SETTINGS:
        raise errors.InvalidParameter(f"settings: at most {_LONGEST_SETTINGS} characters together.")
