"""Returns the engine's plan for a statement without running the statement (Contract editor 8.3)."""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from queryserver.catalog.lookups import Lookups, lookup_context
from queryserver.connectors.model import Connector
from queryserver.connectors.registry import Connectors
from queryserver.engines.estimates import CostEstimate, EstimatingSession
from queryserver.engines.protocol import EngineCapabilities, EngineSession
from queryserver.engines.sessions import Answer, run
from queryserver.errors.base import InvalidParameter, MissingParameter, NotSupported, PayloadTooLarge
from queryserver.errors.statements import EngineError, SessionLost, StatementRejected, session_not_found
from queryserver.formats.cells import cell_values
from queryserver.identity.model import User
from queryserver.sql.markers import BoundStatement
from queryserver.sql.parameters import Parameters
from queryserver.sql.positions import Position, after_prefix, position_of, without_prefix
from queryserver.sql.statements import StatementChooser, bind
from queryserver.statements.open_sessions import OpenSessions
from queryserver.statements.session_options import ParameterSealer, check_parameters
from queryserver.statements.session_repository import SessionRecords

_MAX_LINES = 10_000
_PLAN = "plan"
_MAX_BYTES = 2**63 - 1
"""The largest estimate that is shown, as in the records of statements. Planners may expect more."""
_ESTIMATE_S = 5.0
"""Time for the estimate, so that a slow one does not prevent the response with the plan."""


@dataclass(frozen=True, slots=True)
class PlanRefusal:
    """Why the engine returned no plan, with the error's position in the statement."""

    code: str
    message: str
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class StatementPlan:
    """The plan for `statement`, or the reason why the engine returned none."""

    statement: str
    plan: str = ""
    refusal: PlanRefusal | None = None
    estimate: CostEstimate | None = None


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A request for the plan of a script's first statement, optionally in one of the caller's named sessions."""

    connector: str | None
    script: str | None
    database: str | None = None
    session_id: int | None = None
    parameters: Parameters | None = field(default=None, repr=False)


@dataclass(slots=True, eq=False)
class Plans:
    """Fetches plans from engines, without creating operations."""

    lookups: Lookups
    connectors: Connectors
    sessions: SessionRecords
    open_sessions: OpenSessions
    chooser: StatementChooser
    parameters: ParameterSealer
    max_bytes: int

    def __post_init__(self) -> None:
        self.lookups.forwarding.register(_PLAN, self._plan_here)

    async def explain(self, user: User, request: PlanRequest) -> StatementPlan:
        """Return the plan for the script's first statement.

        Raises MissingParameter, InvalidParameter, PayloadTooLarge, UnknownDialect, session_not_found, NotSupported,
        CredentialsRequired, EngineUnavailable, EngineTimeout.
        """
        if request.script is None or not request.script.strip():
            raise MissingParameter("statement is required and must not be blank.")
        if len(request.script) > self.max_bytes or len(request.script.encode()) > self.max_bytes:
            raise PayloadTooLarge(
                f"statement exceeds the limit of {self.max_bytes} bytes (`editor.statement_max_bytes`)."
            )
        connector = self.connectors.resolve(user, request.connector)
        parameters = request.parameters
        named = None if parameters is None else parameters.are_named
        found = await self.chooser.first_to_explain(user.id, request.script, connector.dialect, named=named)
        if found is None:
            raise InvalidParameter("statement must not consist only of comments and terminators.")
        statement, text, markers = found
        capabilities = self.connectors.engine(connector).capabilities
        if not capabilities.can_explain:
            raise NotSupported(f"The connector {connector.nice_name} cannot explain statements.")
        owner = None if request.session_id is None else await self._session_owner(user, request.session_id, connector)
        arguments = [capabilities.explain_prefix + text, request.database, request.session_id]
        if parameters is not None:
            # Encrypted, because a request to another process is stored in the service database.
            sealed = self.parameters.seal(check_parameters(parameters, markers, capabilities.parameters))
            arguments.append(b64encode(sealed).decode())
        budget = connector.limits.metadata_timeout
        packed = await self.lookups.run_at_holder(user, connector, _PLAN, arguments, budget=budget, owner=owner)
        plan, code, message, line_and_column, *estimated = orjson.loads(packed)  # older processes do not estimate
        if plan is not None:
            return StatementPlan(statement, plan, estimate=CostEstimate(*estimated))
        position = Position(*line_and_column) if line_and_column else None
        before = statement[: len(statement) - len(text)]
        return StatementPlan(statement, refusal=PlanRefusal(code, message, after_prefix(position, before)))

    async def _session_owner(self, user: User, session_id: int, connector: Connector) -> str | None:
        """Return the process that holds a named session, or None if the session is lost.

        Raises session_not_found unless this is the user's own named session on the connector.
        """
        found = await self.sessions.read(session_id)
        if found is None and await self.sessions.find_named(session_id) == (user.id, connector.key):
            return None
        if found is None or not found.named or found.user_id != user.id or found.connector != connector.key:
            raise session_not_found(session_id)
        await self.sessions.touch(session_id)
        return found.owner if found.is_live else None

    async def _plan_here(self, user: User, connector: Connector, arguments: Sequence[Any]) -> bytes:
        statement, database, session_id, *sealed = arguments
        capabilities = self.connectors.engine(connector).capabilities
        bound, plain = None, statement.removeprefix(capabilities.explain_prefix)
        if sealed:
            parameters = self.parameters.unseal(b64decode(sealed[0]))
            bound = await bind(statement, connector.dialect, parameters)
            plain = await bind(plain, connector.dialect, parameters)
        is_open = False
        try:
            async with self._session(user, connector, database, session_id) as session:
                is_open = True
                context = lookup_context(user, connector)
                answer = await run(session, bound or statement, max_rows=_MAX_LINES, context=context)
                estimate = await _estimate(session, plain)
        except (StatementRejected, SessionLost) as refusal:
            # A location reported before the session was open does not refer to the statement.
            location = refusal.location if is_open else None
            position = bound.position(location) if bound else position_of(location, statement)
            found = without_prefix(position, capabilities.explain_prefix)
            message = bound.mask_values(refusal.message) if bound else refusal.message
            return orjson.dumps([None, refusal.code, message, found and (found.line, found.column)])
        plan = _plan(answer, capabilities)
        failure = capabilities.explain_failure.match(plan) if capabilities.explain_failure else None
        if failure is not None:
            return orjson.dumps([None, StatementRejected.code, plan[failure.end() :].strip(), None])
        scanned_bytes = None if estimate.scanned_bytes is None else min(estimate.scanned_bytes, _MAX_BYTES)
        return orjson.dumps([plan, "", "", None, scanned_bytes, estimate.cost])

    @asynccontextmanager
    async def _session(
        self, user: User, connector: Connector, database: str | None, session_id: int | None
    ) -> AsyncGenerator[EngineSession]:
        if session_id is None:
            async with self.lookups.session(user, connector, database) as session:
                yield session
            return
        open_session = self.open_sessions.get(session_id)
        if open_session is None or open_session.user_id != user.id:
            raise SessionLost(f"Invalid session Id {session_id}: the session no longer exists.")
        async with self.open_sessions.turn(open_session, user) as session:
            yield session


async def _estimate(session: EngineSession, statement: str | BoundStatement) -> CostEstimate:
    """Return the engine's estimate, without values if it has none. A plan without an estimate is useful, too."""
    if not isinstance(session, EstimatingSession):
        return CostEstimate()
    with suppress(EngineError, TimeoutError):
        async with asyncio.timeout(_ESTIMATE_S):
            return await session.estimate(statement) or CostEstimate()
    return CostEstimate()


def _plan(answer: Answer, capabilities: EngineCapabilities) -> str:
    """Return the plan as lines: the values of the plan column if there is one, otherwise all columns with a header.

    Columns are separated by tabs.
    """
    plan_column = capabilities.explain_column
    indexes = [index for index, column in enumerate(answer.columns) if plan_column in (None, column.name)]
    lines = ["\t".join(column.name for column in answer.columns)] if len(indexes) > 1 else []
    for batch in answer.rows:
        cells = [cell_values(batch.column(index), answer.columns[index]) for index in indexes]
        lines += ["\t".join("" if cell is None else str(cell) for cell in row) for row in zip(*cells, strict=True)]
    return "\n".join(lines)
