"""Chooses, records and starts the statement of an execute call (Contract editor 4, 5)."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeAlias
from uuid import UUID, uuid4

from queryserver import errors
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.identity.model import Scope, SealedToken, User
from queryserver.platform.logs import AUDIT
from queryserver.platform.settings.editor import EditorSettings
from queryserver.sql.classification import is_quick, only_reads
from queryserver.sql.markers import StatementParameters
from queryserver.sql.parameters import Parameters
from queryserver.sql.statements import Choice, PreviousStatement, StatementChooser, is_short
from queryserver.statements import model
from queryserver.statements.budgets import Budgets
from queryserver.statements.model import Claim, NewStatement, Outcome, RecordedStatement
from queryserver.statements.owned_statements import OwnedStatements
from queryserver.statements.repository import StatementRecords
from queryserver.statements.reuse import ResultReuse
from queryserver.statements.runner import StatementDispatcher
from queryserver.statements.scripts import require_few_statements, script_operation
from queryserver.statements.session_options import (
    ParameterSealer,
    SessionChooser,
    SessionCredentials,
    StatementSession,
    check_for_statement,
    filter_settings,
)
from queryserver.statements.states import LimitSource, StatementState
from queryserver.statements.status import StatementAccess

ChoiceCall: TypeAlias = Coroutine[Any, Any, Choice | None]

_MAX_NAME_CHARACTERS = 1000
_MAX_SETTINGS_CHARACTERS = 16 * 1024


@dataclass(frozen=True, slots=True)
class Submission:
    """An execute request. `previous` comes from a handle in the notebook form (Contract editor 5.4)."""

    connector: str | None = None
    script: str | None = None
    database: str | None = None
    session_id: int | None = None
    previous_id: UUID | None = None
    """The operation whose script the call continues."""
    previous: PreviousStatement | None = None
    previous_guid: str | None = None
    timeout_s: int | None = None
    limit: int | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    warnings: tuple[str, ...] = ()
    """Lines for the operation's log."""
    idempotency_key: str | None = None
    in_history: bool = True
    parent_uuid: str = ""
    priority: int = 0
    """0 for interactive statements, which run first; 1 for scheduled statements."""
    parameters: Parameters | None = field(default=None, repr=False)
    """None if there are no markers, or if the values of the continued operation apply."""
    run_all: bool = False
    """Whether to run all statements of the script, starting with the chosen one."""
    waits_for_end: bool = False
    """Whether the caller learns of the operation only when it has ended, or after `Submissions.make_durable`."""
    max_age_s: int | None = 0
    """Maximum age of a stored result that may answer the statement. 0: none; None: as the connector's option says."""
    notify_url: str | None = None
    """URL that receives a signed request when the statement ends. Must be checked by the caller of `submit`."""
    destination: Mapping[str, Any] | None = None
    """Where the rows go instead of into the statement's result (`exports/model.py`)."""
    read_only: bool | None = None
    """Whether the statement must not change anything. None: as the continued operation, otherwise False."""
    traceparent: str | None = None
    """The caller's trace in W3C form."""
    max_estimated_bytes: int | None = None
    """The most bytes that the engine may expect the statement to read; None: as the continued operation, if any."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A submission with resolved references, before the statement is chosen."""

    user: User
    fields: Submission
    previous_record: model.StatementRecord | None
    """The previous operation of the script."""
    connector: Connector
    script: str
    parameters: Parameters | None

    @property
    def inherited(self) -> model.StatementRecord | None:
        """The previous operation, if `operationId` named it. Its options apply unless the call overrides them."""
        return self.previous_record if self.fields.previous_id is not None else None

    @property
    def previous(self) -> PreviousStatement | None:
        """The statement after which the script continues."""
        if self.inherited is None:
            return self.fields.previous
        handle = self.inherited.handle
        has_more = handle.statement_index < handle.statements_count - 1
        return PreviousStatement(handle.statement_index, has_more, handle.statement_hash)

    @property
    def timeout(self) -> timedelta:
        timeout_s = self.fields.timeout_s or (self.inherited.timeout_s if self.inherited else None)
        return timedelta(seconds=timeout_s) if timeout_s else self.connector.limits.statement_timeout

    @property
    def max_age(self) -> timedelta:
        max_age_s = self.fields.max_age_s
        return self.connector.limits.reuse_max_age if max_age_s is None else timedelta(seconds=max_age_s)

    @property
    def database(self) -> str | None:
        return self.fields.database or (self.inherited.database if self.inherited else None)

    @property
    def settings(self) -> Mapping[str, str]:
        return self.fields.settings or (self.inherited.settings if self.inherited else {})

    @property
    def limit(self) -> int | None:
        """The caller's row limit. Defaults are not inherited, because the next statement may have its own LIMIT."""
        if self.fields.limit or self.inherited is None:
            return self.fields.limit or None
        is_own = self.inherited.status.limit_source not in {LimitSource.DEFAULT, LimitSource.MAXIMUM}
        return self.inherited.row_limit if is_own else None

    @property
    def read_only(self) -> bool:
        """Whether the statement must not change anything. A token that may only read decides for its calls."""
        inherited = self.inherited is not None and self.inherited.read_only
        return not self.user.has_scope(Scope.QUERY) or (
            inherited if self.fields.read_only is None else self.fields.read_only
        )

    @property
    def max_estimated_bytes(self) -> int | None:
        return self.fields.max_estimated_bytes or (self.inherited.max_estimated_bytes if self.inherited else None)

    def idempotency_key(self) -> model.IdempotencyKey | None:
        """Return the key with the values that identify a request (Contract editor 4.4)."""
        fields, previous = self.fields, self.fields.previous
        if fields.idempotency_key is None:
            return None
        return model.IdempotencyKey.of(
            fields.idempotency_key,
            self.connector.key,
            self.script,
            fields.database,
            str(fields.previous_id),
            fields.session_id,
            fields.limit,
            fields.timeout_s,
            sorted(fields.settings.items()),
            [previous.statement_id, previous.has_more_statements, previous.statement_hash] if previous else None,
            *(["run_all"] if fields.run_all else []),
            *([fields.destination] if fields.destination else []),
            *([f"max_age_s {fields.max_age_s}"] if fields.max_age_s else []),
            *([f"read_only {fields.read_only}"] if fields.read_only is not None else []),
            *([f"max_estimated_bytes {fields.max_estimated_bytes}"] if fields.max_estimated_bytes else []),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementRecorder:
    """Records statements before anything is sent to an engine, then dispatches them."""

    records: StatementRecords
    owned: OwnedStatements
    dispatcher: StatementDispatcher
    connectors: Connectors
    budgets: Budgets
    ends_are_mailed: bool = False
    """Whether owners receive email about long-running statements (Contract platform 10.5)."""

    def notification(self, url: str | None) -> Mapping[str, Any] | None:
        """Return the `notify` value of a new statement, which `tasks/deliveries.py` uses when the statement ends."""
        return {"url": url} if url or self.ends_are_mailed else None

    async def record(
        self,
        user: User,
        connector: Connector,
        new: NewStatement,
        *,
        audited_as: str,
        is_bound: bool,
        first_statement: NewStatement | None = None,
        may_commit_early: bool = False,
    ) -> RecordedStatement:
        """Record and start a statement, or record it as rejected if it must only read but may change something.

        `audited_as` is the operation name in the audit log. If `is_bound` is set, only the process that holds the
        statement's session or data can run it. If `new` is the operation of a script, `first_statement` is the
        script's first statement. `may_commit_early` is set if no caller learns of the operation before it has ended.
        """
        first = first_statement or new
        refusal = None
        if first.source_operation is None:
            refusal = await self.connectors.read_only_refusal(
                connector, first.handle.statement, read_only=first.read_only
            )
        if refusal is None and first.source_operation is None and (limit := await self.budgets.admit(user)) is not None:
            new, first = limit.applied_to(new), limit.applied_to(first)
        if refusal is not None and first.owner is None and not is_bound:
            first = replace(first, owner=self.dispatcher.owner)  # rejecting it needs no worker
        if refusal is None and first_statement is None:
            sends = self.dispatcher.sends_at_once(first)
            may_commit_early = may_commit_early and sends and first.destination is None
            text = first.handle.statement
            early = may_commit_early and is_quick(text) and only_reads(text, connector.dialect)
            first = replace(first, sent_ahead=sends, lapses=self.dispatcher.lapses, commits_early=early)
        recorded = (
            await self.records.record(first) if first_statement is None else await self.records.record(new, first)
        )
        if recorded.is_replay:
            return recorded
        AUDIT.record(user.username, audited_as, connector.key, facts={"operation_id": str(new.id)})
        if refusal is not None and first.owner is not None:
            await self._refuse(first, first.owner, refusal, start_line=1 + len(new.log_lines))
            return RecordedStatement(await self.records.read(new.id) or recorded.record, is_replay=False)
        history_id = recorded.record.status.history_id
        await self.dispatcher.dispatch(first, user, history_id=history_id, is_bound=is_bound)
        return recorded

    async def _refuse(self, new: NewStatement, owner: str, message: str, *, start_line: int) -> None:
        """End a recorded statement without running it."""
        claim = Claim(new.id, owner, fence=1, operation_id=new.operation_id)
        outcome = Outcome(StatementState.FAILED, error_code="rejected", message=message)
        await self.owned.finish(claim, outcome, retention=timedelta(0), lines=[message], start_line=start_line)


@dataclass(slots=True, eq=False, kw_only=True)
class Submissions:
    """Accepts statements, and records each statement before sending anything to an engine."""

    recorder: StatementRecorder
    sessions: SessionChooser
    connectors: Connectors
    credentials: SessionCredentials
    access: StatementAccess
    limits: EditorSettings
    allowed_settings: frozenset[str]
    chooser: StatementChooser
    parameters: ParameterSealer
    reuse: ResultReuse

    async def submit(
        self,
        user: User,
        submission: Submission,
        *,
        check_destination: Callable[[], Awaitable[object]] | None = None,
        before_recording: Callable[[], object] | None = None,
        choice_scope: Callable[[ChoiceCall], ChoiceCall] | None = None,
    ) -> model.RecordedStatement:
        """Record and start one or all statements of the script, or return the record with the same idempotency key.

        `check_destination` checks the destination of a new request, and may raise. `before_recording` is called once
        the request is known to be valid and new, and may raise. `choice_scope` wraps the choice of the statement, which
        is slow for a large script, and may cancel it.

        Raises InvalidRequest, PayloadTooLarge, OperationNotFound, UnknownDialect, session_not_found, Conflict,
        CredentialsRequired, EngineJwtRequired, TooManyRequests, NotSupported, TooComplex, in which case nothing is
        recorded.
        """
        request = await self._request(user, submission)
        connector = request.connector
        choice = await self._choice(request, choice_scope)
        key = request.idempotency_key()
        # Checked before sessions, credentials and limits, which may have changed since the first call.
        if key is not None and (replay := await self.recorder.records.find_replay(user.id, key)) is not None:
            return await self._check_replay(model.RecordedStatement(replay, is_replay=True), request.parameters)
        values = await self._values(request, choice)
        if choice.is_over:
            raise errors.NoMoreStatements
        if check_destination is not None:
            await check_destination()
        if submission.run_all:
            require_few_statements(choice, self.limits)
        new, is_bound = await self._owned(request, choice, values)
        new, first_statement = replace(new, idempotency=key), None
        if before_recording is not None:
            before_recording()
        if submission.run_all:
            new, first_statement = script_operation(new, request.script, choice)
        recorded = await self.recorder.record(
            user,
            connector,
            new,
            audited_as="statement.start",
            is_bound=is_bound,
            first_statement=first_statement,
            may_commit_early=submission.waits_for_end and key is None,
        )
        return await self._check_replay(recorded, request.parameters)

    async def _owned(
        self, request: _Request, choice: Choice, values: StatementParameters | None
    ) -> tuple[NewStatement, bool]:
        """Build the new statement with its session, its owner and the stored result that answers it, if any.

        Also return whether only the process that holds its session or its data can run it.
        """
        connector = request.connector
        credentials = await self.credentials.required(request.user, connector)
        session = await self._session(request)
        # Read late, because the connectors may change until then.
        data = next(filter(None, map(self.connectors.data_of, self._connectors(connector, request.fields))), None)
        owner = await self.recorder.dispatcher.owner_for(data, session_owner=session.owner)
        new = self._new(request, choice, session, values)
        reuse_key = self.reuse.key(request.user, connector, choice, session, new, credentials=credentials)
        new = await self.reuse.answered(replace(new, owner=owner, reuse_key=reuse_key), request.max_age)
        if new.reused is not None and data is None:
            # Needs no slot of the connector, for which a worker would let it wait.
            new = replace(new, owner=self.recorder.dispatcher.owner)
        return new, data is not None or session.owner is not None

    async def make_durable(self, statement_id: UUID) -> None:
        """Wait until the record is on disk, for a caller who learns of the operation before it has ended (ADR 89).

        Raises ServiceUnavailable if a crash of the service database has lost the record.
        """
        if not await self.recorder.records.make_durable(statement_id):
            raise errors.ServiceUnavailable("The service database has lost the statement. Send it again.")

    async def _check_replay(
        self, recorded: model.RecordedStatement, parameters: Parameters | None
    ) -> model.RecordedStatement:
        """Compare the parameter values of a replay with the recorded values. No key holds a digest of them (ADR 61).

        Raises idempotency_conflict.
        """
        if recorded.is_replay and not self.parameters.match_record(recorded.record, parameters):
            raise errors.idempotency_conflict()
        if recorded.record.status.runs_all:
            record = await self.recorder.records.read(recorded.record.status.id)
            return replace(recorded, record=record or recorded.record)
        return recorded

    async def _request(self, user: User, submission: Submission) -> _Request:
        _require_short_fields(submission)
        previous = await self._previous(user, submission)
        inherited = previous if submission.previous_id is not None else None
        connector = self._connector(user, submission, inherited)
        settings = filter_settings(submission.settings, connector, self.allowed_settings)
        submission = replace(submission, settings=settings.passed_on, warnings=settings.warnings)
        capabilities = self.connectors.engine(connector).capabilities
        if submission.max_estimated_bytes is not None and not capabilities.estimates_bytes:
            raise errors.NotSupported(
                f"max_estimated_bytes: the connector {connector.nice_name} does not estimate what statements read. Omit"
                " it, and limit the statement with timeout or limit."
            )
        if capabilities.wants_external_token:
            self.credentials.require_token(user, connector)
        script = await self._script(submission, inherited)
        parameters = submission.parameters or await self._inherited_parameters(submission, previous, script)
        return _Request(user, submission, previous, connector, script, parameters)

    async def _choice(self, request: _Request, choice_scope: Callable[[ChoiceCall], ChoiceCall] | None) -> Choice:
        """Choose the statement to run. Raises InvalidParameter if the script contains no statement."""
        choosing = self.chooser.next(
            request.user.id,
            request.script,
            request.connector.dialect,
            request.previous,
            full_form=request.inherited is None,
            named=None if request.parameters is None else request.parameters.are_named,
            to_end=request.fields.run_all,
        )
        choice = await (choice_scope(choosing) if choice_scope and not is_short(request.script) else choosing)
        if choice is None:
            raise errors.InvalidParameter("statement: contains only comments and terminators.")
        return choice

    async def _values(self, request: _Request, choice: Choice) -> StatementParameters | None:
        connector = request.connector
        if request.parameters is None:
            return None
        supported = self.connectors.engine(connector).capabilities.parameters
        return await check_for_statement(choice, request.parameters, supported, request.script, connector.dialect)

    async def _inherited_parameters(
        self, submission: Submission, previous: model.StatementRecord | None, script: str
    ) -> Parameters | None:
        """Return the values of the previous operation if its script is the same. Raises statement_text_expired."""
        if previous is None or not (previous.sealed_parameters or previous.parameter_count):
            return None
        if submission.script is not None:
            text = previous.handle.statement
            if previous.script_id is not None:
                try:
                    text = await self.recorder.records.script(previous.script_id)
                except errors.Conflict:  # the text was deleted
                    return None
            if text != script:
                return None
        stored = self.parameters.stored(previous)
        if stored is None:  # the values were deleted with the text, or their key was removed
            raise errors.statement_text_expired()
        return stored

    async def _previous(self, user: User, submission: Submission) -> model.StatementRecord | None:
        """Find the operation to continue: by id in the short form, by GUID in the full form."""
        if submission.previous_id is not None:
            record = await self._last_statement(await self.access.own_record(user, submission.previous_id))
        else:
            guid = submission.previous_guid
            operation_id = await self.recorder.records.id_of_guid(guid, user_id=user.id) if guid else None
            record = (
                await self._last_statement(await self.recorder.records.read(operation_id)) if operation_id else None
            )
        if record is not None and not record.status.state.is_terminal:
            raise errors.previous_not_finished("The previous statement of this script has not ended yet.")
        return record

    async def _last_statement(self, record: model.StatementRecord | None) -> model.StatementRecord | None:
        """For a script that ran as a whole, return its record with the position of the last started statement.

        `record` may also be one of the script's statements. Other records are returned unchanged.
        """
        if record is not None and record.status.operation_id is not None:
            record = await self.recorder.records.read(record.status.operation_id)
        if record is None or not record.status.is_script or record.status.part is None:
            return record
        statement = await self.recorder.records.result_part(record.status.id, record.status.part.statement_index)
        if statement is None:
            return record
        last = statement.handle
        handle = replace(record.handle, statement_index=last.statement_index, statement_hash=last.statement_hash)
        return replace(record, handle=handle)

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
            raise errors.PayloadTooLarge(
                f"statement: above the limit of {limit} bytes (`editor.statement_max_bytes`). Split the script, or"
                " import its values from a file."
            )
        return script

    async def _session(self, request: _Request) -> StatementSession:
        fields, previous, connector = request.fields, request.previous_record, request.connector
        if fields.session_id is not None and request.inherited is None:
            return await self.sessions.named_session(request.user, connector, fields.session_id)
        if previous is not None and previous.status.connector == connector.key:
            return await self.sessions.previous_session(previous, connector)
        return await self.sessions.new_session(request.user, connector, fields.database, fields.settings)

    def _new(
        self, request: _Request, choice: Choice, session: StatementSession, values: StatementParameters | None
    ) -> model.NewStatement:
        """Build the new statement, without its owner and its idempotency key."""
        user, fields, inherited, connector = request.user, request.fields, request.inherited, request.connector
        script_id = inherited.script_id if inherited is not None and fields.script is None else None
        warning = None if fields.run_all else remaining_statements_warning(choice.index, choice.count)
        row_limit, limit_source = self._row_limit(request, choice)
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
            destination=fields.destination,
            in_history=fields.in_history,
            in_named_session=session.is_named,
            keeps_session=session.is_shared or (choice.index < choice.count - 1 and not session.is_named),
            parent_uuid=fields.parent_uuid,
            read_only=request.read_only,
            traceparent=fields.traceparent,
            max_estimated_bytes=request.max_estimated_bytes,
            owner=None,
            limits=self.limits,
            idempotency=None,
            token=self._token(user, connector, fields),
            api_token=user.api_token,
            priority=fields.priority,
            log_lines=(*(() if warning is None else (warning,)), *fields.warnings),
            notify=self.recorder.notification(fields.notify_url),
            parameters=values,
            sealed_parameters=None if values is None else self.parameters.seal(values),
            parameter_count=0 if values is None else choice.markers.own,
        )

    def _connectors(self, connector: Connector, submission: Submission) -> Sequence[Connector]:
        """Return the connector of a statement and that of its destination, if it is a table of another one."""
        target = self.connectors.find((submission.destination or {}).get("connector", ""))
        return [connector] if target is None else [connector, target]

    def _token(self, user: User, connector: Connector, submission: Submission) -> SealedToken | None:
        if user.external_token is None:
            return None
        tokens = (self.credentials.sealed_token(user, one) for one in self._connectors(connector, submission))
        return next(filter(None, tokens), None)

    def _row_limit(self, request: _Request, choice: Choice) -> tuple[int, LimitSource]:
        """Return the row limit. The limits of stored results do not apply to rows that go to a destination."""
        if request.fields.destination is not None and request.limit is not None:
            return request.limit, LimitSource.CALLER
        if request.fields.destination is not None:
            return self.limits.result_max_rows, LimitSource.MAXIMUM
        return model.effective_row_limit(self.limits, request.limit, choice.literal_limit)


def remaining_statements_warning(index: int, count: int) -> str | None:
    """Return the warning that only one statement of a script runs, or None for the last one."""
    if index == count - 1:
        return None
    return (
        f"Only statement {index + 1} of {count} of this script is run. Continue with operationId, or execute the script"
        " with run_all=true."
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
    """Raise InvalidParameter for fields that are too long, before they are used (Contract editor 1.5)."""
    # The settings are stored with each statement, but do not count toward its text size.
    for name, value in (("database", submission.database), ("parentUuid", submission.parent_uuid)):
        if value is not None and len(value) > _MAX_NAME_CHARACTERS:
            raise errors.InvalidParameter(f"{name}: at most {_MAX_NAME_CHARACTERS} characters.")
    if sum(len(value) for value in submission.settings.values()) > _MAX_SETTINGS_CHARACTERS:
        raise errors.InvalidParameter(f"settings: at most {_MAX_SETTINGS_CHARACTERS} characters together.")
