"""Where a recorded statement runs, and the notices between instances about statements and sessions."""

import asyncio
from contextlib import AbstractAsyncContextManager
from uuid import UUID

import structlog

from queryserver.errors.base import DatabaseUnavailable
from queryserver.errors.statements import EngineError
from queryserver.platform.database import Notices
from queryserver.platform.threads import background
from queryserver.statements.leases import ENDED
from queryserver.statements.model import Intake
from queryserver.statements.runner import Broker, Runner

log = structlog.get_logger(__name__)

CANCEL = "cancel"
"""Notice that a cancel was recorded; its subject is the id of the statement."""
CLOSE_SESSION = "close-session"
"""Notice that a session was closed; its subject is the id of the session."""
_WAITING = "waiting"


class StatementQueue:
    """Passes recorded statements to the runner of this process, and notices to the other instances.

    Delivery is at least once; the claim in the record makes it at most once. Lost notices do no harm: sweeps find what
    they announced.
    """

    def __init__(self, runner: Runner, notices: Notices, broker: Broker | None = None) -> None:
        """`broker`: set where workers run the statements."""
        self._runner = runner
        self._notices = notices
        self._broker = broker
        self.here = runner.owner
        """The owner that names this process."""
        self.start = runner.start
        """Runs a statement that was recorded with the owner of this process."""
        self._received: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def owner_for(self, data: str | None, *, session_owner: str | None) -> str | None:
        """The owner of a new statement if it runs in this process, else None. Raises Stopping.

        `data` is what `Connectors.data_of` says of its connector.
        """
        runner = self._runner
        runner.require_open()
        if runner.intake is not Intake.OWN:
            return runner.owner if session_owner == runner.owner or runner.holds(data) else None
        if session_owner not in (None, runner.owner) or not (data is None or await runner.may_hold(data)):
            return None
        return runner.owner

    async def announce(self, statement_id: UUID, *, is_bound: bool) -> None:
        """Notify the other instances that a statement waits. Never raises.

        `is_bound`: only the instance that holds its session or its data can run it.
        """
        if self._broker is not None and not is_bound:
            self._broker.statement_waits(statement_id, fence=0)
        else:
            await self._notices.publish(_WAITING, str(statement_id))

    async def cancel(self, statement_id: UUID, *, owner: str | None) -> None:
        """Notify the runner `owner` that the record now requests a cancel. Never raises."""
        if not self._runner.cancel(statement_id) and owner != self._runner.owner:
            await self._notices.publish(CANCEL, str(statement_id))

    def notified(self, kind: str, subject: str) -> None:
        """Act on a notice of an instance, perhaps of this one."""
        if kind in {CANCEL, ENDED}:
            if kind == CANCEL:
                self._runner.cancel(UUID(subject))
            # A statement that was never sent ends with the request to cancel it.
            self._runner.signals.notify(UUID(subject))
        else:
            self._received.put_nowait((kind, subject))

    def listening(self) -> AbstractAsyncContextManager[None]:
        return background(self._act(), "statement-notices")

    async def _act(self) -> None:
        """One after another: the statements of one session run in the order in which they were announced."""
        while True:
            kind, subject = await self._received.get()
            try:
                if kind == _WAITING:
                    await self._runner.claim(UUID(subject))
                elif kind == CLOSE_SESSION:
                    await self._runner.close_session(int(subject))
            except (DatabaseUnavailable, EngineError) as error:
                log.warning("not done what was announced; the sweep will", kind=kind, code=error.code)
            except Exception:  # the outer wall of a task: the next notice is not to blame
                log.exception("notice failed", kind=kind)
