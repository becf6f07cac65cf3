"""The runner sits in the API process (task server off)."""

import asyncio
from uuid import UUID

import structlog

from queryserver.domain.connector import Connector
from queryserver.domain.errors import DatabaseUnavailable
from queryserver.domain.statement import Assignment
from queryserver.domain.user import User
from queryserver.interfaces.sessions import Notices
from queryserver.services.running.runner import Runner

log = structlog.get_logger(__name__)

_WAITING = "waiting"
_CANCEL = "cancel"


class InlineQueue:
    """`interfaces.tasks.StatementQueue` for a runner in this process, with a word to the others where they run it."""

    def __init__(self, runner: Runner, notices: Notices) -> None:
        self._runner = runner
        self._notices = notices
        self._claims: set[asyncio.Task[None]] = set()

    async def owner_for(self, connector: Connector, *, session_owner: str | None) -> str | None:
        """See the Protocol."""
        if session_owner not in (None, self._runner.owner) or not await self._runner.may_run(connector):
            return None
        return self._runner.owner

    def dispatch(self, assignment: Assignment, user: User) -> None:
        """See the Protocol."""
        self._runner.start(assignment, user)

    async def announce(self, statement_id: UUID) -> None:
        """See the Protocol."""
        await self._notices.publish(_WAITING, str(statement_id))

    async def cancel(self, statement_id: UUID, *, owner: str | None) -> None:
        """See the Protocol."""
        if not self._runner.cancel(statement_id) and owner != self._runner.owner:
            await self._notices.publish(_CANCEL, str(statement_id))

    def heard(self, kind: str, subject: str) -> None:
        """A word from an instance, perhaps this one."""
        if kind == _CANCEL:
            self._runner.cancel(UUID(subject))
        elif kind == _WAITING:
            claim = asyncio.create_task(self._claim(UUID(subject)))
            self._claims.add(claim)
            claim.add_done_callback(self._claims.discard)

    async def aclose(self) -> None:
        """Wait for claims on their way."""
        await asyncio.gather(*self._claims, return_exceptions=True)

    async def _claim(self, statement_id: UUID) -> None:
        try:
            await self._runner.claim(statement_id)
        except DatabaseUnavailable:
            log.warning("announced statement not claimed; the sweep will")
