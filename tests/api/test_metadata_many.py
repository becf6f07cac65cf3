"""A database of 30,000 tables."""

import asyncio
import time

from tests.api.conftest import ApiOpener
from tests.fakes.catalog import table

SHELF = {"snippet": '{"type": "shelf"}'}
_TABLES = 30_000


async def longest_pause(until: asyncio.Event) -> float:
    """The longest time, in seconds, that the event loop did not come back here."""
    longest, last = 0.0, time.monotonic()
    while not until.is_set():
        await asyncio.sleep(0.005)
        now = time.monotonic()
        longest, last = max(longest, now - last - 0.005), now
    return longest


async def test_a_second_look_at_many_tables_needs_no_engine_and_little_time(small_api: ApiOpener):
    async with small_api() as api:
        ana = await api.user()
        content = {f"table_{number}": table("shop", f"table_{number}", comment="goods") for number in range(_TABLES)}
        api.shelf.content["shop"] = content
        first = await ana.told("editor/autocomplete/shop", **SHELF)
        assert [one["name"] for one in first["tables_meta"]] == [f"table_{number}" for number in range(_TABLES)]
        started = time.monotonic()
        page = await ana.told("editor/autocomplete/shop", prefix="TABLE_29", limit=100, page=12, **SHELF)
        took_s = time.monotonic() - started
        assert (len(page["tables_meta"]), page["tables_meta"][-1]["name"], page["truncated"]) == (
            11,
            "table_29999",
            False,
        )
        assert api.shelf.looks == ["tables shop"]
        # 30 ms on an idle machine; this one is busy with the other tests.
        assert took_s < 1, took_s
        done = asyncio.Event()
        watching = asyncio.create_task(longest_pause(done))
        response = await ana.api.http.post("/api/v1/editor/autocomplete/shop", data=SHELF, headers=dict(ana.headers))
        done.set()
        assert len(response.content) > _TABLES * 40
        # Reading and writing 30,000 names goes on beside the loop.
        assert await watching < 0.5
