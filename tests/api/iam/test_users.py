"""Lists of users and groups for administrators (Contract platform 6)."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.api.conftest import make_settings
from tests.api.driving import Api, Caller, open_api, sign_in, verdict
from tests.timing import at_best, processor_s

from queryserver.errors.base import NameTaken
from queryserver.identity.model import AuthenticatedUser, Username
from queryserver.identity.repository import AccountRepository, NewAccount
from queryserver.identity.users import Groups, UserSummary
from queryserver.platform.settings.desktop import AuthSettings

T = TypeVar("T")

PATHS = ("get_users", "users", "users/autocomplete")


@pytest.fixture
async def admin(tmp_path: Path, database_dsn: str, users_url: str) -> AsyncIterator[Caller]:
    """The administrator root of an application. The application has only the users that the test creates."""
    async with open_api(make_settings(tmp_path, database_dsn, users_url)) as api:
        yield await sign_in(api, "root", admin=True, groups=())


@pytest.fixture
async def anyone(api: Api) -> Caller:
    """An administrator of the shared application, who makes calls that must fail."""
    return await api.user("administrator", admin=True)


async def people(api: Api, *names: str, groups: tuple[str, ...] = (), disabled: bool = False) -> None:
    for group in groups:
        with suppress(NameTaken):
            await Groups(api.database, AuthSettings()).create(group)
    records = AccountRepository(api.database)
    for name in names:
        await records.create(NewAccount(Username(name, name.casefold()), groups=groups), default_group="default")
        if disabled:
            await records.change(name, is_active=False, ends_tokens=True)


async def ids(api: Api) -> dict[str, int]:
    return {account.username: account.id for account in await AccountRepository(api.database).all()}


async def get_ok(caller: Caller, path: str, **query: Any) -> dict[str, Any]:
    response = await caller.get(f"iam/{path}", **query)
    assert response.status_code == 200, response.text
    return response.json()


async def listed(caller: Caller, **query: Any) -> list[str]:
    return [user["username"] for user in (await get_ok(caller, "get_users", **query))["users"]]


async def completed(caller: Caller, **query: Any) -> tuple[list[str], list[str]]:
    body = await get_ok(caller, "users/autocomplete", **query)
    return [user["username"] for user in body["users"]], [group["name"] for group in body["groups"]]


@pytest.mark.platform(67)
@pytest.mark.security("T15")
@pytest.mark.parametrize("path", PATHS)
async def test_only_administrators_may_list_users(ana: Caller, path: str) -> None:
    assert verdict(await ana.get(f"iam/{path}")) == (403, -1, "admin_required")
    # Permissions are checked before the parameters are parsed.
    assert verdict(await ana.get(f"iam/{path}", userids="[", count="x", is_active="maybe"))[0] == 403
    assert (await ana.api.stranger.get(f"iam/{path}")).status_code == 401


@pytest.mark.platform(81)
async def test_sharing_setting_does_not_open_user_listings(small_api: Any) -> None:
    opened: AbstractAsyncContextManager[Api] = small_api(desktop={"enable_sharing": True})
    async with opened as api:
        ana = await api.user("ana")
        assert [verdict(await ana.get(f"iam/{path}"))[2] for path in PATHS] == ["admin_required"] * 3


async def test_administrator_by_group_may_list_users(admin: Caller) -> None:
    groups = Groups(admin.api.database, AuthSettings())
    ana = await admin.api.user("ana", groups=("admins",))
    assert (await ana.get("iam/get_users")).status_code == 403
    await groups.grant("admins", "admin")
    assert (await get_ok(ana, "get_users", username=ana.username))["users"][0]["superuser"] is True
    await groups.ungrant("admins", "admin")
    assert (await ana.get("iam/get_users")).status_code == 403


@pytest.mark.platform(78)
async def test_users_are_filtered_by_name_state_and_groups(admin: Caller) -> None:
    await people(admin.api, "ana", "bob", groups=("b", "a"))
    await people(admin.api, "cy", "ana.x", disabled=True)
    everybody = await get_ok(admin, "get_users")
    assert everybody["users"][0] == {
        "id": (await ids(admin.api))["ana"],
        "username": "ana",
        "groups": ["a", "b", "default"],
        "is_active": True,
        "superuser": False,
        "is_service_account": False,
        "first_name": "",
        "last_name": "",
        "email": "",
        "last_login": None,
    }
    seen = ([user["username"] for user in everybody["users"]], everybody["count"], everybody["status"])
    assert seen == (["ana", "ana.x", "bob", "cy", "root"], 5, 0)
    assert [user["superuser"] for user in everybody["users"]] == [False] * 4 + [True]
    assert await listed(admin, username="ANA") == ["ana"]
    assert await listed(admin, username="an") == []
    assert await listed(admin, username="%") == []
    assert await listed(admin, is_active="true") == ["ana", "bob", "root"]
    assert await listed(admin, is_active="No") == ["ana.x", "cy"]
    assert await listed(admin, is_active="") == ["ana.x", "cy"]
    assert await listed(admin, username="", groups="") == ["ana", "ana.x", "bob", "cy", "root"]


async def test_service_accounts_are_marked_and_listed(admin: Caller) -> None:
    await people(admin.api, "ana", "bob", groups=("a",))
    nightly = NewAccount(Username("nightly", "nightly"), groups=("a",), is_service_account=True)
    await AccountRepository(admin.api.database).create(nightly, default_group="default")
    everybody = (await get_ok(admin, "get_users"))["users"]
    assert [user["username"] for user in everybody if user["is_service_account"]] == ["nightly"]
    assert await listed(admin, is_service_account="true") == ["nightly"]
    assert await listed(admin, is_service_account="false", groups="a") == ["ana", "bob"]
    assert (await get_ok(admin, "get_users", is_service_account="yes", limit=1))["count"] == 1
    assert await listed(admin, is_service_account="true", is_active="false") == []


@pytest.mark.platform(78)
async def test_members_of_several_groups_appear_once(admin: Caller) -> None:
    await people(admin.api, "ana", groups=("a", "b"))
    await people(admin.api, "bob", groups=("b",))
    await people(admin.api, "cy")
    for asked in ([("groups", "a,b")], [("groups", "a"), ("groups", "b")], [("groups", " a , b,")]):
        body = (await admin.send("GET", "iam/get_users", params=asked)).json()
        assert ([user["username"] for user in body["users"]], body["count"]) == (["ana", "bob"], 2)
    assert await listed(admin, groups="a", is_active="true", username="Ana") == ["ana"]
    assert await listed(admin, groups="nobody") == []
    assert await listed(admin, groups="A") == []
    assert await listed(admin, groups="nobody,a") == ["ana"]


@pytest.mark.platform(78)
@pytest.mark.parametrize(
    "query",
    [
        {"is_active": "maybe"},
        {"is_active": "2"},
        {"is_service_account": "maybe"},
        {"page": "0"},
        {"page": "-1"},
        {"page": "1.5"},
        {"limit": "0"},
        {"limit": "x"},
    ],
)
async def test_invalid_list_parameters_are_named(anyone: Caller, query: dict[str, str]) -> None:
    response = await anyone.get("iam/get_users", **query)
    assert verdict(response) == (400, -1, "invalid_parameter")
    assert next(iter(query)) in response.json()["message"]


@pytest.mark.parametrize(("call", "size"), [("iam/get_users", "limit"), ("iam/users/autocomplete", "count")])
async def test_page_sizes_are_capped_at_the_maximum(anyone: Caller, call: str, size: str) -> None:
    most = await anyone.get(call, **{size: 1000})
    assert (await anyone.get(call, **{size: "9" * 30})).json() == most.json()


@pytest.mark.platform(78)
async def test_pages_contain_every_user_once_with_the_total_count(admin: Caller) -> None:
    await people(admin.api, *(f"user{number}" for number in range(24)))
    pages = [await get_ok(admin, "get_users", page=page, limit=10) for page in (1, 2, 3, 4, 2**62)]
    names = [[user["username"] for user in page["users"]] for page in pages]
    assert [len(page) for page in names] == [10, 10, 5, 0, 0]
    assert [*chain(*names)] == await listed(admin)
    assert [page["count"] for page in pages] == [25] * 5
    assert await listed(admin, limit=3) == names[0][:3]
    assert await listed(admin, page=1) == [*chain(*names)]
    assert await listed(admin, page=2) == []


@pytest.mark.platform(79)
async def test_users_are_returned_by_ids(admin: Caller) -> None:
    await people(admin.api, "ana", "bob+x@y.z")
    known = await ids(admin.api)
    body = await get_ok(
        admin, "users", userids=json.dumps([known["bob+x@y.z"], 10**15, known["ana"], known["ana"], -1])
    )
    assert body["users"][0] == {
        "id": known["ana"],
        "username": "ana",
        "first_name": "",
        "last_name": "",
        "email": "",
        "last_login": None,
        "editURL": "/useradmin/users/edit/ana",
    }
    assert [user["username"] for user in body["users"]] == ["ana", "bob+x@y.z"]
    assert body["users"][1]["editURL"] == "/useradmin/users/edit/bob%2Bx%40y.z"
    assert await get_ok(admin, "users") == {"users": [], "status": 0}
    assert await get_ok(admin, "users", userids="[]") == {"users": [], "status": 0}


@pytest.mark.platform(79)
@pytest.mark.parametrize(
    ("userids", "code"),
    [
        ("[1", "invalid_json"),
        ("x", "invalid_json"),
        ("", "invalid_json"),
        ("1", "invalid_parameter"),
        ("{}", "invalid_parameter"),
        ("null", "invalid_parameter"),
        ('["1"]', "invalid_parameter"),
        ("[1.5]", "invalid_parameter"),
        ("[true]", "invalid_parameter"),
        ("[null]", "invalid_parameter"),
        ("[[1]]", "invalid_parameter"),
        (f"[{2**63}]", "invalid_parameter"),
        (json.dumps([1] * 1001), "too_many_ids"),
        ("[" * 65 + "]" * 65, "invalid_json"),
    ],
)
async def test_invalid_id_lists_are_refused(anyone: Caller, userids: str, code: str) -> None:
    assert verdict(await anyone.get("iam/users", userids=userids)) == (400, -1, code)


@pytest.mark.platform(79)
async def test_1000_ids_are_accepted(admin: Caller) -> None:
    own = (await ids(admin.api))["root"]
    assert len((await get_ok(admin, "users", userids=json.dumps([own] * 1000)))["users"]) == 1


@pytest.mark.platform(79)
async def test_last_login_is_a_time_without_zone(admin: Caller) -> None:
    password = "correct horse battery"
    await admin.api.services.accounts.accounts.create(AuthenticatedUser("ana"), password)
    number = (await ids(admin.api))["ana"]
    before = datetime.now(UTC).replace(tzinfo=None)
    assert (await admin.api.stranger.post("token/auth", username="ana", password=password)).status_code == 200
    [ana] = (await get_ok(admin, "users", userids=f"[{number}]"))["users"]
    assert abs((datetime.fromisoformat(ana["last_login"]) - before).total_seconds()) < 60
    for stored, shown in (
        (datetime(2026, 1, 5, 9, 10, 11, 123_456, UTC), "2026-01-05T09:10:11.123"),
        (datetime(2026, 1, 5, 9, 10, 11, 5_000, UTC), "2026-01-05T09:10:11.005"),
        (datetime(2026, 1, 5, 9, 10, 11, 999, UTC), "2026-01-05T09:10:11"),
    ):
        await admin.api.database.execute("update users set last_login = $1 where id = $2", stored, number)
        assert (await get_ok(admin, "users", userids=f"[{number}]"))["users"][0]["last_login"] == shown


@pytest.mark.platform(80)
async def test_names_are_completed(admin: Caller) -> None:
    await people(admin.api, "ana", "hannah", groups=("analysts", "Bananas"))
    await people(admin.api, "anton", groups=("cy",))
    await people(admin.api, "anabel", disabled=True)
    assert await completed(admin) == (["ana", "anton", "hannah"], ["Bananas", "analysts", "cy", "default"])
    assert await completed(admin, filter="AN") == (["ana", "anton", "hannah"], ["Bananas", "analysts"])
    assert await completed(admin, filter="nna") == (["hannah"], [])
    assert await completed(admin, filter="_") == ([], [])
    assert await completed(admin, filter="%") == ([], [])
    assert await completed(admin, filter="\\") == ([], [])
    assert await completed(admin, filter="an", count=1) == (["ana"], ["Bananas"])


@pytest.mark.platform(80)
async def test_autocomplete_omits_the_caller_unless_requested(admin: Caller) -> None:
    await people(admin.api, "rooster", groups=("a",))
    assert (await completed(admin, filter="roo"))[0] == ["rooster"]
    assert (await completed(admin, filter="roo", include_myself="yes"))[0] == ["rooster", "root"]
    await Groups(admin.api.database, AuthSettings()).create("mine")
    await Groups(admin.api.database, AuthSettings()).add("root", "mine")
    assert await completed(admin, only_mygroups="1") == (["rooster"], ["default", "mine"])


@pytest.mark.platform(80)
async def test_autocomplete_includes_group_memberships_on_request(admin: Caller) -> None:
    await people(admin.api, "ana", groups=("z", "a"))
    [ana] = (await get_ok(admin, "users/autocomplete"))["users"]
    assert "groups" not in ana
    body = await get_ok(admin, "users/autocomplete", extend_user="true")
    assert [group["name"] for group in body["users"][0]["groups"]] == ["a", "default", "z"]
    assert body["users"][0]["groups"] == body["groups"]


@pytest.mark.platform(80)
@pytest.mark.parametrize("query", [{"count": "0"}, {"extend_user": "x"}, {"only_mygroups": "2"}])
async def test_invalid_autocomplete_parameters_are_named(anyone: Caller, query: dict[str, str]) -> None:
    response = await anyone.get("iam/users/autocomplete", **query)
    assert verdict(response) == (400, -1, "invalid_parameter")
    assert next(iter(query)) in response.json()["message"]


@pytest.mark.platform(4)
async def test_head_matches_get_without_a_body(anyone: Caller) -> None:
    got, asked = await anyone.send("GET", "iam/users"), await anyone.send("HEAD", "iam/users/")
    assert (asked.status_code, asked.headers["content-type"]) == (200, got.headers["content-type"])
    assert asked.headers["content-length"] == got.headers["content-length"]
    assert asked.content == b""


async def test_listing_many_users_does_not_block_the_event_loop(admin: Caller) -> None:
    await admin.api.database.execute(
        """with made as (
               insert into users (username, username_key)
               select 'user' || n, 'user' || n from generate_series(1, 10000) n returning id)
           insert into group_members (user_id, group_id) select made.id, g.id from made, groups g"""
    )

    async def held_up_s() -> tuple[float, int]:
        count, users = await watched(admin.api.services.users.matching())
        return longest_s.pop(), count + len(users)

    longest_s: list[float] = []

    async def watched(call: Awaitable[T]) -> T:
        """Await the call. The longest CPU time between two iterations of the event loop is appended to `longest_s`."""
        waited = [0.0]

        async def watch() -> None:
            while True:
                began = time.thread_time()
                await asyncio.sleep(0)
                waited.append(time.thread_time() - began)

        watcher = asyncio.create_task(watch())
        try:
            return await call
        finally:
            watcher.cancel()
            longest_s.append(max(waited))

    # Because the machine may be slow, the limit is relative: ten thousand times the cost of one user.
    in_one_piece_s = processor_s(
        lambda: [UserSummary(n, f"user{n}", ("default",), True, False, False) for n in range(10001)]
    )
    assert await at_best(held_up_s, below_s=0.8 * in_one_piece_s) == 2 * 10001
    body = await get_ok(admin, "get_users")
    assert (body["count"], len(body["users"]), body["users"][1]["groups"]) == (10001, 10001, ["default"])
    assert (await get_ok(admin, "get_users", page=10, limit=1000))["count"] == 10001
    assert await completed(admin, filter="user9999") == (["user9999"], [])


@pytest.mark.platform(80)
async def test_non_ascii_names_are_matched_case_insensitively(admin: Caller) -> None:
    await people(admin.api, "élodie", groups=("Élan",))
    assert await completed(admin, filter="É") == (["élodie"], ["Élan"])
    assert await completed(admin, filter="E\u0301lo") == (["élodie"], [])
    assert await listed(admin, username="ÉLODIE") == ["élodie"]
