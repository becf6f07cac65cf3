"""The catalog cache in PostgreSQL, and its invalidation when statements change objects (ADR 19)."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.fixtures.database import PATIENT

from queryserver.catalog.lookups import CacheKey, MetadataCacheRecords
from queryserver.identity.model import Username
from queryserver.identity.repository import AccountRepository, NewAccount
from queryserver.platform.database import open_database

AGE = timedelta(minutes=5)
ROOM = 1 << 20


@pytest.fixture
async def answers(database_dsn: str) -> AsyncIterator[MetadataCacheRecords]:
    """Open the cache in a separate test database."""
    async with open_database(database_dsn, PATIENT) as database:
        accounts = AccountRepository(database)
        await accounts.ensure_group("default", ())
        for name in ("ana", "bob"):
            new = NewAccount(Username(name, name), is_admin=False, groups=())
            await accounts.create(new, default_group="default")
        yield MetadataCacheRecords(database)


def key_of(asked: str) -> CacheKey:
    """Return the cache key of a lookup by user 1 on the connector `shop`."""
    return CacheKey(1, "shop", hashlib.sha256(asked.encode()).digest())


async def test_cached_value_is_returned_until_objects_change(answers: MetadataCacheRecords) -> None:
    key = key_of("tables")
    began = await answers.find(key, max_age=AGE)
    assert await answers.put(key, b"old", looked_at=began.looked_at, max_bytes=ROOM)
    assert (await answers.find(key, max_age=AGE)).value == b"old"
    await answers.objects_changed(key.user_id, key.connector)
    assert (await answers.find(key, max_age=AGE)).value is None


async def test_value_looked_up_before_change_is_not_cached_after_it(answers: MetadataCacheRecords) -> None:
    key = key_of("tables")
    began = await answers.find(key, max_age=AGE)
    await answers.objects_changed(key.user_id, key.connector)
    await answers.put(key, b"old", looked_at=began.looked_at, max_bytes=ROOM)
    after = await answers.find(key, max_age=AGE)
    assert (after.value, after.changed_at != began.changed_at) == (None, True)
    assert await answers.put(key, b"new", looked_at=after.looked_at, max_bytes=ROOM)
    await answers.put(key, b"old", looked_at=began.looked_at, max_bytes=ROOM)
    assert (await answers.find(key, max_age=AGE)).value == b"new"


async def test_change_after_the_reported_end_invalidates_again(answers: MetadataCacheRecords) -> None:
    """If a statement finishes on the engine only after it was reported as finished, the late change also invalidates
    the cache.
    """
    key = key_of("tables")
    await answers.objects_changed(key.user_id, key.connector)
    between = await answers.find(key, max_age=AGE)
    assert await answers.put(key, b"old", looked_at=between.looked_at, max_bytes=ROOM)
    await answers.objects_changed(key.user_id, key.connector)
    after = await answers.find(key, max_age=AGE)
    assert (after.value, after.changed_at != between.changed_at) == (None, True)


async def test_change_affects_only_its_user_and_connector(answers: MetadataCacheRecords) -> None:
    mine = key_of("tables")
    others = (replace(mine, user_id=2), replace(mine, connector="else"))
    for key in (mine, *others):
        began = await answers.find(key, max_age=AGE)
        assert await answers.put(key, b"kept", looked_at=began.looked_at, max_bytes=ROOM)
    await answers.objects_changed(mine.user_id, mine.connector)
    assert [(await answers.find(key, max_age=AGE)).value for key in (mine, *others)] == [None, b"kept", b"kept"]


async def test_change_by_any_user_affects_shared_values(answers: MetadataCacheRecords) -> None:
    shared = replace(key_of("tables"), user_id=0)
    other = replace(shared, connector="else")
    for key in (shared, other):
        began = await answers.find(key, max_age=AGE)
        assert await answers.put(key, b"kept", looked_at=began.looked_at, max_bytes=ROOM)
    await answers.objects_changed(2, shared.connector)
    assert [(await answers.find(key, max_age=AGE)).value for key in (shared, other)] == [None, b"kept"]


async def test_size_limit_of_shared_values_applies_per_connector(answers: MetadataCacheRecords) -> None:
    first = replace(key_of("tables"), user_id=0)
    began = await answers.find(first, max_age=AGE)
    for connector in ("shop", "else"):
        key = replace(first, connector=connector)
        assert await answers.put(key, b"x" * 1000, looked_at=began.looked_at, max_bytes=2000)
    more = replace(key_of("functions"), user_id=0)
    assert not await answers.put(more, b"x" * 1000, looked_at=began.looked_at, max_bytes=2000)


async def test_size_limit_per_user_is_enforced(answers: MetadataCacheRecords) -> None:
    first, second = key_of("tables"), key_of("functions")
    began = await answers.find(first, max_age=AGE)
    assert await answers.put(first, b"x" * 1000, looked_at=began.looked_at, max_bytes=2000)
    assert not await answers.put(second, b"x" * 1000, looked_at=began.looked_at, max_bytes=2000)
    assert (await answers.find(second, max_age=AGE)).value is None
