"""Permissions and groups in a real database (Contract platform 4.3, 12)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from tests.fixtures.database import PATIENT
from tests.refusals import raises_code

from queryserver.errors.base import InvalidUsername, NameTaken, UnknownGroup
from queryserver.identity.callers import CallerRepository
from queryserver.identity.model import UsernameRule, read_right
from queryserver.identity.repository import AccountRepository, NewAccount
from queryserver.identity.users import DEFAULT_RIGHTS, Groups
from queryserver.platform.database import Database, open_database
from queryserver.platform.settings.desktop import AuthSettings

RULE = UsernameRule()


@dataclass(frozen=True)
class Ground:
    """The accounts under test and their database."""

    database: Database
    accounts: AccountRepository
    groups: Groups

    async def user(self, name: str, *, is_admin: bool = False) -> None:
        await self.accounts.create(NewAccount(RULE.read(name), is_admin=is_admin), default_group="default")

    async def rights(self, group: str) -> tuple[tuple[str, ...], int]:
        [one] = await self.groups.grants(group)
        return one.rights, one.members


@pytest.fixture
async def ground(database_dsn: str) -> AsyncIterator[Ground]:
    """Provide the default group and the user ana, who is the only administrator, through the group `admins`."""
    async with open_database(database_dsn, PATIENT) as database:
        accounts = AccountRepository(database)
        await accounts.ensure_group("default", ["download"])
        ground = Ground(database, accounts, Groups(database, AuthSettings()))
        await ground.user("ana")
        await ground.groups.create("admins")
        await ground.groups.grant("admins", "admin")
        await ground.groups.add("ana", "admins")
        yield ground


async def test_group_changes_are_idempotent(ground: Ground) -> None:
    groups = ground.groups
    for _ in range(2):
        await groups.grant("default", "connector:*")
        await groups.add(" ANA ", "default")
    assert await ground.rights("default") == (("connector:*", "download"), 1)
    for _ in range(2):
        await groups.ungrant("default", "connector:*")
        await groups.remove("ana", "default")
    assert await ground.rights("default") == (("download",), 0)


async def test_groups_are_listed_in_order(ground: Ground) -> None:
    for name in ("b", "B", "a b", "é"):
        await ground.groups.create(name)
    listed = await ground.groups.grants()
    assert [one.name for one in listed] == ["B", "a b", "admins", "b", "default", "é"]


async def test_deleting_a_group_deletes_its_rights_and_memberships(ground: Ground) -> None:
    groups = ground.groups
    await groups.create("a")
    await groups.grant("a", "download")
    await groups.add("ana", "a")
    await groups.delete("a")
    await groups.create("a")
    assert await ground.rights("a") == ((), 0)


async def test_missing_users_groups_and_rights_are_named(ground: Ground) -> None:
    groups = ground.groups
    for change in (groups.add("ana", "x"), groups.remove("ana", "x"), groups.delete("x"), groups.grants("x")):
        with pytest.raises(UnknownGroup, match="Group x does not exist"):
            await change
    for change in (groups.grant("x", "download"), groups.ungrant("x", "download")):
        with pytest.raises(UnknownGroup):
            await change
    for change in (groups.add("nobody", "default"), groups.remove("nobody", "default")):
        with raises_code("unknown_user"):
            await change
    with pytest.raises(NameTaken):
        await groups.create("default")
    with raises_code("default_group"):
        await groups.delete("default")
    for change in (groups.grant("default", "fly"), groups.ungrant("default", "connector:hive")):
        with raises_code("invalid_right"):
            await change
    with pytest.raises(InvalidUsername):
        await groups.add("a b", "default")


async def test_unlistable_group_names_are_rejected(ground: Ground, subtests: pytest.Subtests) -> None:
    for name in ["", " a", "a ", "a,b", "a\tb", "a\nb", "a\0", "a" * 151]:
        with subtests.test(name=name), raises_code("invalid_group_name"):
            await ground.groups.create(name)


@pytest.mark.platform(55)
@pytest.mark.parametrize("change", ["remove", "ungrant", "delete", "disable"])
async def test_last_administrator_by_group_cannot_be_removed(ground: Ground, change: str) -> None:
    async def attempt() -> object:
        match change:
            case "remove":
                return await ground.groups.remove("ana", "admins")
            case "ungrant":
                return await ground.groups.ungrant("admins", "admin")
            case "delete":
                return await ground.groups.delete("admins")
            case _:
                return await ground.accounts.change("ana", is_active=False)

    with raises_code("last_administrator"):
        await attempt()
    assert await ground.rights("admins") == (("admin",), 1)
    # A disabled user does not count as an administrator.
    await ground.user("cy", is_admin=True)
    await ground.accounts.change("cy", is_active=False)
    with raises_code("last_administrator"):
        await attempt()
    await ground.user("bob", is_admin=True)
    await attempt()


@pytest.mark.platform(55)
async def test_groups_can_be_changed_when_no_administrator_exists(ground: Ground) -> None:
    await ground.database.execute("delete from group_members")
    await ground.groups.ungrant("admins", "admin")
    await ground.groups.delete("admins")


@pytest.mark.platform(55)
async def test_concurrent_removals_of_administrators_reject_one(ground: Ground) -> None:
    for round_number in range(5):
        name = f"bob{round_number}"
        await ground.user(name, is_admin=True)
        outcomes = await asyncio.gather(
            ground.groups.ungrant("admins", "admin"),
            ground.accounts.change(name, is_admin=False),
            return_exceptions=True,
        )
        assert [getattr(one, "code", one) for one in outcomes if isinstance(one, BaseException)] == [
            "last_administrator"
        ]
        await ground.groups.grant("admins", "admin")
        await ground.accounts.change(name, is_admin=False)


@pytest.mark.platform(36)
@pytest.mark.parametrize("name", ["ANA", "ana", " ana ", "Ana\t"])
def test_names_are_lowercased_by_default(name: str) -> None:
    read = UsernameRule().read(name)
    assert (read.shown, read.key) == ("ana", "ana")


@pytest.mark.parametrize(
    ("rule", "shown", "key"),
    [
        (UsernameRule(force_lowercase=False), "Ana", "ana"),
        (UsernameRule(force_lowercase=False, force_uppercase=True), "ANA", "ana"),
        (UsernameRule(ignore_case=False, force_lowercase=False), "Ana", "Ana"),
    ],
)
def test_case_rule_is_configurable(rule: UsernameRule, shown: str, key: str) -> None:
    read = rule.read("Ana")
    assert (read.shown, read.key) == (shown, key)


def test_unicode_spellings_of_a_letter_are_the_same_name() -> None:
    assert UsernameRule().read("jose\u0301") == UsernameRule().read("jos\u00e9")


@pytest.mark.parametrize("name", ["x", "a.b+c-d_e@f", "...a", "Ünïcøde", "x" * 150])
def test_valid_names_are_accepted(name: str) -> None:
    assert UsernameRule().read(name).shown == name.lower()


@pytest.mark.parametrize("name", ["", "  ", ".", "...", "a b", "a/b", "a\0b", "a\nb", "<b>", "a'b", "*", "x" * 151])
def test_invalid_names_are_rejected(name: str) -> None:
    with pytest.raises(InvalidUsername):
        UsernameRule().read(name)


@pytest.mark.parametrize("name", ["ADMIN", "Admin", " admin", "admin ", "\uff41dmin", "e\u0301lodie", "a b", ""])
def test_exact_name_must_match_the_stored_form(name: str) -> None:
    assert UsernameRule().read_exact("admin").shown == "admin"
    with pytest.raises(InvalidUsername):
        UsernameRule().read_exact(name)


def test_exact_name_follows_the_configured_case() -> None:
    kept = UsernameRule(force_lowercase=False)
    assert (kept.read_exact("Ana").shown, kept.read_exact("Ana").key) == ("Ana", "ana")
    with pytest.raises(InvalidUsername):
        UsernameRule(force_lowercase=False, force_uppercase=True).read_exact("Ana")


@pytest.mark.parametrize("right",
    ["admin", "connector:7", "connector:*", "connector:9223372036854775807", "security.impersonate",
    *DEFAULT_RIGHTS])  # fmt: skip
def test_documented_rights_are_valid(right: str) -> None:
    assert read_right(right) == right


@pytest.mark.parametrize("right", [
    "", "Admin", "admin ", "connector:", "connector:07", "connector:0", "connector:-1", "connector:٧",
     "connector:7\n",
     "connector:hive", "filebrowser.hdfs_access", "*"])  # fmt: skip
def test_other_rights_are_rejected(right: str) -> None:
    with raises_code("invalid_right"):
        read_right(right)


async def test_disabled_and_unknown_users_are_not_active(ground: Ground) -> None:
    await ground.user("bob")
    await ground.user("cy")
    await ground.accounts.change("bob", is_active=False)
    ids = {row["username"]: row["id"] for row in await ground.database.fetch("select id, username from users")}
    active = await CallerRepository(ground.database).active({*ids.values(), -1})
    assert active == {ids["ana"], ids["cy"]}
