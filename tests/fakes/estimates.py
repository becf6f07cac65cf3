"""A scripted engine that estimates its statements, and reports what they have read."""

import asyncio
import re
from dataclasses import replace

from tests.fakes.engine import FakeEngine, FakeSession

from queryserver.engines.estimates import CostEstimate
from queryserver.engines.protocol import (
    NO_CONTEXT,
    EngineCapabilities,
    OperationHandle,
    OperationStatus,
    SessionOptions,
    StatementContext,
)
from queryserver.errors.statements import StatementRejected
from queryserver.sql.markers import BoundStatement, sql_text
from queryserver.sql.parameters import ParameterSupport, ParameterType

ROW_BYTES = 1000
"""The bytes that the engine expects to read for each row of `rows <n>`."""
ROW_COST = 2.5
SCANNED_ROW_BYTES = 900
"""The bytes that the engine reports to have read for each of these rows, if `reports_scans` is set."""

_ROWS = re.compile(r"(?:.* then )?rows (\d+).*", re.DOTALL)


class FakeEstimatingEngine(FakeEngine):
    """Estimates `rows <n>`; statements that fail cannot be estimated, and all others have no estimate.

    `estimates` contains the estimated statements. `estimate_s` is how long an estimate takes.
    """

    def __init__(self, *, capabilities: EngineCapabilities | None = None, dialect: str = "fake") -> None:
        takes = ParameterSupport({ParameterType.BIGINT, ParameterType.VARCHAR})
        can = EngineCapabilities(parameters=takes, estimates_bytes=True, estimates_cost=True)
        super().__init__(capabilities=capabilities or can, dialect=dialect)
        self.estimates: list[str] = []
        self.estimate_s = 0.0
        self.reports_scans = False

    def _new_session(self, options: SessionOptions) -> FakeSession:
        return FakeEstimatingSession(self, options)


class FakeEstimatingSession(FakeSession):
    def __init__(self, engine: FakeEstimatingEngine, options: SessionOptions) -> None:
        super().__init__(engine, options.files)
        self._estimating = engine
        self._scanned_bytes: int | None = None

    async def estimate(self, statement: str | BoundStatement) -> CostEstimate | None:
        text = sql_text(statement, lambda _, one: str(one.value))
        self._estimating.estimates.append(text)
        await asyncio.sleep(self._estimating.estimate_s)
        if text.startswith("fail"):
            raise StatementRejected(f"cannot plan {text}")
        found = _ROWS.fullmatch(text)
        if found is None:
            return None
        rows = int(found[1])
        if self._estimating.reports_scans:
            self._scanned_bytes = rows * SCANNED_ROW_BYTES
        return CostEstimate(rows * ROW_BYTES, rows * ROW_COST, rows)

    async def submit(self, statement: str | BoundStatement, context: StatementContext = NO_CONTEXT) -> OperationHandle:
        text = sql_text(statement, lambda _, one: str(one.value))
        return await super().submit(f"text plan of {text}" if text.startswith("EXPLAIN") else statement, context)

    async def poll(self, handle: OperationHandle, *, wait_s: float = 0) -> OperationStatus:
        return replace(await super().poll(handle, wait_s=wait_s), scanned_bytes=self._scanned_bytes)
