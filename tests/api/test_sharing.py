"""Results that their owners grant to other users and groups (Contract sharing)."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from tests.api.conftest import ApiOpener, make_settings
from tests.api.driving import Api, Caller, open_api, verdict
from tests.api.test_api_token_statements import leave_group, program_of
from tests.api.test_result_tables import user_of
from tests.api.token.logins import accounts
from tests.fixtures.database import new_database
from tests.fixtures.logs import audit_event_handler
from tests.hostile.test_lasting_calls import taken
from tests.refusals import raises_code

from queryserver.identity.users import Groups
from queryserver.platform.embedded.postgres import EmbeddedPostgres
from queryserver.platform.logs import FIELDS, MAX_LINE_CHARACTERS
from queryserver.platform.settings.desktop import AuthSettings
from queryserver.platform.settings.editor import InterpreterSettings
from queryserver.statements import downloads
from queryserver.statements.grant_repository import FOREIGN, MAX_GRANTS_PER_RESULT, RECEIVED, GrantRecords

_NOT_FOUND = (404, 2, "operation_not_found")
_ANALYSTS = "analysts"
_AUDITED = ("user", "outcome", "operation_id", "to_users", "to_groups")


@pytest.fixture(scope="module")
async def instances(
    tmp_path_factory: pytest.TempPathFactory, postgres: EmbeddedPostgres, migrated_template: str, users_url: str
) -> AsyncIterator[tuple[Api, Api]]:
    """Two servers with one result store and a database of their own, because servers that share a database run each
    other's statements.
    """
    async for dsn in new_database(postgres, template=migrated_template):
        settings = make_settings(tmp_path_factory.mktemp("sharing"), dsn, users_url, desktop={"auth": {"recheck_s": 1}})
        table = settings.notebook.interpreters
        table["open"] = InterpreterSettings(interface="fake", groups=(_ANALYSTS,), share_results="anyone")
        table["never"] = InterpreterSettings(interface="fake", share_results="never")
        table["members"] = InterpreterSettings(interface="fake", groups=(_ANALYSTS,))
        async with open_api(settings) as one, open_api(settings) as other:
            yield one, other


@pytest.fixture
def api(instances: tuple[Api, Api]) -> Api:
    return instances[0]


@pytest.fixture
async def team(api: Api) -> tuple[str, Caller]:
    """A new group, and a member."""
    name = f"team-{uuid4()}"
    return name, await api.user("eva", groups=(name,))


async def result_of(caller: Caller, statement: str = "rows 5", dialect: str = "mysql", **more: Any) -> str:
    return (await caller.run(dialect, statement, **more))["history_uuid"]


async def share(owner: Caller, operation: str, *users: Caller, **fields: Any) -> dict[str, Any]:
    response = await owner.post_json(
        "editor/share_result", operationId=operation, users=[one.username for one in users], **fields
    )
    assert response.status_code == 200, response.text
    return response.json()


async def refusal(owner: Caller, operation: str, *users: Caller, **fields: Any) -> tuple[tuple[int, int, str], str]:
    names = [one.username for one in users]
    response = await owner.post_json("editor/share_result", operationId=operation, **{"users": names, **fields})
    return verdict(response), response.json()["message"]


async def rows_of(caller: Caller, operation: str, **fields: Any) -> httpx.Response:
    return await caller.post("editor/fetch_result_data", operationId=operation, **{"start_row": 0, **fields})


async def may_read(caller: Caller, operation: str) -> bool:
    """Return whether the user may read, after checking that all calls that read agree."""
    answers = [
        await rows_of(caller, operation),
        await caller.post("editor/check_status", operationId=operation),
        await caller.post("editor/fetch_result_size", operationId=operation),
        await caller.get(f"editor/download/{operation}"),
        await caller.get(f"editor/results/{operation}"),
    ]
    verdicts = {
        one.status_code == 200 and (one.headers["content-type"][:8] == "text/csv" or one.json()["status"] == 0)
        for one in answers
    }
    assert len(verdicts) == 1, [one.text for one in answers]
    if not verdicts <= {True}:
        assert {verdict(one) for one in answers} == {_NOT_FOUND}
    return verdicts == {True}


# The rights matrix

_POST, _GET = "POST", "GET"
_READ = {
    "check_status": (_POST, "editor/check_status"),
    "data": (_POST, "editor/fetch_result_data"),
    "metadata": (_POST, "editor/fetch_result_metadata"),
    "size": (_POST, "editor/fetch_result_size"),
    "download": (_GET, "editor/download/{}"),
    "open": (_GET, "editor/results/{}"),
}
_FOLLOW = {
    "logs": (_POST, "editor/get_logs"),
    "watch": (_POST, "editor/watch/{}"),
    "events": (_GET, "editor/events/{}"),
    "shares": (_GET, "editor/shares/{}"),
    "revoke": (_POST, "editor/revoke_share"),
    "cancel": (_POST, "editor/cancel_statement"),
}
_OWN = {"share": (_POST, "editor/share_result"), "continue": (_POST, "editor/execute/mysql")}
_CALLS = {**_READ, **_FOLLOW, **_OWN, "close": (_POST, "editor/close_statement")}
_MAY = {
    "owner": set(_CALLS),
    "granted": set(_READ),
    "member": set(_READ),
    "granted administrator": {*_READ, *_FOLLOW, "close"},
    "administrator": {"check_status", *_FOLLOW, "close"},
    "other": set[str](),
    "expired": set[str](),
    "other member": set[str](),
}


async def outcome(caller: Caller, call: str, operation: str) -> tuple[int, Any]:
    """Make a call for the operation; return the HTTP status and the code."""
    method, path = _CALLS[call]
    fields: dict[str, Any] = {"operationId": operation}
    if call == "data":
        fields["start_row"] = 0
    elif call == "share":
        fields["users"] = caller.api.services.settings.desktop.auth.default_user_group
    if method == _POST:
        response = await caller.post(path.format(operation), **fields)
    else:
        response = await caller.get(path.format(operation))
    is_json = response.headers["content-type"].startswith("application/json")
    return response.status_code, response.json().get("code") if is_json else None


@dataclass(frozen=True, slots=True)
class Roles:
    callers: dict[str, Caller]
    operation: str


@pytest.fixture(scope="module")
async def roles(instances: tuple[Api, Api]) -> Roles:
    """A shared result, and a caller in each role."""
    api = instances[0]
    team, former = f"team-{uuid4()}", f"team-{uuid4()}"
    callers = {
        "owner": await api.user("ana"),
        "granted": await api.user("bob"),
        "member": await api.user("eva", groups=(team,)),
        "granted administrator": await api.user("boss", admin=True),
        "administrator": await api.user("boss", admin=True),
        "other": await api.user("tom"),
        "expired": await api.user("max"),
        "other member": await api.user("kim", groups=(former,)),
    }
    owner = callers["owner"]
    operation = await result_of(owner)
    granted = [callers[name] for name in ("granted", "granted administrator", "expired")]
    await share(owner, operation, *granted, groups=[team])
    await api.database.execute(
        "update result_grants set valid_until = now() where user_id = (select id from users where username = $1)",
        callers["expired"].username,
    )
    return Roles(callers, operation)


@pytest.mark.sharing(1)
@pytest.mark.parametrize("role", list(_MAY))
@pytest.mark.parametrize("call", [call for call in _CALLS if call not in {"close", "revoke", "cancel"}])
async def test_each_role_may_only_its_calls(instances: tuple[Api, Api], roles: Roles, role: str, call: str) -> None:
    for instance in instances:
        caller = replace(roles.callers[role], api=instance)
        status, code = await outcome(caller, call, roles.operation)
        if call in _MAY[role]:
            expected = {"share": "unknown_user", "continue": "no_more_statements"}.get(call)
            assert (code or None) == expected, (status, code)
        else:
            assert (status, code) == (404, "operation_not_found")


@pytest.mark.sharing(1)
@pytest.mark.parametrize("call", ["revoke", "cancel", "close"])
@pytest.mark.parametrize("role", list(_MAY))
async def test_changes_are_for_owners_and_administrators(api: Api, roles: Roles, role: str, call: str) -> None:
    owner, caller = roles.callers["owner"], roles.callers[role]
    operation = await result_of(owner)
    if role in {"granted", "granted administrator"}:
        await share(owner, operation, caller)
    status, code = await outcome(caller, call, operation)
    if call in _MAY[role]:
        assert (status, code) == (200, None)
        return
    assert (status, code) == (404, "operation_not_found")
    assert (await owner.page(operation, start_row=0))["rows_total"] == 5


@pytest.mark.sharing(2)
@pytest.mark.parametrize("scope", ["query", "files:read", "files:write", "import", "admin"])
@pytest.mark.parametrize("role", ["owner", "granted", "member", "granted administrator", "administrator", "other"])
async def test_api_tokens_need_the_scope_query(roles: Roles, role: str, scope: str) -> None:
    caller = roles.callers[role]
    if scope == "admin" and "administrator" not in role:
        return
    program, _ = await program_of(caller, scopes=[scope])
    for call in _CALLS.keys() - {"close", "revoke", "cancel"}:
        status, code = await outcome(program, call, roles.operation)
        if scope != "query":
            assert (status, code) == (403, "insufficient_scope"), call
        # Without the scope `admin`, the token of an administrator may only what the user may as an ordinary user.
        elif call in (set() if role == "administrator" else _READ.keys() if "granted" in role else _MAY[role]):
            assert code in {None, "unknown_user", "no_more_statements"}, call
        else:
            assert (status, code) == (404, "operation_not_found"), call
    listing = await program.get("editor/shared_with_me")
    assert listing.status_code == (200 if scope == "query" else 403)


@pytest.mark.sharing(3)
async def test_token_without_the_connector_reads_nothing(ana: Caller, bob: Caller) -> None:
    operation = await result_of(ana)
    await share(ana, operation, bob)
    narrow, _ = await program_of(bob, connectors=["duckdb"])
    wide, _ = await program_of(bob, connectors=["mysql"])
    assert not await may_read(narrow, operation)
    assert await may_read(wide, operation)
    assert (await narrow.get("editor/shared_with_me")).json()["count"] == 0


# Reading


@pytest.mark.sharing(4)
async def test_reading_never_moves_the_cursor_of_the_owner(ana: Caller, bob: Caller) -> None:
    operation = await result_of(ana, "rows 9")
    await share(ana, operation, bob)
    assert (await ana.page(operation, rows=4))["start_row"] == 0
    assert [row[0] for row in (await bob.page(operation, start_row=2, rows=3))["data"]] == [2, 3, 4]
    assert len((await bob.page(operation, startOver="true", rows=100))["data"]) == 9
    assert verdict(await bob.post("editor/fetch_result_data", operationId=operation)) == (400, -1, "missing_parameter")
    assert [row[0] for row in (await ana.page(operation, rows=100))["data"]] == [4, 5, 6, 7, 8]


@pytest.mark.sharing(14)
@pytest.mark.parametrize("statement", ["rows 5", "rows 9000"])
async def test_only_the_owner_prolongs_how_long_the_result_is_kept(
    api: Api, ana: Caller, bob: Caller, statement: str
) -> None:
    operation = await result_of(ana, statement)
    await share(ana, operation, bob)
    others = [bob, await api.user("tom")]
    unused = "update statements set last_used_at = now() - interval '2 d' where id = $1"
    was_used = "select last_used_at > now() - interval '1 d' from statements where id = $1"

    async def uses(caller: Caller) -> list[bool]:
        found = []
        for reading in (
            rows_of(caller, operation),
            caller.post("editor/fetch_result_metadata", operationId=operation),
            caller.get(f"editor/download/{operation}"),
            caller.get(f"editor/download/{operation}", format="arrow"),
            caller.run("duckdb", f"SELECT count(*) FROM 'result://{operation}'"),
        ):
            await api.database.execute(unused, UUID(operation))
            await reading
            found.append(await api.database.value(was_used, UUID(operation)))
        return found

    assert await uses(ana) == [True] * 5
    for caller in others:
        assert await uses(caller) == [False] * 5


@pytest.mark.sharing(5)
async def test_statement_and_messages_of_the_engine_are_not_shown(ana: Caller, bob: Caller) -> None:
    operation = (await ana.execute("mysql", "sleep 600 then rows 7771"))["history_uuid"]
    await share(ana, operation, bob)
    assert (await bob.on(operation, "check_status"))["query_status"]["state"] in {"waiting", "running"}
    waiting = asyncio.create_task(bob.on(operation, "check_status", wait=60))
    await ana.on(operation, "cancel_statement")
    for body in (await waiting, await bob.on(operation, "check_status"), (await rows_of(bob, operation)).json()):
        assert (body["status"], body["code"]) == (1, "canceled")
        assert body["message"] == body["query_status"]["message"] == "The statement ended without a result."
        assert body["handle"]["statement"] == body["handle"]["guid"] == body["handle"]["secret"] == ""
        assert "7771" not in str(body)
        assert ana.username not in str(body)


@pytest.mark.sharing(5)
async def test_end_of_a_truncated_result_is_shown_without_the_statement(ana: Caller, bob: Caller, small_api: ApiOpener):
    del ana, bob
    async with small_api(result_max_rows=3) as api:
        owner, reader = await api.user("ana"), await api.user("bob")
        operation = await result_of(owner, "rows 9")
        await share(owner, operation, reader)
        body = (await rows_of(reader, operation, start_row=3)).json()
        assert (body["status"], body["code"], body["handle"]["statement"]) == (1, "truncated", "")


@pytest.mark.sharing(6)
async def test_scripts_are_granted_with_all_their_statements(ana: Caller, bob: Caller) -> None:
    operation = await result_of(ana, "rows 2; rows 3; fail with a secret", run_all="true")
    await share(ana, operation, bob)
    body = await bob.on(operation, "check_status")
    assert [one["rows"] for one in body["query_status"]["statements"]] == [2, 3, 0]
    assert body["query_status"]["statements"][2]["message"] == "The statement ended without a result."
    assert body["message"] == "The statement ended without a result."
    assert "secret" not in str(body).replace("'secret': ''", "")
    for number in (0, 1):
        page = await bob.page(operation, start_row=0, statement_id=number)
        assert page["rows_total"] == number + 2
        part = body["query_status"]["statements"][number]["operationId"]
        assert (await bob.page(part, start_row=0))["rows_total"] == number + 2
    assert (await bob.get(f"editor/download/{operation}", statement_id=1)).status_code == 200


@pytest.mark.sharing(6)
async def test_link_of_a_script_shows_the_columns_of_its_result(ana: Caller, bob: Caller) -> None:
    operation = await result_of(ana, "rows 2; SELECT 'Hello World!'", run_all="true")
    await share(ana, operation, bob)
    expected = (await ana.page(operation, start_row=0))["meta"]
    for caller in (ana, bob):
        shown = (await caller.get(f"editor/results/{operation}")).json()
        assert [one["name"] for one in shown["meta"]] == [one["name"] for one in expected] != []


@pytest.mark.sharing(7)
async def test_shared_result_is_a_table_for_statements(ana: Caller, bob: Caller) -> None:
    operation = await result_of(ana, "rows 50")
    query = f"SELECT count(*) FROM 'result://{operation}'"
    assert (await bob.run("duckdb", query))["code"] == "operation_not_found"
    await share(ana, operation, bob)
    own = await result_of(bob, query, "duckdb")
    assert (await bob.page(own, start_row=0))["data"] == [[50]]
    await ana.on(operation, "revoke_share")
    assert (await bob.run("duckdb", query))["code"] == "operation_not_found"


@pytest.mark.sharing(7)
@pytest.mark.parametrize("statement", ["rows 5", "rows 9000"])
async def test_open_table_is_not_read_after_the_grant_has_ended(ana: Caller, bob: Caller, statement: str) -> None:
    operation = await result_of(ana, statement)
    await share(ana, operation, bob)
    opener = ana.api.running.statements.external_data.open_result
    assert opener is not None
    async with opener(await user_of(bob), operation) as theirs, opener(await user_of(ana), operation) as own:
        assert theirs.sources.connectors == {FOREIGN}
        assert own.sources.connectors == {"mysql"}
        content = await theirs.read(0, 0, 1000)
        await ana.on(operation, "revoke_share")
        for reading in (theirs.read(0, 0, 1000), theirs.descriptor(0)):
            with raises_code("operation_not_found"):
                await reading
        assert await own.read(0, 0, 1000) == content


@pytest.mark.sharing(7)
@pytest.mark.parametrize("loses", ["group", "account"])
async def test_open_table_is_not_read_after_its_reader_has_lost_rights(
    api: Api, monkeypatch: pytest.MonkeyPatch, loses: str
) -> None:
    ana, eva = await api.user("ana", groups=(_ANALYSTS,)), await api.user("eva", groups=(_ANALYSTS,))
    operation = await result_of(ana, dialect="members")
    await share(ana, operation, eva)
    if loses == "account":  # of the owner's, which no grant would end
        ana, eva = eva, ana
    opener = api.running.statements.external_data.open_result
    assert opener is not None
    user = await user_of(eva)
    now = time.monotonic()
    monkeypatch.setattr(downloads, "time", SimpleNamespace(monotonic=lambda: now))
    async with opener(user, operation) as table:
        await table.read(0, 0, 1000)
        if loses == "group":
            await leave_group(eva, _ANALYSTS)
        else:
            await accounts(api).disable(eva.username)
        now += 61
        for reading in (table.read(0, 0, 1000), table.descriptor(0)):
            with raises_code("operation_not_found"):
                await reading


@pytest.mark.sharing(8)
async def test_downloads_need_the_right_to_download(api: Api, ana: Caller, bob: Caller) -> None:
    operation = await result_of(ana)
    await share(ana, operation, bob)
    await Groups(api.database, AuthSettings()).remove(bob.username, "default")
    assert verdict(await bob.get(f"editor/download/{operation}"))[2] == "download_disabled"
    assert (await rows_of(bob, operation)).status_code == 200


@pytest.mark.sharing(9)
async def test_shared_results_are_not_in_the_history(ana: Caller, bob: Caller) -> None:
    operation = await result_of(ana)
    await share(ana, operation, bob)
    assert await may_read(bob, operation)
    assert (await bob.history())["count"] == 0


@pytest.mark.sharing(10)
async def test_owner_and_administrator_need_no_query_of_grants(
    api: Api, ana: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(GrantRecords, "find", find)
    operation = await result_of(ana)
    assert await may_read(ana, operation)
    boss = await api.user("boss", admin=True)
    assert (await boss.on(operation, "check_status"))["status"] == 0


# Ends of grants


@pytest.mark.sharing(11)
async def test_unknown_foreign_expired_and_revoked_look_alike(api: Api, ana: Caller, bob: Caller) -> None:
    foreign, expired, revoked, unknown = await result_of(ana), await result_of(ana), await result_of(ana), str(uuid4())
    await share(ana, expired, bob)
    await share(ana, revoked, bob)
    await api.database.execute("update result_grants set valid_until = now() where statement_id = $1", UUID(expired))
    assert (await ana.on(revoked, "revoke_share", users=bob.username))["changed"] == 1
    for call, (method, path) in _CALLS.items():
        texts = set[str]()
        for operation in (foreign, expired, revoked, unknown):
            fields = (
                {"data": {"operationId": operation, "users": ana.username, "start_row": 0}} if method == _POST else {}
            )
            response = await bob.send(method, path.format(operation), **fields)
            texts.add(f"{response.status_code} {response.text.replace(operation, 'ID')}")
        assert len(texts) == 1, (call, texts)


@pytest.mark.sharing(12)
async def test_grant_ends_in_all_instances_at_once(instances: tuple[Api, Api], ana: Caller, bob: Caller) -> None:
    one, other = (replace(bob, api=instance) for instance in instances)
    operation = await result_of(ana)
    assert not await may_read(other, operation)
    await share(ana, operation, bob)
    assert await may_read(one, operation)
    assert await may_read(other, operation)
    await replace(ana, api=instances[1]).on(operation, "revoke_share")
    assert not await may_read(one, operation)
    assert not await may_read(other, operation)


@pytest.mark.sharing(13)
async def test_members_read_only_as_long_as_they_are_members(api: Api, ana: Caller, team: tuple[str, Caller]) -> None:
    group, eva = team
    operation = await result_of(ana)
    await share(ana, operation, groups=[group])
    assert await may_read(eva, operation)
    await leave_group(eva, group)
    assert not await may_read(eva, operation)
    late = await api.user("late", groups=(group,))
    assert await may_read(late, operation)
    await api.database.execute("delete from groups where name = $1", group)
    assert not await may_read(late, operation)
    assert (await ana.get(f"editor/shares/{operation}")).json()["shares"] == []


@pytest.mark.sharing(13)
async def test_disabled_users_lose_their_grants_for_good(api: Api, ana: Caller, bob: Caller) -> None:
    operation = await result_of(ana)
    await share(ana, operation, bob)
    await accounts(api).disable(bob.username)
    await accounts(api).enable(bob.username)
    assert (await ana.get(f"editor/shares/{operation}")).json()["shares"] == []


@pytest.mark.sharing(13)
async def test_grants_of_a_disabled_owner_are_suspended(api: Api, ana: Caller, bob: Caller) -> None:
    operation = await result_of(ana)
    await share(ana, operation, bob)
    await accounts(api).disable(ana.username)
    assert not await may_read(bob, operation)
    assert (await bob.get("editor/shared_with_me")).json()["count"] == 0


@pytest.mark.sharing(14)
async def test_closed_result_ends_for_all_and_the_clean_up_removes_its_grants(
    api: Api, ana: Caller, bob: Caller
) -> None:
    closed, expired, kept = [await result_of(ana) for _ in range(3)]
    for operation in (closed, expired, kept):
        await share(ana, operation, bob)
    await ana.on(closed, "close_statement")
    await api.database.execute(
        "update statements set expires_at = now() - interval '1 second' where id = $1", UUID(expired)
    )
    await api.services.statements.retention.expire()
    for operation, code in ((closed, "closed"), (expired, "expired")):
        body = (await rows_of(bob, operation)).json()
        assert (body["status"], body["code"]) == (-3, code)
        assert body["handle"]["statement"] == ""
    assert [one["operationId"] for one in (await bob.get("editor/shared_with_me")).json()["results"]] == [kept]
    await api.services.statements.retention.clean_up()
    assert await may_read(bob, kept)
    assert not await may_read(bob, closed)
    assert not await may_read(bob, expired)


@pytest.mark.sharing(15)
async def test_running_download_ends_with_its_grant(
    api: Api, ana: Caller, bob: Caller, team: tuple[str, Caller]
) -> None:
    group, eva = team
    operation = await result_of(ana, "rows 200000 wide 50", limit=200_000)
    await share(ana, operation, bob, groups=[group])

    async def revoke() -> None:
        await ana.on(operation, "revoke_share", users=bob.username)
        await asyncio.sleep(1.1)  # the interval `recheck_s`

    path, size = f"editor/download/{operation}?format=csv", 50 * 200_000
    read, has_ended = await taken(api, eva, path, lambda: asyncio.sleep(1.1))
    assert (read > size, has_ended) == (True, True)
    read, has_ended = await taken(api, bob, path, revoke)
    assert (read < size, has_ended) == (True, False)


@pytest.mark.sharing(15)
async def test_waiting_call_ends_with_its_grant(ana: Caller, bob: Caller) -> None:
    operation = (await ana.execute("mysql", "sleep 600"))["history_uuid"]
    await share(ana, operation, bob)
    waiting = asyncio.create_task(bob.post("editor/check_status", operationId=operation, wait=60))
    await ana.on(operation, "revoke_share")
    assert verdict(await waiting) == _NOT_FOUND
    await ana.on(operation, "cancel_statement")


# Connectors


@pytest.mark.sharing(16)
async def test_results_of_engines_that_know_the_caller_are_not_shared(ana: Caller, bob: Caller) -> None:
    connectors = ana.api.services.connectors
    assert {key: connectors.result_sharing(key).value for key in ("login", "never", "mysql", "open", "gone")} == {
        "login": "never",
        "never": "never",
        "mysql": "users_of_connector",
        "open": "anyone",
        "gone": "never",
    }
    operation = await result_of(ana, dialect="never")
    found, message = await refusal(ana, operation, bob)
    assert found == (403, -1, "sharing_not_allowed")
    assert message.startswith("Results of this connector cannot be shared: its setting share_results is never")


@pytest.mark.sharing(16)
async def test_readers_need_the_connector_when_granted_and_when_reading(api: Api) -> None:
    ana, eva = await api.user("ana", groups=(_ANALYSTS,)), await api.user("eva", groups=(_ANALYSTS,))
    tom = await api.user("tom", groups=(f"other-{ana.username}",))
    operation = await result_of(ana, dialect="members")
    found, message = await refusal(ana, operation, eva, tom)
    assert (found, tom.username in message) == ((403, -1, "sharing_not_allowed"), True)
    await share(ana, operation, eva, groups=[f"other-{ana.username}"])
    assert await may_read(eva, operation)
    assert not await may_read(tom, operation), "the group may be named, but its member lacks the connector"
    await leave_group(eva, _ANALYSTS)
    assert not await may_read(eva, operation)
    assert (await eva.get("editor/shared_with_me")).json()["count"] == 0


@pytest.mark.sharing(16)
async def test_connector_may_permit_anyone(api: Api, bob: Caller) -> None:
    ana = await api.user("ana", groups=(_ANALYSTS,))
    operation = await result_of(ana, dialect="open")
    assert (await share(ana, operation, bob))["share_results"] == "anyone"
    assert await may_read(bob, operation)
    assert (await bob.get("editor/shared_with_me")).json()["count"] == 1
    assert (await bob.post("editor/execute/open", statement="rows 1")).status_code == 404


@pytest.mark.sharing(17)
async def test_sharing_can_be_disabled(small_api: ApiOpener) -> None:
    async with small_api() as api:
        ana, bob = await api.user("ana"), await api.user("bob")
        operation = await result_of(ana)
        await share(ana, operation, bob)
        assert (await ana.post_ok("get_config"))["hue_config"]["enable_sharing"] is True
    async with small_api(desktop={"enable_sharing": False}) as api:
        ana, bob = replace(ana, api=api), replace(bob, api=api)
        assert not await may_read(bob, operation)
        assert (await bob.get("editor/shared_with_me")).json()["count"] == 0
        assert (await refusal(ana, operation, bob))[0] == (403, -1, "sharing_disabled")
        assert (await ana.on(operation, "revoke_share"))["changed"] == 1
        assert (await ana.post_ok("get_config"))["hue_config"]["enable_sharing"] is False


# The calls


@pytest.mark.sharing(18)
async def test_grants_are_listed_changed_and_revoked(ana: Caller, bob: Caller, team: tuple[str, Caller]) -> None:
    group, _ = team
    operation = await result_of(ana)
    until_time = (datetime.now(UTC) + timedelta(days=3)).replace(microsecond=0)
    body = await share(ana, operation, bob, groups=[group], until=until_time.isoformat(), title="May")
    assert (body["changed"], body["link"]) == (2, f"/api/v1/editor/results/{operation}")
    assert [(one["user"], one["group"], one["title"]) for one in body["shares"]] == [
        (bob.username, None, "May"),
        (None, group, "May"),
    ]
    assert {one["until"] for one in body["shares"]} == {until_time.isoformat().replace("+00:00", "Z")}
    assert body["expires_at"] == (await ana.on(operation, "check_status"))["query_status"]["expires_at"]
    opened = (await bob.get(body["link"])).json()
    assert (opened["shared_by"], opened["title"], opened["until"]) == (ana.username, "May", body["shares"][0]["until"])
    assert [column["name"] for column in opened["meta"]] == ["n"]
    assert (await ana.get(body["link"])).json()["until"] is None
    body = await share(ana, operation, bob, title="June")
    assert [one["title"] for one in body["shares"]] == ["June", "May"]
    listed = (await bob.get("editor/shared_with_me")).json()
    [entry] = listed["results"]
    assert (listed["count"], entry["operationId"], entry["title"]) == (1, operation, "June")
    assert (entry["shared_by"], entry["type"], entry["rows"]) == (ana.username, "mysql", 5)
    assert (await ana.on(operation, "revoke_share", users=bob.username))["changed"] == 1
    assert (await ana.on(operation, "revoke_share", users=bob.username))["changed"] == 0
    assert [one["group"] for one in (await ana.get(f"editor/shares/{operation}")).json()["shares"]] == [group]


@pytest.mark.sharing(18)
async def test_shared_results_are_paged_newest_first(ana: Caller, bob: Caller) -> None:
    operations = [await result_of(ana) for _ in range(3)]
    for operation in operations:
        await share(ana, operation, bob)
    pages = [(await bob.get("editor/shared_with_me", page=page, limit=2)).json() for page in (1, 2, 3)]
    assert [page["count"] for page in pages] == [3, 3, 3]
    assert [[one["operationId"] for one in page["results"]] for page in pages] == [
        [operations[2], operations[1]],
        [operations[0]],
        [],
    ]


@pytest.mark.sharing(19)
async def test_default_and_maximum_of_the_end_are_settings(small_api: ApiOpener) -> None:
    async with small_api(share_default_days=2, share_max_days=4) as api:
        ana, bob = await api.user("ana"), await api.user("bob")
        operation, now = await result_of(ana), datetime.now(UTC)
        [granted] = (await share(ana, operation, bob))["shares"]
        assert timedelta(days=2) <= datetime.fromisoformat(granted["until"]) - now + timedelta(seconds=1)
        assert datetime.fromisoformat(granted["until"]) - now < timedelta(days=2, minutes=5)
        late = (now + timedelta(days=4, minutes=10)).isoformat()
        for end, text in (
            (late, "until must be at most 4 days away (`editor.share_max_days`)."),
            (now.isoformat(), "until must be in the future."),
            ("tomorrow", "until must be a time such as 2026-01-05T09:10:11Z."),
        ):
            assert await refusal(ana, operation, bob, until=end) == ((400, -1, "invalid_parameter"), text)


@pytest.mark.sharing(20)
async def test_unknown_names_own_name_and_missing_results_are_refused(api: Api, ana: Caller, bob: Caller) -> None:
    operation = await result_of(ana)
    gone = await api.user("gone")
    await accounts(api).disable(gone.username)
    unknown = replace(gone, username=f"nobody-{uuid4()}")
    for caller in (gone, unknown):
        assert (await refusal(ana, operation, bob, caller))[0][2] == "unknown_user"
    for name in ("not a name", "eve/x", "x" * 200):
        assert (await refusal(ana, operation, users=[name]))[0] == (404, -1, "unknown_user")
    assert (await refusal(ana, operation, groups=["no such group"]))[0][2] == "unknown_group"
    assert (await refusal(ana, operation, ana))[0][2] == "invalid_parameter"
    assert (await refusal(ana, operation))[0][2] == "missing_parameter"
    assert (await refusal(ana, operation, bob, title="x" * 201))[0][2] == "invalid_parameter"
    assert (await ana.get(f"editor/shares/{operation}")).json()["shares"] == []
    for statement in ("change 3", "fail now"):
        found = await refusal(ana, await result_of(ana, statement), bob)
        assert found[0] == (409, -1, "no_result_to_share")
    await ana.on(operation, "close_statement")
    assert (await refusal(ana, operation, bob))[0][2] == "no_result_to_share"


@pytest.mark.sharing(20)
async def test_number_of_grants_of_a_result_is_limited(api: Api, ana: Caller, bob: Caller) -> None:
    operation = await result_of(ana)
    groups = [f"many-{number}-{uuid4()}" for number in range(MAX_GRANTS_PER_RESULT)]
    await api.database.execute("insert into groups (name) select unnest($1::text[])", groups)
    assert (await share(ana, operation, groups=groups))["changed"] == MAX_GRANTS_PER_RESULT
    assert (await refusal(ana, operation, bob))[0] == (409, -1, "too_many_grants")
    assert (await share(ana, operation, groups=groups[:2], title="again"))["changed"] == 2


@pytest.mark.sharing(20)
async def test_parallel_calls_do_not_exceed_the_number_of_grants_together(api: Api, ana: Caller) -> None:
    operation, size = await result_of(ana), MAX_GRANTS_PER_RESULT // 2 + 1
    groups = [f"many-{number}-{uuid4()}" for number in range(2 * size)]
    await api.database.execute("insert into groups (name) select unnest($1::text[])", groups)
    async with api.database.transaction() as connection:
        await connection.execute("select from statements where id = $1 for no key update", UUID(operation))
        calls = [
            asyncio.create_task(ana.post_json("editor/share_result", operationId=operation, groups=some))
            for some in (groups[:size], groups[size:])
        ]
        waiting = (
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
        async with asyncio.timeout(60):
            while await connection.fetchval(f"{waiting}") < len(calls):
                await connection.execute("select pg_stat_clear_snapshot()")
                await asyncio.sleep(0.01)
    assert sorted([one.status_code for one in await asyncio.gather(*calls)]) == [200, 409]


@pytest.mark.sharing(20)
async def test_grantee_who_was_disabled_meanwhile_is_unknown(
    api: Api, ana: Caller, bob: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = await result_of(ana)
    grant = GrantRecords.grant

    async def grant_late(*arguments: Any, **named: Any) -> int:
        await accounts(api).disable(bob.username)
        return await grant(*arguments, **named)

    monkeypatch.setattr(GrantRecords, "grant", grant_late)
    assert (await refusal(ana, operation, bob))[0][2] == "unknown_user"


@pytest.mark.sharing(18)
async def test_received_grants_are_found_by_index(api: Api) -> None:
    async with api.database.transaction() as connection:
        await connection.execute("set local enable_seqscan = off")
        rows = await connection.fetch(f"explain {RECEIVED}", 1, ["mysql"], [], 0, 50)
    plan = "\n".join(row[0] for row in rows)
    assert all(index in plan for index in ("ix_result_grants_user", "ix_result_grants_group")), plan


@pytest.mark.sharing(18)
async def test_names_may_be_listed_in_a_form(ana: Caller, bob: Caller, team: tuple[str, Caller]) -> None:
    group, eva = team
    operation = await result_of(ana)
    await ana.on(operation, "share_result", users=f"{bob.username.upper()}, {eva.username}", groups=f'["{group}"]')
    assert await may_read(bob, operation)
    assert await may_read(eva, operation)


# Rows from other sources


@pytest.mark.sharing(16)
async def test_result_of_a_session_with_the_callers_own_login_is_not_shared_by_default(ana: Caller, bob: Caller):
    credentials = [{"name": "user", "value": "api_tests"}, {"name": "password", "value": "planted-secret"}]
    session = {"type": "postgresql", "properties": credentials}
    own = (await ana.post_ok("editor/create_session", session=json.dumps(session)))["session"]["id"]
    plain = (await ana.post_ok("editor/create_session", session='{"type": "postgresql"}'))["session"]["id"]
    operation = await result_of(ana, "SELECT 7 AS n", "postgresql", session_id=plain)
    await share(ana, operation, bob)
    operation = await result_of(ana, "SELECT 7 AS n", "postgresql", session_id=own)
    found, message = await refusal(ana, operation, bob)
    assert (found[2], "logged in with your credentials" in message) == ("sharing_not_allowed", True)
    derived = await result_of(ana, f"FROM 'result://{operation}'", "duckdb")
    assert (await refusal(ana, derived, bob))[0][2] == "sharing_not_allowed"


@pytest.mark.sharing(21)
async def test_result_of_an_older_program_is_not_shared(api: Api, ana: Caller, bob: Caller) -> None:
    old, script = await result_of(ana), await result_of(ana, "rows 2; rows 3", run_all="true")
    for operation in (old, script):
        await share(ana, operation, bob)
        unknown = "set uses_own_rights = null, read_connectors = null where $1 in (id, operation_id)"
        await api.database.execute(f"update statements {unknown}", UUID(operation))
        found, message = await refusal(ana, operation, bob)
        assert (found[2], "Run the statement again." in message) == ("sharing_not_allowed", True)
        assert not (await rows_of(bob, operation)).is_success
    assert not await may_read(bob, old)
    listed = (await bob.get("editor/shared_with_me")).json()["results"]
    assert listed == []
    known = "set uses_own_rights = false, read_connectors = '{}' where operation_id = $1 and statement_index = 1"
    await api.database.execute(f"update statements {known}", UUID(script))
    listed = (await bob.get("editor/shared_with_me")).json()["results"]
    assert [one["operationId"] for one in listed] == [script], "one of its statements can be read"
    derived = await result_of(ana, f"FROM 'result://{old}'", "duckdb")
    assert (await refusal(ana, derived, bob))[0][2] == "sharing_not_allowed"


@pytest.mark.sharing(21)
async def test_statement_that_waits_can_be_shared_before_it_is_known_what_it_reads(api: Api, ana: Caller, bob: Caller):
    operation = await result_of(ana)
    waits = "set state = 'waiting', uses_own_rights = null, read_connectors = null where id = $1"
    await api.database.execute(f"update statements {waits}", UUID(operation))
    await share(ana, operation, bob)
    assert (await bob.on(operation, "check_status"))["query_status"]["state"] == "waiting"
    await ana.on(operation, "cancel_statement")


@pytest.mark.sharing(21)
async def test_results_of_shared_results_cannot_be_shared_again(api: Api, ana: Caller, bob: Caller) -> None:
    operation = await result_of(ana, "rows 50")
    await share(ana, operation, bob)
    again = await result_of(bob, f"FROM 'result://{operation}'", "duckdb")
    tom = await api.user("tom")
    found, message = await refusal(bob, again, tom)
    assert (found[2], message) == (
        "sharing_not_allowed",
        "This result cannot be shared: its statement has read another user's result.",
    )
    twice = await result_of(bob, f"FROM 'result://{again}'", "duckdb")
    assert (await refusal(bob, twice, tom))[0][2] == "sharing_not_allowed"
    other = await result_of(bob, "SELECT 1 AS n", "duckdb")
    await share(bob, other, tom)


@pytest.mark.sharing(21)
async def test_result_of_own_results_needs_their_connectors(api: Api) -> None:
    team = f"team-{uuid4()}"
    ana, eva = await api.user("ana", groups=(_ANALYSTS,)), await api.user("eva", groups=(_ANALYSTS, team))
    bob = await api.user("bob", groups=(team,))
    source = await result_of(ana, "rows 50", "members")
    derived = await result_of(ana, f"SELECT sum(n)::BIGINT AS n FROM 'result://{source}'", "duckdb")
    assert (await refusal(ana, derived, bob))[0][2] == "sharing_not_allowed"
    await share(ana, derived, eva, groups=[team])
    assert await may_read(eva, derived)
    assert not await may_read(bob, derived)
    listed = [(await one.get("editor/shared_with_me")).json()["results"] for one in (eva, bob)]
    assert [derived in {entry["operationId"] for entry in one} for one in listed] == [True, False]
    hidden = await result_of(ana, "rows 5", "never")
    derived = await result_of(ana, f"FROM 'result://{hidden}'", "duckdb")
    found, message = await refusal(ana, derived, eva)
    assert (found[2], "share_results is never" in message) == ("sharing_not_allowed", True)


@pytest.mark.sharing(21)
async def test_temporary_table_of_a_session_limits_its_later_results(ana: Caller, bob: Caller) -> None:
    hidden = await result_of(ana, "rows 5", "never")
    script = f"CREATE TEMP TABLE kept AS FROM 'result://{hidden}'; FROM kept"
    operation = await result_of(ana, script, "duckdb", run_all="true")
    assert (await ana.page(operation, start_row=0))["rows_total"] == 5
    assert (await refusal(ana, operation, bob))[0][2] == "sharing_not_allowed"


@pytest.mark.sharing(21)
async def test_result_with_rows_of_files_needs_a_connector_that_permits_anyone(api: Api, bob: Caller) -> None:
    ana = await api.user("ana", groups=(_ANALYSTS,))
    guarded, free = await result_of(ana), await result_of(ana, dialect="open")
    await share(ana, guarded, bob)
    await api.database.execute(
        "update statements set uses_own_rights = true where id = any($1)", [UUID(guarded), UUID(free)]
    )
    found, message = await refusal(ana, guarded, bob)
    assert (found[2], "has read files with your rights" in message) == ("sharing_not_allowed", True)
    assert not await may_read(bob, guarded)
    await share(ana, free, bob)
    assert await may_read(bob, free)
    listed = (await bob.get("editor/shared_with_me")).json()["results"]
    assert [one["operationId"] for one in listed] == [free]


@pytest.mark.sharing(22)
async def test_grants_revocations_and_refusals_are_audited(ana: Caller, bob: Caller, team: tuple[str, Caller]) -> None:
    events: list[dict[str, Any]] = []

    def keep(record: logging.LogRecord) -> None:
        fields = getattr(record, FIELDS)
        events.append({"operation": record.getMessage(), **{name: fields.get(name) for name in _AUDITED}})

    operation, unknown = await result_of(ana), str(uuid4())
    with audit_event_handler(keep):
        await share(ana, operation, bob, groups=[team[0]])
        assert (await refusal(bob, operation, ana))[0][2] == "operation_not_found"
        await ana.on(operation, "revoke_share", users=bob.username)
        assert verdict(await ana.post("editor/revoke_share", operationId=unknown))[0] == 404
    told = [event for event in events if event["operation"].startswith("result.")]
    assert [tuple(event.values()) for event in told] == [
        ("result.share", ana.username, "ok", operation, bob.username, team[0]),
        ("result.share", bob.username, "operation_not_found", operation, ana.username, ""),
        ("result.revoke_share", ana.username, "ok", operation, bob.username, ""),
        ("result.revoke_share", ana.username, "operation_not_found", unknown, "", ""),
    ]


@pytest.mark.sharing(22)
async def test_audit_events_name_each_user_and_group_once_in_lines_that_are_not_cut(ana: Caller, bob: Caller) -> None:
    operation, groups = await result_of(ana), [f"{number}-{uuid4()}".ljust(140, "x") for number in range(300)]
    database = ana.api.database
    await database.execute("insert into groups (name) select unnest($1::text[])", groups)
    spellings = [f"{' ' * 40_000}{bob.username}", bob.username.upper(), bob.username]
    lines: list[dict[str, str]] = []
    with audit_event_handler(lambda record: lines.append(getattr(record, FIELDS))):
        response = await ana.post_json("editor/share_result", operationId=operation, users=spellings, groups=groups)
        assert response.json()["changed"] == 301, response.text
        long = ["y" * 100_000]
        assert (await refusal(ana, operation, users=long))[0][2] == "unknown_user"
        assert (await refusal(ana, operation, groups=long))[0][2] == "unknown_group"
    assert max(len(str(line)) for line in lines) < MAX_LINE_CHARACTERS / 2
    shared = [line for line in lines if line["outcome"] == "ok" and line.get("operation_id") == operation]
    assert [name for line in shared for name in line["to_users"].split(", ") if name] == [bob.username]
    assert [name for line in shared for name in line["to_groups"].split(", ") if name] == groups
