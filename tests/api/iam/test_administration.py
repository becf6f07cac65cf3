"""Calls with which administrators change users and groups (Contract platform 6.6, 6.7)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.api.conftest import make_settings
from tests.api.driving import Api, Caller, open_api, sign_in, verdict
from tests.api.test_logs import Event, about, audited
from tests.api.token.test_api_tokens import holding, lacking

from queryserver.identity.model import ExternalIdentity, Scope, Username
from queryserver.identity.repository import AccountRepository, NewAccount

__all__ = ["audited"]  # a fixture

PASSWORD = "seven unrelated words about rivers"
CHANGES = ("users/new", "users/update", "groups/new", "groups/update", "groups/delete")
GETS = ("users/get", "groups")
EVERY_SCOPE = [scope.value for scope in Scope]


@pytest.fixture
async def boss(api: Api) -> Caller:
    return await api.user("boss", admin=True)


@pytest.fixture
async def alone(tmp_path: Path, database_dsn: str, users_url: str) -> AsyncIterator[Caller]:
    """The only administrator of an application of its own."""
    async with open_api(make_settings(tmp_path, database_dsn, users_url)) as api:
        yield await sign_in(api, "root", admin=True, groups=())


def fresh(name: str = "user") -> str:
    return f"{name}-{uuid4().hex[:12]}"


async def done(caller: Caller, path: str, **fields: Any) -> dict[str, Any]:
    """Make a change that must succeed; return the changed user or group."""
    response = await caller.post_json(f"iam/{path}", **fields)
    assert response.status_code == 200, response.text
    body = response.json()
    return body.get("user") or body.get("group") or body


async def refusal(caller: Caller, path: str, **fields: Any) -> tuple[int, str]:
    response = await caller.post_json(f"iam/{path}", **fields)
    status, _, code = verdict(response)
    return status, code


async def person(caller: Caller, name: str = "user", **fields: Any) -> str:
    return (await done(caller, "users/new", username=fresh(name), password=PASSWORD, **fields))["username"]


async def shown(caller: Caller, username: str) -> dict[str, Any]:
    response = await caller.get("iam/users/get", username=username)
    assert response.status_code == 200, response.text
    return response.json()["user"]


async def signed_in(api: Api, username: str, password: str = PASSWORD) -> Caller:
    pair = await api.stranger.post_ok("token/auth", username=username, password=password)
    return Caller(api, username, {"Authorization": f"Bearer {pair['access']}"})


@pytest.mark.platform(147)
class TestNewUsers:
    async def test_created_user_has_the_given_properties_and_logs_in(self, boss: Caller):
        group, name = fresh("group"), fresh("ana")
        await done(boss, "groups/new", name=group)
        given = {"first_name": "Ana", "last_name": "Öz", "email": "ana@example.org"}
        made = await done(
            boss, "users/new", username=name.upper(), password=PASSWORD, groups=[group], is_admin=True, **given
        )
        assert made == {
            **made,
            **given,
            "username": name,
            "groups": sorted(["default", group]),
            "is_active": True,
            "is_admin": True,
            "superuser": True,
            "is_service_account": False,
            "has_password": True,
            "identities": [],
            "last_login": None,
        }
        assert (await (await signed_in(boss.api, name)).get("iam/get_users")).status_code == 200
        assert (await shown(boss, name))["last_login"] is not None

    async def test_form_fields_create_a_user_too(self, boss: Caller):
        name = fresh()
        body = await boss.post_ok("iam/users/new", username=name, password=PASSWORD, groups="default", is_admin="off")
        assert (body["user"]["groups"], body["user"]["is_admin"]) == (["default"], False)

    async def test_service_account_has_tokens_and_no_password(self, boss: Caller):
        name = fresh("nightly")
        made = await done(boss, "users/new", username=name, is_service_account=True)
        assert (made["is_service_account"], made["has_password"]) == (True, False)
        token = {"name": "x", "scopes": ["query"], "username": name}
        assert (await boss.post_json("token/api_tokens/new", **token)).status_code == 200
        assert (await boss.api.stranger.post("token/auth", username=name, password=PASSWORD)).status_code == 401

    @pytest.mark.parametrize(("fields", "status", "code"),
        [({"password": None}, 400, "missing_parameter"), ({"password": ""}, 400, "invalid_password"),
        ({"password": "short"}, 400, "invalid_password"), ({"password": "password1"}, 400, "invalid_password"),
        ({"password": "x" * 1025}, 400, "invalid_password"), ({"password": 7}, 400, "invalid_parameter"),
        ({"username": "a b"}, 400, "invalid_username"), ({"username": ".."}, 400, "invalid_username"),
        ({"username": "x" * 151}, 400, "invalid_username"), ({"username": None}, 400, "missing_parameter"),
        ({"groups": ["no such group"]}, 404, "unknown_group"), ({"first_name": "x" * 151}, 400, "invalid_parameter"),
        ({"last_name": "a\nb"}, 400, "invalid_parameter"), ({"email": " a@b"}, 400, "invalid_parameter"),
        ({"is_service_account": True}, 400, "invalid_parameter"),
        ({"is_admin": "maybe"}, 400, "invalid_parameter")])  # fmt: skip
    async def test_refused_user_is_not_created(self, boss: Caller, fields: dict[str, Any], status: int, code: str):
        name = fresh()
        fields = {"username": name, "password": PASSWORD, **fields}
        assert await refusal(boss, "users/new", **fields) == (status, code)
        assert verdict(await boss.get("iam/users/get", username=name)) == (404, -1, "unknown_user")

    async def test_name_can_be_taken_once(self, boss: Caller):
        name = fresh()
        fields = {"username": name, "password": PASSWORD}
        answers = await asyncio.gather(*(boss.post_json("iam/users/new", **fields) for _ in range(3)))
        assert sorted(one.status_code for one in answers) == [200, 409, 409]
        assert await refusal(boss, "users/new", **fields) == (409, "name_taken")


@pytest.mark.platform(148)
class TestChanges:
    async def test_only_sent_properties_change(self, boss: Caller):
        name = await person(boss, first_name="Ana", email="a@example.org")
        before = await shown(boss, name)
        assert await done(boss, "users/update", username=name) == before
        after = await done(boss, "users/update", username=name, last_name="Öz", email="")
        assert after == {**before, "last_name": "Öz", "email": ""}

    async def test_groups_are_replaced(self, boss: Caller):
        one, two = fresh("one"), fresh("two")
        await done(boss, "groups/new", name=one)
        await done(boss, "groups/new", name=two)
        name = await person(boss, groups=[one])
        assert (await done(boss, "users/update", username=name, groups=[two]))["groups"] == [two]
        assert (await done(boss, "users/update", username=name, groups=[]))["groups"] == []

    async def test_refused_change_changes_nothing(self, boss: Caller):
        name = await person(boss)
        ana, before = await signed_in(boss.api, name), await shown(boss, name)
        for fields, expected in (
            ({"groups": ["no such group"]}, (404, "unknown_group")),
            ({"password": "short"}, (400, "invalid_password")),
            ({"email": "x" * 255}, (400, "invalid_parameter")),
        ):
            more = {"first_name": "Changed", "is_active": False, "is_admin": True}
            assert await refusal(boss, "users/update", username=name, **more, **fields) == expected
        assert await shown(boss, name) == {**before, "last_login": (await shown(boss, name))["last_login"]}
        assert (await ana.get("iam/preferences")).status_code == 200

    async def test_disabled_user_is_logged_out_and_can_be_enabled_again(self, boss: Caller):
        name = await person(boss)
        ana = await signed_in(boss.api, name)
        token = await holding(ana)
        assert (await done(boss, "users/update", username=name, is_active=False))["is_active"] is False
        for caller in (ana, token):
            assert (await caller.get("iam/preferences")).status_code == 401
        assert (await boss.api.stranger.post("token/auth", username=name, password=PASSWORD)).status_code == 401
        assert (await done(boss, "users/update", username=name, is_active=True))["is_active"] is True
        for caller in (ana, token):
            assert (await caller.get("iam/preferences")).status_code == 401
        await signed_in(boss.api, name)

    async def test_new_password_replaces_the_old_one_and_ends_all_tokens(self, boss: Caller):
        name = await person(boss)
        ana = await signed_in(boss.api, name)
        new = "another set of words and 12 numbers"
        await done(boss, "users/update", username=name, password=new)
        assert (await ana.get("iam/preferences")).status_code == 401
        assert (await boss.api.stranger.post("token/auth", username=name, password=PASSWORD)).status_code == 401
        await signed_in(boss.api, name, new)

    async def test_own_name_is_a_guess_at_a_password(self, boss: Caller):
        name = await person(boss, "wolpertinger")
        assert await refusal(boss, "users/update", username=name, password=name) == (400, "invalid_password")

    async def test_tokens_of_a_user_are_revoked(self, boss: Caller):
        name = await person(boss)
        ana = await signed_in(boss.api, name)
        token = await holding(ana)
        assert (await done(boss, "users/revoke_tokens", username=name))["username"] == name
        for caller in (ana, token):
            assert (await caller.get("iam/preferences")).status_code == 401
        await signed_in(boss.api, name)

    async def test_users_without_a_login_here_get_no_password(self, boss: Caller):
        records, external, service = AccountRepository(boss.api.database), fresh("ext"), fresh("nightly")
        identity = ExternalIdentity("ldap", external)
        await records.create(NewAccount(Username(external, external), identity=identity), default_group="default")
        await done(boss, "users/new", username=service, is_service_account=True)
        assert (await shown(boss, external))["identities"] == [{"issuer": "ldap", "subject": external}]
        for name, code in ((external, "external_user"), (service, "service_account")):
            assert await refusal(boss, "users/update", username=name, password=PASSWORD, email="x@y") == (409, code)
            assert (await shown(boss, name))["has_password"] is False
            assert (await done(boss, "users/update", username=name, email="x@y"))["email"] == "x@y"

    @pytest.mark.parametrize("path", ["users/update", "users/revoke_tokens"])
    async def test_unknown_user_is_named(self, boss: Caller, path: str):
        assert await refusal(boss, path, username=fresh("unknown")) == (404, "unknown_user")
        assert await refusal(boss, path, username="a b") == (400, "invalid_username")
        assert await refusal(boss, path) == (400, "missing_parameter")


@pytest.mark.platform(149)
@pytest.mark.security("T15")
async def test_last_administrator_remains(alone: Caller):
    last = (409, "last_administrator")
    for fields in ({"is_active": False}, {"is_admin": False}, {"is_admin": False, "first_name": "x"}):
        assert await refusal(alone, "users/update", username="root", **fields) == last
    assert (await shown(alone, "root"))["first_name"] == ""
    await done(alone, "groups/new", name="admins", rights=["admin"])
    await done(alone, "users/update", username="root", groups=["admins"], is_admin=False)
    assert await refusal(alone, "users/update", username="root", groups=[]) == last
    assert await refusal(alone, "groups/update", name="admins", revoke=["admin"]) == last
    assert await refusal(alone, "groups/delete", name="admins") == last
    await done(alone, "users/new", username="second", password=PASSWORD, groups=["admins"])
    # Each of the two takes the right from the other at the same time.
    second = await signed_in(alone.api, "second")
    answers = await asyncio.gather(
        alone.post_json("iam/users/update", username="second", is_active=False),
        second.post_json("iam/users/update", username="root", is_active=False),
    )
    assert sorted(one.status_code for one in answers) in ([200, 401], [200, 403], [200, 409])


@pytest.mark.platform(150)
class TestGroups:
    async def test_groups_are_listed_with_rights_and_members(self, boss: Caller):
        name = fresh("group")
        made = await done(boss, "groups/new", name=name, rights=["download", "connector:7", "download"])
        assert made == {"name": name, "rights": ["connector:7", "download"], "members": 0, "is_default": False}
        ana = await person(boss, groups=[name])
        body = (await boss.get("iam/groups")).json()
        assert {**made, "members": 1} in body["groups"]
        assert [one["name"] for one in body["groups"] if one["is_default"]] == ["default"]
        assert {"admin", "connector:*", "download"} <= {*body["rights"]}
        assert [one["name"] for one in body["groups"]] == sorted(one["name"] for one in body["groups"])
        members = (await boss.get("iam/get_users", groups=name)).json()["users"]
        assert [one["username"] for one in members] == [ana]

    async def test_rights_hold_from_the_next_call_of_a_member(self, boss: Caller):
        name = fresh("group")
        await done(boss, "groups/new", name=name)
        ana = await signed_in(boss.api, await person(boss, groups=[name]))
        assert (await ana.get("iam/groups")).status_code == 403
        granted = await done(boss, "groups/update", name=name, grant=["admin", "download"], revoke=["importer"])
        assert granted["rights"] == ["admin", "download"]
        assert (await ana.get("iam/groups")).status_code == 200
        assert (await shown(boss, ana.username))["superuser"] is True
        assert (await shown(boss, ana.username))["is_admin"] is False
        assert (await done(boss, "groups/update", name=name, revoke=["admin"]))["rights"] == ["download"]
        assert (await ana.get("iam/groups")).status_code == 403
        assert (await done(boss, "groups/delete", name=name)) == {"status": 0, "name": name}
        assert (await shown(boss, ana.username))["groups"] == ["default"]

    async def test_refused_rights_change_nothing(self, boss: Caller):
        name = fresh("group")
        await done(boss, "groups/new", name=name, rights=["download"])
        for fields, expected in (
            ({"grant": ["importer", "nonsense"]}, (400, "invalid_right")),
            ({"grant": ["importer"], "revoke": ["connector:0"]}, (400, "invalid_right")),
            ({"grant": ["importer"], "revoke": ["importer"]}, (400, "invalid_parameter")),
        ):
            assert await refusal(boss, "groups/update", name=name, **fields) == expected
        assert (await done(boss, "groups/update", name=name))["rights"] == ["download"]

    async def test_refused_groups(self, boss: Caller):
        name = fresh("group")
        await done(boss, "groups/new", name=name)
        assert await refusal(boss, "groups/new", name=name) == (409, "name_taken")
        for invalid in ("a,b", " a", "x" * 151, "a\tb"):
            assert await refusal(boss, "groups/new", name=invalid) == (400, "invalid_group_name")
        other = fresh("group")
        assert await refusal(boss, "groups/new", name=other, rights=["nonsense"]) == (400, "invalid_right")
        for path in ("groups/update", "groups/delete"):
            assert await refusal(boss, path, name=other) == (404, "unknown_group")
        assert await refusal(boss, "groups/delete", name="default") == (409, "default_group")


@pytest.mark.platform(151)
@pytest.mark.security("T15")
class TestCallers:
    @pytest.mark.parametrize("path", [*CHANGES, "users/revoke_tokens"])
    async def test_only_administrators_may_change_users(self, ana: Caller, path: str):
        assert await refusal(ana, path, username=ana.username, is_admin=True) == (403, "admin_required")
        unread = await ana.send("POST", f"iam/{path}", content=b"x", headers={"Content-Type": "text/plain"})
        assert verdict(unread)[0] == 403
        assert (await ana.api.stranger.post(f"iam/{path}")).status_code == 401

    @pytest.mark.parametrize("path", GETS)
    async def test_only_administrators_may_see_users(self, ana: Caller, path: str):
        assert verdict(await ana.get(f"iam/{path}", username=ana.username)) == (403, -1, "admin_required")

    async def test_token_without_the_admin_scope_reaches_no_call(self, boss: Caller):
        program = await holding(boss, *(scope for scope in EVERY_SCOPE if scope != "admin"))
        for path in (*CHANGES, "users/revoke_tokens"):
            assert lacking(await program.post_json(f"iam/{path}", username="x", name="x")) == "admin"
        for path in GETS:
            assert lacking(await program.get(f"iam/{path}", username="x")) == "admin"

    async def test_token_needs_every_scope_for_changes_that_could_give_it_more(self, boss: Caller):
        name, group = await person(boss), fresh("group")
        await done(boss, "groups/new", name=group)
        program = await holding(boss, "admin", "files:read", "files:write", "import")
        for path, fields in (
            ("users/new", {"username": fresh(), "password": PASSWORD, "is_admin": True}),
            ("users/update", {"username": name, "password": PASSWORD}),
            ("users/update", {"username": name, "is_admin": True}),
            ("groups/new", {"name": fresh("group"), "rights": ["admin"]}),
            ("groups/update", {"name": group, "grant": ["admin"]}),
            ("groups/delete", {"name": group}),
        ):
            assert lacking(await program.post_json(f"iam/{path}", **fields)) == "query"
        assert (await program.get("iam/groups")).status_code == 200
        assert (await done(program, "users/revoke_tokens", username=name))["username"] == name
        full = await holding(boss, *EVERY_SCOPE)
        assert (await done(full, "users/update", username=name, email="a@b"))["email"] == "a@b"

    async def test_session_cookie_is_no_credential_of_these_calls(self, boss: Caller):
        name = await person(boss, is_admin=True)
        stranger = Caller(boss.api, "", {"X-Requested-With": "queryserver"})
        answer = await stranger.post("token/session", username=name, password=PASSWORD)
        cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0], "X-Requested-With": "queryserver"}
        for path in (*CHANGES, "users/revoke_tokens"):
            assert (await stranger.send("POST", f"iam/{path}", headers=cookie, data={})).status_code == 401


@pytest.mark.platform(152)
class TestAudit:
    async def test_changes_and_refusals_are_audited_without_passwords(self, boss: Caller, audited: list[Event]):
        name, group, new = fresh(), fresh("group"), "words that were never used before"
        await done(boss, "groups/new", name=group, rights=["download"])
        await done(boss, "groups/update", name=group, grant=["importer"], revoke=["download"])
        answers = [
            await boss.post_json("iam/users/new", username=name, password=PASSWORD, is_admin=True),
            await boss.post_json(
                "iam/users/update", username=name, password=new, is_admin=False, is_active=False, groups=[group]
            ),
            await boss.post_json("iam/users/update", username=name, is_active=True, is_admin=True),
            await boss.post_json("iam/users/update", username=name, password="short"),
            await boss.post_json("iam/users/revoke_tokens", username=name),
            await boss.post_json("iam/groups/delete", name=group),
        ]
        assert [one.status_code for one in answers] == [200, 200, 200, 400, 200, 200]
        events = {
            operation: [(one["subject"], one["outcome"]) for one in about(audited, operation)]
            for operation in ("user.create", "user.update", "user.enable", "user.disable", "user.unmake_admin",
                "user.make_admin", "user.set_password", "user.revoke_tokens", "group.add_member",
                "group.remove_member", "group.create", "group.grant", "group.ungrant", "group.delete")
        }  # fmt: skip
        assert events == {
            "user.create": [(name, "ok")],
            "user.update": [(name, "ok")],
            "user.enable": [(name, "ok")],
            "user.disable": [(name, "ok")],
            "user.unmake_admin": [(name, "ok")],
            "user.make_admin": [(name, "ok"), (name, "ok")],
            "user.set_password": [(name, "ok"), (name, "invalid_password")],
            "user.revoke_tokens": [(name, "ok")],
            "group.add_member": [(f"{group} {name}", "ok")],
            "group.remove_member": [(f"default {name}", "ok")],
            "group.create": [(group, "ok")],
            "group.grant": [(f"{group} download", "ok"), (f"{group} importer", "ok")],
            "group.ungrant": [(f"{group} download", "ok")],
            "group.delete": [(group, "ok")],
        }
        assert {one["user"] for one in audited if one["user"] != name} == {boss.username}
        for secret in (PASSWORD, new):
            assert secret not in str(audited)
            assert not any(secret in one.text for one in answers)


@pytest.mark.platform(153)
async def test_users_are_found_by_a_part_of_name_or_address(boss: Caller):
    mark = uuid4().hex[:8]
    ana = await person(boss, f"ana{mark}", email=f"{mark}.Mail@example.org")
    bob = await person(boss, "bob", first_name="Bob", last_name=f"Miller{mark}")

    async def found(typed: str) -> list[str]:
        body = (await boss.get("iam/get_users", filter=typed, limit=50)).json()
        assert body["count"] == len(body["users"])
        return [one["username"] for one in body["users"]]

    assert await found(mark.upper()) == [ana, bob]
    assert await found(f"{mark}.MAIL") == [ana]
    assert await found(f"b miller{mark}") == [bob]
    assert await found(f"{mark}%") == []
