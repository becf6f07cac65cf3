"""A wait for a statement ends when the server stops, even if another server is running it (Contract
platform 9.5).
"""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

from queryserver.statements.running_statements import StateSignals
from queryserver.statements.states import StatementState
from queryserver.statements.status import StatementReader


class _Running:
    """The records of a statement that another server is running."""

    status_now: Any = SimpleNamespace(id=uuid4(), state=StatementState.RUNNING)

    async def status(self, statement_id: UUID) -> Any:
        del statement_id
        return self.status_now

    async def logs(self, statement_id: UUID, *, start: int, size: int | None) -> Any:
        del statement_id, start, size
        return SimpleNamespace(start=0, lines=())


async def test_long_polls_and_event_streams_end_with_the_current_state() -> None:
    records: Any = _Running()
    unused: Any = None
    signals = StateSignals()
    reader = StatementReader(records, unused, signals, unused)
    place: Any = SimpleNamespace(recheck=lambda *_: asyncio.sleep(0), due_in_s=5.0)

    async def streamed() -> list[StatementState]:
        looks = reader.progress(records.status_now, place, log_from=0, until_s=600)
        return [look.status.state async for look in looks]

    async with asyncio.timeout(30):
        async with asyncio.TaskGroup() as group:
            polled = group.create_task(reader.wait_for_end(records.status_now, 600, place))
            stream = group.create_task(streamed())
            await asyncio.sleep(0.05)
            assert not polled.done()
            signals.end_waits()
    assert polled.result().state is StatementState.RUNNING
    assert set(stream.result()) == {StatementState.RUNNING}
