"""How often is_ready looks at the result store (Contract platform 9.2)."""

import asyncio

import pytest

from queryserver.administration import readiness
from queryserver.administration.readiness import Readiness
from queryserver.errors.base import DatabaseUnavailable


class Store:
    """Counts who looks; out of reach until it is `ok`."""

    ok = False
    looks = 0

    async def look(self) -> None:
        self.looks += 1
        await asyncio.sleep(0.01)
        if not self.ok:
            raise DatabaseUnavailable


async def nothing() -> None:
    """Of the parts that are well."""


@pytest.mark.platform(98)
async def test_a_store_that_fails_is_looked_at_once_for_all_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    ready = Readiness(database=nothing, schema=nothing, result_store=store.look)

    async def told() -> set[bool]:
        checks = await asyncio.gather(*(ready.checks() for _ in range(20)))
        return {one["result_store"].ok for one in checks}

    monkeypatch.setattr(readiness, "_FAILED_STORE_EVERY_S", 3600.0)
    assert (await told(), store.looks) == ({False}, 1)
    assert (await told(), store.looks) == ({False}, 1)
    store.ok = True
    monkeypatch.setattr(readiness, "_FAILED_STORE_EVERY_S", 0.0)
    assert (await told(), store.looks) == ({True}, 2)
