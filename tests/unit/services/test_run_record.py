"""What a run writes about its statement."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.fakes.statements import MemoryLeases

from queryserver.formats.columns import Segment
from queryserver.statements.model import Assignment, Lease
from queryserver.statements.run_record import RunRecord

SETTINGS = {"log_max_bytes": 1 << 20, "retention": timedelta(hours=1), "lease": timedelta(seconds=5)}


class SlowReports(MemoryLeases):
    """Reports are on their way until `arrive` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = asyncio.Event()
        self.arrive = asyncio.Event()
        self.arrive.set()

    async def report(self, lease: Lease, **fields: Any) -> bool:
        self.under_way.set()
        await self.arrive.wait()
        return await super().report(lease, **fields)


async def running(leases: MemoryLeases) -> tuple[RunRecord, Assignment]:
    """The record of a statement whose engine gives its first page."""
    assignment = leases.add("SELECT 1")
    record = RunRecord(assignment, leases, **SETTINGS, notify=lambda: None)
    await record.mark_running(0, "page 1")
    return record, assignment


@pytest.mark.item(25)
async def test_a_report_that_is_late_does_not_set_the_mark_back_behind_stored_rows() -> None:
    leases = SlowReports()
    record, assignment = await running(leases)
    leases.under_way.clear()
    leases.arrive.clear()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(record.report(10, None))
        await leases.under_way.wait()
        group.create_task(record.add_segment(Segment(0, 0, 100, 1000), (), "page 2"))
        for _ in range(10):
            await asyncio.sleep(0)
        leases.arrive.set()
    found = leases.of(assignment).resumption
    assert found is not None
    assert (found.rows, found.mark.token) == (100, "page 2")


@pytest.mark.item(25)
async def test_a_report_after_stored_rows_keeps_their_mark() -> None:
    leases = MemoryLeases()
    record, assignment = await running(leases)
    await record.add_segment(Segment(0, 0, 100, 1000), (), "page 2")
    await record.report(10, None)
    found = leases.of(assignment).resumption
    assert found is not None
    assert found.mark.token == "page 2"
