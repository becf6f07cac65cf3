"""Estimates what a statement will read before it is sent, and refuses it above a limit (Contract editor 4.10)."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from queryserver.connectors.model import Connector
from queryserver.engines.estimates import CostEstimate, EstimatingSession
from queryserver.engines.protocol import EngineSession
from queryserver.errors.statements import (
    CredentialsRequired,
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    SessionLost,
    estimate_exceeded,
)
from queryserver.identity.model import User
from queryserver.platform.settings.editor import EditorSettings
from queryserver.sql.markers import BoundStatement
from queryserver.statements.model import Assignment
from queryserver.statements.run_record import RunRecord
from queryserver.statements.user_limits import user_limit

_DEFAULT_TIMEOUT_S = 30.0
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")
_MAX_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class EstimateLimit:
    """The most that a data source may expect a statement to read or to cost."""

    most: int
    origin: str
    """Whose limit it is, for messages."""
    remedy: str
    """How the caller can get a higher limit, for messages."""


@dataclass(frozen=True, slots=True)
class CostGuard:
    """Compares the estimate of one statement with the lowest of its limits."""

    byte_limit: EstimateLimit | None = None
    cost_limit: EstimateLimit | None = None
    records_estimate: bool = False
    """Whether to estimate the statement without a limit, too, because a budget counts the estimate."""
    timeout_s: float = _DEFAULT_TIMEOUT_S

    @property
    def is_needed(self) -> bool:
        return self.records_estimate or self._has_limit

    @property
    def _has_limit(self) -> bool:
        return self.byte_limit is not None or self.cost_limit is not None

    async def check(
        self, assignment: Assignment, session: EngineSession, statement: str | BoundStatement, record: RunRecord
    ) -> None:
        """Estimate the statement, which must not be sent yet, if that is needed. The record receives the estimate.

        Statements that the engine cannot estimate, in time or at all, pass with a line in the log: their own failure
        has the better message, and most others, such as SET and CREATE TABLE, read nothing. Raises estimate_exceeded,
        EngineUnavailable, SessionLost, CredentialsRequired, OutcomeUnknown.
        """
        if not self.is_needed or assignment.source_operation is not None or assignment.import_plan is not None:
            return
        estimate, reason = await self._estimate(session, statement)
        if estimate is None:
            if self._has_limit:
                record.log.add(f"{reason} The limits on estimates do not apply to it.")
            return
        record.estimated_bytes = estimate.scanned_bytes
        record.log.add(f"Estimate of the data source: {', '.join(_shown(estimate))}.")
        self._compare(estimate)

    async def _estimate(
        self, session: EngineSession, statement: str | BoundStatement
    ) -> tuple[CostEstimate | None, str]:
        """Return the estimate, or None and the reason why there is none."""
        if not isinstance(session, EstimatingSession):
            return None, "This data source does not estimate statements."
        rows = statement.rows if isinstance(statement, BoundStatement) else ()
        try:
            async with asyncio.timeout(self.timeout_s):
                # The rows differ in their values only, so the first one stands for all.
                estimate = await session.estimate(rows[0] if rows else statement)
        except TimeoutError:
            return None, f"The data source did not estimate the statement within {self.timeout_s:g} s."
        except (EngineUnavailable, SessionLost, CredentialsRequired, OutcomeUnknown):
            raise
        except EngineError as error:
            message = error.message[:_MAX_SHOWN_CHARACTERS]
            if isinstance(statement, BoundStatement):
                message = statement.mask_values(message)
            return None, f"The data source could not estimate the statement ({message})."
        if estimate is None or (estimate.scanned_bytes is None and estimate.cost is None):
            return None, "The data source cannot estimate this statement."
        return _times(estimate, max(len(rows), 1)), ""

    def _compare(self, estimate: CostEstimate) -> None:
        """Raise estimate_exceeded if the estimate is above a limit."""
        limit = self.byte_limit
        if limit is not None and estimate.scanned_bytes is not None and estimate.scanned_bytes > limit.most:
            raise estimate_exceeded(
                f"The data source expects that the statement reads {_bytes(estimate.scanned_bytes)}, above the limit of"
                f" {_bytes(limit.most)} of {limit.origin}. Narrow the query, for example to fewer partitions, rows or"
                f" columns, or {limit.remedy}."
            )
        limit = self.cost_limit
        if limit is not None and estimate.cost is not None and estimate.cost > limit.most:
            raise estimate_exceeded(
                f"The planner of the data source estimates a cost of {estimate.cost:.0f}, above the limit of"
                f" {limit.most} of {limit.origin}. Narrow the query, for example to fewer rows or joins, or"
                f" {limit.remedy}."
            )


NO_GUARD = CostGuard()


def cost_guard(assignment: Assignment, user: User, connector: Connector | None, editor: EditorSettings) -> CostGuard:
    """Return the guard of a statement. Of several limits, the lowest applies (ADR 97)."""
    limits = list(_byte_limits(assignment, user, connector, editor))
    cost_limit, timeout_s = None, _DEFAULT_TIMEOUT_S
    if connector is not None:
        timeout_s = connector.limits.metadata_timeout.total_seconds()
        if (most := connector.limits.max_estimated_cost) is not None:
            cost_limit = EstimateLimit(
                most, f"the connector {connector.nice_name}, `max_estimated_cost`", _ADMINISTRATOR
            )
    has_budget = user_limit(user.groups, editor, "budget_bytes_per_day").most is not None
    return CostGuard(min(limits, key=lambda one: one.most, default=None), cost_limit, has_budget, timeout_s)


_ADMINISTRATOR = "ask an administrator for a higher limit"


def _byte_limits(
    assignment: Assignment, user: User, connector: Connector | None, editor: EditorSettings
) -> Iterator[EstimateLimit]:
    """Yield the limits on bytes. Of equal ones, `min` takes the first, which the caller can change most easily."""
    if (most := assignment.max_estimated_bytes) is not None:
        yield EstimateLimit(most, "this call, `max_estimated_bytes`", "send a higher limit")
    token = assignment.api_token
    if token is not None and token.max_estimated_bytes is not None:
        yield EstimateLimit(
            token.max_estimated_bytes, f"the API token {token.name}", "use an API token with a higher limit"
        )
    own = user_limit(user.groups, editor, "max_estimated_bytes")
    if own.most is not None:
        yield EstimateLimit(own.most, own.origin, _ADMINISTRATOR)
    if connector is not None and (most := connector.limits.max_estimated_bytes) is not None:
        yield EstimateLimit(most, f"the connector {connector.nice_name}, `max_estimated_bytes`", _ADMINISTRATOR)


def _times(estimate: CostEstimate, rows: int) -> CostEstimate:
    """Return the estimate for a statement that runs once for each of the rows of parameter values."""
    scanned_bytes, cost, count = estimate.scanned_bytes, estimate.cost, estimate.rows
    return CostEstimate(
        None if scanned_bytes is None else scanned_bytes * rows,
        None if cost is None else cost * rows,
        None if count is None else count * rows,
    )


def _shown(estimate: CostEstimate) -> Iterator[str]:
    if estimate.scanned_bytes is not None:
        yield f"reads {_bytes(estimate.scanned_bytes)}"
    if estimate.rows is not None:
        yield f"{estimate.rows} rows"
    if estimate.cost is not None:
        yield f"cost {estimate.cost:.0f}"


def _bytes(count: int) -> str:
    """Return a number of bytes, exactly and as a person reads it."""
    size, unit = float(count), ""
    for unit in _UNITS:  # noqa: B007 the last unit is used below
        size /= 1024
        if size < 1024:
            break
    return f"{count} bytes" if count < 1024 else f"{count} bytes ({size:.1f} {unit})"
