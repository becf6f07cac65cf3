"""Statements whose process has died, and the waits of a process that ends itself (Contract editor 3.3)."""

import asyncio
from collections.abc import Awaitable, Collection
from typing import Any

import structlog

from queryserver.connectors.model import Connector
from queryserver.errors.base import DatabaseUnavailable
from queryserver.sql.reading import only_reads
from queryserver.statements.model import Assignment, Outcome
from queryserver.statements.states import StatementState

log = structlog.get_logger(__name__)

GONE = Outcome(
    StatementState.FAILED,
    error_code="outcome_unknown",
    message="The server that ran this statement is gone: it may or may not have taken effect.",
)
RETRIED = "The server that ran this statement is gone. It only reads, and is run once more."


def may_run_again(assignment: Assignment, connector: Connector) -> bool:
    """Whether a statement that was sent, and cannot be followed, is run once more (Contract editor 3.3 rule 3).

    Not within a script or a named session, whose state is gone. Not once rows are stored, which a client may have read.
    """
    is_alone = assignment.statements_count == 1 and not (assignment.in_named_session or assignment.keeps_session)
    is_untouched = assignment.rows == 0 and not assignment.cancel_requested and not assignment.was_retried
    if not (connector.retries_reads and is_alone and is_untouched):
        return False
    if assignment.resumption is not None or assignment.import_plan is not None:
        return False
    return only_reads(assignment.statement, assignment.dialect)


async def ended(tasks: Collection[asyncio.Task[Any]], within_s: float) -> None:
    if tasks:
        await asyncio.wait(list(tasks), timeout=max(within_s, 0))


async def within(action: Awaitable[object], within_s: float) -> None:
    """Wait for it at most that long, then cancel it."""
    try:
        async with asyncio.timeout(within_s):
            await action
    except TimeoutError:
        log.warning("given up at the stop", seconds=within_s)


async def unless_out_of_reach(action: Awaitable[object]) -> None:
    try:
        await action
    except DatabaseUnavailable:
        log.warning("not recorded at shutdown: the database is out of reach; leases run out by themselves")
