"""Users whom the server makes and changes by itself, and what the audit tells of it (Contract platform 3.9 to 4.2)."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import httpx
import pytest
from tests.api.driving import Api, Caller
from tests.api.token.logins import PASSWORD, Opener, accounts, bearer, log_in
from tests.fakes.issuer import AUDIENCE, ISSUER, Issuer
from tests.fixtures.logs import told_of_audit_events

from queryserver.errors.base import UnknownGroup
from queryserver.identity.build import ensure_administrator
from queryserver.identity.callers import CallerRepository
from queryserver.identity.model import Username
from queryserver.identity.repository import AccountRepository, NewAccount
from queryserver.platform.logs import FIELDS

GROUPED = "tests.fakes.plug_ins.Grouped"
DOOR = "tests.fakes.plug_ins.Door"
ANA = NewAccount(Username("ana", "ana"))
Told = tuple[str, str, str]
T = TypeVar("T")


@pytest.fixture
def changes() -> Iterator[list[Told]]:
    """Changes of users and groups that the audit is told of: operation, who, what. Logins are not among them."""
    told: list[Told] = []

    def hear(record: logging.LogRecord) -> None:
        fields = getattr(record, FIELDS)
        if record.getMessage() != "login":
            assert (fields["outcome"], fields["by"]) == ("ok", "server")
            told.append((record.getMessage(), fields["user"], fields["subject"]))

    with told_of_audit_events(hear):
        yield told


async def call(api: Api, name: str, groups: str = "") -> httpx.Response:
    headers = {"X-Grouped": name} | ({"X-Groups": groups} if groups else {})
    response = await Caller(api, "", headers).get("editor/get_history")
    assert response.status_code == 200
    return response


async def test_a_user_made_at_first_sight_is_written_down_once(opener: Opener, changes: list[Told]) -> None:
    async with opener(api_auth=(GROUPED, "jwt")) as api:
        await asyncio.gather(*(call(api, "ana") for _ in range(5)))
        await call(api, "ana")
    assert changes == [("user.create", "ana", "ana")]


async def test_memberships_that_come_and_go_are_written_down(opener: Opener, changes: list[Told]) -> None:
    async with opener(api_auth=(GROUPED, "jwt")) as api:
        for group in ("analysts", "writers"):
            await AccountRepository(api.database).ensure_group(group, ())
        await asyncio.gather(*(call(api, "ana", "analysts,unknown") for _ in range(5)))
        assert changes == [("user.create", "ana", "ana"), ("group.add_member", "ana", "analysts ana")]
        changes.clear()
        await call(api, "ana", "writers")
        assert changes == [("group.add_member", "ana", "writers ana"), ("group.remove_member", "ana", "analysts ana")]


async def test_users_of_another_issuer_are_written_down(opener: Opener, changes: list[Told]) -> None:
    issuer = Issuer()
    rules = {"issuer": ISSUER, "audience": AUDIENCE}
    async with issuer.serving() as url, opener(jwt={"key_server_url": (url,), **rules}) as api:
        assert (await bearer(api, issuer.token(sub="eve"))).status_code == 200
    assert changes == [("user.create", "eve", "eve")]


async def test_who_becomes_the_first_administrator_is_written_down(opener: Opener, changes: list[Told]) -> None:
    async with opener(first_login_becomes_admin=True) as api:
        await log_in(api, "Ana")
        assert changes == [("user.create", "ana", "ana"), ("user.make_admin", "ana", "ana")]


async def test_a_login_that_makes_an_administrator_of_a_user_is_written_down(
    opener: Opener, changes: list[Told]
) -> None:
    async with opener(first_login_becomes_admin=True) as api:
        await accounts(api).create("bob", PASSWORD)
        for _ in range(2):
            await log_in(api, " BOB ")
        assert changes == [("user.make_admin", "bob", "bob")]


async def test_a_back_end_of_others_makes_users_who_are_written_down(opener: Opener, changes: list[Told]) -> None:
    async with opener(backend=(DOOR,)) as api:
        await AccountRepository(api.database).ensure_group("analysts", ())
        await log_in(api, "Ana", "let me in")
    assert changes == [("user.create", "ana", "ana"), ("group.add_member", "ana", "analysts ana")]


async def test_the_administrator_of_the_embedded_mode_is_written_down(opener: Opener, changes: list[Told]) -> None:
    async with opener() as api:
        for _ in range(2):
            await ensure_administrator(accounts(api), PASSWORD, lambda _: None)
    assert changes == [("user.create", "admin", "admin"), ("user.make_admin", "admin", "admin")]


# Other databases of the server have locks that are waited for too.
_WAITS_FOR_A_LOCK = """
    select exists (
        select from pg_locks join pg_stat_activity using (pid) where not granted and datname = current_database())
"""


async def while_a_group_goes(api: Api, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives that came to the group `going` when somebody else had deleted it, and not yet committed."""
    async with api.database.transaction() as connection:
        await connection.execute("delete from groups where name = 'going'")
        waiting = asyncio.create_task(work)
        while not await connection.fetchval(_WAITS_FOR_A_LOCK):
            assert not waiting.done()
            await asyncio.sleep(0.01)
    return await waiting


async def test_a_group_that_is_deleted_meanwhile_is_left_out(opener: Opener) -> None:
    async with opener() as api:
        for group in ("going", "staying"):
            await AccountRepository(api.database).ensure_group(group, ())
        user_id = await AccountRepository(api.database).create(
            NewAccount(Username("ana", "ana")), default_group="default"
        )
        join = CallerRepository(api.database).join_only(user_id, ["going", "staying"], default_group="default")
        assert await while_a_group_goes(api, join) == {"default", "staying"}


async def test_nobody_is_made_a_member_of_a_group_that_is_deleted_meanwhile(opener: Opener) -> None:
    async with opener() as api:
        records = AccountRepository(api.database)
        await records.ensure_group("going", ())
        create = records.create(NewAccount(Username("ana", "ana"), groups=("going",)), default_group="default")
        with pytest.raises(UnknownGroup):
            await while_a_group_goes(api, create)
        assert await accounts(api).all() == []
        await records.ensure_group("going", ())
        create = records.create(ANA, default_group="going")
        await while_a_group_goes(api, create)
        assert [one.groups for one in await accounts(api).all()] == [()]
