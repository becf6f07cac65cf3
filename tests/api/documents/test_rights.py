"""Who may do what with a document (Contract documents 5)."""

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.api.documents.calls import STATEMENT, listed, read, save, share
from tests.api.driving import Api, Caller, sign_in, verdict
from tests.api.test_api_token_statements import leave_group, program_of

ROLES: Mapping[str, str] = {
    "owner": "manage",
    "administrator": "manage",
    "viewer": "view",
    "runner": "run",
    "editor": "edit",
    "group member": "run",
    "member with a higher own grant": "edit",
    "other": "",
}
"""The permission of each role; empty for those who do not see the document."""

ORDER = ("", "view", "run", "edit", "manage")

CALLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "get": ("view", {}),
    "versions": ("view", {}),
    "version": ("view", {}),
    "save": ("edit", {"document": {"uuid": "", "version": 1, "name": "changed"}}),
    "save notebook": ("edit", {"notebook": {"uuid": "", "name": "changed"}}),
    "save in another folder": ("manage", {"document": {"uuid": "", "version": 1, "folder": "/other"}}),
    "restore_version": ("edit", {"restore": 1, "version": 1}),
    "move": ("manage", {"folder": "/other"}),
    "share": ("manage", {"grants": [{"group": "analysts", "permission": "edit"}]}),
    "change_owner": ("manage", {}),
    "delete": ("manage", {}),
    "delete for ever": ("manage", {"skip_trash": True}),
    "restore": ("manage", {}),
}
"""The permission that each call needs, and its fields."""


async def called(user: Caller, call: str, uuid: str) -> httpx.Response:
    fields: dict[str, Any] = {**CALLS[call][1]}
    if call in {"get", "versions", "version"}:
        return await user.get(
            f"documents/{uuid}" + {"get": "", "versions": "/versions", "version": "/versions/1"}[call]
        )
    for name in ("document", "notebook"):
        if name in fields:
            return await user.post_json("documents/save", **{name: {**fields[name], "uuid": uuid}})
    if call == "change_owner":
        fields["to_user"] = user.username
    return await user.post_json(f"documents/{call.split(maxsplit=1)[0]}", uuid=uuid, **fields)


async def caller_in(api: Api, role: str, owner: Caller, uuid: str) -> Caller:
    """Return a caller in this role. Grants the permission that the role has."""
    group = f"g{uuid4().hex}"
    if role == "owner":
        return owner
    user = await api.user("role", admin=role == "administrator", groups=(group,))
    grants = {
        "viewer": [{"user": user.username, "permission": "view"}],
        "runner": [{"user": user.username, "permission": "run"}],
        "editor": [{"user": user.username, "permission": "edit"}],
        "group member": [{"group": group, "permission": "run"}],
        "member with a higher own grant": [
            {"user": user.username, "permission": "edit"},
            {"group": group, "permission": "view"},
        ],
    }.get(role, [])
    assert (await share(owner, uuid, *grants)).status_code == 200
    return user


@pytest.fixture
async def analysts(api: Api) -> None:
    await api.user("analyst", groups=("analysts",))


@pytest.mark.documents(10, 11)
@pytest.mark.parametrize("role", ROLES)
async def test_matrix(api: Api, ana: Caller, analysts: None, role: str, subtests: pytest.Subtests):
    for call, (needed, _) in CALLS.items():
        with subtests.test(call):
            uuid = (await save(ana, name="kept", statement=STATEMENT, connector="hive2"))["uuid"]
            user = await caller_in(api, role, ana, uuid)
            before = await read(ana, uuid)
            response = await called(user, call, uuid)
            if ORDER.index(ROLES[role]) >= ORDER.index(needed):
                assert response.status_code == 200, response.text
                continue
            code = "permission_denied" if ROLES[role] else "document_not_found"
            assert verdict(response) == (403 if ROLES[role] else 404, -1, code)
            assert await read(ana, uuid) == before
            if not ROLES[role] and "save" not in call:  # a save with an unknown uuid creates a document
                unknown = str(uuid4())
                other = await called(user, call, unknown)
                assert other.status_code == response.status_code
                assert other.text.replace(unknown, uuid) == response.text


@pytest.mark.documents(10)
@pytest.mark.parametrize("role", ROLES)
async def test_permission_and_grants_are_shown(api: Api, ana: Caller, role: str):
    uuid = (await save(ana, name="kept"))["uuid"]
    await share(ana, uuid, {"user": (await api.user("granted")).username, "permission": "run"})
    user = await caller_in(api, role, ana, uuid)
    entries = await listed(user)
    if not ROLES[role] or role == "administrator":  # administrators list only their own and shared documents
        assert entries == []
    else:
        assert [(one["uuid"], one["permission"]) for one in entries] == [(uuid, ROLES[role])]
    if ROLES[role]:
        shown = await read(user, uuid)
        assert (shown["permission"], bool(shown["grants"])) == (ROLES[role], ROLES[role] == "manage")


@pytest.mark.documents(12)
async def test_calls_need_the_scope_query(ana: Caller, analysts: None):
    program, _ = await program_of(ana, scopes=["files:read"])
    for call in CALLS:
        uuid = (await save(ana, name="kept"))["uuid"]
        response = await called(program, call, uuid)
        assert verdict(response) == (403, -1, "insufficient_scope"), call
    assert verdict(await program.get("documents")) == (403, -1, "insufficient_scope")
    reader, _ = await program_of(ana, scopes=["query"])
    assert len(await listed(reader)) == len(CALLS)


@pytest.mark.documents(12)
async def test_token_of_an_administrator_without_the_scope_admin_is_a_users_token(api: Api, ana: Caller):
    root = await api.user("root", admin=True)
    uuid = (await save(ana, name="kept"))["uuid"]
    plain, _ = await program_of(root, scopes=["query"])
    full, _ = await program_of(root, scopes=["query", "admin"])
    assert verdict(await plain.get(f"documents/{uuid}")) == (404, -1, "document_not_found")
    assert verdict(await plain.get("documents", all="true")) == (403, -1, "admin_required")
    assert (await read(full, uuid))["permission"] == "manage"


@pytest.mark.documents(12)
async def test_connector_restriction_hides_documents(ana: Caller, analysts: None):
    program, _ = await program_of(ana, connectors=["mysql"])
    mine = await save(ana, name="on mysql", connector="mysql")
    hidden = [await save(ana, name="on hive", connector="hive2"), await save(ana, name="on none")]
    assert [one["uuid"] for one in await listed(program)] == [mine["uuid"]]
    for one in hidden:
        for call in [call for call in CALLS if not call.startswith("save")]:
            response = await called(program, call, one["uuid"])
            assert verdict(response) == (404, -1, "document_not_found"), call
        document = {"uuid": one["uuid"], "version": 1, "connector": "mysql"}
        response = await program.post_json("documents/save", document=document)
        assert verdict(response) == (404, -1, "document_not_found")
        assert await read(ana, one["uuid"]) == one
    refused = await program.post_json("documents/save", document={"name": "x"})
    assert verdict(refused) == (400, -1, "invalid_parameter")
    refused = await program.post_json("documents/save", document={"name": "x", "connector": "hive2"})
    assert verdict(refused) == (404, -1, "dialect_not_found")
    moved = await program.post_json("documents/save", document={"uuid": mine["uuid"], "version": 1, "connector": ""})
    assert verdict(moved) == (400, -1, "invalid_parameter")
    assert (await save(program, name="x", connector="mysql"))["connector"] == "mysql"


@pytest.mark.documents(12)
async def test_connector_restriction_hides_former_versions(ana: Caller):
    program, _ = await program_of(ana, connectors=["mysql"])
    saved = await save(ana, name="kept", connector="hive2", statement="rows 1")
    uuid = saved["uuid"]
    changed = await save(ana, uuid=uuid, version=1, connector="mysql", statement="rows 2")
    versions = (await program.get(f"documents/{uuid}/versions")).json()["versions"]
    assert [one["version"] for one in versions] == [2]
    assert verdict(await program.get(f"documents/{uuid}/versions/1")) == (404, -1, "document_version_not_found")
    refused = await program.post_json("documents/restore_version", uuid=uuid, restore=1, version=2)
    assert verdict(refused) == (404, -1, "document_version_not_found")
    assert await read(ana, uuid) == changed
    assert len((await ana.get(f"documents/{uuid}/versions")).json()["versions"]) == 2


@pytest.mark.documents(13)
async def test_revoked_grants_are_gone_at_the_next_call(api: Api, ana: Caller):
    group = f"g{uuid4().hex}"
    bob = await api.user("bob", groups=(group,))
    uuid = (await save(ana, name="kept"))["uuid"]
    for grant in ({"user": bob.username}, {"group": group}):
        await share(ana, uuid, {**grant, "permission": "edit"})
        await share(ana, uuid, {**grant, "permission": "view"})
        assert (await read(bob, uuid))["permission"] == "view"
        shared = (await share(ana, uuid, {**grant, "permission": "none"})).json()["document"]
        assert shared["grants"] == []
        assert verdict(await bob.get(f"documents/{uuid}")) == (404, -1, "document_not_found")
    await share(ana, uuid, {"group": group, "permission": "view"})
    await leave_group(bob, group)
    assert verdict(await bob.get(f"documents/{uuid}")) == (404, -1, "document_not_found")


@pytest.mark.documents(10)
async def test_shares_are_all_or_none(api: Api, ana: Caller, bob: Caller):
    uuid = (await save(ana, name="kept"))["uuid"]
    for wrong, expected in (
        ({"user": "nobody-of-this-name", "permission": "view"}, (404, -1, "unknown_user")),
        ({"user": "not a name", "permission": "view"}, (404, -1, "unknown_user")),
        ({"group": "no group", "permission": "view"}, (404, -1, "unknown_group")),
        ({"user": ana.username, "permission": "view"}, (400, -1, "invalid_parameter")),
        ({"user": bob.username, "permission": "manage"}, (400, -1, "invalid_parameter")),
        ({"user": bob.username, "group": "no group", "permission": "view"}, (404, -1, "unknown_group")),
        ({"permission": "view"}, (400, -1, "invalid_parameter")),
        ({"user": bob.username}, (400, -1, "missing_parameter")),
    ):
        assert verdict(await share(ana, uuid, {"user": bob.username, "permission": "run"}, wrong)) == expected
    assert (await read(ana, uuid))["grants"] == []
    response = await ana.post(
        "documents/share", uuid=uuid, grants=f'[{{"user": "{bob.username}", "permission": "run"}}]'
    )
    assert response.json()["document"]["grants"] == [{"user": bob.username, "group": None, "permission": "run"}]


@pytest.mark.documents(10)
async def test_grants_are_limited(api: Api, ana: Caller):
    uuid = (await save(ana, name="kept"))["uuid"]
    groups = tuple(f"g{uuid4().hex}" for _ in range(101))
    await api.user("member", groups=groups)
    grants = [{"group": group, "permission": "view"} for group in groups]
    assert verdict(await share(ana, uuid, *grants)) == (400, -1, "invalid_parameter")
    assert len((await share(ana, uuid, *grants[:100])).json()["document"]["grants"]) == 100


@pytest.mark.documents(10)
async def test_editor_keeps_a_connector_that_only_the_owner_may_use(api: Api):
    ana = await sign_in(api, f"owner{uuid4().hex[:8]}", admin=False, groups=("analysts",))
    bob = await api.user("bob")
    saved = await save(ana, name="kept", connector="closed", statement="rows 1")
    await share(ana, saved["uuid"], {"user": bob.username, "permission": "edit"})
    changed = await save(bob, uuid=saved["uuid"], version=1, name="changed", connector="closed")
    assert (changed["connector"], changed["modified_by"], changed["owner"]) == ("closed", bob.username, ana.username)
    refused = await bob.post_json("documents/save", document={"name": "mine", "connector": "closed"})
    assert verdict(refused) == (404, -1, "dialect_not_found")


@pytest.mark.documents(18)
async def test_deleted_users_and_groups_take_documents_and_grants_along(api: Api, ana: Caller, bob: Caller):
    group = f"g{uuid4().hex}"
    await api.user("member", groups=(group,))
    kept, gone = (await save(ana, name="kept"))["uuid"], (await save(bob, name="gone"))["uuid"]
    await share(ana, kept, {"user": bob.username, "permission": "edit"}, {"group": group, "permission": "view"})
    await share(bob, gone, {"user": ana.username, "permission": "edit"})
    await api.database.execute("delete from users where username = $1", bob.username)
    await api.database.execute("delete from groups where name = $1", group)
    assert (await read(ana, kept))["grants"] == []
    assert verdict(await ana.get(f"documents/{gone}")) == (404, -1, "document_not_found")


@pytest.mark.documents(18)
async def test_users_are_deleted_while_their_documents_are_saved(api: Api, bob: Caller):
    ana = await api.user("ana")
    uuid = (await save(ana, name="x"))["uuid"]
    await share(ana, uuid, {"user": bob.username, "permission": "edit"})

    async def change(user: Caller, number: int) -> httpx.Response:
        return await user.post_json("documents/save", document={"uuid": uuid, "version": 1, "name": f"n{number}"})

    async def delete() -> None:
        await api.database.execute("delete from users where username = $1", ana.username)

    *answers, _ = await asyncio.gather(*(change(bob, number) for number in range(8)), delete())
    assert {one.status_code for one in answers if one is not None} <= {200, 404, 409}
