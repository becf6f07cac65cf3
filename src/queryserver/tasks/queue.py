"""The runner sits in the API process (task server off)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

import structlog

from queryserver.connectors.model import Connector
from queryserver.errors.base import DatabaseUnavailable
from queryserver.errors.statements import EngineError
from queryserver.identity.model import User
from queryserver.platform.database import Notices
from queryserver.statements.model import Assignment
from queryserver.statements.queue import CANCEL, CLOSE_SESSION
from queryserver.statements.runner import Runner

log = structlog.get_logger(__name__)

_WAITING = "waiting"


class InlineQueue:
    """`statements.queue.StatementQueue` for a runner in this process, with a word to the others where they run it."""

    def __init__(self, runner: Runner, notices: Notices) -> None:
        self._runner = runner
        self._notices = notices
        self._heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def owner_for(self, connector: Connector, *, session_owner: str | None) -> str | None:
        self._runner.require_open()
        if session_owner not in (None, self._runner.owner) or not await self._runner.may_run(connector):
            return None
        return self._runner.owner

    def dispatch(self, assignment: Assignment, user: User) -> None:
        self._runner.start(assignment, user)

    async def announce(self, statement_id: UUID) -> None:
        await self._notices.publish(_WAITING, str(statement_id))

    async def cancel(self, statement_id: UUID, *, owner: str | None) -> None:
        if not self._runner.cancel(statement_id) and owner != self._runner.owner:
            await self._notices.publish(CANCEL, str(statement_id))

    def heard(self, kind: str, subject: str) -> None:
        """A word from an instance, perhaps this one."""
        if kind == CANCEL:
            self._runner.cancel(UUID(subject))
        else:
            self._heard.put_nowait((kind, subject))

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Act on what is heard while inside."""
        worker = asyncio.create_task(self._act(), name="heard-notices")
        try:
            yield
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)

    async def _act(self) -> None:
        """One after another: the statements of one session run in the order in which they were announced."""
        while True:
            kind, subject = await self._heard.get()
            try:
                if kind == _WAITING:
                    await self._runner.claim(UUID(subject))
                elif kind == CLOSE_SESSION:
                    await self._runner.close_session(int(subject))
            except (DatabaseUnavailable, EngineError) as error:
                log.warning("not done what was announced; the sweep will", kind=kind, code=error.code)
            except Exception:  # the outer wall of a task: the next notice is not to blame
                log.exception("notice failed", kind=kind)
