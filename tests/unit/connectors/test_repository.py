"""Connectors stored in a real database: ids, locks, notifications, and encrypted secrets."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.fixtures.database import PATIENT
from tests.refusals import raises_code

from queryserver.connectors.model import MASK, NewInstance
from queryserver.connectors.repository import CHANGED, ConnectorRepository
from queryserver.errors.base import NameTaken, UnknownGroup, VersionConflict
from queryserver.identity.keys import AesSealer, Keyring, SecretKey
from queryserver.identity.repository import AccountRepository
from queryserver.platform.database import Database, listening, open_database
from queryserver.platform.settings.sections import Secret

_OLD, _NEW = SecretKey.derive(Secret("o" * 40)), SecretKey.derive(Secret("n" * 40))


@pytest.fixture
async def database(database_dsn: str) -> AsyncIterator[Database]:
    async with open_database(database_dsn, PATIENT) as database:
        yield database


@pytest.fixture
def records(database: Database) -> ConnectorRepository:
    return ConnectorRepository(database, AesSealer(Keyring(_OLD)))


def new(name: str = "Shop", **changes: Any) -> NewInstance:
    settings = {"url": "mysql://svc:planted-url@db/shop", "password": "planted-whole", "threads": 2, "has_ssh": False}
    given: dict[str, Any] = {"settings": settings, "groups": (), **changes}
    return NewInstance(name, "mysql", "sqlalchemy", "text", **given)


async def test_stored_connector_is_read_back_completely(records: ConnectorRepository) -> None:
    made = await records.create(new())
    assert (made.version, made.nice_name, dict(made.settings)) == (1, "Shop", dict(new().settings))
    assert await records.find(made.id) == made
    assert (await records.all())[1] == [made]


@pytest.mark.security("T9")
@pytest.mark.platform(69)
async def test_table_contains_no_plaintext_secret(records: ConnectorRepository, database: Database) -> None:
    await records.create(new())
    row = await database.row("select connectors.*, connectors::text as whole from connectors")
    assert row is not None
    assert "planted" not in row["whole"]
    assert b"planted" not in row["sealed_secrets"]
    shown = {one["name"]: one["value"] for one in row["settings"]}
    assert shown["url"] == f"mysql://svc:{MASK}@db/shop"
    assert shown["password"] == MASK


async def test_each_committed_change_increments_the_state_and_notifies(records, database_dsn) -> None:
    heard, connected = asyncio.Queue[tuple[str, str]](), asyncio.Event()
    async with listening(database_dsn, lambda *notice: heard.put_nowait(notice), connected.set):
        await connected.wait()
        made = await records.create(new())
        await records.change(made, new("Store"))
        with pytest.raises(VersionConflict):
            await records.change(made, new("Late"))
        await records.remove(made.id)
        async with asyncio.timeout(60):
            assert [await heard.get() for _ in range(3)] == [(CHANGED, "1"), (CHANGED, "2"), (CHANGED, "3")]
    assert (await records.all())[0] == 3


@pytest.mark.platform(68)
async def test_stale_version_changes_nothing_and_reports_the_stored_version(records: ConnectorRepository) -> None:
    made = await records.create(new())
    changed = await records.change(made, new("Store"))
    with pytest.raises(VersionConflict) as refused:
        await records.change(made, new("Late"))
    assert refused.value.extra_fields == {"version": changed.version}
    assert changed.version == 2
    assert await records.find(made.id) == changed


@pytest.mark.platform(68)
async def test_names_are_unique_in_any_case_until_deletion(records) -> None:
    made = await records.create(new("Straße É"))
    with pytest.raises(NameTaken):
        await records.create(new("STRASSE é"))
    await records.change(made, new("straße é"))
    await records.remove(made.id)
    await records.create(new("STRASSE É"))


async def test_concurrent_creation_of_a_name_succeeds_once(records: ConnectorRepository) -> None:
    done = await asyncio.gather(*(records.create(new()) for _ in range(5)), return_exceptions=True)
    assert len([one for one in done if isinstance(one, NameTaken)]) == 4
    assert len((await records.all())[1]) == 1


@pytest.mark.platform(75)
async def test_id_is_never_reused_and_grants_are_deleted_with_the_connector(records, database) -> None:
    await AccountRepository(database).ensure_group("analysts", ())
    made = await records.create(new(groups=("analysts",)))
    assert made.groups == ("analysts",)
    index = "insert into metadata_scopes (connector, stored, address) values ($1, $2, '')"
    await database.execute(index, str(made.id), True)
    await database.execute(index, "other", True)
    await records.remove(made.id)
    assert await records.find(made.id) is None
    with raises_code("connector_not_found"):
        await records.remove(made.id)
    again = await records.create(new())
    assert again.id > made.id
    assert again.groups == ()
    scopes = await database.fetch("select connector from metadata_scopes")
    assert [row["connector"] for row in scopes] == ["other"]
    tomb = await database.row("select * from connectors where id = $1", made.id)
    assert tomb is not None
    assert (tomb["nice_name"], tomb["settings"], tomb["sealed_secrets"]) == ("Shop", [], None)


async def test_unknown_group_stores_nothing(records: ConnectorRepository) -> None:
    with pytest.raises(UnknownGroup):
        await records.create(new(groups=("nobody",)))
    assert (await records.all())[0] == 0


@pytest.mark.security("T9")
async def test_resealed_secrets_do_not_need_the_former_key(records: ConnectorRepository, database: Database) -> None:
    made = await records.create(new())
    both = ConnectorRepository(database, AesSealer(Keyring(_NEW, (_OLD,))))
    assert await both.reseal() == (1, 0)
    assert await records.reseal() == (0, 1)
    now = await ConnectorRepository(database, AesSealer(Keyring(_NEW))).find(made.id)
    assert now is not None
    assert now.settings["url"] == "mysql://svc:planted-url@db/shop"
    lost = await records.find(made.id)
    assert lost is not None
    assert (lost.settings["url"], lost.settings["password"]) == ("mysql://svc:@db/shop", "")
    # Once the old key is available again, so are the secrets, even if other settings have changed in the meantime.
    await records.change(lost, new("Renamed", settings=lost.settings))
    back = await both.find(made.id)
    assert back is not None
    assert (back.nice_name, back.settings["password"]) == ("Renamed", "planted-whole")
