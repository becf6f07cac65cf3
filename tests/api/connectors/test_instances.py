"""Stored connectors: visibility, changes, grants, deletion, encodings (Contract platform 1.2, 4.3, 5.3 to 5.7, 12)."""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from tests.api.conftest import ApiOpener
from tests.api.connectors.driving import ConnectorAdmin, by_name, instances_of, listed
from tests.api.driving import Api, Caller, verdict
from tests.operations import read_operations
from tests.unit.cli.test_commands import Command, command_in

from queryserver.connectors.instances import Draft
from queryserver.identity.users import Groups
from queryserver.platform.settings.desktop import AuthSettings


@pytest.mark.platform(63)
@pytest.mark.security("T10")
async def test_users_see_connectors_granted_to_their_groups_and_administrators_see_all(
    api: Api, admin: ConnectorAdmin
) -> None:
    await api.user("first", groups=("analysts",))
    open_one = await admin.create("Open", "sqlite", "sqlite")
    theirs = await admin.save(
        nice_name="Theirs", dialect="sqlite", interface="sqlite", settings={}, groups=["analysts"]
    )
    nobodys = await admin.save(nice_name="Nobody's", dialect="sqlite", interface="sqlite", settings={}, groups=[])
    assert (open_one["groups"], theirs["groups"], nobodys["groups"]) == (["default"], ["analysts"], [])
    ana, analyst = await api.user("ana"), await api.user("analyst", groups=("analysts",))
    made = {one["id"] for one in (open_one, theirs, nobodys)}

    async def sees(caller: Caller) -> set[str]:
        return {one["id"] for one in await instances_of(caller)} & made

    assert await sees(ana) == {open_one["id"]}
    assert await sees(analyst) == {open_one["id"], theirs["id"]}
    assert await sees(admin.caller) == made
    for hidden in (theirs["id"], nobodys["id"]):
        refused = verdict(await ana.get(f"connector/instance/get/{hidden}"))
        assert refused == verdict(await ana.get("connector/instance/get/99999")) == (404, -1, "connector_not_found")
    shown = (await analyst.get(f"connector/instance/get/{theirs['id']}")).json()
    assert "groups" not in shown
    assert all("groups" not in one for one in await instances_of(ana))
    ids = [int(one["id"]) for one in await admin.instances() if one["category"] == "editor"]
    assert ids == sorted(ids)


@pytest.mark.parametrize("text", ["0", "x", "-1", "1.0", "9" * 30, "²", "7;8"])
async def test_malformed_id_is_not_found(admin: ConnectorAdmin, text: str) -> None:
    assert verdict(await admin.caller.get(f"connector/instance/get/{text}")) == (404, -1, "connector_not_found")


@pytest.mark.platform(66)
async def test_update_creates_without_an_id_and_changes_with_an_id(admin: ConnectorAdmin) -> None:
    sent = {"nice_name": "Made", "dialect": "trino", "interface": "trino", "description": "First"}
    created = (await admin.update({**sent, "settings": listed({"url": "https://t:8443", "catalog": "a"})})).json()
    assert (created["saved_as"], created["status"]) == (True, 0)
    made = created["connector"]
    assert re.fullmatch(r"[1-9]\d*", made["id"])
    assert (made["name"], made["version"], made["category"], made["is_runnable"]) == (made["id"], 1, "editor", True)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made["last_modified"])
    changed = (await admin.update({"id": made["id"], "description": "Second"})).json()
    assert changed["saved_as"] is False
    assert changed["connector"]["version"] == 2
    shown = await admin.shown(made["id"])
    assert (shown["description"], by_name(shown)["catalog"], shown["nice_name"]) == ("Second", "a", "Made")
    await admin.send({"id": int(made["id"]), "settings": listed({"url": "https://t:8443"})})
    assert by_name(await admin.shown(made["id"]))["catalog"] == ""
    await admin.send({"id": made["id"], "description": "", "settings": None})
    shown = await admin.shown(made["id"])
    assert (shown["description"], by_name(shown)["url"]) == ("Native protocol", "https://t:8443")


@pytest.mark.parametrize("nothing", [None, "", 0, "0"])
async def test_update_with_an_empty_id_creates(admin: ConnectorAdmin, nothing: object) -> None:
    sent = {"id": nothing, "nice_name": f"Empty {nothing!r}", "dialect": "sqlite", "interface": "sqlite"}
    assert (await admin.update(sent)).json()["saved_as"] is True


async def test_response_fields_may_be_sent_back_as_json_or_form(admin: ConnectorAdmin) -> None:
    made = await admin.create("Back", "hive", "hiveserver2", session_idle_s="60", query_timeout_s="5")
    assert by_name(made)["session_idle_s"] == 60
    again = (await admin.caller.post_json("connector/instance/update", connector=made)).json()
    assert again["connector"]["version"] == 2
    assert again["connector"]["settings"] == made["settings"]
    text = await admin.caller.post_json("connector/instance/update/", connector=json.dumps(made | {"version": 2}))
    assert text.json()["connector"]["version"] == 3


@pytest.mark.platform(67)
@pytest.mark.security("T10")
@pytest.mark.parametrize("call", ["instance/update", "instance/delete", "instance/test", "examples/install"])
async def test_only_administrators_change_connectors(api: Api, ana: Caller, admin: ConnectorAdmin, call: str) -> None:
    made = await admin.create(f"Kept {call}", "sqlite", "sqlite")
    body = json.dumps({"id": made["id"], "nice_name": "Taken over"})
    refused = await ana.post(f"connector/{call}", connector=body)
    assert verdict(refused) == (403, -1, "admin_required")
    assert refused.json()["message"] == "You must be an administrator."
    # Permissions are checked before the body is parsed.
    assert (
        verdict(await ana.send("POST", f"connector/{call}", content="{", headers={"content-type": "text/x"}))[0] == 403
    )
    assert (await api.stranger.post(f"connector/{call}")).status_code == 401
    assert await admin.shown(made["id"]) == made


@pytest.mark.platform(68)
async def test_conflicting_updates_change_nothing(admin: ConnectorAdmin) -> None:
    await admin.create("Taken", "sqlite", "sqlite")
    made = await admin.create("Free", "sqlite", "sqlite")
    other = {"nice_name": "tAKEN", "dialect": "sqlite", "interface": "sqlite"}
    assert (await admin.refused(other))[:2] == (409, "name_taken")
    assert (await admin.refused({"id": made["id"], "nice_name": "TAKEN"}))[:2] == (409, "name_taken")
    assert (await admin.refused({"id": "99999", "nice_name": "x"}))[:2] == (404, "connector_not_found")
    assert (await admin.refused({"id": "seven", "nice_name": "x"}))[:2] == (404, "connector_not_found")
    status, code, errors = await admin.refused({"id": made["id"], "dialect": "duckdb"})
    assert (status, code, list(errors)) == (400, "immutable_field", ["dialect"])
    assert (await admin.refused({**made, "interface": "sqlalchemy"}))[:2] == (400, "immutable_field")
    stale = await admin.update({**made, "version": 7, "nice_name": "Changed"})
    assert (stale.status_code, stale.json()["code"], stale.json()["version"]) == (409, "version_conflict", 1)
    unknown = {"nice_name": "New", "dialect": "sqlite", "interface": "livy"}
    assert (await admin.refused(unknown))[:2] == (404, "connector_type_not_found")
    assert await admin.shown(made["id"]) == made


async def test_only_one_of_concurrent_updates_to_a_version_succeeds(admin: ConnectorAdmin) -> None:
    made = await admin.create("Contested", "sqlite", "sqlite")
    answers = await asyncio.gather(
        *(admin.update({"id": made["id"], "version": 1, "description": f"{n}"}) for n in range(4))
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    free = await asyncio.gather(*(admin.update({"id": made["id"], "description": f"{n}"}) for n in range(12)))
    assert {answer.status_code for answer in free} == {200}
    assert (await admin.shown(made["id"]))["version"] == 14


@pytest.mark.parametrize(
    ("sent", "code", "where"),
    [
        ({}, "validation_failed", ["nice_name"]),
        ({"nice_name": "  "}, "validation_failed", ["nice_name"]),
        ({"nice_name": "x" * 101}, "validation_failed", ["nice_name"]),
        ({"nice_name": "a\nb"}, "validation_failed", ["nice_name"]),
        ({"description": "x" * 1001}, "validation_failed", ["description"]),
        ({"dialect": None}, "validation_failed", ["dialect"]),
        ({"groups": ["nobody-is-here"]}, "validation_failed", ["groups"]),
        ({"settings": listed({"color": 1})}, "unknown_setting", ["color"]),
        ({"settings": listed({"server_port": 0})}, "validation_failed", ["server_port"]),
        ({"settings": listed({"server_port": 65536})}, "validation_failed", ["server_port"]),
        ({"settings": listed({"server_host": ""})}, "validation_failed", ["server_host"]),
        ({"settings": listed({"server_host": "good,:10000"})}, "validation_failed", ["server_host"]),
        ({"settings": listed({"server_host": "[]"})}, "validation_failed", ["server_host"]),
        ({"settings": listed({"server_host": " , "})}, "validation_failed", ["server_host"]),
        ({"settings": listed({"server_host": "h:" + "9" * 5000})}, "validation_failed", ["server_host"]),
        ({"settings": listed({"auth_mechanism": "MAGIC"})}, "validation_failed", ["auth_mechanism"]),
        ({"settings": listed({"transport_mode": "http", "auth_mechanism": "JWT"})}, "validation_failed", ["use_ssl"]),
        ({"settings": listed({"ssl_ca": "x"})}, "validation_failed", ["ssl_ca"]),
        ({"settings": listed({"session_conf": "a.b=c"})}, "validation_failed", ["session_conf"]),
        ({"settings": listed({"password": "********"})}, "secret_required", ["password"]),
    ],
)
async def test_every_invalid_setting_is_reported_by_name(admin, sent, code, where):
    usual = {"nice_name": "Wrong", "dialect": "hive", "interface": "hiveserver2"}
    status, said, errors = await admin.refused(
        {**(usual if sent else {"dialect": "hive", "interface": "hiveserver2"}), **sent}
    )
    assert (status, said, list(errors)) == (400, code, where)
    assert all(text[0].isupper() and text.endswith(".") for texts in errors.values() for text in texts)


@pytest.mark.parametrize("amount", ["", "much", "1GB; ATTACH 'x'", "-1GB", "5"])
async def test_duckdb_memory_limit_must_be_a_number_with_a_unit(admin: ConnectorAdmin, amount: str) -> None:
    sent = {"nice_name": "Small", "dialect": "duckdb", "interface": "duckdb"}
    refused = await admin.refused({**sent, "settings": listed({"memory_limit": amount})})
    assert (*refused[:2], list(refused[2])) == (400, "validation_failed", ["memory_limit"])


@pytest.mark.parametrize("end", ["?user.name=x", "#top", "/?", "?op=DELETE#"])
async def test_http_server_urls_may_not_have_query_or_fragment(admin: ConnectorAdmin, end: str) -> None:
    for dialect, interface, name in (("hdfs", "rest", "server_url"), ("trino", "trino", "url")):
        sent = {"nice_name": "Asked", "dialect": dialect, "interface": interface}
        refused = await admin.refused({**sent, "settings": listed({name: f"http://localhost:1{end}"})})
        assert (*refused[:2], list(refused[2])) == (400, "validation_failed", [name])


async def test_kerberos_connector_is_runnable_only_with_gssapi_installed(admin: ConnectorAdmin) -> None:
    made = await admin.create("Tickets", "hive", "hiveserver2", server_host="hive.example", auth_mechanism="gssapi")
    assert made["is_runnable"] is (find_spec("gssapi") is not None)


async def test_delete_reads_only_the_id(admin: ConnectorAdmin) -> None:
    made = await admin.create("Whole", "sqlite", "sqlite")
    sent = {**made, "nice_name": 5, "settings": {"url": "x"}, "version": "old"}
    deleted = await admin.caller.post("connector/instance/delete", connector=json.dumps(sent))
    assert (deleted.status_code, deleted.json()) == (200, {"id": made["id"], "status": 0})


async def test_body_must_be_a_connector(admin: ConnectorAdmin) -> None:
    post = admin.caller.refused
    assert await post("connector/instance/update") == (400, -1, "missing_parameter")
    assert await post("connector/instance/delete") == (400, -1, "missing_parameter")
    assert await post("connector/instance/update", connector="{") == (400, -1, "invalid_json")
    assert await post("connector/instance/update", connector="[]") == (400, -1, "invalid_parameter")
    assert (await admin.refused({"settings": "x"}))[:2] == (400, "invalid_parameter")
    assert (await admin.refused({"version": "new"}))[:2] == (400, "invalid_parameter")
    assert (await admin.refused({"id": []}))[:2] == (400, "invalid_parameter")
    assert await post("connector/instance/delete", connector="{}") == (404, -1, "connector_not_found")


async def test_policy_determines_the_grants_of_new_connectors(small_api: ApiOpener, tmp_path: Path) -> None:
    policy = {"grant_to_default_group": False, "local_database_dir": tmp_path / "databases"}
    async with small_api(desktop={"connector_policy": policy}) as api:
        admin = await ConnectorAdmin.of(api)
        assert (await admin.create("Mine", "sqlite", "sqlite"))["groups"] == []
        assert await instances_of(await api.user("ana")) == []


@pytest.mark.platform(75)
async def test_connector_in_use_is_not_deleted_and_deletion_keeps_history(api, admin, users_url):
    ana = await api.user("ana")
    made = await admin.create("Short-lived", "postgresql", "sqlalchemy", url=users_url)
    done = await ana.run(made["id"], "SELECT 41 + 1 AS answer")
    slow = await ana.execute(made["id"], "SELECT pg_sleep(60)")
    await ana.running(slow["history_uuid"])
    refused = await admin.delete(made["id"])
    assert (refused.status_code, refused.json()["code"], refused.json()["running"]) == (409, "connector_in_use", 1)
    assert await admin.shown(made["id"]) == made
    await ana.on(slow["history_uuid"], "cancel_statement")
    await ana.ended(slow["history_uuid"])
    deleted = await admin.delete(made["id"])
    assert (deleted.status_code, deleted.json()) == (200, {"id": made["id"], "status": 0})
    assert (await admin.delete(made["id"])).status_code == 404
    assert (await admin.caller.get(f"connector/instance/get/{made['id']}")).status_code == 404
    assert made["id"] not in {one["id"] for one in await admin.instances()}
    assert (await ana.page(done["history_uuid"]))["data"] == [[42]]
    assert done["history_uuid"] in {one["uuid"] for one in (await ana.history())["history"]}
    again = await ana.refused(f"editor/execute/{made['id']}", statement="SELECT 1")
    assert again == await ana.refused("editor/execute/no-such-dialect", statement="SELECT 1")
    successor = await admin.create("Short-lived", "postgresql", "sqlalchemy", url=users_url)
    assert int(successor["id"]) > int(made["id"])
    rights = await api.database.fetch('select from group_rights where "right" = $1', f"connector:{made['id']}")
    assert rights == []


async def test_new_and_changed_connectors_apply_to_the_next_statement(api, admin, users_url):
    ana = await api.user("ana")
    made = await admin.create("At once", "postgresql", "sqlalchemy", url=f"{users_url}?application_name=one")
    named = "SELECT reset_val FROM pg_settings WHERE name = 'application_name'"
    assert (await ana.result(made["id"], named))["data"] == [["one"]]
    url = by_name(made)["url"].replace("=one", "=two")
    assert "********" in url
    await admin.send({"id": made["id"], "settings": listed({"url": url})})
    assert (await ana.result(made["id"], named))["data"] == [["two"]]
    await admin.send({"id": made["id"], "groups": []})
    assert (await ana.refused(f"editor/execute/{made['id']}", statement=named))[0] == 404


async def test_types_that_cannot_run_can_be_stored_and_edited(admin: ConnectorAdmin) -> None:
    made = await admin.create("Flink", "flink", "flink", url="http://169.254.169.254:8083", has_ssh=True)
    assert made["is_runnable"] is False
    changed = await admin.send({"id": made["id"], "settings": listed({"url": "anything"})})
    assert by_name(changed) == {"url": "anything", "has_ssh": False, "ssh_server_host": "127.0.0.1"}
    assert (await admin.refused({"id": made["id"], "settings": listed({"has_ssh": "maybe"})}))[1] == "validation_failed"
    assert (await admin.refused({"id": made["id"], "settings": listed({"read_only": True})}))[1] == "unknown_setting"


@pytest.fixture
def command(tmp_path: Path, connectors_database_dsn: str) -> Command:
    """The command-line program, which uses the running server's database."""
    return command_in(tmp_path, QUERYSERVER__DESKTOP__DATABASE__URL=connectors_database_dsn)


@pytest.mark.platform(54, 63)
@pytest.mark.security("T22")
async def test_grants_and_revocations_apply_to_the_next_call(api: Api, admin: ConnectorAdmin, command: Command) -> None:
    ana = await api.user("ana", groups=("watchers",))
    made = await admin.save(
        nice_name="Granted by hand", dialect="sqlite", interface="sqlite", settings={"path": ":memory:"}, groups=[]
    )
    number = made["id"]
    assert await _sees(ana, number) is False
    assert (await command("grant", "watchers", f"connector:{number}")).code == 0
    assert await _sees(ana, number) is True
    operation = (await ana.run(number, "select 41 + 1"))["history_uuid"]
    assert (await ana.page(operation))["data"] == [[42]]
    assert (await command("ungrant", "watchers", f"connector:{number}")).code == 0
    assert await _sees(ana, number) is False
    assert await ana.refused("editor/fetch_result_data", operationId=operation) == (403, -1, "permission_denied")
    # A user may also see the connector because of a grant to everyone or to another of the user's groups.
    groups = Groups(api.database, AuthSettings())
    await groups.grant("default", "connector:*")
    try:
        assert await _sees(ana, number) is True
    finally:
        await groups.ungrant("default", "connector:*")
    assert await _sees(ana, number) is False


@pytest.mark.platform(54)
@pytest.mark.security("T22")
async def test_grant_revoked_during_an_update_stays_revoked(api, admin, monkeypatch):
    made = await admin.save(
        nice_name="Taken meanwhile", dialect="sqlite", interface="sqlite", settings={}, groups=["default"]
    )
    groups = Groups(api.database, AuthSettings())
    await groups.create("given-meanwhile")
    drafts = api.services.stored_connectors
    usual = drafts.draft

    async def slow(*asked: Any) -> Draft:
        draft = await usual(*asked)
        await groups.ungrant("default", f"connector:{made['id']}")
        await groups.grant("given-meanwhile", f"connector:{made['id']}")
        return draft

    monkeypatch.setattr(drafts, "draft", slow)
    changed = await admin.send({"id": made["id"], "description": "x"})
    assert (changed["description"], changed["groups"]) == ("x", ["given-meanwhile"])


@pytest.mark.platform(63)
@pytest.mark.security("T10")
async def test_grant_for_a_future_id_does_not_open_a_later_connector(api: Api, admin: ConnectorAdmin) -> None:
    ana = await api.user("ana", groups=("early",))
    made = await admin.create("First", "sqlite", "sqlite")
    await Groups(api.database, AuthSettings()).grant("early", f"connector:{int(made['id']) + 1}")
    later = await admin.save(nice_name="Later", dialect="sqlite", interface="sqlite", settings={}, groups=[])
    assert int(later["id"]) == int(made["id"]) + 1
    assert later["groups"] == []
    assert await _sees(ana, later["id"]) is False


async def _sees(caller: Caller, number: str) -> bool:
    """Return whether the caller sees the connector. Fails unless the list, get and execute calls agree."""
    listed = number in {one["id"] for one in await instances_of(caller)}
    got = (await caller.get(f"connector/instance/get/{number}")).status_code == 200
    executed = await caller.post(f"editor/execute/{number}", statement="select 1", wait=30)
    assert executed.status_code in {200, 404}
    assert listed == got == (executed.status_code == 200)
    return listed


ENCODINGS = ("form", "json with texts", "json")

# Fields that differ between otherwise identical calls: generated ids, times and durations.
_VOLATILE = frozenset({"id", "last_modified", "ms", "duration_ms"})
_IDS = frozenset({"added", "updated", "unchanged"})


@dataclass
class Sender:
    """An administrator who sends every body in one encoding. It records the responses without the fields that vary."""

    caller: Caller
    encoding: str
    answers: list[tuple[str, int, Any]] = field(default_factory=list)

    async def post(self, path: str, **fields: Any) -> dict[str, Any]:
        response = await self._sent(path, fields)
        self.answers.append((path, response.status_code, stable(response.json())))
        return response.json()

    async def _sent(self, path: str, fields: Mapping[str, Any]) -> httpx.Response:
        if self.encoding == "json":
            return await self.caller.post_json(path, **fields)
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
        return await (self.caller.post if self.encoding == "form" else self.caller.post_json)(path, **texts)


def stable(value: Any, name: str = "") -> Any:
    # The `name` of a stored connector is its numeric id. Names of settings and checks are never numeric.
    if name in _VOLATILE or (name == "name" and isinstance(value, str) and value.isdecimal()):
        return None if value is None else "…"
    if isinstance(value, dict):
        return {key: stable(element, key) for key, element in value.items()}
    if isinstance(value, list):
        return ["…" if name in _IDS else stable(element) for element in value]
    return value


async def whole_life(sender: Sender) -> None:
    """Create, use and delete a connector and a group, and install and remove the examples. Some calls are refused."""
    drawer = {"nice_name": "Drawer", "dialect": "sqlite", "interface": "sqlite"}
    made = (await sender.post("connector/instance/update", connector={**drawer, "description": "Ours"}))["connector"]
    await sender.post("connector/instance/update", connector=drawer)
    await sender.post(
        "connector/instance/update", connector={"id": made["id"], "version": 1, "description": "All of ours"}
    )
    await sender.post(
        "connector/instance/update", connector={"id": made["id"], "version": 1, "description": "Too late"}
    )
    await sender.post("connector/instance/update", connector={"id": made["id"], "settings": listed({"color": "red"})})
    await sender.post("connector/instance/update")
    await sender.post("connector/instance/test", connector={"id": made["id"]})
    await sender.post("connector/instance/test", connector={**drawer, "settings": made["settings"]})
    await sender.post("connector/instance/test", connector={"dialect": "sqlite", "interface": "livy"})
    await sender.post("connector/instance/delete", connector={"id": made["id"]})
    await sender.post("connector/instance/delete", connector={"id": "123456789"})
    installed = await sender.post("connector/examples/install")
    await sender.post("connector/examples/install", unknown=1)
    await sender.post("install_app_examples", app_name="connectors")
    await sender.post(f"admin/statements/{UUID(int=0)}/cancel")
    await sender.post("iam/groups/new", name="workers", rights=["download"])
    await sender.post("iam/groups/update", name="workers", grant=["importer"], revoke=["download"])
    await sender.post("iam/groups/delete", name="workers")
    # Users are not deleted, so a new one would be refused in the next encoding.
    await sender.post("iam/users/new", username="no name", password="a long enough word")
    await sender.post("iam/users/update", username="unknown", is_active=False)
    await sender.post("iam/users/revoke_tokens", username="unknown")
    for connector_id in installed["added"]:
        await sender.post("connector/instance/delete", connector={"id": connector_id})


@pytest.mark.platform(2)
async def test_administrator_calls_are_equivalent_in_every_encoding(small_api: ApiOpener) -> None:
    answers_by_encoding: dict[str, list[tuple[str, int, Any]]] = {}
    async with small_api() as api:
        for encoding in ENCODINGS:
            sender = Sender(await api.user("root", admin=True), encoding)
            await whole_life(sender)
            answers_by_encoding[encoding] = sender.answers
    # tests/api/taskserver covers the task server's calls.
    served = {
        row.path
        for row in read_operations()
        if (row.method, row.rights) == ("POST", "admin") and not row.path.startswith("/api/v1/taskserver/")
    }
    sent = {f"/api/v1/{path}".replace(str(UUID(int=0)), "{operation_id}") for path, _, _ in answers_by_encoding["form"]}
    assert sent == served
    statuses = [status for _, status, _ in answers_by_encoding["form"]]
    of_connectors = [200, 409, 200, 409, 400, 400, 200, 200, 404, 200, 404, 200, 200, 200, 404]
    assert statuses == [*of_connectors, 200, 200, 200, 400, 404, 404, 200, 200]
    assert answers_by_encoding["json"] == answers_by_encoding["form"]
    assert answers_by_encoding["json with texts"] == answers_by_encoding["form"]
