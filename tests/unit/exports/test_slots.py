"""The slots of a statement whose rows go to a table of another connector (Contract exports 8.8)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import pytest
from tests.fakes.engine import FakeEngine
from tests.unit.statements.driving import ANA, CONNECTOR, MemorySessions, PlainSealer

from queryserver.connectors.registry import Connectors
from queryserver.engines.protocol import EngineSession
from queryserver.identity.model import User
from queryserver.platform.fair_queue import ConnectorSlots
from queryserver.statements.model import Assignment, Claim
from queryserver.statements.open_sessions import OpenSessions, SessionOpener
from queryserver.statements.session_options import SessionCredentials

KEYS = ("left", "right")


def export(source: str, target: str) -> Assignment:
    """A statement on `source` whose rows go to a table of `target`."""
    return Assignment(
        Claim(uuid4(), "me", 1), ANA.id, source, "fake", "rows 1", None, {}, 1, False, False, 10,
        time.monotonic() + 60, destination={"kind": "table", "connector": target},
    )  # fmt: skip


@pytest.mark.exports(17)
async def test_opposite_exports_never_wait_for_each_other() -> None:
    """Each connector has a single slot. If slots were taken in another order, each of two exports would hold the slot
    for which the other one waits.
    """
    slots = ConnectorSlots(per_connector=1, per_user=1)
    written: list[tuple[str, str]] = []

    @asynccontextmanager
    async def writing(assignment: Assignment, user: User, source: EngineSession) -> AsyncIterator[EngineSession]:
        target = (assignment.destination or {})["connector"]
        assert not any(slots.has_free(key, user.id) for key in (assignment.connector, target))
        await asyncio.sleep(0)
        written.append((assignment.connector, target))
        yield source

    connectors = Connectors([replace(CONNECTOR, key=key) for key in KEYS], build=lambda _: FakeEngine())
    records = MemorySessions()
    opener = SessionOpener(
        owner="me",
        sessions=OpenSessions(lambda _: asyncio.sleep(0)),
        slots=slots,
        records=records,
        connectors=connectors,
        credentials=SessionCredentials(records, connectors, PlainSealer()),
        max_kept=5,
        max_named=10,
        exports=writing,
    )

    async def run(source: str, target: str) -> None:
        async with opener.session(export(source, target), ANA):
            await asyncio.sleep(0)

    pairs = [(source, target) for source in KEYS for target in KEYS] * 5
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for pair in pairs:
            group.create_task(run(*pair))
    assert sorted(written) == sorted(pairs)
