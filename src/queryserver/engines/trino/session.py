"""Starts statements in a Trino session: names the caller and the operation, confines statements that must only read,
and estimates what a statement would read.
"""

import asyncio
import json
from contextlib import suppress
from dataclasses import asdict

from queryserver.engines.connections import cancel_tasks
from queryserver.engines.estimates import CostEstimate
from queryserver.engines.protocol import OperationHandle, StatementContext
from queryserver.engines.sessions import OperationSession, run
from queryserver.engines.statement_tags import leading_comment
from queryserver.engines.trino import protocol
from queryserver.engines.trino.coordinator import Coordinator
from queryserver.engines.trino.estimates import EXPLAIN, estimate_from
from queryserver.engines.trino.operation import TrinoOperation
from queryserver.errors.statements import EngineError, EngineUnavailable, OutcomeUnknown, StatementRejected
from queryserver.sql.literals import TRINO, doubled_quotes
from queryserver.sql.markers import BoundStatement
from queryserver.sql.trino_queries import query_to_plan, read_only_transaction_refusal

_IMMEDIATELY = "EXECUTE IMMEDIATE "


def _with_values(statement: BoundStatement, query: str) -> str:
    """Return an `EXECUTE IMMEDIATE … USING …` statement, which needs no prepared statement (since Trino 418).

    `query` is the statement, or the part that contains all markers.
    """
    text = doubled_quotes(query)
    if not statement.values_in_order:
        return _IMMEDIATELY + text
    return f"{_IMMEDIATELY}{text} USING {', '.join(TRINO.write(0, one) for one in statement.values_in_order)}"


def _marked(statement: str | BoundStatement) -> str:
    """Return the text with the marker `?` for each parameter."""
    return statement if isinstance(statement, str) else statement.render(lambda _number, _one: "?")


class TrinoSession(OperationSession[TrinoOperation]):
    """Implements `ResumableSession` and `EstimatingSession`. The log contains the query ID and Trino's warnings.

    A statement that must only read runs in a read-only transaction of its own, which ends when the statement is closed.
    If `in_own_transaction` is set, another process has started such a transaction for the statement that this session
    continues.
    """

    def __init__(self, coordinator: Coordinator, *, in_own_transaction: bool = False) -> None:
        super().__init__()
        self._coordinator = coordinator
        self._in_own_transaction = in_own_transaction
        self._detached = False

    def resume_token(self, handle: OperationHandle) -> str:
        """Return the statement's position and the session state as JSON for `TrinoEngine.reattach`."""
        return self._token(self._find(handle))

    def detach(self) -> None:
        self._detached = True

    async def estimate(self, statement: str | BoundStatement) -> CostEstimate | None:
        """Return the size of all table scans in the plan; None if Trino cannot plan the statement or knows no size.

        The plan is made outside the session's transaction, because an error would abort that. Nothing is known of
        UPDATE, DELETE, MERGE and prepared statements.
        """
        query = query_to_plan(_marked(statement), protocol.TRINO.dialect)
        if query is None:
            return None
        text = query if isinstance(statement, str) else _with_values(statement, query)
        session = TrinoSession(self._coordinator.aside())
        try:
            answer = await run(session, EXPLAIN + text, max_rows=1)
        except StatementRejected:  # Trino reports the reason when the statement runs
            return None
        finally:
            await asyncio.shield(session.leave())
        plan = answer.rows[0].column(0)[0].as_py() if answer.rows and answer.rows[0].num_rows else None
        return estimate_from(plan) if isinstance(plan, str) else None

    async def leave(self) -> None:
        """Unless the session is detached, cancel the statement and roll back an open transaction.

        Each of these steps has a time limit.
        """
        self._left = True
        await self._close_operation()
        if self._coordinator.state.transaction != protocol.NO_TRANSACTION and not self._detached:
            # Otherwise Trino would keep the transaction and its locks in the data source for minutes.
            await self._roll_back()

    async def _start(self, statement: str | BoundStatement, context: StatementContext) -> TrinoOperation:
        comment = leading_comment(context)
        text, opening = _marked(statement), ""
        if isinstance(statement, BoundStatement):
            text, opening = _with_values(statement, text), f"{_IMMEDIATELY}'"
        try:
            if context.read_only:
                self._require_query(statement)
                await self._begin_reading(context)
            page = await self._coordinator.start(comment + text, context)
            return TrinoOperation(
                self._coordinator, page, characters_before=len(comment) + len(opening), in_literal=bool(opening)
            )
        except BaseException:  # including cancellation: the transaction must not stay open
            await asyncio.shield(self._end_reading())
            raise

    def _require_query(self, statement: str | BoundStatement) -> None:
        text = statement if isinstance(statement, str) else statement.statement
        refusal = read_only_transaction_refusal(text, protocol.TRINO.dialect)
        if refusal is not None:
            raise StatementRejected(refusal)

    async def _begin_reading(self, context: StatementContext) -> None:
        """Start a read-only transaction for one statement. Trino refuses all changes and procedure calls in it.

        Raises StatementRejected if the session has a transaction: it may permit changes, and cannot be nested.
        """
        if self._coordinator.state.transaction != protocol.NO_TRANSACTION:
            raise StatementRejected(
                "The session has an open transaction, in which changes may be possible. End it with COMMIT or ROLLBACK"
                " before a statement that must only read."
            )
        self._in_own_transaction = True
        begin = asyncio.create_task(
            self._coordinator.finish(f"{leading_comment(context)}START TRANSACTION READ ONLY", context),
            name="trino start transaction",
        )
        try:
            await asyncio.shield(begin)
        except OutcomeUnknown as error:  # at worst an empty transaction exists, which Trino ends when it is idle
            raise EngineUnavailable(error.message) from error
        except asyncio.CancelledError:
            # Without its id, the transaction could not be rolled back.
            await asyncio.wait({begin}, timeout=self._coordinator.address.timeouts.stop_s)
            await cancel_tasks(begin)
            raise

    async def _end_reading(self) -> None:
        """End the statement's own transaction, unless the statement has ended it or another process will do so."""
        if not self._in_own_transaction or self._detached:
            return
        self._in_own_transaction = False
        if self._coordinator.state.transaction != protocol.NO_TRANSACTION:
            await self._roll_back()

    async def _roll_back(self) -> None:
        state = self._coordinator.state
        try:
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(self._coordinator.address.timeouts.stop_s):
                    await self._coordinator.finish("ROLLBACK", stops_if_canceled=False)
        finally:
            state.transaction = protocol.NO_TRANSACTION

    def _token(self, operation: TrinoOperation) -> str:
        position = {**operation.position(), "session": asdict(self._coordinator.state)}
        return json.dumps({**position, "own_transaction": True} if self._in_own_transaction else position)

    def _is_connected(self) -> bool:
        return not self._coordinator.http.is_closed

    async def _close_operation(self) -> None:
        if self._operation is not None:
            await self._operation.close(stop=not self._detached)
        await self._end_reading()
