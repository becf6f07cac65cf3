"""Documents change their owner (Contract documents 3.6)."""

import asyncio
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.api.conftest import ApiOpener
from tests.api.documents.calls import STATEMENT, listed, read, save, share
from tests.api.driving import Api, Caller, verdict
from tests.api.test_api_token_statements import program_of
from tests.api.test_logs import Event, about, audited

__all__ = ["audited"]  # a fixture


async def give(user: Caller, to: Caller | str, **fields: Any) -> httpx.Response:
    name = to if isinstance(to, str) else to.username
    return await user.post_json("documents/change_owner", to_user=name, **fields)


async def given(user: Caller, to: Caller, **fields: Any) -> int:
    response = await give(user, to, **fields)
    assert response.status_code == 200, response.text
    return response.json()["changed"]


@pytest.mark.documents(26)
async def test_owner_gives_a_document_away(ana: Caller, bob: Caller):
    saved = await save(ana, name="kept", statement=STATEMENT, folder="/reports")
    uuid = saved["uuid"]
    await save(ana, uuid=uuid, version=1, name="Second")
    await share(ana, uuid, {"user": bob.username, "permission": "view"})
    assert await given(ana, bob, uuid=uuid) == 1
    found = await read(bob, uuid)
    assert (found["owner"], found["permission"], found["grants"]) == (bob.username, "manage", [])
    assert (found["version"], found["folder"], found["modified_by"]) == (2, "/reports", ana.username)
    assert len((await bob.get(f"documents/{uuid}/versions")).json()["versions"]) == 2
    assert verdict(await ana.get(f"documents/{uuid}")) == (404, -1, "document_not_found")
    assert (await listed(ana), [one["uuid"] for one in await listed(bob)]) == ([], [uuid])
    assert verdict(await give(ana, ana, uuid=uuid)) == (404, -1, "document_not_found")


@pytest.mark.documents(26)
@pytest.mark.parametrize("keep", ["view", "run", "edit"])
async def test_former_owner_keeps_a_permission(ana: Caller, bob: Caller, keep: str):
    uuid = (await save(ana, name="kept"))["uuid"]
    assert await given(ana, bob, uuid=uuid, keep=keep) == 1
    assert (await read(ana, uuid))["permission"] == keep
    assert (await read(bob, uuid))["grants"] == [{"user": ana.username, "group": None, "permission": keep}]


@pytest.mark.documents(26)
async def test_change_to_the_same_owner_changes_nothing(api: Api, ana: Caller, bob: Caller):
    uuid = (await save(ana, name="kept"))["uuid"]
    assert await given(ana, ana, uuid=uuid, keep="view") == 0
    assert (await read(ana, uuid))["grants"] == []
    root = await api.user("root", admin=True)
    assert await given(root, bob, from_user=ana.username) == 1
    assert await given(root, bob, from_user=ana.username) == 0


@pytest.mark.documents(27)
async def test_administrator_gives_all_documents_of_a_user_away(
    api: Api, ana: Caller, bob: Caller, audited: list[Event]
):
    root = await api.user("root", admin=True)
    kept = (await save(ana, name="kept"))["uuid"]
    trashed = (await save(ana, name="in the trash"))["uuid"]
    await ana.post_ok("documents/delete", uuid=trashed)
    theirs = (await save(bob, name="theirs"))["uuid"]
    assert await given(root, bob, from_user=ana.username) == 2
    assert {one["uuid"] for one in await listed(bob)} == {kept, theirs}
    assert [one["uuid"] for one in await listed(bob, trash="true")] == [trashed]
    assert await listed(ana) == await listed(ana, trash="true") == []
    [event] = about(audited, "document.change_owner")
    shown = {name: event[name] for name in ("user", "subject_user", "former_owner", "documents", "outcome")}
    names = {"user": root.username, "subject_user": bob.username, "former_owner": ana.username}
    assert shown == {**names, "documents": 2, "outcome": "ok"}
    await api.database.execute("delete from users where username = $1", ana.username)
    assert (await read(bob, kept))["owner"] == bob.username


@pytest.mark.documents(27)
async def test_users_give_all_their_own_documents_away_but_not_those_of_others(ana: Caller, bob: Caller):
    uuid = (await save(ana, name="kept"))["uuid"]
    for name in (ana.username, "nobody-of-this-name"):
        assert verdict(await give(bob, bob, from_user=name)) == (403, -1, "admin_required")
    assert (await read(ana, uuid))["owner"] == ana.username
    assert await given(ana, bob, from_user=ana.username.upper()) == 1


@pytest.mark.documents(26)
async def test_refusals_change_nothing(api: Api, ana: Caller, bob: Caller, audited: list[Event]):
    uuid = (await save(ana, name="kept"))["uuid"]
    root = await api.user("root", admin=True)
    for user, to, fields, expected in (
        (ana, "nobody-of-this-name", {"uuid": uuid}, (404, -1, "unknown_user")),
        (ana, "not a name", {"uuid": uuid}, (404, -1, "unknown_user")),
        (root, bob, {"from_user": "nobody-of-this-name"}, (404, -1, "unknown_user")),
        (ana, bob, {"uuid": str(uuid4())}, (404, -1, "document_not_found")),
        (ana, bob, {}, (400, -1, "missing_parameter")),
        (ana, bob, {"uuid": uuid, "from_user": ana.username}, (400, -1, "conflicting_parameters")),
        (ana, bob, {"uuid": uuid, "keep": "manage"}, (400, -1, "invalid_parameter")),
    ):
        assert verdict(await give(user, to, **fields)) == expected, fields
    assert (await read(ana, uuid))["owner"] == ana.username
    await ana.post_ok("documents/delete", uuid=uuid)
    assert verdict(await give(ana, bob, uuid=uuid)) == (409, -1, "document_in_trash")
    outcomes = [one["outcome"] for one in about(audited, "document.change_owner")]
    assert outcomes == ["unknown_user"] * 3 + ["document_not_found", "document_in_trash"]


@pytest.mark.documents(12, 27)
async def test_restricted_token_gives_away_only_what_it_reaches(ana: Caller, bob: Caller):
    program, _ = await program_of(ana, connectors=["mysql"])
    mine, other = [(await save(ana, name=key, connector=key))["uuid"] for key in ("mysql", "hive2")]
    assert await given(program, bob, from_user=ana.username) == 1
    assert [(await read(user, one))["owner"] for user, one in ((bob, mine), (ana, other))] == [
        bob.username,
        ana.username,
    ]


@pytest.mark.documents(28)
async def test_limits_of_the_new_owner_hold(small_api: ApiOpener):
    async with small_api(documents={"max_per_user": 4, "max_bytes_per_user": 1000}) as api:
        ana, bob, root = await api.user("ana"), await api.user("bob"), await api.user("root", admin=True)
        for number in range(3):
            await save(ana, name=str(number))
        assert verdict(await give(ana, bob, from_user=ana.username)) == (429, -1, "too_many_documents")
        assert await listed(bob) == []
        assert await given(root, bob, from_user=ana.username) == 3
        for number in range(2):
            await save(ana, name=str(number))
        assert verdict(await give(root, bob, from_user=ana.username)) == (429, -1, "too_many_documents")
        carl = await api.user("carl")
        large = (await save(ana, name="large", statement="x" * 600))["uuid"]
        assert verdict(await give(ana, carl, uuid=large)) == (429, -1, "quota_exceeded")
        assert (await read(ana, large))["owner"] == ana.username
        assert await given(root, carl, uuid=large) == 1
        other = (await save(ana, name="other", statement="x" * 600))["uuid"]
        assert verdict(await give(root, carl, uuid=other)) == (429, -1, "quota_exceeded")


@pytest.mark.documents(10)
async def test_kept_permission_counts_as_a_grant(api: Api, ana: Caller, bob: Caller):
    uuid = (await save(ana, name="kept"))["uuid"]
    groups = tuple(f"g{uuid4().hex}" for _ in range(100))
    await api.user("member", groups=groups)
    await share(ana, uuid, *({"group": group, "permission": "view"} for group in groups))
    assert verdict(await give(ana, bob, uuid=uuid, keep="view")) == (400, -1, "invalid_parameter")
    assert await given(ana, bob, uuid=uuid) == 1


@pytest.mark.documents(29)
async def test_concurrent_changes_of_all_kinds_do_not_deadlock(api: Api, ana: Caller, bob: Caller):
    """Each call locks the owners first and then the document, so none of them can wait for each other."""
    uuids = [(await save(ana, name=f"document {number}"))["uuid"] for number in range(2)]
    carl = await api.user("carl")
    for uuid in uuids:
        edit = [{"user": user.username, "permission": "edit"} for user in (bob, carl)]
        assert (await share(ana, uuid, *edit)).status_code == 200
    root = await api.user("root", admin=True)

    async def all_kinds(uuid: str, number: int) -> list[httpx.Response]:
        grant = [{"user": carl.username, "permission": "edit"}]
        document = {"uuid": uuid, "version": 1, "name": f"name {number}"}
        return await asyncio.gather(
            *(user.post_json("documents/save", document=document) for user in (ana, bob, carl)),
            *(root.post_json(f"documents/{call}", uuid=uuid) for call in ("delete", "restore")),
            root.post_json("documents/move", uuid=uuid, folder=f"/{number}"),
            root.post_json("documents/share", uuid=uuid, grants=grant),
            root.post_json("documents/restore_version", uuid=uuid, restore=1, version=1),
            give(root, bob, uuid=uuid, keep="edit"),
            give(root, ana, uuid=uuid, keep="edit"),
            give(root, ana, from_user=bob.username, keep="edit"),
            give(root, bob, from_user=ana.username, keep="edit"),
        )

    answers = await asyncio.gather(*(all_kinds(uuid, number) for number in range(3) for uuid in uuids))
    refused = {(one.status_code, one.json().get("code")) for found in answers for one in found}
    assert refused <= {(200, None), (404, "document_not_found")} | {
        (409, code) for code in ("version_conflict", "document_in_trash")
    } | {(400, "invalid_parameter"), (404, "document_version_not_found")}, refused
    owners = [(await read(root, uuid))["owner"] for uuid in uuids]
    assert set(owners) <= {ana.username, bob.username}
